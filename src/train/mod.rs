//! Training: runs the phases that [`crate::method`] declares.
//!
//! recipe → [`crate::corpus`] → [`pipeline`] → per phase: samples, objective and schedule of the method → [`sft`] or [`grpo`] →
//! [`trainer`] → checkpoint and metrics.

mod adamw;
pub(crate) mod advantages;
mod dropout;
pub mod grpo;
pub mod pipeline;
pub mod rollouts;
pub mod sft;
pub(crate) mod shards;
pub mod state;
pub mod sweep;
pub mod trainer;
