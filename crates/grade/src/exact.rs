//! Exact rational values of expressions, without rounding.
//!
//! Knows numbers only. Sizes are bounded: a result past `MAX_BITS` is left to other rules (`None`).

use super::expr::{E, Expr, num};
use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

const MAX_BITS: u64 = 4000;
const MAX_DIGITS: usize = 1000;

/// The number spelled by digits, an optional point and an optional exponent (`1.5E3`).
pub(crate) fn decimal(s: &str) -> Option<E> {
    let (mantissa, exp) = s.split_once('E').map_or((s, 0), |(m, e)| (m, e.parse::<i32>().unwrap_or(i32::MAX)));
    if exp.unsigned_abs() > 400 || mantissa.len() > MAX_DIGITS {
        return None;
    }
    let (int, frac) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{int}{frac}");
    let n = BigInt::parse_bytes(if digits.is_empty() { b"x" } else { digits.as_bytes() }, 10)?;
    let mut value = BigRational::from(n);
    if !frac.is_empty() {
        value /= ten(frac.len() as u32);
    }
    if exp != 0 {
        let p = ten(exp.unsigned_abs());
        value = if exp > 0 { value * p } else { value / p };
    }
    Some(num(value, s.contains(['.', 'E'])))
}

fn ten(n: u32) -> BigRational {
    BigRational::from(BigInt::from(10).pow(n))
}

pub(crate) fn small_int(e: &E) -> Option<i64> {
    match &**e {
        Expr::Num { value, .. } if value.is_integer() => value.to_integer().to_i64(),
        _ => None,
    }
}

fn fits(v: BigRational) -> Option<BigRational> {
    (v.numer().bits() < MAX_BITS && v.denom().bits() < MAX_BITS).then_some(v)
}

/// The exact value, where it is rational and this can be seen by arithmetic alone.
pub(crate) fn rational(e: &Expr) -> Option<BigRational> {
    match e {
        Expr::Num { value, .. } => Some(value.clone()),
        Expr::Percent(a) => Some(rational(a)? / BigRational::from(BigInt::from(100))),
        Expr::Add(v) => v.iter().try_fold(BigRational::zero(), |sum, a| fits(sum + rational(a)?)),
        Expr::Mul(v) => v.iter().try_fold(BigRational::one(), |product, a| fits(product * rational(a)?)),
        Expr::Pow(b, e) => power(&rational(b)?, &rational(e)?),
        Expr::Func(name, args) => function(name, args),
        _ => None,
    }
}

fn power(base: &BigRational, exp: &BigRational) -> Option<BigRational> {
    let root = exp.denom().to_u32()?;
    let n = exp.numer().to_i64()?;
    if root == 1 {
        return int_power(base, n);
    }
    if base.is_negative() || root > 64 {
        return None;
    }
    let exact = |x: &BigInt| {
        let r = x.nth_root(root);
        (r.pow(root) == *x).then_some(r)
    };
    int_power(&BigRational::new(exact(base.numer())?, exact(base.denom())?), n)
}

fn int_power(base: &BigRational, n: i64) -> Option<BigRational> {
    if base.is_zero() {
        return (n >= 0).then(|| if n == 0 { BigRational::one() } else { BigRational::zero() });
    }
    let bits = base.numer().bits().max(base.denom().bits());
    let k = u32::try_from(n.unsigned_abs()).ok()?;
    if bits > 1 && bits.checked_mul(u64::from(k))? > MAX_BITS {
        return None;
    }
    // ±1 to a huge power needs its parity only.
    let k = if bits <= 1 { k % 2 } else { k };
    let p = num_traits::pow(base.clone(), k as usize);
    Some(if n < 0 { p.recip() } else { p })
}

fn function(name: &str, args: &[E]) -> Option<BigRational> {
    let values: Vec<BigRational> = args.iter().map(|a| rational(a)).collect::<Option<_>>()?;
    let x = values.first()?;
    let int = |v: &BigRational| v.is_integer().then(|| v.to_integer());
    match name {
        "abs" | "norm" => Some(x.abs()),
        "floor" => Some(x.floor()),
        "ceil" => Some(x.ceil()),
        "factorial" => {
            let n = int(x)?.to_u32().filter(|n| *n <= 400)?;
            Some(BigRational::from((1..=n).fold(BigInt::one(), |p, k| p * k)))
        }
        "binom" => {
            let (n, k) = (int(x)?, int(values.get(1)?)?.to_i64()?);
            if k < 0 {
                return Some(BigRational::zero());
            }
            let k = if !n.is_negative() && n < BigInt::from(2 * k) { (&n - k).to_i64()? } else { k };
            if k < 0 {
                return Some(BigRational::zero());
            }
            if k > 400 || n.bits() > 64 {
                return None;
            }
            Some(BigRational::from((0..k).fold(BigInt::one(), |p, j| p * (&n - j) / (j + 1))))
        }
        "mod" => {
            let m = values.get(1)?;
            (!m.is_zero()).then(|| x - m * (x / m).floor())
        }
        "gcd" | "lcm" => {
            let mut whole = values.iter().map(int).collect::<Option<Vec<_>>>()?.into_iter();
            let found = match name {
                "gcd" => whole.reduce(|a, b| a.gcd(&b)),
                _ => whole.try_fold(BigInt::one(), |a, b| Some(a.lcm(&b)).filter(|l| l.bits() < MAX_BITS)),
            };
            found.map(BigRational::from)
        }
        "max" => values.iter().max().cloned(),
        "min" => values.iter().min().cloned(),
        _ => None,
    }
}
