//! Evaluates expressions to complex numbers at chosen values of their variables.
//!
//! Knows functions and their principal branches; generic over the real numbers used. A value that does not exist (a
//! pole, an overflow, an unknown function) is `None`, never a guess.

use super::exact::rational;
use super::expr::{E, Expr};
use super::modular::{key, opaque};
use super::real::Real;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive};
use std::cmp::Ordering;

#[derive(Clone)]
pub(crate) struct Complex<R> {
    pub re: R,
    pub im: R,
}

type C<R> = Complex<R>;

impl<R: Real> C<R> {
    fn real(re: R) -> Self {
        Complex { re, im: R::int(0) }
    }
    fn int(n: i64) -> Self {
        Self::real(R::int(n))
    }
    fn i() -> Self {
        Complex { re: R::int(0), im: R::int(1) }
    }
    fn is_real(&self) -> bool {
        self.im.sign() == 0
    }
    fn is_zero(&self) -> bool {
        self.re.sign() == 0 && self.im.sign() == 0
    }
    fn add(&self, o: &Self) -> Self {
        Complex { re: self.re.add(&o.re), im: self.im.add(&o.im) }
    }
    pub(crate) fn sub(&self, o: &Self) -> Self {
        Complex { re: self.re.sub(&o.re), im: self.im.sub(&o.im) }
    }
    fn mul(&self, o: &Self) -> Self {
        if self.is_real() && o.is_real() {
            return Self::real(self.re.mul(&o.re));
        }
        Complex { re: self.re.mul(&o.re).sub(&self.im.mul(&o.im)), im: self.re.mul(&o.im).add(&self.im.mul(&o.re)) }
    }
    fn div(&self, o: &Self) -> Option<Self> {
        if o.is_real() {
            return Some(Complex { re: self.re.div(&o.re)?, im: self.im.div(&o.re)? });
        }
        let d = o.re.mul(&o.re).add(&o.im.mul(&o.im));
        let top = self.mul(&Complex { re: o.re.clone(), im: o.im.neg() });
        Some(Complex { re: top.re.div(&d)?, im: top.im.div(&d)? })
    }
    fn abs(&self) -> R {
        if self.is_real() {
            return if self.re.sign() < 0 { self.re.neg() } else { self.re.clone() };
        }
        self.re.mul(&self.re).add(&self.im.mul(&self.im)).sqrt()
    }
    fn sqrt(&self) -> Self {
        if self.is_real() {
            return match self.re.sign() {
                s if s < 0 => Complex { re: R::int(0), im: self.re.neg().sqrt() },
                _ => Self::real(self.re.sqrt()),
            };
        }
        // Principal root, without cancellation: t = √((|z| + |re|) / 2).
        let half = R::rat(&BigRational::new(1.into(), 2.into()));
        let abs_re = if self.re.sign() < 0 { self.re.neg() } else { self.re.clone() };
        let t = self.abs().add(&abs_re).mul(&half).sqrt();
        let Some(u) = self.im.mul(&half).div(&t) else { return Self::int(0) };
        if self.re.sign() >= 0 {
            return Complex { re: t, im: u };
        }
        let negative = self.im.sign() < 0;
        Complex { re: if negative { u.neg() } else { u }, im: if negative { t.neg() } else { t } }
    }
    fn exp(&self) -> Option<Self> {
        let r = self.re.exp()?;
        if self.is_real() {
            return Some(Self::real(r));
        }
        let (s, c) = self.im.sin_cos();
        Some(Complex { re: r.mul(&c), im: r.mul(&s) })
    }
    fn arg(&self) -> Option<R> {
        let half_pi = R::pi().div(&R::int(2))?;
        Some(match (self.re.sign(), self.im.sign()) {
            (0, 0) => return None,
            (0, s) => half_pi.mul(&R::int(i64::from(s))),
            (r, s) => {
                let base = self.im.div(&self.re)?.atan();
                match (r, s) {
                    (r, _) if r > 0 => base,
                    (_, s) if s >= 0 => base.add(&R::pi()),
                    _ => base.sub(&R::pi()),
                }
            }
        })
    }
    fn ln(&self) -> Option<Self> {
        if self.is_zero() {
            return None;
        }
        Some(Complex { re: self.abs().ln(), im: self.arg()? })
    }
    fn int_pow(&self, n: u64) -> Self {
        let (mut base, mut n, mut r) = (self.clone(), n, Self::int(1));
        while n > 0 {
            if n & 1 == 1 {
                r = r.mul(&base);
            }
            n >>= 1;
            if n > 0 {
                base = base.mul(&base);
            }
        }
        r
    }
    fn log2(&self) -> f64 {
        let (a, b) = (self.re.log2(), self.im.log2());
        if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
    }
}

/// Evaluates at one assignment of values to names, and records the size of intermediate values.
pub(crate) struct NumericEvaluator<'a> {
    pub values: &'a [(&'a str, BigRational)],
    /// log2 of the largest intermediate value.
    pub scale: f64,
    /// Work left, in steps; a function costs several.
    pub budget: usize,
    trial: u64,
}

const FUNCTION_COST: usize = 20;

impl<'a> NumericEvaluator<'a> {
    pub fn new(values: &'a [(&'a str, BigRational)], trial: u64, budget: usize) -> Self {
        NumericEvaluator { values, scale: 0.0, budget, trial }
    }

    pub(crate) fn eval<R: Real>(&mut self, e: &Expr) -> Option<C<R>> {
        self.budget = self.budget.checked_sub(1)?;
        let v = self.value(e)?;
        let size = v.log2();
        if size.is_nan() || size > 1e6 {
            return None;
        }
        self.scale = self.scale.max(size);
        Some(v)
    }

    fn value<R: Real>(&mut self, e: &Expr) -> Option<C<R>> {
        match e {
            Expr::Num { value, .. } => Some(C::real(R::rat(value))),
            Expr::Percent(a) => self.eval(a)?.div(&C::int(100)),
            Expr::Sym(s) => self.values.iter().find(|(n, _)| n == s).map(|(_, v)| C::real(R::rat(v))),
            Expr::Pi => Some(C::real(R::pi())),
            Expr::Euler => C::int(1).exp(),
            Expr::Imag => Some(C::i()),
            Expr::Add(v) => v.iter().try_fold(C::int(0), |s, a| Some(s.add(&self.eval(a)?))),
            Expr::Mul(v) => v.iter().try_fold(C::int(1), |s, a| Some(s.mul(&self.eval(a)?))),
            Expr::Pow(b, x) => self.power(b, x),
            // An unknown function is opaque: its value depends on its name and arguments.
            Expr::Func(name, args) if opaque(name) => {
                Some(C::real(R::rat(&sample(&key(name, args, self.trial), self.trial))))
            }
            Expr::Func(name, _)
                if matches!(name.as_str(), "factorial" | "binom" | "mod" | "gcd" | "lcm" | "max" | "min") =>
            {
                rational(e).map(|v| C::real(R::rat(&v)))
            }
            Expr::Func(name, args) => {
                self.budget = self.budget.checked_sub(FUNCTION_COST)?;
                let x: C<R> = self.eval(args.first()?)?;
                match args.len() {
                    1 => single(name, &x),
                    2 if name == "log" => x.ln()?.div(&self.eval::<R>(&args[1])?.ln()?),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn power<R: Real>(&mut self, b: &E, x: &E) -> Option<C<R>> {
        if **b == Expr::Euler {
            return self.eval::<R>(x)?.exp();
        }
        let base: C<R> = self.eval(b)?;
        if let Some(q) = rational(x) {
            let (n, d) = (q.numer().to_i64()?, q.denom().to_i64()?);
            let size = base.log2().abs() * n.unsigned_abs() as f64;
            if d <= 2 && n.unsigned_abs() <= 100_000 && size < 1e6 {
                let root = if d == 2 { base.sqrt() } else { base };
                let p = root.int_pow(n.unsigned_abs());
                return if n < 0 { C::int(1).div(&p) } else { Some(p) };
            }
        }
        self.budget = self.budget.checked_sub(FUNCTION_COST)?;
        let exp: C<R> = self.eval(x)?;
        if base.is_zero() {
            return (exp.is_real() && exp.re.sign() > 0).then(|| C::int(0));
        }
        base.ln()?.mul(&exp).exp()
    }
}

/// Trigonometric arguments above `2^160` are left to other rules.
const MAX_ANGLE_LOG2: f64 = 160.0;

fn single<R: Real>(name: &str, x: &C<R>) -> Option<C<R>> {
    let (one, i) = (C::<R>::int(1), C::<R>::i());
    let exponentials = |z: &C<R>| Some((z.exp()?, C::int(0).sub(z).exp()?));
    match name {
        "abs" => Some(C::real(x.abs())),
        "ln" => x.ln(),
        "floor" | "ceil" if !x.is_real() => None,
        "floor" => Some(C::real(x.re.floor())),
        "ceil" => Some(C::real(x.re.neg().floor().neg())),
        "sin" | "cos" | "tan" | "csc" | "sec" | "cot" => {
            // Reducing a huge argument needs more bits of π than we carry, and all bits of the argument.
            if x.log2() > MAX_ANGLE_LOG2 {
                return None;
            }
            let (s, c) = if x.is_real() {
                let (s, c) = x.re.sin_cos();
                (C::real(s), C::real(c))
            } else {
                let (p, m) = exponentials(&i.mul(x))?;
                (p.sub(&m).div(&C::int(2).mul(&i))?, p.add(&m).div(&C::int(2))?)
            };
            match name {
                "sin" => Some(s),
                "cos" => Some(c),
                "tan" => s.div(&c),
                "csc" => one.div(&s),
                "sec" => one.div(&c),
                _ => c.div(&s),
            }
        }
        "sinh" | "cosh" | "tanh" => {
            let (p, m) = exponentials(x)?;
            match name {
                "sinh" => p.sub(&m).div(&C::int(2)),
                "cosh" => p.add(&m).div(&C::int(2)),
                _ => p.sub(&m).div(&p.add(&m)),
            }
        }
        "arctan" | "arccot" if x.is_real() => {
            if name == "arccot" && x.is_zero() {
                return C::real(R::pi()).div(&C::int(2));
            }
            let x = if name == "arctan" { x.clone() } else { one.div(x)? };
            Some(C::real(x.re.atan()))
        }
        "arcsec" => single("arccos", &one.div(x)?),
        "arccsc" => single("arcsin", &one.div(x)?),
        "arcsin" => {
            // −i ln(i x + √(1 − x²))
            let z = i.mul(x).add(&one.sub(&x.mul(x)).sqrt()).ln()?;
            let v = C::int(0).sub(&i).mul(&z);
            let inside = x.is_real() && one.sub(&x.mul(x)).re.sign() >= 0;
            Some(if inside { C::real(v.re) } else { v })
        }
        "arccos" => C::real(R::pi()).div(&C::int(2)).map(|h| single("arcsin", x).map(|s| h.sub(&s)))?,
        "arcsinh" => x.add(&x.mul(x).add(&one).sqrt()).ln(),
        "arccosh" => x.add(&x.sub(&one).sqrt().mul(&x.add(&one).sqrt())).ln(),
        "arctanh" => one.add(x).div(&one.sub(x))?.ln()?.div(&C::int(2)),
        _ => None,
    }
}

/// 1 or −1 for ±∞ (with finite numbers added, or times a number), else 0.
pub(crate) fn endless(e: &Expr) -> i32 {
    match e {
        Expr::Infinity => 1,
        Expr::Mul(v) if v.len() == 2 && *v[1] == Expr::Infinity => {
            rational(&v[0]).map_or(0, |r| if r.is_negative() { -1 } else { 1 })
        }
        Expr::Add(v) => {
            let (mut sign, mut rest) = (0, 0);
            for a in v {
                match endless(a) {
                    0 if rational(a).is_some() => {}
                    0 => return 0,
                    s if sign == 0 || s == sign => sign = s,
                    _ => rest += 1,
                }
            }
            if rest == 0 { sign } else { 0 }
        }
        _ => 0,
    }
}

/// The order of two constants where machine floats show it clearly (or exact values decide it); ±∞ counts.
pub fn order(a: &E, b: &E) -> Option<Ordering> {
    let (ia, ib) = (endless(a), endless(b));
    if ia != 0 || ib != 0 {
        return Some(ia.cmp(&ib));
    }
    if let (Some(x), Some(y)) = (rational(a), rational(b)) {
        return Some(x.cmp(&y));
    }
    let value = |e: &E| {
        let v = NumericEvaluator::new(&[], 0, 1000).eval::<f64>(e)?;
        (v.im.abs() < 1e-9).then_some(v.re)
    };
    let (x, y) = (value(a)?, value(b)?);
    let gap = (x - y).abs();
    (gap > 1e-9 * x.abs().max(y.abs())).then(|| x.total_cmp(&y))
}

/// A fixed, scattered, non-zero rational of size 0.2 to 3.2 for a variable: the same on every run. A variable has
/// opposite signs in trials 2k and 2k + 1.
pub fn sample(name: &str, trial: u64) -> BigRational {
    // FNV-1a: the same in every process.
    let hashed = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut h = name.bytes().fold(0xcbf2_9ce4_8422_2325, hashed);
    let negative = (h >> 17 ^ trial) & 1 == 1;
    h ^= trial.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^= h >> 29;
    h = h.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h ^= h >> 32;
    let n = (h % 3000) as i64 + 211;
    BigRational::new(BigInt::from(if negative { -n } else { n }), BigInt::from(997))
}

/// The largest number in an expression, exponents aside: variables are also sampled well beyond it, because roots and
/// absolute values change their branch there.
pub fn reach(e: &Expr) -> BigInt {
    match e {
        Expr::Num { value, .. } => value.abs().ceil().to_integer(),
        Expr::Pow(b, _) => reach(b),
        _ => e.children().into_iter().map(|c| reach(c)).max().unwrap_or_default(),
    }
}
