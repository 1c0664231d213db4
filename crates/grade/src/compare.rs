//! Decides whether a predicted answer equals the gold one: assignments, relations, sets, tuples, matrices, symbols.
//!
//! Follows math-verify 0.9.0's order of rules (`grader.py`), with its asymmetry: the gold answer's form is respected.

use super::Rule;
use super::expr::{E, Expr, Op, add, mul, neg};
use super::modular;
use super::scalar::Scalars;
use super::sets::{Piece, pieces, solutions};
use std::rc::Rc;

/// Elements up to which two sets are matched in any order.
const MAX_MATCH: usize = 48;
const WORK: usize = 12_000;

type Decision = (bool, Rule);

pub(crate) struct Comparer {
    scalars: Scalars,
    strict: bool,
}

impl Comparer {
    pub fn new(strict: bool) -> Self {
        Comparer { scalars: Scalars { budget: WORK, every_place: strict }, strict }
    }

    pub fn equal(&mut self, gold: &E, pred: &E) -> Decision {
        let (mut gold, mut pred) = (shorten(gold), shorten(pred));
        if pred.is_equation() && !gold.is_equation() && (!self.strict || names_a_value(&pred)) {
            pred = last_side(&pred);
        } else if gold.is_assignment() && !pred.is_equation() {
            gold = last_side(&gold);
        }
        if gold == pred && !undefined(&gold) {
            return (true, Rule::Structure);
        }
        match (gold.is_relation(), pred.is_relation()) {
            (true, true) => return (self.relations(&gold, &pred), Rule::Relation),
            // A set with the relation as its element, or the set of its solutions.
            (true, false) if matches!(&*pred, Expr::Set(v) if v.len() == 1 && v[0].is_relation()) => {
                return self.sets(&gold, &pred);
            }
            (true, false) if pred.is_setlike() => {
                let same = match (solutions(&gold), pieces(&pred)) {
                    (Some(a), Some(b)) => self.same_pieces(&a, &b),
                    _ => false,
                };
                return (same, Rule::Relation);
            }
            (true, false) | (false, true) => return (false, Rule::Kind),
            _ => {}
        }
        let listlike = |e: &Expr| e.is_setlike() || matches!(e, Expr::Tuple(_));
        if listlike(&gold) || listlike(&pred) {
            return self.sets(&gold, &pred);
        }
        if let (Some(a), Some(b)) = (matrix(&gold, 0), matrix(&pred, 0)) {
            return (self.matrices(&a, &b), Rule::Matrix);
        }
        if matches!(*gold, Expr::Matrix { .. }) || matches!(*pred, Expr::Matrix { .. }) {
            return (false, Rule::Kind);
        }
        if let Some(same) = symbols(&gold, &pred) {
            return (same, Rule::Symbol);
        }
        self.scalars.equal(&gold, &pred)
    }

    fn same(&mut self, a: &E, b: &E) -> bool {
        self.equal(a, b).0
    }

    fn relations(&mut self, gold: &E, pred: &E) -> bool {
        match (&**gold, &**pred) {
            (Expr::Chain(a), Expr::Chain(b)) => {
                // A chain may be read from either end.
                a.len() == b.len()
                    && (a.iter().zip(b).all(|(x, y)| self.relations(x, y))
                        || a.iter().zip(b.iter().rev()).all(|(x, y)| self.relations(x, y)))
            }
            (Expr::Rel(op, gl, gr), Expr::Rel(pop, pl, pr)) => {
                let plain = |e: &E| !e.is_setlike() && !matches!(**e, Expr::Tuple(_) | Expr::Matrix { .. });
                if !(plain(gl) && plain(gr) && plain(pl) && plain(pr)) {
                    return op == pop && self.same(gl, pl) && self.same(gr, pr);
                }
                if op == pop && self.scalars.equal(gl, pl).0 && self.scalars.equal(gr, pr).0 {
                    return true;
                }
                let (g, p) = (minus(gl, gr), minus(pl, pr));
                if op == pop && self.scalars.equal(&g, &p).0 {
                    return true;
                }
                if op.flipped() == Some(*pop) && self.scalars.equal(&g, &neg(&p)).0 {
                    return true;
                }
                // Equations in several unknowns are solved by math-verify; in one unknown its solver's answer is unused.
                let mut names = vec![];
                g.symbols(&mut names);
                *op == Op::Eq && *pop == Op::Eq && names.len() > 1 && modular::proportional(&g, &p) == Some(true)
            }
            _ => false,
        }
    }

    fn sets(&mut self, gold: &E, pred: &E) -> Decision {
        let wrap = |e: &E| {
            if e.is_setlike() || matches!(**e, Expr::Tuple(_)) {
                e.clone()
            } else {
                Rc::new(Expr::Set(vec![e.clone()]))
            }
        };
        let (gold, pred) = (wrap(gold), wrap(pred));
        let ends = |e: &Expr| match e {
            Expr::Interval { lo, hi, lo_open: true, hi_open: true } => Some(vec![lo.clone(), hi.clone()]),
            _ => None,
        };
        let items = |e: &Expr| match e {
            Expr::Set(v) | Expr::Tuple(v) => Some(v.clone()),
            _ => None,
        };
        match (&*gold, &*pred) {
            (
                Expr::Interval { lo, hi, lo_open, hi_open },
                Expr::Interval { lo: l, hi: h, lo_open: lo2, hi_open: ho2 },
            ) => {
                return (lo_open == lo2 && hi_open == ho2 && self.same(lo, l) && self.same(hi, h), Rule::Interval);
            }
            _ if gold == pred => return (true, Rule::Structure),
            _ => {}
        }
        let finite = |e: &Expr| matches!(e, Expr::Set(_) | Expr::Tuple(_));
        if !(finite(&gold) && finite(&pred))
            && let (Some(a), Some(b)) = (pieces(&gold), pieces(&pred))
            && self.same_pieces(&a, &b)
        {
            return (true, Rule::Set);
        }
        // "(1, 2)" parses as an open interval, and may be meant as a pair.
        let pair = |e: &Expr| items(e).or_else(|| ends(e));
        let (Some(a), Some(b)) = (pair(&gold), pair(&pred)) else { return (false, Rule::Set) };
        if a.len() != b.len() || (!finite(&gold) && !finite(&pred)) {
            return (false, Rule::Set);
        }
        if matches!(*gold, Expr::Set(_)) {
            return (self.match_any_order(&a, &b), Rule::Set);
        }
        (a.iter().zip(&b).all(|(x, y)| self.same(x, y)), Rule::Tuple)
    }

    fn match_any_order(&mut self, a: &[E], b: &[E]) -> bool {
        if a.len() > MAX_MATCH {
            return a.iter().zip(b).all(|(x, y)| self.same(x, y));
        }
        let mut free: Vec<&E> = b.iter().collect();
        for x in a {
            let Some(k) = free.iter().position(|y| self.same(x, y)) else { return false };
            free.swap_remove(k);
        }
        true
    }

    fn same_pieces(&mut self, a: &[Piece], b: &[Piece]) -> bool {
        a.len() == b.len()
            && a.iter().zip(b).all(|(x, y)| {
                x.lo_open == y.lo_open && x.hi_open == y.hi_open && self.same(&x.lo, &y.lo) && self.same(&x.hi, &y.hi)
            })
    }

    fn matrices(&mut self, a: &(usize, usize, Vec<E>), b: &(usize, usize, Vec<E>)) -> bool {
        a.0 == b.0 && a.1 == b.1 && a.2.iter().zip(&b.2).all(|(x, y)| self.scalars.equal(x, y).0)
    }
}

fn minus(a: &E, b: &E) -> E {
    add(a.clone(), neg(b))
}

/// An assignment chain `x = 5 + 5 = 10` is its first name and its last value.
fn shorten(e: &E) -> E {
    match &**e {
        Expr::Chain(links) if e.is_assignment() => match (&*links[0], &*links[links.len() - 1]) {
            (Expr::Rel(_, l, _), Expr::Rel(_, _, r)) => Rc::new(Expr::Rel(Op::Eq, l.clone(), r.clone())),
            _ => e.clone(),
        },
        _ => e.clone(),
    }
}

fn last_side(e: &E) -> E {
    match &**e {
        Expr::Rel(_, _, r) => r.clone(),
        Expr::Chain(links) => links.last().map_or_else(|| e.clone(), last_side),
        _ => e.clone(),
    }
}

/// `x = 5`, `3 + 4 = 7`; `2x + 1 = 7` is not the same as 7.
fn names_a_value(equation: &E) -> bool {
    let first = match &**equation {
        Expr::Chain(links) => links.first(),
        _ => Some(equation),
    };
    let mut names = vec![];
    if let Some(Expr::Rel(_, left, _)) = first.map(|link| &**link) {
        left.symbols(&mut names);
    }
    names.is_empty() || equation.is_assignment()
}

/// A division by zero equals nothing, not even itself.
fn undefined(e: &Expr) -> bool {
    let zero = |b: &E| super::exact::rational(b).is_some_and(|v| num_traits::Zero::is_zero(&v));
    match e {
        Expr::Pow(b, x) if zero(b) => super::exact::rational(x).is_some_and(|v| num_traits::Signed::is_negative(&v)),
        _ => false,
    }
}

fn symbol_name(e: &Expr) -> Option<&str> {
    match e {
        Expr::Sym(s) => Some(s),
        Expr::Imag => Some("i"),
        _ => None,
    }
}

/// Words: `\text{even}` and `even` (a product of letters) are the same.
fn symbols(gold: &Expr, pred: &Expr) -> Option<bool> {
    let (g, p) = (symbol_name(gold), symbol_name(pred));
    match (g, p) {
        (Some(g), Some(p)) => return Some(g.to_lowercase() == p.to_lowercase()),
        (None, None) => return None,
        _ => {}
    }
    let (name, other) = match g {
        Some(g) => (g, pred),
        None => (p?, gold),
    };
    let letter = |e: &Expr| if *e == Expr::Euler { Some("e".to_string()) } else { symbol_name(e).map(str::to_string) };
    match other {
        // \text{12} is a word that spells a number.
        Expr::Num { value, float: false } => Some(value.to_string() == name),
        Expr::Euler => Some(name.eq_ignore_ascii_case("e")),
        Expr::Mul(v) => {
            let word: String = v.iter().map(|a| letter(a)).collect::<Option<String>>()?;
            Some(word.to_lowercase() == name.to_lowercase())
        }
        _ => None,
    }
}

/// The matrix that sums and products of matrices make.
fn matrix(e: &E, depth: usize) -> Option<(usize, usize, Vec<E>)> {
    const MAX_SIDE: usize = 6;
    if depth > 4 {
        return None;
    }
    match &**e {
        Expr::Matrix { rows, cols, items } => Some((*rows, *cols, items.clone())),
        Expr::Add(v) => {
            let mut sum = matrix(v.first()?, depth + 1)?;
            for a in &v[1..] {
                let m = matrix(a, depth + 1)?;
                if (m.0, m.1) != (sum.0, sum.1) {
                    return None;
                }
                sum.2 = sum.2.iter().zip(&m.2).map(|(x, y)| add(x.clone(), y.clone())).collect();
            }
            Some(sum)
        }
        Expr::Mul(v) => {
            let mut factor: Option<E> = None;
            let mut product: Option<(usize, usize, Vec<E>)> = None;
            // Products are written out, so their number is bounded.
            if v.iter().filter(|a| matches!(***a, Expr::Matrix { .. } | Expr::Add(_) | Expr::Mul(_))).count() > 3 {
                return None;
            }
            for a in v {
                match (matrix(a, depth + 1), &mut product) {
                    (Some(m), None) => product = Some(m),
                    (Some(m), Some(p)) => {
                        if p.1 != m.0 || p.0.max(p.1).max(m.1) > MAX_SIDE {
                            return None;
                        }
                        let cell = |i: usize, j: usize| {
                            (0..p.1).map(|k| mul(p.2[i * p.1 + k].clone(), m.2[k * m.1 + j].clone())).reduce(add)
                        };
                        let items = (0..p.0 * m.1).map(|n| cell(n / m.1, n % m.1)).collect::<Option<Vec<_>>>()?;
                        *p = (p.0, m.1, items);
                    }
                    (None, _) => factor = Some(factor.map_or(a.clone(), |f| mul(f, a.clone()))),
                }
            }
            let (rows, cols, items) = product?;
            let items = match factor {
                Some(f) => items.into_iter().map(|x| mul(f.clone(), x)).collect(),
                None => items,
            };
            Some((rows, cols, items))
        }
        _ => None,
    }
}
