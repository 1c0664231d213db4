//! A token's embedding instead of the state: of `</swi>`, or of the token that the state would say.

use super::{About, Acts, Intervention, LatentPlace};
use crate::model::{Activation, Decoder};

pub(super) const ABOUT: &[About] = &[
    About::new("embedding", Acts::OnLatents, |m, _| Box::new(exit(m.exit))),
    About::new("embedding_argmax", Acts::OnLatents, |m, _| Box::new(argmax(m.model))),
];

/// `E[</swi>]` at every step: the position computes, but is handed nothing. Misleads: an embedding's norm and place are
/// those of text, which a model that has only ever seen states there may treat as noise.
fn exit(row: &[f32]) -> impl Intervention {
    move |_: &LatentPlace, _: &[f32]| Some(row.to_vec())
}

/// The embedding of the most probable next token of the state (any token, the special ones too): what text in its place
/// would have handed on. Where it changes nothing, the latent step is a token in disguise. Misleads: it keeps the first
/// choice of a distribution only, so a loss may be that of rounding, not of a continuous thought; and whoever reads that token
/// in text may read it here too, where no state is read (its false alarms in `reports/calibration`).
fn argmax(model: Option<&Decoder>) -> impl Intervention {
    move |_: &LatentPlace, h: &[f32]| {
        let model = model?;
        let row = model.embed(&[vec![model.next_token(h)?]]).ok()?;
        Activation::Rank3(row).to_vec().ok()
    }
}
