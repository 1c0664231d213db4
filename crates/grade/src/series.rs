//! Sums and products over an index, written out where their bounds are small integers.

use super::expr::{E, Expr};
use super::lexer::T;
use super::matrix::{MAX_SIZE, size};
use super::parser::{Parse, Parser};
use std::rc::Rc;

const MAX_SUM: i64 = 200;

impl Parser<'_> {
    /// `\sum_{k=1}^{n}`: written out when the bounds are small integers.
    pub fn series(&mut self, i: usize) -> Parse {
        let j = self.expect(self.expect(i + 1, T::Under)?, T::Open('{'))?;
        let (var, j) = self.atom(j)?;
        let (from, j) = self.expr(self.expect(j, T::Assign)?)?;
        let (to, j) = self.sup(self.expect(j, T::Close('{'))?)?;
        let (body, end) = self.product(j, true)?;
        let sum = self.kind(i) == Some(T::Sum);
        let whole = |e: &E| super::exact::small_int(e);
        let (Expr::Sym(name), Some(a), Some(b)) = (&*var, whole(&from), whole(&to)) else {
            return Some((Expr::func(if sum { "sum" } else { "prod" }, vec![body, var, from, to]), end));
        };
        if b.checked_sub(a)? > MAX_SUM || size(&body, MAX_SIZE).saturating_mul((b - a).max(0) as usize) > MAX_SIZE {
            return None;
        }
        let terms: Vec<E> = (a..=b).map(|k| substitute(&body, name, &Expr::int(k))).collect();
        let e = match (sum, terms.is_empty()) {
            (_, true) => Expr::int(i64::from(!sum)),
            (true, _) => Rc::new(Expr::Add(terms)),
            (false, _) => Rc::new(Expr::Mul(terms)),
        };
        Some((e, end))
    }
}

fn substitute(e: &E, name: &str, by: &E) -> E {
    let all = |v: &[E]| v.iter().map(|a| substitute(a, name, by)).collect::<Vec<_>>();
    Rc::new(match &**e {
        Expr::Sym(s) if s == name => return by.clone(),
        Expr::Add(v) => Expr::Add(all(v)),
        Expr::Mul(v) => Expr::Mul(all(v)),
        Expr::Func(f, v) => Expr::Func(f.clone(), all(v)),
        Expr::Pow(a, b) => Expr::Pow(substitute(a, name, by), substitute(b, name, by)),
        _ => return e.clone(),
    })
}
