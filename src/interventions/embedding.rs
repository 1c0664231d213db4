//! A token's embedding instead of the state: that of `</swi>`, or of the state's most probable token.

use super::{Acts, Intervention, InterventionAbout, LatentPlace};
use crate::model::{Activation, Decoder};

pub(super) const ABOUT: &[InterventionAbout] = &[
    InterventionAbout::new("embedding", Acts::OnLatents, |m, _| Box::new(exit(m.exit))),
    InterventionAbout::new("embedding_argmax", Acts::OnLatents, |m, _| Box::new(argmax(m.model))),
];

/// `E[</swi>]` at every step: the position computes without an incoming state. Misleads: an embedding has the norm and direction of
/// text, which a model that has only seen states there may treat as noise.
fn exit(row: &[f32]) -> impl Intervention {
    move |_: &LatentPlace, _: &[f32]| Some(row.to_vec())
}

/// The embedding of the most probable next token of the state (any token, special ones too): the input that text would have given. If it
/// changes nothing, the latent step is a token in disguise. Misleads: it preserves only the first choice of a distribution, so that a
/// loss may be due to rounding, not to a continuous thought; and a head that reads this token in text may read it here, although it
/// reads no state (its false alarms in `reports/calibration`).
fn argmax(model: Option<&Decoder>) -> impl Intervention {
    move |_: &LatentPlace, h: &[f32]| {
        let model = model?;
        let row = model.embed(&[vec![model.next_token(h)?]]).ok()?;
        Activation::Rank3(row).to_vec().ok()
    }
}
