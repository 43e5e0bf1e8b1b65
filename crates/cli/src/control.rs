//! Questions to the process that has a store open.
//!
//! A store has one owner. While it is mounted, `lacuna info`, `check` and `metrics` cannot open it, so
//! they ask its owner on a Unix socket: one line with the question, then the answer until the end of the
//! stream. Its first line is `ok` or `error: why`. A question that starts with `GET ` is taken for HTTP
//! and answered with the metrics, so that Prometheus' exporters and `curl --unix-socket` can ask too.
//!
//! The socket's name follows from the identity of the store file or block device, not from its path: all
//! paths to a store lead to the same socket. It lies in `/run/lacuna` for root, else in the user's own
//! runtime directory. A socket without a listener was left by a killed process.

use std::{
    fs, io,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context;

/// Longest question in bytes.
const QUESTION_BYTES_MAX: u64 = 4096;
/// How long a client may take over its question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How often an owner is asked that ends meanwhile, and how long its end may take in between.
const ATTEMPTS: u32 = 10;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// Answers a question, or returns the reason why not.
pub(crate) type Answerer = dyn Fn(&str) -> Result<String, String> + Send + Sync;

/// The socket of a store, listened on by a thread until this is dropped.
pub(crate) struct Listener {
    path: PathBuf,
}

impl Listener {
    /// Listens for questions about `store`. The caller owns the store, so no other process may listen.
    pub(crate) fn start(store: &Path, answerer: Arc<Answerer>) -> io::Result<Listener> {
        let path = socket_path(store)?;
        if let Some(directory) = path.parent() {
            // All users may list root's directory; a user's is private.
            let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
            fs::DirBuilder::new().recursive(true).mode(mode).create(directory)?;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        thread::Builder::new().name("control".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                let answerer = Arc::clone(&answerer);
                // A slow client must not keep the others from asking.
                let _ = thread::Builder::new()
                    .name("control-client".into())
                    .spawn(move || drop(serve(client, &*answerer)));
            }
        })?;
        Ok(Listener { path })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(mut client: UnixStream, answerer: &Answerer) -> io::Result<()> {
    client.set_read_timeout(Some(QUESTION_TIMEOUT))?;
    let mut question = String::new();
    BufReader::new(&client).take(QUESTION_BYTES_MAX).read_line(&mut question)?;
    let question = question.trim();
    if question.starts_with("GET ") {
        let body = answerer("metrics").unwrap_or_default();
        let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
        return write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
    }
    match answerer(question) {
        Ok(answer) => write!(client, "ok\n{answer}"),
        Err(reason) => writeln!(client, "error: {reason}"),
    }
}

/// Asks the owner of `store`; `None` when no process listens. If the owner ends during the question, it is repeated, so
/// that the answer is the next owner's, or `None`.
pub(crate) fn ask(store: &Path, question: &str) -> anyhow::Result<Option<String>> {
    let mut attempts = 1;
    loop {
        match ask_once(store, question) {
            Err(error) if attempts < ATTEMPTS && is_cut_off(&error) => attempts += 1,
            result => return result,
        }
        thread::sleep(ATTEMPT_PAUSE);
    }
}

fn is_cut_off(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

fn ask_once(store: &Path, question: &str) -> anyhow::Result<Option<String>> {
    let socket = socket_path(store).with_context(|| store.display().to_string())?;
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    writeln!(stream, "{question}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once('\n') {
        Some(("ok", body)) => Ok(Some(body.to_owned())),
        Some((error, _)) => anyhow::bail!("{}: {}", store.display(), error.trim_start_matches("error: ")),
        None => anyhow::bail!("{}: its owner gave no answer", store.display()),
    }
}

/// The socket on which the owner of `store` listens.
fn socket_path(store: &Path) -> io::Result<PathBuf> {
    let metadata = fs::metadata(store)?;
    let name = if metadata.file_type().is_block_device() {
        format!("device-{:x}.sock", metadata.rdev())
    } else {
        format!("file-{:x}-{:x}.sock", metadata.dev(), metadata.ino())
    };
    Ok(runtime_directory().join(name))
}

fn runtime_directory() -> PathBuf {
    let uid = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if uid.is_root() => PathBuf::from("/run/lacuna"),
        Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("lacuna"),
        _ => PathBuf::from(format!("/tmp/lacuna-{}", uid.as_raw())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_ends_while_it_is_asked_is_no_owner() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let store = directory.path().join("store");
        fs::write(&store, b"x").expect("store file");
        let socket = socket_path(&store).expect("path");
        fs::create_dir_all(socket.parent().expect("a directory")).expect("directory");
        let listener = UnixListener::bind(&socket).expect("listens");
        let owner = thread::spawn(move || {
            // Two close the connection with the question unread, as a killed process does.
            for _ in 0..2 {
                let (client, _) = listener.accept().expect("a client");
                let mut first = [0];
                (&client).read_exact(&mut first).expect("a question");
            }
        });
        let answer = ask(&store, "info");
        owner.join().expect("ends");
        fs::remove_file(&socket).expect("the socket is left behind");
        assert!(answer.expect("nobody's answer").is_none());
    }

    #[test]
    fn questions_find_the_owner_and_nobody_else() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let store = directory.path().join("store");
        fs::write(&store, b"x").expect("store file");
        assert!(ask(&store, "info").expect("nobody listens").is_none());
        let answerer = |question: &str| match question {
            "info" => Ok("fine\n".to_owned()),
            "metrics" => Ok("m 1\n".to_owned()),
            _ => Err("no such question".to_owned()),
        };
        let listener = Listener::start(&store, Arc::new(answerer)).expect("listens");
        assert_eq!(ask(&store, "info").expect("answer").as_deref(), Some("fine\n"));
        let error = ask(&store, "what").expect_err("an error");
        assert!(error.to_string().ends_with("store: no such question"), "{error}");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&store, &link).expect("link");
        assert_eq!(ask(&link, "info").expect("answer").as_deref(), Some("fine\n"), "another path");

        let mut http = UnixStream::connect(socket_path(&store).expect("path")).expect("connects");
        http.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("asks");
        let mut answer = String::new();
        http.read_to_string(&mut answer).expect("answer");
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("\r\n\r\nm 1\n"), "{answer}");
        drop(listener);
        assert!(ask(&store, "info").expect("nobody listens").is_none());
    }
}
