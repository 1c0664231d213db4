//! Training over stored matrices: LoRA factors, and tables of tokens or some of their rows.

use anyhow::{Result, ensure};
use burn::module::{LoraAdapter, Param, ParamId};
use burn::tensor::{Distribution, Tensor};

use crate::model::Decoder;
use crate::model::checkpoint::{EMBED, HEAD};
use crate::model::linear::Matrix;
use crate::model::lora::LoraSettings;
use crate::random::fnv1a;

impl Decoder {
    /// Attaches factors to the stored target projections, with the distribution of Burn's LoRA for floats: A is normal of standard deviation
    /// 1 / r, B zero.
    pub(in crate::model) fn with_lora_over_kept(mut self, settings: &LoraSettings) -> Self {
        let device = self.device();
        let LoraSettings { rank, alpha, targets, .. } = settings;
        for block in &mut self.layers {
            for (name, linear) in block.linears_mut() {
                if !targets.iter().any(|target| target == name) {
                    continue;
                }
                if let Matrix::Kept(kept) = &mut linear.weight {
                    let [d_out, d_in] = [kept.matrix.rows(), kept.matrix.width()];
                    let std = Distribution::Normal(0.0, 1.0 / *rank as f64);
                    *kept = kept.clone().with_lora(LoraAdapter {
                        a: Param::from_tensor(Tensor::random([d_in, *rank], std, &device)),
                        b: Param::from_tensor(Tensor::zeros([*rank, d_out], &device)),
                        scale: alpha / *rank as f64,
                    });
                }
            }
        }
        self
    }

    /// Converts stored tables of tokens to floats, to train them whole; those with trained rows are unchanged.
    pub(crate) fn with_float_tables(self) -> Result<Self> {
        let device = self.device();
        self.with_tables(|matrix, name| match matrix {
            Matrix::Kept(kept) if !kept.learns_rows() => {
                let table = kept.rows(None, &device)?.detach();
                let table = if name == HEAD { table.transpose() } else { table };
                Ok(Matrix::Dense(Param::initialized(ParamId::from(fnv1a(name.bytes())), table)))
            }
            other => Ok(other),
        })
    }

    /// Replaces the tables of tokens, each by name.
    fn with_tables(mut self, change: impl Fn(Matrix, &str) -> Result<Matrix>) -> Result<Self> {
        self.embed_tokens = change(self.embed_tokens, EMBED)?;
        if let Some(mut head) = self.lm_head.take() {
            head.weight = change(head.weight, HEAD)?;
            self.lm_head = Some(head);
        }
        Ok(self)
    }

    /// Converts the last rows of stored tables, those of these tokens, to trained floats.
    ///
    /// # Errors
    /// Tokens that are not the last.
    pub fn learning_tokens(self, tokens: &[u32]) -> Result<Self> {
        let (all, n) = (self.config().vocab_size, tokens.len());
        let mut sorted = tokens.to_vec();
        sorted.sort_unstable();
        ensure!(
            (all - n..all).eq(sorted.iter().map(|token| *token as usize)),
            "lora.only_new_rows with weights in their file format (--dtype stored) trains the last {n} rows of the tables of tokens, but the switch \
             tokens are {sorted:?} of {all}: use --dtype f32, or lora.only_new_rows = false"
        );
        let device = self.device();
        self.with_tables(|matrix, name| match matrix {
            Matrix::Kept(kept) => {
                let id = ParamId::from(fnv1a(format!("{name}.learnt").bytes()));
                kept.learning_from(all - n, id, &device).map(Matrix::Kept)
            }
            floats => Ok(floats),
        })
    }

    /// Merges trained factors over stored matrices into the fixed ones: one factor pair each. Outside autodiff.
    #[must_use]
    pub(crate) fn folded(mut self) -> Self {
        for block in &mut self.layers {
            for (_, linear) in block.linears_mut() {
                if let Matrix::Kept(kept) = &mut linear.weight {
                    *kept = kept.clone().folded();
                }
            }
        }
        self
    }
}
