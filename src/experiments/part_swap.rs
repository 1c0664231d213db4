//! Which part of the weights carries a later phase's change: each part of one phase is put into the other, and all problems are decoded
//! again.
//!
//! A sufficient part raises the earlier phase if the later one's is put in; a necessary part lowers the later phase if the earlier one's
//! is. Parts interact: changes of parts need not sum to that of `all`, and a layer may have an effect that neither of its halves has.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use super::About;
pub use super::NoSettings as Config;
use super::markdown::table_of;
use crate::evaluation::Scores;
use crate::model::{Decoder, Half};
use crate::schema::{Host, PartSwapRow, adjust};
use crate::stats::{Flips, LEVEL};
use crate::study::{DoesNotApply, Study};

pub const ABOUT: About =
    About::asking("which part of the weights carries a later phase's change (needs two phases)").on_request();

#[derive(Clone, Copy, Debug)]
enum WeightPart {
    Embed,
    Half(usize, Half),
    Block(usize),
    Head,
    All,
}

impl WeightPart {
    fn all(layers: usize) -> Vec<Self> {
        let of = |layer| [Self::Half(layer, Half::Attention), Self::Half(layer, Half::FeedForward), Self::Block(layer)];
        let blocks = (0..layers).flat_map(of);
        [Self::Embed].into_iter().chain(blocks).chain([Self::Head, Self::All]).collect()
    }

    fn name(self) -> String {
        match self {
            Self::Embed => "embed".into(),
            Self::Half(layer, Half::Attention) => format!("blocks.{layer}.attn"),
            Self::Half(layer, Half::FeedForward) => format!("blocks.{layer}.mlp"),
            Self::Block(layer) => format!("blocks.{layer}"),
            Self::Head => "head".into(),
            Self::All => "all".into(),
        }
    }

    /// `model` with this part of `other`.
    fn put(self, model: &Decoder, other: &Decoder) -> Decoder {
        let mut model = model.clone();
        match self {
            Self::Embed => {
                model.embed_tokens = other.embed_tokens.clone();
                model.embed_positions = other.embed_positions.clone();
            }
            Self::Half(layer, half) => model.layers[layer].take(half, &other.layers[layer]),
            Self::Block(layer) => model.layers[layer] = other.layers[layer].clone(),
            Self::Head => {
                model.norm = other.norm.clone();
                model.lm_head = other.lm_head.clone();
            }
            Self::All => model = other.clone(),
        }
        model
    }
}

/// One row per part and recipient phase.
///
/// # Errors
/// [`DoesNotApply`] to phases of different shapes or problems; failures of the models.
pub fn rows(first: &Study, second: &Study) -> Result<Vec<PartSwapRow>> {
    let (a, b) = (first.model.config(), second.model.config());
    let same = a == b && first.corpus.test.len() == second.corpus.test.len();
    let differ = || DoesNotApply::because(format!("{} and {} have other shapes or problems", first.name, second.name));
    ensure!(same, differ());
    let parts = WeightPart::all(a.num_hidden_layers);
    let counted = second.counted("parts swapped", 2 * parts.len());
    let mut rows = vec![];
    for part in parts {
        let weight_change = change(&first.model, &part.put(&first.model, &second.model))?;
        for (host, study, other) in [(Host::Earlier, first, second), (Host::Later, second, first)] {
            let before = study.decoded()?.0;
            let after = study.decode_with(&part.put(&study.model, &other.model), &study.corpus)?;
            let flips = |of: fn(&crate::evaluation::Outcome) -> bool| {
                let of = |scores: &Scores| scores.outcomes.iter().map(of).collect::<Vec<bool>>();
                Flips::count(&of(before), &of(&after))
            };
            let (right, switched) = (flips(|o| o.correct)?, flips(|o| o.switched)?);
            rows.push(PartSwapRow {
                identity: second.identity(after.outcomes.len()),
                against: first.name.clone(),
                part: part.name(),
                host,
                weight_change,
                accuracy: after.accuracy,
                accuracy_change: right.change(LEVEL)?,
                guess: Some(second.corpus.guess()),
                switch_rate: after.switch_rate,
                switch_change: switched.change(LEVEL)?,
                p_holm: right.p_value(),
            });
            counted.add_one();
        }
    }
    adjust(rows.iter_mut().map(|row| &mut row.p_holm))?;
    Ok(rows)
}

/// Frobenius norm of the difference, relative to the tensors that differ; 0 without a difference.
fn change(model: &Decoder, swapped: &Decoder) -> Result<f64> {
    let before: HashMap<_, _> = model.export()?.into_iter().collect();
    let (mut moved, mut whole) = (0.0_f64, 0.0_f64);
    for (name, after) in swapped.export()? {
        let Some(before) = before.get(&name).filter(|before| before.data != after.data) else { continue };
        for (x, y) in before.data.iter().zip(&after.data) {
            moved += f64::from(y - x).powi(2);
            whole += f64::from(*x).powi(2);
        }
    }
    Ok(if moved == 0.0 { 0.0 } else { (moved / whole).sqrt() })
}

pub fn table(rows: &[PartSwapRow]) -> String {
    let columns =
        "part | into | change of weights | accuracy [95 %] | change | switch rate | change | p (Holm) | verdict";
    table_of(columns, rows, |r| {
        let PartSwapRow { part, weight_change, accuracy, accuracy_change, .. } = r;
        let PartSwapRow { switch_rate, switch_change, p_holm, .. } = r;
        let into = if r.host == Host::Earlier { &r.against } else { &r.identity.checkpoint };
        format!(
            "{part} | {into} | {weight_change:.4} | {accuracy:.3} | {accuracy_change:.3} | {switch_rate:.3} | \
             {switch_change:.3} | {p_holm:.1e} | {}",
            r.verdict()
        )
    })
}
