//! How a mount ended, for `lacuna umount`, which asks before it unmounts and is answered when the store is closed.
//!
//! umount(2) itself cannot fail because of what happens to the store behind it.

use std::{
    sync::{Condvar, Mutex, MutexGuard},
    time::Duration,
};

use crate::control::Tell;

/// The question.
pub(crate) const QUESTION: &str = "ended";
/// The answer where the store was closed and nothing is lost.
pub(crate) const CLOSED: &str = "closed";

/// How long the process waits for those who asked to be told.
const TOLD_TIMEOUT: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Default)]
pub(crate) struct Ended {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<String>,
    /// What was lost, if it is known.
    loss: Option<String>,
    /// Clients that wait to be told.
    waiting: usize,
}

impl Ended {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics and goes on")
    }

    /// What is lost when the store cannot be closed.
    pub(crate) fn note_loss(&self, loss: String) {
        self.state().loss = Some(loss);
    }

    /// The process is about to end: tells all who asked, and waits until they are told, but not for long.
    pub(crate) fn tell(&self, closed: Result<(), String>) {
        let mut state = self.state();
        let failure = closed.err().map(|error| state.loss.take().unwrap_or(error));
        state.outcome = Some(failure.unwrap_or_else(|| CLOSED.to_owned()));
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, TOLD_TIMEOUT, |state| state.waiting > 0));
    }

    /// Answers the question, in one line of progress, when the store is closed.
    pub(crate) fn answer(&self, tell: Tell<'_>) {
        let mut state = self.state();
        state.waiting += 1;
        let outcome = loop {
            match &state.outcome {
                Some(outcome) => break outcome.clone(),
                None => state = self.changed.wait(state).expect("nobody panics and goes on"),
            }
        };
        drop(state);
        tell(&outcome);
        self.state().waiting -= 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    fn told(end: impl FnOnce(&Ended)) -> Vec<String> {
        let ended = Arc::new(Ended::default());
        let asked = thread::spawn({
            let ended = Arc::clone(&ended);
            move || {
                let mut lines = Vec::new();
                ended.answer(&mut |line| {
                    lines.push(line.to_owned());
                    true
                });
                lines
            }
        });
        while ended.state().waiting == 0 {
            thread::yield_now();
        }
        end(&ended);
        assert_eq!(ended.state().waiting, 0, "told before the process ends");
        asked.join().expect("its thread ended well")
    }

    #[test]
    fn who_asked_is_told_how_it_ended() {
        assert_eq!(told(|ended| ended.tell(Ok(()))), [CLOSED]);
        assert_eq!(told(|ended| ended.tell(Err("an error".to_owned()))), ["an error"]);
        let loss = |ended: &Ended| {
            ended.note_loss("3 changes are lost".to_owned());
            ended.tell(Err("an error".to_owned()));
        };
        assert_eq!(told(loss), ["3 changes are lost"]);
        // There was space after all.
        let none = |ended: &Ended| {
            ended.note_loss("3 changes are lost".to_owned());
            ended.tell(Ok(()));
        };
        assert_eq!(told(none), [CLOSED]);
    }
}
