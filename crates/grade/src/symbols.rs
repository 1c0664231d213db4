//! The atoms of the parser: names with accents and subscripts, numbers, percentages, constants.

use super::exact::decimal;
use super::expr::Expr;
use super::lexer::T;
use super::parser::{Parse, Parser};
use std::rc::Rc;

impl Parser<'_> {
    /// `_atom` or `_{…}`, as text.
    pub(crate) fn sub(&mut self, i: usize) -> Option<(String, usize)> {
        let j = self.expect(i, T::Under)?;
        if self.kind(j)? != T::Open('{') {
            let t = self.toks.get(j)?;
            let atom =
                matches!(t.kind, T::Letter | T::BigE | T::Number | T::Symbol | T::Accent | T::Diff | T::Infinity);
            return atom.then(|| (t.text.trim().to_string(), j + 1));
        }
        let mut depth = 0;
        let mut text = String::new();
        for (k, t) in self.toks.iter().enumerate().skip(j) {
            match t.kind {
                T::Open('{') => depth += 1,
                T::Close('{') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return (!text.is_empty()).then_some((text, k + 1));
            }
            if k > j {
                text.push_str(t.text.trim());
            }
        }
        None
    }

    /// A symbol's name with its subscript.
    pub fn name(&mut self, i: usize) -> Option<(String, usize)> {
        let t = self.toks.get(i)?;
        let mut name = match t.kind {
            T::Letter => t.text.to_string(),
            T::Symbol => greek(t.text.trim()).to_string(),
            T::Accent => accent(t.text),
            _ => return None,
        };
        let mut j = i + 1;
        if let Some((sub, k)) = self.sub(j) {
            name.push('_');
            name.push_str(&if sub.chars().count() > 1 { format!("{{{sub}}}") } else { sub });
            j = k;
        }
        Some((name.to_lowercase(), j))
    }

    /// A symbol, possibly with a superscript (`x^2`), which a subscript may follow.
    pub fn symbol(&mut self, i: usize) -> Parse {
        if self.kind(i) == Some(T::Letter) && self.toks[i].text == "I" {
            return Some((Rc::new(Expr::Imag), i + 1));
        }
        let (mut name, mut j) = self.name(i)?;
        let mut exp = None;
        if let Some((e, k)) = self.guarded(|p| p.sup(j)) {
            exp = Some(e);
            j = k;
            if !name.contains('_')
                && let Some((sub, k)) = self.sub(j)
            {
                let sub = sub.to_lowercase();
                name.push_str(&if sub.chars().count() > 1 { format!("_{{{sub}}}") } else { format!("_{sub}") });
                j = k;
            }
        }
        let e = Rc::new(match name.as_str() {
            "pi" => Expr::Pi,
            "i" | "imath" => Expr::Imag,
            _ => Expr::Sym(name),
        });
        Some((exp.map_or(e.clone(), |x| Rc::new(Expr::Pow(e, x))), j))
    }

    pub(crate) fn atom(&mut self, i: usize) -> Parse {
        let t = *self.toks.get(i)?;
        let e = match t.kind {
            T::Letter | T::Symbol | T::Accent => return self.symbol(i),
            T::Infinity => Rc::new(Expr::Infinity),
            T::Number => {
                // A subscript on a number names its base, which math-verify ignores.
                let end = self.sub(i + 1).map_or(i + 1, |(_, k)| k);
                return Some((decimal(t.text)?, end));
            }
            T::Sci => decimal(t.text)?,
            T::Percent => {
                let digits = t.text.trim_end_matches(['%', '\\']).trim();
                Rc::new(Expr::Percent(decimal(digits)?))
            }
            T::BigE => Rc::new(Expr::Sym("e".into())),
            T::Diff => {
                let var = t.text[1..].trim().trim_start_matches('\\');
                Rc::new(Expr::Sym(format!("d{var}")))
            }
            _ => return None,
        };
        Some((e, i + 1))
    }
}

/// The name under an accent: `\text{…}` is dropped (with spaces and parentheses), others stay in the name.
fn accent(text: &str) -> String {
    let Some((cmd, body)) = text.split_once('{') else { return text.to_string() };
    let cmd = cmd.trim_start_matches('\\').trim_end();
    let body: String = body.trim_end_matches('}').chars().filter(|c| *c != ' ').collect();
    match cmd {
        "bar" | "overline" => format!("bar{{{body}}}"),
        "vec" | "overrightarrow" => format!("vec{{{body}}}"),
        "tilde" | "widetilde" => format!("tilde{{{body}}}"),
        c if c.contains("text") || c == "mbox" => body.replace(['(', ')'], ""),
        c if c.contains("math") => format!("math{{{body}}}"),
        c => format!("{c}{{{body}}}"),
    }
}

fn greek(text: &str) -> &str {
    match text {
        "α" => "alpha",
        "β" => "beta",
        "γ" | "Γ" => "gamma",
        "δ" | "Δ" => "delta",
        "ε" => "epsilon",
        "ϵ" => "varepsilon",
        "θ" | "Θ" => "theta",
        "λ" | "Λ" => "lambda",
        "μ" => "mu",
        "π" | "Π" => "pi",
        "ρ" => "rho",
        "σ" | "Σ" => "sigma",
        "τ" => "tau",
        "φ" | "Φ" => "phi",
        "ϕ" => "varphi",
        "ψ" | "Ψ" => "psi",
        "ω" | "Ω" => "omega",
        _ => text.trim_start_matches('\\'),
    }
}
