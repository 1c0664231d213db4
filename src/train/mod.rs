//! Training: base, Switch-SFT (phases 1 and 2), Switch-GRPO and the controls.
//!
//! recipe → [`corpus`] → [`pipeline`] → per phase: [`batches`] → rows ([`curriculum`]) → [`trainer`] → checkpoint and metrics.

pub mod batches;
pub mod corpus;
pub mod curriculum;
pub mod evaluate;
pub mod grpo;
pub mod loss;
pub mod pipeline;
pub mod progress;
pub mod reward;
pub mod sft;
pub mod shards;
pub mod state;
pub mod trainer;
