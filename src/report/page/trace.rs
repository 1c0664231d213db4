//! The trace viewer: what a model wrote, its latent blocks as chips, what it thought at each position. Knows the rows of
//! `positions`.

use std::fmt::Write;

use super::escape::{text, token};
use crate::report::folder::Folder;
use crate::schema::{PositionKind, PositionRow};

pub(super) const INTRODUCTION: &str = "<p class=\"note\">Shading: entropy of the next-token distribution. A chip is a latent block, one \
    number per latent step, filled by p(&lt;/swi&gt;). Hover, or move with the arrow keys inside a trace.</p>\n";

/// Entropy (nats) that is shown as full shading.
const FULL: f64 = 2.0;

/// One `<details>` per problem, one column per checkpoint.
pub(super) fn html(folder: &Folder, id: &str) -> String {
    let checkpoints = folder.of::<PositionRow>();
    let rows = |c: &str| folder.rows::<PositionRow>(c).iter();
    let mut problems: Vec<usize> = checkpoints.iter().flat_map(|c| rows(c)).map(|r| r.problem).collect();
    problems.sort_unstable();
    problems.dedup();
    let mut out = String::new();
    for (at, problem) in problems.iter().enumerate() {
        let of = |c: &str| -> Vec<&PositionRow> { rows(c).filter(|r| r.problem == *problem).collect() };
        let columns: Vec<(&str, Vec<&PositionRow>)> =
            checkpoints.iter().map(|c| (*c, of(c))).filter(|(_, rows)| !rows.is_empty()).collect();
        let prompt = columns.iter().flat_map(|(_, rows)| rows).find_map(|r| r.prompt.clone());
        let outcomes: Vec<String> = columns
            .iter()
            .map(|(c, rows)| {
                let (class, mark) = if rows[0].correct { ("yes", "✓") } else { ("no", "✗") };
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

fn trace(checkpoint: &str, rows: &[&PositionRow], problem: usize) -> String {
    let mut body = String::new();
    let (mut step, mut open) = (0, false);
    for row in rows {
        let tip = text(&describe(row, step + 1));
        match row.kind {
            PositionKind::Swi => {
                step = 0;
                open = true;
                let _ = write!(body, " <span class=\"chip\"><b class=\"p\" tabindex=\"0\" title=\"{tip}\">swi</b>");
            }
            PositionKind::Latent => {
                if !open {
                    (step, open) = (0, true);
                    body += " <span class=\"chip\">";
                }
                step += 1;
                let p = row.p_exit.unwrap_or(0.0).clamp(0.0, 1.0);
                let _ = write!(body, "<i class=\"p\" tabindex=\"0\" style=\"--p:{p:.3}\" title=\"{tip}\">{step}</i>");
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
            let value = if value != 0.0 && value.abs() < 1e-3 { format!("{value:.1e}") } else { format!("{value:.3}") };
            parts.push(format!("{name} {value}"));
        }
    }
    let top = pairs(row.lens.as_deref().unwrap_or_default());
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
