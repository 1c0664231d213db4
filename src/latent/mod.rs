//! The hidden-state recurrence, written once: stream, unroll, decode, trace, replay.
//!
//! Input at position t is `E[x_t]`, or the hidden state `h_{t-1}` where `x_t` is `<latent>` (the paper's Eq. 1).
//! [`Stream`] is the only place where that happens; [`unroll()`] feeds it known rows, [`decode()`] what it samples.

pub mod controller;
mod decode;
mod fork;
pub mod reasoning;
pub mod replay;
mod row;
pub mod sampling;
pub mod sequence;
pub mod source;
mod stream;
pub mod trace;
mod unroll;

pub use controller::{Blocks, Closing, Controller};
pub use decode::{Decode, DecodeSettings, Request, Switching, decode, text_mask};
pub use fork::{Branch, Channel, Fork, Prefix, Start};
pub use reasoning::Reasoning;
pub use row::Decoded;
pub use sampling::Sampling;
pub use sequence::{Sequence, SwitchIds};
pub use source::{FixedEmbedding, HiddenState, LatentSource, Source, VocabularyMixture};
pub use stream::{Gradient, Piece, Stream, Wave};
pub use trace::{End, Trace};
pub use unroll::{Unrolled, Waves, unroll};
