//! Which settings a phase depends on: two runs that agree in them train the same weights, so that one can take them over.

use std::collections::BTreeSet;

use super::phase::{Phase, Work};
use crate::recipe::Recipe;

/// What every phase depends on.
const ALWAYS: [&str; 10] =
    ["seed", "task", "data", "model", "pretrained", "adapter", "seed_token", "lora", "optimizer", "blocks"];

/// Names, and how often something is kept: no weight depends on them.
const NEVER: [&str; 4] = ["name", "methods", "checkpoint", "latent.keep_steps"];

/// Supervised phases with the phase that each starts from and what it reads of the recipe besides. A test changes every other
/// setting and looks for a difference in what the phase declares.
const SUPERVISED: [(&str, Option<&str>, &[&str]); 16] = [
    ("base", None, &["base"]),
    ("boundary", Some("annotate"), &["boundary"]),
    ("sft", Some("boundary"), &["latent"]),
    ("fixed_embedding", Some("boundary"), &["latent"]),
    ("no_cot", Some("base"), &["no_cot", "base"]),
    ("pause", Some("base"), &["pause", "no_cot", "base"]),
    ("icot", Some("base"), &["icot"]),
    ("coconut", Some("base"), &["coconut"]),
    ("coconut_pause", Some("base"), &["coconut"]),
    ("coconut_no_thought", Some("base"), &["coconut"]),
    ("coconut_no_curriculum", Some("base"), &["coconut"]),
    ("simcot", Some("base"), &["simcot", "coconut"]),
    ("codi", Some("base"), &["codi"]),
    ("codi_fixed", Some("base"), &["codi"]),
    ("colar", Some("base"), &["colar"]),
    ("latent_sft", Some("base"), &["latent_sft"]),
];

/// What a phase depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// The phase that it starts from.
    pub parent: Option<&'static str>,
    /// Tables and keys of the recipe, those of the phases before it left out; `None`: all that a weight can depend on.
    own: Option<Vec<&'static str>>,
    /// Whether only the measurement depends on `[evaluation]`: the weights stand under another one.
    pub measured_apart: bool,
}

impl Phase {
    /// What it depends on. A method that nothing is known of depends on everything.
    pub(crate) fn reads(&self, recipe: &Recipe) -> Reads {
        let of =
            |parent, own: &[&'static str], measured_apart| Reads { parent, own: Some(own.to_vec()), measured_apart };
        match self.work {
            Work::Annotate => of(Some("base"), &["annotate"], true),
            Work::Take { from, .. } | Work::TakeBest { from } => {
                of(Some(from), &["grpo.from_step", "grpo.from_stage", "evaluation"], false)
            }
            Work::Decode { from, .. } => {
                let known = match self.name {
                    "swireasoning" => Some(vec!["swireasoning", "evaluation"]),
                    "soft_thinking" => Some(vec!["soft_thinking", "evaluation"]),
                    "hrpo_start" => Some(vec!["hrpo.r_min", "hrpo.r_max", "grpo.temperature", "evaluation"]),
                    _ => None,
                };
                Reads { parent: Some(from), own: known, measured_apart: false }
            }
            Work::Grpo { from, .. } if self.name == "hrpo" => of(Some(from), &["grpo", "hrpo", "evaluation"], false),
            Work::Grpo { from, .. } if self.name == "latent_grpo" => {
                of(Some(from), &["grpo", "latent_grpo", "evaluation"], false)
            }
            Work::Grpo { from, .. } if self.name == "brevity" => {
                of(Some(from), &["grpo", "brevity", "evaluation"], false)
            }
            Work::Grpo { from, .. } => {
                of(Some(from), &["grpo", "soft_thinking.gumbel", "soft_thinking.density", "evaluation"], false)
            }
            Work::Supervised(_) => match SUPERVISED.iter().find(|(name, ..)| *name == self.name) {
                Some((name, parent, own)) => {
                    let alone = ["no_cot", "pause"].contains(name) && !recipe.no_cot.from_base;
                    of(parent.filter(|_| !alone), own, true)
                }
                None => Reads { parent: None, own: None, measured_apart: false },
            },
        }
    }
}

impl Reads {
    /// The part of a recipe's table that the phase depends on.
    pub(crate) fn of(&self, recipe: &toml::Table) -> toml::Table {
        let Some(own) = &self.own else { return without(recipe.clone(), &NEVER) };
        let mut kept = toml::Table::new();
        for key in ALWAYS.iter().chain(own) {
            let (table, inner) = key.split_once('.').map_or((*key, None), |(table, inner)| (table, Some(inner)));
            let Some(value) = recipe.get(table) else { continue };
            match inner {
                None => drop(kept.insert(table.to_owned(), value.clone())),
                Some(inner) => {
                    let within = kept.entry(table.to_owned()).or_insert_with(|| toml::Table::new().into());
                    if let (Some(within), Some(value)) = (within.as_table_mut(), value.get(inner)) {
                        within.insert(inner.to_owned(), value.clone());
                    }
                }
            }
        }
        without(kept, &NEVER)
    }
}

fn without(mut table: toml::Table, keys: &[&str]) -> toml::Table {
    for key in keys {
        match key.split_once('.') {
            None => drop(table.remove(*key)),
            Some((outer, inner)) => {
                if let Some(within) = table.get_mut(outer).and_then(toml::Value::as_table_mut) {
                    within.remove(inner);
                }
            }
        }
    }
    table
}

/// Checkpoints inside a phase that this recipe asks for: a folder without them cannot be taken over.
pub(crate) fn asked_inside(phase: &str, phases: &[Phase], recipe: &Recipe) -> BTreeSet<String> {
    let taken = phases.iter().filter_map(|other| match other.work {
        Work::Take { from, checkpoint } if from == phase => Some(checkpoint(recipe)),
        _ => None,
    });
    let kept = ["sft", "fixed_embedding"].contains(&phase).then(|| super::switch::kept(recipe)).into_iter().flatten();
    taken.chain(kept.map(super::switch::last_step)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{ALL, Context};
    use super::*;
    use crate::corpus::Corpus;
    use crate::text::tagging::TaggedLine;

    fn phases(recipe: &Recipe) -> Vec<Phase> {
        let mut all: Vec<Phase> = vec![];
        for phase in ALL.iter().flat_map(|method| method.phases(recipe)) {
            if all.iter().all(|have| have.name != phase.name) {
                all.push(phase);
            }
        }
        all
    }

    /// Everything that a declaration says.
    fn declared(
        phase: &Phase,
        recipe: &Recipe,
        corpus: &Corpus,
        tagged: &[TaggedLine],
    ) -> (Option<&'static str>, String) {
        let Work::Supervised(declare) = phase.work else { panic!("{}: not supervised", phase.name) };
        let what = declare(Context { recipe, corpus, tagged }).expect("a declaration");
        let rows: Vec<_> = (0..what.steps).map(|step| (what.row)(step, step % what.lengths.len())).collect();
        let rates: Vec<f64> = (0..what.steps).map(|step| what.schedule.restarted(&what.restarts, step)).collect();
        let probe = (what.row)(what.steps - 1, 0).expect("a row");
        let said = format!(
            "{:?}",
            (
                (what.from, what.stream, what.steps, what.batch, &what.lengths, rates, rows),
                (&what.resets, what.annotator_accuracy, what.objective.tokens(&[probe], corpus.switch.latent)),
                (
                    &what.reasoning,
                    what.exports
                        .iter()
                        .filter(|e| e.stage.is_some())
                        .map(|e| (e.after, &e.reasoning))
                        .collect::<Vec<_>>()
                ),
            )
        );
        (what.from, said)
    }

    /// A setting changed to another valid one of its kind.
    fn changed(value: &toml::Value) -> Option<toml::Value> {
        Some(match value {
            toml::Value::Integer(n) => toml::Value::Integer(n + 1),
            toml::Value::Float(x) => toml::Value::Float(if *x == 0.0 { 0.25 } else { x * 0.5 }),
            toml::Value::Boolean(yes) => toml::Value::Boolean(!yes),
            _ => return None,
        })
    }

    fn leaves(prefix: &str, table: &toml::Table, out: &mut Vec<(String, toml::Value)>) {
        for (key, value) in table {
            let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                toml::Value::Table(inner) => leaves(&key, inner, out),
                other => out.push((key, other.clone())),
            }
        }
    }

    /// A setting that a phase does not name changes nothing that it declares; one that it names changes something.
    #[test]
    fn what_a_phase_does_not_read_does_not_change_it() {
        let set: Vec<String> =
            ["data.rows=40", "evaluation.problems=4", "grpo.from_step=0"].map(str::to_owned).to_vec();
        let recipe = Recipe::resolve("smoke", &set).expect("a recipe");
        let corpus = Corpus::build(&recipe, None).expect("a corpus");
        let tagged: Vec<TaggedLine> = corpus
            .train
            .iter()
            .map(|s| TaggedLine {
                id: s.id.clone(),
                spans: vec![std::ops::Range { start: 1, end: s.response.len().min(5) }],
                latents: 0,
                tagged_solution: String::new(),
            })
            .collect();
        let table = toml::Table::try_from(&recipe).expect("a table");
        let mut all = vec![];
        leaves("", &table, &mut all);
        let (phases, mut tried, mut felt) = (phases(&recipe), 0, BTreeSet::new());
        for phase in phases.iter().filter(|phase| matches!(phase.work, Work::Supervised(_))) {
            let reads = phase.reads(&recipe);
            assert!(reads.own.is_some(), "{}: say in this file what it reads", phase.name);
            let (from, before) = declared(phase, &recipe, &corpus, &tagged);
            let parent = if reads.parent == Some("annotate") { Some("base") } else { reads.parent };
            assert_eq!(from, parent, "{}", phase.name);
            for (key, value) in &all {
                if ALWAYS.contains(&key.split('.').next().expect("a key")) || key.starts_with("evaluation") {
                    continue;
                }
                let Some(value) = changed(value) else { continue };
                let Ok(other) = Recipe::resolve("smoke", &[set.clone(), vec![format!("{key}={value}")]].concat())
                else {
                    continue; // not valid alone
                };
                let same = |recipe: &Recipe| reads.of(&toml::Table::try_from(recipe).expect("a table"));
                let is_read = same(&recipe) != same(&other);
                let differs = declared(phase, &other, &corpus, &tagged).1 != before;
                assert!(is_read || !differs, "{}: {key} changes it and is not read", phase.name);
                tried += 1;
                if is_read && differs {
                    felt.insert(phase.name);
                }
            }
        }
        assert!(tried > 300 && felt.len() == SUPERVISED.len(), "{tried} settings tried, felt by {felt:?}");
    }

    #[test]
    fn every_name_in_the_lists_is_a_setting_or_a_phase() {
        let recipe = Recipe::resolve("smoke", &[]).expect("a recipe");
        let table = toml::Table::try_from(&recipe).expect("a table");
        let optional = ["task", "pretrained", "adapter", "seed_token", "lora", "blocks", "latent.keep_steps"];
        for key in SUPERVISED.iter().flat_map(|(.., own)| *own).chain(&ALWAYS).chain(&NEVER) {
            assert!(table.contains_key(*key) || optional.contains(key), "{key} is no setting");
        }
        let phases = phases(&recipe);
        for (name, parent, _) in SUPERVISED {
            assert!(phases.iter().any(|phase| phase.name == name), "{name} is no phase");
            assert!(parent.is_none_or(|parent| phases.iter().any(|phase| phase.name == parent)), "{name}");
        }
    }
}
