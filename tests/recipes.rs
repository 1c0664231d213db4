//! Every table and figure of the paper has a recipe in `experiments/`: it parses, the programs accept its commands, and its rows are
//! rows of an experiment.

use std::path::Path;

use crate::common::programs::program;
use crate::common::says;
use switchyard_programs::report::paper::Paper;
use switchyard_programs::report::recipes::{EMBEDDED, all, find_recipe, parse};

#[test]
fn every_label_of_the_paper_has_one_recipe() {
    let (paper, recipes) = (Paper::embedded().unwrap(), all().unwrap());
    for block in paper.tables.iter().chain(&paper.figures) {
        let found: Vec<&str> =
            recipes.iter().filter(|(_, r)| r.reproduces.contains(&block.label)).map(|(name, _)| *name).collect();
        assert_eq!(found.len(), 1, "{}: {found:?}", block.label);
        let recipe = find_recipe(&recipes, &block.label).unwrap();
        assert_eq!(recipe.diagram, block.diagram, "{}", block.label);
        assert!(block.diagram || !recipe.needs.is_empty(), "{}: needs no rows?", block.label);
        assert!(block.diagram || !recipe.at_scale.is_empty(), "{}: how would it be tested at scale?", block.label);
    }
}

#[test]
fn the_embedded_recipes_equal_the_folder() {
    let folder = Path::new(".").join("experiments");
    let mut there: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
        .collect();
    there.sort();
    assert_eq!(EMBEDDED.iter().map(|(name, _)| *name).collect::<Vec<_>>(), there);
}

/// Every command can be pasted: `cargo run --bin NAME`, then nothing or ` -- ARGUMENTS`. `commands.rs` runs them.
#[test]
fn every_command_can_be_pasted() {
    for line in all().unwrap().iter().flat_map(|(_, r)| r.command.iter().chain(&r.at_scale)) {
        let rest = line.strip_prefix("cargo run --bin ").unwrap_or_else(|| panic!("not a cargo run: {line}"));
        let (_, arguments) = rest.split_once(' ').unwrap_or((rest, "-- "));
        assert!(arguments.starts_with("-- "), "no ` -- ` in: {line}");
    }
}

#[test]
fn mistakes_are_named() {
    let good = "reproduces = [\"tab:x\"]\nabout = \"x\"\ncommand = [\"cargo run --bin report\"]\n";
    assert!(parse(good).is_ok());
    says(parse(&format!("{good}colour = 1")), "unknown field `colour`");
    says(
        parse(&format!("{good}needs = [\"teacher_farced-sft\"]")),
        "no experiment `teacher_farced` (in `teacher_farced-sft`)",
    );
    says(parse(&format!("{good}diagram = true")), "either `command` or `diagram = true`");
    says(parse(&good.replace("\"tab:x\"", "")), "`reproduces` is empty");
}

#[test]
fn every_program_prints_completions() {
    for name in ["train", "report"] {
        for (shell, sign) in [("bash", "complete -F _"), ("zsh", "#compdef "), ("fish", "complete -c ")] {
            let sign = format!("{sign}{name}");
            let output = program(name).args(["--completions", shell]).output().unwrap();
            let script = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && script.contains(&sign), "{name} {shell}");
        }
        let wrong = program(name).args(["--completions", "tcsh"]).output().unwrap();
        assert_eq!(wrong.status.code(), Some(2));
    }
}
