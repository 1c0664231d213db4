//! The arithmetic part of the parser: sums, products, powers, functions, fractions and roots.

use super::expr::{E, Expr, add, beside, div, mul, neg};
use super::lexer::T;
use super::matrix::determinant;
use super::parser::{Parse, Parser};
use std::rc::Rc;

impl Parser<'_> {
    pub(crate) fn expr(&mut self, i: usize) -> Parse {
        if let Some(Some(known)) = self.exprs.get(i) {
            return known.clone();
        }
        let r = self.guarded(|p| p.additive(i));
        if let Some(slot) = self.exprs.get_mut(i) {
            *slot = Some(r.clone());
        }
        r
    }

    fn additive(&mut self, i: usize) -> Parse {
        let (mut left, mut i) = self.product(i, true)?;
        loop {
            let minus = match self.kind(i) {
                Some(T::Add) => false,
                Some(T::Sub) => true,
                _ => return Some((left, i)),
            };
            // A dangling sign is left for the caller, which then fails on it.
            let Some((right, j)) = self.product(i + 1, true) else { return Some((left, i)) };
            left = add(left, if minus { neg(&right) } else { right });
            i = j;
        }
    }

    /// Products and quotients, left to right; `func`: whether functions may follow each other without an operator.
    pub fn product(&mut self, i: usize, func: bool) -> Parse {
        let (mut left, mut i) = self.unary(i, func)?;
        loop {
            let t = match self.kind(i) {
                Some(t @ (T::Times | T::Divide | T::Colon | T::Mod)) => t,
                _ => return Some((left, i)),
            };
            let Some((right, j)) = self.unary(i + 1, func) else { return Some((left, i)) };
            left = match t {
                T::Times => mul(left, right),
                T::Mod => Expr::func("mod", vec![left, right]),
                _ => div(left, right),
            };
            i = j;
        }
    }

    fn unary(&mut self, mut i: usize, func: bool) -> Parse {
        let mut minus = false;
        while let Some(t @ (T::Add | T::Sub)) = self.kind(i) {
            minus ^= t == T::Sub;
            i += 1;
        }
        let (e, j) = self.side_by_side(i, func)?;
        Some((if minus { neg(&e) } else { e }, j))
    }

    fn side_by_side(&mut self, i: usize, func: bool) -> Parse {
        let (first, mut j) = self.postfix(i, true)?;
        let mut items = vec![first];
        while let Some((e, k)) = self.postfix(j, func) {
            items.push(e);
            j = k;
        }
        let mut e = items.pop()?;
        while let Some(left) = items.pop() {
            e = beside(left, e);
        }
        Some((e, j))
    }

    fn postfix(&mut self, i: usize, func: bool) -> Parse {
        let (mut e, mut i) = self.power(i, func)?;
        loop {
            match self.kind(i) {
                Some(T::Bang) => e = Expr::func("factorial", vec![e]),
                Some(T::Degree) => {}
                Some(T::Transpose) => {
                    if let Expr::Matrix { rows, cols, items } = &*e {
                        let t = (0..rows * cols).map(|k| items[(k % rows) * cols + k / rows].clone()).collect();
                        e = Rc::new(Expr::Matrix { rows: *cols, cols: *rows, items: t });
                    }
                }
                _ => return Some((e, i)),
            }
            i += 1;
        }
    }

    fn power(&mut self, i: usize, func: bool) -> Parse {
        let (mut e, mut i) = self.primary(i, func)?;
        while let Some((exp, j)) = self.sup(i) {
            let j = self.sub(j).map_or(j, |(_, k)| k);
            e = Rc::new(Expr::Pow(e, exp));
            i = j;
        }
        Some((e, i))
    }

    /// `^atom` or `^{expr}`.
    pub(crate) fn sup(&mut self, i: usize) -> Parse {
        self.script(i, T::Caret)
    }

    /// An atom or `{expr}` after this sign.
    fn script(&mut self, i: usize, sign: T) -> Parse {
        let j = self.expect(i, sign)?;
        if let Some(k) = self.expect(j, T::Open('{')) {
            let (e, k) = self.expr(k)?;
            return Some((e, self.expect(k, T::Close('{'))?));
        }
        self.guarded(|p| p.atom(j))
    }

    fn primary(&mut self, i: usize, func: bool) -> Parse {
        let (close, wrap) = match self.kind(i)? {
            T::Open('v') => return None,
            T::Open(c) => (
                T::Close(c),
                match c {
                    'f' => "floor",
                    '^' => "ceil",
                    _ => "",
                },
            ),
            T::Bar => (T::Bar, "abs"),
            T::LVert => (T::RVert, "abs"),
            T::Vert => (T::Vert, "abs"),
            T::Norm => (T::Norm, "norm"),
            T::Phantom | T::Boxed => {
                let (e, j) = self.expr(self.expect(i + 1, T::Open('{'))?)?;
                return Some((e, self.expect(j, T::Close('{'))?));
            }
            T::Frac => return self.braced_pair(i + 1).map(|(a, b, j)| (div(a, b), j)),
            T::Binom => return self.braced_pair(i + 1).map(|(a, b, j)| (Expr::func("binom", vec![a, b]), j)),
            T::Begin => return self.matrix(i),
            T::Sqrt | T::Func | T::Multi | T::OperatorName | T::ExpE | T::Sum | T::Prod if !func => return None,
            T::Sqrt => return self.root(i + 1),
            T::Func | T::OperatorName | T::Multi => return self.guarded(|p| p.function(i)),
            T::ExpE => {
                let (e, j) = self.sup(i + 1).map_or((None, i + 1), |(e, j)| (Some(e), j));
                let euler = Rc::new(Expr::Euler);
                return Some((e.map_or(euler.clone(), |e| Rc::new(Expr::Pow(euler, e))), j));
            }
            T::Sum | T::Prod => return self.guarded(|p| p.series(i)),
            T::Letter | T::Symbol | T::Accent if func => return self.call(i).or_else(|| self.atom(i)),
            _ => return self.atom(i),
        };
        let (e, j) = self.expr(i + 1)?;
        if self.kind(i) == Some(T::Open('{'))
            && let Some(k) = self.expect(j, T::Choose)
        {
            let (b, k) = self.expr(k)?;
            return Some((Expr::func("binom", vec![e, b]), self.expect(k, T::Close('{'))?));
        }
        let end = self.expect(j, close)?;
        Some((if wrap.is_empty() { e } else { Expr::func(wrap, vec![e]) }, end))
    }

    fn braced_pair(&mut self, i: usize) -> Option<(E, E, usize)> {
        let (a, j) = self.expr(self.expect(i, T::Open('{'))?)?;
        let (b, k) = self.expr(self.expect(self.expect(j, T::Close('{'))?, T::Open('{'))?)?;
        Some((a, b, self.expect(k, T::Close('{'))?))
    }

    fn root(&mut self, mut i: usize) -> Parse {
        let mut degree = Expr::int(2);
        if let Some(j) = self.expect(i, T::Open('[')) {
            let (e, k) = self.expr(j)?;
            degree = e;
            i = self.expect(k, T::Close('['))?;
        }
        let (e, j) = self.expr(self.expect(i, T::Open('{'))?)?;
        Some((Rc::new(Expr::Pow(e, div(Expr::int(1), degree))), self.expect(j, T::Close('{'))?))
    }

    /// `f(x)`, `f(x, y)`: a name applied to one atom or to several arguments. `f(x + 1)` is a product, as in the grammar.
    fn call(&mut self, i: usize) -> Parse {
        let (name, mut j) = self.name(i)?;
        let mut exp = None;
        if let Some((e, k)) = self.sup(j) {
            exp = Some(e);
            j = k;
        }
        let T::Open(open @ ('(' | '[')) = self.kind(j)? else { return None };
        let args = match self.atom(j + 1).filter(|(_, k)| self.kind(*k) == Some(T::Close(open))) {
            Some((e, k)) => Some((vec![e], k)),
            None => self.guarded(|p| p.arguments(j + 1)).filter(|(v, _)| v.len() > 1),
        };
        let (args, k) = args?;
        let end = self.expect(k, T::Close(open))?;
        let f = Expr::func(&format!("{name}()"), args);
        Some((exp.map_or(f.clone(), |e| Rc::new(Expr::Pow(f, e))), end))
    }

    fn arguments(&mut self, mut i: usize) -> Option<(Vec<E>, usize)> {
        let mut args = vec![];
        loop {
            let (e, j) = self.expr(i)?;
            args.push(e);
            match self.kind(j) {
                Some(T::Comma) => i = j + 1,
                _ => return Some((args, j)),
            }
        }
    }

    fn function(&mut self, i: usize) -> Parse {
        let (mut name, mut j) = (self.toks[i].text.trim_start_matches('\\').to_string(), i + 1);
        if self.kind(i) == Some(T::OperatorName) {
            let k = self.expect(j, T::Open('{'))?;
            name = self.toks.get(k).filter(|t| t.kind == T::Name)?.text.to_string();
            j = self.expect(k + 1, T::Close('{'))?;
        }
        let (mut base, mut exp) = (None, None);
        for _ in 0..2 {
            if let (None, Some((e, k))) = (&base, self.script(j, T::Under)) {
                base = Some(e);
                j = k;
            } else if let (None, Some((e, k))) = (&exp, self.sup(j)) {
                exp = Some(e);
                j = k;
            }
        }
        let several = matches!(name.as_str(), "gcd" | "lcm" | "max" | "min");
        let in_parens = self.expect(j, T::Open('(')).and_then(|k| {
            let (args, k) = self.arguments(k)?;
            Some((args, self.expect(k, T::Close('('))?))
        });
        let (mut args, end) = match in_parens.filter(|(v, _)| several || v.len() == 1) {
            Some(found) => found,
            None => self.product(j, false).map(|(e, k)| (vec![e], k))?,
        };
        if name.starts_with("ar") && !name.starts_with("arc") {
            name = name.replacen("ar", "arc", 1);
        }
        let minus_one = exp.as_ref().is_some_and(|e| **e == *Expr::int(-1));
        if minus_one
            && matches!(name.as_str(), "sin" | "cos" | "tan" | "csc" | "sec" | "cot" | "sinh" | "cosh" | "tanh")
        {
            name = format!("arc{name}");
            exp = None;
        }
        let f = match name.as_str() {
            "exp" => Rc::new(Expr::Pow(Rc::new(Expr::Euler), args.remove(0))),
            "log" => Expr::func("log", vec![args.remove(0), base.unwrap_or_else(|| Expr::int(10))]),
            "ln" if base.is_some() => Expr::func("log", vec![args.remove(0), base.unwrap_or_else(|| Expr::int(10))]),
            "det" => determinant(&args[0])?,
            _ => Expr::func(&name, args),
        };
        Some((exp.map_or(f.clone(), |e| Rc::new(Expr::Pow(f, e))), end))
    }
}
