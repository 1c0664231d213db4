//! Options that print something and exit, in addition to a program's own arguments: `--completions SHELL` on all of them, `--list-devices`
//! where there is a device to choose. Knows clap, not the arguments.

use std::io::IsTerminal;

use clap::builder::styling::{Style, Styles};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command, Parser, value_parser};
use clap_complete::{Shell, generate};
use console::Term;

use super::{device, print, print_styled};
use switchyard::machine::keep_freed_memory;
use switchyard::progress::say;

const FLAG: &str = "completions";

/// Parses the command line as `T::parse()` does; an option that only prints something ends the process here.
pub fn parse<T: Parser>() -> T {
    keep_freed_memory();
    let mut command = complete(T::command());
    let matches = matches(&mut command);
    or_end(&matches, &mut command);
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Parses the command line; help (in the terminal's width) and errors end the process.
pub(super) fn matches(command: &mut Command) -> ArgMatches {
    command.try_get_matches_from_mut(std::env::args_os()).unwrap_or_else(|error| {
        // A terminal of unknown width gets 80 columns.
        let width = Term::stdout().size_checked().map_or(80, |(_, width)| usize::from(width));
        let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
        if error.use_stderr() && !help {
            error.exit();
        }
        if !std::io::stdout().is_terminal() || !help {
            let printed =
                if error.use_stderr() { error.print().map_err(Into::into) } else { print(&error.to_string()) };
            std::process::exit(printed.map_or_else(|error| end(&error), |()| error.exit_code()))
        }
        let text = error.render();
        let plain = std::env::var_os("NO_COLOR").is_some();
        let text = if plain { text.to_string() } else { text.ansi().to_string() };
        let text: String = text.lines().map(|line| wrapped(line, width) + "\n").collect();
        std::process::exit(print_styled(&text).map_or_else(|error| end(&error), |()| error.exit_code()))
    })
}

/// Reports an error in printing; returns the exit code.
fn end(error: &anyhow::Error) -> i32 {
    say(&format!("error: {error:#}"));
    2
}

/// Wraps a line at `width` letters, not counting escape sequences; further lines are indented to the text of the first, if that is its second
/// column.
fn wrapped(line: &str, width: usize) -> String {
    const NARROWEST: usize = 20;
    let bare = bare(line);
    let start = bare.len() - bare.trim_start().len();
    let column = bare[start..].find("  ").map(|at| start + at);
    let column = column.map(|at| at + bare[at..].len() - bare[at..].trim_start().len());
    let indent = column.filter(|column| column + NARROWEST < width).unwrap_or(start).min(width / 2);
    let (mut out, mut filled) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let seen = self::bare(word.trim_end()).chars().count();
        if filled > indent && filled + seen > width {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            filled = indent;
        }
        out.push_str(word);
        filled += self::bare(word).chars().count();
    }
    out.truncate(out.trim_end().len());
    out
}

/// A text without escape sequences.
fn bare(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// A program's arguments with the common ones. Long lines of its help have no escape sequences, which tools would count.
pub(super) fn complete(program: Command) -> Command {
    let plain = Styles::styled().literal(Style::new()).usage(Style::new());
    device::with_list(with_flag(program)).styles(plain)
}

/// Prints what an option requests and ends the process; returns if there is no such option.
pub(super) fn or_end(matches: &ArgMatches, command: &mut Command) {
    if let Some(shell) = matches.try_get_one::<Shell>(FLAG).ok().flatten() {
        // clap's name is the package's, the same for all programs.
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
    // Exclusive: it needs none of the required arguments. Without the heading of earlier arguments.
    command.arg(shell.exclusive(true).help_heading(None::<&str>))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;

    #[derive(Parser)]
    #[command(name = "thing")]
    struct Thing {
        #[arg(long)]
        needed: String,
    }

    #[test]
    fn long_lines_of_help_are_wrapped_below_their_text() {
        let line = "  --flag <X>  one two three four five six seven eight nine ten";
        let lines = wrapped(line, 41);
        assert_eq!(lines, "  --flag <X>  one two three four five six\n              seven eight nine ten");
        let styled = wrapped("          \u{1b}[1mone\u{1b}[0m two three four five six", 24);
        assert_eq!(styled, "          \u{1b}[1mone\u{1b}[0m two three\n          four five six");
        assert_eq!(wrapped("short", 80), "short");
        assert_eq!(wrapped(&"x".repeat(90), 80), "x".repeat(90), "a word is not broken");
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
