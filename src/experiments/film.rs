//! The film of a training run: at every stored checkpoint, the effect of each latent step and what can be read from it.
//!
//! 1. Decode the problems unchanged. Replace one latent step at a time by another problem's; where arithmetic is known, by that of a block
//!    with another value.
//! 2. Fit a linear probe for the value of a clause at the last layer of each latent step, split by program.
//! 3. A step that no block reaches has no effect; without any block, no step has.
//!
//! `probe film` runs it on the checkpoints of one phase and tests for changes ([`crate::schema::film_changes`]).

use anyhow::{Result, ensure};

use super::card::caught;
use super::layer_probe::values_at_last_layer;
use super::markdown::table_of;
use super::{About, check_of, latent_intervention};
use crate::interventions::Steps;
use crate::nth::Nth;
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::Count;
use crate::schema::{Features, FilmRow, Holds, InterventionRow, KnownValueRow, NORMAL, ProbeRow, Summary};
use crate::stats::by_problem::cell;
use crate::stats::{Flips, LEVEL, wilson};
use crate::study::Study;
use crate::study::arithmetic::is_known;

pub const ABOUT: About =
    About::asking("effect and readout of each latent step at one checkpoint of a run; `probe film` takes all of them")
        .on_request();

settings! {
    pub struct Config {
        /// Latent steps that are replaced one at a time, from the first, at most.
        pub steps: usize = 8 => Count(1, MOST_ROWS),
        /// The checkpoints of the film in the order of training; empty: this one.
        pub frames: Vec<String> = vec![],
    }
}

/// One row per latent step.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<FilmRow>> {
    check_of("film", config, Config::RANGES)?;
    let place = config.frames.iter().position(|frame| frame.replace('/', "-") == study.short_name());
    ensure!(config.frames.is_empty() || place.is_some(), "film.frames: {} is not among them", study.short_name());
    let steps = study.longest_block().min(config.steps);
    study.require(steps > 0, || "its rule opens no latent block".to_owned())?;
    let known = is_known(study).then_some(KnownValueRow::MODE);
    let asked = latent_intervention::Config {
        modes: [NORMAL, "resample"].into_iter().chain(known).map(str::to_owned).collect(),
        steps: (0..steps).map(Steps::Only).collect(),
        draws: 1,
        ..Default::default()
    };
    let Summary { rows, known } = caught(latent_intervention::summary(study, &asked, None))?.unwrap_or_default().0;
    let probes = caught(values_at_last_layer(study))?.unwrap_or_default();
    let right = study.sweep()?.normal.iter().filter(|outcome| outcome.correct).count();
    let n = study.corpus.test.len();
    let accuracy = wilson(right, n, LEVEL)?;
    let none = Flips { both_right: right, both_wrong: n - right, ..Flips::default() }.change(LEVEL)?;
    let row = |step: usize| {
        let of = |row: &&InterventionRow| row.mode == "resample" && row.steps == Steps::Only(step);
        let follows = |row: &&KnownValueRow| row.steps == Steps::Only(step) && row.holds == Holds::Value;
        let target = format!("value:s_j@{}", Nth::new(step));
        let read = |row: &&ProbeRow| row.features == Features::ResidPost && row.target == target;
        FilmRow {
            identity: study.identity(n),
            frame: Nth::new(place.unwrap_or(0)),
            step: Nth::new(step),
            accuracy,
            effect: rows.iter().find(of).map_or(none, |row| row.accuracy_change.scaled(-1.0)),
            follows: known.iter().find(follows).map(|row| row.above_chance),
            readout: probes.iter().find(read).map(ProbeRow::beyond_chance),
        }
    };
    Ok((0..steps).map(row).collect())
}

pub fn table(rows: &[FilmRow]) -> String {
    let columns = "step | effect of resample [95 %] | follows the value | readout";
    table_of(columns, rows, |row| {
        format!("{} | {:.3} | {} | {}", row.step, row.effect, cell(row.follows, 3), cell(row.readout, 3))
    })
}
