//! `mount.lacuna`: what mount(8) calls for `mount -t lacuna` and for lines of fstab; `mount.fuse.lacuna`: what
//! it calls for what is mounted already, the kernel's name of whose type is `fuse.lacuna`.
//!
//! They are this program under other names: `ln -s /usr/bin/lacuna /sbin/mount.lacuna`. Without the second,
//! `mount -o remount,rw DIR` is the kernel's alone, which makes a mount writable whose store is open for reading
//! only.

use std::ffi::{OsStr, OsString};

/// The names under which the program is mount(8)'s helper.
const HELPERS: [&str; 2] = ["mount.lacuna", "mount.fuse.lacuna"];

/// Options of fstab that concern mount(8) or systemd, or have no effect.
const IGNORED: [&str; 16] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "exec",
    "nodev",
    "nosuid",
    "norelatime",
    "async",
    "default_permissions",
];

/// Options with values that a remount names because the kernel's table of mounts does.
const TOLD_BY_KERNEL: [&str; 4] = ["user_id", "group_id", "rootmode", "max_read"];

/// Options with the command line's flag for each.
const FLAGS: [(&str, &str); 13] = [
    ("allow_other", "--allow-other"),
    ("cache", "--cache=auto"),
    ("atime", "--atime=relatime"),
    ("relatime", "--atime=relatime"),
    ("noatime", "--atime=noatime"),
    ("strictatime", "--atime=strictatime"),
    ("nodiratime", "--nodiratime"),
    ("no_infer_trim", "--no-infer-trim"),
    ("fcta", "--fcta"),
    ("dev", "--dev"),
    ("suid", "--suid"),
    ("noexec", "--noexec"),
    ("foreground", "--foreground"),
];

/// Whether the program is called by a name of mount(8)'s helper.
pub(crate) fn is_helper(program: &OsStr) -> bool {
    HELPERS.iter().any(|helper| program == *helper)
}

/// Translates `mount.lacuna STORE DIR [-sfnv] [-t TYPE] [-o OPTION,...]` into `lacuna mount ...`, or with the
/// option `remount` into `lacuna remount ...`, which of the others uses only the last of `ro` and `rw`.
///
/// A file system in fstab is meant for all users, so root's mounts imply `allow_other`; `private` revokes it.
pub(crate) fn arguments_of_helper(
    given: impl Iterator<Item = OsString>,
    is_root: bool,
) -> Result<Vec<OsString>, String> {
    let mut names = Vec::new();
    let mut line: Vec<OsString> = vec!["lacuna".into(), "mount".into()];
    let mut is_shared = is_root;
    let mut is_remount = false;
    let mut read_only = false;
    let mut given = given;
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-o") => {
                let options = given.next().ok_or("-o needs options")?;
                let options = options.to_str().ok_or("options must be UTF-8")?;
                for option in options.split(',').filter(|option| !option.is_empty()) {
                    match option {
                        "private" => is_shared = false,
                        "remount" => is_remount = true,
                        "ro" => read_only = true,
                        "rw" => read_only = false,
                        _ => line.extend(flag_of(option)?.map(OsString::from)),
                    }
                }
            }
            Some("-t" | "-N") => drop(given.next()),
            Some("-s" | "-f" | "-n" | "-v" | "-sf" | "-sv") => {}
            Some(unknown) if unknown.starts_with('-') => return Err(format!("unknown option {unknown}")),
            _ => names.push(argument),
        }
    }
    if names.len() != 2 {
        return Err("a store and a directory are needed".into());
    }
    if is_remount {
        line = vec!["lacuna".into(), "remount".into()];
        names.remove(0);
        is_shared = false;
    }
    if read_only {
        line.push("--read-only".into());
    }
    if is_shared && !line.iter().any(|flag| flag == "--allow-other") {
        line.push("--allow-other".into());
    }
    line.push("--".into());
    line.extend(names);
    Ok(line)
}

fn flag_of(option: &str) -> Result<Option<String>, String> {
    if let Some((_, flag)) = FLAGS.iter().find(|(name, _)| *name == option) {
        return Ok(Some((*flag).to_owned()));
    }
    match option.split_once('=') {
        Some((name @ ("threads" | "transport" | "blksize" | "footprint" | "cache"), value)) => {
            return Ok(Some(format!("--{name}={value}")));
        }
        Some((name, _)) if name.starts_with("x-") || name == "comment" => return Ok(None),
        Some((name, _)) if TOLD_BY_KERNEL.contains(&name) => return Ok(None),
        _ => {}
    }
    if IGNORED.contains(&option) || option.starts_with("x-") {
        return Ok(None);
    }
    Err(format!("unknown mount option {option}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(given: &str, is_root: bool) -> Result<String, String> {
        let given = given.split(' ').map(OsString::from);
        let line = arguments_of_helper(given, is_root)?;
        Ok(line.join(" ".as_ref()).into_string().expect("UTF-8"))
    }

    #[test]
    fn options_of_fstab_become_flags() {
        for (given, is_root, expected) in [
            ("/s /d", true, Ok("lacuna mount --allow-other -- /s /d")),
            ("/s /d", false, Ok("lacuna mount -- /s /d")),
            (
                "/s /d -n -t lacuna -o rw,noatime,cache=none,threads=4,transport=fuser,x-systemd.before=mariadb.service,fcta",
                true,
                Ok(
                    "lacuna mount --atime=noatime --cache=none --threads=4 --transport=fuser --fcta --allow-other -- /s /d",
                ),
            ),
            ("-o ro,private /s /d", true, Ok("lacuna mount --read-only -- /s /d")),
            ("/s /d -o allow_other", false, Ok("lacuna mount --allow-other -- /s /d")),
            ("/s /d -o data=journal", true, Err("unknown mount option data=journal")),
            ("/s", true, Err("a store and a directory are needed")),
            ("/s /d -o ro,rw", true, Ok("lacuna mount --allow-other -- /s /d")),
            ("/s /d -o rw,fcta,remount,ro", true, Ok("lacuna remount --read-only -- /d")),
            ("/s /d -o ro,remount,rw,threads=4", true, Ok("lacuna remount -- /d")),
            // The call that mount(8) makes for `mount -o remount,rw /d`, with options of the table of mounts.
            (
                "/s /d -o rw,nosuid,nodev,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other",
                true,
                Ok("lacuna remount -- /d"),
            ),
            ("/s /d -o remount,data=journal", true, Err("unknown mount option data=journal")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(translate(given, is_root), expected, "{given}");
        }
    }
}
