//! Sets of reals as sorted disjoint pieces, so that unions, intersections and differences have one normal form; and
//! relations in one variable as such sets.

use super::exact::rational;
use super::expr::{E, Expr, Op, div, neg};
use super::numeric::order;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use std::cmp::Ordering;
use std::rc::Rc;

/// Pieces past which a set is left to structural comparison.
const MAX_PIECES: usize = 64;

/// From `lo` to `hi`; a single point is closed with equal ends.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub lo: E,
    pub hi: E,
    pub lo_open: bool,
    pub hi_open: bool,
}

fn infinity(positive: bool) -> E {
    let e = Rc::new(Expr::Infinity);
    if positive { e } else { neg(&e) }
}

fn all() -> Piece {
    Piece { lo: infinity(false), hi: infinity(true), lo_open: true, hi_open: true }
}

/// The normal form of a set of reals; `None` if an order cannot be decided or the set is of another kind.
pub fn pieces(e: &Expr) -> Option<Vec<Piece>> {
    match e {
        Expr::Interval { lo, hi, lo_open, hi_open } => {
            let p = Piece { lo: lo.clone(), hi: hi.clone(), lo_open: *lo_open, hi_open: *hi_open };
            Some(if empty(&p)? { vec![] } else { vec![p] })
        }
        Expr::Set(v) if v.len() <= MAX_PIECES => {
            let point = |x: &E| Piece { lo: x.clone(), hi: x.clone(), lo_open: false, hi_open: false };
            merge(v.iter().map(point).collect())
        }
        Expr::Named('0') => Some(vec![]),
        Expr::Named('R') => Some(vec![all()]),
        Expr::Union(a, b) => {
            let mut v = pieces(a)?;
            v.extend(pieces(b)?);
            merge(v)
        }
        Expr::Intersection(a, b) => meet(&pieces(a)?, &pieces(b)?),
        Expr::Difference(a, b) => meet(&pieces(a)?, &complement(&pieces(b)?)),
        _ => None,
    }
}

fn empty(p: &Piece) -> Option<bool> {
    Some(match order(&p.lo, &p.hi)? {
        Ordering::Less => false,
        Ordering::Equal => p.lo_open || p.hi_open,
        Ordering::Greater => true,
    })
}

fn merge(mut v: Vec<Piece>) -> Option<Vec<Piece>> {
    if v.len() > MAX_PIECES {
        return None;
    }
    // An insertion sort, because an order may be unknown.
    for i in 1..v.len() {
        let mut j = i;
        while j > 0 {
            let o = order(&v[j - 1].lo, &v[j].lo)?;
            if o == Ordering::Greater || (o == Ordering::Equal && v[j - 1].lo_open && !v[j].lo_open) {
                v.swap(j - 1, j);
                j -= 1;
            } else {
                break;
            }
        }
    }
    let mut out: Vec<Piece> = vec![];
    for p in v {
        let Some(last) = out.last_mut() else {
            out.push(p);
            continue;
        };
        let touch = match order(&last.hi, &p.lo)? {
            Ordering::Less => false,
            Ordering::Equal => !(last.hi_open && p.lo_open),
            Ordering::Greater => true,
        };
        if !touch {
            out.push(p);
            continue;
        }
        match order(&last.hi, &p.hi)? {
            Ordering::Less => (last.hi, last.hi_open) = (p.hi, p.hi_open),
            Ordering::Equal => last.hi_open &= p.hi_open,
            Ordering::Greater => {}
        }
    }
    Some(out)
}

fn meet(a: &[Piece], b: &[Piece]) -> Option<Vec<Piece>> {
    if a.len() * b.len() > MAX_PIECES * 4 {
        return None;
    }
    let mut out = vec![];
    for x in a {
        for y in b {
            let (lo, lo_open) = match order(&x.lo, &y.lo)? {
                Ordering::Less => (&y.lo, y.lo_open),
                Ordering::Equal => (&x.lo, x.lo_open || y.lo_open),
                Ordering::Greater => (&x.lo, x.lo_open),
            };
            let (hi, hi_open) = match order(&x.hi, &y.hi)? {
                Ordering::Less => (&x.hi, x.hi_open),
                Ordering::Equal => (&x.hi, x.hi_open || y.hi_open),
                Ordering::Greater => (&y.hi, y.hi_open),
            };
            let p = Piece { lo: lo.clone(), hi: hi.clone(), lo_open, hi_open };
            if !empty(&p)? {
                out.push(p);
            }
        }
    }
    merge(out)
}

fn complement(v: &[Piece]) -> Vec<Piece> {
    let mut out = vec![];
    let (mut lo, mut lo_open) = (infinity(false), true);
    for p in v {
        if p.lo != lo || (lo_open != p.lo_open) {
            out.push(Piece { lo: lo.clone(), hi: p.lo.clone(), lo_open, hi_open: !p.lo_open });
        }
        (lo, lo_open) = (p.hi.clone(), !p.hi_open);
    }
    if *lo != Expr::Infinity {
        out.push(Piece { lo, hi: infinity(true), lo_open, hi_open: true });
    }
    out
}

/// The solutions of a relation (or a chain of them) that is linear in its one variable.
pub fn solutions(e: &Expr) -> Option<Vec<Piece>> {
    match e {
        Expr::Chain(links) => {
            let mut v = vec![all()];
            for l in links {
                v = meet(&v, &solutions(l)?)?;
            }
            Some(v)
        }
        Expr::Rel(op, l, r) => {
            let (op, bound) = match (&**l, &**r) {
                (Expr::Sym(_) | Expr::Func(..), _) => (*op, r.clone()),
                (_, Expr::Sym(_) | Expr::Func(..)) => (op.flipped().unwrap_or(*op), l.clone()),
                _ => linear(*op, l, r)?,
            };
            let mut names = vec![];
            bound.symbols(&mut names);
            if !names.is_empty() {
                return None;
            }
            let modulus = |e: &Expr| matches!(e, Expr::Func(f, _) if f == "abs");
            if modulus(l) || modulus(r) {
                return around(op, &bound);
            }
            let point = Piece { lo: bound.clone(), hi: bound.clone(), lo_open: false, hi_open: false };
            Some(match op {
                Op::Eq => vec![point],
                Op::Ne => complement(&[point]),
                Op::Lt | Op::Le => vec![Piece { hi: bound, hi_open: op == Op::Lt, ..all() }],
                Op::Gt | Op::Ge => vec![Piece { lo: bound, lo_open: op == Op::Gt, ..all() }],
            })
        }
        _ => None,
    }
}

/// |x| (op) bound.
fn around(op: Op, bound: &E) -> Option<Vec<Piece>> {
    let open = matches!(op, Op::Lt | Op::Ge);
    let inside = Piece { lo: neg(bound), hi: bound.clone(), lo_open: open, hi_open: open };
    let inside = if empty(&inside)? { vec![] } else { vec![inside] };
    match op {
        Op::Lt | Op::Le => Some(inside),
        Op::Gt | Op::Ge => Some(complement(&inside)),
        _ => None,
    }
}

/// a x + b (op) 0 → x (op') −b/a, with a and b computed from three values.
fn linear(op: Op, l: &E, r: &E) -> Option<(Op, E)> {
    let mut names = vec![];
    l.symbols(&mut names);
    r.symbols(&mut names);
    let [name] = names[..] else { return None };
    let at = |e: &E, n: i64| rational(&fill(e, name, n));
    let f = |n: i64| Some(at(l, n)? - at(r, n)?);
    let (f0, f1, f2): (BigRational, BigRational, BigRational) = (f(0)?, f(1)?, f(2)?);
    let a = &f1 - &f0;
    if a.is_zero() || &f2 - &f1 != a {
        return None;
    }
    let op = if a.is_negative() { op.flipped().unwrap_or(op) } else { op };
    Some((op, div(Expr::rat(-f0), Expr::rat(a))))
}

fn fill(e: &E, name: &str, n: i64) -> E {
    let all = |v: &[E]| v.iter().map(|a| fill(a, name, n)).collect::<Vec<_>>();
    Rc::new(match &**e {
        Expr::Sym(s) if s == name => return Expr::int(n),
        Expr::Add(v) => Expr::Add(all(v)),
        Expr::Mul(v) => Expr::Mul(all(v)),
        // The variable elsewhere is not linear, even if three values fit a line.
        _ => return e.clone(),
    })
}
