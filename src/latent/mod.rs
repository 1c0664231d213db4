//! The hidden-state recurrence, written once: stream, unroll, decode, trace, replay.
//!
//! Input at position t is `E[x_t]`, or the hidden state `h_{t-1}` where `x_t` is `<latent>` (the paper's Eq. 1); [`hybrid`] mixes both.
//! [`Stream`] is the only place where that happens; [`unroll()`] feeds it known sequences, [`decode()`] sampled ones.

mod ahead;
pub mod controller;
mod decode;
mod depth;
pub mod drawn;
mod fork;
pub mod gumbel;
pub mod hybrid;
pub mod noisy_state;
mod reading;
pub mod reasoning;
pub mod replay;
mod row;
pub mod rules;
pub mod sampling;
pub(crate) mod segments;
pub mod sequence;
pub mod source;
mod stream;
pub mod trace;
mod unroll;

pub use controller::{BlockEnd, Blocks, Bounds, Controller, Exit, LearntRule};
pub use decode::{Decode, DecodeSettings, Request, Switching, decode};
pub(crate) use decode::{RowWatch, decode_named, decode_watched, ensure_positions};
pub use depth::{Chain, SerialDepth};
pub use fork::Start;
pub(crate) use fork::{Branch, Fork, Prefix};
pub use reasoning::Reasoning;
pub(crate) use row::FinishedRow;
pub use sampling::Sampling;
pub use sequence::Sequence;
pub use source::{LatentSource, Source, Source::HiddenState};
pub use stream::Gradient;
pub(crate) use stream::{Piece, Stream, Wave};
pub use trace::{End, Trace};
pub(crate) use unroll::Waves;
pub use unroll::{UnrolledStates, unroll};

pub use crate::tokenizer::SwitchIds;
