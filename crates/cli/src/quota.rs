//! `lacuna quota`: what users have in a store, and what they may have.

use std::{
    fmt::Write,
    num::NonZeroU64,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lacuna_nvmfs::{Limits, Nvmfs, OpenedVfs, UserQuota};
use nix::unistd::{Uid, User as Account};

use crate::{control, keys::open_vfs, log_device, look::Look, printable::one_line, say, size::Size};

/// Show what users have in a store, mounted or not, or limit it
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file or a block device
    store: PathBuf,
    #[command(subcommand)]
    change: Option<Change>,
}

#[derive(Subcommand)]
enum Change {
    /// Limit what a user may have; what is above the limit stays
    Set {
        /// A name or a number
        user: User,
        /// Bytes that may be stored for the user's files, directories and attributes, such as 10G; none: any
        #[arg(value_name = "SIZE|none")]
        size: SizeLimit,
        /// How many files, directories and other inodes the user may have, or none: any; without it, as many as before
        #[arg(long, value_name = "N|none")]
        files: Option<FilesLimit>,
    },
    /// Take the limits of a user away
    Clear {
        /// A name or a number
        user: User,
    },
}

#[derive(Clone, Copy)]
struct User(u32);

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<User, String> {
        if let Ok(uid) = text.parse() {
            return Ok(User(uid));
        }
        match Account::from_name(text) {
            Ok(Some(account)) => Ok(User(account.uid.as_raw())),
            _ => Err("no such user".to_owned()),
        }
    }
}

#[derive(Clone, Copy)]
struct SizeLimit(Option<NonZeroU64>);

impl FromStr for SizeLimit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<SizeLimit, &'static str> {
        match text {
            "none" => Ok(SizeLimit(None)),
            size => size.parse().map(|Size(bytes)| SizeLimit(NonZeroU64::new(bytes))),
        }
    }
}

#[derive(Clone, Copy)]
struct FilesLimit(Option<NonZeroU64>);

impl FromStr for FilesLimit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<FilesLimit, &'static str> {
        match text {
            "none" => Ok(FilesLimit(None)),
            number => match number.parse() {
                Ok(number) => Ok(FilesLimit(Some(number))),
                Err(_) => Err("a limit is a number of files, at least 1; `none` is no limit"),
            },
        }
    }
}

impl Change {
    fn user_and_limits(&self, store: &Path) -> Result<(u32, Limits)> {
        Ok(match self {
            Change::Set { user, size, files } => {
                let inodes = match files {
                    Some(files) => files.0,
                    None => files_before(store, user.0)?,
                };
                (user.0, Limits { bytes: size.0, inodes })
            }
            Change::Clear { user } => (user.0, Limits::default()),
        })
    }
}

/// How many files a user may have.
fn files_before(store: &Path, uid: u32) -> Result<Option<NonZeroU64>> {
    let listed = listed(store)?;
    let limits = listed.lines().filter_map(numbers::<5>);
    Ok(limits.into_iter().find(|line| line[0] == u64::from(uid)).and_then(|line| NonZeroU64::new(line[4])))
}

/// A line for each user, by whoever has the store open.
fn listed(store: &Path) -> Result<String> {
    if let Some(answered) = control::ask(store, "quota")? {
        return Ok(answered);
    }
    let look = Look::at(store, log_device::vfs_options())?;
    let OpenedVfs::Store(fs) = &look.opened else { return no_store(&store.display()) };
    let answered = answer(fs, "").map_err(anyhow::Error::msg)?;
    look.close(None)?;
    Ok(answered)
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let store = &arguments.store;
    let name = store.display();
    let Some(change) = &arguments.change else {
        return say(&table(&listed(store)?).with_context(|| name.to_string())?);
    };
    let (uid, limits) = change.user_and_limits(store)?;
    if limits == Limits::default() && matches!(change, Change::Set { .. }) {
        bail!("{name}: no limit is given; `clear` takes limits away");
    }
    let max = |limit: Option<NonZeroU64>| limit.map_or(0, NonZeroU64::get);
    let change = format!("{uid} {} {}", max(limits.bytes), max(limits.inodes));
    if control::ask(store, &format!("quota {change}"))?.is_some() {
        return Ok(());
    }
    let OpenedVfs::Store(fs) = open_vfs(store, &log_device::vfs_options())? else { return no_store(&name) };
    let answered = answer(&fs, &change);
    fs.close()?;
    answered.map(drop).map_err(anyhow::Error::msg)
}

fn no_store<T>(name: &dyn std::fmt::Display) -> Result<T> {
    bail!("{name}: a directory; its file system has quotas of its own")
}

/// Answers `quota`, with a line for each user, or `quota UID BYTES FILES` about a mounted store; 0 is no limit.
pub(crate) fn answer(fs: &Nvmfs, change: &str) -> Result<String, String> {
    let text = |error: lacuna_nvmfs::Error| error.to_string();
    if !change.is_empty() {
        let numbers = numbers::<3>(change).ok_or_else(|| format!("quota {change}: not understood"))?;
        let uid = u32::try_from(numbers[0]).map_err(|_| format!("quota {change}: no such user"))?;
        let limits = Limits { bytes: NonZeroU64::new(numbers[1]), inodes: NonZeroU64::new(numbers[2]) };
        return match fs.set_limits(uid, limits) {
            Err(lacuna_nvmfs::Error::Refused(lacuna_nvmfs::Refusal::Invalid)) => {
                Err(format!("user {uid} cannot have limits"))
            }
            set => set.map(|()| String::new()).map_err(text),
        };
    }
    let max = |limit: Option<NonZeroU64>| limit.map_or(0, NonZeroU64::get);
    Ok(fs.quotas().map_err(text)?.iter().fold(String::new(), |mut lines, UserQuota { uid, used, limits }| {
        let (bytes_max, inodes_max) = (max(limits.bytes), max(limits.inodes));
        let _ = writeln!(lines, "{uid} {} {bytes_max} {} {inodes_max}", used.bytes, used.inodes);
        lines
    }))
}

/// Exactly so many numbers between spaces.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let numbers: Option<Vec<u64>> = text.split(' ').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// The name of a user, or the number where it has none.
pub(crate) fn user_name(uid: u32) -> String {
    let account = Account::from_uid(Uid::from_raw(uid)).ok().flatten();
    account.map_or_else(|| uid.to_string(), |account| one_line(&account.name).into_owned())
}

/// The answer for people: users by name, in columns.
fn table(answer: &str) -> Result<String> {
    let mut rows = vec![["user", "bytes", "limit", "files", "limit"].map(str::to_owned)];
    for line in answer.lines() {
        let [uid, bytes, bytes_max, inodes, inodes_max] =
            numbers(line).with_context(|| format!("its owner gave no answer that is understood: {line}"))?;
        let user = u32::try_from(uid).map_or_else(|_| uid.to_string(), user_name);
        let max = |limit: u64| if limit == 0 { "-".to_owned() } else { limit.to_string() };
        rows.push([user, bytes.to_string(), max(bytes_max), inodes.to_string(), max(inodes_max)]);
    }
    let mut widths = [0; 5];
    for row in &rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    Ok(rows.iter().fold(String::new(), |mut text, [user, figures @ ..]| {
        let _ = write!(text, "{user:<0$}", widths[0]);
        for (figure, width) in figures.iter().zip(&widths[1..]) {
            let _ = write!(text, "  {figure:>width$}");
        }
        text + "\n"
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lacuna_device::{BlockDevice, MemDevice};
    use lacuna_nvmfs::{FormatOptions, Options};

    use super::*;

    #[test]
    fn limits_are_set_asked_for_and_cleared() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
        Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
        let fs = Nvmfs::open(device, Options::default()).expect("opens");
        for bad in
            ["x", "1", "1 2", "1 2 3 4", "1 2 x", "1 -2 3", " ", "4294967296 1 1", "0 1 1", "4294967295 1 1"]
        {
            assert!(answer(&fs, bad).is_err(), "{bad}");
        }
        assert_eq!(answer(&fs, "4294967294 4096 0").as_deref(), Ok(""));
        let lines = answer(&fs, "").expect("answers");
        assert!(lines.ends_with("\n4294967294 0 4096 0 0\n"), "{lines}");
        let table = table(&lines).expect("is understood");
        assert!(table.starts_with("user "), "{table}");
        assert!(
            table.lines().last().is_some_and(|line| line.starts_with("4294967294 ") && line.ends_with(" -"))
        );
        assert_eq!(answer(&fs, "4294967294 0 0").as_deref(), Ok(""));
        assert_eq!(answer(&fs, "").expect("answers").lines().count(), 1, "whoever owns the root directory");
        assert!(super::table("1 2 3").is_err());
    }

    #[test]
    fn users_have_names_and_numbers() {
        assert!(matches!("root".parse(), Ok(User(0))));
        assert!(matches!("77".parse(), Ok(User(77))));
        for bad in ["", "-1", "4294967296", "no such user here"] {
            assert!(bad.parse::<User>().is_err(), "{bad}");
        }
        assert!("0".parse::<SizeLimit>().is_err());
        assert!("0".parse::<FilesLimit>().is_err_and(|error| error.contains("`none` is no limit")));
        assert!(matches!("none".parse(), Ok(SizeLimit(None))));
        assert!(matches!("1K".parse::<SizeLimit>(), Ok(SizeLimit(Some(bytes))) if bytes.get() == 1024));
        assert!("0".parse::<SizeLimit>().is_err());
    }
}
