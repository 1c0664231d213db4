//! Answers: where a text states one, and whether it is the gold answer. Plain Rust: knows nothing of tensors.
//!
//! A gold answer is graded by one of three [`Grader`]s: as mathematics, as words, or as the letter of a choice. The choice depends on
//! the gold answer itself unless a caller names it ([`Grading`]). One reader serves both sides, and a text that repeats the gold
//! answer is right under each of them.
//!
//! ```text
//! text → scan (where is the answer?) → normalize (plainer LaTeX) → lexer → parser, arith → Expr
//! two Exprs → compare (kinds: relations, sets, matrices, words) → sets, scalar → exact | modular | numeric
//! ```
//! The rules of mathematics follow math-verify 0.9.0 (<https://github.com/huggingface/Math-Verify>) with its default settings, so that
//! accuracies compare with those that others report; where we differ on purpose is listed in `tests/grade.rs`.
//! Every verdict names the rule that decided it. Any input is accepted: work, nesting and sizes are bounded.

#![deny(unsafe_code)]

mod arith;
mod around;
mod boxed;
mod compare;
mod exact;
mod expr;
mod fractions;
mod kind;
mod lexer;
mod math;
mod matrix;
mod modular;
mod normalize;
mod numeric;
mod parser;
mod plain;
mod real;
mod repair;
mod scalar;
mod scan;
mod series;
mod sets;
mod symbols;
mod tags;
mod units;
mod words;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Whether two answers are equal, and which rule decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GraderVerdict {
    pub equal: bool,
    pub rule: Rule,
}

/// The rule that decided a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// One side states no answer.
    NoAnswer,
    /// The two texts are the same.
    Text,
    /// The letters of a choice.
    Letter,
    /// Exact rational numbers.
    Exact,
    /// Decimals, rounded to six places.
    Rounded,
    /// The same expression as written.
    Structure,
    /// The same rational function, by evaluation modulo a prime.
    Identity,
    /// Evaluation in high precision.
    Numeric,
    /// Words and single symbols.
    Symbol,
    Tuple,
    Set,
    Interval,
    Matrix,
    /// Equations and inequalities.
    Relation,
    /// The two sides are of different kinds.
    Kind,
    /// Equal except for what math-verify ignores: a unit, a base, the order of letters, text next to a number or a box.
    Strict,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How a gold answer and a response are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grader {
    /// Numbers, formulas, sets, intervals, equations: what has the same value is equal.
    Math,
    /// Sentences, names, yes and no, dates: the same words, whatever their case, styles and closing marks.
    Exact,
    /// A letter: `C`, `(C)`, `C.`, "option C".
    Choice,
}

impl fmt::Display for Grader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Grader {
    pub const ALL: [Self; 3] = [Self::Math, Self::Exact, Self::Choice];

    /// As recipes and `--grader` have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Math => "math",
            Self::Exact => "exact",
            Self::Choice => "choice",
        }
    }

    /// The grader for a gold answer: letters are choices, words are compared exactly, all else is mathematics.
    pub fn detect(gold: &str) -> Grader {
        kind::detect(&tags::answering(gold))
    }

    /// Whether the grader can read this gold answer. One that it cannot read is reached by no response but the same text.
    pub fn reads(self, gold: &str) -> bool {
        let gold = &*tags::answering(gold);
        match self {
            Grader::Math => math::gold_answer(gold, false).value.is_some(),
            Grader::Exact => !gold.trim().is_empty(),
            Grader::Choice => words::choice(&kind::stated(gold)).is_some(),
        }
    }

    fn grade(self, gold: &str, response: &str, strict: bool) -> GraderVerdict {
        let verdict = match self {
            Grader::Math => math::grade(gold, response, strict),
            Grader::Exact => {
                GraderVerdict { equal: words::states(response, &kind::stated(gold), strict), rule: Rule::Text }
            }
            Grader::Choice => match (words::choice(&kind::stated(gold)), words::choice(response)) {
                (Some(gold), Some(said)) => GraderVerdict { equal: gold == said, rule: Rule::Letter },
                _ => GraderVerdict { equal: false, rule: Rule::NoAnswer },
            },
        };
        if !verdict.equal && words::repeats(response, &kind::stated(gold), verdict.rule == Rule::Strict) {
            return GraderVerdict { equal: true, rule: Rule::Text };
        }
        verdict
    }
}

impl FromStr for Grader {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let found = Grader::ALL.into_iter().find(|grader| grader.name() == name);
        found.ok_or_else(|| format!("no grader `{name}`: name math, exact or choice"))
    }
}

/// The grading of a data set: by a named grader, or by the one that fits each gold answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grading {
    pub named: Option<Grader>,
    /// For rewards: no part of the answer is ignored. The default accepts what math-verify accepts, so that accuracies
    /// compare with those that others report; it ignores units, bases of numbers, what it cannot parse, text next to a number or a
    /// box, and places beyond the sixth.
    pub strict: bool,
}

impl Grading {
    /// Grades every gold answer with this grader.
    pub fn by(grader: Grader) -> Self {
        Grading { named: Some(grader), ..Grading::default() }
    }

    /// The grader of this gold answer.
    pub fn grader(self, gold: &str) -> Grader {
        self.named.unwrap_or_else(|| Grader::detect(&fractions::improper(gold)))
    }

    /// Whether a model's `response` reaches `gold`. The gold answer may be bare (`\frac{1}{2}`), between delimiters, or a solution that
    /// ends in `#### 42` or a box. Thinking (`<think>…</think>`) states nothing; the inside of `<answer>…</answer>` is the answer.
    pub fn grade(self, gold: &str, response: &str) -> GraderVerdict {
        let (gold, response) = (tags::answering(gold), tags::answering(response));
        let (gold, response) = (&*fractions::improper(&gold), &*fractions::improper(&response));
        let verdict = self.grader(gold).grade(gold, response, self.strict);
        let guessed = self.named.is_none() && Grader::detect(gold) == Grader::Choice;
        if guessed && words::other_letter(gold, response) {
            return GraderVerdict { equal: false, rule: Rule::Letter };
        }
        // A single letter may be a variable: "2x − x" is x.
        let guessed = guessed && verdict.rule == Rule::NoAnswer;
        if guessed { Grader::Math.grade(gold, response, self.strict) } else { verdict }
    }

    /// The final answer of a response to the problem with this gold answer, as it is compared.
    pub fn answer(self, gold: &str, response: &str) -> Option<String> {
        let response = tags::answering(response);
        let response = &*fractions::improper(&response);
        match self.grader(gold) {
            Grader::Math => extract(response),
            Grader::Exact => words::stated(response).shown(),
            Grader::Choice => {
                words::choice(response).map_or_else(|| words::stated(response).shown(), |c| Some(c.into()))
            }
        }
    }

    /// Counts gold answers per grader: `choice 198, math 2`.
    pub fn counted<'a>(self, golds: impl IntoIterator<Item = &'a str>) -> GraderCounts {
        let mut counted = GraderCounts::default();
        for gold in golds {
            let grader = self.grader(gold);
            *counted.graders.entry(grader).or_default() += 1;
            counted.all += 1;
            if !grader.reads(&fractions::improper(gold)) {
                counted.unread.get_or_insert_with(|| gold.to_owned());
                counted.unreadable += 1;
            }
        }
        counted
    }
}

/// Gold answers by grader, and those that theirs cannot read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraderCounts {
    pub graders: BTreeMap<Grader, usize>,
    pub all: usize,
    pub unreadable: usize,
    /// The first that cannot be read.
    pub unread: Option<String>,
}

/// The share of gold answers that may be unreadable.
const MOST_UNREADABLE: f64 = 0.5;

impl GraderCounts {
    /// Adds the counts of another part.
    pub fn add(&mut self, other: GraderCounts) {
        for (grader, n) in other.graders {
            *self.graders.entry(grader).or_default() += n;
        }
        self.all += other.all;
        self.unreadable += other.unreadable;
        self.unread = self.unread.take().or(other.unread);
    }

    /// A warning about gold answers that cannot be parsed, if any.
    ///
    /// # Errors
    /// More than half of them.
    pub fn check(&self, of: &str) -> Result<Option<String>> {
        let Some(first) = &self.unread else { return Ok(None) };
        let shown: String = first.chars().take(60).collect();
        let said = format!(
            "{of}: {} of {} gold answers cannot be read ({self}), the first is {shown:?}",
            self.unreadable, self.all
        );
        ensure!(
            self.unreadable as f64 <= MOST_UNREADABLE * self.all as f64,
            "{said}: no response could be right; correct the gold answers, or name another grader (--grader math, exact or choice)"
        );
        Ok(Some(format!("warning: {said}: only a response that repeats them is right")))
    }
}

impl fmt::Display for GraderCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ([(grader, _)], true) = (&self.graders.iter().collect::<Vec<_>>()[..], self.graders.len() == 1) {
            return write!(f, "{grader}");
        }
        let parts: Vec<String> = self.graders.iter().map(|(grader, n)| format!("{grader} {n}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// The final answer of a response, read as mathematics: a closing `#### …` line, the last box, what "the answer is" states, else the
/// last formula or number; without one, what it states in words. Boxes of one line that fewer than ten characters, "and", "or"
/// or a comma separate are one answer, as in math-verify.
pub fn extract(text: &str) -> Option<String> {
    let a = math::response_answer(&tags::answering(text), false);
    a.source.or(a.text)
}

/// Whether a model's `response` reaches `gold`, by the grader that fits the gold answer ([`Grading::grade`]).
pub fn grade(gold: &str, response: &str) -> GraderVerdict {
    Grading::default().grade(gold, response)
}
