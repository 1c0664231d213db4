//! Parses tokens into an answer: lists, sets, tuples, intervals, unions and relations. Arithmetic is in `arith`.
//!
//! Follows the order in which the grammar of latex2sympy2_extended prefers its alternatives. Every rule remembers its
//! result per position (packrat), so that the work is linear in the text; nesting is bounded by `MAX_DEPTH`.

use super::expr::{E, Expr, Op, neg};
use super::lexer::{T, Token, lex};
use super::numeric::{endless, order};
use std::cmp::Ordering;
use std::rc::Rc;

pub(crate) const MAX_TOKENS: usize = 1500;
pub(crate) const MAX_DEPTH: usize = 40;
/// Rule calls after which a text counts as unparsed.
const MAX_STEPS: usize = 60_000;

pub type Parse = Option<(E, usize)>;
type FoundList = Option<(Vec<E>, usize)>;

pub struct Parser<'a> {
    pub toks: Vec<Token<'a>>,
    pub depth: usize,
    pub steps: usize,
    pub exprs: Vec<Option<Parse>>,
    elements: Vec<Option<FoundList>>,
}

/// The answer that `text` (normalised LaTeX) spells, or `None` if it is not mathematics that we know.
pub fn parse(text: &str) -> Option<E> {
    let toks = lex(text, MAX_TOKENS)?;
    let n = toks.len();
    if n == 0 {
        return None;
    }
    let mut p = Parser { toks, depth: 0, steps: 0, exprs: vec![None; n + 1], elements: vec![None; n + 1] };
    if let Some((e, end)) = p.assigned_list()
        && end == n
    {
        return Some(e);
    }
    if let Some((groups, end)) = p.groups(0, true)
        && end == n
    {
        return Some(thousands(text).unwrap_or_else(|| set_or_tuple(groups)));
    }
    let (e, end) = p.set_relation(0)?;
    (end == n).then_some(e)
}

/// `1,234,567` as a whole is a number, not a list, and so is `12,34,567`.
fn thousands(text: &str) -> Option<E> {
    let t = text.trim();
    let (sign, body) = t.strip_prefix('-').map_or((false, t), |b| (true, b));
    let (int, frac) = body.split_once('.').map_or((body, None), |(i, f)| (i, Some(f)));
    let parts: Vec<&str> = int.split(',').collect();
    let first = parts[0];
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let groups = |size: usize, parts: &[&str]| parts.iter().all(|part| part.len() == size);
    let western = first.len() <= 3 && groups(3, &parts[1..]);
    // 12,34,567: lakhs.
    let indian = || {
        let (last, pairs) = parts[1..].split_last()?;
        Some(first.len() <= 2 && !pairs.is_empty() && groups(2, pairs) && last.len() == 3)
    };
    let ok = parts.len() > 1
        && (western || indian().unwrap_or(false))
        && parts.iter().copied().all(digits)
        && frac.is_none_or(digits);
    if !ok {
        return None;
    }
    // "0,125" is a decimal written with a comma.
    let plain = if first.starts_with('0') && !sign { int.replace(',', ".") } else { int.replace(',', "") };
    let plain = frac.map_or(plain.clone(), |f| format!("{plain}.{f}"));
    let e = super::exact::decimal(&plain)?;
    Some(if sign { neg(&e) } else { e })
}

fn set_or_tuple(mut groups: Vec<Vec<E>>) -> E {
    if groups.len() == 1 {
        let only = groups.remove(0);
        return if only.len() == 1 { only[0].clone() } else { set(only) };
    }
    set(groups.into_iter().map(|g| if g.len() == 1 { g[0].clone() } else { Rc::new(Expr::Tuple(g)) }).collect())
}

/// A finite set without repeats, in the order written.
pub fn set(items: Vec<E>) -> E {
    let mut out: Vec<E> = Vec::with_capacity(items.len());
    for i in items {
        // Past a few dozen elements a quadratic search for repeats is not worth its time.
        if out.len() > 64 || !out.contains(&i) {
            out.push(i);
        }
    }
    if out.is_empty() { Rc::new(Expr::Named('0')) } else { Rc::new(Expr::Set(out)) }
}

impl<'a> Parser<'a> {
    pub fn kind(&self, i: usize) -> Option<T> {
        self.toks.get(i).map(|t| t.kind)
    }

    pub fn expect(&self, i: usize, t: T) -> Option<usize> {
        (self.kind(i) == Some(t)).then_some(i + 1)
    }

    /// Counts work and nesting around a rule; over the limits the rule fails.
    pub(crate) fn guarded<R>(&mut self, f: impl FnOnce(&mut Self) -> Option<R>) -> Option<R> {
        self.steps += 1;
        if self.depth >= MAX_DEPTH || self.steps > MAX_STEPS {
            self.steps = MAX_STEPS + 1;
            return None;
        }
        self.depth += 1;
        let r = f(self);
        self.depth -= 1;
        r
    }

    /// `x = 1, 2, 3` (one name, a list without relations).
    fn assigned_list(&mut self) -> Parse {
        let (left, i) = self.names(0)?;
        if !matches!(self.kind(i)?, T::In | T::Assign) {
            return None;
        }
        let (groups, end) = self.groups(i + 1, false)?;
        Some((Rc::new(Expr::Rel(Op::Eq, left, set_or_tuple(groups))), end))
    }

    /// `x` or `(a, b, c)`.
    fn names(&mut self, i: usize) -> Parse {
        if let Some(mut j) = self.expect(i, T::Open('(')) {
            let mut names = vec![];
            loop {
                let (e, k) = self.symbol(j)?;
                names.push(e);
                match self.kind(k)? {
                    T::Comma => j = k + 1,
                    T::Close('(') => {
                        let e = if names.len() == 1 { names.remove(0) } else { Rc::new(Expr::Tuple(names)) };
                        return Some((e, k + 1));
                    }
                    _ => return None,
                }
            }
        }
        self.symbol(i)
    }

    /// Elements between commas, in groups between semicolons.
    fn groups(&mut self, mut i: usize, relations: bool) -> Option<(Vec<Vec<E>>, usize)> {
        let mut groups = vec![];
        let mut group = vec![];
        loop {
            let (items, j) = if relations { self.element(i)? } else { self.element_of(i, false)? };
            group.extend(items);
            match self.kind(j) {
                Some(T::Comma) => i = j + 1,
                Some(T::Semi) => {
                    groups.push(std::mem::take(&mut group));
                    i = j + 1;
                }
                _ => {
                    groups.push(group);
                    return Some((groups, j));
                }
            }
        }
    }

    fn element(&mut self, i: usize) -> Option<(Vec<E>, usize)> {
        if let Some(Some(known)) = self.elements.get(i) {
            return known.clone();
        }
        let r = self.guarded(|p| p.element_of(i, true));
        if let Some(slot) = self.elements.get_mut(i) {
            *slot = Some(r.clone());
        }
        r
    }

    fn element_of(&mut self, i: usize, relations: bool) -> Option<(Vec<E>, usize)> {
        let ends = |p: &Self, j: usize| matches!(p.kind(j), None | Some(T::Comma | T::Semi | T::Close(_)));
        if let Some(j) = self.expect(i, T::Pm) {
            let (e, k) = self.expr(j)?;
            return ends(self, k).then(|| (vec![neg(&e), e], k));
        }
        let plain = self.expr(i);
        if let Some((a, j)) = &plain
            && let Some(j) = self.expect(*j, T::Pm)
        {
            let (b, k) = self.expr(j)?;
            let pair = vec![super::expr::add(a.clone(), b.clone()), super::expr::add(a.clone(), neg(&b))];
            return ends(self, k).then_some((pair, k));
        }
        if let Some((e, j)) = self.set_atom(i)
            && ends(self, j)
        {
            return Some((vec![e], j));
        }
        let (e, j) = if relations { self.relation(plain)? } else { plain? };
        ends(self, j).then(|| (vec![e], j))
    }

    fn relation(&mut self, first: Parse) -> Parse {
        let (mut left, mut i) = first?;
        while let Some(t) = self.kind(i) {
            let op = match t {
                T::Assign => Op::Eq,
                T::Lt => Op::Lt,
                T::Le => Op::Le,
                T::Gt => Op::Gt,
                T::Ge => Op::Ge,
                T::Ne => Op::Ne,
                T::Approx => {
                    let (right, j) = self.expr(i + 1)?;
                    // The exact side is stored, except that `x ≈ 3` names a value.
                    if left.only_symbols() {
                        left = right;
                    }
                    i = j;
                    continue;
                }
                _ => break,
            };
            let (right, j) = self.expr(i + 1)?;
            left = link(left, op, right);
            i = j;
        }
        Some((left, i))
    }

    /// `{…}`, `(…)`, `[…)`, ℝ and so on.
    fn set_atom(&mut self, i: usize) -> Parse {
        let open = match self.kind(i)? {
            T::Set(c) => return Some((Rc::new(Expr::Named(c)), i + 1)),
            T::Boxed => {
                let j = self.expect(i + 1, T::Open('{'))?;
                let (groups, j) = self.groups(j, true)?;
                return Some((set_or_tuple(groups), self.expect(j, T::Close('{'))?));
            }
            T::Open(c) => c,
            _ => return None,
        };
        if open == '{' && self.kind(i + 1) == Some(T::Close('{')) {
            return Some((Rc::new(Expr::Named('0')), i + 2));
        }
        let interval = |c| matches!(c, '(' | '[' | 'v' | 'b' | 'g');
        if interval(open)
            && let Some((lo, hi, close, end)) = self.pair(i + 1)
            && interval(close)
        {
            let is_open = |c| matches!(c, '(' | 'g' | 'v');
            return Some((self::interval(lo, hi, is_open(open), is_open(close)), end));
        }
        if !matches!(open, '(' | '[' | 'v' | '{' | 's') {
            return None;
        }
        let (groups, j) = self.groups(i + 1, true)?;
        let mut items: Vec<E> = groups.into_iter().flatten().collect();
        let end = self.expect(j, T::Close(open))?;
        let e = match open {
            '{' | 's' => set(items),
            _ if items.len() == 1 => items.remove(0),
            _ => Rc::new(Expr::Tuple(items)),
        };
        Some((e, end))
    }

    fn pair(&mut self, i: usize) -> Option<(E, E, char, usize)> {
        let (lo, j) = self.expr(i)?;
        let (hi, k) = self.expr(self.expect(j, T::Comma)?)?;
        match self.kind(k)? {
            T::Close(c) => Some((lo, hi, c, k + 1)),
            _ => None,
        }
    }

    fn set_relation(&mut self, i: usize) -> Parse {
        if let Some((left, j)) = self.names(i)
            && matches!(self.kind(j), Some(T::In | T::Assign))
            && let Some((right, end)) = self.guarded(|p| p.set_relation(j + 1))
        {
            return Some((Rc::new(Expr::Rel(Op::Eq, left, right)), end));
        }
        self.set_level(i, 0)
    }

    /// Set difference, union and intersection, from loose to tight.
    fn set_level(&mut self, i: usize, level: usize) -> Parse {
        const OPS: [T; 3] = [T::Minus, T::Union, T::Inter];
        if level == OPS.len() {
            if let Some(j) = self.expect(i, T::Open('('))
                && let Some((e, k)) = self.guarded(|p| p.set_level(j, 0))
                && let Some(end) = self.expect(k, T::Close('('))
            {
                return Some((e, end));
            }
            return self.set_atom(i);
        }
        let (mut left, mut i) = self.set_level(i, level + 1)?;
        while let Some(j) = self.expect(i, OPS[level]) {
            let (right, k) = self.set_level(j, level + 1)?;
            // A tuple cannot be united: "(3, 1) ∪ …" was meant as a set.
            let plain = |e: E| if let Expr::Tuple(v) = &*e { set(v.clone()) } else { e };
            left = Rc::new(match OPS[level] {
                T::Minus => Expr::Difference(left, right),
                T::Union => Expr::Union(plain(left), plain(right)),
                _ => Expr::Intersection(plain(left), plain(right)),
            });
            i = k;
        }
        Some((left, i))
    }
}

/// Adds a link to a chain of relations.
fn link(left: E, op: Op, right: E) -> E {
    let (mut links, last) = match &*left {
        Expr::Chain(v) => (v.clone(), v[v.len() - 1].clone()),
        Expr::Rel(..) => (vec![left.clone()], left.clone()),
        _ => return Rc::new(Expr::Rel(op, left, right)),
    };
    if let Expr::Rel(_, _, middle) = &*last {
        links.push(Rc::new(Expr::Rel(op, middle.clone(), right)));
    }
    Rc::new(Expr::Chain(links))
}

/// An interval; an upside-down one was meant as a point.
fn interval(lo: E, hi: E, lo_open: bool, hi_open: bool) -> E {
    match order(&lo, &hi) {
        Some(Ordering::Greater) if lo_open == hi_open => return Rc::new(Expr::Tuple(vec![lo, hi])),
        Some(Ordering::Equal) if lo_open && hi_open => return Rc::new(Expr::Tuple(vec![lo, hi])),
        Some(Ordering::Equal) if !lo_open && !hi_open => return set(vec![lo]),
        Some(Ordering::Greater | Ordering::Equal) => return Rc::new(Expr::Named('0')),
        _ => {}
    }
    let (lo_open, hi_open) = (lo_open || endless(&lo) != 0, hi_open || endless(&hi) != 0);
    Rc::new(Expr::Interval { lo, hi, lo_open, hi_open })
}
