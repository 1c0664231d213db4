//! What experiments share: the checkpoint under study with its problems, known rows laid out beside their annotation,
//! answers, and decoding that is forked many times from one prefix. Knows no experiment.

pub mod answers;
mod causal;
pub mod circuits;
pub mod decodes;
pub mod modes;
mod normal;
pub mod nulls;
mod open;
mod shard;
pub(crate) mod shown;
pub(crate) mod staging;
mod subject;
pub mod sweep;

pub use causal::Causal;
pub use normal::NormalRun;
pub use open::{DoesNotApply, Study};
pub use shard::Shard;
pub use subject::{Asked, Subject, Tagged};
