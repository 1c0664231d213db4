//! Splits normalised LaTeX into tokens, by longest match, as the grammar of latex2sympy2_extended does.
//!
//! Knows the spelling of commands and symbols; nothing of what they mean. An unknown character is an error (`None`),
//! because math-verify then treats the text as unparsed.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum T {
    Add,
    Sub,
    Times,
    Divide,
    Mod,
    Open(char),
    Close(char),
    Bar,
    LVert,
    RVert,
    Vert,
    Norm,
    Phantom,
    Boxed,
    Under,
    Caret,
    Colon,
    Semi,
    Comma,
    Func,
    Multi,
    Name,
    OperatorName,
    Sqrt,
    Frac,
    Binom,
    Choose,
    Lim,
    To,
    Int,
    Sum,
    Prod,
    Begin,
    End,
    Amp,
    Row,
    Diff,
    ExpE,
    BigE,
    Letter,
    Number,
    Sci,
    Percent,
    Symbol,
    Infinity,
    Partial,
    Accent,
    In,
    NotIn,
    Assign,
    Approx,
    Lt,
    Le,
    Gt,
    Ge,
    Ne,
    Bang,
    Set(char),
    Union,
    Inter,
    Minus,
    Pm,
    Subset,
    Superset,
    Transpose,
    Degree,
    /// A token that the grammar uses nowhere: always a syntax error.
    Other,
}

#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub kind: T,
    pub text: &'a str,
}

const DEGREE: [&str; 8] =
    ["^\\circle", "^{\\circle}", "^\\circ", "^\\degree", "^°", "^{\\circ}", "^{\\degree}", "^{°}"];
const TRANSPOSE: [&str; 3] = ["^T", "^{T}", "'"];
/// Words that the grammar reserves for `\operatorname{…}`; elsewhere they are syntax errors.
const NAMES: [&str; 44] = [
    "arsinh",
    "arcsinh",
    "arcosh",
    "arccosh",
    "artanh",
    "arctanh",
    "gcd",
    "lcm",
    "floor",
    "ceil",
    "eye",
    "zeros",
    "ones",
    "cols",
    "rows",
    "diag",
    "norm",
    "rank",
    "trace",
    "tr",
    "rref",
    "hstack",
    "vstack",
    "orth",
    "ortho",
    "orthogonal",
    "orthogonalize",
    "nullspace",
    "eig",
    "eigen",
    "diagonalize",
    "eigenvals",
    "eigenvalues",
    "eigenvects",
    "eigenvectors",
    "svd",
    "SVD",
    "matrix",
    "pmatrix",
    "bmatrix",
    "vmatrix",
    "arsin",
    "arcos",
    "artan",
];
/// Ends of `\begin{…}` and `\end{…}`.
const MATRICES: [&str; 4] = ["matrix}", "pmatrix}", "bmatrix}", "vmatrix}"];
const LONGEST_COMMAND: usize = 18;

/// The tokens of `s`, or `None` at the first character that starts none, or past `limit` tokens.
pub(crate) fn lex(s: &str, limit: usize) -> Option<Vec<Token<'_>>> {
    let mut out = Vec::with_capacity(s.len().min(limit));
    let mut i = 0;
    while i < s.len() {
        let rest = &s[i..];
        let (kind, n) = token(rest)?;
        if let Some(kind) = kind {
            if out.len() == limit {
                return None;
            }
            out.push(Token { kind, text: &rest[..n] });
        }
        i += n;
    }
    Some(out)
}

fn token(r: &str) -> Option<(Option<T>, usize)> {
    let c = r.chars().next()?;
    let one = |t| Some((Some(t), c.len_utf8()));
    match c {
        ' ' | '\t' | '\r' | '\n' => Some((None, 1)),
        '\\' => command(r),
        '0'..='9' => Some(number(r)),
        '.' if r[1..].starts_with(|c: char| c.is_ascii_digit()) => Some(number(r)),
        '.' => one(T::Other),
        '^' => {
            let found = DEGREE.iter().find(|d| r.starts_with(**d)).map(|d| (Some(T::Degree), d.len()));
            let found =
                found.or_else(|| TRANSPOSE.iter().find(|d| r.starts_with(**d)).map(|d| (Some(T::Transpose), d.len())));
            found.or(Some((Some(T::Caret), 1)))
        }
        '\'' => one(T::Transpose),
        'a'..='z' | 'A'..='Z' => Some(word(r, c)),
        '+' | '∔' | '⊕' | '⊞' => one(T::Add),
        '-' | '−' | '∸' => one(T::Sub),
        '*' | '×' | '⋅' | '⋄' | '⊡' | '∗' | '⋆' | '∘' | '∙' | '⊗' | '⊠' => one(T::Times),
        '/' | '÷' | '∕' => one(T::Divide),
        '(' | '[' | '{' => one(T::Open(c)),
        ')' => one(T::Close('(')),
        ']' => one(T::Close('[')),
        '}' => one(T::Close('{')),
        '|' => one(T::Bar),
        '&' => one(T::Amp),
        '_' => one(T::Under),
        ':' => one(T::Colon),
        ';' => one(T::Semi),
        ',' => one(T::Comma),
        '=' if r.starts_with("==") => Some((Some(T::Assign), 2)),
        '=' | '≡' | '≣' | '≟' | '≎' | '≏' | '≐'..='≗' => one(T::Assign),
        '~' if r.starts_with("~=") => Some((Some(T::Approx), 2)),
        '≈' | '≊' | '≋' | '≃' | '≅' => one(T::Approx),
        '<' if r.starts_with("<->") || r.starts_with("<=>") => Some((Some(T::Other), 3)),
        '<' if r.starts_with("<=") => Some((Some(T::Le), 2)),
        '<' | '≪' | '≺' | '⋖' => one(T::Lt),
        '≤' | '≦' | '≲' | '≾' => one(T::Le),
        '>' if r.starts_with(">=") => Some((Some(T::Ge), 2)),
        '>' | '≫' | '≻' | '⋗' => one(T::Gt),
        '≥' | '≧' | '≳' | '≿' => one(T::Ge),
        '!' if r.starts_with("!==") => Some((Some(T::Ne), 3)),
        '!' if r.starts_with("!=") => Some((Some(T::Ne), 2)),
        '!' => one(T::Bang),
        '≠' | '≁' | '≄' | '≇' | '≉' | '≢' => one(T::Ne),
        'ℕ' => one(T::Set('N')),
        'ℤ' => one(T::Set('Z')),
        'ℚ' => one(T::Set('Q')),
        'ℝ' => one(T::Set('R')),
        'ℂ' => one(T::Set('C')),
        'ℙ' => one(T::Set('P')),
        '∅' => one(T::Set('0')),
        '∪' => one(T::Union),
        '∩' => one(T::Inter),
        '∖' => one(T::Minus),
        '±' | '∓' => one(T::Pm),
        '⊇' => one(T::Superset),
        '⊆' => one(T::Subset),
        '∉' => one(T::NotIn),
        'Α'..='ω' | 'ϵ' | 'ϑ' | 'ϖ' | 'ϱ' | 'ϕ' | 'ℵ'..='ℸ' => one(T::Symbol),
        _ => None,
    }
}

/// Digits at the beginning of a text.
pub(crate) fn digits(r: &str) -> usize {
    r.bytes().take_while(u8::is_ascii_digit).count()
}

fn number(r: &str) -> (Option<T>, usize) {
    let mut n = digits(r);
    if r[n..].starts_with('.') {
        let frac = digits(&r[n + 1..]);
        if frac > 0 {
            n += 1 + frac;
        }
    }
    let rest = &r[n..];
    if let Some(exp) = rest.strip_prefix('E') {
        let sign = usize::from(exp.starts_with(['+', '-']));
        let d = digits(&exp[sign..]);
        if d > 0 {
            return (Some(T::Sci), n + 1 + sign + d);
        }
    }
    let space = usize::from(rest.starts_with([' ', '\t', '\r', '\n']));
    for sign in ["\\%", "%"] {
        if rest[space..].starts_with(sign) {
            return (Some(T::Percent), n + space + sign.len());
        }
    }
    (Some(T::Number), n)
}

fn word(r: &str, c: char) -> (Option<T>, usize) {
    let name = NAMES.iter().filter(|n| r.starts_with(**n)).map(|n| n.len()).max().unwrap_or(0);
    if c == 'd' {
        let after = r[1..].trim_start_matches([' ', '\t', '\r', '\n']);
        let skipped = r.len() - after.len();
        let n = match after.bytes().next() {
            Some(b) if b.is_ascii_alphabetic() => skipped + 1,
            Some(b'\\') => {
                let letters = after[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
                if letters > 0 { skipped + 1 + letters } else { 0 }
            }
            _ => 0,
        };
        if n > name {
            return (Some(T::Diff), n);
        }
    }
    if name > 0 {
        return (Some(T::Name), name);
    }
    let kind = match c {
        'e' => T::ExpE,
        'E' => T::BigE,
        _ => T::Letter,
    };
    (Some(kind), 1)
}

fn command(r: &str) -> Option<(Option<T>, usize)> {
    let b = r.as_bytes();
    let fixed = |t, n| Some((t, n));
    match b.get(1)? {
        b'\\' => return fixed(Some(T::Row), 2),
        b'(' => return fixed(Some(T::Open('v')), 2),
        b')' => return fixed(Some(T::Close('v')), 2),
        b'{' if r.starts_with("\\{\\}") => return fixed(Some(T::Set('0')), 4),
        b'{' => return fixed(Some(T::Open('s')), 2),
        b'}' => return fixed(Some(T::Close('s')), 2),
        b'|' => return fixed(Some(T::Norm), 2),
        b',' | b':' | b';' | b'!' => return fixed(None, 2),
        b'$' if r.starts_with("\\$\\infty") => return fixed(Some(T::Infinity), 8),
        b'$' => return fixed(None, 2),
        c if !c.is_ascii_alphabetic() => return None,
        _ => {}
    }
    for (start, t) in [("\\begin{", T::Begin), ("\\end{", T::End)] {
        let name = r.strip_prefix(start).and_then(|rest| MATRICES.iter().find(|name| rest.starts_with(**name)));
        if let Some(name) = name {
            return fixed(Some(t), start.len() + name.len());
        }
    }
    if let Some(rest) = r.strip_prefix("\\begin{array}{") {
        let n = rest.bytes().take_while(|b| matches!(b, b'c' | b'l' | b'r')).count();
        return rest[n..].starts_with('}').then_some((Some(T::Begin), 15 + n));
    }
    if r.starts_with("\\end{array}") {
        return fixed(Some(T::End), 11);
    }
    let letters = b[1..].iter().take_while(|c| c.is_ascii_alphabetic()).count().min(LONGEST_COMMAND);
    for n in (1..=letters).rev() {
        let name = &r[1..=n];
        if let Some(t) = accent(r, name, n + 1) {
            return Some(t);
        }
        if let Some((t, extra)) = named(r, name, n + 1) {
            return Some((t, n + 1 + extra));
        }
    }
    None
}

/// `\text{…}` and its kin: one token up to the first closing brace.
fn accent(r: &str, name: &str, n: usize) -> Option<(Option<T>, usize)> {
    match name {
        "acute" | "bar" | "overline" | "breve" | "check" | "widecheck" | "dot" | "ddot" | "grave" | "hat" | "tilde"
        | "widetilde" | "vec" | "overrightarrow" | "bm" | "boldsymbol" | "text" | "textit" | "textbf"
        | "textnormal" | "mathbb" | "mathbin" | "mathbf" | "mathcal" | "mathclap" | "mathfrak" | "mathinner"
        | "mathit" | "mathnormal" | "mathop" | "mathord" | "mathrel" | "mathring" | "mathrm" | "mathscr" | "mathsf"
        | "mathtt" | "mbox" => {}
        _ => return None,
    }
    if name == "mathbb" {
        let set = r[n..].strip_prefix('{')?;
        if let (Some(c @ ('N' | 'Z' | 'Q' | 'R' | 'C' | 'P')), Some('}')) = (set.chars().next(), set.chars().nth(1)) {
            return Some((Some(T::Set(c)), n + 3));
        }
    }
    let space = usize::from(r[n..].starts_with([' ', '\t', '\r', '\n']));
    let body = r[n + space..].strip_prefix('{')?;
    Some((Some(T::Accent), n + space + 1 + body.find('}')? + 1))
}

fn named(r: &str, name: &str, n: usize) -> Option<(Option<T>, usize)> {
    let t = match name {
        "thinspace" | "medspace" | "thickspace" | "quad" | "qquad" | "negthinspace" | "negmedspace"
        | "negthickspace" | "vrule" | "vcenter" | "vbox" | "vskip" | "vspace" | "hfil" => return Some((None, 0)),
        "over" | "div" => T::Divide,
        "times" | "cdot" => T::Times,
        "mod" => T::Mod,
        "lgroup" => T::Open('g'),
        "rgroup" => T::Close('g'),
        "lbrace" if r[n..].starts_with("\\rbrace") => return Some((Some(T::Set('0')), 7)),
        "lbrace" => T::Open('c'),
        "rbrace" => T::Close('c'),
        "lbrack" => T::Open('b'),
        "rbrack" => T::Close('b'),
        "lfloor" | "llcorner" => T::Open('f'),
        "rfloor" | "lrcorner" => T::Close('f'),
        "lceil" | "ulcorner" => T::Open('^'),
        "rceil" | "urcorner" => T::Close('^'),
        "langle" => T::Open('<'),
        "rangle" => T::Close('<'),
        "lvert" => T::LVert,
        "rvert" => T::RVert,
        "vert" => T::Vert,
        "phantom" => T::Phantom,
        "boxed" => T::Boxed,
        "lim" => T::Lim,
        "to" | "rightarrow" | "Rightarrow" | "longrightarrow" | "Longrightarrow" => T::To,
        "int" => T::Int,
        "sum" => T::Sum,
        "prod" => T::Prod,
        "log" | "ln" | "exp" | "sin" | "cos" | "tan" | "csc" | "sec" | "cot" | "arcsin" | "arccos" | "arctan"
        | "arccsc" | "arcsec" | "arccot" | "sinh" | "cosh" | "tanh" | "arsinh" | "arcosh" | "artanh" | "arcsinh"
        | "arccosh" | "arctanh" | "floor" | "ceil" | "det" => T::Func,
        "gcd" | "lcm" | "max" | "min" => T::Multi,
        "operatorname" => T::OperatorName,
        "sqrt" => T::Sqrt,
        "frac" | "dfrac" | "tfrac" | "cfrac" => T::Frac,
        "binom" | "tbinom" | "dbinom" => T::Binom,
        "choose" => T::Choose,
        "exponentialE" => T::ExpE,
        "in" => T::In,
        "notin" => T::NotIn,
        "equiv" => T::Assign,
        "approx" => T::Approx,
        "lt" => T::Lt,
        "le" | "leq" | "leqslant" => T::Le,
        "gt" => T::Gt,
        "ge" | "geq" | "geqslant" => T::Ge,
        "ne" | "neq" => T::Ne,
        "not" if r[n..].starts_with("\\equiv") => return Some((Some(T::Ne), 6)),
        "infty" => {
            let extra = if r[n..].starts_with("\\%") { 2 } else { usize::from(r[n..].starts_with('%')) };
            return Some((Some(T::Infinity), extra));
        }
        "partial" => T::Partial,
        "cup" => T::Union,
        "cap" => T::Inter,
        "setminus" => T::Minus,
        "pm" | "mp" => T::Pm,
        "emptyset" | "varnothing" => T::Set('0'),
        "supseteq" => T::Superset,
        "subseteq" => T::Subset,
        "xrightarrow" | "xRightarrow" | "leftrightarrow" | "Leftrightarrow" => T::Other,
        "alpha" | "beta" | "gamma" | "Gamma" | "delta" | "Delta" | "epsilon" | "varepsilon" | "zeta" | "eta"
        | "theta" | "Theta" | "vartheta" | "iota" | "kappa" | "lambda" | "Lambda" | "mu" | "nu" | "xi" | "Xi"
        | "omicron" | "pi" | "Pi" | "varpi" | "rho" | "varrho" | "sigma" | "Sigma" | "varsigma" | "tau" | "upsilon"
        | "Upsilon" | "phi" | "Phi" | "varphi" | "chi" | "psi" | "Psi" | "omega" | "Omega" | "Bbbk" | "wp"
        | "nabla" | "bigstar" | "angle" | "nexists" | "diagdown" | "measuredangle" | "eth" | "diagup"
        | "sphericalangle" | "clubsuit" | "Diamond" | "complement" | "diamondsuit" | "imath" | "Finv"
        | "triangledown" | "heartsuit" | "jmath" | "Game" | "triangle" | "spadesuit" | "ell" | "hbar"
        | "vartriangle" | "hslash" | "blacklozenge" | "lozenge" | "blacksquare" | "mho" | "blacktriangle" | "sharp"
        | "prime" | "Im" | "flat" | "square" | "backprime" | "Re" | "natural" | "surd" | "circledS" => T::Symbol,
        _ => return None,
    };
    Some((Some(t), 0))
}
