//! Training: base, Switch-SFT (phases 1 and 2), Switch-GRPO and the controls.
//!
//! recipe → [`crate::corpus`] → [`pipeline`] → per phase: [`batches`] → rows ([`crate::curriculum`]) → [`trainer`] → checkpoint and metrics.

mod adamw;
pub mod batches;
pub mod grpo;
pub mod loss;
pub mod pipeline;
pub mod reward;
pub mod sft;
pub mod shards;
pub mod state;
pub mod trainer;
