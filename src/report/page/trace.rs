//! The trace viewer: what a model wrote, its latent blocks as chips, what it thought at each position. Knows the rows of
//! `positions`.

use std::fmt::Write;

use serde_json::Value;

use super::escape::{text, token};
use crate::report::folder::{Folder, number, shown};
use crate::store::Row;

pub(super) const INTRODUCTION: &str = "<p class=\"note\">Shading: entropy of the next-token distribution. A chip is a latent block, one \
    number per latent step, filled by p(&lt;/swi&gt;). Hover, or move with the arrow keys inside a trace.</p>\n";

/// Entropy (nats) that is shown as full shading.
const FULL: f64 = 2.0;

/// One `<details>` per problem, one column per checkpoint.
pub(super) fn html(folder: &Folder, id: &str) -> String {
    let checkpoints = folder.checkpoints("positions");
    let mut problems: Vec<i64> = checkpoints
        .iter()
        .flat_map(|c| folder.rows("positions", c))
        .filter_map(|r| number(r, "problem").map(|p| p as i64))
        .collect();
    problems.sort_unstable();
    problems.dedup();
    let mut out = String::new();
    for (at, problem) in problems.iter().enumerate() {
        let of = |c: &&str| -> Vec<&Row> {
            let mine = |r: &&Row| number(r, "problem").map(|p| p as i64) == Some(*problem);
            folder.rows("positions", c).iter().filter(mine).collect()
        };
        let columns: Vec<(&str, Vec<&Row>)> =
            checkpoints.iter().map(|c| (*c, of(c))).filter(|(_, rows)| !rows.is_empty()).collect();
        let prompt =
            columns.iter().find_map(|(_, rows)| rows.iter().map(|r| shown(r, "prompt")).find(|p| !p.is_empty()));
        let outcomes: Vec<String> = columns
            .iter()
            .map(|(c, rows)| {
                let right = rows[0].get("correct").and_then(Value::as_bool).unwrap_or(false);
                let (class, mark) = if right { ("yes", "✓") } else { ("no", "✗") };
                format!("<span class=\"{class}\">{} {mark}</span>", text(c))
            })
            .collect();
        let traces: String = columns.iter().map(|(c, rows)| trace(c, rows, *problem)).collect();
        let _ = write!(
            out,
            "<details class=\"problem\" name=\"{id}-traces\"{}><summary>Problem {problem} <span class=\"outcomes\">{}</span></summary>\n\
             <p class=\"prompt\">{}</p>\n<div class=\"sides\">{traces}</div>\n\
             <output class=\"tip\" aria-live=\"polite\" hidden></output></details>\n",
            if at == 0 { " open" } else { "" },
            outcomes.join(" "),
            text(&prompt.unwrap_or_default())
        );
    }
    out
}

fn trace(checkpoint: &str, rows: &[&Row], problem: i64) -> String {
    let mut body = String::new();
    let (mut step, mut open) = (0, false);
    for row in rows {
        let kind = shown(row, "kind");
        let tip = text(&describe(row, &kind, step + 1));
        match kind.as_str() {
            "swi" => {
                step = 0;
                open = true;
                let _ = write!(body, " <span class=\"chip\"><b class=\"p\" tabindex=\"0\" title=\"{tip}\">swi</b>");
            }
            "latent" => {
                step += 1;
                let p = number(row, "p_exit").unwrap_or(0.0).clamp(0.0, 1.0);
                let _ = write!(body, "<i class=\"p\" tabindex=\"0\" style=\"--p:{p:.3}\" title=\"{tip}\">{step}</i>");
            }
            ending if ending.starts_with("swi_end") => {
                let word = if ending.ends_with("forced") { "/swi forced" } else { "/swi" };
                let close = if open { "</span>" } else { "" };
                open = false;
                let _ = write!(body, "<b class=\"p\" tabindex=\"0\" title=\"{tip}\">{word}</b>{close} ");
            }
            _ => {
                let h = (number(row, "entropy").unwrap_or(0.0) / FULL).clamp(0.0, 1.0);
                let word = shown(row, "token");
                let space = if word.starts_with(char::is_whitespace) || word.trim().is_empty() { " " } else { "" };
                let _ = write!(
                    body,
                    "{space}<span class=\"p t\" tabindex=\"0\" style=\"--h:{h:.3}\" title=\"{tip}\">{}</span>",
                    token(&word)
                );
            }
        }
    }
    if open {
        body += "</span>";
    }
    let name = match checkpoint {
        "sft" => "after SFT",
        "grpo" => "after Switch-GRPO",
        other => other,
    };
    format!(
        "<div class=\"side\"><h3>{0} <code>{1}</code></h3><div class=\"trace\" role=\"group\" aria-label=\"Trace of problem {problem}, {0}\">{body}</div></div>",
        text(name),
        text(checkpoint)
    )
}

/// What the panel says of a position.
fn describe(row: &Row, kind: &str, step: usize) -> String {
    let mut parts = vec![match kind {
        "latent" => format!("latent step {step}"),
        "text" => format!("“{}”", shown(row, "token").replace('\n', "⏎")),
        other => other.replace('_', " "),
    }];
    for (key, name) in [("entropy", "entropy"), ("p_swi", "p(<swi>)"), ("p_exit", "p(</swi>)"), ("logprob", "log-prob")]
    {
        if let Some(value) = number(row, key) {
            let value = if value != 0.0 && value.abs() < 1e-3 { format!("{value:.1e}") } else { format!("{value:.3}") };
            parts.push(format!("{name} {value}"));
        }
    }
    let top = pairs(&shown(row, "lens"));
    if !top.is_empty() {
        let said: Vec<String> = top.iter().map(|(t, p)| format!("{} {p:.2}", t.trim())).collect();
        parts.push(format!("lens: {}", said.join(", ")));
    }
    parts.join(" · ")
}

/// `[["a", 0.5], …]`; nothing where the text is not that.
pub(super) fn pairs(json: &str) -> Vec<(String, f64)> {
    serde_json::from_str(json).unwrap_or_default()
}
