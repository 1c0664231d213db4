//! docs/reference matches the programs' help; links between pages are valid.
//!
//! After a change: `SWITCHYARD_WRITE_DOCS=1 cargo test --test suite docs::` rewrites them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::programs::PROGRAMS;
use serde_json::Value;
use switchyard::Setting;
use switchyard::experiments::{ALL, Settings};
use switchyard::method::{Recipe, settings};
use switchyard::schema::{Columns, FILES, Identity, list};
use switchyard_programs::report::compare;
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::front::{Part, filled};

const HEAD: &str = "<!-- Written by tests/docs.rs from the programs: do not edit. -->\n\n";

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).env("COLUMNS", "100").output().expect("a program");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The subcommands in a help text.
fn subcommands(help: &str) -> Vec<String> {
    let Some((_, commands)) = help.split_once("\nCommands:\n") else { return vec![] };
    let names = commands.lines().take_while(|line| line.starts_with("  "));
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn programs() -> String {
    let mut page = format!("{HEAD}# Programs\n\nWhat `--help` prints. `switchyard train …` is `train …`.\n");
    for (name, program) in PROGRAMS {
        let help = said(program, &["--help"]);
        page += &format!("\n## {name}\n\n```text\n{help}```\n");
        for under in subcommands(&help) {
            page += &format!("\n### {name} {under}\n\n```text\n{}```\n", said(program, &[&under, "--help"]));
        }
    }
    page
}

fn rows() -> String {
    let mut page = format!(
        "{HEAD}# Columns of rows\n\nEvery experiment writes rows as Parquet. A list is JSON in a column whose name ends in `[]`. `x.value`, `x.low`, `x.high` and `x.n` are one estimate: the value, \
         its 95 % interval, and the number of independent units behind it. They are listed once, as `x`.\n"
    );
    let all = list(Identity::COLUMNS);
    let tables = FILES.iter().map(|(names, columns)| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        (names.join(", "), list(columns).into_iter().filter(|column| !all.contains(column)).collect())
    });
    for (title, columns) in std::iter::once(("In all files".to_owned(), all.clone())).chain(tables) {
        page += &format!("\n## {title}\n\n| column | unit | meaning |\n| --- | --- | --- |\n");
        for [name, unit, about] in columns {
            page += &format!("| `{name}` | {unit} | {} |\n", about.replace('|', "\\|"));
        }
    }
    page
}

fn recipe() -> String {
    let recipe = Recipe::resolve("micro", &[]).expect("a preset");
    let mut page = format!(
        "{HEAD}# Settings of a recipe\n\n`train --preset NAME` begins with a recipe; `--set key=value` changes one \
         setting. `[]` stands for an element of a list, `*` for all that is inside. An empty last column: not set.\n\n\
         | setting | may be | in `micro` |\n| --- | --- | --- |\n"
    );
    for [key, range, value] in settings(&recipe).expect("settings") {
        let value = if value.is_empty() { value } else { format!("`{}`", value.replace('|', "\\|")) };
        page += &format!("| `{key}` | {range} | {value} |\n");
    }
    page
}

/// The settings of every experiment, with nested ones by their dotted names.
fn experiments() -> String {
    fn listed(key: &str, value: &Value, about: &str) -> String {
        assert!(!about.is_empty(), "{key} has no description");
        let shown = if value.is_null() { String::new() } else { format!("`{value}`") };
        format!("| `{key}` | {shown} | {} |\n", about.trim().replace('|', "\\|"))
    }
    let mut page = format!(
        "{HEAD}# Settings of experiments\n\n`--set experiment.key=value` changes one setting of an experiment that runs, \
         for example `probe --only layer_probe --set layer_probe.layers=all`; a recipe's `[settings]` may have any number. An \
         empty second column: not set.\n"
    );
    for experiment in ALL {
        let settings = (experiment.settings)(&Settings::default());
        page += &format!("\n## `{}`\n\n`{}`: {}.\n", experiment.name, experiment.program(), experiment.about.asks);
        if !experiment.described.is_empty() {
            page += "\n| setting | default | meaning |\n| --- | --- | --- |\n";
        }
        for Setting { name, about, members } in experiment.described {
            let key = format!("{}.{name}", experiment.name);
            let Value::Object(values) = &settings[name] else {
                page += &listed(&key, &settings[name], about);
                continue;
            };
            for (member, value) in values {
                let of_member = members.iter().find(|(name, _)| name == member).map_or("", |(_, about)| *about);
                assert!(!of_member.is_empty(), "{key}.{member} has no description");
                page += &listed(&format!("{key}.{member}"), value, &format!("{about}{of_member}"));
            }
        }
    }
    page
}

fn hooks() -> String {
    let list = said(PROGRAMS[1].1, &["generate", "--model", "fixtures/micro/sft/checkpoint", "--list-hooks"]);
    format!(
        "{HEAD}# Hooks\n\nThe hooks of `fixtures/micro`, as `probe generate --list-hooks` prints them. \
         [How to name a place](../how-to/hooks.md).\n\n```text\n{list}```\n"
    )
}

#[test]
fn the_reference_matches_the_programs() {
    let mut stale = vec![];
    let pages = [
        ("programs", programs()),
        ("recipe", recipe()),
        ("experiments", experiments()),
        ("rows", rows()),
        ("hooks", hooks()),
    ];
    for (name, wanted) in pages {
        let file = PathBuf::from(format!("docs/reference/{name}.md"));
        if std::env::var_os("SWITCHYARD_WRITE_DOCS").is_some() {
            std::fs::write(&file, &wanted).expect("written");
        } else if std::fs::read_to_string(&file).expect("a page") != wanted {
            stale.push(file);
        }
    }
    assert!(stale.is_empty(), "out of date: {stale:?}; SWITCHYARD_WRITE_DOCS=1 rewrites them");
}

/// The page with the committed cards side by side.
fn cards(page: &str) -> String {
    let mut folders: Vec<PathBuf> = std::fs::read_dir("reports")
        .expect("the reports")
        .map(|entry| entry.expect("an entry").path())
        .filter(|folder| folder.join("manifest.json").is_file())
        .collect();
    folders.sort();
    let folders: Vec<Folder> = folders.iter().map(|folder| Folder::open(folder).expect("rows")).collect();
    let table = compare::cards(&folders).expect("a table").expect("cards").markdown();
    filled(page, &[Part { marker: "cards", text: table }]).expect("markers")
}

#[test]
fn the_page_of_cards_matches_the_committed_ones() {
    let file = "docs/how-to/card.md";
    let page = std::fs::read_to_string(file).expect("a page");
    let wanted = cards(&page);
    if std::env::var_os("SWITCHYARD_WRITE_DOCS").is_some() {
        std::fs::write(file, wanted).expect("written");
        return;
    }
    assert!(page == wanted, "{file} has other cards than reports; SWITCHYARD_WRITE_DOCS=1 writes them anew");
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            pages(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "md") {
            found.push(entry);
        }
    }
}

#[test]
fn every_link_is_valid() {
    let mut files =
        vec!["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].into_iter().map(PathBuf::from).collect();
    pages(Path::new("docs"), &mut files);
    ["benches", "reports"].iter().for_each(|folder| pages(Path::new(folder), &mut files));
    let mut dead = vec![];
    let mut seen = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if link.is_empty() || link.contains("://") {
                continue;
            }
            seen += 1;
            let there = file.parent().expect("a folder").join(link);
            if !there.exists() {
                dead.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(seen > 30, "only {seen} links were found");
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = std::fs::read_to_string("docs/SUMMARY.md").expect("the summary");
    let mut files = vec![];
    pages(Path::new("docs"), &mut files);
    for file in files {
        let name = file.strip_prefix("docs").expect("below docs").display().to_string();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name} is not in docs/SUMMARY.md");
    }
}
