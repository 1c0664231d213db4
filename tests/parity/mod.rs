//! The decoder against `transformers`: fixtures made by `fixtures/make_*.py`.

mod adapter;
mod attribution;
mod edges;
mod formats;
mod gradients;
mod hooks;
mod jacobian;
mod latent;
pub mod reference;
mod smollm2;
mod stored;
