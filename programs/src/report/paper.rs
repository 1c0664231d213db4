//! The paper's results, typed: its tables, its figures' numbers, its claims and their comparisons. Knows `fixtures/paper_tables.toml`; nothing
//! of our measurements. A cell is named `label/row/column`.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

pub use super::claims::{Claim, Comparison, Op, Term};
use super::exhibits;

/// The fixture, embedded so that the program needs no other file.
const EMBEDDED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/paper_tables.toml"));

/// All numbers of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    #[serde(rename = "table")]
    pub tables: Vec<Block>,
    #[serde(rename = "figure")]
    pub figures: Vec<Block>,
    /// Numbers that appear only in text, by the label of their section.
    #[serde(default)]
    pub prose: Vec<Block>,
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
}

/// A table, or a figure's numbers in the shape of a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// LaTeX label, e.g. `tab:main`.
    pub label: String,
    pub title: String,
    /// Gaps in the table, or contradictions to another.
    #[serde(default)]
    pub note: String,
    /// The text's description of a figure.
    #[serde(default)]
    pub words: String,
    /// A drawing without data.
    #[serde(default)]
    pub diagram: bool,
    #[serde(default)]
    pub columns: Vec<PaperColumn>,
    #[serde(default)]
    pub rows: Vec<PaperRow>,
}

/// A column of numbers in one unit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperColumn {
    pub key: String,
    /// The paper's heading.
    pub name: String,
    pub unit: Unit,
}

/// Unit of a column. `Percent` is out of 100, `Share` and `Probability` out of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Percent,
    Share,
    Probability,
    Tokens,
    Nats,
    Logits,
    Rank,
    Count,
    Steps,
}

impl Unit {
    /// Decimals to print.
    pub fn digits(self) -> usize {
        match self {
            Self::Tokens | Self::Steps => 0,
            Self::Percent | Self::Rank => 1,
            Self::Logits | Self::Count => 2,
            Self::Share | Self::Probability | Self::Nats => 3,
        }
    }

    /// Factor from a share to this unit.
    pub(crate) fn per_share(self) -> f64 {
        if self == Self::Percent { 100.0 } else { 1.0 }
    }
}

/// One row; `values` follow the block's columns.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperRow {
    pub key: String,
    pub name: String,
    /// Sub-heading of the row.
    #[serde(default)]
    pub group: String,
    pub values: Vec<f64>,
}

impl Paper {
    /// The fixture of the repository.
    pub fn embedded() -> Result<Self> {
        Self::parse(EMBEDDED).context("fixtures/paper_tables.toml")
    }

    /// Parses and checks: unique names, rows as long as their columns, existing cells and labels.
    pub fn parse(text: &str) -> Result<Self> {
        let paper: Self = toml::from_str(text)?;
        let mut labels = HashMap::new();
        for block in paper.blocks() {
            ensure!(labels.insert(&block.label, block).is_none(), "label '{}' occurs twice", block.label);
            let mut keys = Vec::new();
            for row in &block.rows {
                ensure!(
                    row.values.len() == block.columns.len(),
                    "{}/{}: {} values for {} columns",
                    block.label,
                    row.key,
                    row.values.len(),
                    block.columns.len()
                );
                ensure!(!keys.contains(&&row.key), "{}: row '{}' occurs twice", block.label, row.key);
                keys.push(&row.key);
            }
        }
        let mut ids = Vec::new();
        for claim in &paper.claims {
            ensure!(!ids.contains(&&claim.id), "claim '{}' occurs twice", claim.id);
            ids.push(&claim.id);
            for label in &claim.rests_on {
                ensure!(labels.contains_key(label), "claim '{}' rests on '{label}', which does not exist", claim.id);
            }
            for name in claim.compare_here.iter().flat_map(Comparison::cells) {
                paper.unit(name).with_context(|| format!("claim '{}'", claim.id))?;
            }
            for comparison in claim.compare_here.iter().filter(|c| !c.is_ours()) {
                comparison.check(|cell| paper.cell(cell)).with_context(|| format!("claim '{}'", claim.id))?;
            }
            // Every cell of a claim must exist, and its stated outcome must follow from the numbers.
            let outcome = claim.check(|cell| paper.cell(cell)).with_context(|| format!("claim '{}'", claim.id))?;
            ensure!(
                outcome == claim.holds_in_paper,
                "claim '{}': holds_in_paper is {:?}, the paper's numbers give {outcome:?}",
                claim.id,
                claim.holds_in_paper
            );
        }
        Ok(paper)
    }

    /// The paper without its numbers and text, for a model that is not compared with it.
    pub(crate) fn silent(&self) -> Self {
        let mut paper = self.clone();
        for block in paper.tables.iter_mut().chain(&mut paper.figures).chain(&mut paper.prose) {
            block.rows.clear();
            block.words.clear();
        }
        paper
    }

    /// Tables, figures and prose.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.tables.iter().chain(&self.figures).chain(&self.prose)
    }

    /// The block of a LaTeX label.
    pub fn block(&self, label: &str) -> Result<&Block> {
        self.blocks().find(|b| b.label == label).with_context(|| format!("the paper has no '{label}'"))
    }

    /// The number in `label/row/column`.
    pub fn cell(&self, name: &str) -> Result<f64> {
        let [label, row, column] = parts(name)?;
        self.block(label)?.value(row, column)
    }

    /// The unit of `label/row/column`; cells of ours are not scaled.
    pub fn unit(&self, name: &str) -> Result<Unit> {
        let [label, _, column] = parts(name)?;
        if label.starts_with("ours:") && exhibits::find(label).is_some() {
            return Ok(Unit::Share);
        }
        let block = self.block(label)?;
        let found = block.columns.iter().find(|c| c.key == column);
        Ok(found.with_context(|| format!("{label} has no column '{column}'"))?.unit)
    }
}

/// Splits `label/row/column`.
pub fn parts(cell: &str) -> Result<[&str; 3]> {
    let parts: Vec<&str> = cell.split('/').collect();
    <[&str; 3]>::try_from(parts).ok().with_context(|| format!("cell '{cell}' is not of the form label/row/column"))
}

impl Block {
    /// The number at a row and a column, by key.
    pub fn value(&self, row: &str, column: &str) -> Result<f64> {
        let missing = |kind: &str, key: &str| format!("{} has no {kind} '{key}'", self.label);
        let at = self.columns.iter().position(|c| c.key == column).with_context(|| missing("column", column))?;
        let row = self.rows.iter().find(|r| r.key == row).with_context(|| missing("row", row))?;
        Ok(row.values[at])
    }
}
