//! Switchyard: train language models that switch between text and latent reasoning, and take them apart.
//!
//! `commands` and `report` are in this package. `ops`, `grade` and `stats` are packages of their own, and all other rooms are the
//! package `lab`. Each has the same name here.
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
//! | [`grade`] | answer extraction and mathematical equivalence |
//! | [`stats`] | intervals, paired tests, bootstrap, probe protocol |
//! | [`schema`] | what stands in the files of rows, and what follows from rows alone (no tensors) |
//! | [`recipe`] | typed settings of a run: presets, TOML, overrides |
//!
//! # What the programs are made of
//! Public for the four programs, the tests and the benches of this package, absent from its documentation, and changed without
//! notice:
//!
//! | room | what it knows |
//! | --- | --- |
//! | `ops` | the handful of tensor functions a decoder is made of |
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

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod commands;
#[doc(hidden)]
pub mod report;

#[doc(hidden)]
pub use switchyard_lab::{
    calibration, corpus, evaluation, guard, machine, names, nth, ops, parallel, parity, progress, random, store, text,
    tokenizer, train, world,
};
#[doc(inline)]
pub use switchyard_lab::{
    experiments, grade, interventions, latent, loading, method, model, recipe, schema, stats, study, tasks,
};
