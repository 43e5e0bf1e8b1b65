//! Questions to the process that has a store open.
//!
//! A store has one owner. While it is mounted, `lacuna info`, `check` and `metrics` cannot open it, so
//! they ask its owner on a Unix socket: one line with the question, then the answer until the end of the
//! stream. Its first line is `ok` or `error: why`; lines with the progress of long work may precede it. A question that
//! starts with `GET ` is taken for HTTP and answered with the metrics, so that Prometheus' exporters and
//! `curl --unix-socket` can ask too.
//!
//! The socket's name follows from the identity of the store file or block device, not from its path: all
//! paths to a store lead to the same socket. It has a second name by the number of the file system that is mounted, so
//! that the directory of a mount leads to its process wherever the store is by now, and never to another's. It lies in
//! `/run/lacuna` for root, else in the user's own runtime directory. A socket without a listener was left by a killed
//! process. Names are taken over and given back under a lock: an owner that ends removes only its own, for both kinds may
//! be another's by then.
//!
//! **Who may ask and answer.** Where a user has no runtime directory, the socket's directory has a name that others can
//! guess and make. So:
//! 1. A directory is used only if it belongs to this user and nobody else can write to it; a user's own cannot be read
//!    by others either. Anything else in its place, a symbolic link too, is an error.
//! 2. Either side looks at the other's user id (`SO_PEERCRED`): the owner answers its own user and root, and a client
//!    believes its own user only.
//! 3. No side waits for the other without end: an owner that does not take a question or answers no `ping` within
//!    [`PATIENCE`] is reported. Only the answer of an owner that has answered a ping may take longer. Work that tells
//!    its progress ends when its client has gone.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
    process::{Uid, geteuid},
};

use crate::{
    mounts::{self, Mounted},
    note,
};

/// Longest question in bytes: one with a path of 4096 bytes, each written as a number.
const QUESTION_BYTES_MAX: u64 = 32 << 10;
/// How long a client may take over its question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client waits for an owner that listens but does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long an owner may take to end that closes its store or ends during a question, and the pause between questions.
const END_TIMEOUT: Duration = Duration::from_secs(60);
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// The engine's first file, by which a directory with tables is known.
pub(crate) const FIRST_OF_TABLES: &str = "control";

/// How long the names of sockets may be locked. The lock is held for moments, unless its holder is stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// What an owner answers whose store is being closed.
pub(crate) const CLOSING: &str = "about to close";

/// The first words of questions whose answers may take as long as reading all of the store, or all inodes of it or of a
/// directory, as all that was not written yet takes, or as changes that wait for space of the file system below.
const LONG_QUESTIONS: [&str; 6] = ["check", "grow", "ls", "quota", "scrub", "sync"];

/// What a line with progress begins with.
const PROGRESS: &str = "progress: ";

/// Tells the client of a question how far the work has come, in one line; false if it has gone.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(&str) -> bool;

/// What is reported of work whose owner ended in the middle of it.
pub(crate) const UNFINISHED: &str = "unmounted, or its process was killed, before all was read";

/// Answers a question, or returns the reason why not.
pub(crate) type Answerer = dyn Fn(&str, Tell<'_>) -> Result<String, String> + Send + Sync;

/// The socket of a store, listened on by a thread until this is dropped.
pub(crate) struct Listener {
    directory: Directory,
    /// The socket's number as a file, which is no other's while the thread listens, and its names.
    inode: u64,
    names: Vec<String>,
}

impl Listener {
    /// Listens for questions about `store`. The caller owns the store, so no other process may listen.
    pub(crate) fn start(store: &Path, answerer: Arc<Answerer>) -> io::Result<Listener> {
        let directory = Directory::of_this_user();
        directory.make()?;
        let name = Of::Store(store).socket_name()?;
        let path = directory.path.join(&name);
        let _locked = directory.lock()?;
        remove_if_there(&path)?;
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let inode = path.symlink_metadata()?.ino();
        thread::Builder::new().name("control".into()).spawn(move || {
            for client in listener.incoming().flatten().filter(may_ask) {
                let answerer = Arc::clone(&answerer);
                // A slow client must not keep the others from asking.
                let _ = thread::Builder::new()
                    .name("control-client".into())
                    .spawn(move || drop(serve(client, &*answerer)));
            }
        })?;
        Ok(Listener { directory, inode, names: vec![name] })
    }

    /// Listens for questions about what is mounted too, which is the store.
    pub(crate) fn also_for(&mut self, mount: &Mounted) -> io::Result<()> {
        let name = Of::Mount(mount).socket_name()?;
        let path = self.directory.path.join(&name);
        let locked = self.directory.lock()?;
        remove_if_there(&path)?;
        fs::hard_link(self.directory.path.join(&self.names[0]), path)?;
        self.names.push(name);
        drop(locked);
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Ok(_locked) = self.directory.lock() else { return };
        for path in self.names.iter().map(|name| self.directory.path.join(name)) {
            if path.symlink_metadata().is_ok_and(|socket| socket.ino() == self.inode) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn serve(mut client: UnixStream, answerer: &Answerer) -> io::Result<()> {
    client.set_read_timeout(Some(QUESTION_TIMEOUT))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    BufReader::new(&client).take(QUESTION_BYTES_MAX).read_line(&mut question)?;
    let question = question.trim();
    let mut to_client = &client;
    let mut tell = |line: &str| writeln!(to_client, "{PROGRESS}{line}").is_ok();
    if question.starts_with("GET ") {
        let body = answerer("metrics", &mut tell).unwrap_or_default();
        let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
        return write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
    }
    match answerer(question, &mut tell) {
        Ok(answer) => write!(client, "ok\n{answer}"),
        Err(reason) => writeln!(client, "error: {reason}"),
    }
}

/// By invariant 2.
fn may_ask(client: &UnixStream) -> bool {
    sockopt::socket_peercred(client).is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid())
}

/// Whose owner is asked.
#[derive(Clone, Copy)]
pub(crate) enum Of<'a> {
    Store(&'a Path),
    Mount(&'a Mounted),
}

impl Of<'_> {
    /// The name of the socket on which the owner listens.
    fn socket_name(self) -> io::Result<String> {
        let store = match self {
            Of::Mount(mount) => return Ok(format!("mount-{}.sock", mount.device)),
            Of::Store(store) => fs::metadata(store)?,
        };
        Ok(if store.file_type().is_block_device() {
            format!("device-{:x}.sock", store.rdev())
        } else {
            format!("file-{:x}-{:x}.sock", store.dev(), store.ino())
        })
    }
}

/// Asks the owner of the store `path`, or of what is mounted there, and shows the progress that it tells; `None` when no
/// process listens. A directory with tables is what holds these, also where a store is mounted.
///
/// # Errors
/// Also when a store is mounted there and no process listens to this user: the directory is not what is meant.
pub(crate) fn ask(path: &Path, question: &str) -> anyhow::Result<Option<String>> {
    let name = || path.display().to_string();
    let Some(mount) = mounts::mounted_at(path) else {
        return ask_owner(Of::Store(path), question).with_context(name);
    };
    // A process that does not answer this answers nothing that is asked of the file system either.
    let has_owner = ask_owner(Of::Mount(&mount), "ping").with_context(name)?.is_some();
    if exists(path.join(FIRST_OF_TABLES), PATIENCE).with_context(name)? {
        return Ok(None);
    }
    let answer = if has_owner { ask_owner(Of::Mount(&mount), question).with_context(name)? } else { None };
    if answer.is_none() && mounts::mounted_at(path).is_some_and(|now| now.device == mount.device) {
        let (name, store) = (path.display(), mount.store.display());
        anyhow::bail!(
            "{name}: {store} is mounted there, and its process does not listen to this user and session"
        );
    }
    Ok(answer)
}

/// Whether `path` exists, in a file system whose process may be stopped and another user's, so that it cannot be asked
/// before. If that has taken the question and is stopped, whoever waits for its answer stays in the kernel, and no kill ends
/// it. So another process looks, and is left behind then.
fn exists(path: PathBuf, patience: Duration) -> anyhow::Result<bool> {
    let mut looking = Command::new("test");
    looking.arg("-e").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut looking = looking.spawn().context("test")?;
    let (answer, answered) = mpsc::channel();
    thread::Builder::new().name("look".into()).spawn(move || answer.send(looking.wait()))?;
    Ok(answered.recv_timeout(patience).map_err(|_| Unanswered)??.success())
}

/// Asks the owner, and shows the progress that it tells; `None` when no process listens. If the owner closes the store or
/// ends before it told any progress, the question is repeated, so that the answer is the next owner's, or `None`.
pub(crate) fn ask_owner(of: Of<'_>, question: &str) -> anyhow::Result<Option<String>> {
    let directory = Directory::of_this_user();
    if !directory.is_there().context("its owner cannot be asked")? {
        return Ok(None);
    }
    let socket = directory.path.join(of.socket_name()?);
    let is_long = question.split(' ').next().is_some_and(|first| LONG_QUESTIONS.contains(&first));
    if is_long && ask_until(&socket, "ping", END_TIMEOUT, Some(PATIENCE))?.is_none() {
        return Ok(None);
    }
    ask_until(&socket, question, END_TIMEOUT, (!is_long).then_some(PATIENCE))
}

/// A question that is answered when the owner ends.
pub(crate) struct Pending(BufReader<UnixStream>);

/// Asks the owner of what is mounted something that it will answer when it ends; `None` when no process listens.
pub(crate) fn ask_ahead(mount: &Mounted, question: &str) -> io::Result<Option<Pending>> {
    let directory = Directory::of_this_user();
    if !directory.is_there()? {
        return Ok(None);
    }
    let Some(mut stream) = connect_to_owner(&directory.path.join(Of::Mount(mount).socket_name()?))? else {
        return Ok(None);
    };
    writeln!(stream, "{question}")?;
    Ok(Some(Pending(BufReader::new(stream))))
}

impl Pending {
    /// What the owner says in a line of progress; `None` if it ends without it. `is_slow` is called if that takes longer
    /// than `patience`.
    pub(crate) fn wait(mut self, patience: Duration, is_slow: impl FnOnce()) -> Option<String> {
        let mut line = String::new();
        let _ = self.0.get_ref().set_read_timeout(Some(patience));
        match self.0.read_line(&mut line) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                is_slow();
                self.0.get_ref().set_read_timeout(None).ok()?;
                self.0.read_line(&mut line).ok()?; // goes on behind what it has read
            }
            read => drop(read.ok()?),
        }
        line.strip_prefix(PROGRESS).map(|said| said.trim_end().to_owned())
    }
}

/// Whether a process listens for questions about `store`.
pub(crate) fn has_owner(store: &Path) -> bool {
    let directory = Directory::of_this_user();
    let is_trusted = directory.is_there().unwrap_or(false);
    is_trusted && Of::Store(store).socket_name().is_ok_and(|name| connect(&directory.path.join(name)).is_ok())
}

/// The mount of `store`, or of the file behind that loop device, also where it was mounted by another name: both lead to
/// one socket then.
pub(crate) fn mount_of(store: &Path) -> anyhow::Result<Option<Mounted>> {
    let directory = Directory::of_this_user().path;
    let inode = |of: Of<'_>| Some(directory.join(of.socket_name().ok()?).symlink_metadata().ok()?.ino());
    let behind = file_behind(store);
    for store in [Some(store), behind.as_deref()].into_iter().flatten() {
        let socket = inode(Of::Store(store)).filter(|_| has_owner(store));
        let is_it =
            |mount: &Mounted| mount.store == store || (socket.is_some() && inode(Of::Mount(mount)) == socket);
        if let Some(mount) = mounts::all()?.into_iter().find(is_it) {
            return Ok(Some(mount));
        }
    }
    Ok(None)
}

/// The name that the file behind a loop device had.
fn file_behind(device: &Path) -> Option<PathBuf> {
    let number = fs::metadata(device).ok().filter(|found| found.file_type().is_block_device())?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let name = fs::read(format!("/sys/dev/block/{major}:{minor}/loop/backing_file")).ok()?;
    Some(OsStr::from_bytes(name.strip_suffix(b"\n")?).into())
}

fn ask_until(
    socket: &Path,
    question: &str,
    end_timeout: Duration,
    patience: Option<Duration>,
) -> anyhow::Result<Option<String>> {
    let deadline = Instant::now() + end_timeout;
    loop {
        match ask_once(socket, question, patience) {
            Ok(Answered::Nobody) => return Ok(None),
            Ok(Answered::Body(body)) => return Ok(Some(body)),
            Ok(Answered::Refused(reason)) => anyhow::bail!("{reason}"),
            Ok(Answered::Ending) if Instant::now() < deadline => {}
            Ok(Answered::Ending) => anyhow::bail!("its owner gave no answer"),
            Err(error) if is_cut_off(&error) && Instant::now() < deadline => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Unanswered.into());
            }
            Err(error) => return Err(error.into()),
        }
        thread::sleep(ATTEMPT_PAUSE);
    }
}

/// The process that listens does not answer.
#[derive(Debug)]
pub(crate) struct Unanswered;

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("its owner does not answer; it may be stopped (SIGSTOP) or wait for its device")
    }
}

impl std::error::Error for Unanswered {}

fn is_cut_off(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

enum Answered {
    /// No process listens.
    Nobody,
    /// The owner took the question and ended, or is about to.
    Ending,
    Body(String),
    Refused(String),
}

fn ask_once(socket: &Path, question: &str, patience: Option<Duration>) -> io::Result<Answered> {
    let Some(mut stream) = connect_to_owner(socket)? else { return Ok(Answered::Nobody) };
    stream.set_read_timeout(patience)?;
    writeln!(stream, "{question}")?;
    let mut has_begun = false;
    let answer = match read_answer(stream, &mut has_begun) {
        Err(error) if has_begun && is_cut_off(&error) => String::new(),
        answer => answer?,
    };
    Ok(match answer.split_once('\n') {
        Some(("ok", body)) => Answered::Body(body.to_owned()),
        Some((error, _)) => match error.trim_start_matches("error: ") {
            CLOSING => Answered::Ending,
            reason => Answered::Refused(reason.to_owned()),
        },
        None if has_begun => Answered::Refused(UNFINISHED.to_owned()),
        None => Answered::Ending,
    })
}

/// Connects to this user's own process that listens there; `None` if there is none.
fn connect_to_owner(socket: &Path) -> io::Result<Option<UnixStream>> {
    let stream = match connect(socket) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // Invariant 2.
    let owner = sockopt::socket_peercred(&stream)?.uid;
    if owner != geteuid() {
        let reason = format!("user {} answers in its owner's place", owner.as_raw());
        return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
    }
    Ok(Some(stream))
}

/// Reads an answer to its end, and shows the progress that precedes it: then `has_begun` becomes true.
fn read_answer(stream: UnixStream, has_begun: &mut bool) -> io::Result<String> {
    let mut stream = BufReader::new(stream);
    let mut answer = String::new();
    while stream.read_line(&mut answer)? > 0
        && let Some(progress) = answer.strip_prefix(PROGRESS)
    {
        note(progress.trim_end());
        *has_begun = true;
        answer.clear();
    }
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Connects, or fails when the owner takes no connection for [`PATIENCE`].
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&stream, sockopt::Timeout::Send, Some(PATIENCE))?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
}

/// The directory of the sockets of a user.
struct Directory {
    path: PathBuf,
    user: Uid,
}

impl Directory {
    fn of_this_user() -> Directory {
        let user = geteuid();
        let path = match std::env::var_os("XDG_RUNTIME_DIR") {
            _ if user.is_root() => PathBuf::from("/run/lacuna"),
            Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("lacuna"),
            _ => PathBuf::from(format!("/tmp/lacuna-{}", user.as_raw())),
        };
        Directory { path, user }
    }

    /// All users may list root's directory; a user's is private.
    fn mode(&self) -> u32 {
        if self.user.is_root() { 0o755 } else { 0o700 }
    }

    fn make(&self) -> io::Result<()> {
        match fs::DirBuilder::new().mode(self.mode()).create(&self.path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", self.path.display())));
            }
            _ => {}
        }
        self.is_there().map(drop)
    }

    /// Until the file is dropped, no other process gives names to sockets or takes them away. Others may open, and so
    /// lock, the directory itself.
    fn lock(&self) -> io::Result<File> {
        let deadline = Instant::now() + LOCK_PATIENCE;
        let path = self.path.join("lock");
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(ATTEMPT_PAUSE),
                Err(Errno::WOULDBLOCK) => {
                    let reason = format!("{}: locked by a process that may be stopped", path.display());
                    return Err(io::Error::new(ErrorKind::TimedOut, reason));
                }
                locked => return Ok(locked.map(|()| file)?),
            }
        }
    }

    /// Whether there is such a directory.
    ///
    /// # Errors
    /// When what is there is not to be trusted, by invariant 1.
    fn is_there(&self) -> io::Result<bool> {
        let metadata = match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            metadata => metadata?,
        };
        let forbidden = 0o777 & !self.mode();
        let fault = match () {
            () if !metadata.is_dir() => "not a directory".to_owned(),
            () if metadata.uid() != self.user.as_raw() => format!("belongs to user {}", metadata.uid()),
            () if metadata.mode() & forbidden != 0 => {
                format!("its mode {:o} gives others access", metadata.mode() & 0o777)
            }
            () => return Ok(true),
        };
        let reason = format!(
            "{}: {fault}; remove it, or name a directory of your own in XDG_RUNTIME_DIR",
            self.path.display()
        );
        Err(io::Error::new(ErrorKind::PermissionDenied, reason))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn listening(directory: &Path) -> (PathBuf, UnixListener) {
        let socket = directory.join("socket");
        let listener = UnixListener::bind(&socket).expect("listens");
        (socket, listener)
    }

    fn read_question(client: &UnixStream) {
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).expect("a question");
    }

    #[test]
    fn an_owner_that_ends_while_it_is_asked_is_no_owner() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (socket, listener) = listening(directory.path());
        let owner = thread::spawn(move || {
            // Two close the connection with the question unread, as a killed process does; one takes the question and
            // ends before it answers; one is closing its store.
            for _ in 0..2 {
                let (client, _) = listener.accept().expect("a client");
                let mut first = [0];
                (&client).read_exact(&mut first).expect("a question");
            }
            let (client, _) = listener.accept().expect("a client");
            read_question(&client);
            drop(client);
            let (mut client, _) = listener.accept().expect("a client");
            read_question(&client);
            writeln!(client, "error: {CLOSING}").expect("answers");
        });
        let answer = ask_until(&socket, "info", END_TIMEOUT, Some(PATIENCE));
        owner.join().expect("ends");
        assert!(answer.expect("nobody's answer").is_none());
    }

    #[test]
    fn an_owner_that_does_not_answer_is_reported() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (socket, _listener) = listening(directory.path());
        let patience = Some(Duration::from_millis(50));
        let error = ask_until(&socket, "info", END_TIMEOUT, patience).expect_err("no answer");
        assert!(error.to_string().contains("does not answer"), "{error}");
    }

    #[test]
    fn long_work_is_waited_for_by_who_knows_that_its_owner_answers() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let store = directory.path().join("store");
        fs::write(&store, b"x").expect("store file");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let answerer = move |question: &str, _: Tell<'_>| {
            heard.lock().expect("sound").push(question.to_owned());
            Ok(String::new())
        };
        let _listener = Listener::start(&store, Arc::new(answerer)).expect("listens");
        for (question, is_long) in
            [("sync", true), ("grow 64M", true), ("scrub 0", true), ("info", false), ("metrics", false)]
        {
            ask(&store, question).expect("answered");
            let expected = if is_long { vec!["ping", question] } else { vec![question] };
            assert_eq!(std::mem::take(&mut *asked.lock().expect("sound")), expected);
        }
    }

    #[test]
    fn only_a_directory_of_ones_own_is_trusted() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        // Others may not even list a user's; root's may be listed.
        let root = geteuid().is_root();
        let own = Directory { path: scratch.path().join("own"), user: geteuid() };
        assert!(!own.is_there().expect("nothing is there"));
        own.make().expect("makes it");
        own.make().expect("finds it");
        assert!(own.is_there().expect("is trusted"));
        for (mode, is_trusted) in
            [(0o700, true), (0o755, root), (0o775, false), (0o777, false), (0o722, false)]
        {
            fs::set_permissions(&own.path, fs::Permissions::from_mode(mode)).expect("changes");
            assert_eq!(own.is_there().is_ok(), is_trusted, "{mode:o}");
            assert_eq!(own.make().is_ok(), is_trusted, "{mode:o}");
        }
        fs::set_permissions(&own.path, fs::Permissions::from_mode(0o700)).expect("changes");
        let others = Directory { user: Uid::from_raw(geteuid().as_raw() + 1), path: own.path.clone() };
        let error = others.make().expect_err("another's");
        assert!(error.to_string().contains("belongs to user"), "{error}");
        let link = Directory { path: scratch.path().join("link"), user: geteuid() };
        std::os::unix::fs::symlink(&own.path, &link.path).expect("link");
        assert!(link.make().expect_err("a link").to_string().contains("not a directory"));
    }

    #[test]
    fn a_mount_leads_to_its_own_process() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let store = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, b"x").expect("store file");
            path
        };
        let mount = Mounted::for_test("4095:1048575"); // no device has that
        let listener = |name: &'static str| {
            let answerer = move |_: &str, _: Tell<'_>| Ok(name.to_owned());
            let mut listener = Listener::start(&store(name), Arc::new(answerer)).expect("listens");
            listener.also_for(&mount).expect("listens");
            listener
        };
        let answer = || ask_owner(Of::Mount(&mount), "who").expect("asked");
        let first = listener("first");
        assert_eq!(answer().as_deref(), Some("first"));
        // The file system's number is another's once it is unmounted, which is before the store is closed.
        let second = listener("second");
        assert_eq!(answer().as_deref(), Some("second"));
        drop(first);
        assert_eq!(answer().as_deref(), Some("second"), "the first took the second's name away");
        drop(second);
        assert_eq!(answer(), None);
        let left = fs::read_dir(Directory::of_this_user().path).expect("listed");
        let left = left.filter_map(Result::ok).map(|entry| entry.file_name());
        assert!(!left.into_iter().any(|name| name == *Of::Mount(&mount).socket_name().expect("name")));
    }

    #[test]
    fn without_its_second_name_it_answers_by_its_first() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let store = scratch.path().join("store");
        fs::write(&store, b"x").expect("store file");
        let mount = Mounted::for_test("4095:1048574"); // no device has that
        let mut listener =
            Listener::start(&store, Arc::new(|_: &str, _: Tell<'_>| Ok(String::new()))).expect("listens");
        let taken = listener.directory.path.join(Of::Mount(&mount).socket_name().expect("name"));
        fs::create_dir(&taken).expect("makes it");
        let refused = listener.also_for(&mount);
        fs::remove_dir(taken).expect("removes it");
        assert!(refused.is_err());
        assert!(ask(&store, "info").expect("asked").is_some());
    }

    #[test]
    fn names_that_stay_locked_are_an_error() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let directory = Directory { path: scratch.path().to_owned(), user: geteuid() };
        let held = directory.lock().expect("locks");
        let (sender, locked) = mpsc::channel();
        thread::spawn(move || sender.send(directory.lock().map(drop)));
        let error = locked.recv_timeout(3 * LOCK_PATIENCE).expect("waits for ever").expect_err("it is held");
        assert!(error.to_string().ends_with("/lock: locked by a process that may be stopped"), "{error}");
        drop(held);
    }

    #[test]
    fn questions_find_the_owner_and_nobody_else() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let store = directory.path().join("store");
        fs::write(&store, b"x").expect("store file");
        assert!(ask(&store, "info").expect("nobody listens").is_none());
        let answerer = |question: &str, tell: Tell<'_>| match question {
            "ping" => Ok(String::new()),
            "scrub" => Ok(format!("{}\n", tell("half") && tell("whole"))),
            "info" => Ok("fine\n".to_owned()),
            "metrics" => Ok("m 1\n".to_owned()),
            _ => Err("no such question".to_owned()),
        };
        let listener = Listener::start(&store, Arc::new(answerer)).expect("listens");
        assert_eq!(ask(&store, "info").expect("answer").as_deref(), Some("fine\n"));
        assert_eq!(ask(&store, "scrub").expect("answer").as_deref(), Some("true\n"), "without its progress");
        let error = ask(&store, "what").expect_err("an error");
        assert!(format!("{error:#}").ends_with("store: no such question"), "{error:#}");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&store, &link).expect("link");
        assert_eq!(ask(&link, "info").expect("answer").as_deref(), Some("fine\n"), "another path");

        let socket = Directory::of_this_user().path.join(Of::Store(&store).socket_name().expect("name"));
        let mut http = UnixStream::connect(socket).expect("connects");
        http.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("asks");
        let mut answer = String::new();
        http.read_to_string(&mut answer).expect("answer");
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("\r\n\r\nm 1\n"), "{answer}");
        drop(listener);
        assert!(ask(&store, "info").expect("nobody listens").is_none());
    }
}
