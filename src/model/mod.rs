//! The instrumented decoder. Knows no text and no training.

mod adapter;
mod attention;
mod branch;
pub mod cache;
mod decoder;
pub mod gradients;
pub mod heads;
pub mod hooks;
mod kept;
mod linear;
pub mod lora;
mod mlp;
mod norm;
pub mod span;
mod weights;

pub use attention::Attention;
pub(crate) use branch::Trunk;
pub use cache::KvCache;
pub(crate) use decoder::Half;
pub use decoder::{Block, Decoder};
pub use hooks::{Activation, HookPoint, HookSpec, Hooks, PointKind, Select, Site};
pub use kept::AdaptedMatrix;
pub use linear::{Linear, Matrix};
pub use mlp::{ExpertMlps, FeedForward, Mlp};
pub use norm::Norm;
pub use span::{Span, Step};
pub use switchyard_formats::config::ModelConfig;
pub use switchyard_formats::{checkpoint, config};
pub use weights::Parameter;
