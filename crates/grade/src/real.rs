//! Real numbers to evaluate with: machine floats for a quick look, and `Big`, a binary float of any precision,
//! where a decision hangs on small differences. Knows arithmetic and elementary functions; nothing of expressions.

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};
use std::sync::OnceLock;

/// Precision of the constants in bits; `P` is smaller.
const MAX_P: i64 = 640;

/// Real numbers as complex arithmetic needs them.
pub(crate) trait Real: Clone {
    fn rat(v: &BigRational) -> Self;
    fn int(n: i64) -> Self {
        Self::rat(&BigRational::from(BigInt::from(n)))
    }
    fn add(&self, o: &Self) -> Self;
    fn sub(&self, o: &Self) -> Self {
        self.add(&o.neg())
    }
    fn neg(&self) -> Self;
    fn mul(&self, o: &Self) -> Self;
    /// `None` for a division by zero.
    fn div(&self, o: &Self) -> Option<Self>;
    fn sqrt(&self) -> Self;
    fn exp(&self) -> Option<Self>;
    /// The logarithm of a positive number.
    fn ln(&self) -> Self;
    fn sin_cos(&self) -> (Self, Self);
    fn atan(&self) -> Self;
    fn pi() -> Self;
    fn sign(&self) -> i32;
    fn floor(&self) -> Self;
    /// log2 of the magnitude, roughly; very negative for zero, NaN if it is not a number.
    fn log2(&self) -> f64;
}

impl Real for f64 {
    fn rat(v: &BigRational) -> f64 {
        v.to_f64().unwrap_or(f64::NAN)
    }
    fn add(&self, o: &f64) -> f64 {
        self + o
    }
    fn neg(&self) -> f64 {
        -self
    }
    fn mul(&self, o: &f64) -> f64 {
        self * o
    }
    fn div(&self, o: &f64) -> Option<f64> {
        (*o != 0.0).then(|| self / o)
    }
    fn sqrt(&self) -> f64 {
        f64::sqrt(*self)
    }
    fn exp(&self) -> Option<f64> {
        Some(f64::exp(*self))
    }
    fn ln(&self) -> f64 {
        f64::ln(*self)
    }
    fn sin_cos(&self) -> (f64, f64) {
        f64::sin_cos(*self)
    }
    fn atan(&self) -> f64 {
        f64::atan(*self)
    }
    fn pi() -> f64 {
        std::f64::consts::PI
    }
    fn sign(&self) -> i32 {
        if *self > 0.0 { 1 } else { -i32::from(*self < 0.0) }
    }
    fn floor(&self) -> f64 {
        f64::floor(*self)
    }
    fn log2(&self) -> f64 {
        if *self == 0.0 { -1e9 } else { self.abs().log2() }
    }
}

/// `m · 2^e` with at most `P` bits of `m`; every operation truncates, so an error is a few units of the last bit.
#[derive(Clone, Debug)]
pub(crate) struct Big<const P: u64> {
    m: BigInt,
    e: i64,
}

impl<const P: u64> Big<P> {
    fn new(m: BigInt, e: i64) -> Self {
        let bits = m.bits();
        if m.is_zero() {
            return Big { m, e: 0 };
        }
        if bits <= P {
            return Big { m, e };
        }
        let cut = bits - P;
        Big { m: m >> cut, e: e + cut as i64 }
    }

    fn scaled(&self, k: i64) -> Self {
        Big { m: self.m.clone(), e: if self.m.is_zero() { 0 } else { self.e + k } }
    }

    /// The value times 2^P, as an integer: fixed point for the series below (for values of modest size).
    fn fixed(&self) -> BigInt {
        let k = self.e + P as i64;
        if k >= 0 { &self.m << k.min(4 * P as i64) } else { &self.m >> (-k).min(8 * P as i64) }
    }

    fn ln2() -> Self {
        // ln 2 = 2 atanh(1/3).
        static LN2: OnceLock<BigInt> = OnceLock::new();
        let sum = LN2.get_or_init(|| {
            let mut term: BigInt = (BigInt::one() << MAX_P) / 3;
            let (mut sum, mut k) = (BigInt::zero(), 1);
            while !term.is_zero() {
                sum += &term / k;
                term /= 9;
                k += 2;
            }
            sum << 1
        });
        Self::new(sum.clone(), -MAX_P)
    }

    fn arctan_inverse(n: i64) -> BigInt {
        let mut term: BigInt = (BigInt::one() << MAX_P) / n;
        let (mut sum, mut k, mut plus) = (BigInt::zero(), 1, true);
        while !term.is_zero() {
            if plus {
                sum += &term / k;
            } else {
                sum -= &term / k;
            }
            term /= n * n;
            k += 2;
            plus = !plus;
        }
        sum
    }
}

impl<const P: u64> Real for Big<P> {
    fn rat(v: &BigRational) -> Self {
        let (n, d) = (v.numer(), v.denom());
        if d.is_one() {
            return Self::new(n.clone(), 0);
        }
        let shift = P as i64 + d.bits() as i64 - n.bits() as i64 + 2;
        let shift = shift.max(0);
        Self::new((n << shift) / d, -shift)
    }
    fn add(&self, o: &Self) -> Self {
        if self.m.is_zero() {
            return o.clone();
        }
        if o.m.is_zero() {
            return self.clone();
        }
        let (hi, lo) = if self.e >= o.e { (self, o) } else { (o, self) };
        let gap = hi.e - lo.e;
        if gap > 3 * P as i64 {
            return hi.clone();
        }
        Self::new((&hi.m << gap) + &lo.m, lo.e)
    }
    fn neg(&self) -> Self {
        Big { m: -&self.m, e: self.e }
    }
    fn mul(&self, o: &Self) -> Self {
        Self::new(&self.m * &o.m, self.e + o.e)
    }
    fn div(&self, o: &Self) -> Option<Self> {
        if o.m.is_zero() {
            return None;
        }
        let shift = P as i64 + o.m.bits() as i64 - self.m.bits() as i64 + 2;
        let shift = shift.max(0);
        Some(Self::new((&self.m << shift) / &o.m, self.e - o.e - shift))
    }
    fn sqrt(&self) -> Self {
        if self.m.is_negative() || self.m.is_zero() {
            return Big { m: BigInt::zero(), e: 0 };
        }
        let mut shift = 2 * P as i64 - self.m.bits() as i64 + 2;
        shift = shift.max(0);
        if (self.e - shift).is_odd() {
            shift += 1;
        }
        Self::new((&self.m << shift).sqrt(), (self.e - shift) / 2)
    }
    fn exp(&self) -> Option<Self> {
        if self.log2() > 20.0 {
            return None;
        }
        let ln2 = Self::ln2();
        let k = self.div(&ln2)?.floor();
        let n = (k.m.clone() << k.e.max(0)).to_i64()?;
        // exp(r) = exp(r / 2^16)^(2^16), by Taylor's series in fixed point with 32 spare bits.
        let r = self.sub(&ln2.mul(&k)).scaled(-16);
        let x = Big::<P>::fixed(&r.scaled(32));
        let unit = P + 32;
        let mut term = BigInt::one() << unit;
        let mut sum = term.clone();
        let mut j = 1;
        while !term.is_zero() && j < 400 {
            term = ((&term * &x) >> unit) / j;
            if term == BigInt::from(-1) {
                break;
            }
            sum += &term;
            j += 1;
        }
        for _ in 0..16 {
            sum = (&sum * &sum) >> unit;
        }
        Some(Self::new(sum, n - unit as i64))
    }
    fn ln(&self) -> Self {
        // x = m 2^e with m near 1; then Newton on exp, doubling the good bits each time.
        let e = self.m.bits() as i64 + self.e;
        let m = self.scaled(-e);
        let start = m.m.to_f64().map_or(0.5, |f| f * 2f64.powi(m.e.clamp(-2000, 0) as i32));
        let start = if start.is_finite() && start > 0.0 { start.ln() } else { 0.0 };
        let mut y = BigRational::from_float(start).map_or_else(|| Self::int(0), |r| Self::rat(&r));
        let mut good = 40;
        while good < 2 * P {
            let Some(inverse) = y.neg().exp() else { break };
            y = y.add(&m.mul(&inverse).sub(&Self::int(1)));
            good *= 2;
        }
        y.add(&Self::ln2().mul(&Self::int(e)))
    }
    fn sin_cos(&self) -> (Self, Self) {
        let two_pi = Self::pi().scaled(1);
        let turns = self
            .div(&two_pi)
            .map_or_else(|| Self::int(0), |t| t.add(&Self::rat(&BigRational::new(1.into(), 2.into()))).floor());
        let x = self.sub(&two_pi.mul(&turns)).fixed();
        let x2 = (&x * &x) >> P;
        let series = |first: BigInt, mut k: u64| {
            let (mut term, mut sum) = (first.clone(), first);
            while !term.is_zero() && k < 1000 {
                term = -((&term * &x2) >> P) / ((k + 1) * (k + 2));
                sum += &term;
                k += 2;
            }
            Self::new(sum, -(P as i64))
        };
        (series(x.clone(), 1), series(BigInt::one() << P, 0))
    }
    fn atan(&self) -> Self {
        // atan x = 2 atan(x / (1 + √(1 + x²))), ten times, then the series.
        let mut x = self.clone();
        for _ in 0..10 {
            let root = Self::int(1).add(&x.mul(&x)).sqrt();
            match x.div(&root.add(&Self::int(1))) {
                Some(y) => x = y,
                None => return Self::int(0),
            }
        }
        let x = x.scaled(16).fixed();
        let unit = P + 16;
        let x2 = (&x * &x) >> unit;
        let (mut power, mut sum, mut k) = (x.clone(), x, 3u64);
        while !power.is_zero() && k < 2000 {
            power = -((&power * &x2) >> unit);
            sum += &power / k;
            k += 2;
        }
        Self::new(sum, 10 - unit as i64)
    }
    fn pi() -> Self {
        // Machin: π = 16 atan(1/5) − 4 atan(1/239).
        static PI: OnceLock<BigInt> = OnceLock::new();
        let m = PI.get_or_init(|| (Self::arctan_inverse(5) << 4) - (Self::arctan_inverse(239) << 2));
        Self::new(m.clone(), -MAX_P)
    }
    fn sign(&self) -> i32 {
        i32::from(self.m.is_positive()) - i32::from(self.m.is_negative())
    }
    fn floor(&self) -> Self {
        if self.e >= 0 {
            return self.clone();
        }
        Self::new(&self.m >> (-self.e).min(1 << 20), 0)
    }
    fn log2(&self) -> f64 {
        if self.m.is_zero() { -1e9 } else { self.m.bits() as f64 + self.e as f64 }
    }
}

impl<const P: u64> Big<P> {
    /// The exact value of this approximation.
    pub(crate) fn to_rational(&self) -> Option<BigRational> {
        if self.e.abs() > 20_000 {
            return None;
        }
        let m = BigRational::from(self.m.clone());
        let p = BigRational::from(BigInt::one() << self.e.unsigned_abs());
        Some(if self.e >= 0 { m * p } else { m / p })
    }
}
