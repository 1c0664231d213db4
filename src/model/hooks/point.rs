//! Hook points: the names of TransformerLens, plus those of latent steps.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

use super::aliases;
use crate::names::distance;

/// Quantity at a point. Shapes as in the module table of [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PointKind {
    Embed,
    /// The rows of learned positions.
    PosEmbed,
    ResidPre,
    Ln1Scale,
    Ln1Normalized,
    /// Of a second norm, after attention.
    Ln1PostScale,
    Ln1PostNormalized,
    Q,
    K,
    V,
    RotQ,
    RotK,
    AttnScores,
    Pattern,
    Z,
    /// Per-head output before the sum over heads. Opt-in: no wildcard matches its last segment.
    Result,
    AttnOut,
    ResidMid,
    Ln2Scale,
    Ln2Normalized,
    /// Of a second norm, after the MLP.
    Ln2PostScale,
    Ln2PostNormalized,
    MlpPre,
    MlpPreLinear,
    MlpPost,
    /// The router's probabilities, which select and weight experts.
    ExpertWeights,
    MlpOut,
    ResidPost,
    LnFinalScale,
    LnFinalNormalized,
    /// The hidden state that a latent position will read, after the final norm: `[B, 1, D]`.
    LatentSource,
    /// Input embedding of a latent position: `[B, 1, D]`.
    LatentInjected,
    /// Logits at the positions where the decoder may switch: `[B, 1, V]`.
    BoundaryLogits,
}

const PER_LAYER: [(PointKind, &str); 26] = [
    (PointKind::ResidPre, "hook_resid_pre"),
    (PointKind::Ln1Scale, "ln1.hook_scale"),
    (PointKind::Ln1Normalized, "ln1.hook_normalized"),
    (PointKind::Q, "attn.hook_q"),
    (PointKind::K, "attn.hook_k"),
    (PointKind::V, "attn.hook_v"),
    (PointKind::RotQ, "attn.hook_rot_q"),
    (PointKind::RotK, "attn.hook_rot_k"),
    (PointKind::AttnScores, "attn.hook_attn_scores"),
    (PointKind::Pattern, "attn.hook_pattern"),
    (PointKind::Z, "attn.hook_z"),
    (PointKind::Result, "attn.hook_result"),
    (PointKind::Ln1PostScale, "ln1_post.hook_scale"),
    (PointKind::Ln1PostNormalized, "ln1_post.hook_normalized"),
    (PointKind::AttnOut, "hook_attn_out"),
    (PointKind::ResidMid, "hook_resid_mid"),
    (PointKind::Ln2Scale, "ln2.hook_scale"),
    (PointKind::Ln2Normalized, "ln2.hook_normalized"),
    (PointKind::MlpPre, "mlp.hook_pre"),
    (PointKind::MlpPreLinear, "mlp.hook_pre_linear"),
    (PointKind::MlpPost, "mlp.hook_post"),
    (PointKind::ExpertWeights, "mlp.hook_expert_weights"),
    (PointKind::Ln2PostScale, "ln2_post.hook_scale"),
    (PointKind::Ln2PostNormalized, "ln2_post.hook_normalized"),
    (PointKind::MlpOut, "hook_mlp_out"),
    (PointKind::ResidPost, "hook_resid_post"),
];

const GLOBAL: [(PointKind, &str); 7] = [
    (PointKind::Embed, "hook_embed"),
    (PointKind::PosEmbed, "hook_pos_embed"),
    (PointKind::LnFinalScale, "ln_final.hook_scale"),
    (PointKind::LnFinalNormalized, "ln_final.hook_normalized"),
    (PointKind::LatentSource, "latent.hook_source"),
    (PointKind::LatentInjected, "latent.hook_injected"),
    (PointKind::BoundaryLogits, "boundary.hook_logits"),
];

impl PointKind {
    fn suffix(self) -> &'static str {
        PER_LAYER.iter().chain(&GLOBAL).find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Whether the stream is divided by the value: the scale of any norm.
    pub(crate) fn is_scale(self) -> bool {
        self.suffix().ends_with("hook_scale")
    }

    /// The axis that counts positions of the span.
    pub(crate) fn position_axis(self) -> usize {
        if self.is_attention() { 2 } else { 1 }
    }
}

/// A named place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HookPoint {
    /// `None` for the points outside the blocks.
    pub layer: Option<usize>,
    pub kind: PointKind,
}

impl HookPoint {
    pub const fn new(kind: PointKind) -> Self {
        Self { layer: None, kind }
    }

    pub const fn at(layer: usize, kind: PointKind) -> Self {
        Self { layer: Some(layer), kind }
    }

    /// Every point of a model with `layers` blocks: the embedding, the blocks in firing order, all others.
    pub fn all(layers: usize) -> Vec<Self> {
        let mut points = vec![Self::new(PointKind::Embed)];
        for layer in 0..layers {
            points.extend(PER_LAYER.iter().map(|(kind, _)| Self::at(layer, *kind)));
        }
        points.extend(GLOBAL.iter().skip(1).map(|(kind, _)| Self::new(*kind)));
        points
    }

    /// The points of a pattern: `*` matches one segment, a negative layer counts from the end. Some names of other libraries are accepted
    /// too.
    ///
    /// # Errors
    /// A pattern without matches; the message has the nearest existing name.
    pub fn resolve(pattern: &str, layers: usize) -> Result<Vec<Self>> {
        let ours = aliases::ours(pattern);
        let normal = match &ours {
            Some(ours) => absolute_layer(ours, layers).with_context(|| format!("unknown hook `{pattern}`"))?,
            None => absolute_layer(pattern, layers)?,
        };
        let opt_in = normal.ends_with(".hook_result");
        let found: Vec<Self> = Self::all(layers)
            .into_iter()
            .filter(|point| point.kind != PointKind::Result || opt_in)
            .filter(|point| matches(&normal, &point.to_string()))
            .collect();
        ensure!(
            !pattern.contains('['),
            "`{pattern}`: heads are selected in changes only; record the hook without `[…]` and index its head axis"
        );
        if found.is_empty() {
            let near = nearest(&normal, layers);
            bail!(
                "unknown hook `{pattern}`: this model has {layers} layers (0..={}); did you mean `{near}`?",
                layers.saturating_sub(1)
            );
        }
        Ok(found)
    }
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "blocks.{layer}.{}", self.kind.suffix()),
            None => f.write_str(self.kind.suffix()),
        }
    }
}

fn absolute_layer(pattern: &str, layers: usize) -> Result<String> {
    let mut parts: Vec<String> = pattern.split('.').map(str::to_owned).collect();
    if parts.first().is_some_and(|p| p == "blocks")
        && let Some(layer) = parts.get_mut(1)
        && let Ok(n) = layer.parse::<i64>()
    {
        let wanted = if n < 0 { n + layers as i64 } else { n };
        if wanted < 0 || wanted >= layers as i64 {
            bail!("unknown hook `{pattern}`: layer {n} does not exist, the model has {layers} layers");
        }
        *layer = wanted.to_string();
    }
    Ok(parts.join("."))
}

fn matches(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.split('.'), name.split('.'));
    loop {
        match (p.next(), n.next()) {
            (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(a), Some(b)) if a == b || segment_glob(a, b) => {}
            _ => return false,
        }
    }
}

/// `hook_resid_*` inside one segment: at most one star.
fn segment_glob(pattern: &str, segment: &str) -> bool {
    pattern.split_once('*').is_some_and(|(head, tail)| {
        segment.len() >= head.len() + tail.len() && segment.starts_with(head) && segment.ends_with(tail)
    })
}

fn nearest(pattern: &str, layers: usize) -> String {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let wanted = last(pattern);
    let layer = |name: &str| name.strip_prefix("blocks.").and_then(|rest| rest.split('.').next()).map(str::to_owned);
    let written = layer(pattern);
    let names = HookPoint::all(layers.max(1)).into_iter().map(|p| p.to_string());
    // `resid_post` is part of the intended name. Of the same point in several layers the written layer is meant.
    let found = names.min_by_key(|name| {
        (!last(name).contains(&wanted), distance(&last(name), &wanted), layer(name) != written, distance(name, pattern))
    });
    let found = found.unwrap_or_default();
    match (written, layer(&found)) {
        (Some(written), Some(any)) if written.contains('*') => {
            found.replacen(&format!("blocks.{any}."), &format!("blocks.{written}."), 1)
        }
        _ => found,
    }
}
