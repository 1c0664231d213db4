//! A third-party method: no chain of thought, and a fixed number of latents after the question.

use anyhow::Result;

use super::Method;
use super::curriculum::block;
use super::objective::CrossEntropy;
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use crate::corpus::Row;
use crate::latent::{Blocks, Gradient, Reasoning, Source};
use crate::recipe::Range::Count;
use crate::recipe::{POSITIONS, STEPS, fits};

settings! {
    /// Batch and learning rate are those of `base`.
    pub struct Settings {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Latents after the question.
        pub latents: usize = 2 => Count(1, POSITIONS),
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "dots",
    about: "the answer alone, after a fixed number of latents",
    phases: &[Phase {
        name: "dots",
        from: None,
        reads: &["dots", "base"],
        row: TableRow::Ours("a fixed number of latents (dots)"),
        panel: Panel::Latent,
        work: Work::Supervised(dots),
    }],
    lacks: |recipe| (recipe.dots.steps == 0).then_some("dots.steps must be at least 1"),
    check: |recipe| fits("dots.latents", recipe.dots.latents),
    ..Method::PLAIN
}];

fn dots(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let Settings { steps, latents } = recipe.dots;
    let block = block(latents, corpus.switch);
    let row = |sample| Ok(Row::answer_only(sample, corpus.end)?.after(&block));
    let rows: Vec<Row> = corpus.train.iter().map(row).collect::<Result<_>>()?;
    let lengths = rows.iter().map(|row| row.ids.len()).collect();
    let schedule = LrSchedule { peak: recipe.base.learning_rate, warmup: 10, cosine_from: 0, steps };
    Ok(SupervisedPhase {
        objective: Box::new(CrossEntropy { source: Source::HiddenState, gradient: Gradient::Through }),
        reasoning: Reasoning {
            method: "dots".into(),
            blocks: Blocks::AfterPrompt { steps: latents },
            trained_dwell: vec![latents],
            ..Reasoning::default()
        },
        ..SupervisedPhase::new("dots", recipe.base.batch, lengths, schedule, move |_, i| Ok(rows[i].clone()))
    })
}
