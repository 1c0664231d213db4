//! Accuracy and what it costs (tab:main, tab:sft-vs-rl, tab:per-subject, tab:appendix-sweep), and the `K_min` sweep.
//!
//! Rows: all problems; those on which the model switched and the others (its own choice, so no causal comparison); every level and
//! subject; and three changed decodings of the same problems: `<swi>` masked (`text_only`), `<swi>` first (`forced`), and other
//! values of `K_min` **on one checkpoint** (the paper's K_min = 0 is another checkpoint). The changed ones are compared with the free
//! decode problem by problem: exact McNemar, Holm over all of them, a score interval of the difference.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::markdown::{or_dash, table_of, titled};
use super::{About, Journal};
use crate::evaluation::{Outcome, Scores};
use crate::latent::{Switching, Trace};
use crate::schema::{AccuracyRow, RowFile, adjust};
use crate::stats::by_problem::{cell, mean, share as share_of};
use crate::stats::{Flips, LEVEL, accuracy};
use crate::study::Study;

pub const ABOUT: About = About::asking(
    "accuracy and length: all, switched, per level and subject, forced, K_min (tab:main, tab:per-subject)",
)
.of_grpo_start()
.of_responses()
.of_text_alone()
.at_first();

settings! {
    pub struct Config {
        /// Values of `K_min` to decode with, by default the paper's sweep and 1; the evaluation's own is always included.
        pub k_min: Vec<usize> = vec![0, 1, 2, 4, 8, 16],
        /// Includes values above the evaluation's `k_cap`, with the cap raised to them: such a row differs in two settings. Otherwise they are
        /// skipped.
        pub raise_cap: bool = false,
    }
}

pub fn run(study: &Study, config: &Config, journal: &mut Journal) -> Result<String> {
    let rows = rows(study, config)?;
    journal.save(AccuracyRow::NAME, &rows)?;
    Ok(table(&rows, &note(study, config, &rows)))
}

/// The decodings besides the evaluation's.
pub(crate) fn ways(study: &Study, config: &Config) -> Vec<(Switching, usize)> {
    let own = study.recipe.evaluation.k_min;
    if study.untrained {
        return vec![];
    }
    let swept = sweep(study, config).into_iter().filter(|k_min| *k_min != own).map(|k_min| (Switching::Free, k_min));
    DONE.into_iter().map(|(_, switching)| (switching, own)).chain(swept).collect()
}

/// Changed decodings, by the names of their rows.
const DONE: [(&str, Switching); 2] = [("text_only", Switching::Suppressed), ("forced", Switching::Forced)];

/// All rows: groups of the free decode, then the changed decodings.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<AccuracyRow>> {
    let own = study.recipe.evaluation.k_min;
    let free = DecodeOutcomes::free(study)?;
    let mut rows = free.groups()?;
    if study.untrained {
        // Without blocks these decodings change nothing.
        rows.retain(|row| row.group != "not_switched");
        return Ok(rows);
    }
    for (name, switching) in DONE {
        let (scores, traces) = study.decode(switching, own)?;
        rows.push(DecodeOutcomes::new(study, own, &scores, &traces).against(name, &free)?);
    }
    for k_min in sweep(study, config) {
        let name = format!("k_min:{k_min}");
        if k_min == own {
            rows.push(free.summarise_all(&name)?);
        } else if free.switched() {
            // Without a block `K_min` has no effect.
            let (scores, traces) = study.decode(Switching::Free, k_min)?;
            rows.push(DecodeOutcomes::new(study, k_min, &scores, &traces).against(&name, &free)?);
        }
    }
    rows.iter_mut().for_each(|row| row.p_holm = row.p_value);
    adjust(rows.iter_mut().filter_map(|row| row.p_holm.as_mut()))?;
    Ok(rows)
}

/// One problem of a decoding.
type ScoredTrace<'a> = (&'a Outcome, &'a Trace);

/// All problems of a decoding.
struct DecodeOutcomes<'a> {
    study: &'a Study,
    k_min: usize,
    cases: Vec<ScoredTrace<'a>>,
}

impl<'a> DecodeOutcomes<'a> {
    /// The evaluation's decoding.
    fn free(study: &'a Study) -> Result<Self> {
        let (scores, traces) = study.decoded()?;
        Ok(Self::new(study, study.recipe.evaluation.k_min, scores, traces))
    }

    fn new(study: &'a Study, k_min: usize, scores: &'a Scores, traces: &'a [Trace]) -> Self {
        Self { study, k_min, cases: scores.outcomes.iter().zip(traces).collect() }
    }

    /// All problems, and groups by the model's choice, by level and by subject.
    fn groups(&self) -> Result<Vec<AccuracyRow>> {
        let levels: BTreeSet<u8> = self.cases.iter().filter_map(|(o, _)| o.level).collect();
        let subjects: BTreeSet<&String> = self.cases.iter().filter_map(|(o, _)| o.subject.as_ref()).collect();
        let of = |name: String, belongs: &dyn Fn(&Outcome) -> bool| {
            (name, self.cases.iter().filter(|(o, _)| belongs(o)).copied().collect::<Vec<ScoredTrace>>())
        };
        let mut groups = vec![of("all".into(), &|_| true)];
        groups.extend([of("switched".into(), &|o| o.switched), of("not_switched".into(), &|o| !o.switched)]);
        groups.extend(levels.iter().map(|level| of(format!("level:{level}"), &|o| o.level == Some(*level))));
        groups.extend(subjects.iter().map(|s| of(format!("subject:{s}"), &|o| o.subject.as_ref() == Some(*s))));
        groups.iter().filter(|(_, cases)| !cases.is_empty()).map(|(name, cases)| self.row(name, cases)).collect()
    }

    /// All problems, compared with `free` on the same problems.
    fn against(&self, name: &str, free: &DecodeOutcomes) -> Result<AccuracyRow> {
        let flips = Flips::count(&free.correct(), &self.correct())?;
        let (difference, lost, gained) = (Some(flips.change(LEVEL)?), Some(flips.lost), Some(flips.gained));
        Ok(AccuracyRow { difference, lost, gained, p_value: Some(flips.p_value()), ..self.summarise_all(name)? })
    }

    /// The whole of it, without a comparison.
    fn summarise_all(&self, name: &str) -> Result<AccuracyRow> {
        self.row(name, &self.cases)
    }

    /// Whether any problem has a block.
    fn switched(&self) -> bool {
        self.cases.iter().any(|(o, _)| o.switched)
    }

    fn correct(&self) -> Vec<bool> {
        self.cases.iter().map(|(o, _)| o.correct).collect()
    }

    fn row(&self, group: &str, cases: &[ScoredTrace]) -> Result<AccuracyRow> {
        let share = |of: fn(&Outcome) -> bool| accuracy(&cases.iter().map(|(o, _)| of(o)).collect::<Vec<_>>());
        let accuracy_where = |switched: bool| {
            let some = cases.iter().filter(|(o, _)| o.switched == switched).map(|(o, _)| o.correct);
            Some(some.collect::<Vec<_>>()).filter(|some| !some.is_empty()).map(|some| accuracy(&some)).transpose()
        };
        let seed = self.study.seed;
        let mean_of = |of: fn(&ScoredTrace) -> usize| {
            mean(seed, cases.iter().map(|case| (case.0.problem, of(case) as f64))).with_context(|| group.to_owned())
        };
        // For every block, whether the cap ended it.
        let forced =
            |(o, t): &ScoredTrace| t.blocks().iter().map(|block| (o.problem, block.forced)).collect::<Vec<_>>();
        let exits: Vec<(usize, bool)> = cases.iter().flat_map(forced).collect();
        Ok(AccuracyRow {
            identity: self.study.identity(cases.len()),
            group: group.to_owned(),
            k_min: self.k_min,
            k_cap: self.study.recipe.evaluation.k_cap.max(self.k_min),
            accuracy: share(|o| o.correct)?,
            latent_accuracy: accuracy_where(true)?,
            text_accuracy: accuracy_where(false)?,
            switch_rate: share(|o| o.switched)?,
            blocks: mean_of(|(_, t)| t.blocks().len())?,
            latent_calls: mean_of(|(o, _)| o.latent_calls)?,
            visible_tokens: mean_of(|(o, _)| o.visible_tokens)?,
            truncated: share(|o| o.truncated)?,
            forced_exits: share_of(seed, &exits)?,
            difference: None,
            lost: None,
            gained: None,
            p_value: None,
            p_holm: None,
        })
    }
}

/// The sorted values to decode with, including the evaluation's.
fn sweep(study: &Study, config: &Config) -> BTreeSet<usize> {
    let evaluation = &study.recipe.evaluation;
    let runs = |k: &usize| config.raise_cap || *k <= evaluation.k_cap;
    config.k_min.iter().copied().filter(runs).chain([evaluation.k_min]).collect()
}

/// Notes on missing or altered rows of the sweep.
fn note(study: &Study, config: &Config, rows: &[AccuracyRow]) -> String {
    if study.untrained {
        return "The model never learnt to switch: it is decoded as plain text.\n".into();
    }
    if rows.iter().all(|r| r.group != "switched") {
        return "No problem switched: K_min has no effect, the sweep is skipped.\n".into();
    }
    let evaluation = &study.recipe.evaluation;
    let cap = evaluation.k_cap;
    let above: Vec<String> = config.k_min.iter().filter(|k| **k > cap).map(usize::to_string).collect();
    let (mut note, all) = (String::new(), above.join(", "));
    match (above.is_empty(), config.raise_cap) {
        (true, _) => {}
        (false, true) => note += &format!("K_min {all} ran with k_cap raised from {cap} to the same value.\n"),
        (false, false) => {
            note += &format!("K_min {all} not run: the evaluation's k_cap is {cap} (raise_cap runs them).\n");
        }
    }
    if evaluation.k_min == cap {
        note += &format!("K_min = k_cap = {cap} in this evaluation: every block has {cap} latent steps.\n");
    }
    let swept = || rows.iter().filter(|r| r.group.starts_with("k_min:"));
    let same = |r: &AccuracyRow| Some(r.latent_calls) == swept().next().map(|first| first.latent_calls);
    if swept().count() > 1 && swept().all(same) {
        note += "K_min changed nothing: no block ends before the largest value.\n";
    }
    note
}

pub fn table(rows: &[AccuracyRow], note: &str) -> String {
    let columns = "group | accuracy [95 %] | difference | p (Holm) | with latents | switch rate | latent calls | visible tokens | \
                   capped | truncated";
    let cells = |r: &AccuracyRow| {
        let AccuracyRow { accuracy, switch_rate, truncated, difference, p_holm, .. } = r;
        let [latent, capped] =
            [r.latent_accuracy, r.forced_exits].map(|e| or_dash(e.map(|e| format!("{:.3}", e.value))));
        let [calls, tokens] = [r.latent_calls, r.visible_tokens].map(|e| or_dash(e.map(|e| format!("{:.1}", e.value))));
        let (difference, p) = (cell(*difference, 3), or_dash(p_holm.map(|p| format!("{p:.2e}"))));
        let (switched, truncated) = (switch_rate.value, truncated.value);
        format!(
            "{accuracy:.3} | {difference} | {p} | {latent} | {switched:.3} | {calls} | {tokens} | {capped} | {truncated:.3}"
        )
    };
    let mut lines: Vec<(String, String)> = vec![];
    for row in rows {
        let (group, cells) = (row.group.clone(), cells(row));
        match (lines.last_mut(), group.strip_prefix("k_min:")) {
            // Minima that never delay an exit give the same responses.
            (Some((groups, same)), Some(k_min)) if groups.starts_with("k_min:") && *same == cells => {
                *groups += &format!(", {k_min}");
            }
            _ => lines.push((group, cells)),
        }
    }
    let table = table_of(columns, lines, |(group, cells)| format!("{group} | {cells}"));
    let out = titled("Accuracy by group; intervals of the columns after p are in the row file.", &table);
    if note.is_empty() { out } else { format!("{out}\n{note}") }
}
