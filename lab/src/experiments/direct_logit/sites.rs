//! Which decisions are explained. Knows positions and tokens.

use crate::latent::{SwitchIds, text_mask};
use crate::schema::{Form, Target};
use crate::study::circuits::SolutionForms;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub target: Target,
    /// Index of the latent step that says it; absent at text.
    pub step: Option<usize>,
    pub token: u32,
    /// Tokens that cannot be drawn there.
    pub masked: Vec<u32>,
    /// The position whose state decides it and, of a latent, those before it down to the block's `<swi>`.
    pub chain: Vec<usize>,
}

/// The decisions of a solution in one form: at text as the decoder masks it, at latent steps over all tokens.
pub fn decisions(written: &SolutionForms, form: Form, ids: SwitchIds) -> Vec<Decision> {
    let masked = text_mask(&ids, true);
    let text = |target, token, at| Decision { target, step: None, token, masked: masked.clone(), chain: vec![at] };
    let mut out = vec![];
    let answer = written.answer.map(|said| said.token);
    out.extend(written.answer_decided(form).zip(answer).map(|(at, token)| text(Target::Answer, token, at)));
    for (number, block) in written.blocks.iter().enumerate() {
        if form == Form::Text {
            out.extend(block.value.map(|said| text(Target::Value, said.token, said.at - 1)));
            continue;
        }
        // A prompt is never empty: something stands before `<swi>`.
        out.push(text(Target::Swi, ids.swi, block.swi - 1));
        let last = number + 1 == written.blocks.len();
        let tokens = [
            (Target::SwiEnd, Some(ids.swi_end)),
            (Target::Value, block.value.map(|said| said.token)),
            (Target::Answer, answer.filter(|_| last)),
        ];
        for (step, position) in block.latents.clone().enumerate() {
            for (target, token) in tokens.iter().filter_map(|(target, token)| Some((*target, (*token)?))) {
                let chain = (block.swi..=position).rev().collect();
                out.push(Decision { target, step: Some(step), token, masked: vec![], chain });
            }
        }
    }
    out
}
