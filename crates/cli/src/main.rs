//! The program `lacuna`.
//!
//! Every failure is one line `lacuna: <place>: <cause>` on standard error: exit code 2 when the
//! command line makes no sense, else 1.

mod check;
mod flash_model;
mod format;
mod info;
mod iobench;
mod linkbench;
mod scrub;
mod size;
mod trace;

use std::{
    io::{ErrorKind, Write},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Parser, Subcommand, error::ErrorKind as UsageKind};

#[derive(Parser)]
#[command(name = "lacuna", version, about = "A flash-native storage stack", max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Format(format::Arguments),
    Info(info::Arguments),
    Check(check::Arguments),
    Scrub(scrub::Arguments),
    #[command(name = "linkbench")]
    LinkBench(Box<linkbench::Arguments>),
    #[command(name = "iobench")]
    IoBench(Box<iobench::Arguments>),
    FlashModel(flash_model::Arguments),
}

fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(usage) => return explain(&usage),
    };
    let result = match command_line.command {
        Command::Format(arguments) => format::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Scrub(arguments) => scrub::run(&arguments),
        Command::LinkBench(arguments) => linkbench::run(&arguments),
        Command::IoBench(arguments) => iobench::run(&arguments),
        Command::FlashModel(arguments) => flash_model::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Help and version go to standard output in full, a mistake becomes one line.
fn explain(usage: &clap::Error) -> ExitCode {
    if matches!(usage.kind(), UsageKind::DisplayHelp | UsageKind::DisplayVersion) {
        return match say(&usage.to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if usage.kind() == UsageKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{usage}");
        return ExitCode::from(2);
    }
    let text = usage.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let line = lines.join(" ");
    complain(&format!("{} (see --help)", line.trim_start_matches("error: ")));
    ExitCode::from(2)
}

/// An error with its causes; many a message has its cause in it already.
fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match () {
        () if text.is_empty() => cause,
        () if text.contains(&cause) => text,
        // "place: what" below "place": the inner one names the place already.
        () if cause.starts_with(&text) => cause,
        () => format!("{text}: {cause}"),
    })
}

fn complain(what: &str) {
    let line = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(std::io::stderr(), "lacuna: {line}");
}

/// Prints to standard output. A reader that went away is not an error.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_do_not_repeat_themselves() {
        let wrapped =
            |inner: &str, outer: &str| chain(&anyhow::anyhow!(inner.to_owned()).context(outer.to_owned()));
        assert_eq!(wrapped("no space", "store"), "store: no space");
        assert_eq!(wrapped("no space", "store: no space"), "store: no space");
        assert_eq!(wrapped("store: no space", "store"), "store: no space");
    }
}
