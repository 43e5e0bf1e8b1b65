//! A note for umount(8), so that it calls its helper.
//!
//! For an absolute path umount(8) asks statfs(2) for the type of the file system, which for all of FUSE is `fuse`, and
//! then knows of no `umount.fuse.lacuna`: it unmounts by itself, waits for nothing and reports nothing. Where its own
//! table of options (`/run/mount/utab`) has a line about the directory, it looks at the kernel's table of mounts, which
//! has the whole type. mount(8) and umount(8) write that table when they are asked to do all but the system call.

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
};

/// Where distributions have helpers.
const HELPERS: [&str; 2] = ["/sbin/umount.fuse.lacuna", "/usr/sbin/umount.fuse.lacuna"];

fn is_wanted() -> bool {
    rustix::process::geteuid().is_root() && HELPERS.iter().any(|helper| Path::new(helper).exists())
}

/// Notes that `store` is mounted on `dir`, if there is a helper. Nobody waits for it: whatever mount(8) asks about the
/// directory is answered once the mount is served.
pub(super) fn note(store: &Path, dir: &Path) {
    if is_wanted() {
        let (store, dir) = (store.to_owned(), dir.to_owned());
        let noting = thread::Builder::new().name("utab".into()).spawn(move || {
            let options = ["-i", "-f", "-t", "fuse.lacuna", "-o", "x-lacuna.helper", "--"];
            run(Command::new("mount").args(options).args([&store, &dir]), &dir);
        });
        if let Err(error) = noting {
            log::info!("umount(8) is not told to call its helper: {error}");
        }
    }
}

/// Takes the note about `dir` back.
pub(super) fn forget(dir: &Path) {
    if is_wanted() {
        run(Command::new("umount").args(["-i", "-c", "--fake", "--"]).arg(dir), dir);
    }
}

fn run(command: &mut Command, dir: &Path) {
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !done.as_ref().is_ok_and(|status| status.success()) {
        log::info!("{}: umount(8) is not told to call its helper: {done:?}", dir.display());
    }
}
