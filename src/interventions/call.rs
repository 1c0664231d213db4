//! `call:N`: a function of the client replaces each value, one position at a time, in the run as changed so far. Only a session has a client
//! (`probe session`, for Python's functions as changes).

use std::sync::OnceLock;

use anyhow::{Context, Result};
use serde::Serialize;

/// One position at which a function is called.
#[derive(Debug, Serialize)]
pub struct FunctionCall<'a> {
    /// Number of the function: the N of `call:N`.
    pub function: usize,
    pub hook: String,
    /// Index of the prompt.
    pub row: usize,
    pub position: usize,
    /// `prompt`, `text[0]`, `latent[1,2]`.
    pub step: String,
    /// Shape of the value: `[D]`, or `[heads, dh]`.
    pub shape: Vec<usize>,
    pub values: &'a [f32],
}

/// Returns the new value of a call.
pub type Client = fn(&FunctionCall) -> Result<Vec<f32>>;

static CLIENT: OnceLock<Client> = OnceLock::new();

/// Sets the client of this process; a second one is ignored.
pub fn set_client(client: Client) {
    let _ = CLIENT.set(client);
}

/// # Errors
/// This process has no client.
pub(super) fn client() -> Result<Client> {
    CLIENT.get().copied().context("`call` needs a client: only `probe session` has one")
}
