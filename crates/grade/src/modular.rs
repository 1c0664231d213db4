//! Identities between rational expressions, by evaluation modulo a 61-bit prime at scattered points (Schwartz–Zippel).
//!
//! Different residues prove two expressions different. Equal residues at several points leave a chance below 2^-100
//! that they are not the same rational function. π and e count as variables, i as a square root of −1 (the prime is
//! 1 modulo 4). Roots and functions are not rational: `None`, and other rules decide.

use super::exact::rational;
use super::expr::{E, Expr};
use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::ToPrimitive;

const P: u64 = 2_305_843_009_213_693_921;
const I: u64 = 583_529_827_753_931_384;

fn mul(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(P)) as u64
}

fn pow(mut a: u64, mut n: u64) -> u64 {
    let mut r = 1;
    while n > 0 {
        if n & 1 == 1 {
            r = mul(r, a);
        }
        a = mul(a, a);
        n >>= 1;
    }
    r
}

fn inverse(a: u64) -> Option<u64> {
    (a != 0).then(|| pow(a, P - 2))
}

fn residue(v: &BigInt) -> Option<u64> {
    if let Some(n) = v.to_i64() {
        return Some(i128::from(n).rem_euclid(i128::from(P)) as u64);
    }
    v.mod_floor(&BigInt::from(P)).to_u64()
}

fn number(v: &BigRational) -> Option<u64> {
    let n = residue(v.numer())?;
    if v.is_integer() { Some(n) } else { Some(mul(n, inverse(residue(v.denom())?)?)) }
}

fn point(name: &str, trial: u64) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ (trial + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for b in name.bytes() {
        h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        h ^= h >> 31;
    }
    h.wrapping_mul(0xbf58_476d_1ce4_e5b9) % P
}

/// The residue of `e` in a trial, or `None` where `e` is not a rational expression or has a pole there.
pub(crate) fn eval(e: &Expr, trial: u64) -> Option<u64> {
    match e {
        Expr::Num { value, .. } => number(value),
        Expr::Percent(a) => Some(mul(eval(a, trial)?, inverse(100)?)),
        Expr::Sym(s) => Some(point(s, trial)),
        Expr::Pi => Some(point("π", trial)),
        Expr::Euler => Some(point("ℯ", trial)),
        Expr::Imag => Some(I),
        Expr::Add(v) => v.iter().try_fold(0, |s, a| Some((s + eval(a, trial)?) % P)),
        Expr::Mul(v) => v.iter().try_fold(1, |s, a| Some(mul(s, eval(a, trial)?))),
        Expr::Func(name, args) if opaque(name) => Some(point(&key(name, args, trial), trial)),
        Expr::Func(..) => number(&rational(e)?),
        Expr::Pow(b, x) => {
            let n = match &**x {
                Expr::Num { value, .. } if value.is_integer() => value.to_integer().to_i64()?,
                _ => return None,
            };
            let p = pow(eval(b, trial)?, n.unsigned_abs());
            if n < 0 { inverse(p) } else { Some(p) }
        }
        _ => None,
    }
}

/// Functions without a specific rule: equal if names and arguments are equal.
pub(crate) fn opaque(name: &str) -> bool {
    name.ends_with("()") || matches!(name, "sum" | "prod")
}

/// Key of an opaque value: arguments that are the same functions give the same key.
pub fn key(name: &str, args: &[E], trial: u64) -> String {
    let args: Vec<String> =
        args.iter().map(|a| eval(a, trial).map_or_else(|| format!("{a:?}"), |v| v.to_string())).collect();
    format!("{name}{args:?}")
}

/// Whether two rational expressions are the same function; `None` if this cannot be decided here.
pub fn same(a: &Expr, b: &Expr) -> Option<bool> {
    for trial in 0..3 {
        if eval(a, trial)? != eval(b, trial)? {
            return Some(false);
        }
    }
    Some(true)
}

/// Whether a is a constant multiple of b (neither of them zero): their equations then have the same solutions.
pub(crate) fn proportional(a: &Expr, b: &Expr) -> Option<bool> {
    let (a0, b0) = (eval(a, 0)?, eval(b, 0)?);
    for trial in 1..4 {
        if mul(a0, eval(b, trial)?) != mul(b0, eval(a, trial)?) {
            return Some(false);
        }
    }
    Some(a0 != 0 && b0 != 0)
}
