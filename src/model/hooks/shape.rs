//! Shape of the value at a hook point, for a model of given settings. Knows numbers, no tensors.

use std::ops::Range;

use super::{HookPoint, Place, PointKind};
use crate::model::ModelConfig;
use crate::model::config::NormPlace;

impl HookPoint {
    /// Whether a model of these settings has the point.
    pub fn is_in(self, config: &ModelConfig) -> bool {
        self.kind.is_in(config, self.layer)
    }
}

impl PointKind {
    /// Whether its last two axes are queries and keys, `[B, H, L, T]`; every other value is `[B, L, …]`.
    pub(crate) fn is_attention(self) -> bool {
        matches!(self, PointKind::AttnScores | PointKind::Pattern)
    }

    /// Whether only latent steps pass through the point.
    pub fn is_latent(self) -> bool {
        matches!(self, PointKind::LatentSource | PointKind::LatentInjected)
    }

    /// Whether a model has such a point in a layer.
    fn is_in(self, config: &ModelConfig, layer: Option<usize>) -> bool {
        let (family, sparse) = (config.family, layer.is_some_and(|layer| config.experts(layer).is_some()));
        match self {
            PointKind::PosEmbed => family.learned_positions,
            PointKind::RotQ | PointKind::RotK => !family.learned_positions,
            PointKind::ExpertWeights => sparse,
            PointKind::MlpPre | PointKind::MlpPost if sparse => false,
            PointKind::MlpPreLinear => family.is_gated && !sparse,
            PointKind::Ln1PostScale
            | PointKind::Ln1PostNormalized
            | PointKind::Ln2PostScale
            | PointKind::Ln2PostNormalized => family.norm_place == NormPlace::Both,
            _ => true,
        }
    }

    /// The axes after `[B, L]`; `None` for scores and pattern, whose last axis grows with the sequence.
    pub(crate) fn tail(self, config: &ModelConfig) -> Option<Vec<usize>> {
        let (d, f, dh) = (config.hidden_size, config.intermediate_size, config.head_dim);
        let (h, h_kv) = (config.num_attention_heads, config.num_key_value_heads);
        Some(match self {
            PointKind::AttnScores | PointKind::Pattern => return None,
            PointKind::Ln1Scale
            | PointKind::Ln1PostScale
            | PointKind::Ln2Scale
            | PointKind::Ln2PostScale
            | PointKind::LnFinalScale => vec![1],
            PointKind::Q | PointKind::RotQ | PointKind::Z => vec![h, dh],
            PointKind::K | PointKind::RotK | PointKind::V => vec![h_kv, dh],
            PointKind::Result => vec![h, d],
            PointKind::MlpPre | PointKind::MlpPreLinear | PointKind::MlpPost => vec![f],
            PointKind::ExpertWeights => vec![config.extras.experts.as_ref().map_or(0, |experts| experts.count)],
            PointKind::BoundaryLogits => vec![config.vocab_size],
            PointKind::Embed
            | PointKind::PosEmbed
            | PointKind::ResidPre
            | PointKind::Ln1Normalized
            | PointKind::Ln1PostNormalized
            | PointKind::AttnOut
            | PointKind::ResidMid
            | PointKind::Ln2Normalized
            | PointKind::Ln2PostNormalized
            | PointKind::MlpOut
            | PointKind::ResidPost
            | PointKind::LnFinalNormalized
            | PointKind::LatentSource
            | PointKind::LatentInjected => vec![d],
        })
    }

    /// Number of heads of the values; `None` for a point without heads.
    pub(crate) fn heads(self, config: &ModelConfig) -> Option<usize> {
        let tail = self.tail(config).unwrap_or_else(|| vec![config.num_attention_heads, 0]);
        (tail.len() == 2).then(|| tail[0])
    }

    /// The shape as a reader of a list sees it: `[B, L, 9, 64]`.
    pub fn shape(self, config: &ModelConfig) -> String {
        let Some(tail) = self.tail(config) else { return format!("[B, {}, L, T]", config.num_attention_heads) };
        let tail: Vec<String> = tail.iter().map(usize::to_string).collect();
        format!("[B, L, {}]", tail.join(", "))
    }

    /// Ranges of the values of one place in an activation of these axes, row-major: one range per head; one range if the point has no heads.
    pub(crate) fn ranges(self, dims: &[usize], place: &Place) -> Vec<Range<usize>> {
        let run = |number: usize, width: usize| number * width..(number + 1) * width;
        match *dims {
            [_, h, l, t] if self.is_attention() => {
                (0..h).map(|head| run((place.batch * h + head) * l + place.index, t)).collect()
            }
            [_, l, h, w] => (0..h).map(|head| run((place.batch * l + place.index) * h + head, w)).collect(),
            [_, l, w] => vec![run(place.batch * l + place.index, w)],
            _ => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Step;

    #[test]
    fn a_place_is_one_range_a_head() {
        let place = Place { batch: 1, index: 2, row: 7, position: 9, step: Step::Prompt };
        let at = |kind: PointKind, dims: &[usize]| kind.ranges(dims, &place).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(at(PointKind::ResidPost, &[2, 3, 4]), (20..24).collect::<Vec<_>>());
        assert_eq!(at(PointKind::Z, &[2, 3, 2, 4]), (40..48).collect::<Vec<_>>());
        // [B 2, H 2, L 3, T 5]: batch 1 begins at 30, its second head at 45.
        assert_eq!(at(PointKind::Pattern, &[2, 2, 3, 5]), (40..45).chain(55..60).collect::<Vec<_>>());
    }
}
