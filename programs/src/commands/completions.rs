//! What every binary parses besides its own arguments: options that print something and end. `--completions SHELL` is on
//! all of them, `--list-devices` where there is a device to choose. Knows clap, not the arguments.

use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Parser, value_parser};
use clap_complete::{Shell, generate};

use super::{device, print};
use switchyard::machine::keep_freed_memory;

const FLAG: &str = "completions";

/// Parses the command line as `T::parse()` does; an option that only prints something ends the process here.
pub fn parse<T: Parser + CommandFactory + FromArgMatches>() -> T {
    keep_freed_memory();
    let mut command = complete(T::command());
    let matches = command.get_matches_mut();
    or_end(&matches, &mut command);
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// A program's arguments with those that every program has.
pub(super) fn complete(program: Command) -> Command {
    device::with_list(with_flag(program))
}

/// Prints what an option requests and ends the process; returns without such an option.
pub(super) fn or_end(matches: &ArgMatches, command: &mut Command) {
    if let Some(shell) = matches.try_get_one::<Shell>(FLAG).ok().flatten() {
        // clap's own name is the package's, the same for all programs.
        let program = std::env::args_os().next().map(std::path::PathBuf::from);
        let name =
            program.as_ref().and_then(|p| p.file_stem()).map_or(command.get_name().into(), |n| n.to_string_lossy());
        let name = name.into_owned();
        let mut script = vec![];
        generate(*shell, command, name, &mut script);
        // A closed pipe is not an error.
        std::process::exit(if print(&String::from_utf8_lossy(&script)).is_ok() { 0 } else { 2 });
    }
    if let Some(list) = device::list(matches) {
        std::process::exit(if print(&list).is_ok() { 0 } else { 2 });
    }
}

pub(super) fn with_flag(command: Command) -> Command {
    let about = "Print the completions of this program for a shell, e.g. `source <(train --completions bash)`";
    let shell = Arg::new(FLAG).long(FLAG).value_name("SHELL").help(about).value_parser(value_parser!(Shell));
    // Exclusive: it needs nothing that the program otherwise requires. Under no heading that arguments before it opened.
    command.arg(shell.exclusive(true).help_heading(None::<&str>))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    #[command(name = "thing")]
    struct Thing {
        #[arg(long)]
        needed: String,
    }

    #[test]
    fn asks_for_nothing_else() {
        let matches = with_flag(Thing::command()).try_get_matches_from(["thing", "--completions", "fish"]).unwrap();
        assert_eq!(matches.get_one::<Shell>(FLAG), Some(&Shell::Fish));
        let matches = with_flag(Thing::command()).try_get_matches_from(["thing", "--needed", "x"]).unwrap();
        assert_eq!(Thing::from_arg_matches(&matches).unwrap().needed, "x");
        assert!(with_flag(Thing::command()).try_get_matches_from(["thing"]).is_err());
    }
}
