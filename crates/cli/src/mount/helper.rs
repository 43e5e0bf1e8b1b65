//! `mount.lacuna`: what mount(8) calls for `mount -t lacuna` and for lines of fstab; `mount.fuse.lacuna`: what
//! it calls for what is mounted already, the kernel's name of whose type is `fuse.lacuna`. `umount.fuse.lacuna`: what
//! umount(8) calls.
//!
//! They are this program under other names: `ln -s /usr/bin/lacuna /sbin/mount.lacuna`. Without the second,
//! `mount -o remount,rw DIR` is the kernel's alone, which makes a mount writable whose store is open for reading
//! only. Without the third, umount(8) does not wait until the store is closed, nor fail when something is lost.

use std::ffi::{OsStr, OsString};

/// The names under which the program is mount(8)'s helper.
const HELPERS: [&str; 2] = ["mount.lacuna", "mount.fuse.lacuna"];

/// The name under which it is umount(8)'s.
const UNMOUNTER: &str = "umount.fuse.lacuna";

/// Options of fstab that concern mount(8) or systemd, or that ask for what the file system does anyway.
const WITHOUT_EFFECT: [&str; 23] = [
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
    "norelatime",
    "diratime",
    "lazytime",
    "nolazytime",
    "async",
    "silent",
    "loud",
    "discard",
    "user_xattr",
    "acl",
    "noacl",
    "default_permissions",
    "_rnetdev",
];

/// Options with values that a remount names because the kernel's table of mounts does.
const TOLD_BY_KERNEL: [&str; 4] = ["user_id", "group_id", "rootmode", "max_read"];

/// Options with the command line's flag for each.
const FLAGS: [(&str, &str); 14] = [
    ("cache", "--cache=auto"),
    ("atime", "--atime=relatime"),
    ("relatime", "--atime=relatime"),
    ("noatime", "--atime=noatime"),
    ("strictatime", "--atime=strictatime"),
    ("nodiratime", "--nodiratime"),
    ("no_infer_trim", "--no-infer-trim"),
    ("no_enable_uring", "--no-enable-uring"),
    ("fcta", "--fcta"),
    ("foreground", "--foreground"),
    ("exit_on_failure", "--exit-on-failure"),
    ("sync", "--sync"),
    ("dirsync", "--sync"),
    ("without_log_device", "--without-log-device"),
];

/// Options with a value that the command line takes under the same name, with `-` for `_`.
const VALUES: [&str; 16] = [
    "threads",
    "transport",
    "cache",
    "blksize",
    "compress",
    "recompress",
    "recompress_after",
    "footprint",
    "map_memory",
    "chunk_cache",
    "root_reserve",
    "close_timeout",
    "key_file",
    "key_command",
    "log_device",
    "new_log_device",
];

/// Options of which the last one counts, each with the switch that it sets and to what.
const SWITCHES: [(&str, Switch, bool); 11] = [
    ("ro", Switch::ReadOnly, true),
    ("rw", Switch::ReadOnly, false),
    ("dev", Switch::Dev, true),
    ("nodev", Switch::Dev, false),
    ("suid", Switch::Suid, true),
    ("nosuid", Switch::Suid, false),
    ("exec", Switch::Exec, true),
    ("noexec", Switch::Exec, false),
    ("allow_other", Switch::Shared, true),
    // mount(8) takes `private` for itself, which makes mounts below it private, and does not pass it on.
    ("no_allow_other", Switch::Shared, false),
    ("private", Switch::Shared, false),
];

/// How alike a known option must be to be proposed for an unknown one, from 0 to 1.
const LIKENESS_MIN: f64 = 0.8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    ReadOnly,
    Dev,
    Suid,
    Exec,
    Shared,
}

/// What the options of a call ask for.
#[derive(Default)]
struct Asked {
    is_remount: bool,
    /// The options are those of the kernel's table of mounts with the caller's changes: what is missing was taken away.
    is_complete: bool,
    switches: [Option<bool>; 5],
    flags: Vec<String>,
}

impl Asked {
    fn switch(&self, switch: Switch) -> Option<bool> {
        self.switches[switch as usize]
    }

    /// The last of several flags of one name counts.
    fn push(&mut self, flag: &str) {
        let name = |flag: &str| flag.split_once('=').map_or(flag, |(name, _)| name).to_owned();
        self.flags.retain(|before| name(before) != name(flag));
        self.flags.push(flag.to_owned());
    }

    fn note(&mut self, option: &str) -> Result<(), String> {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if let Some((.., switch, on)) = SWITCHES.iter().find(|(name, ..)| *name == option) {
            self.switches[*switch as usize] = Some(*on);
        } else if let Some((_, flag)) = FLAGS.iter().find(|(name, _)| *name == option) {
            self.push(flag);
        } else if VALUES.contains(&name) {
            let value = value.ok_or_else(|| format!("mount option {name} needs a value"))?;
            self.push(&format!("--{}={value}", name.replace('_', "-")));
        } else if option == "remount" {
            self.is_remount = true;
        } else if TOLD_BY_KERNEL.contains(&name) && value.is_some() {
            self.is_complete = true;
        } else if !WITHOUT_EFFECT.contains(&option) && !is_comment(name) {
            return Err(unknown(name, option));
        }
        Ok(())
    }

    /// The words of `lacuna mount`. mount(8) does not pass `dev`, `suid` and `exec` on, because they are its defaults,
    /// so root's mounts have them unless an option says otherwise. A file system in fstab is meant for all users, so
    /// root's mounts are for others too, unless they have `no_allow_other`.
    fn mount_words(&self, is_root: bool) -> Vec<String> {
        let or = |switch, default| self.switch(switch).unwrap_or(default);
        let mut words = vec!["mount".to_owned()];
        words.extend_from_slice(&self.flags);
        for (is_set, flag) in [
            (or(Switch::ReadOnly, false), "--read-only"),
            (or(Switch::Dev, is_root), "--dev"),
            (or(Switch::Suid, is_root), "--suid"),
            (!or(Switch::Exec, true), "--noexec"),
            (or(Switch::Shared, is_root), "--allow-other"),
        ] {
            words.extend(is_set.then(|| flag.to_owned()));
        }
        words
    }

    /// The words of `lacuna remount`. It keeps what it is not told about. Other options than these are often those of
    /// fstab, which mount(8) passes on among those that are asked for.
    fn remount_words(&self) -> Vec<String> {
        let mut words = vec!["remount".to_owned()];
        if self.switch(Switch::ReadOnly) == Some(true) {
            words.push("--read-only".to_owned());
        }
        // It refuses what is not so already.
        let is_checked = |flag: &&String| flag.starts_with("--cache=") || *flag == "--sync";
        words.extend(self.flags.iter().filter(is_checked).cloned());
        for (switch, name) in [(Switch::Dev, "dev"), (Switch::Suid, "suid"), (Switch::Exec, "exec")] {
            match self.switch(switch).or(self.is_complete.then_some(true)) {
                Some(true) => words.push(format!("--{name}")),
                Some(false) => words.push(format!("--no{name}")),
                None => {}
            }
        }
        words
    }
}

/// Whether mount(8) leaves the option of this name to other programs.
fn is_comment(name: &str) -> bool {
    name.starts_with("x-") || name.starts_with("X-") || name == "comment"
}

/// The complaint about an unknown option, with the known one that it resembles most.
fn unknown(name: &str, option: &str) -> String {
    let known = SWITCHES.iter().map(|(name, ..)| *name).chain(FLAGS.iter().map(|(name, _)| *name));
    let known = known.chain(VALUES).chain(WITHOUT_EFFECT);
    let alike = known.map(|known| (strsim::jaro(known, name), known));
    let nearest = alike.filter(|(likeness, _)| *likeness > LIKENESS_MIN).max_by(|a, b| a.0.total_cmp(&b.0));
    let proposed = nearest.map_or(String::new(), |(_, known)| format!("; did you mean {known}?"));
    format!("unknown mount option {option}{proposed}")
}

/// Whether the program is called by a name of mount(8)'s helper.
pub(crate) fn is_helper(program: &OsStr) -> bool {
    HELPERS.iter().any(|helper| program == *helper)
}

/// Whether the program is called by the name of umount(8)'s helper.
pub(crate) fn is_unmounter(program: &OsStr) -> bool {
    program == UNMOUNTER
}

/// Translates `umount.fuse.lacuna DIR [-flnrv] [-N NAMESPACE] [-t TYPE]` into `lacuna umount ...`.
pub(crate) fn arguments_of_unmounter(mut given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut names, mut is_lazy) = (Vec::new(), false);
    while let Some(word) = given.next() {
        match word.to_str() {
            Some("-t" | "-N") => drop(given.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => is_lazy |= flags.contains('l'),
            _ => names.push(word),
        }
    }
    let words = ["lacuna", "umount"].into_iter().chain(is_lazy.then_some("--lazy")).chain(["--"]);
    words.map(OsString::from).chain(names).collect()
}

/// Translates `mount.lacuna STORE DIR [-sfnv] [-t TYPE] [-o OPTION,...]` into `lacuna mount ...`, or with the
/// option `remount` into `lacuna remount ...`. `None` with `-f`, which only asks whether the line is right.
pub(crate) fn arguments_of_helper(
    given: impl Iterator<Item = OsString>,
    is_root: bool,
) -> Result<Option<Vec<OsString>>, String> {
    let mut names = Vec::new();
    let mut asked = Asked::default();
    let mut given = given;
    let mut is_fake = false;
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-o") => {
                let options = given.next().ok_or("-o needs options")?;
                let options = options.to_str().ok_or("options must be UTF-8")?;
                options
                    .split(',')
                    .filter(|option| !option.is_empty())
                    .try_for_each(|option| asked.note(option))?;
            }
            Some("-t" | "-N") => drop(given.next()),
            Some(letters) if letters.len() > 1 && letters.strip_prefix('-').is_some_and(is_harmless) => {
                is_fake |= letters.contains('f');
            }
            Some(unknown) if unknown.starts_with('-') => return Err(format!("unknown option {unknown}")),
            _ => names.push(argument),
        }
    }
    if names.len() != 2 {
        return Err("a store and a directory are needed".into());
    }
    if is_fake {
        return Ok(None);
    }
    let words = match asked.is_remount {
        true => {
            names.remove(0);
            asked.remount_words()
        }
        false => asked.mount_words(is_root),
    };
    let line = std::iter::once("lacuna".to_owned()).chain(words).chain(["--".to_owned()]);
    Ok(Some(line.map(OsString::from).chain(names).collect()))
}

/// Sloppy, fake, no mtab, verbose.
fn is_harmless(letters: &str) -> bool {
    letters.chars().all(|letter| matches!(letter, 's' | 'f' | 'n' | 'v'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(given: &str, is_root: bool) -> Result<String, String> {
        let given = given.split(' ').map(OsString::from);
        let line = arguments_of_helper(given, is_root)?.unwrap_or_default();
        Ok(line.join(" ".as_ref()).into_string().expect("UTF-8"))
    }

    #[test]
    fn umount_passes_a_directory_and_whether_it_is_lazy() {
        for (given, expected) in [
            ("/d", "lacuna umount -- /d"),
            ("/d -v -t fuse.lacuna", "lacuna umount -- /d"),
            ("-lf -N /proc/1/ns/mnt /d", "lacuna umount --lazy -- /d"),
            ("-", "lacuna umount -- -"),
        ] {
            let words = arguments_of_unmounter(given.split(' ').map(OsString::from));
            assert_eq!(words.join(" ".as_ref()), expected, "{given}");
        }
        assert!(is_unmounter("umount.fuse.lacuna".as_ref()) && !is_unmounter("umount".as_ref()));
    }

    #[test]
    fn options_of_fstab_become_flags() {
        for (given, is_root, expected) in [
            ("/s /d", true, Ok("lacuna mount --dev --suid --allow-other -- /s /d")),
            ("/s /d", false, Ok("lacuna mount -- /s /d")),
            (
                "/s /d -n -t lacuna -o rw,noatime,cache=none,threads=4,transport=fuser,x-systemd.before=mariadb.service,fcta",
                true,
                Ok(
                    "lacuna mount --atime=noatime --cache=none --threads=4 --transport=fuser --fcta --dev --suid --allow-other -- /s /d",
                ),
            ),
            ("-o ro,private,nosuid,nodev /s /d", true, Ok("lacuna mount --read-only -- /s /d")),
            ("/s /d -o allow_other", false, Ok("lacuna mount --allow-other -- /s /d")),
            ("/s /d -o log_device=/dev/dax0.0", false, Ok("lacuna mount --log-device=/dev/dax0.0 -- /s /d")),
            ("/s /d -o map_memory=1G,sync", false, Ok("lacuna mount --map-memory=1G --sync -- /s /d")),
            ("/s /d -o cache,cache=writeback", false, Ok("lacuna mount --cache=writeback -- /s /d")),
            ("/s /d -o sync,dirsync", false, Ok("lacuna mount --sync -- /s /d")),
            ("/s /d -o chunk_cache=64M", false, Ok("lacuna mount --chunk-cache=64M -- /s /d")),
            ("/s /d -o root_reserve=10%", false, Ok("lacuna mount --root-reserve=10% -- /s /d")),
            ("/s /d -o compress=zstd:3", false, Ok("lacuna mount --compress=zstd:3 -- /s /d")),
            ("/s /d -o key_file=/k", false, Ok("lacuna mount --key-file=/k -- /s /d")),
            ("/s /d -f -o ro", true, Ok("")),
            ("/s /d -vfn -o remount,ro", true, Ok("")),
            ("/s /d -f -o notime", true, Err("unknown mount option notime; did you mean noatime?")),
            ("/s /d -x", true, Err("unknown option -x")),
            ("/s /d -o data=journal", true, Err("unknown mount option data=journal")),
            ("/s /d -o noauto,notime", true, Err("unknown mount option notime; did you mean noatime?")),
            ("/s /d -o thread=4", true, Err("unknown mount option thread=4; did you mean threads?")),
            ("/s /d -o threads", true, Err("mount option threads needs a value")),
            ("/s", true, Err("a store and a directory are needed")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(translate(given, is_root), expected, "{given}");
        }
    }

    #[test]
    fn what_concerns_others_or_goes_without_saying_is_accepted() {
        for option in WITHOUT_EFFECT.iter().chain(&["x-a", "x-a.b=c,d", "X-mount.mkdir", "comment=text"]) {
            let given = format!("/s /d -o {}", option.replace(',', "_"));
            assert_eq!(translate(&given, false).as_deref(), Ok("lacuna mount -- /s /d"), "{option}");
        }
    }

    /// All orders of three options of each pair: the last one counts.
    #[test]
    fn the_last_of_an_option_and_its_opposite_counts() {
        for (on, off, flag, is_flag_for) in [
            ("ro", "rw", "--read-only", true),
            ("dev", "nodev", "--dev", true),
            ("suid", "nosuid", "--suid", true),
            ("exec", "noexec", "--noexec", false),
            ("allow_other", "no_allow_other", "--allow-other", true),
            ("allow_other", "private", "--allow-other", true),
        ] {
            for (order, is_root) in (0..8).flat_map(|order| [(order, false), (order, true)]) {
                let options = [0, 1, 2].map(|bit| if order >> bit & 1 == 1 { on } else { off });
                let line = translate(&format!("/s /d -o {}", options.join(",")), is_root).expect("is known");
                let has_flag = line.split(' ').any(|word| word == flag);
                assert_eq!(
                    has_flag,
                    (options[2] == on) == is_flag_for,
                    "{options:?}, root: {is_root}: {line}"
                );
            }
        }
    }

    #[test]
    fn a_remount_changes_what_it_names() {
        for (options, expected) in [
            ("rw,fcta,remount,ro", "lacuna remount --read-only -- /d"),
            ("ro,remount,rw,threads=4", "lacuna remount -- /d"),
            ("remount,suid,nosuid,nodev,noexec", "lacuna remount --nodev --nosuid --noexec -- /d"),
            ("nosuid,remount,suid", "lacuna remount --suid -- /d"),
            ("ro,sync,remount,cache=none,threads=4", "lacuna remount --read-only --sync --cache=none -- /d"),
            // The calls that mount(8) makes for `mount -o remount,rw /d` and `mount -o remount,suid /d`, with options of
            // the table of mounts.
            (
                "rw,nosuid,nodev,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other",
                "lacuna remount --nodev --nosuid --exec -- /d",
            ),
            ("rw,nodev,relatime,remount,user_id=0,group_id=0", "lacuna remount --nodev --suid --exec -- /d"),
        ] {
            assert_eq!(translate(&format!("/s /d -o {options}"), true).as_deref(), Ok(expected), "{options}");
        }
        let refused = translate("/s /d -o remount,data=journal", true);
        assert_eq!(refused, Err("unknown mount option data=journal".to_owned()));
    }
}
