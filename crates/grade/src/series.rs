//! Sums and products over an index, written out where their bounds are small integers.

use super::expr::{E, Expr, substitute};
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
        let at = |k: i64| substitute(&body, &|symbol: &str| (symbol == name).then(|| Expr::int(k)));
        let terms: Vec<E> = (a..=b).map(at).collect();
        let e = match (sum, terms.is_empty()) {
            (_, true) => Expr::int(i64::from(!sum)),
            (true, _) => Rc::new(Expr::Add(terms)),
            (false, _) => Rc::new(Expr::Mul(terms)),
        };
        Some((e, end))
    }
}
