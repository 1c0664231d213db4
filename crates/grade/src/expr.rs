//! A parsed answer: a number, an expression, a set, a tuple, an interval, a matrix or a relation.
//!
//! Knows the shape of answers and a few structural questions about them; nothing of text and nothing of equality
//! beyond structural equality (`PartialEq`).

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed};
use std::rc::Rc;

pub(crate) type E = Rc<Expr>;

/// A relation between two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Op {
    /// The relation with the two sides swapped; `None` if math-verify has no such rule.
    pub(crate) fn flipped(self) -> Option<Op> {
        match self {
            Op::Eq => Some(Op::Eq),
            Op::Ne => None,
            Op::Lt => Some(Op::Gt),
            Op::Le => Some(Op::Ge),
            Op::Gt => Some(Op::Lt),
            Op::Ge => Some(Op::Le),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    /// An exact value. `float`: it was written with a decimal point (such answers are compared rounded).
    Num {
        value: BigRational,
        float: bool,
    },
    /// `n %`, a separate variant because math-verify treats 5 and 5 % as equal.
    Percent(E),
    Sym(String),
    Pi,
    /// Euler's number.
    Euler,
    /// The imaginary unit.
    Imag,
    Infinity,
    Add(Vec<E>),
    Mul(Vec<E>),
    Pow(E, E),
    /// A named function; unknown names are compared by name and arguments.
    Func(String, Vec<E>),
    Matrix {
        rows: usize,
        cols: usize,
        items: Vec<E>,
    },
    /// A finite set, in the order written.
    Set(Vec<E>),
    Tuple(Vec<E>),
    Interval {
        lo: E,
        hi: E,
        lo_open: bool,
        hi_open: bool,
    },
    Union(E, E),
    Intersection(E, E),
    Difference(E, E),
    /// ℕ, ℤ, ℚ, ℝ, ℂ, ℙ or ∅ (`'0'`).
    Named(char),
    Rel(Op, E, E),
    /// A chain a < b < c as its links.
    Chain(Vec<E>),
}

impl Expr {
    pub(crate) fn int(n: i64) -> E {
        Rc::new(Expr::Num { value: BigRational::from(BigInt::from(n)), float: false })
    }

    pub(crate) fn rat(value: BigRational) -> E {
        Rc::new(Expr::Num { value, float: false })
    }

    pub(crate) fn func(name: &str, args: Vec<E>) -> E {
        Rc::new(Expr::Func(name.to_string(), args))
    }

    pub(crate) fn is_setlike(&self) -> bool {
        matches!(
            self,
            Expr::Set(_)
                | Expr::Interval { .. }
                | Expr::Union(..)
                | Expr::Intersection(..)
                | Expr::Difference(..)
                | Expr::Named(_)
        )
    }

    pub(crate) fn is_relation(&self) -> bool {
        matches!(self, Expr::Rel(..) | Expr::Chain(_))
    }

    pub(crate) fn is_equation(&self) -> bool {
        match self {
            Expr::Rel(op, ..) => *op == Op::Eq,
            Expr::Chain(links) => links.iter().all(|l| matches!(**l, Expr::Rel(Op::Eq, ..))),
            _ => false,
        }
    }

    /// `x = …`, `f(x) = …`, `(a, b) = …`: an equation whose left side has symbols only.
    pub(crate) fn is_assignment(&self) -> bool {
        match self {
            Expr::Rel(Op::Eq, l, _) => l.only_symbols(),
            Expr::Chain(links) => self.is_equation() && matches!(&*links[0], Expr::Rel(_, l, _) if l.only_symbols()),
            _ => false,
        }
    }

    pub(crate) fn only_symbols(&self) -> bool {
        match self {
            Expr::Sym(_) => true,
            Expr::Pow(b, e) if e.is_minus_one() => b.only_symbols(),
            Expr::Add(v) | Expr::Mul(v) | Expr::Func(_, v) | Expr::Tuple(v) | Expr::Set(v) => {
                !v.is_empty() && v.iter().all(|a| a.only_symbols())
            }
            Expr::Pow(a, b) | Expr::Rel(_, a, b) => a.only_symbols() && b.only_symbols(),
            _ => false,
        }
    }

    fn is_minus_one(&self) -> bool {
        matches!(self, Expr::Num { value, .. } if *value == -BigRational::one())
    }

    pub(crate) fn children(&self) -> Vec<&E> {
        match self {
            Expr::Percent(a) => vec![a],
            Expr::Add(v) | Expr::Mul(v) | Expr::Func(_, v) | Expr::Set(v) | Expr::Tuple(v) | Expr::Chain(v) => {
                v.iter().collect()
            }
            Expr::Matrix { items, .. } => items.iter().collect(),
            Expr::Pow(a, b)
            | Expr::Union(a, b)
            | Expr::Intersection(a, b)
            | Expr::Difference(a, b)
            | Expr::Rel(_, a, b)
            | Expr::Interval { lo: a, hi: b, .. } => vec![a, b],
            _ => vec![],
        }
    }

    /// Names of the free symbols, each once, in order of appearance.
    pub(crate) fn symbols<'a>(&'a self, out: &mut Vec<&'a str>) {
        if let Expr::Sym(s) = self
            && !out.contains(&s.as_str())
        {
            out.push(s);
        }
        for c in self.children() {
            c.symbols(out);
        }
    }
}

pub fn num(value: BigRational, float: bool) -> E {
    Rc::new(Expr::Num { value, float })
}

pub fn neg(e: &E) -> E {
    match &**e {
        Expr::Num { value, float } => num(-value, *float),
        _ => mul(Expr::int(-1), e.clone()),
    }
}

/// An expression with its symbols replaced, if `value` has an expression for them, in sums, products, powers, percentages and functions.
pub(crate) fn substitute(e: &E, value: &impl Fn(&str) -> Option<E>) -> E {
    let all = |items: &[E]| items.iter().map(|item| substitute(item, value)).collect();
    Rc::new(match &**e {
        Expr::Sym(name) => return value(name).unwrap_or_else(|| e.clone()),
        Expr::Percent(a) => Expr::Percent(substitute(a, value)),
        Expr::Add(items) => Expr::Add(all(items)),
        Expr::Mul(items) => Expr::Mul(all(items)),
        Expr::Pow(base, power) => Expr::Pow(substitute(base, value), substitute(power, value)),
        Expr::Func(name, args) => Expr::Func(name.clone(), all(args)),
        _ => return e.clone(),
    })
}

/// A sum, flat.
pub fn add(a: E, b: E) -> E {
    let mut v = flat(a, |e| matches!(e, Expr::Add(_)));
    v.extend(flat(b, |e| matches!(e, Expr::Add(_))));
    Rc::new(Expr::Add(v))
}

/// A product, flat.
pub(crate) fn mul(a: E, b: E) -> E {
    let mut v = flat(a, |e| matches!(e, Expr::Mul(_)));
    v.extend(flat(b, |e| matches!(e, Expr::Mul(_))));
    Rc::new(Expr::Mul(v))
}

fn flat(e: E, same: fn(&Expr) -> bool) -> Vec<E> {
    match &*e {
        Expr::Add(v) | Expr::Mul(v) if same(&e) => v.clone(),
        _ => vec![e],
    }
}

/// a / b. Two integers give a rational; division by zero gives no number.
pub(crate) fn div(a: E, b: E) -> E {
    if let (Expr::Num { value: x, float: false }, Expr::Num { value: y, float: false }) = (&*a, &*b)
        && x.is_integer()
        && y.is_integer()
        && !num_traits::Zero::is_zero(y)
    {
        return Expr::rat(x / y);
    }
    Rc::new(Expr::Mul(vec![a, Rc::new(Expr::Pow(b, Expr::int(-1)))]))
}

/// a b written side by side: a product, but an integer before a positive rational is a mixed number (2 ½).
pub fn beside(a: E, b: E) -> E {
    if let (Expr::Num { value: x, float: false }, Expr::Num { value: y, float: false }) = (&*a, &*b)
        && x.is_integer()
        && y.is_positive()
    {
        return Expr::rat(if x.is_negative() { x - y } else { x + y });
    }
    mul(a, b)
}
