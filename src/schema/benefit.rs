//! The benefit of switching: every problem decoded with a block and without one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::Identity;
use super::verdict::{Baseline, adjust, loss};
use crate::stats::{Estimate, Flips, LEVEL, accuracy};

rows! {
    pub struct SwitchProblemRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub problem: usize => OutcomeRow,
        pub level: Option<u8> => OutcomeRow,
        pub subject: Option<String> => OutcomeRow,
        pub chosen: bool => "true or false": "whether the model opened a block by itself",
        pub with_block: bool => "true or false": "whether the answer is right with a block",
        pub without_block: bool => "true or false": "whether the answer is right without one",
        pub guess: Option<f64> => EarlyStopRow,
        pub logit_diff: Option<f64> => "nats": "lead of the gold answer with a block minus without",
    }
}

measured!(SwitchProblemRow, usize, |row| row.problem, (None, row.problem));

rows! {
    /// A group of problems.
    pub struct SwitchBenefitRow {
        /// `n` counts the group's problems.
        #[serde(flatten)]
        pub identity: Identity,
        /// `all`, `chosen` (the model switched by itself), `forced` (it did not), `level:<l>`.
        pub group: String => AccuracyRow,
        pub with_block: Estimate => "share": "right answers with a block",
        pub without_block: Estimate => "share": "right answers without one",
        pub benefit: Estimate => "share": "right with a block minus right without, paired",
        pub guess: Option<f64> => EarlyStopRow,
        pub better: usize => "count": "problems right with a block and wrong without",
        pub worse: usize => "count": "problems wrong with a block and right without",
        pub p_value: f64 => AccuracyRow,
        /// Holm-adjusted over all groups; groups with the same problems count once.
        pub p_holm: f64 => AccuracyRow,
    }
}

impl SwitchBenefitRow {
    /// `helps`, `hurts`, neither or, if the better way is not better than guessing, at chance before.
    pub fn verdict(&self) -> &'static str {
        let gains = self.benefit.value > 0.0;
        let (better, words) =
            if gains { (self.with_block, ["helps", ""]) } else { (self.without_block, ["hurts", ""]) };
        // As a loss from the better way.
        let lost = -self.benefit.value.abs();
        loss(self.identity.n, lost, self.p_holm, words, Baseline::new(better, self.guess))
    }

    /// The verdict that blocks help.
    pub fn helps(&self) -> bool {
        self.verdict() == "helps"
    }
}

/// One row per group of at least two problems: all, by the model's own choice, by level.
pub fn benefit(problems: &[SwitchProblemRow]) -> Result<Vec<SwitchBenefitRow>> {
    let levels: BTreeSet<u8> = problems.iter().filter_map(|p| p.level).collect();
    let (mut rows, mut family) = (vec![], BTreeMap::new());
    let mut add = |name: &str, keep: &dyn Fn(&SwitchProblemRow) -> bool| {
        let of: Vec<&SwitchProblemRow> = problems.iter().filter(|p| keep(p)).collect();
        let members: Vec<usize> = of.iter().map(|p| p.problem).collect();
        if let Some(row) = group(name, &of)? {
            // Two groups of the same problems are one test.
            family.insert(members.clone(), row.p_value);
            rows.push((members, row));
        }
        anyhow::Ok(())
    };
    add("all", &|_| true)?;
    add("chosen", &|p| p.chosen)?;
    add("forced", &|p| !p.chosen)?;
    for level in levels {
        add(&format!("level:{level}"), &|p| p.level == Some(level))?;
    }
    adjust(family.values_mut())?;
    let adjusted =
        |(members, row): (Vec<usize>, SwitchBenefitRow)| SwitchBenefitRow { p_holm: family[&members], ..row };
    Ok(rows.into_iter().map(adjusted).collect())
}

fn group(name: &str, of: &[&SwitchProblemRow]) -> Result<Option<SwitchBenefitRow>> {
    let [first, _, ..] = of else { return Ok(None) };
    let with: Vec<bool> = of.iter().map(|p| p.with_block).collect();
    let without: Vec<bool> = of.iter().map(|p| p.without_block).collect();
    let flips = Flips::count(&without, &with)?;
    Ok(Some(SwitchBenefitRow {
        identity: Identity { n: of.len(), ..first.identity.clone() },
        group: name.to_owned(),
        with_block: accuracy(&with)?,
        without_block: accuracy(&without)?,
        benefit: flips.change(LEVEL)?,
        guess: first.guess,
        better: flips.gained,
        worse: flips.lost,
        p_value: flips.p_value(),
        p_holm: flips.p_value(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_one_family() {
        // Six of 60 gain by a block: p = .03 alone. All of them chose it: with two levels there are three comparisons.
        let problem = |problem: usize| SwitchProblemRow {
            identity: Identity::default(),
            problem,
            level: Some((problem % 2) as u8),
            subject: None,
            chosen: true,
            with_block: problem < 6,
            without_block: false,
            guess: None,
            logit_diff: None,
        };
        let rows = benefit(&(0..60).map(problem).collect::<Vec<_>>()).expect("rows");
        assert_eq!(
            rows.iter().map(|row| row.group.as_str()).collect::<Vec<_>>(),
            ["all", "chosen", "level:0", "level:1"]
        );
        assert!((rows[0].p_value - 0.03125).abs() < 1e-9 && (rows[0].p_holm - 0.09375).abs() < 1e-9);
        assert!(rows.iter().all(|row| row.verdict() == "—"));
    }
}
