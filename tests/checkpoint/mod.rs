//! Reading and writing checkpoints: round trips are exact, and bad files give one-line errors.

mod config;
mod folder;
mod gguf;
mod gguf_text;
mod gguf_writer;
mod hub;
mod hub_server;
mod layout;
mod peft;
mod pickle;
mod place;
mod support;
