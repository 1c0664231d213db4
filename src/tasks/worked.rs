//! Solutions of a file whose steps are calculations (`16-3-4`, `s1*2`): predicts the answer if a step had another value. Knows numbers
//! and expressions, not their place in a text.
//!
//! A number in an expression is taken as an earlier step's result if it equals exactly one of them and is neither in the question nor
//! a common constant (days of a week, …); if it is ambiguous, nothing is predicted. `s1` is the first step, never ambiguous.

use std::collections::BTreeSet;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive, Zero};

use super::{Fact, StepValue};

/// A token of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StepOperand {
    Number(BigRational),
    /// An earlier step, from 0.
    Step(usize),
}

/// Longest expression that is read, in bytes: it bounds the parser's recursion.
const LONGEST: usize = 256;

/// Evaluates `+ - * / ( )` over numbers (`1,500`, `.5`, `20%`, `$3`) and steps (`s1`). `operand` returns the value of each in the
/// order of the text. `None` for another text, for a division by 0, and if `operand` returns `None`.
pub(crate) fn evaluate(text: &str, operand: &mut dyn FnMut(StepOperand) -> Option<BigRational>) -> Option<BigRational> {
    let bytes = text.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b'$');
    let plain = || text.replace(['×', '·'], "*").replace('÷', "/");
    let text: Vec<u8> = if text.is_ascii() { bytes.collect() } else { plain().replace([' ', '$'], "").into_bytes() };
    if text.len() > LONGEST {
        return None;
    }
    let mut parser = ExpressionParser { text: &text, at: 0, operand };
    let value = parser.sum()?;
    (parser.at == text.len()).then_some(value)
}

struct ExpressionParser<'a> {
    text: &'a [u8],
    at: usize,
    operand: &'a mut dyn FnMut(StepOperand) -> Option<BigRational>,
}

impl ExpressionParser<'_> {
    fn next(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn sum(&mut self) -> Option<BigRational> {
        let mut value = self.product()?;
        while let Some(op @ (b'+' | b'-')) = self.next() {
            self.at += 1;
            let right = self.product()?;
            value = if op == b'+' { value + right } else { value - right };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<BigRational> {
        let mut value = self.factor()?;
        loop {
            match self.next() {
                Some(b'*' | b'x') => {
                    self.at += 1;
                    value *= self.factor()?;
                }
                Some(b'/') => {
                    self.at += 1;
                    let right = self.factor()?;
                    value = (!right.is_zero()).then(|| value / right)?;
                }
                Some(b'(') => value *= self.factor()?,
                _ => return Some(value),
            }
        }
    }

    fn factor(&mut self) -> Option<BigRational> {
        let value = match self.next()? {
            b'-' => {
                self.at += 1;
                return Some(-self.factor()?);
            }
            b'(' => {
                self.at += 1;
                let value = self.sum()?;
                (self.next()? == b')').then_some(())?;
                self.at += 1;
                value
            }
            b's' => {
                self.at += 1;
                let number = self.while_of(|b| b.is_ascii_digit());
                let step = number.parse::<usize>().ok()?.checked_sub(1)?;
                (self.operand)(StepOperand::Step(step))?
            }
            _ => {
                let number = number(&self.while_of(|b| b.is_ascii_digit() || matches!(b, b'.' | b',')))?;
                (self.operand)(StepOperand::Number(number))?
            }
        };
        if self.next() == Some(b'%') {
            self.at += 1;
            return Some(value / BigRational::from(BigInt::from(100)));
        }
        Some(value)
    }

    fn while_of(&mut self, is: impl Fn(u8) -> bool) -> String {
        let from = self.at;
        while self.next().is_some_and(&is) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.text[from..self.at]).into_owned()
    }
}

/// A number as solutions write it: `12`, `1,500`, `4.50`, `.5`, `-3`.
pub(crate) fn number(text: &str) -> Option<BigRational> {
    match text.strip_prefix('-') {
        Some(positive) => Some(-unsigned(positive)?),
        None => unsigned(text),
    }
}

fn unsigned(text: &str) -> Option<BigRational> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let groups: Vec<&str> = whole.split(',').collect();
    let grouped = groups.len() == 1 || !groups[0].is_empty() && groups[1..].iter().all(|group| group.len() == 3);
    let digits: String = groups.concat() + fraction;
    if !grouped || digits.is_empty() || digits.len() > LONGEST || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(BigRational::new(digits.parse().ok()?, BigInt::from(10).pow(fraction.len() as u32)))
}

/// Common constants, which need not be a step's result: units, calendars, twice and half.
const UNITS: [i64; 11] = [1, 2, 7, 12, 24, 30, 52, 60, 100, 365, 1000];
const WORDS: [&str; 13] =
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/// The numbers in a text, as digits or as words up to twelve.
fn stated(text: &str) -> BTreeSet<BigRational> {
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
    let digits = text.split(|c: char| !is_number(c)).filter_map(|part| number(part.trim_matches(['.', ','])));
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_alphabetic()).filter_map(|word| WORDS.iter().position(|w| *w == word));
    digits.chain(words.map(|n| BigRational::from(BigInt::from(n)))).collect()
}

/// One step.
struct Calculation {
    /// `None` if the file has no expression, or one with another value: its operands are then unknown.
    expression: Option<String>,
    value: BigRational,
    /// For each operand, the earlier steps whose result it may be, and whether that is certain.
    reads: Vec<(Vec<usize>, bool)>,
}

/// The calculations of a solution, one of which has the answer as its value.
pub(crate) struct WorkedSolution {
    steps: Vec<Calculation>,
    /// The step whose value is the answer.
    result: usize,
    answer: String,
}

impl WorkedSolution {
    /// `None` if the steps have no expressions, or no value is the answer.
    pub fn new(question: &str, steps: &[StepValue], answer: &str) -> Option<Self> {
        let mut given = stated(question);
        given.extend(UNITS.map(|n| BigRational::from(BigInt::from(n))));
        let mut out: Vec<Calculation> = vec![];
        for step in steps {
            let value = match &step.value {
                Fact::Number(value) => Some(BigRational::from(BigInt::from(*value))),
                Fact::Text(text) => number(text),
                Fact::Set(_) => None,
            }?;
            let mut reads = vec![];
            let made = step.expression.as_ref().and_then(|expression| {
                evaluate(expression, &mut |operand| match operand {
                    StepOperand::Step(k) => {
                        reads.push((vec![k], true));
                        out.get(k).map(|earlier| earlier.value.clone())
                    }
                    StepOperand::Number(n) => {
                        let same: Vec<usize> = (0..out.len()).filter(|&k| out[k].value == n).collect();
                        let sure = same.len() == 1 && !given.contains(&n);
                        reads.push((same, sure));
                        Some(n)
                    }
                })
            });
            let expression = step.expression.clone().filter(|_| made.as_ref() == Some(&value));
            out.push(Calculation { expression, value, reads });
        }
        let gold = number(answer.trim().trim_start_matches('$'))?;
        let result = out.iter().rposition(|step| step.value == gold)?;
        out[result].expression.as_ref()?;
        Some(Self { steps: out, result, answer: answer.to_owned() })
    }

    /// The answer if step `step` (from 0) had the value `value`. `None` if it is ambiguous whether a later step reads it, or if the
    /// answer would not be a whole number.
    pub fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        let mut changed: Vec<Option<BigRational>> = vec![None; self.steps.len()];
        *changed.get_mut(step)? = Some(BigRational::from(BigInt::from(value)));
        for j in step + 1..=self.result {
            let Calculation { expression, reads, .. } = &self.steps[j];
            let expression = expression.as_ref()?;
            let touched = |(from, _): &&(Vec<usize>, bool)| from.iter().any(|&k| changed[k].is_some());
            if reads.iter().filter(touched).any(|(_, sure)| !sure) {
                return None;
            }
            if reads.iter().any(|read| touched(&read)) {
                changed[j] = Some(self.made(j, expression, &|k| changed[k].clone())?);
            }
        }
        match &changed[self.result] {
            Some(now) if *now != self.steps[self.result].value => {
                let whole = now.is_integer().then(|| now.to_integer().to_string())?;
                Some(if self.answer.contains(',') { grouped(&whole) } else { whole })
            }
            _ => Some(self.answer.clone()),
        }
    }

    /// The value of a step's expression if `other` replaces values of steps.
    fn made(&self, step: usize, expression: &str, other: &dyn Fn(usize) -> Option<BigRational>) -> Option<BigRational> {
        let mut reads = self.steps[step].reads.iter();
        evaluate(expression, &mut |operand| {
            let (from, sure) = reads.next()?;
            let replaced = from.first().filter(|_| *sure).and_then(|&k| other(k));
            replaced.or(match operand {
                StepOperand::Number(n) => Some(n),
                StepOperand::Step(k) => Some(self.steps.get(k)?.value.clone()),
            })
        })
    }

    /// The earlier step whose result a step reads; `None` if it reads none or several, or if that is ambiguous.
    fn reads(&self, step: usize) -> Option<usize> {
        let reads = &self.steps.get(step)?.reads;
        let read: BTreeSet<usize> = reads.iter().flat_map(|(from, _)| from.clone()).collect();
        let sure = reads.iter().all(|(from, sure)| *sure || from.is_empty());
        read.first().copied().filter(|_| sure && read.len() == 1)
    }

    /// The earlier result that step `step` reads.
    pub fn operand(&self, step: usize) -> Option<i64> {
        whole(&self.steps[self.reads(step)?].value)
    }

    /// The value of step `step` if that result were `operand`.
    pub fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        let read = self.reads(step)?;
        let expression = self.steps[step].expression.as_ref()?;
        let other = BigRational::from(BigInt::from(operand));
        whole(&self.made(step, expression, &|k| (k == read).then(|| other.clone()))?)
    }
}

fn whole(value: &BigRational) -> Option<i64> {
    if value.denom().is_one() { value.numer().to_i64() } else { None }
}

/// `1500` as `1,500`.
fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = sign.to_owned();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Option<String> {
        evaluate(text, &mut |operand| match operand {
            StepOperand::Number(n) => Some(n),
            StepOperand::Step(_) => None,
        })
        .map(|value| value.to_string())
    }

    fn step(expression: &str, value: i64) -> StepValue {
        StepValue {
            value: Fact::Number(value),
            clause: String::new(),
            words: 0..1,
            value_words: 0..1,
            expression: Some(expression.to_owned()),
        }
    }

    #[test]
    fn expressions_are_those_of_solutions() {
        for (text, value) in [
            ("16-3-4", "9"),
            ("1,500 * 2", "3000"),
            ("$80,000+$50,000", "130000"),
            ("20%*50", "10"),
            ("3/4*120000", "90000"),
            (".5x(2+-4)", "-1"),
            ("2(3+1)", "8"),
            ("7 × 3 ÷ 2", "21/2"),
        ] {
            assert_eq!(plain(text).as_deref(), Some(value), "{text}");
        }
        for wrong in ["", "3 apples", "1/0", "(2", "2)", "1,50", "s1", "x", "2**3", "3..4", &"(".repeat(300)] {
            assert_eq!(plain(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_answer_follows_from_a_steps_value_where_it_is_sure_to() {
        // 9 eggs are left of 16; each costs 5.
        let steps = [step("16-3-4", 9), step("9*5", 45)];
        let worked =
            WorkedSolution::new("16 eggs, three eaten, 4 baked, 5 dollars each", &steps, "45").expect("arithmetic");
        assert_eq!(worked.answer_if(0, 10).as_deref(), Some("50"));
        assert_eq!((worked.answer_if(0, 9).as_deref(), worked.answer_if(1, 8).as_deref()), (Some("45"), Some("8")));
        assert_eq!((worked.operand(0), worked.operand(1), worked.apply(1, 7)), (None, Some(9), Some(35)));
        assert_eq!(worked.answer_if(2, 1), None);
        // The question has the number too: it may be either.
        let doubtful = WorkedSolution::new("9 shops and 16 eggs", &steps, "45").expect("arithmetic");
        assert_eq!((doubtful.answer_if(0, 10), doubtful.operand(1)), (None, None));
        let named = WorkedSolution::new("9 shops and 16 eggs", &[step("16-3-4", 9), step("s1*5", 45)], "45")
            .expect("arithmetic");
        assert_eq!(named.answer_if(0, 10).as_deref(), Some("50"));
        // A half is not a prediction, and thousands are written as the answer has them.
        let thousands =
            WorkedSolution::new("", &[step("400+500", 900), step("900*5/3", 1500)], "1,500").expect("arithmetic");
        assert_eq!((thousands.answer_if(0, 901), thousands.answer_if(0, 1200).as_deref()), (None, Some("2,000")));
        // Values below zero.
        let debt = [step("3-8", -5), step("2*s1", -10)];
        let debt = WorkedSolution::new("", &debt, "-10").expect("arithmetic");
        assert_eq!(debt.answer_if(0, -6).as_deref(), Some("-12"));
        // A step whose expression does not give its value says nothing about earlier steps.
        let wrong = [step("16-3-4", 9), step("9*5", 46), step("46+1", 47)];
        let wrong = WorkedSolution::new("", &wrong, "47").expect("arithmetic");
        assert_eq!((wrong.answer_if(0, 10), wrong.answer_if(1, 3).as_deref()), (None, Some("4")));
        assert!(
            WorkedSolution::new("", &steps, "44").is_none()
                && WorkedSolution::new("", &[step("9*5", 46)], "46").is_none()
        );
    }
}
