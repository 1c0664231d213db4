//! The paper's tables with ours beside them. Knows which columns of ours there are and what to say under a table; the
//! numbers come from [`super::cells`].

use anyhow::Result;

use super::cells::{Cells, depth, per_checkpoint, random_event, repeats_a_layer, sources};
use super::folder::Folder;
use super::paper::{Block, Paper};
use super::tables::{Cell, ColumnKind, Heading, Table};
use crate::schema::{AccuracyRow, Event, InterventionRow, NORMAL, Named, ProbeRow, TeacherForcedRow};

/// The paper's table of what RL changed.
const RL: &str = "tab:sft-vs-rl";

/// A table of the paper and whether any number of ours stands in it.
pub struct Beside {
    pub table: Table,
    pub ours: usize,
}

/// All tables of the paper, in its order.
///
/// # Errors
/// A mistake in the fixture.
pub fn tables(paper: &Paper, folder: &Folder) -> Result<Vec<Beside>> {
    paper.tables.iter().map(|block| table(block, folder)).collect()
}

/// One column group of ours: its heading and whose cells.
struct Ours<'a> {
    heading: String,
    cells: Cells<'a>,
}

fn table(block: &Block, folder: &Folder) -> Result<Beside> {
    let label = block.label.as_str();
    let subjects = subjects(label, folder);
    let mut columns = vec![Heading::new("", ColumnKind::Text)];
    for (at, column) in block.columns.iter().enumerate() {
        let digits = column.unit.digits();
        let theirs = block.rows.iter().map(|row| decimals(row.values[at])).max().unwrap_or(0);
        columns.push(Heading::new(&format!("{} (paper)", column.name), ColumnKind::Published(theirs)));
        if shows_ours(label, &column.key) {
            for ours in &subjects {
                // Small models write tens of tokens, not thousands.
                let digits = if column.unit == super::paper::Unit::Tokens { 1 } else { digits };
                let name = own_name(label, &column.name, &ours.heading, folder);
                columns.push(Heading::new(&name, ColumnKind::Measured(digits)));
            }
        }
    }
    let beyond = columns_beyond(label);
    for (_, name) in beyond {
        columns.extend(subjects.iter().map(|_| Heading::new(&format!("{name} (ours)"), ColumnKind::Measured(1))));
    }
    let mut table = Table::new(label, &block.title, columns);
    let mut found = 0;
    let rows = block.rows.iter().map(|row| {
        let name = if row.group.is_empty() { row.name.clone() } else { format!("{}: {}", row.group, row.name) };
        (row.key.clone(), name, Some(&row.values))
    });
    let extra = extra_rows(label, folder).into_iter().map(|(key, name)| (key, format!("ours: {name}"), None));
    for (key, name, values) in rows.chain(extra) {
        let mut cells = vec![Cell::Text(name)];
        for (at, column) in block.columns.iter().enumerate() {
            cells.push(values.map_or_else(Cell::nothing, |v| Cell::Published(v[at])));
            if shows_ours(label, &column.key) {
                for ours in &subjects {
                    let estimate = ours.cells.get(label, &key, &column.key).filter(|_| !repeats(label, &key, folder));
                    let estimate = estimate.map(|e| e.scaled(column.unit.per_share()));
                    found += usize::from(estimate.is_some());
                    cells.push(Cell::measured(estimate));
                }
            }
        }
        for (column, _) in beyond {
            cells.extend(subjects.iter().map(|ours| Cell::measured(ours.cells.get(label, &key, column))));
        }
        table.push(cells)?;
    }
    table.note = note(block, folder, found);
    Ok(Beside { table, ours: found })
}

/// Columns that the paper's table lacks: key for [`Cells::get`] and heading. What an answer costs, beside its visible tokens.
fn columns_beyond(label: &str) -> &'static [(&'static str, &'static str)] {
    if label == "tab:main" { &[("latent_calls", "Latent steps"), ("passes", "Forward passes")] } else { &[] }
}

/// Whether a row's number of ours stands in another row already: a shallow model has fewer layers than tab:probe has rows.
fn repeats(label: &str, row: &str, folder: &Folder) -> bool {
    label == "tab:probe" && probed_depth(folder).is_some_and(|layers| repeats_a_layer(row, layers))
}

/// Layers of the deepest model whose probes the folder holds.
fn probed_depth(folder: &Folder) -> Option<usize> {
    folder.of::<ProbeRow>().into_iter().filter_map(|c| depth(folder.rows(c))).max()
}

/// Decimals that the paper prints of a number, at most four; one that needs more is printed in powers of ten.
fn decimals(value: f64) -> usize {
    (0..=4).find(|d| format!("{value:.d$}").parse() == Ok(value)).unwrap_or(0)
}

/// K_min is a setting, and tab:main's two datasets are not ours: our number stands once.
fn shows_ours(label: &str, column: &str) -> bool {
    column != "k_min" && !(label == "tab:main" && column.starts_with("math500"))
}

fn own_name(label: &str, column: &str, heading: &str, folder: &Folder) -> String {
    match (label, heading) {
        ("tab:main", _) => format!("{} (ours, {})", column.trim_start_matches("GSM8K "), folder.dataset()),
        (_, "") => format!("{column} (ours)"),
        (_, checkpoint) => format!("{column} (ours, {checkpoint})"),
    }
}

fn subjects<'a>(label: &str, folder: &'a Folder) -> Vec<Ours<'a>> {
    let first = sources(label).first().filter(|_| per_checkpoint(label));
    let checkpoints = first.map_or(vec![], |experiment| folder.checkpoints(experiment));
    if checkpoints.is_empty() {
        return vec![Ours { heading: String::new(), cells: cells(label, folder, &folder.grpo) }];
    }
    checkpoints.into_iter().map(|c| Ours { heading: c.to_owned(), cells: cells(label, folder, c) }).collect()
}

/// Where a table shows what RL changed, its row "after SFT" is the checkpoint that GRPO started from.
fn cells<'a>(label: &str, folder: &'a Folder, checkpoint: &'a str) -> Cells<'a> {
    let sft = if label == RL { folder.before_grpo(sources(label)) } else { &folder.sft };
    Cells { folder, checkpoint, sft }
}

/// Whether GRPO started from a checkpoint inside phase 2, which then has a row of its own.
fn has_start(label: &str, folder: &Folder) -> bool {
    folder.sft != folder.start && folder.before_grpo(sources(label)) == folder.start
}

/// Phases that the paper's main table lacks.
const BESIDE_MAIN: [(&str, &str); 5] = [
    ("text_cot_grpo", "Text-CoT, then GRPO without latents (control)"),
    ("swireasoning", "SwiReasoning (training-free)"),
    ("soft_thinking", "Soft-Thinking (training-free)"),
    ("soft_grpo", "Soft-Thinking, then GRPO with Gumbel noise (SofT-GRPO)"),
    ("fixed_embedding", "fixed embedding at the latent steps (control)"),
];

/// Rows of ours that the paper's table lacks: key for [`Cells::get`] and name.
fn extra_rows(label: &str, folder: &Folder) -> Vec<(String, String)> {
    let own = |key: &str, name: &str| (key.to_owned(), name.to_owned());
    let mut rows = vec![];
    match label {
        "tab:main" => {
            let there = |phase: &str| folder.phases().iter().any(|r| r.phase == phase);
            rows.extend(BESIDE_MAIN.iter().filter(|(phase, _)| there(phase)).map(|(phase, name)| own(phase, name)));
            if has_start(label, folder) {
                rows.push(own(&folder.start, "where Switch-GRPO started"));
            }
            rows.push(own(&format!("{}+text_only", folder.sft), "after Switch-SFT, <swi> masked"));
            rows.push(own(&format!("{}+text_only", folder.grpo), "after Switch-GRPO, <swi> masked"));
        }
        "tab:tf" => {
            for (checkpoint, row) in all::<TeacherForcedRow>(folder) {
                let beside = [&folder.sft, &folder.grpo].iter().any(|c| *c == checkpoint)
                    && [Event::SwiStart, random_event(folder, checkpoint)].contains(&row.event);
                if !beside {
                    let event = row.event.name();
                    let name = format!("{checkpoint}, {}", event.replace('_', " "));
                    rows.push((format!("{checkpoint}:{event}"), name));
                }
            }
        }
        RL if has_start(label, folder) => rows.push(own(&format!("at:{}", folder.sft), "finished Switch-SFT")),
        "tab:swi-window" if has_start(label, folder) => {
            rows.push(own(&format!("at:{}", folder.start), "where Switch-GRPO started"));
        }
        "tab:appendix-sweep" => {
            if has_start(label, folder) {
                rows.push(own(&format!("at:{}", folder.start), "where Switch-GRPO started"));
            }
            for (step, checkpoint) in on_the_way(folder) {
                rows.push(own(&format!("at:{checkpoint}"), &format!("Switch-GRPO, step {step}")));
            }
            for (checkpoint, row) in all::<AccuracyRow>(folder).filter(|(c, _)| step_of(c).is_none()) {
                if let Some(k) = row.group.strip_prefix("k_min:") {
                    rows.push((format!("{checkpoint}:{}", row.group), format!("{checkpoint}, K_min = {k}")));
                }
            }
        }
        "tab:per-subject" => {
            let paper = Paper::embedded().ok();
            let mut seen = vec![];
            for (_, AccuracyRow { group, .. }) in all::<AccuracyRow>(folder) {
                let key = super::cells::subject_key(group);
                let block = paper.as_ref().and_then(|p| p.block(label).ok());
                let known = block.is_some_and(|b| b.rows.iter().any(|r| r.key == key));
                let wanted = group.starts_with("subject:") || group.starts_with("level:");
                if wanted && !known && !seen.contains(&group) {
                    seen.push(group);
                    rows.push((group.clone(), group.replace(':', " ")));
                }
            }
        }
        "tab:intervention" => {
            let mut seen = vec![];
            for (_, row) in all::<InterventionRow>(folder) {
                let known = [NORMAL, "zero", "random_norm", "skip"].contains(&row.mode.as_str());
                if !known && !seen.contains(&&row.mode) && row.is_plain() {
                    rows.push((row.mode.clone(), row.mode.replace('_', " ")));
                    seen.push(&row.mode);
                }
            }
        }
        "tab:exit" => rows.push(own("all", "all")),
        _ => {}
    }
    rows
}

/// The step of a checkpoint that a run kept on its way (`grpo_step20`, setting `grpo.keep_every`).
pub(super) fn step_of(checkpoint: &str) -> Option<usize> {
    checkpoint.rsplit_once("_step")?.1.parse().ok()
}

/// Checkpoints on the way that were measured, in order.
fn on_the_way(folder: &Folder) -> Vec<(usize, &str)> {
    let mut found: Vec<(usize, &str)> =
        folder.of::<AccuracyRow>().into_iter().filter_map(|c| Some((step_of(c)?, c))).collect();
    found.sort_unstable();
    found
}

/// Rows of a kind, checkpoint by checkpoint.
fn all<R: Named>(folder: &Folder) -> impl Iterator<Item = (&str, &R)> {
    folder.of::<R>().into_iter().flat_map(|c| folder.rows::<R>(c).iter().map(move |row| (c, row)))
}

fn note(block: &Block, folder: &Folder, found: usize) -> String {
    let mut parts = vec![];
    if found == 0 {
        let needs = sources(&block.label).iter().map(|e| format!("`{e}`")).collect::<Vec<_>>().join(" or ");
        parts.push(format!("No rows of ours: needs {needs}."));
    } else {
        parts.push(format!("Ours: {} on {}, 95 % intervals.", folder.name, folder.dataset()));
    }
    match block.label.as_str() {
        "tab:probe" => {
            if let Some(layers) = probed_depth(folder) {
                parts.push(format!(
                    "The paper's offsets count from the last of 36 layers. Ours is the layer of {layers} with the same share of layers passed, each in the row that is nearest to it. Protocol of both: C = 1, one 80:20 split."
                ));
            }
        }
        "tab:tf" => parts.push(
            "Random: of any token type, outside blocks; where rows have no random sample, every other position.".into(),
        ),
        "tab:appendix-sweep" => {
            parts.push("Ours at \"stage 8\" is the same checkpoint as at \"stage 6\", decoded with K_min = 0.".into());
        }
        RL if has_start(RL, folder) => parts.push(format!(
            "\"After SFT\" is ours at `{}`, the checkpoint that Switch-GRPO started from; the finished one stands below.",
            folder.start
        )),
        RL if found > 0 => parts.push(format!("{}.", folder.no_start())),
        "tab:gen-analysis" => {
            parts.push("A group with fewer than two problems has no interval and is left out.".into())
        }
        _ => {}
    }
    if !block.note.is_empty() {
        parts.push(format!("On the paper's numbers: {}", block.note.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    parts.join(" ")
}
