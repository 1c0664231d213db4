//! A recipe: the settings that methods share, and those of each method under its key.

use std::ops::{Deref, DerefMut};

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;

use super::phase::Work;
use super::switch::GRPO;
use super::{PARTS, Recipe, all, phases};
use crate::recipe::ranges::{self, ranges};
use crate::recipe::{ReplayMode, Shared, read};

impl Recipe {
    /// Resolves a preset (or a TOML file, where `source` ends in `.toml`) and the overrides.
    ///
    /// # Errors
    /// An unknown preset, an unknown or ill-typed key, and contradictory settings, each by name.
    pub fn resolve(source: &str, overrides: &[String]) -> Result<Self> {
        let recipe: Self = read(source, overrides)?;
        recipe.check()?;
        Ok(recipe)
    }

    /// A preset or file that is used for prompts, tags and decoding alone; the caller names data and model.
    ///
    /// # Errors
    /// An unknown preset, an unknown or ill-typed key.
    pub fn like(source: &str) -> Result<Self> {
        read(source, &[])
    }

    /// The recipe with absolute paths of files of problems and of a local pretrained model.
    pub fn anchored(mut self) -> Result<Self> {
        self.anchor()?;
        Ok(self)
    }

    /// # Errors
    /// A setting out of its range, settings that contradict each other, a method that lacks one: by name.
    pub fn check(&self) -> Result<()> {
        self.check_ranges()?;
        self.shared.check()?;
        all().try_for_each(|method| (method.check)(self))?;
        let bptt = |work: &Work| matches!(work, Work::Grpo(settings) if settings(self).replay == ReplayMode::FullBptt);
        ensure!(
            self.grpo.checkpoint_every == 0
                || self.grpo.replay == ReplayMode::FullBptt
                || phases(self)?.iter().any(|phase| bptt(&phase.work)),
            "grpo.checkpoint_every = {} does nothing where grpo.replay is not full_bptt: set grpo.replay=full_bptt, or leave it out",
            self.grpo.checkpoint_every
        );
        let noise = self.grpo.latent_noise > 0.0 || self.grpo.gumbel > 0.0;
        ensure!(
            !noise || phases(self)?.iter().any(|phase| phase.name == GRPO.name),
            "grpo.latent_noise and grpo.gumbel are noise on the latents of `switch`, which this recipe does not train by GRPO: leave them out"
        );
        phases(self).map(drop)
    }

    fn check_ranges(&self) -> Result<()> {
        ranges::check(self.table()?, PARTS)
    }

    fn table(&self) -> Result<toml::Table> {
        toml::Table::try_from(self).context("writing the recipe as TOML")
    }
}

impl Deref for Recipe {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl DerefMut for Recipe {
    fn deref_mut(&mut self) -> &mut Shared {
        &mut self.shared
    }
}

/// Takes the settings of a method out of a recipe's table; its defaults where the table has none.
pub(super) fn take<S: DeserializeOwned + Default>(table: &mut toml::Table, key: &str) -> Result<S, String> {
    let found = table.remove(key).map(toml::Value::try_into);
    found.unwrap_or_else(|| Ok(S::default())).map_err(|why| format!("{key}: {}", why.to_string().trim_end()))
}

/// Every setting: key, range, and value in this recipe (empty: not set).
pub fn settings(recipe: &Recipe) -> Result<Vec<[String; 3]>> {
    let table = recipe.table()?;
    let row = |(key, range): (String, ranges::Range)| {
        let plain = key.trim_end_matches("[]");
        let value = plain.split('.').try_fold(toml::Value::Table(table.clone()), |at, name| at.get(name).cloned());
        let value = value.filter(|value| !value.is_table()).map(|value| value.to_string()).unwrap_or_default();
        let said = if range == ranges::Range::Typed { words_of_type(&key) } else { range.said() };
        [key, said, value]
    };
    Ok(ranges(PARTS).into_iter().map(row).collect())
}

/// What a setting without a range takes, in the words of its type's error: an empty text is refused by every type but text.
fn words_of_type(key: &str) -> String {
    let (key, wrong) = key.strip_suffix("[]").map_or((key, "''"), |list| (list, "['']"));
    let Err(error) = read::<Recipe>("smoke", &[format!("{key}={wrong}")]) else { return "text".to_owned() };
    let error = error.root_cause().to_string();
    let expected = error.split_once("expected ").map_or(&*error, |(_, expected)| expected);
    match expected.split("in `").next().unwrap_or_default().trim() {
        "a boolean" => "`true` or `false`".to_owned(),
        table if ["struct ", "internally tagged enum "].iter().any(|kind| table.starts_with(kind)) => {
            "a table".to_owned()
        }
        words => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Range::{
        self, AtMost, Below, BelowOne, Count, Each, Finite, NotNegative, Positive, PositiveOrInfinite, PositiveShare,
        Share, Tables, Typed,
    };
    use crate::recipe::ranges::{leaves, range_of, ranges};
    use crate::recipe::{PRESETS, set};
    use toml::Value;

    /// A recipe as text that names every setting there is: those that are left out by default too.
    fn full() -> toml::Table {
        let recipe = Recipe::like("smoke").expect("a preset");
        let mut table = toml::Table::try_from(&recipe).expect("a table");
        for pair in [
            "pretrained=x",
            "adapter=x",
            "blocks={ exit = 'argmax', exit_in_loss = false, mask_markers = false }",
            "seed_token=x",
            "seed_std=0.02",
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
            "latent.source={ kind = 'scaled_state', norm = 3.0 }",
            "grpo.from_stage=best",
            "grpo.loss_mean=question",
            "grpo.mask_tags=false",
            "grpo.text_rollouts=true",
            "grpo.latent_noise=0.1",
            "grpo.reward.lengths=[0.4, 1.0]",
            "brevity={ steps = 1, temperature = 0.7, k_min = 2, weight = 0.1, lengths = [0.4, 1.0] }",
            "evasion={ steps = 3, batch = 32, learning_rate = 1e-3, weight = 2.0 }",
            "latent.stages=[{ k = 1, steps = 2, epochs = 0.0, c = 0.5 }]",
            "coconut.stages=[{ k = 1, steps = 2, epochs = 0.0, c = 0.5 }]",
        ] {
            set(&mut table, pair).expect("set");
        }
        table
    }

    #[test]
    fn a_file_replaces_the_generated_task_and_a_model_its_dimensions() {
        let resolve = |pairs: [&str; 2]| Recipe::resolve("smoke", &pairs.map(str::to_owned));
        let recipe = resolve(["data.path=own.jsonl", "pretrained=base"]).expect("a recipe");
        assert!(recipe.task.is_none() && recipe.model.is_none());
        for pairs in [["data.path=own.jsonl", "task.modulus=7"], ["pretrained=base", "model.head_dim=8"]] {
            let refused = resolve(pairs).expect_err("both").to_string();
            assert!(refused.contains("found both"), "{refused}");
        }
    }

    /// Numbers that no setting takes, or few do, and a value of its range's edge.
    fn wrong(range: Range) -> Vec<Value> {
        let (float, whole) = (Value::Float, Value::Integer);
        let never = vec![float(f64::NAN), float(f64::NEG_INFINITY)];
        let more = match range {
            Typed | Each(_) | Tables(_) => return vec![],
            Count(low, high) => {
                [low as i64 - 1, -1].into_iter().chain((high as i64).checked_add(1)).map(whole).collect()
            }
            Positive => vec![float(0.0), float(-1.0), float(f64::INFINITY)],
            NotNegative => vec![float(-1e-9), float(f64::INFINITY)],
            Share => vec![float(-0.1), float(1.1), float(f64::INFINITY)],
            PositiveShare => vec![float(0.0), float(1.1), float(f64::INFINITY)],
            BelowOne => vec![float(1.0), float(-0.1)],
            AtMost(most) => vec![float(0.0), float(most + 0.1)],
            Below(limit) => vec![float(0.0), float(limit)],
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
            let range = range_of(&ranges(PARTS), &general).unwrap_or_else(|| panic!("{key} has no range"));
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
        for (name, _) in &ranges(PARTS) {
            let there = |key: &String| key == name || key.starts_with(&format!("{name}."));
            assert!(seen.iter().any(there), "{name} is in the table and is no setting");
        }
        for (name, _) in PRESETS {
            Recipe::like(name).expect("a preset").check_ranges().unwrap_or_else(|why| panic!("{name}: {why:#}"));
        }
    }

    #[test]
    fn settings_that_do_not_act_together_are_refused() {
        let resolve = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|pair| (*pair).to_owned()).collect();
            Recipe::resolve("smoke", &set)
        };
        let mixture = "latent.source={kind='vocabulary_mixture',top_k=4,temperature=1.0}";
        let (noise, gumbel, through) = ("grpo.latent_noise=0.1", "grpo.gumbel=0.1", "grpo.replay=full_bptt");
        for (set, named) in [
            (vec!["grpo.from_stage=best", "evaluation.stages=false"], "evaluation.stages=true"),
            (vec!["grpo.continue_term=true", "grpo.text_rollouts=true"], "grpo.text_rollouts = false"),
            (vec![gumbel, mixture], "grpo.replay"),
            (vec![gumbel, through], "latent.source"),
            (vec![noise, through, mixture], "latent.source"),
            (vec![noise, through, "methods=['hrpo']"], "leave them out"),
            (vec!["methods=['fixed_embedding']", "latent.stages=[]"], "`methods` has fixed_embedding"),
            (vec!["brevity.lengths=[1.0,0.4]"], "brevity.lengths must ascend"),
            (vec!["grpo.reward.lengths=[0.4,1.0]"], "grpo.reward.brevity"),
            (vec!["latent.stages=[{k=1,steps=1},{k=5,steps=1},{k=1,steps=1}]"], "latent.stages[2]"),
        ] {
            let said = format!("{:#}", resolve(&set).expect_err("refused"));
            assert!(said.contains(named), "{set:?}: {said}");
        }
        resolve(&[gumbel, through, mixture]).expect("noise on mixtures");
        // Rivals in the same recipe have no noise on hidden states.
        let methods = "methods=['text_cot_grpo','switch','hrpo','soft_grpo']";
        let recipe = resolve(&[noise, through, methods]).expect("a recipe");
        let phases = phases(&recipe).expect("phases");
        let noisy = phases.iter().filter(|phase| match phase.work {
            Work::Grpo(settings) => settings(&recipe).latent_noise > 0.0,
            _ => false,
        });
        assert_eq!(noisy.map(|phase| phase.name).collect::<Vec<_>>(), ["grpo"]);
    }

    /// The checkpoint of a stage with its own `c` has it in its name.
    #[test]
    fn grpo_starts_at_the_end_of_a_stage() {
        let set = ["grpo.from_stage=3", "latent.stages=[{k=3,steps=1},{k=3,steps=1,c=0.5},{k=5,steps=1}]"];
        let recipe = Recipe::resolve("smoke", &set.map(str::to_owned)).expect("a recipe");
        let start = phases(&recipe).expect("phases").into_iter().find_map(|phase| match phase.work {
            Work::Take(checkpoint) => Some(checkpoint(&recipe)),
            _ => None,
        });
        assert_eq!(start.as_deref(), Some("stage-3-c0.5"));
    }

    #[test]
    fn files_of_problems_are_stored_with_absolute_paths() {
        let mut recipe = Recipe::like("smoke").expect("a preset");
        recipe.data.grpo_path = Some("grpo.jsonl".into());
        let path = recipe.anchored().expect("a recipe").shared.data.grpo_path;
        assert!(path.is_some_and(|path| path.is_absolute()));
    }

    #[test]
    fn elements_of_lists_are_named_by_their_place() {
        let of = |set: &str| Recipe::resolve("smoke", &[set.to_owned()]).expect_err("refused").to_string();
        let said = of("latent.stages=[{ k = 1, steps = 2 }, { k = 2, steps = 0, epochs = nan }]");
        assert!(said.contains("latent.stages[1].epochs must be a number of at least 0, found nan"), "{said}");
        assert!(of("colar.factors=[3, 0]").contains("colar.factors[1]"));
        assert!(of("latent.source={kind='projection'}").contains("latent.source must be hidden_state"));
        assert!(of("latent.source={kind='scaled_state',norm=0}").contains("latent.source"));
    }

    #[test]
    fn a_recipe_lies_over_the_one_that_it_extends() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let own = file("own.toml", "name = \"own\"\nextends = \"micro-bptt\"\n[grpo.reward]\nuse = 0.0\n");
        let (own, micro) =
            (Recipe::resolve(&own, &[]).expect("a recipe"), Recipe::resolve("micro", &[]).expect("a preset"));
        assert_eq!((own.name.as_str(), own.grpo.steps, own.evaluation.max_new_tokens), ("own", 160, 30));
        assert_eq!((own.grpo.reward.usage, own.grpo.reward.format), (0.0, micro.grpo.reward.format));
        // What a branch of a run shares with it.
        assert_eq!((&own.base, &own.boundary, &own.latent), (&micro.base, &micro.boundary, &micro.latent));

        // An error about a type names the key.
        for (pairs, named) in [
            (vec!["seed=3", "base.steps=1.5", "base.batch=4"], "--set base.steps=1.5"),
            (vec!["base.steps=2\nbase.batch=3"], "one setting at a time"),
        ] {
            let pairs: Vec<String> = pairs.into_iter().map(str::to_owned).collect();
            let said = format!("{:#}", Recipe::resolve("smoke", &pairs).expect_err("no recipe"));
            assert!(said.contains(named), "{said}");
        }
        // What is for other problems, or another model, would do nothing.
        for pair in [
            "data.test_path=x",
            "data.fields={ question = 'q' }",
            "data.grader=math",
            "data.shuffle=true",
            "data.grpo_path=x",
            "seed_token=x",
            "seed_std=0.02",
        ] {
            let said = format!("{:#}", Recipe::resolve("smoke", &[pair.to_owned()]).expect_err("does nothing"));
            assert!(said.contains(pair.split('=').next().expect("a key")) && said.contains("leave it out"), "{said}");
        }

        let (a, b) = (folder.path().join("a.toml"), folder.path().join("b.toml"));
        let first = file("a.toml", &format!("extends = {:?}\n", b.display().to_string()));
        file("b.toml", &format!("extends = {:?}\n", a.display().to_string()));
        let said = |source: &str| format!("{:#}", Recipe::resolve(source, &[]).expect_err("no recipe"));
        assert!(said(&first).contains("which extends it"), "{}", said(&first));
        assert!(said(&file("c.toml", "extends = \"mikro\"\n")).contains("unknown preset `mikro`"));
        assert!(said(&file("d.toml", "extends = 3\n")).contains("`extends` names a preset"));
    }
}
