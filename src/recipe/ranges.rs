//! The range of every setting: beside its default, or in the table below. A setting without one is refused, so that none can be added without a range;
//! what several settings must satisfy together stands in `check`.

use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use toml::Value;

use super::check::MOST_ROWS;
use super::*;

/// What a value must be.
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
    Finite,
    /// Above 0, or infinite.
    PositiveOrInfinite,
    /// Its type says what it may be, or its own check does (tasks, spans, names).
    Typed,
    /// A list; what each element must be.
    Each(&'static Range),
}

use Range::{BelowOne, Count, Each, Finite, NotNegative, Positive, PositiveOrInfinite, PositiveShare, Share, Typed};

/// Optimiser steps of a phase at most.
pub(super) const STEPS: usize = 1_000_000_000;
/// Samples in one batch, rollouts in one step, and the like, at most.
pub(super) const BATCH: usize = 1_000_000;
/// Latents of a block, or tokens of a response, at most: more than any model has positions.
pub(super) const POSITIONS: usize = 10_000_000;
/// A dimension of a model at most.
pub(super) const WIDTH: usize = 1 << 20;

/// Settings of a part of the recipe, by their keys in it.
type Settings = &'static [(&'static str, Range)];

const STAGE: Settings =
    &[("k", Count(0, POSITIONS)), ("steps", Count(0, STEPS)), ("epochs", NotNegative), ("c", Positive)];

/// Every part; those of structs without defaults, or of other rooms, stand here with their ranges.
static PARTS: [(&str, Settings); 31] = [
    ("", &[("name", Typed), ("seed", Count(0, i64::MAX as usize)), ("methods[]", Typed), ("task.*", Typed)]),
    (
        "data.",
        &[
            ("rows", Count(1, MOST_ROWS)),
            ("path", Typed),
            ("test_path", Typed),
            ("test_rows", Count(0, MOST_ROWS)),
            ("template", Typed),
            ("max_tokens", Count(1, POSITIONS)),
            ("fields.*", Typed),
            ("test_fields.*", Typed),
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
    ("", &[("pretrained", Typed), ("adapter", Typed), ("seed_token", Typed)]),
    ("blocks.", &[("exit", Typed), ("exit_in_loss", Typed), ("mask_markers", Typed)]),
    ("lora.", Lora::RANGES),
    ("optimizer.", Optimizer::RANGES),
    ("base.", Base::RANGES),
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
    ("latent.stages[].", STAGE),
    ("grpo.", Grpo::RANGES),
    ("grpo.reward.", Reward::RANGES),
    ("brevity.", Brevity::RANGES),
    ("no_cot.", NoCot::RANGES),
    ("icot.", Icot::RANGES),
    ("pause.", Pause::RANGES),
    ("coconut.", Coconut::RANGES),
    ("coconut.stages[].", STAGE),
    ("simcot.", SimCot::RANGES),
    ("codi.", Codi::RANGES),
    ("colar.", Colar::RANGES),
    ("swireasoning.", SwiReasoning::RANGES),
    ("soft_thinking.", SoftThinking::RANGES),
    ("hrpo.", Hrpo::RANGES),
    ("latent_sft.", LatentSft::RANGES),
    ("latent_grpo.", LatentGrpo::RANGES),
    ("evaluation.", Evaluation::RANGES),
    ("checkpoint.", CheckpointEvery::RANGES),
];

/// Every setting; `[]` stands for any element of a list, a last part `*` for all that is inside.
static RANGES: LazyLock<Vec<(String, Range)>> = LazyLock::new(|| {
    let all = PARTS.iter().flat_map(|(part, settings)| settings.iter().map(move |setting| (part, setting)));
    all.map(|(part, (name, range))| match range {
        Each(range) => (format!("{part}{name}[]"), **range),
        range => (format!("{part}{name}"), *range),
    })
    .collect()
});

impl Range {
    fn admits(self, value: &Value) -> bool {
        let number = value.as_float().or(value.as_integer().map(|n| n as f64));
        let is = |holds: fn(f64) -> bool| number.is_some_and(holds);
        match self {
            Typed => true,
            Each(range) => value.as_array().is_some_and(|all| all.iter().all(|value| range.admits(value))),
            Count(low, high) => {
                value.as_integer().and_then(|n| usize::try_from(n).ok()).is_some_and(|n| (low..=high).contains(&n))
            }
            Positive => is(|x| x.is_finite() && x > 0.0),
            NotNegative => is(|x| x.is_finite() && x >= 0.0),
            Share => is(|x| (0.0..=1.0).contains(&x)),
            PositiveShare => is(|x| x > 0.0 && x <= 1.0),
            BelowOne => is(|x| (0.0..1.0).contains(&x)),
            Finite => is(f64::is_finite),
            PositiveOrInfinite => is(|x| x > 0.0),
        }
    }

    fn said(self) -> String {
        match self {
            Count(0, high) => format!("a whole number of at most {high}"),
            Count(low, high) => format!("a whole number from {low} to {high}"),
            Positive => "a number above 0".into(),
            NotNegative => "a number of at least 0".into(),
            Share => "a number from 0 to 1".into(),
            PositiveShare => "a number above 0 and at most 1".into(),
            BelowOne => "a number of at least 0 and below 1".into(),
            Finite => "a finite number".into(),
            PositiveOrInfinite => "a number above 0, or inf".into(),
            Typed => "what its type allows".into(),
            Each(range) => format!("each {}", range.said()),
        }
    }
}

/// The range of a setting, by its key with `[]` for any element of a list.
fn range_of(key: &str) -> Option<Range> {
    let named = |name: &str| match name.strip_suffix(".*") {
        Some(table) => key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')),
        None => name == key,
    };
    RANGES.iter().find(|(name, _)| named(name)).map(|(_, range)| *range)
}

/// Checks every setting of a recipe.
///
/// # Errors
/// The first value out of its range, by key; a setting that has none.
pub(super) fn check(recipe: &Recipe) -> Result<()> {
    let table = toml::Table::try_from(recipe).context("reading the recipe's settings")?;
    leaves(["", ""], &Value::Table(table), &mut |[key, general], value| {
        let range = range_of(general).with_context(|| format!("{key}: no range is known of this setting"))?;
        ensure!(range.admits(value), "{key} must be {}, found {value}", range.said());
        Ok(())
    })
}

/// Every setting, in the table's order: its key, what it may be, and what it is in this recipe (empty: not set).
///
/// # Errors
/// None in practice: a recipe can be written as TOML.
pub fn settings(recipe: &Recipe) -> Result<Vec<[String; 3]>> {
    let table = toml::Table::try_from(recipe).context("reading the recipe's settings")?;
    let row = |(key, range): &(String, Range)| {
        let plain = key.trim_end_matches("[]").trim_end_matches(".*");
        let value = plain.split('.').try_fold(Value::Table(table.clone()), |at, name| at.get(name).cloned());
        let value = value.filter(|value| !value.is_table()).map(|value| value.to_string()).unwrap_or_default();
        [key.clone(), range.said(), value]
    };
    Ok(RANGES.iter().map(row).collect())
}

/// Shows every value that is neither table nor list, with its key and the same with `[]` for the number of an element.
fn leaves<'a>(
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

#[cfg(test)]
mod tests {
    use super::super::{PRESETS, set};
    use super::*;

    /// A recipe as text that names every setting there is: those that are left out by default too.
    fn full() -> toml::Table {
        let recipe = Recipe::like("smoke").expect("a preset");
        let mut table = toml::Table::try_from(&recipe).expect("a table");
        for pair in [
            "pretrained=x",
            "adapter=x",
            "blocks={ exit = 'argmax', exit_in_loss = false, mask_markers = false }",
            "seed_token=x",
            "lora={ rank = 4, alpha = 8.0, targets = ['q_proj'], train_embeddings = true, only_new_rows = false }",
            "data.path=x",
            "data.test_path=x",
            "data.fields={ question = 'q' }",
            "data.test_fields={ question = 'q' }",
            "data.generations=first",
            "data.shuffle=true",
            "data.grpo_path=x",
            "data.grader=math",
            "data.budgets=true",
            "latent.keep_steps=[1]",
            "latent.fresh_stages=true",
            "grpo.from_stage=best",
            "grpo.loss_mean=question",
            "grpo.mask_tags=false",
            "grpo.reward.lengths=[0.4, 1.0]",
            "brevity={ steps = 1, temperature = 0.7, k_min = 2, weight = 0.1, lengths = [0.4, 1.0] }",
            "latent.stages=[{ k = 1, steps = 2, epochs = 0.0, c = 0.5 }]",
            "coconut.stages=[{ k = 1, steps = 2, epochs = 0.0, c = 0.5 }]",
        ] {
            set(&mut table, pair).expect("set");
        }
        table
    }

    /// Numbers that no setting takes, or few do, and a value of its range's edge.
    fn wrong(range: Range) -> Vec<Value> {
        let (float, whole) = (Value::Float, Value::Integer);
        let never = vec![float(f64::NAN), float(f64::NEG_INFINITY)];
        let more = match range {
            Typed | Each(_) => return vec![],
            Count(low, high) => {
                [low as i64 - 1, -1].into_iter().chain((high as i64).checked_add(1)).map(whole).collect()
            }
            Positive => vec![float(0.0), float(-1.0), float(f64::INFINITY)],
            NotNegative => vec![float(-1e-9), float(f64::INFINITY)],
            Share => vec![float(-0.1), float(1.1), float(f64::INFINITY)],
            PositiveShare => vec![float(0.0), float(1.1), float(f64::INFINITY)],
            BelowOne => vec![float(1.0), float(-0.1)],
            Finite => vec![float(f64::INFINITY)],
            PositiveOrInfinite => vec![float(0.0), float(-1.0)],
        };
        never.into_iter().chain(more).collect()
    }

    /// Every setting has a range, and every value outside it is refused by the setting's name.
    #[test]
    fn no_setting_is_without_a_range_and_every_range_refuses() {
        let table = Value::Table(full());
        let (mut seen, mut all) = (vec![], vec![]);
        leaves(["", ""], &table, &mut |[key, general], _| {
            all.push((key.to_owned(), general.to_owned()));
            Ok(())
        })
        .expect("walked");
        for (key, general) in all {
            let range = range_of(&general).unwrap_or_else(|| panic!("{key} has no range"));
            seen.push(general.clone());
            for value in wrong(range) {
                assert!(!range.admits(&value), "{key} takes {value}");
                if key.contains('[')
                    || ["pretrained", "adapter", "lora", "data.test_path", "data.grpo_path"]
                        .iter()
                        .any(|key_| key.starts_with(key_))
                {
                    continue;
                }
                let said = Recipe::resolve("smoke", &[format!("{key}={value}")]).expect_err(&key);
                let name = key.rsplit('.').next().expect("a name");
                assert!(format!("{said:#}").contains(name), "{key}={value}: {said:#}");
            }
        }
        for (name, _) in RANGES.iter() {
            let there = |key: &String| name.strip_suffix('*').map_or(key == name, |table| key.starts_with(table));
            assert!(seen.iter().any(there), "{name} is in the table and is no setting");
        }
        for (name, _) in PRESETS {
            check(&Recipe::like(name).expect("a preset")).unwrap_or_else(|why| panic!("{name}: {why:#}"));
        }
    }

    #[test]
    fn elements_of_lists_are_named_by_their_place() {
        let of = |set: &str| Recipe::resolve("smoke", &[set.to_owned()]).expect_err("refused").to_string();
        let said = of("latent.stages=[{ k = 1, steps = 2 }, { k = 2, steps = 0, epochs = nan }]");
        assert!(said.contains("latent.stages[1].epochs must be a number of at least 0, found nan"), "{said}");
        assert!(of("colar.factors=[3, 0]").contains("colar.factors[1]"));
    }
}
