//! Without curriculum, a control of Coconut (Hao et al. 2024): its last stage alone, for as many steps as all its stages have. No row
//! is of another stage, whatever `coconut.smoothing` and `coconut.mixing`.

use anyhow::Result;

use super::Method;
use super::batches::per_epoch;
use super::coconut::curriculum;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use super::stages::Stages;
use crate::latent::Source;
use crate::recipe::{Coconut, Recipe, Stage};

pub(crate) struct CoconutNoCurriculum;

impl Method for CoconutNoCurriculum {
    fn name(&self) -> &'static str {
        "coconut_no_curriculum"
    }

    fn about(&self) -> &'static str {
        "Coconut's last stage alone, for as many steps as all its stages (control)"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        let own = Phase { name: "coconut_no_curriculum", work: Work::Supervised(coconut_no_curriculum) };
        vec![super::text_cot::BASE, own]
    }
}

fn coconut_no_curriculum(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let theirs = &context.recipe.coconut;
    let stages = Stages::new(&theirs.schedule(), per_epoch(context.corpus.train.len(), theirs.batch));
    let last = stages.last().map(|last| Stage { steps: stages.steps(), epochs: 0.0, ..last.clone() });
    let stages = last.into_iter().collect();
    let settings = Coconut { stages, smoothing: 0.0, mixing: 0.0, ..theirs.clone() };
    curriculum(context, "coconut_no_curriculum", settings, Source::HiddenState)
}
