//! Switchyard: train language models that switch between text and latent reasoning, and analyse their mechanisms.
//!
//! # Map
//! | folder | contents |
//! | --- | --- |
//! | [`model`] | decoder, KV cache, hooks, LoRA, checkpoints |
//! | [`latent`] | the recurrence: unroll, decode, trace, replay; `stream` is where a hidden state becomes an input |
//! | [`method`], `train` | a file per training method; the pipeline, supervised loop and GRPO that drive them |
//! | [`tasks`], `text`, `tokenizer` | generated problems with known values; vocabulary, prompts, data files, spans |
//! | [`interventions`] | a file per intervention, with a note on when it misleads |
//! | [`study`], [`experiments`] | what experiments share; a file per experiment |
//! | [`schema`], `store` | record structs of every Parquet file; reading and writing them |
//! | [`recipe`], [`loading`] | settings and presets; from a path to a decoder with its vocabulary |
//! | `programs/`, `crates/` | command lines and report pages; [`grade`], `ops`, [`stats`], `allocator` |
//!
//! `calibration` runs every experiment on models whose mechanism is known; `parity` recomputes the reference values of `fixtures/`.
//! Small modules: `corpus`, `evaluation`, `guard`, `machine`, `names`, `nth`, `parallel`, `progress`, `random`, `world`. Modules that are
//! hidden in this documentation are for the programs and may change without notice. `tests/architecture.rs` lists the allowed
//! imports between modules.
//!
//! # From Rust
//! ```no_run
//! use switchyard::loading::Loaded;
//! use switchyard::model::Hooks;
//!
//! # fn main() -> anyhow::Result<()> {
//! let loaded = Loaded::open("fixtures/micro/sft/checkpoint")?;
//! let prompt = "<bos> a = 5 ; h = a + 4 ; ? h :";
//! let trace = loaded.generate(prompt, &mut Hooks::none())?;
//! // Every state and pattern of the row, latent steps included, by TransformerLens' names.
//! let names = ["blocks.*.hook_resid_post", "blocks.*.attn.hook_pattern", "latent.hook_injected"];
//! let cache = loaded.run_with_cache(&[loaded.row(&trace)?], &names, Hooks::none())?;
//! println!("{:?}", cache["blocks.2.hook_resid_post"].shape);
//! // The same prompt under a change; any line that `--hook` takes.
//! let (trace, _) = loaded.generate_changed(prompt, &["latent.hook_injected@latent[1,1]=scale:-1"])?;
//! println!("{}", loaded.said(&trace)?);
//! # Ok(())
//! # }
//! ```
//! `examples/` has four such programs: capture, patch, attribute, steer (`cargo run --example capture`).
//!
//! # Glossary of axes
//! `B` rows of a batch, `L` positions, `D` model width, `V` vocabulary, `H` query heads, `Hkv` key/value heads, `dh` head
//! width, `F` feed-forward width. A *span* is a run of positions handed to the model in one call; a *block* is
//! `<swi> … </swi>`; a *step* is one latent position inside a block. Blocks and latent steps count from 1, as in the paper, in
//! flags, hooks, rows, tables and figures; problems, layers, heads, positions and text tokens count from 0, as in TransformerLens.

// Allowed, with a reason, in two places: the memory map of a checkpoint, and an option of the allocator.
#![deny(unsafe_code)]

#[macro_use(names)]
extern crate switchyard_formats;

/// Declares a struct of settings, each with its default and, in recipes, its range:
/// `pub steps: usize = 0 => Count(0, STEPS)`. A group of settings is followed by the descriptions of its members:
/// `pub paper: PaperProtocol = PaperProtocol::default(); PaperProtocol::SETTINGS`.
#[doc(hidden)]
#[macro_export]
macro_rules! settings {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $(
            $(#[$($doc:tt)*])* $see:vis $field:ident: $type:ty = $default:expr $(; $members:expr)? $(=> $range:expr)?
        ),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $vis struct $name {
            $($(#[$($doc)*])* $see $field: $type,)*
        }

        impl $crate::Described for $name {
            const SETTINGS: &'static [$crate::Setting] = &[$($crate::Setting {
                name: stringify!($field),
                about: concat!($($crate::settings!(@text $($doc)*)),*),
                members: $crate::settings!(@members $($members)?),
            }),*];
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        $crate::settings! { @ranges $name $([$field $($range)?])* }
    };
    (@text doc = $text:literal) => { $text };
    (@text $($other:tt)*) => { "" };
    (@members) => { &[] };
    (@members $members:expr) => { $members };
    (@ranges $name:ident $([$field:ident])*) => {};
    (@ranges $name:ident $([$field:ident $($range:expr)?])*) => {
        impl $name {
            /// The range of each setting, by its key.
            pub(super) const RANGES: &'static [(&'static str, $crate::recipe::Range)] = &[$($((stringify!($field), $range),)?)*];
        }
    };
}

/// Settings whose descriptions can be listed.
#[doc(hidden)]
pub trait Described {
    const SETTINGS: &'static [Setting];
}

/// A setting, or a group of settings.
#[doc(hidden)]
pub struct Setting {
    pub name: &'static str,
    pub about: &'static str,
    /// Names and descriptions of the members of a group.
    pub members: &'static [(&'static str, &'static str)],
}

/// In rows and recipes a value of the type is its text.
macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = anyhow::Error;

            fn try_from(text: String) -> anyhow::Result<Self> {
                text.parse()
            }
        }
    )*};
}

#[macro_use]
pub mod schema;

#[doc(hidden)]
pub mod calibration;
#[doc(hidden)]
pub mod corpus;
#[doc(hidden)]
pub mod evaluation;
pub mod experiments;
pub mod interventions;
pub mod latent;
pub mod loading;
#[doc(hidden)]
pub mod machine;
pub mod method;
pub mod model;
#[doc(hidden)]
pub mod names;
#[doc(hidden)]
pub mod nth;
#[doc(hidden)]
pub mod parallel;
#[doc(hidden)]
pub mod parity;
pub mod recipe;
#[doc(hidden)]
pub mod store;
pub mod study;
pub mod tasks;
#[doc(hidden)]
pub mod text;
#[doc(hidden)]
pub mod train;
#[doc(hidden)]
pub mod world;

#[doc(hidden)]
pub use switchyard_formats::{guard, progress, random, tokenizer};
pub use switchyard_grade as grade;
#[doc(hidden)]
pub use switchyard_ops as ops;
pub use switchyard_stats as stats;
