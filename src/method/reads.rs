//! Which settings a phase depends on: two runs that agree in them train the same weights, so that one can take them over.

use std::collections::BTreeSet;

use super::Recipe;
use super::phase::{Phase, Work};
use super::switch::{self, ANNOTATE, SFT};

/// What every phase depends on.
const ALWAYS: [&str; 11] =
    ["seed", "task", "data", "model", "pretrained", "adapter", "seed_token", "seed_std", "lora", "optimizer", "blocks"];

/// Names, and how often checkpoints are saved: no weight depends on them.
const NEVER: [&str; 4] = ["name", "methods", "checkpoint", "latent.keep_steps"];

impl Phase {
    /// The part of a recipe's table that it depends on besides the phase before it.
    pub(crate) fn settings(&self, recipe: &toml::Table) -> toml::Table {
        let mut kept = toml::Table::new();
        for key in ALWAYS.iter().chain(self.reads) {
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

    /// The phase whose checkpoint it starts from.
    pub(crate) fn checkpoint_from(&self) -> Option<&'static str> {
        if self.from == Some(ANNOTATE.name) { ANNOTATE.from } else { self.from }
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
        Work::Take(checkpoint) if other.from == Some(phase) => Some(checkpoint(recipe)),
        _ => None,
    });
    let kept = (phase == SFT.name).then(|| switch::kept(recipe)).into_iter().flatten();
    taken.chain(kept.map(switch::last_step)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Context, PARTS, all, declared};
    use super::*;
    use crate::corpus::Corpus;
    use crate::recipe::ranges::leaves;
    use crate::text::tagging::TaggedLine;

    fn phases(recipe: &Recipe) -> Vec<Phase> {
        let mut phases: Vec<Phase> = vec![];
        for phase in all().flat_map(|method| method.phases(recipe)) {
            if phases.iter().all(|have| have.name != phase.name) {
                phases.push(phase);
            }
        }
        phases
    }

    /// All settings that a declaration names.
    fn declaration(phase: &Phase, recipe: &Recipe, corpus: &Corpus, tagged: &[TaggedLine]) -> String {
        let Work::Supervised(declare) = phase.work else { panic!("{}: not supervised", phase.name) };
        let what = declare(Context { recipe, corpus, tagged }).expect("a declaration");
        let steps = what.schedule.steps;
        let rows: Vec<_> = (0..steps).map(|step| (what.row)(step, step % what.lengths.len())).collect();
        let rates: Vec<f64> = (0..steps).map(|step| what.schedule.restarted(&what.restarts, step)).collect();
        let probe = (what.row)(steps - 1, 0).expect("a row");
        format!(
            "{:?}",
            (
                (what.stream, steps, what.batch, &what.lengths, rates, rows),
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
        )
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
        let table = toml::Value::try_from(&recipe).expect("a table");
        let mut all = vec![];
        leaves(["", ""], &table, &mut |[key, _], value| {
            all.push((key.to_owned(), value.clone()));
            Ok(())
        })
        .expect("walked");
        let (phases, mut tried, mut felt) = (phases(&recipe), 0, BTreeSet::new());
        for phase in phases.iter().filter(|phase| matches!(phase.work, Work::Supervised(_))) {
            let before = declaration(phase, &recipe, &corpus, &tagged);
            for (key, value) in &all {
                if ALWAYS.contains(&key.split('.').next().expect("a key"))
                    || key.starts_with("evaluation")
                    || key.contains('[')
                {
                    continue;
                }
                let Some(value) = changed(value) else { continue };
                let Ok(other) = Recipe::resolve("smoke", &[set.clone(), vec![format!("{key}={value}")]].concat())
                else {
                    continue; // not valid alone
                };
                let same = |recipe: &Recipe| phase.settings(&toml::Table::try_from(recipe).expect("a table"));
                let is_read = same(&recipe) != same(&other);
                let differs = declaration(phase, &other, &corpus, &tagged) != before;
                assert!(is_read || !differs, "{}: {key} changes it and is not read", phase.name);
                tried += 1;
                if is_read && differs {
                    felt.insert(phase.name);
                }
            }
        }
        let supervised = declared().iter().filter(|phase| matches!(phase.work, Work::Supervised(_))).count();
        assert!(tried > 300 && felt.len() == supervised, "{tried} settings tried, felt by {felt:?}");
    }

    #[test]
    fn every_name_in_the_lists_is_a_setting_or_a_phase() {
        let recipe = Recipe::resolve("smoke", &[]).expect("a recipe");
        let table = toml::Table::try_from(&recipe).expect("a table");
        let optional =
            ["task", "pretrained", "adapter", "seed_token", "seed_std", "lora", "blocks", "latent.keep_steps"];
        for key in declared().iter().flat_map(|phase| phase.reads).chain(&ALWAYS).chain(&NEVER) {
            let (part, _) = key.split_once('.').unwrap_or((key, ""));
            let of_method = || PARTS.iter().any(|(name, _)| name.strip_suffix('.') == Some(part));
            assert!(table.contains_key(part) || optional.contains(key) || of_method(), "{key} is no setting");
        }
        for phase in declared() {
            let from = phase.from.is_none_or(|from| declared().iter().any(|other| other.name == from));
            assert!(from, "{} starts from no phase", phase.name);
        }
    }
}
