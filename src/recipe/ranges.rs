//! The range of every setting, declared with its default or in the table below. A setting without a range is refused. Combinations of
//! settings are checked in `check`.

use anyhow::{Context, Result, ensure};
use toml::Value;

use super::*;

/// Allowed values of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Range {
    /// A whole number from … to.
    Count(usize, usize),
    Positive,
    NotNegative,
    /// From 0 to 1.
    Share,
    /// Above 0, at most 1.
    PositiveShare,
    /// From 0 to below 1.
    BelowOne,
    /// Above 0, at most this.
    AtMost(f64),
    /// Above 0, below this.
    Below(f64),
    Finite,
    /// Above 0, or infinite.
    PositiveOrInfinite,
    /// Its type or a check elsewhere limits it (tasks, spans, names).
    Typed,
    /// A list, with the range of its elements.
    Each(&'static Range),
    /// A list of tables with these settings.
    Tables(Settings),
}

use Range::{
    AtMost, Below, BelowOne, Count, Each, Finite, NotNegative, Positive, PositiveOrInfinite, PositiveShare, Share,
    Tables, Typed,
};

/// Maximum optimiser steps of a phase.
pub(crate) const STEPS: usize = 1_000_000_000;
/// Maximum samples in one batch, rollouts in one step, and the like.
pub(crate) const BATCH: usize = 1_000_000;
/// Maximum latents of a block, or tokens of a response: more than any model's positions.
pub(crate) const POSITIONS: usize = 10_000_000;
/// Maximum dimension of a model.
pub(crate) const WIDTH: usize = 1 << 20;

/// The range of each setting in a part of the recipe, by its key there.
pub(crate) type Settings = &'static [(&'static str, Range)];

/// All parts except those of methods, including structs without defaults and structs of other modules.
static PARTS: [(&str, Settings); 16] = [
    ("", &[("name", Typed), ("seed", Count(0, i64::MAX as usize)), ("methods[]", Typed), ("task", Typed)]),
    (
        "data.",
        &[
            ("rows", Count(1, MOST_ROWS)),
            ("path", Typed),
            ("test_path", Typed),
            ("test_rows", Count(0, MOST_ROWS)),
            ("template", Typed),
            ("max_tokens", Count(1, POSITIONS)),
            ("fields", Typed),
            ("test_fields", Typed),
            ("generations", Typed),
            ("shuffle", Typed),
            ("grpo_path", Typed),
            ("grader", Typed),
            ("budgets", Typed),
        ],
    ),
    (
        "model.",
        &[
            ("hidden_size", Count(1, WIDTH)),
            ("num_hidden_layers", Count(1, 10_000)),
            ("num_attention_heads", Count(1, WIDTH)),
            ("num_key_value_heads", Count(1, WIDTH)),
            ("head_dim", Count(1, WIDTH)),
            ("intermediate_size", Count(1, WIDTH)),
            ("rope_theta", Positive),
            ("tie_word_embeddings", Typed),
        ],
    ),
    ("", &[("pretrained", Typed), ("adapter", Typed), ("seed_token", Typed), ("seed_std", Positive)]),
    ("blocks.", &[("exit", Typed), ("exit_in_loss", Typed), ("mask_markers", Typed)]),
    ("lora.", Lora::RANGES),
    ("optimizer.", Optimizer::RANGES),
    ("base.", BaseTraining::RANGES),
    (
        "annotate.spans.",
        &[
            ("top_share", BelowOne),
            ("merge_gap", Count(0, POSITIONS)),
            ("min_length", Count(1, POSITIONS)),
            ("max_length", Count(1, POSITIONS)),
            ("latent_cap", Count(0, POSITIONS)),
            ("latents_per_token", Positive),
            ("max_stage", Count(1, POSITIONS)),
            ("snap_to_clause", Typed),
            ("clause_quantile", BelowOne),
        ],
    ),
    (
        "annotate.",
        &[("batch_rows", Count(1, BATCH)), ("batch_tokens", Count(1, POSITIONS)), ("part_rows", Count(1, MOST_ROWS))],
    ),
    ("boundary.", Boundary::RANGES),
    ("latent.", Latent::RANGES),
    ("grpo.", Grpo::RANGES),
    ("grpo.reward.", Reward::RANGES),
    ("evaluation.", Evaluation::RANGES),
    ("checkpoint.", CheckpointEvery::RANGES),
];

/// A part of a recipe: prefix of its keys, and its settings.
pub(crate) type Part = (&'static str, Settings);

/// Every setting, those of `methods` last; `[]` means any element of a list.
pub(crate) fn ranges(methods: &[Part]) -> Vec<(String, Range)> {
    let all = PARTS.iter().chain(methods);
    all.flat_map(|(part, settings)| settings.iter().map(move |setting| (part, setting)))
        .flat_map(|(part, (name, range))| match range {
            Each(range) => vec![(format!("{part}{name}[]"), **range)],
            Tables(settings) => settings.iter().map(|(key, range)| (format!("{part}{name}[].{key}"), *range)).collect(),
            range => vec![(format!("{part}{name}"), *range)],
        })
        .collect()
}

impl Range {
    pub(crate) fn admits(self, value: &Value) -> bool {
        let number = value.as_float().or(value.as_integer().map(|n| n as f64));
        let is = |holds: fn(f64) -> bool| number.is_some_and(holds);
        match self {
            Typed | Tables(_) => true,
            Each(range) => value.as_array().is_some_and(|all| all.iter().all(|value| range.admits(value))),
            Count(low, high) => {
                value.as_integer().and_then(|n| usize::try_from(n).ok()).is_some_and(|n| (low..=high).contains(&n))
            }
            AtMost(most) => number.is_some_and(|x| x > 0.0 && x <= most),
            Below(limit) => number.is_some_and(|x| x > 0.0 && x < limit),
            Positive => is(|x| x.is_finite() && x > 0.0),
            NotNegative => is(|x| x.is_finite() && x >= 0.0),
            Share => is(|x| (0.0..=1.0).contains(&x)),
            PositiveShare => is(|x| x > 0.0 && x <= 1.0),
            BelowOne => is(|x| (0.0..1.0).contains(&x)),
            Finite => is(f64::is_finite),
            PositiveOrInfinite => is(|x| x > 0.0),
        }
    }

    pub(crate) fn said(self) -> String {
        match self {
            Count(0, high) => format!("a whole number of at most {high}"),
            Count(low, high) => format!("a whole number from {low} to {high}"),
            Positive => "a number above 0".into(),
            NotNegative => "a number of at least 0".into(),
            Share => "a number from 0 to 1".into(),
            PositiveShare => "a number above 0 and at most 1".into(),
            BelowOne => "a number of at least 0 and below 1".into(),
            AtMost(most) => format!("a number above 0 and at most {most}"),
            Below(limit) => format!("a number above 0 and below {limit}"),
            Finite => "a finite number".into(),
            PositiveOrInfinite => "a number above 0, or inf".into(),
            Typed | Tables(_) => "what its type allows".into(),
            Each(range) => format!("each {}", range.said()),
        }
    }
}

/// The range of a setting, by its key with `[]` for any element of a list. Where the type decides, it is that of all keys of a table.
pub(crate) fn range_of(ranges: &[(String, Range)], key: &str) -> Option<Range> {
    let inside = |table: &str| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
    ranges.iter().find(|(name, range)| name == key || *range == Typed && inside(name)).map(|(_, range)| *range)
}

/// Checks every setting of a recipe.
///
/// # Errors
/// The first value outside its range, by key; a setting without a range.
pub(crate) fn check(recipe: toml::Table, methods: &[Part]) -> Result<()> {
    let ranges = ranges(methods);
    leaves(["", ""], &Value::Table(recipe), &mut |[key, general], value| {
        let range = range_of(&ranges, general).with_context(|| format!("{key}: this setting has no declared range"))?;
        ensure!(range.admits(value), "{key} must be {}, found {value}", range.said());
        Ok(())
    })
}

/// Calls back with every value that is neither table nor list, its key, and the key with `[]` for indices.
pub(crate) fn leaves<'a>(
    keys: [&str; 2],
    value: &'a Value,
    see: &mut impl FnMut([&str; 2], &'a Value) -> Result<()>,
) -> Result<()> {
    match value {
        Value::Table(table) => table.iter().try_for_each(|(name, value)| {
            let [key, general] = keys.map(|key| if key.is_empty() { name.clone() } else { format!("{key}.{name}") });
            leaves([&key, &general], value, see)
        }),
        Value::Array(all) => all
            .iter()
            .enumerate()
            .try_for_each(|(i, value)| leaves([&format!("{}[{i}]", keys[0]), &format!("{}[]", keys[1])], value, see)),
        leaf => see(keys, leaf),
    }
}
