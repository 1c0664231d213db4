//! The trace viewer: a model's text, its latent blocks as chips, its predictions at each position. Knows the records of `positions` and
//! `outcomes`.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::escape::{text, token};
use super::steps;
use crate::report::folder::{Folder, called};
use crate::report::render_table::number;
use switchyard::schema::{OutcomeRow, PositionKind, PositionRow};

const INTRODUCTION: &str = "<p class=\"note\">A chip is a latent block: what the model would say next at each latent step, filled \
    by p(&lt;/swi&gt;). Shading of text: entropy of the next token. Hover, or move with the arrow keys inside a trace.</p>\n";

/// Entropy (nats) of full shading.
const FULL: f64 = 2.0;

/// One `<details>` per problem, one column per checkpoint; and the number of problems.
pub(super) fn html(folder: &Folder, id: &str) -> (String, usize) {
    let checkpoints = folder.checkpoints_with::<PositionRow>();
    let problems: BTreeSet<usize> =
        checkpoints.iter().flat_map(|c| folder.rows::<PositionRow>(c)).map(|r| r.problem).collect();
    let mut out = String::new();
    for (at, problem) in problems.iter().enumerate() {
        let positions = |c: &str| -> Vec<&PositionRow> {
            folder.rows::<PositionRow>(c).iter().filter(|row| row.problem == *problem).collect()
        };
        let columns: Vec<(&str, Vec<&PositionRow>)> =
            checkpoints.iter().map(|c| (*c, positions(c))).filter(|(_, rows)| !rows.is_empty()).collect();
        let outcomes: Vec<String> = columns
            .iter()
            .map(|(c, rows)| {
                let (class, mark) = if rows[0].correct { ("yes", "✓") } else { ("no", "✗") };
                format!("<span class=\"{class}\">{} {mark}</span>", text(&called(c)))
            })
            .collect();
        let sides = columns.iter().map(|(c, rows)| {
            let name = called(c);
            let (solution, graded) = (trace(&name, rows), answer(folder, c, *problem));
            format!("<div class=\"side\"><h3>{}</h3>{solution}{graded}{}</div>", text(&name), steps::html(rows))
        });
        let sides: String = sides.collect();
        let prompt = columns.iter().flat_map(|(_, rows)| rows).find_map(|r| r.prompt.clone());
        let _ = write!(
            out,
            "<details class=\"problem\" name=\"{id}-traces\"{}><summary>Problem {problem} <span class=\"outcomes\">{}</span></summary>\n\
             <p class=\"prompt\">{}</p>\n<div class=\"sides\">{sides}</div>\n\
             <output class=\"tip\" aria-live=\"polite\" hidden></output></details>\n",
            if at == 0 { " open" } else { "" },
            outcomes.join(" "),
            text(&prompt.unwrap_or_default())
        );
    }
    (if out.is_empty() { out } else { format!("{INTRODUCTION}{out}") }, problems.len())
}

/// A checkpoint's solution of one problem: preferably correct and with two blocks.
pub(super) fn sample(folder: &Folder, checkpoint: &str) -> String {
    let worth = |rows: &&[PositionRow]| {
        let blocks = rows.iter().filter(|row| row.kind == PositionKind::Swi).count();
        (blocks == 2 && rows[0].correct, blocks > 0 && rows[0].correct, blocks > 0)
    };
    let problems: Vec<&[PositionRow]> =
        folder.rows::<PositionRow>(checkpoint).chunk_by(|a, b| a.problem == b.problem).collect();
    // `max_by_key` returns the last maximum: the first one in the original order.
    let Some(rows) = problems.into_iter().rev().max_by_key(worth) else { return String::new() };
    let all: Vec<&PositionRow> = rows.iter().collect();
    format!(
        "<figure class=\"problem\"><figcaption>One problem, as the model solves it. In the chips: what it would say next at each \
         latent step, where it writes nothing.</figcaption>\n<p class=\"prompt\">{}</p>\n{}{}\
         <output class=\"tip\" aria-live=\"polite\" hidden></output></figure>\n",
        text(rows[0].prompt.as_deref().unwrap_or_default()),
        trace(&called(checkpoint), &all),
        answer(folder, checkpoint, rows[0].problem)
    )
}

/// The gold answer and the model's, if outcomes exist.
fn answer(folder: &Folder, checkpoint: &str, problem: usize) -> String {
    let Some(row) = folder.rows::<OutcomeRow>(checkpoint).iter().find(|row| row.problem == problem) else {
        return String::new();
    };
    let (class, mark) = if row.correct { ("yes", "✓ right") } else { ("no", "✗ wrong") };
    format!(
        "<p class=\"answer\">Gold answer <b>{}</b>, the model’s <b>{}</b> <span class=\"{class}\">{mark}</span></p>\n",
        text(&row.gold),
        text(row.answer.as_deref().unwrap_or("none"))
    )
}

/// The positions as HTML. `name`: the checkpoint's, for screen readers.
fn trace(name: &str, rows: &[&PositionRow]) -> String {
    let mut body = String::new();
    let (mut step, mut open) = (0, false);
    for row in rows {
        // A block without `<swi>` begins at its first latent step.
        if row.kind == PositionKind::Latent && !open {
            step = 0;
        }
        let tip = text(&describe(row, step + 1));
        match row.kind {
            PositionKind::Swi => {
                step = 0;
                open = true;
                let _ = write!(body, " <span class=\"chip\"><b class=\"p\" tabindex=\"0\" title=\"{tip}\">swi</b>");
            }
            PositionKind::Latent => {
                if !open {
                    open = true;
                    body += " <span class=\"chip\">";
                }
                step += 1;
                let p = row.p_exit.unwrap_or(0.0).clamp(0.0, 1.0);
                let top = pairs(row.lens.as_deref().unwrap_or_default());
                let word = top.first().map_or_else(|| step.to_string(), |(word, _)| token(word));
                let _ = write!(body, "<i class=\"p\" tabindex=\"0\" style=\"--p:{p:.3}\" title=\"{tip}\">{word}</i>");
            }
            PositionKind::SwiEndSampled | PositionKind::SwiEndForced => {
                let word = if row.kind == PositionKind::SwiEndForced { "/swi forced" } else { "/swi" };
                let close = if open { "</span>" } else { "" };
                open = false;
                let _ = write!(body, "<b class=\"p\" tabindex=\"0\" title=\"{tip}\">{word}</b>{close} ");
            }
            PositionKind::Text => {
                if open {
                    open = false;
                    body += "</span> ";
                }
                let h = (row.entropy.unwrap_or(0.0) / FULL).clamp(0.0, 1.0);
                let word = &row.token;
                let space = if word.starts_with(char::is_whitespace) || word.trim().is_empty() { " " } else { "" };
                let _ = write!(
                    body,
                    "{space}<span class=\"p t\" tabindex=\"0\" style=\"--h:{h:.3}\" title=\"{tip}\">{}</span>",
                    token(word)
                );
            }
        }
    }
    if open {
        body += "</span>";
    }
    format!("<div class=\"trace\" role=\"group\" aria-label=\"What the model writes: {}\">{body}</div>", text(name))
}

/// The panel's text for a position.
fn describe(row: &PositionRow, step: usize) -> String {
    let mut parts = vec![match row.kind {
        PositionKind::Latent => format!("latent step {step}"),
        PositionKind::Text => format!("“{}”", row.token.replace('\n', "⏎")),
        PositionKind::Swi => "swi".into(),
        PositionKind::SwiEndSampled => "swi end sampled".into(),
        PositionKind::SwiEndForced => "swi end forced".into(),
    }];
    let numbers =
        [(row.entropy, "entropy"), (row.p_swi, "p(<swi>)"), (row.p_exit, "p(</swi>)"), (row.logprob, "log-prob")];
    for (value, name) in numbers {
        if let Some(value) = value {
            parts.push(format!("{name} {}", number(value, 3)));
        }
    }
    let top = pairs(row.lens.as_deref().unwrap_or_default());
    if !top.is_empty() {
        let tokens: Vec<String> = top.iter().map(|(t, p)| format!("{} {p:.2}", t.trim())).collect();
        parts.push(format!("would say: {}", tokens.join(", ")));
    }
    parts.join(" · ")
}

/// Parses `[["a", 0.5], …]`; empty if malformed.
pub(super) fn pairs(json: &str) -> Vec<(String, f64)> {
    serde_json::from_str(json).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_count_from_one_in_each_block_also_without_swi() {
        let row = |kind: &str| -> PositionRow {
            let row = json!({"checkpoint": "x/coconut", "dataset": "d", "n": 1, "seed": 0, "problem": 0, "index": 0, "kind": kind,
                "id": 1, "token": "a", "correct": true});
            serde_json::from_value(row).expect("a row")
        };
        let rows = ["text", "latent", "latent", "text", "latent", "latent", "text", "swi", "latent"].map(row);
        let html = trace("coconut", &rows.iter().collect::<Vec<_>>());
        let steps: Vec<&str> = html.split("title=\"latent step ").skip(1).filter_map(|rest| rest.get(..1)).collect();
        assert_eq!(steps, ["1", "2", "1", "2", "1"]);
    }
}
