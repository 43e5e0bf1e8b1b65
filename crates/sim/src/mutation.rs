//! Mutation tests: breaks one rule of a crate at a time (`lacuna-mutants`), and demands that the test named for it
//! notices.
//!
//! Each test runs in a process of its own, because a process breaks one rule at most. A rule counts as noticed only if
//! an assertion of a test failed, or one of the library that names an invariant: the process ends with the exit code of
//! the test harness, and a panic's place is in a file of tests, or its message begins with "invariant". A signal, a test
//! that waits for ever, a panic of the library alone and a test that does not exist are reported as what they are.

use std::{
    collections::BTreeSet,
    env,
    io::Read,
    process::{Command, ExitStatus, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The exit code of the test harness when a test has failed.
const FAILED: i32 = 101;

/// How long one test may take. Those of the largest matrices take a minute on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(600);

/// What became of a test in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No assertion failed.
    Passed,
    /// An assertion of the tests failed, or the library's of an invariant; where, and the first line of what it said.
    Asserted(String),
    /// Anything else, which proves nothing.
    Otherwise(String),
}

/// Runs the test `name` of the current executable, with the rule `broken`.
///
/// # Panics
/// When the test does not exist, or its process cannot be started.
pub fn run(name: &str, broken: Option<&str>, variables: &[(&str, &str)]) -> Outcome {
    let mut child = Command::new(env::current_exe().expect("the path of this test"));
    child.args(["--exact", name, "--include-ignored", "--test-threads=1", "--nocapture"]);
    child.env_remove("LACUNA_CASES").env_remove("LACUNA_SEED").env_remove("LACUNA_MUTANT");
    child.envs(variables.iter().copied()).envs(broken.map(|rule| ("LACUNA_MUTANT", rule)));
    let (status, said) = finish(&mut child, PATIENCE);
    assert!(said.contains("running 1 test"), "{name} does not exist");
    judge(status, &said)
}

/// How the process ended, if it did in time, and everything that it printed.
fn finish(command: &mut Command, patience: Duration) -> (Option<ExitStatus>, String) {
    let (mut printed, output) = std::io::pipe().expect("a pipe");
    command.stdout(output.try_clone().expect("a pipe")).stderr(output).stdin(Stdio::null());
    let mut child = command.spawn().expect("this test runs");
    // The pipe ends when its last writer does.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        printed.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
    });
    let since = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break Some(status),
            None if since.elapsed() > patience => {
                // It may have ended just now.
                let _ = child.kill();
                child.wait().expect("a child");
                break None;
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    (status, reader.join().expect("a thread").expect("read from a pipe"))
}

fn judge(status: Option<ExitStatus>, said: &str) -> Outcome {
    let Some(status) = status else {
        return Outcome::Otherwise(format!("no end within {} s", PATIENCE.as_secs()));
    };
    if status.success() {
        return match said.contains("SKIPPED") {
            true => Outcome::Otherwise("it was SKIPPED".into()),
            false => Outcome::Passed,
        };
    }
    let mut panics = panics(said);
    match panics.clone().find(|(place, message)| is_of_tests(place) || is_assertion(message)) {
        Some((place, message)) if status.code() == Some(FAILED) => {
            Outcome::Asserted(format!("{place}: {message}"))
        }
        _ => Outcome::Otherwise(match panics.next() {
            Some((place, message)) => format!("{status}, and no assertion of a test: {place}: {message}"),
            None => format!("{status} without a panic"),
        }),
    }
}

/// An invariant that a crate asserts itself, or threads that a scheduler finds asleep for ever.
fn is_assertion(message: &str) -> bool {
    message.starts_with("invariant ") || message.starts_with("deadlock! ")
}

/// The place of each panic in the output of a test, and the first line of its message.
fn panics(said: &str) -> impl Iterator<Item = (&str, &str)> + Clone {
    let lines = said.lines();
    lines.clone().zip(lines.skip(1)).filter_map(|(line, message)| {
        let (_, place) = line.split_once(" panicked at ")?;
        Some((place.trim_end_matches(':'), message))
    })
}

fn is_of_tests(place: &str) -> bool {
    place.starts_with("tests/") || place.contains("/tests/") || place.contains("/tests.rs")
}

/// Demands of each rule that the test beside it fails by an assertion while the rule is broken, and passes while it is
/// not. `names` are all rules of the crate; each must be in `rules`, even if its test is not `here`, in this build. The
/// environment variable `LACUNA_RULES`, names with commas between them, leaves out all others.
///
/// # Panics
/// When a rule has no test, or its test does not notice, with a line for each.
pub fn assert_each_is_noticed(
    names: &[&str],
    rules: &[(&str, &str)],
    variables: &[(&str, &str)],
    here: impl Fn(&str) -> bool,
) {
    let named: BTreeSet<_> = rules.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(named, names.iter().copied().collect(), "each rule has its test");
    let only = env::var("LACUNA_RULES").ok();
    let is_asked_for = |rule: &str| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == rule));
    let rules: Vec<_> = rules.iter().filter(|(rule, test)| here(test) && is_asked_for(rule)).collect();
    let tests: Vec<_> = rules.iter().map(|(_, test)| *test).collect::<BTreeSet<_>>().into_iter().collect();
    side_by_side(&tests, |test| {
        assert_eq!(run(test, None, variables), Outcome::Passed, "{test} with all rules kept");
    });
    let unnoticed = Mutex::new(Vec::new());
    side_by_side(&rules, |(rule, test)| match run(test, Some(rule), variables) {
        Outcome::Asserted(said) => eprintln!("{rule}: noticed by {test}: {said}"),
        outcome => unnoticed.lock().unwrap().push(format!("{rule} by {test}: {outcome:?}")),
    });
    let unnoticed = unnoticed.into_inner().unwrap();
    assert!(unnoticed.is_empty(), "broken and not noticed:\n{}", unnoticed.join("\n"));
}

/// Calls `run` with each of `tasks`, as many at a time as there are processors.
fn side_by_side<T: Sync>(tasks: &[T], run: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(task);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(work);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(script: &str) -> Outcome {
        let (status, said) = finish(Command::new("sh").args(["-c", script]), PATIENCE);
        judge(status, &said)
    }

    #[test]
    fn only_an_assertion_of_a_test_notices_anything() {
        let panic = |place: &str| format!("echo \"thread 'x' (1) panicked at {place}:\" >&2; echo lost >&2");
        let of_test = panic("crates/ftl/tests/crash.rs:7:5");
        let asserted = Outcome::Asserted("crates/ftl/tests/crash.rs:7:5: lost".into());
        assert_eq!(judged("exit 0"), Outcome::Passed);
        assert_eq!(judged(&format!("{of_test}; exit 101")), asserted);
        let of_library = panic("crates/ftl/src/log/mod.rs:7:5");
        assert_eq!(judged(&format!("{of_library}; {of_test}; exit 101")), asserted, "a thread's before it");
        let of_invariant = of_library.replace("echo lost", "echo invariant 2 is lost");
        let asserted = Outcome::Asserted("crates/ftl/src/log/mod.rs:7:5: invariant 2 is lost".into());
        assert_eq!(judged(&format!("{of_invariant}; exit 101")), asserted);
        for other in [
            "exit 101",
            "kill -9 $$",
            "echo SKIPPED: no root",
            &format!("{of_test}; kill -6 $$"),
            &format!("{of_test}; exit 1"),
            &format!("{of_library}; exit 101"),
        ] {
            assert!(matches!(judged(other), Outcome::Otherwise(_)), "{other}");
        }
        let (status, said) =
            finish(Command::new("sh").args(["-c", "echo a; exec sleep 1000"]), Duration::from_millis(50));
        assert!(matches!(judge(status, &said), Outcome::Otherwise(said) if said.starts_with("no end")));
    }
}
