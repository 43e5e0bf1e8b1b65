/// Runs `case` for the seeds `1 ..= default_cases`, and names the seed when one panics.
///
/// The environment variable `LACUNA_SEED` replays one seed, or with `LACUNA_CASES` as many from it on;
/// `LACUNA_CASES` alone changes their number.
///
/// # Panics
/// When a case does, or when one of the variables is not a number.
pub fn for_each_seed(default_cases: u64, mut case: impl FnMut(u64)) {
    let cases = number_from_env("LACUNA_CASES");
    let (first, cases) = match number_from_env("LACUNA_SEED") {
        Some(seed) => (seed, cases.unwrap_or(1)),
        None => (1, cases.unwrap_or(default_cases)),
    };
    for seed in first..first + cases {
        let _named = NameOnPanic(seed);
        case(seed);
    }
}

fn number_from_env(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value:?} is not a number")))
}

struct NameOnPanic(u64);

impl Drop for NameOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay this case with LACUNA_SEED={}", self.0);
        }
    }
}
