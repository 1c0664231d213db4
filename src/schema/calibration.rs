//! Error rates of the experiments' verdicts on models with known truth: one row per test of a model, and one per test.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::Identity;
use crate::stats::{Estimate, LEVEL, wilson};

rows! {
    /// One test of one hand-built model. If an experiment tests several places (layers, steps, heads), there is one row for those where
    /// the truth is yes, and one for those where it is no.
    pub struct CalibrationDrawRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "problems, or pairs of them, per model",
        pub kind: String => "name": "kind of truth that the model was built with",
        pub draw: usize => "index from 0": "the model of this kind, with its own random parameters",
        pub test: String => CalibrationRow,
        pub default_n: bool => CalibrationRow,
        /// What the test is known not to see; empty where nothing is.
        pub blind: String => CalibrationRow,
        pub truth: bool => "yes or no": "whether the model has what the test looks for",
        pub verdict: bool => "yes or no": "whether the test found it: at every place where it is, at any place where it is not",
        pub right: bool => "yes or no": "whether the verdict is the truth",
    }
}

rows! {
    /// One test at one n, on one kind of truth or on all. Wilson intervals over draws.
    pub struct CalibrationRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "tests of the row",
        pub test: String => "name": "experiment and test",
        pub kind: String => "name": "kind of truth, or all of them together",
        pub problems: usize => "count": "problems, or pairs of them, per model",
        pub default_n: bool => "yes or no": "whether the experiment has this n by default",
        pub right: Estimate => "share": "verdicts that are the truth",
        pub power: Option<Estimate> => "share": "true effects that are found",
        pub false_alarms: Option<Estimate> => "share": "models without an effect in which one is found",
        pub n_for_80: Option<usize> => "count": "the smallest n of those tried from which on the power is 80 % or more",
        pub blind: String => "text": "what the test is known not to see",
    }
}

impl CalibrationRow {
    /// `kind` of a row over all kinds.
    pub const ALL: &'static str = "all";
    /// The checkpoint in its file names.
    pub const CHECKPOINT: &'static str = "hand_built";

    /// Whether the intervals allow a power of 95 % and false alarms of 5 %, as a verdict promises.
    pub fn holds(&self) -> bool {
        self.right.high >= LEVEL && self.false_alarms.is_none_or(|alarms| alarms.low <= 1.0 - LEVEL)
    }
}

/// Sufficient power of a test.
const ENOUGH: f64 = 0.8;

/// One row per test, kind and n, and one over all kinds.
pub fn calibrated(draws: &[CalibrationDrawRow]) -> Result<Vec<CalibrationRow>> {
    let mut rows = vec![];
    let tests: BTreeSet<&str> = draws.iter().map(|d| d.test.as_str()).collect();
    for test in tests {
        let of_test: Vec<&CalibrationDrawRow> = draws.iter().filter(|d| d.test == test).collect();
        let kinds: BTreeSet<&str> = of_test.iter().map(|d| d.kind.as_str()).collect();
        for kind in [CalibrationRow::ALL].into_iter().chain(kinds) {
            let of = of_test.iter().filter(|d| kind == CalibrationRow::ALL || d.kind == kind);
            let mut sizes: BTreeMap<usize, Vec<&CalibrationDrawRow>> = BTreeMap::new();
            of.for_each(|d| sizes.entry(d.identity.n).or_default().push(d));
            let mut of_kind = sizes.iter().map(|(&n, seen)| row(test, kind, n, seen)).collect::<Result<Vec<_>>>()?;
            let good = |row: &&CalibrationRow| row.power.is_some_and(|power| power.value >= ENOUGH);
            let enough = of_kind.iter().rev().take_while(good).last().map(|row| row.problems);
            of_kind.iter_mut().for_each(|row| row.n_for_80 = enough);
            rows.extend(of_kind);
        }
    }
    Ok(rows)
}

fn row(test: &str, kind: &str, problems: usize, seen: &[&CalibrationDrawRow]) -> Result<CalibrationRow> {
    let share = |keep: &dyn Fn(&CalibrationDrawRow) -> bool, yes: &dyn Fn(&CalibrationDrawRow) -> bool| {
        let of: Vec<_> = seen.iter().filter(|d| keep(d)).collect();
        let found = of.iter().filter(|d| yes(d)).count();
        (!of.is_empty()).then(|| wilson(found, of.len(), LEVEL)).transpose()
    };
    let identity = &seen[0].identity;
    Ok(CalibrationRow {
        identity: Identity { checkpoint: CalibrationRow::CHECKPOINT.into(), n: seen.len(), ..identity.clone() },
        test: test.to_owned(),
        kind: kind.to_owned(),
        problems,
        default_n: seen[0].default_n,
        right: wilson(seen.iter().filter(|d| d.right).count(), seen.len(), LEVEL)?,
        power: share(&|d| d.truth, &|d| d.verdict)?,
        false_alarms: share(&|d| !d.truth, &|d| d.verdict)?,
        n_for_80: None,
        blind: seen[0].blind.clone(),
    })
}
