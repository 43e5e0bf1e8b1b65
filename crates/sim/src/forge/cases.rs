//! Many forged stores, each used as programs would use it, within limits of time and memory.

use std::time::Duration;

use crate::{SeededRng, Watchdog, for_each_seed, peak_memory_bytes};

/// No case takes a hundredth of this.
const CASE_TIME_MAX: Duration = Duration::from_secs(120);

/// Ends the process when the case goes on for ever; `case` says how to do it again.
pub fn watch(case: String) -> Watchdog {
    Watchdog::new(case, CASE_TIME_MAX)
}

/// What became of forged stores.
#[derive(Debug, Default)]
pub struct Outcome {
    /// All of them.
    pub cases: u64,
    /// Could not be opened.
    pub refused: u64,
    /// Were opened.
    pub opened: u64,
    /// Were opened, and `check` found nothing.
    pub called_sound: u64,
    /// Were opened, and `check` found something.
    pub findings: u64,
}

impl Outcome {
    /// Of a store that could not be opened.
    pub fn refused() -> Outcome {
        Outcome { cases: 1, refused: 1, ..Outcome::default() }
    }

    /// Of a store that was opened, and that `check` called sound, or not.
    pub fn opened(is_sound: bool) -> Outcome {
        let (called_sound, findings) = (is_sound.into(), (!is_sound).into());
        Outcome { cases: 1, opened: 1, called_sound, findings, ..Outcome::default() }
    }

    fn add(&mut self, other: &Outcome) {
        self.cases += other.cases;
        self.refused += other.refused;
        self.opened += other.opened;
        self.called_sound += other.called_sound;
        self.findings += other.findings;
    }
}

/// Tries a case for each seed, `default_cases` of them unless the environment asks for others ([`for_each_seed`]).
///
/// # Panics
/// When a case does, when the process came to take `memory_bytes_max`, or when many cases were not of all kinds.
pub fn try_seeds(default_cases: u64, memory_bytes_max: u64, try_case: impl Fn(SeededRng, String) -> Outcome) {
    let mut all = Outcome::default();
    for_each_seed(default_cases, |seed| {
        all.add(&try_seed(seed, &try_case));
        let peak_bytes = peak_memory_bytes();
        assert!(peak_bytes < memory_bytes_max, "seed {seed} took {peak_bytes} bytes");
    });
    println!("{all:?}");
    if all.cases >= default_cases {
        assert!(all.opened > 0 && all.refused > 0 && all.called_sound > 0 && all.findings > 0, "{all:?}");
    }
}

/// Tries the case of a seed.
pub fn try_seed(seed: u64, try_case: impl Fn(SeededRng, String) -> Outcome) -> Outcome {
    try_case(SeededRng::new(seed), format!("LACUNA_SEED={seed}"))
}
