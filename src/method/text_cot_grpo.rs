//! Text-CoT, then GRPO on text alone: the control that the paper lacks. What reinforcement learning gives without latents.

use super::Method;
use super::phase::{Panel, Phase, TableRow, Work};
use super::text_cot::BASE;
use crate::recipe::Grpo;

pub(super) const METHODS: &[Method] = &[Method {
    name: "text_cot_grpo",
    about: "the visible chain of thought, then GRPO without latents",
    phases: &[BASE, TEXT_COT_GRPO],
    ..Method::PLAIN
}];

pub(super) const TEXT_COT_GRPO: Phase = Phase {
    name: "text_cot_grpo",
    from: Some(BASE.name),
    reads: &["grpo", "evaluation"],
    row: TableRow::Ours("Text-CoT, then GRPO without latents (control)"),
    panel: Panel::Text,
    work: Work::Grpo(|recipe| Grpo { gumbel: 0.0, latent_noise: 0.0, ..recipe.grpo.clone() }),
};
