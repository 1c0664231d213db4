//! The program `switchyard`: `switchyard probe …` runs `probe …`. Knows the programs' names only.

use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use super::completions::{self, parse};
use super::{exit, intervene::Intervene, print, probe::Probe, report::Report, train::Train};
use switchyard::machine::keep_freed_memory;

const ABOUT: &str = "An interpretability workbench for language models that reason in latent steps.";

const EXAMPLES: &str = "Examples:\n  \
    switchyard probe                     inspect the small models that come with it\n  \
    switchyard intervene                 change their latent steps and compare the answers\n  \
    switchyard report                    draw the results of both on one page\n  \
    switchyard train --preset smoke      train your own model, in seconds\n\n\
    `switchyard probe --help` describes each.";

/// Runs the program named by the first argument, or by the name of this executable.
pub fn run() -> ExitCode {
    let called = std::env::args_os().next().and_then(|path| Some(Path::new(&path).file_stem()?.to_str()?.to_owned()));
    match called.as_deref() {
        Some("train") => parse::<Train>().run(),
        Some("probe") => exit(parse::<Probe>().run()),
        Some("intervene") => exit(parse::<Intervene>().run()),
        Some("report") => exit(parse::<Report>().run()),
        _ => by_first_argument(command()),
    }
}

fn command() -> Command {
    let door = |name: &'static str, program: Command| completions::complete(program).name(name);
    let programs = [
        door("train", Train::command()),
        door("probe", Probe::command()),
        door("intervene", Intervene::command()),
        door("report", Report::command()),
    ];
    let itself = Command::new("switchyard").version(env!("CARGO_PKG_VERSION")).about(ABOUT).after_help(EXAMPLES);
    completions::with_flag(itself).subcommands(programs)
}

fn by_first_argument(mut command: Command) -> ExitCode {
    keep_freed_memory();
    let matches = completions::matches(&mut command);
    completions::or_end(&matches, &mut command);
    let Some((name, matches)) = matches.subcommand() else {
        return exit(print(&command.render_help().to_string()));
    };
    completions::or_end(matches, &mut command);
    match name {
        "train" => parsed::<Train>(matches, &mut command).run(),
        "probe" => exit(parsed::<Probe>(matches, &mut command).run()),
        "intervene" => exit(parsed::<Intervene>(matches, &mut command).run()),
        _ => exit(parsed::<Report>(matches, &mut command).run()),
    }
}

fn parsed<T: FromArgMatches>(matches: &ArgMatches, command: &mut Command) -> T {
    T::from_arg_matches(matches).unwrap_or_else(|error| error.format(command).exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_door_takes_what_its_program_takes() {
        command().debug_assert();
        let typed = |line: &str| command().try_get_matches_from(line.split(' '));
        for line in ["switchyard train --preset smoke", "switchyard probe --list", "switchyard report a b"] {
            assert!(typed(line).is_ok_and(|matches| matches.subcommand().is_some()), "{line}");
        }
        assert!(typed("switchyard").is_ok_and(|matches| matches.subcommand().is_none()));
        let near = typed("switchyard prob").expect_err("no such program").to_string();
        assert!(near.contains("'probe'"), "{near}");
        let usage = typed("switchyard intervene --no-such").expect_err("no such option").to_string();
        assert!(usage.contains("switchyard intervene"), "{usage}");
    }
}
