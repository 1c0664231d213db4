//! The README's numbers, from rows: a trace, five findings, one table. Knows which rows say what; a test holds the README to it.

use anyhow::{Context, Result};

use super::cells::{Cells, intervention_row};
use super::folder::Folder;
use super::paper::Paper;
use crate::schema::{AccuracyRow, Event, KnownValueRow, PositionKind, PositionRow, TeacherForcedRow};
use crate::stats::Estimate;

/// What stands between a pair of markers of the README (`<!-- trace -->` … `<!-- /trace -->`).
pub struct Part {
    pub marker: &'static str,
    pub text: String,
}

/// Everything that the README says in numbers.
///
/// # Errors
/// Rows that are missing from the folder, by what they would say.
pub fn parts(folder: &Folder) -> Result<Vec<Part>> {
    Ok(vec![
        Part { marker: "trace", text: trace(folder)? },
        Part { marker: "findings", text: findings(folder)? },
        Part { marker: "table", text: table(folder)? },
    ])
}

/// The README with every part put between its markers.
///
/// # Errors
/// A marker that is not there.
pub fn filled(readme: &str, parts: &[Part]) -> Result<String> {
    let mut text = readme.to_owned();
    for Part { marker, text: part } in parts {
        let (open, close) = (format!("<!-- {marker} -->\n"), format!("<!-- /{marker} -->"));
        let from = text.find(&open).with_context(|| format!("the README has no `<!-- {marker} -->`"))? + open.len();
        let until = text[from..].find(&close).with_context(|| format!("the README has no `{close}`"))? + from;
        text.replace_range(from..until, part);
    }
    Ok(text)
}

/// The first problem that was answered right with exactly two blocks: what it asks, writes and thinks.
fn trace(folder: &Folder) -> Result<String> {
    let rows = folder.rows::<PositionRow>(&folder.sft);
    let fits =
        |rows: &&[PositionRow]| rows[0].correct && rows.iter().filter(|row| row.kind == PositionKind::Swi).count() == 2;
    let problem = rows.chunk_by(|a, b| a.problem == b.problem).find(fits);
    let problem = problem.context("positions: no problem was answered right with two blocks")?;
    let mut out = format!("```text\nquestion    {}\n", problem[0].prompt.as_deref().unwrap_or_default());
    let mut written = String::new();
    let mut thought: Vec<&str> = vec![];
    let lens: Vec<Vec<(String, f64)>> = problem
        .iter()
        .map(|row| serde_json::from_str(row.lens.as_deref().unwrap_or("[]")))
        .collect::<Result<_, _>>()?;
    for (row, lens) in problem.iter().zip(&lens) {
        match row.kind {
            PositionKind::Text => written += &row.token,
            PositionKind::Swi => {
                out += &format!("writes      {} <swi>\n", written.trim());
                written.clear();
            }
            PositionKind::Latent => thought.extend(lens.first().map(|(token, _)| token.trim())),
            PositionKind::SwiEndSampled | PositionKind::SwiEndForced => {
                out += &format!("thinks      {}\n", thought.join("  "));
                thought.clear();
                written += "</swi>";
            }
        }
    }
    out += &format!("writes      {}\n```\n", written.trim());
    Ok(out)
}

/// Five findings, a line each.
fn findings(folder: &Folder) -> Result<String> {
    let (sft, grpo) = (folder.sft.as_str(), folder.grpo.as_str());
    let known = KnownValueRow::main(folder.rows(sft));
    let known = known.context("known_value: no row for all steps")?;
    let diagnostic = |mode: &str| -> Result<Estimate> {
        let row = intervention_row(folder, sft, mode);
        row.and_then(|row| row.diagnostic_accuracy).with_context(|| format!("latent_intervention: no row for {mode}"))
    };
    let p_swi = |event: Event| -> Result<Estimate> {
        let row = folder.rows::<TeacherForcedRow>(sft).iter().find(|row| row.event == event);
        row.map(|row| row.p_swi).with_context(|| format!("teacher_forced: no row for {}", event.name()))
    };
    let group = |group: &str| -> Result<&AccuracyRow> {
        let row = folder.rows::<AccuracyRow>(grpo).iter().find(|row| row.group == group);
        row.with_context(|| format!("accuracy: no row for {group}"))
    };
    let (all, text_only) = (group("all")?, group("text_only")?);
    Ok([
        format!(
            "- **The latents hold the value that the answer needs.** Put in the latents of a block that holds another value: the \
             answer becomes the one that arithmetic predicts from it in {}; chance {}.\n",
            say(known.hit_rate),
            say(known.chance)
        ),
        format!(
            "- **Here each latent stands for a token.** Put in the embedding of the token that each latent would say: of the \
             diagnostic problems {} stay right.\n",
            say(diagnostic("embedding_argmax")?)
        ),
        format!(
            "- **The decision to switch has a place.** p(`<swi>`) is {} where the annotation begins a block, {} at the start of \
             other clauses, {} at random positions.\n",
            say(p_swi(Event::SwiStart)?),
            say(p_swi(Event::ClauseStart)?),
            say(p_swi(Event::Random)?)
        ),
        format!(
            "- **Against the paper, a random vector of the same norm is not nearly harmless**: {} of the diagnostic problems stay \
             right, and {} when `<swi>` is forbidden.\n",
            say(diagnostic("random_norm")?),
            say(diagnostic("skip")?)
        ),
        format!(
            "- **After GRPO the model mostly goes back to text**: it switches on {} of the problems, and with `<swi>` forbidden its \
             accuracy is {}, against {} when it is free.\n",
            say(all.switch_rate),
            say(text_only.accuracy),
            say(all.accuracy)
        ),
    ]
    .concat())
}

/// Six cells of the paper beside ours: what it is, the paper's keys, ours after SFT and after GRPO.
fn table(folder: &Folder) -> Result<String> {
    let paper = Paper::embedded()?;
    let mut out = String::from(
        "| | paper, SFT | paper, GRPO | micro, SFT | micro, GRPO |\n| --- | ---: | ---: | ---: | ---: |\n",
    );
    let pairs = [
        ("p(`<swi>`) at annotated positions", "tab:tf", "sft_start", "grpo_start", "p_swi", 1.0),
        ("p(`<swi>`) at random positions", "tab:tf", "sft_random", "grpo_random", "p_swi", 1.0),
        ("share of problems that switch", "tab:sft-vs-rl", "sft", "grpo", "switch_rate", 100.0),
    ];
    for (what, label, before, after, column, scale) in pairs {
        let cells = Cells::of(folder, &folder.sft);
        let ours = |row: &str| cells.get(label, row, column).map_or_else(|| "—".into(), say);
        let theirs = |row: &str| Ok::<_, anyhow::Error>(paper.cell(&format!("{label}/{row}/{column}"))? / scale);
        out += &format!(
            "| {what} | {:.3} | {:.3} | {} | {} |\n",
            theirs(before)?,
            theirs(after)?,
            ours(before),
            ours(after)
        );
    }
    // The paper's table of interventions names no checkpoint; it stands in a section on the one after GRPO.
    for (what, mode) in [
        ("diagnostic accuracy, *zero*", "zero"),
        ("diagnostic accuracy, *random*", "random_norm"),
        ("diagnostic accuracy, *skip*", "skip"),
    ] {
        let ours = |checkpoint: &str| {
            let cells = Cells::of(folder, checkpoint);
            cells.get("tab:intervention", mode, "diag_acc").map_or_else(|| "—".into(), say)
        };
        let theirs = paper.cell(&format!("tab:intervention/{mode}/diag_acc"))?;
        out += &format!("| {what} | | {theirs:.3} | {} | {} |\n", ours(&folder.sft), ours(&folder.grpo));
    }
    Ok(out)
}

/// `0.978 [0.966, 0.989] n=286`.
fn say(e: Estimate) -> String {
    format!("{e:.3}")
}
