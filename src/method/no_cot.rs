//! No-CoT: the answer alone, on the checkpoint of `base` as every other method, or on the initial model
//! (`no_cot.from_base = false`). What a model knows without a chain of thought.

use anyhow::Result;

use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::Row;
use crate::recipe::Range::{Count, Typed};
use crate::recipe::STEPS;

settings! {
    /// The answer alone: batch and learning rate are those of `base`.
    pub struct Settings {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Starts from the checkpoint of `base`, as every other method does; otherwise from the initial model. `pause` starts alike.
        pub from_base: bool = true => Typed,
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "no_cot",
    about: "the answer alone, without a chain of thought",
    phases: &[BASE, NO_COT],
    adjust: start,
    lacks: |recipe| (recipe.no_cot.steps == 0).then_some("no_cot.steps must be at least 1"),
    ..Method::PLAIN
}];

pub(super) const NO_COT: Phase = Phase {
    name: "no_cot",
    from: Some(BASE.name),
    reads: &["no_cot", "base"],
    row: TableRow::Paper("no_cot"),
    panel: Panel::Latent,
    work: Work::Supervised(no_cot),
};

/// The answer alone is learnt after `base` or, where `no_cot.from_base` is off, from the initial model.
pub(super) fn start(recipe: &Recipe, phases: &mut Vec<Phase>) {
    if !recipe.no_cot.from_base {
        phases.retain(|phase| phase.name != BASE.name);
        phases.iter_mut().for_each(|phase| phase.from = None);
    }
}

pub(super) fn no_cot(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let (base, steps) = (&recipe.base, recipe.no_cot.steps);
    let rows: Vec<Row> = corpus.train.iter().map(|s| Row::answer_only(s, corpus.end)).collect::<Result<_>>()?;
    let lengths = rows.iter().map(|row| row.ids.len()).collect();
    let schedule = LrSchedule { peak: base.learning_rate, warmup: base.warmup, cosine_from: 0, steps };
    Ok(SupervisedPhase::new("no_cot", base.batch, lengths, schedule, move |_, i| Ok(rows[i].clone())))
}
