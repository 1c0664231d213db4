//! Scaling of rotary frequencies beyond the trained length: three of the rules of transformers' `modeling_rope_utils.py`. The others
//! depend on the length of the sequence and are refused.

use std::f64::consts::PI;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The rule, by its `rope_type`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Every frequency divided by this (Chen et al. 2023, arXiv:2306.15595).
    Linear(f64),
    Llama3(Llama3Scaling),
    Yarn(YarnScaling),
}

/// Llama 3's stretching of the low rotary frequencies (`rope_type = "llama3"`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_position_embeddings: usize,
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071): slow frequencies are divided by `factor`, fast ones unchanged, with a ramp between;
/// queries and keys are both multiplied by `attention_factor`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct YarnScaling {
    pub factor: f64,
    pub original_max_position_embeddings: usize,
    /// Frequencies with at least this many rotations over the original length are unchanged.
    pub beta_fast: f64,
    /// Frequencies with at most this many rotations are divided by `factor`.
    pub beta_slow: f64,
    pub attention_factor: f64,
    /// Whether the ramp begins and ends at whole numbers of pairs.
    pub truncate: bool,
}

impl RopeScaling {
    /// The inverse frequencies `base`, `[dh / 2]`, of a model of this `theta`, stretched.
    pub(super) fn apply(&self, base: Vec<f64>, theta: f64) -> Vec<f64> {
        match self {
            RopeScaling::Linear(factor) => base.into_iter().map(|f| f / factor).collect(),
            RopeScaling::Llama3(s) => base.into_iter().map(|f| f / s.divisor(f)).collect(),
            RopeScaling::Yarn(s) => s.apply(base, theta),
        }
    }

    /// Scale of rotated queries and keys.
    pub(super) fn attention_factor(&self) -> f64 {
        if let RopeScaling::Yarn(s) = self { s.attention_factor } else { 1.0 }
    }

    pub(super) fn to_json(self) -> Value {
        match self {
            RopeScaling::Linear(factor) => json!({ "rope_type": "linear", "factor": factor }),
            RopeScaling::Llama3(s) => json!({
                "rope_type": "llama3",
                "factor": s.factor,
                "low_freq_factor": s.low_freq_factor,
                "high_freq_factor": s.high_freq_factor,
                "original_max_position_embeddings": s.original_max_position_embeddings,
            }),
            RopeScaling::Yarn(s) => {
                let mut out = json!({
                    "rope_type": "yarn",
                    "factor": s.factor,
                    "original_max_position_embeddings": s.original_max_position_embeddings,
                    "beta_fast": s.beta_fast,
                    "beta_slow": s.beta_slow,
                    "attention_factor": s.attention_factor,
                });
                if !s.truncate {
                    out["truncate"] = json!(false);
                }
                out
            }
        }
    }

    pub(super) fn validate(&self, origin: &str) -> Result<()> {
        let (kind, factor, original) = match self {
            RopeScaling::Linear(factor) => ("linear", *factor, 1),
            RopeScaling::Llama3(s) => ("llama3", s.factor, s.original_max_position_embeddings),
            RopeScaling::Yarn(s) => ("yarn", s.factor, s.original_max_position_embeddings),
        };
        ensure!(factor.is_finite() && factor >= 1.0, "{origin}: {kind} `factor` must be at least 1, found {factor}");
        ensure!(original > 0, "{origin}: {kind} `original_max_position_embeddings` must be positive, found 0");
        if let RopeScaling::Llama3(Llama3Scaling { low_freq_factor: low, high_freq_factor: high, .. }) = *self {
            ensure!(
                low.is_finite() && high.is_finite() && 0.0 < low && low < high,
                "{origin}: llama3 scaling needs 0 < `low_freq_factor` < `high_freq_factor`, found {low} and {high}"
            );
        }
        if let RopeScaling::Yarn(YarnScaling { beta_fast: fast, beta_slow: slow, attention_factor, .. }) = *self {
            ensure!(
                fast.is_finite() && 0.0 < slow && slow <= fast,
                "{origin}: yarn scaling needs 0 < `beta_slow` <= `beta_fast`, found {slow} and {fast}"
            );
            ensure!(
                attention_factor.is_finite() && attention_factor > 0.0,
                "{origin}: yarn `attention_factor` must be a positive number, found {attention_factor}"
            );
        }
        Ok(())
    }
}

impl Llama3Scaling {
    /// Divisor of an inverse frequency: 1 for short wavelengths, `factor` for long ones, interpolated between
    /// (`_compute_llama3_parameters`).
    pub fn divisor(&self, inv_freq: f64) -> f64 {
        let original = self.original_max_position_embeddings as f64;
        let wavelength = 2.0 * PI / inv_freq;
        if wavelength < original / self.high_freq_factor {
            1.0
        } else if wavelength > original / self.low_freq_factor {
            self.factor
        } else {
            let smooth =
                (original / wavelength - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        }
    }
}

impl YarnScaling {
    /// `0.1 m ln(s) + 1` (the paper's Eq. 22, with DeepSeek's `mscale` m).
    pub(crate) fn mscale(factor: f64, m: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 }
    }

    /// `_compute_yarn_parameters`.
    fn apply(&self, base: Vec<f64>, theta: f64) -> Vec<f64> {
        let width = 2.0 * base.len() as f64;
        // The pair with this number of rotations over the original length.
        let pair = |rotations: f64| {
            width * (self.original_max_position_embeddings as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(width - 1.0));
        if low == high {
            high += 0.001;
        }
        let divided = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        let stretch = |(i, f): (usize, f64)| f / self.factor * divided(i) + f * (1.0 - divided(i));
        base.into_iter().enumerate().map(stretch).collect()
    }
}
