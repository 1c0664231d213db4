//! What a method declares of a phase. Knows rows and settings; how they are driven is `train`'s.

use anyhow::Result;

use super::Recipe;
use super::objective::{CrossEntropy, Objective};
use super::schedule::LrSchedule;
use crate::corpus::{Corpus, Row};
use crate::latent::Reasoning;
use crate::model::Decoder;
use crate::recipe::{Grpo, Stage};
use crate::text::tagging::TaggedLine;

/// One phase of a method's training. Every phase but the annotation writes a checkpoint.
#[derive(Clone, Copy)]
pub struct Phase {
    /// Its folder in a run, its name in tables.
    pub name: &'static str,
    /// The phase that it starts from; `None` for the initial model.
    pub from: Option<&'static str>,
    /// Tables and keys of the recipe that its weights depend on, besides those of the phases before it and what every phase depends on.
    pub reads: &'static [&'static str],
    /// Its row of tab:main.
    pub row: TableRow,
    /// Where fig:pareto and fig:passes have a mark of it.
    pub panel: Panel,
    pub work: Work,
}

/// The row of a phase in the paper's main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableRow {
    /// A row that the paper has, by its key.
    Paper(&'static str),
    /// A row below those of the paper, with its caption. What it has last in parentheses is the name in figures.
    Ours(&'static str),
    None,
}

/// Panels of accuracy against the cost of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    /// Methods that write their reasoning, or most of it.
    Text,
    /// Methods that do not.
    Latent,
    None,
}

/// What a phase does.
#[derive(Clone, Copy)]
pub enum Work {
    /// Learns from rows.
    Supervised(for<'a> fn(Context<'a>) -> Result<SupervisedPhase<'a>>),
    /// Scores the training corpus with the annotator of the phase that it starts from and tags it.
    Annotate,
    /// Copies a checkpoint of the phase that it starts from, named by the recipe, and evaluates it.
    Take(fn(&Recipe) -> String),
    /// Takes over that checkpoint of the phase's stages which answers most validation problems, and measures it.
    TakeBest,
    /// Decodes the finished checkpoint of the phase that it starts from by another rule: training-free methods, and what others start
    /// from, with untrained heads that `model` adds.
    Decode { model: fn(&Recipe, Decoder) -> Result<Decoder>, reasoning: fn(&Recipe, &Corpus) -> Result<Reasoning> },
    /// GRPO with these settings of the recipe.
    Grpo(fn(&Recipe) -> Grpo),
}

/// Decoded as it is.
pub(super) fn as_it_is(_: &Recipe, model: Decoder) -> Result<Decoder> {
    Ok(model)
}

/// What a declaration may look at.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub recipe: &'a Recipe,
    pub corpus: &'a Corpus,
    /// The annotation, in the order of the corpus; empty in a run without one.
    pub tagged: &'a [TaggedLine],
}

/// A row of the corpus as it looks at a step.
pub(crate) type RowAt<'a> = Box<dyn Fn(usize, usize) -> Result<Row> + 'a>;

/// A supervised phase.
pub struct SupervisedPhase<'a> {
    /// Names the order in which samples are drawn: phases to be compared draw alike.
    pub stream: &'static str,
    pub batch: usize,
    /// What each sample costs, in tokens: batches are made of like lengths.
    pub lengths: Vec<usize>,
    /// Learning rates, and the number of steps.
    pub schedule: LrSchedule,
    /// `(step, sample)` → the row that is learnt.
    pub row: RowAt<'a>,
    pub objective: Box<dyn Objective>,
    /// How the finished checkpoint reasons.
    pub reasoning: Reasoning,
    /// Checkpoints that are saved during training.
    pub exports: Vec<Export>,
    /// Steps before which the optimiser forgets its state.
    pub resets: Vec<usize>,
    /// Steps before which the learning-rate schedule begins anew.
    pub restarts: Vec<usize>,
    /// Exports `annotator` at the first window of steps with this token accuracy; 0 never.
    pub annotator_accuracy: f64,
}

impl<'a> SupervisedPhase<'a> {
    /// A phase of one stage that learns text by cross-entropy; `stream` is also the method that its checkpoint names.
    pub fn new(
        stream: &'static str,
        batch: usize,
        lengths: Vec<usize>,
        schedule: LrSchedule,
        row: impl Fn(usize, usize) -> Result<Row> + 'a,
    ) -> Self {
        Self {
            stream,
            batch,
            lengths,
            schedule,
            row: Box::new(row),
            objective: Box::new(CrossEntropy::text()),
            reasoning: Reasoning::text(stream),
            exports: vec![],
            resets: vec![],
            restarts: vec![],
            annotator_accuracy: 0.0,
        }
    }
}

/// The folder of the checkpoint at the end of a stage that is not the last.
pub(crate) fn stage_name(k: usize, c: Option<f64>) -> String {
    format!("stage-{k}{}", c.map_or_else(String::new, |c| format!("-c{c}")))
}

/// A checkpoint on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// After this many steps.
    pub after: usize,
    /// Its folder in the phase's.
    pub name: String,
    /// The stage of the curriculum that ends here: it is measured when the phase is done.
    pub stage: Option<Stage>,
    /// How it reasons, where that is not how the finished checkpoint does.
    pub reasoning: Option<Reasoning>,
}

impl Export {
    /// The end of a stage, and how its checkpoint reasons. A stage that sets `c` has it in its name.
    pub fn stage(after: usize, stage: &Stage, reasoning: Reasoning) -> Self {
        let name = stage_name(stage.k, stage.c);
        Self { after, name, stage: Some(stage.clone()), reasoning: Some(reasoning) }
    }
}
