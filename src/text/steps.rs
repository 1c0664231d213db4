//! Known values in a file's solutions: `steps` next to question and answer, or GSM8K's marks `<<16-3-4=9>>`. Finds each in the solution and
//! checks it. Knows texts, not files.

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::problems::word_ranges;
use super::sources::cut;
use crate::tasks::{Fact, StepOperand, StepValue, evaluate, number};

/// A step as a file writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileStep {
    /// The calculation, over numbers and earlier steps (`s1`). Without it the value is known, but no answer is predicted from it.
    #[serde(default)]
    expression: Option<String>,
    value: Value,
    #[serde(default)]
    span: Option<StepSpan>,
}

/// Where the solution states a step: its text, or a range of characters.
#[derive(Deserialize)]
#[serde(untagged)]
enum StepSpan {
    Text(String),
    Characters([usize; 2]),
}

/// Finds steps in the solution, each after the previous one.
///
/// # Errors
/// A step that is not in the solution; a value that differs from its expression's.
pub(super) fn find_steps(written: Vec<FileStep>, solution: &str) -> Result<Vec<StepValue>> {
    ensure!(
        written.is_empty() || !solution.trim().is_empty(),
        "there is no solution that could contain them: give one (its own key, or the answer before ####)"
    );
    let (mut out, mut from) = (vec![], 0);
    let mut values = vec![];
    for (index, FileStep { expression, value, span }) in written.into_iter().enumerate() {
        let nth = index + 1;
        let (shown, value) = parse_value(&value, nth)?;
        if let (Some(expression), Some(value)) = (&expression, number(&shown)) {
            let made = evaluate(expression, &mut |operand| match operand {
                StepOperand::Number(n) => Some(n),
                StepOperand::Step(k) => values.get(k).cloned().flatten(),
            });
            match made {
                None => bail!(
                    "step {nth}: `{}` is not supported: use + - * / and brackets over numbers and earlier steps (s1 is the first)",
                    cut(expression)
                ),
                Some(made) => {
                    ensure!(made == value, "step {nth}: `{}` is {made}, but its value is {shown}", cut(expression))
                }
            }
        }
        values.push(number(&shown));
        let place = match span {
            Some(span) => spanned(&span, solution, from, nth)?,
            None => guessed(expression.as_deref(), &shown, solution, from, nth)?,
        };
        let Some(said) = says(&solution[place.clone()], &shown).pop() else {
            bail!("step {nth}: its span `{}` does not contain its value {shown}", cut(&solution[place]));
        };
        let said = place.start + said.start..place.start + said.end;
        from = place.end;
        out.push(step(solution, value, place, said, expression.unwrap_or_default()));
    }
    Ok(out)
}

/// A value as text, and as a known fact.
fn parse_value(value: &Value, nth: usize) -> Result<(String, Fact)> {
    Ok(match value {
        Value::Number(n) => {
            let shown = n.to_string();
            let whole =
                n.as_i64().or_else(|| n.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 1e15).map(|x| x as i64));
            whole.map_or_else(|| (shown.clone(), Fact::Text(shown.clone())), |n| (n.to_string(), Fact::Number(n)))
        }
        Value::String(text) if !text.trim().is_empty() => {
            let plain = number(text).filter(num_rational::BigRational::is_integer);
            let whole = plain.and_then(|n| i64::try_from(n.to_integer()).ok());
            (text.clone(), whole.map_or_else(|| Fact::Text(text.clone()), Fact::Number))
        }
        other => bail!("step {nth}: expected a value that is a number or a text, found {}", super::record::kind(other)),
    })
}

/// Byte range of a span in the solution, from `from` on.
fn spanned(span: &StepSpan, solution: &str, from: usize, nth: usize) -> Result<Range<usize>> {
    match span {
        StepSpan::Text(text) => {
            let at = if text.trim().is_empty() { None } else { solution[from..].find(text.as_str()) };
            let Some(at) = at else {
                let earlier = solution[..from].contains(text.as_str());
                let but =
                    if earlier { ": it is before the step above it; list steps in the order of the text" } else { "" };
                bail!("step {nth}: its span `{}` is not in the solution{but}", cut(text));
            };
            Ok(from + at..from + at + text.len())
        }
        StepSpan::Characters([start, end]) => {
            let byte = |n: usize| solution.char_indices().map(|(at, _)| at).chain([solution.len()]).nth(n);
            match (byte(*start), byte(*end)) {
                (Some(a), Some(b)) if a < b => {
                    ensure!(
                        a >= from,
                        "step {nth}: its span [{start}, {end}] begins before the end of the step above it"
                    );
                    Ok(a..b)
                }
                _ => bail!(
                    "step {nth}: its span [{start}, {end}] is outside the solution of {} characters",
                    solution.chars().count()
                ),
            }
        }
    }
}

/// Without a span: from the expression, ignoring spaces, to the value after it; else the value alone.
fn guessed(expression: Option<&str>, value: &str, solution: &str, from: usize, nth: usize) -> Result<Range<usize>> {
    let written = expression.and_then(|expression| loosely(&solution[from..], expression));
    let (start, behind) = written.map_or((None, from), |at| (Some(from + at.start), from + at.end));
    let Some(said) = says(&solution[behind..], value).into_iter().next() else {
        bail!("step {nth}: the solution does not contain its value {value} after the step above it: name its span");
    };
    Ok(start.unwrap_or(behind + said.start)..behind + said.end)
}

/// Ranges of a text, ignoring blanks, commas and dollar signs.
fn loosely(text: &str, wanted: &str) -> Option<Range<usize>> {
    let counts = |c: &char| !c.is_whitespace() && !matches!(c, '$' | ',');
    let wanted: Vec<char> = wanted.chars().filter(counts).collect();
    let letters: Vec<(usize, char)> = text.char_indices().filter(|(_, c)| counts(c)).collect();
    let at = letters.windows(wanted.len().max(1)).position(|window| window.iter().map(|(_, c)| c).eq(&wanted))?;
    let (last, c) = letters[at + wanted.len() - 1];
    Some(letters[at].0..last + c.len_utf8())
}

/// Ranges of numbers, without a sentence's full stop.
fn numbers(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let is = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
    text.split(move |c: char| !is(c)).filter_map(|part| {
        let kept = part.trim_start_matches(',').trim_end_matches(['.', ',']);
        let start = kept.as_ptr() as usize - text.as_ptr() as usize;
        (!kept.is_empty()).then(|| start..start + kept.len())
    })
}

fn says(text: &str, value: &str) -> Vec<Range<usize>> {
    let positive = value.strip_prefix('-').unwrap_or(value);
    match number(positive) {
        Some(value) => numbers(text).filter(|at| number(&text[at.clone()]).as_ref() == Some(&value)).collect(),
        None => text.match_indices(value).map(|(at, found)| at..at + found.len()).collect(),
    }
}

fn step(text: &str, value: Fact, place: Range<usize>, said: Range<usize>, expression: String) -> StepValue {
    let words = |bytes: &Range<usize>| {
        let touched = word_ranges(text).enumerate().filter(|(_, w)| w.start < bytes.end && w.end > bytes.start);
        let touched: Vec<usize> = touched.map(|(index, _)| index).collect();
        touched.first().copied().unwrap_or(0)..touched.last().map_or(1, |last| last + 1)
    };
    let clause = text.get(place.clone()).unwrap_or_default().trim().to_owned();
    StepValue { value, clause, words: words(&place), value_words: words(&said), expression: Some(expression) }
}

/// GSM8K's solution as training text, with (`keep`) or without its marks, and the steps of the marks. If the text after a mark is not the
/// mark's value, the step has no known value.
pub(super) fn marked(text: &str, keep: bool) -> (String, Vec<StepValue>) {
    let mut shown = String::with_capacity(text.len());
    // For each mark: its content and its position.
    let (mut marks, mut rest) = (vec![], text);
    while let Some((before, after)) = rest.split_once("<<") {
        let Some((mark, behind)) = after.split_once(">>") else { break };
        shown.push_str(before);
        let at = shown.len();
        if keep {
            shown.extend(["<<", mark, ">>"]);
        }
        marks.push((mark, at, shown.len()));
        rest = behind;
    }
    shown.push_str(rest);
    let mut from = 0;
    let steps = marks.into_iter().map(|(mark, at, behind)| {
        let (expression, value) = mark.rsplit_once('=').unwrap_or(("", mark));
        let said = numbers(&shown[behind..])
            .next()
            .map(|found| behind + found.start..behind + found.end)
            .filter(|found| shown[behind..found.start].chars().all(|c| c.is_whitespace() || c == '$'))
            .filter(|found| number(value).is_some_and(|value| number(&shown[found.clone()]) == Some(value)));
        let place = match &said {
            Some(said) => shown.get(from..at).and_then(written_before).map_or(at, |start| from + start)..said.end,
            // Fallback: the next word.
            None => word_ranges(&shown).find(|word| word.end > at).unwrap_or(at..shown.len()),
        };
        from = place.end;
        let whole = said.as_ref().and_then(|_| i64::try_from(number(value)?.to_integer()).ok());
        let exact = number(value).is_some_and(|value| value.is_integer());
        let known = whole.filter(|_| exact).map_or_else(|| Fact::Text(value.to_owned()), Fact::Number);
        let expression = if said.is_some() { expression.to_owned() } else { String::new() };
        step(&shown, known, place.clone(), said.unwrap_or(place), expression)
    });
    let steps = steps.collect();
    (shown, steps)
}

/// Start of the calculation at the end of a text: `16 - 3 - 4 = $`.
fn written_before(text: &str) -> Option<usize> {
    let is = |c: char| c.is_ascii_digit() || " .,+-*/x×÷()=$%".contains(c);
    let run = text.len() - text.chars().rev().take_while(|c| is(*c)).map(char::len_utf8).sum::<usize>();
    let begins = |c: char| c.is_ascii_digit() || matches!(c, '(' | '$' | '.');
    // The full stop of the previous sentence is not part of it.
    let (start, _) = text[run..].char_indices().find(|(at, c)| {
        begins(*c) && (*c != '.' || text[run + at + 1..].starts_with(|next: char| next.is_ascii_digit()))
    })?;
    let start = run + start;
    text[start..].contains('=').then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps_in(text: &str, steps: &[StepValue]) -> Vec<(String, String)> {
        let words: Vec<&str> = text.split_whitespace().collect();
        steps.iter().map(|s| (words[s.words.clone()].join(" "), words[s.value_words.clone()].join(" "))).collect()
    }

    #[test]
    fn marks_say_what_the_text_before_them_makes() {
        let text = "She has 3. She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nThat is 9*2=$<<9*2=18>>18. Half: <<18/4=4.5>>4.5, \
                    <<1+1=2>>three";
        let (shown, steps) = marked(text, false);
        assert_eq!(shown, "She has 3. She sells 16 - 3 - 4 = 9 eggs.\nThat is 9*2=$18. Half: 4.5, three");
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let expected =
            [pair("16 - 3 - 4 = 9", "9"), pair("9*2=$18.", "9*2=$18."), pair("4.5,", "4.5,"), pair("three", "three")];
        assert_eq!(steps_in(&shown, &steps), expected);
        let values: Vec<Option<i64>> = steps.iter().map(|s| s.value.number()).collect();
        assert_eq!(values, [Some(9), Some(18), None, None]);
        assert_eq!((steps[0].expression.as_deref(), steps[3].expression.as_deref()), (Some("16-3-4"), Some("")));
        let (kept, steps) = marked(text, true);
        assert_eq!((kept.as_str(), steps[0].value.number()), (text, Some(9)));
        assert_eq!(steps_in(&kept, &steps)[0], pair("16 - 3 - 4 = <<16-3-4=9>>9", "<<16-3-4=9>>9"));
    }

    fn read(steps: &str, solution: &str) -> Result<Vec<StepValue>> {
        find_steps(serde_json::from_str(steps).expect("steps"), solution)
    }

    #[test]
    fn steps_are_found_where_the_solution_says_them() {
        let solution = "First 3 + 4 = 7, then twice that is 14.\nSo £14.";
        let steps =
            r#"[{"expression": "3+4", "value": 7}, {"expression": "2*s1", "value": "14", "span": "twice that is 14"}]"#;
        let steps = read(steps, solution).expect("steps");
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(steps_in(solution, &steps), [pair("3 + 4 = 7,", "7,"), pair("twice that is 14.", "14.")]);
        assert_eq!(steps[1].value, Fact::Number(14));
        let debt = "First 3 - 8 = -5, then -5 + 8 = 3.";
        let below =
            read(r#"[{"expression": "3-8", "value": -5}, {"expression": "s1+8", "value": 3}]"#, debt).expect("steps");
        assert_eq!(steps_in(debt, &below), [pair("3 - 8 = -5,", "-5,"), pair("3.", "3.")]);
        let counted = read(r#"[{"value": 7.0, "span": [6, 15]}, {"value": "14"}]"#, solution).expect("steps");
        assert_eq!(steps_in(solution, &counted), [pair("3 + 4 = 7,", "7,"), pair("14.", "14.")]);
    }

    #[test]
    fn what_the_solution_does_not_say_is_refused_by_its_number() {
        let solution = "First 3 + 4 = 7, then 14.";
        for (steps, needle) in [
            (r#"[{"expression": "3+4", "value": 8}]"#, "step 1: `3+4` is 7, but its value is 8"),
            (r#"[{"expression": "3-4", "value": -7}]"#, "step 1: `3-4` is -1, but its value is -7"),
            (r#"[{"expression": "3 plus 4", "value": 7}]"#, "step 1: `3 plus 4` is not supported"),
            (r#"[{"expression": "s2", "value": 7}]"#, "`s2` is not supported"),
            (r#"[{"value": 7}, {"value": 7}]"#, "step 2: the solution does not contain its value 7"),
            (r#"[{"value": 7, "span": "3 + 4"}]"#, "step 1: its span `3 + 4` does not contain its value 7"),
            (r#"[{"value": 7, "span": "3 + 5"}]"#, "is not in the solution"),
            (r#"[{"value": 14}, {"value": 7, "span": "4 = 7"}]"#, "in the order of the text"),
            (r#"[{"value": 7, "span": [6, 99]}]"#, "[6, 99] is outside the solution of 25 characters"),
            (r#"[{"value": [7]}]"#, "step 1: expected a value that is a number or a text, found a list"),
        ] {
            let error = read(steps, solution).expect_err(steps).to_string();
            assert!(error.contains(needle), "{steps}: {error}");
        }
        assert!(read(r#"[{"value": 7}]"#, " ").expect_err("no solution").to_string().contains("no solution"));
    }
}
