//! Walks along links that a device holds.

/// Notices that a walk has come back to a place, in constant memory: it remembers where the walk was after 1, 2, 4, 8,
/// ... steps (R. P. Brent, "An improved Monte Carlo factorization algorithm", 1980).
pub(crate) struct Circle<T> {
    met: Option<T>,
    steps: u64,
}

impl<T: Copy + PartialEq> Circle<T> {
    pub(crate) fn new() -> Circle<T> {
        Circle { met: None, steps: 0 }
    }

    /// Whether the walk, which comes to `at`, runs in a circle. True after three times its length at the latest.
    pub(crate) fn closes(&mut self, at: T) -> bool {
        if self.met == Some(at) {
            return true;
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.met = Some(at);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_close_and_lines_do_not() {
        for (tail, length) in [(0, 1), (0, 2), (1, 1), (7, 3), (100, 40)] {
            let mut circle = Circle::new();
            let at = |step: u64| if step < tail { step } else { tail + (step - tail) % length };
            let closed = (0..4 * (tail + length) + 4).position(|step| circle.closes(at(step)));
            assert!(closed.is_some_and(|step| step as u64 >= length), "{tail} and {length}: {closed:?}");
        }
        let mut line = Circle::new();
        assert!((0..10_000).all(|at| !line.closes(at)));
    }
}
