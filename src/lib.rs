//! Switchyard: train language models that switch between text and latent reasoning, and take them apart.
//!
//! # What a program may build on
//! | room | what it knows |
//! | --- | --- |
//! | [`loading`] | from a path to a decoder with its vocabulary; capture, edit, generate |
//! | [`model`] | configuration, decoder, cache, hooks, LoRA, checkpoints; nothing of text or training |
//! | [`latent`] | the hidden-state recurrence: unroll, decode, trace, replay |
//! | [`study`] | what experiments share: the checkpoint under study, known rows, forked decoding, circuits |
//! | [`interventions`] | one small documented value per file |
//! | [`experiments`] | one file per experiment: Config, run |
//! | [`method`] | methods as values: phases, rows at a point of the curriculum, objective, how a checkpoint reasons |
//! | [`tasks`] | generated problems with known intermediate values (no tensors) |
//! | [`grade`] | answer extraction and mathematical equivalence (a package of its own: `grade/`) |
//! | [`stats`] | intervals, paired tests, bootstrap, probe protocol (a package of its own: `stats/`) |
//! | [`schema`] | what stands in the files of rows, and what follows from rows alone (no tensors) |
//! | [`recipe`] | typed settings of a run: presets, TOML, overrides |
//!
//! # What the programs are made of
//! Public for the four programs, the tests and the benches of this package, absent from its documentation, and changed without
//! notice:
//!
//! | room | what it knows |
//! | --- | --- |
//! | `ops` | the handful of tensor functions a decoder is made of (a package of its own: `ops/`) |
//! | `tokenizer` | from the files of a model to a tokenizer and its chat templates (no tensors) |
//! | `text` | vocabulary, prompts, problems, span annotation (no tensors) |
//! | `corpus` | a recipe's problems as token rows, and who grades them |
//! | `train` | drives methods: pipeline, supervised loop, Switch-GRPO, resumable state |
//! | `evaluation` | held-out decoding and scores |
//! | `calibration` | models whose truth is known, through every experiment: how often each verdict is right |
//! | `parity` | the reference values of `fixtures/`, computed again on any device |
//! | `commands` | what the binaries do: arguments checked, calls made, results printed |
//! | `report` | tables, figures and pages from rows alone (no tensors) |
//! | `store` | rows, Parquet and CSV, files that appear whole or not at all (no tensors) |
//! | `machine`, `world` | what is computed on: device, float type, threads; the processes that train together (MPI) |
//! | `progress`, `parallel` | what a user sees while it works; work on threads |
//! | `guard` | other crates' panics at damaged files, as errors |
//! | `random`, `names`, `nth` | keyed generators and a stable hash; which known name a mistyped one means; counting from 1 |
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
//! // The same prompt with the first latent step's input turned round.
//! let mut hooks = Hooks::none();
//! hooks.edit(&"latent.hook_injected@latent[1,1]".parse()?, loaded.layers(), |_, values| {
//!     values.iter_mut().for_each(|x| *x = -*x);
//!     Ok(())
//! })?;
//! println!("{}", loaded.said(&loaded.generate(prompt, &mut hooks)?)?);
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

// Three places are allowed it, each with its reason beside it: the memory map of a checkpoint, and two of the vector kernels.
#![deny(unsafe_code)]

/// A struct of settings with the default of each beside it, as recipes and requests write them; in recipes each with its range too:
/// `pub steps: usize = 0 => Count(0, STEPS)`.
macro_rules! settings {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $see:vis $field:ident: $type:ty = $default:expr $(=> $range:expr)?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $vis struct $name {
            $($(#[$doc])* $see $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        settings! { @ranges $name $([$field $($range)?])* }
    };
    (@ranges $name:ident $([$field:ident])*) => {};
    (@ranges $name:ident $([$field:ident $($range:expr)?])*) => {
        impl $name {
            /// The range of each setting, by its key.
            pub(super) const RANGES: &'static [(&'static str, crate::recipe::Range)] = &[$($((stringify!($field), $range),)?)*];
        }
    };
}

/// An enum of names, each with the word that it is in rows, recipes and on command lines; `ALL` has them in their order.
macro_rules! names {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        $vis enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
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

#[doc(hidden)]
pub mod calibration;
#[doc(hidden)]
pub mod commands;
#[doc(hidden)]
pub mod corpus;
#[doc(hidden)]
pub mod evaluation;
pub mod experiments;
mod guard;
pub mod interventions;
pub mod latent;
pub mod loading;
#[doc(hidden)]
pub mod machine;
pub mod method;
pub mod model;
mod names;
#[doc(hidden)]
pub mod nth;
#[doc(hidden)]
pub mod parallel;
#[doc(hidden)]
pub mod parity;
#[doc(hidden)]
pub mod progress;
#[doc(hidden)]
pub mod random;
pub mod recipe;
#[doc(hidden)]
pub mod report;
pub mod schema;
#[doc(hidden)]
pub mod store;
pub mod study;
pub mod tasks;
#[doc(hidden)]
pub mod text;
#[doc(hidden)]
pub mod tokenizer;
#[doc(hidden)]
pub mod train;
#[doc(hidden)]
pub mod world;

pub use switchyard_grade as grade;
#[doc(hidden)]
pub use switchyard_ops as ops;
pub use switchyard_stats as stats;
