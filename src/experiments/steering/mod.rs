//! Steering: does the answer follow a direction? At one layer × latent step the state is moved along the difference of the mean states of
//! two values, and decoding continues from there.
//!
//! 1. Compute mean states per value on one half of the problems (correct answers of the normal run whose block has a known step, as in
//!    `known_value`).
//! 2. Steer the problems of the other half, each towards a random other value. `add`: add the difference times a dose (`doses`);
//!    `project_out`: remove the state's component along it.
//! 3. Repeat each along a random direction by the same length, one draw per problem and cell.
//! 4. A hit is the answer that arithmetic predicts from the other value; `chance` is counted as in `known_value`.
//!
//! Misleads: a mean of few blocks also contains their letters and lengths. An answer that follows a direction does not show that the model
//! uses it: a large push along any direction towards the answer suffices (compare the doses, and `head_patching`). A late layer at the
//! last step cannot act through that position's own keys and values in earlier layers.

mod trials;

use anyhow::{Result, ensure};

use super::markdown::{table_of, titled};
use super::{About, Files, Journal, Unfit, check_of, layers_named, steps_named};
use crate::nth::Nth;
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::{Count, Each, Positive};
use crate::schema::{RowFile, SteeringRow, SteeringTrialRow, steerings, stream_name};
use crate::stats::grouped_holdout;
use crate::store::Measurements;
use crate::study::Study;
use crate::study::arithmetic::{Arithmetic, is_known, of_study};
use crate::study::block_values::find_block_values;
use crate::study::units::measure_in_memory;
use trials::{Cell, SteeringDirections, Target, Trials, targets};

pub const ABOUT: About =
    About::asking("whether the answer follows a direction: difference of two values' means, by layer × step × dose")
        .on_request();

settings! {
    pub struct Config {
        /// 0 is the input of the first block, l the stream after the l-th; empty: all.
        pub layers: Vec<usize> = vec![],
        /// Latent steps; empty: all that the problems have.
        pub steps: Vec<Nth> = vec![],
        /// Doses of `add`, in differences of the means.
        pub doses: Vec<f64> = vec![0.5, 1.0, 2.0] => Each(&Positive),
        /// Whether to also remove the state's component along the direction.
        pub project_out: bool = true,
        /// Problems that are steered, at most.
        pub problems: usize = 60,
        /// Minimum number of blocks in a value's mean.
        pub least: usize = 5 => Count(1, MOST_ROWS),
    }
}

impl Config {
    fn check(&self, study: &Study) -> Result<()> {
        check_of("steering", self, Self::RANGES)?;
        layers_named("steering", &self.layers, study.model.layers.len())?;
        ensure!(!self.doses.is_empty() || self.project_out, "steering has nothing to do: no doses and no project_out");
        Ok(())
    }

    /// Every cell, of blocks with up to `most` steps.
    fn cells(&self, study: &Study, most: usize) -> Result<Vec<Cell>> {
        let layers = layers_named("steering", &self.layers, study.model.layers.len())?;
        let steps = steps_named("steering", &self.steps, most)?;
        let added = self.doses.iter().map(|&dose| Some(dose));
        let doses: Vec<Option<f64>> = added.chain(self.project_out.then_some(None)).collect();
        let places = layers.into_iter().flat_map(|layer| steps.iter().map(move |&step| (layer, step)));
        let cells = places.flat_map(|(layer, step)| doses.iter().map(move |&dose| Cell { layer, step, dose }));
        Ok(cells.collect())
    }
}

/// Needs a generated task, or solutions with calculations.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    config.check(study)?;
    let why = || {
        format!("{}: steering needs a generated task, or solutions with `steps`, whose steps have numbers", study.name)
    };
    Ok((!is_known(study)).then(why))
}

pub(crate) const FILES: &[Files] = &[(SteeringTrialRow::NAME, SteeringRow::NAME)];

/// Steers the problems that `rows` lacks.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<SteeringTrialRow>) -> Result<()> {
    study.say("steering");
    trials(study, config, of_study(study)?.as_ref(), rows)
}

pub(crate) fn conclude(_: &Config, rows: Measurements<SteeringTrialRow>, journal: &mut Journal) -> Result<String> {
    let rows = steerings(&journal.finish(rows, false)?)?;
    journal.tell(&rows, table)
}

/// One row per cell, in memory; `arithmetic` predicts the answers.
pub fn rows_by(study: &Study, config: &Config, arithmetic: &dyn Arithmetic) -> Result<Vec<SteeringRow>> {
    steerings(&measure_in_memory(|rows| trials(study, config, arithmetic, rows))?)
}

fn trials(
    study: &Study,
    config: &Config,
    arithmetic: &dyn Arithmetic,
    rows: &mut Measurements<SteeringTrialRow>,
) -> Result<()> {
    let sweep = &study.sweep()?;
    config.check(study)?;
    sweep.switches()?;
    let held = find_block_values(sweep, study)?;
    let groups = study.corpus.groups();
    let of_held: Vec<usize> = held.iter().map(|h| groups[h.problem]).collect();
    let needs = |there, what: &str| study.require(there, || format!("steering needs {what}; use more problems"));
    needs(of_held.iter().any(|group| *group != of_held[0]), "two groups of problems with a block of a known step")?;
    let halves = grouped_holdout(&of_held, 0.5, study.seed)?;
    let of = |rows: &[usize]| rows.iter().map(|&row| held[row]).collect::<Vec<_>>();
    let ran = sweep.traces.iter().map(|trace| trace.sequence(&study.corpus.switch));
    let ran = ran.collect::<Result<Vec<_>>>()?;
    let longest = ran.iter().flat_map(|row| row.latent_steps().map(|(_, _, step)| step + 1)).max().unwrap_or(0);
    study.require(longest > 0, || "no problem has a latent step".into())?;
    let cells = config.cells(study, longest)?;
    let directions = SteeringDirections::new(study, &sweep.traces, &of(&halves.train), &cells, config.least)?;
    needs(directions.values.len() > 1, &format!("{} blocks of each of two values", config.least))?;
    let mut targets = targets(study, &of(&halves.test), &directions.values, arithmetic);
    targets.truncate(config.problems);
    needs(targets.len() > 1, "two problems whose answer another value would change")?;
    let identity = study.identity(targets.len());
    let trials = Trials { study, identity: &identity, sweep, cells: &cells, directions: &directions };
    let targets: Vec<(usize, Target)> = targets.into_iter().enumerate().collect();
    let any = targets.iter().any(|(_, target)| trials.reached(target) > 0);
    needs(any, "a block with a step at which both values have means")?;
    let expected = |(number, target): &(usize, Target)| ((None, *number), trials.reached(target));
    let together = study.recipe.evaluation.batch.clamp(1, 16);
    study.measure(rows, &identity, (&targets, together), expected, |some| trials.of_targets(some))
}

/// Markdown: by layer and step, the hit rate of every action next to that of a random direction.
pub fn table(rows: &[SteeringRow]) -> String {
    let table = table_of("layer | step | action | hit rate | chance | random direction | still gold", rows, |r| {
        let SteeringRow { layer, step, action, hit_rate, .. } = r;
        let dose = r.dose.map_or_else(String::new, |dose| format!(" {dose}"));
        let star = if r.follows() { " *" } else { "" };
        let [chance, random, kept] = [r.chance, r.random_hit_rate, r.kept].map(|share| format!("{:.2}", share.value));
        let layer = stream_name(*layer);
        format!("{layer} | {step} | {action}{dose} | {hit_rate:.2}{star} | {chance} | {random} | {kept}")
    });
    titled(
        "Share of answers that became the predicted one [95 %]; `*`: they follow the direction (Holm over all cells).",
        &table,
    )
}
