//! Compares a run's outcomes with a third party's records of the released adapter: switch rate by level and subject, blocks and steps, and how
//! often the model leaves a block by itself. Knows counts; measures nothing.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::folder::Folder;
use super::paper::Paper;
use super::tables::{Cell, ColumnKind, Table};
use switchyard::guard::read_text;
use switchyard::schema::OutcomeRow;
use switchyard::stats::{LEVEL, wilson};

/// Totals of the records, and their source (`fixtures/make_records.py`).
const RECORDS: &str = include_str!("../../../fixtures/released/records.json");

/// One problem of the third party's records; other keys are ignored.
#[derive(Deserialize)]
struct JournalRecord {
    level: u8,
    subject: String,
    latent_steps: Vec<usize>,
    natural_exits: Vec<bool>,
}

/// Counts of a group of problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupCounts {
    problems: usize,
    /// Problems with a block.
    switched: usize,
    blocks: usize,
    /// Latent steps of all blocks.
    steps: usize,
    /// Blocks that the model left by itself.
    natural: usize,
}

#[derive(Deserialize)]
struct Records {
    source: String,
    groups: BTreeMap<String, GroupCounts>,
}

/// Counts the records of a file; without a file, the embedded totals.
fn records(file: Option<&Path>) -> Result<Records> {
    let Some(path) = file else { return serde_json::from_str(RECORDS).context("the totals of the released adapter") };
    let shown = path.display();
    let text = read_text(path).with_context(|| format!("{shown}: cannot read the journal"))?;
    let mut groups: BTreeMap<String, GroupCounts> = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let record: JournalRecord = serde_json::from_str(line).with_context(|| {
            format!("{shown}:{}: not a record with level, subject, latent_steps and natural_exits", number + 1)
        })?;
        let JournalRecord { level, subject, latent_steps, natural_exits } = record;
        ensure!(
            latent_steps.len() == natural_exits.len(),
            "{shown}:{}: {} blocks in latent_steps, {} in natural_exits",
            number + 1,
            latent_steps.len(),
            natural_exits.len()
        );
        let own = GroupCounts {
            problems: 1,
            switched: usize::from(!latent_steps.is_empty()),
            blocks: latent_steps.len(),
            steps: latent_steps.iter().sum(),
            natural: natural_exits.iter().filter(|natural| **natural).count(),
        };
        count(&mut groups, Some(level), Some(&subject), own);
    }
    ensure!(!groups.is_empty(), "{shown}: has no record");
    Ok(Records { source: shown.to_string(), groups })
}

/// The key to sort groups by: levels as numbers, 2 before 10.
fn in_order(group: &str) -> (&str, Option<u8>, &str) {
    let (kind, name) = group.split_once(':').unwrap_or((group, ""));
    (kind, name.parse().ok(), name)
}

/// Adds one problem to the counts of its groups.
fn count(groups: &mut BTreeMap<String, GroupCounts>, level: Option<u8>, subject: Option<&str>, own: GroupCounts) {
    let levels = level.into_iter().map(|level| format!("level:{level}"));
    let subjects = subject.into_iter().map(|subject| format!("subject:{subject}"));
    for name in std::iter::once("all".to_owned()).chain(levels).chain(subjects) {
        let group = groups.entry(name).or_default();
        group.problems += own.problems;
        group.switched += own.switched;
        group.blocks += own.blocks;
        group.steps += own.steps;
        group.natural += own.natural;
    }
}

/// One table per checkpoint with outcomes.
pub fn tables(folders: &[Folder], file: Option<&Path>) -> Result<Vec<Table>> {
    let records = records(file)?;
    let paper = Paper::embedded()?;
    let mut tables = vec![];
    for folder in folders {
        for checkpoint in folder.checkpoints_with::<OutcomeRow>() {
            tables.push(table(folder, checkpoint, &records, &paper)?);
        }
    }
    ensure!(
        !tables.is_empty(),
        "no rows `outcomes` to compare with the journal: run `probe … --only outcomes` with --out into these folders"
    );
    Ok(tables)
}

fn table(folder: &Folder, checkpoint: &str, records: &Records, paper: &Paper) -> Result<Table> {
    use ColumnKind::{Measured, Published, Text};
    let rows = folder.rows::<OutcomeRow>(checkpoint);
    let mut ours: BTreeMap<String, GroupCounts> = BTreeMap::new();
    let counted = rows.iter().all(|row| row.natural_exits.is_some());
    for row in rows {
        let own = GroupCounts {
            problems: 1,
            switched: usize::from(row.switched),
            blocks: row.blocks,
            steps: row.latent_calls,
            natural: row.natural_exits.unwrap_or(0),
        };
        count(&mut ours, row.level, row.subject.as_deref(), own);
    }
    let columns = [
        ("problems", Text),
        ("switch rate", Measured(3)),
        ("theirs", Measured(3)),
        ("blocks a problem that switches", Text),
        ("theirs ", Text),
        ("steps a block", Text),
        ("theirs  ", Text),
        ("left by the model", Measured(3)),
        ("theirs   ", Measured(3)),
        ("paper", Published(1)),
    ];
    let name = if checkpoint.is_empty() { "model" } else { checkpoint };
    let mut table =
        Table::new("tab:journal", &format!("{}/{name} next to the records of a third party", folder.name), columns);
    table.note = format!(
        "theirs: {}. paper: switch rate (%) after Switch-GRPO of tab:sft-vs-rl, all problems only. Shares with 95 % Wilson intervals; blocks are \
         not independent within a problem.",
        records.source
    );
    if !counted {
        table.note += " Rows of an older version do not say which blocks the model left by itself.";
    }
    let mut names: Vec<&String> = ours.keys().chain(records.groups.keys()).collect();
    names.sort_by_key(|&name| in_order(name));
    names.dedup();
    for group in names {
        let [own, other] =
            [ours.get(group), records.groups.get(group)].map(|counts| counts.copied().unwrap_or_default());
        let share = |part: usize, of: usize| Cell::measured(wilson(part, of, LEVEL).ok());
        let ratio = |sum: usize, of: usize| match of {
            0 => Cell::nothing(),
            _ => Cell::Text(format!("{:.2}", sum as f64 / of as f64)),
        };
        let exits = if counted { share(own.natural, own.blocks) } else { Cell::nothing() };
        table.push(vec![
            Cell::Text(group.replace(':', " ")),
            share(own.switched, own.problems),
            share(other.switched, other.problems),
            ratio(own.blocks, own.switched),
            ratio(other.blocks, other.switched),
            ratio(own.steps, own.blocks),
            ratio(other.steps, other.blocks),
            exits,
            share(other.natural, other.blocks),
            if group == "all" {
                Cell::Published(paper.cell("tab:sft-vs-rl/grpo/switch_rate")?)
            } else {
                Cell::nothing()
            },
        ])?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_in_the_order_of_numbers() {
        let mut groups = ["subject:Algebra", "level:10", "level:2", "all"];
        groups.sort_by_key(|&group| in_order(group));
        assert_eq!(groups, ["all", "level:2", "level:10", "subject:Algebra"]);
    }

    #[test]
    fn a_journal_is_counted_as_the_totals_that_are_carried() {
        let carried = records(None).expect("totals");
        let all = carried.groups["all"];
        assert_eq!(all, GroupCounts { problems: 500, switched: 226, blocks: 330, steps: 1320, natural: 330 });
        for prefix in ["level:", "subject:"] {
            let of = carried.groups.iter().filter(|(name, _)| name.starts_with(prefix));
            assert_eq!(of.map(|(_, counts)| counts.blocks).sum::<usize>(), all.blocks, "{prefix}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("journal.jsonl");
        let record = |steps: &str, natural: &str| {
            format!(
                "{{\"level\": 2, \"subject\": \"Algebra\", \"latent_steps\": {steps}, \"natural_exits\": {natural}, \"more\": 1}}\n"
            )
        };
        std::fs::write(&file, record("[4, 256]", "[true, false]") + &record("[]", "[]")).expect("a file");
        let read = records(Some(&file)).expect("two records");
        let wanted = GroupCounts { problems: 2, switched: 1, blocks: 2, steps: 260, natural: 1 };
        assert_eq!([read.groups["all"], read.groups["level:2"], read.groups["subject:Algebra"]], [wanted; 3]);
        std::fs::write(&file, record("[4]", "[]")).expect("a file");
        let said = format!("{:#}", records(Some(&file)).err().expect("refused"));
        assert!(said.contains("journal.jsonl:1"), "{said}");
    }
}
