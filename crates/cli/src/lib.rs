//! The program `lacuna`.
//!
//! Every failure is one line `lacuna: <place>: <cause>` on standard error: exit code 2 when the
//! command line makes no sense, else 1.
//!
//! layers: mounts, printable, signals, stdout < output < log_device < keys
//! layers: < control, demo, progress, size, trace, walk < ended, look
//! layers: < files, grow, quota, scrub, table_info < live, phases, tables < info, sql < check, table
//! layers: < compress, du, flash_model, format, iobench, key, linkbench, mariadb_demo, metrics, mount, postgres_demo, tpcc
//! layers: < dataset, run, trimbench
//! layers: < report, verdict

mod check;
mod compress;
mod control;
mod dataset;
mod demo;
mod du;
mod ended;
mod files;
mod flash_model;
mod format;
mod grow;
mod info;
mod iobench;
mod key;
mod keys;
mod linkbench;
mod live;
mod log_device;
mod look;
mod mariadb_demo;
mod metrics;
mod mount;
mod mounts;
mod output;
mod phases;
mod postgres_demo;
mod printable;
mod progress;
mod quota;
mod report;
mod run;
mod scrub;
mod signals;
mod size;
mod sql;
mod stdout;
mod table;
mod table_info;
mod tables;
mod tpcc;
mod trace;
mod trimbench;
mod verdict;
mod walk;

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

use anyhow::Result;
use clap::{Arg, CommandFactory, Parser, Subcommand, error::ErrorKind};
use signal_hook::consts::SIGXFSZ;

pub use mount::Hosting;
pub(crate) use output::{complain, note, say, say_done};
pub use run::start_of;

#[derive(Parser)]
#[command(name = "lacuna", version, about = "A flash-native storage stack", max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    key: keys::KeyArguments,
    #[command(flatten)]
    log_device: log_device::LogArguments,
}

#[derive(Subcommand)]
enum Command {
    Format(format::Arguments),
    Key(key::Arguments),
    Grow(grow::Arguments),
    Quota(quota::Arguments),
    Info(info::Arguments),
    Check(check::Arguments),
    Compress(compress::Arguments),
    Du(du::Arguments),
    Scrub(scrub::Arguments),
    Table(table::Arguments),
    #[command(name = "linkbench")]
    LinkBench(Box<linkbench::Arguments>),
    #[command(name = "tpcc")]
    TpcC(Box<tpcc::Arguments>),
    #[command(name = "iobench")]
    IoBench(Box<iobench::Arguments>),
    #[command(name = "trimbench")]
    TrimBench(Box<trimbench::Arguments>),
    Dataset(Box<dataset::Arguments>),
    FlashModel(flash_model::Arguments),
    Verdict(verdict::Arguments),
    Report(report::Arguments),
    #[command(name = "mariadb-demo")]
    MariaDbDemo(mariadb_demo::Arguments),
    PostgresDemo(postgres_demo::Arguments),
    Mount(mount::Arguments),
    Run(run::RunArguments),
    /// Started by `lacuna run` only.
    #[command(hide = true)]
    RunGuard(run::GuardArguments),
    /// Asked for by mount(8) only.
    #[command(hide = true)]
    Remount(mount::RemountArguments),
    Umount(mount::UnmountArguments),
    Metrics(metrics::Arguments),
    #[command(name = "ls")]
    List(files::ListArguments),
    Cat(files::CatArguments),
    Put(files::PutArguments),
    Get(files::GetArguments),
    #[command(name = "rm")]
    Remove(files::RemoveArguments),
    #[command(name = "cp")]
    Copy(files::CopyArguments),
    Rescue(files::RescueArguments),
}

/// The program, from its command line to its exit code.
pub fn main() -> ExitCode {
    // Beyond a limit of the size of files writes then fail with EFBIG, where they would kill the process.
    let caught = signal_hook::flag::register(SIGXFSZ, Arc::default());
    caught.expect("this signal may be caught");
    let line = match words(std::env::args_os()) {
        Ok(line) => line,
        Err(usage) => {
            complain(&usage);
            return ExitCode::from(2);
        }
    };
    let command_line = match CommandLine::try_parse_from(&line) {
        Ok(command_line) => command_line,
        Err(usage) => return explain(&usage),
    };
    if let Some(option) = given_twice(&line) {
        complain(&format!("the argument '--{option}' cannot be used multiple times (see --help)"));
        return ExitCode::from(2);
    }
    if let Err(usage) = log_device::choose(&command_line.log_device) {
        complain(&format!("{usage:#}"));
        return ExitCode::from(2);
    }
    mount::install_log();
    let is_rescue = matches!(command_line.command, Command::Rescue(_));
    let result = keys::install(&command_line.key).and_then(|()| run(command_line.command));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let rescue = || if is_rescue { None } else { files::hint(&error) };
            let hint = mount::hint(&error).or_else(|| keys::hint(&error)).or_else(rescue).unwrap_or_default();
            complain(&format!("{}{hint}", chain(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Format(arguments) => format::run(&arguments),
        Command::Key(arguments) => key::run(&arguments),
        Command::Grow(arguments) => grow::run(&arguments),
        Command::Quota(arguments) => quota::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Compress(arguments) => compress::run(&arguments),
        Command::Du(arguments) => du::run(&arguments),
        Command::Scrub(arguments) => scrub::run(&arguments),
        Command::Table(arguments) => table::run(&arguments),
        Command::LinkBench(arguments) => linkbench::run(&arguments),
        Command::TpcC(arguments) => tpcc::run(&arguments),
        Command::IoBench(arguments) => iobench::run(&arguments),
        Command::TrimBench(arguments) => trimbench::run(&arguments),
        Command::Dataset(arguments) => dataset::run(&arguments),
        Command::FlashModel(arguments) => flash_model::run(&arguments),
        Command::Verdict(arguments) => verdict::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::MariaDbDemo(arguments) => mariadb_demo::run(&arguments),
        Command::PostgresDemo(arguments) => postgres_demo::run(&arguments),
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::RunGuard(arguments) => run::guard(&arguments),
        Command::Remount(arguments) => mount::remount(&arguments),
        Command::Umount(arguments) => mount::unmount(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::List(arguments) => files::list(&arguments),
        Command::Cat(arguments) => files::cat(&arguments),
        Command::Put(arguments) => files::put(&arguments),
        Command::Get(arguments) => files::get(&arguments),
        Command::Remove(arguments) => files::remove(&arguments),
        Command::Copy(arguments) => files::copy(&arguments),
        Command::Rescue(arguments) => files::rescue(&arguments),
    }
}

/// Mounts a store from within another program, as the words of a command line `lacuna mount ...` say, and serves it until
/// that program ends or it is unmounted. Returns when the store is closed.
///
/// # Errors
/// What the program `lacuna` would print.
pub fn host(words: &[OsString], hosting: &Arc<dyn Hosting>) -> Result<(), String> {
    let line = CommandLine::try_parse_from(words).map_err(|usage| usage.to_string())?;
    let Command::Mount(arguments) = line.command else { return Err("no mount".into()) };
    mount::install_log();
    let chosen = log_device::choose(&line.log_device).and_then(|()| keys::install(&line.key));
    chosen.and_then(|()| mount::host(&arguments, hosting)).map_err(|error| {
        let hint = mount::hint(&error).or_else(|| keys::hint(&error)).unwrap_or_default();
        format!("{}{hint}", chain(&error))
    })
}

/// Whether `store` is mounted on `dir`.
pub fn is_mounted(store: &Path, dir: &Path) -> bool {
    mounts::all().unwrap_or_default().iter().any(|mount| mount.dir == dir && mount.store == store)
}

/// Unmounts the file system of `store` with this `st_dev`, whether or not it is in use.
pub fn force_unmount(store: &Path, device: u64) {
    mount::force_unmount(store, &format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)));
}

/// The words of the command line; those of mount(8)'s helper in our own terms.
fn words(mut given: std::env::ArgsOs) -> Result<Vec<OsString>, String> {
    let is_called = |name: &OsString, by: fn(&OsStr) -> bool| Path::new(name).file_name().is_some_and(by);
    match given.next() {
        Some(name) if is_called(&name, mount::is_unmounter) => Ok(mount::arguments_of_unmounter(given)),
        Some(name) if is_called(&name, mount::is_helper) => {
            let words = mount::arguments_of_helper(given, rustix::process::geteuid().is_root())?;
            // Nothing to do: `mount -f` only tries whether it could be done.
            Ok(words.unwrap_or_else(|| std::process::exit(0)))
        }
        name => Ok(name.into_iter().chain(given).collect()),
    }
}

/// An option with a value that stands on both sides of the subcommand: the parser lets the later one count.
fn given_twice(line: &[OsString]) -> Option<String> {
    let words = || line.iter().take_while(|word| *word != "--").map(|word| word.to_string_lossy());
    let times = |name: &str| {
        let is_it =
            |word: &str| word.strip_prefix("--").and_then(|word| word.split('=').next()) == Some(name);
        words().filter(|word| is_it(word)).count()
    };
    let command = CommandLine::command();
    let takes_value = |option: &&Arg| option.is_global_set() && option.get_action().takes_values();
    let mut names = command.get_arguments().filter(takes_value).filter_map(Arg::get_long);
    names.find(|name| times(name) > 1).map(str::to_owned)
}

/// Help and version go to standard output in full, a mistake becomes one line.
fn explain(usage: &clap::Error) -> ExitCode {
    if matches!(usage.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match say(&usage.to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if usage.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{usage}");
        return ExitCode::from(2);
    }
    let text = usage.to_string();
    let mistake = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
    // What was meant, if something known is similar.
    let is_tip = |line: &&str| line.starts_with("tip: ") && line.contains("similar");
    let tips = text.lines().map(str::trim).filter(is_tip);
    let line = mistake.chain(tips).collect::<Vec<_>>().join(" ");
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
