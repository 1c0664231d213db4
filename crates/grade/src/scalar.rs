//! Whether two scalars are equal: exact rationals, then structure, then identities modulo a prime, then evaluation in
//! high precision. Numbers written with a decimal point are compared after rounding to six places, as math-verify does.

use super::Rule;
use super::exact::rational;
use super::expr::{E, Expr, substitute};
use super::matrix::size;
use super::modular;
use super::numeric::{NumericEvaluator, endless, reach, sample};
use super::real::{Big, Real};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;

/// Decimal places compared if one side is a decimal number.
const PLACES: u32 = 6;
const PRECISION: u64 = 384;
/// Values whose intermediate results exceed 2^this are not called equal by evaluation.
const MAX_SCALE: f64 = 160.0;

/// Compares scalars within a bounded amount of work.
pub(crate) struct Scalars {
    pub budget: usize,
    /// Compare decimals at all written places, not at six.
    pub every_place: bool,
}

/// An atomic number, alone or as a percentage.
fn atom(e: &Expr) -> Option<(&BigRational, bool)> {
    match e {
        Expr::Num { value, float } => Some((value, *float)),
        Expr::Percent(a) => match &**a {
            Expr::Num { value, float } => Some((value, *float)),
            _ => None,
        },
        _ => None,
    }
}

/// Decimal places of a written number, at least six.
fn written(e: &Expr) -> u32 {
    const MOST: u32 = 60;
    let Some(value) = rational(e).filter(|_| atom(e).is_some_and(|(_, float)| float)) else { return PLACES };
    let ten = BigRational::from(BigInt::from(10));
    let scaled = std::iter::successors(Some(value), |value| Some(value * &ten));
    let places = scaled.take(MOST as usize).position(|value| value.is_integer());
    places.map_or(MOST, |places| places as u32).max(PLACES)
}

impl Scalars {
    pub fn equal(&mut self, a: &E, b: &E) -> (bool, Rule) {
        let (x, y) = (atom(a), atom(b));
        if x.is_some_and(|v| v.1) || y.is_some_and(|v| v.1) {
            let places = if self.every_place { written(a).max(written(b)) } else { PLACES };
            if let (Some(p), Some(q)) = (self.rounded(a, places), self.rounded(b, places)) {
                return (p == q, Rule::Rounded);
            }
        } else if let (Some((p, _)), Some((q, _))) = (x, y) {
            // 5 % and 5 agree, and so do 500 % and 5.
            if p == q && p.is_integer() {
                return (true, Rule::Exact);
            }
        }
        if let (Some(p), Some(q)) = (rational(a), rational(b)) {
            return (p == q, Rule::Exact);
        }
        if a == b {
            return (true, Rule::Structure);
        }
        let (p, q) = (endless(a), endless(b));
        if p != 0 || q != 0 {
            return (p == q, Rule::Exact);
        }
        if let Some(same) = self.at_integers(a, b) {
            return (same, Rule::Numeric);
        }
        if let Some(same) = modular::same(a, b) {
            return (same, Rule::Identity);
        }
        (self.evaluate(a, b), Rule::Numeric)
    }

    /// Equality of expressions with factorials or binomials of letters, at whole numbers for these letters; `None` where there are none,
    /// or too few numbers at which both sides have a value.
    fn at_integers(&mut self, a: &E, b: &E) -> Option<bool> {
        const TRIALS: u64 = 24;
        const AGREED: usize = 4;
        const LARGEST: usize = 60;
        let mut counted = vec![];
        letters_of_counts(a, &mut counted);
        letters_of_counts(b, &mut counted);
        if counted.is_empty() || size(a, LARGEST) + size(b, LARGEST) > LARGEST {
            return None;
        }
        let mut agreed = 0;
        for trial in 0..TRIALS {
            if agreed == AGREED {
                return Some(true);
            }
            let value = |name: &str| {
                let value = sample(name, trial);
                if !counted.contains(&name) {
                    return value;
                }
                BigRational::from(BigInt::from(value.numer().magnitude() % 29u32 + 1u32))
            };
            let at = |e: &E| substitute(e, &|name: &str| Some(Expr::rat(value(name))));
            let (a, b) = (at(a), at(b));
            if let (Some(p), Some(q)) = (rational(&a), rational(&b)) {
                if p != q {
                    return Some(false);
                }
                agreed += 1;
                continue;
            }
            let mut fine = NumericEvaluator::new(&[], trial, self.budget);
            let pair = (fine.eval::<Big<PRECISION>>(&a), fine.eval::<Big<PRECISION>>(&b));
            self.budget = fine.budget;
            let (Some(x), Some(y)) = pair else { continue };
            let gap = x.sub(&y);
            if gap.re.log2().max(gap.im.log2()) > fine.scale - PRECISION as f64 + 64.0 {
                return Some(false);
            }
            agreed += usize::from(fine.scale <= MAX_SCALE);
        }
        None
    }

    fn rounded(&mut self, e: &E, places: u32) -> Option<BigInt> {
        let v = match rational(e) {
            Some(v) => v,
            None => {
                let mut ev = NumericEvaluator::new(&[], 0, self.budget);
                let v = ev.eval::<Big<PRECISION>>(e);
                self.budget = ev.budget;
                let v = v.filter(|_| ev.scale < MAX_SCALE)?;
                let im = v.im.to_rational()?;
                if !im.is_zero() {
                    return None;
                }
                v.re.to_rational()?
            }
        };
        let scaled = v * BigRational::from(BigInt::from(10).pow(places));
        let half = BigRational::new(1.into(), 2.into());
        let down = scaled.floor();
        // Ties to even, as Python rounds.
        let r = if &scaled - &down == half {
            let even = (down.to_integer() % BigInt::from(2)).is_zero();
            if even { down } else { down + BigRational::from(BigInt::from(1)) }
        } else {
            (scaled + half).floor()
        };
        Some(r.to_integer())
    }

    /// Equality at several points; a difference must vanish far below the precision, and one clear difference decides.
    fn evaluate(&mut self, a: &E, b: &E) -> bool {
        let mut names = vec![];
        a.symbols(&mut names);
        b.symbols(&mut names);
        let constant = names.is_empty() && !(opaque(a) || opaque(b));
        // Near the origin, farther out, and beyond every written number; each with both signs.
        let far = reach(a).max(reach(b)).min(BigInt::from(1u64 << 40)) * 64 + 64;
        let sizes = [BigInt::from(1), BigInt::from(61), far];
        let mut agreed = 0;
        for trial in 0..if constant { 1 } else { 2 * sizes.len() } {
            let size = BigRational::from(sizes[trial / 2].clone());
            let trial = trial as u64;
            let values: Vec<_> = names.iter().map(|n| (*n, sample(n, trial) * &size)).collect();
            let mut quick = NumericEvaluator::new(&values, trial, self.budget);
            if let (Some(x), Some(y)) = (quick.eval::<f64>(a), quick.eval::<f64>(b)) {
                let gap = x.sub(&y);
                let (re, im) = (gap.re.abs(), gap.im.abs());
                if re.is_finite() && im.is_finite() && re.max(im).log2() > quick.scale - 24.0 {
                    return false;
                }
            }
            let mut fine = NumericEvaluator::new(&values, trial, quick.budget);
            let pair = (fine.eval::<Big<PRECISION>>(a), fine.eval::<Big<PRECISION>>(b));
            self.budget = fine.budget;
            let (Some(x), Some(y)) = pair else { continue };
            let gap = x.sub(&y);
            let size = gap.re.log2().max(gap.im.log2());
            if size > fine.scale - PRECISION as f64 + 64.0 {
                return false;
            }
            // The values are too large to conclude that the difference vanishes.
            if fine.scale > MAX_SCALE {
                continue;
            }
            agreed += 1;
        }
        agreed >= if constant { 1 } else { 2 }
    }
}

/// Letters inside factorials and binomials.
fn letters_of_counts<'a>(e: &'a Expr, out: &mut Vec<&'a str>) {
    match e {
        Expr::Func(name, _) if matches!(name.as_str(), "factorial" | "binom") => e.symbols(out),
        _ => e.children().into_iter().for_each(|child| letters_of_counts(child, out)),
    }
}

fn opaque(e: &Expr) -> bool {
    matches!(e, Expr::Func(name, _) if modular::opaque(name)) || e.children().iter().any(|c| opaque(c))
}
