//! Matrices in the parser, and determinants written out.

use super::expr::{E, Expr, mul, neg};
use super::lexer::T;
use super::parser::{Parse, Parser};
use std::rc::Rc;

/// Nodes that a sum or determinant may have when written out.
pub(crate) const MAX_SIZE: usize = 6000;

impl Parser<'_> {
    pub fn matrix(&mut self, i: usize) -> Parse {
        let det = self.toks[i].text.ends_with("{vmatrix}");
        let (mut items, mut row, mut rows, mut cols, mut j) = (vec![], 0, 0, None, i + 1);
        loop {
            let (e, k) = self.expr(j)?;
            items.push(e);
            row += 1;
            let next = self.kind(k)?;
            if next == T::Amp {
                j = k + 1;
                continue;
            }
            rows += 1;
            if *cols.get_or_insert(row) != row {
                return None;
            }
            row = 0;
            j = if next == T::Row { k + 1 } else { k };
            if self.kind(j)? == T::End {
                let m = Rc::new(Expr::Matrix { rows, cols: cols?, items });
                return Some((if det { determinant(&m)? } else { m }, j + 1));
            }
            if next != T::Row {
                return None;
            }
        }
    }
}

/// Nodes of an expression, counted up to `cap`.
pub fn size(e: &Expr, cap: usize) -> usize {
    let mut n = 1;
    for c in e.children() {
        if n >= cap {
            break;
        }
        n += size(c, cap - n);
    }
    n
}

/// Expanded along the first row; matrices over 4 × 4 are left alone.
pub(crate) fn determinant(m: &E) -> Option<E> {
    let Expr::Matrix { rows, cols, items } = &**m else { return None };
    if rows != cols || *rows > 4 || size(m, MAX_SIZE / 24) >= MAX_SIZE / 24 {
        return None;
    }
    let n = *rows;
    if n == 1 {
        return Some(items[0].clone());
    }
    let mut terms = vec![];
    for c in 0..n {
        let minor = (n..n * n).filter(|k| k % n != c).map(|k| items[k].clone()).collect();
        let d = determinant(&Rc::new(Expr::Matrix { rows: n - 1, cols: n - 1, items: minor }))?;
        let t = mul(items[c].clone(), d);
        terms.push(if c % 2 == 1 { neg(&t) } else { t });
    }
    Some(Rc::new(Expr::Add(terms)))
}
