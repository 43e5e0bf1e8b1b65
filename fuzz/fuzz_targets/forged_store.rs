//! Whole stores of the ftl with a file system, forged behind their checksums, opened and used.
#![no_main]

#[path = "../../crates/nvmfs/tests/forged_store/mod.rs"]
mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // The first byte says whether users have limits.
    let (limited, bytes) = match bytes.split_first() {
        Some((first, bytes)) if first % 2 == 1 => (driver::Limited::Users, bytes),
        Some((_, bytes)) => (driver::Limited::Nobody, bytes),
        None => return,
    };
    driver::try_store(limited, lacuna_sim::SeededRng::choosing(bytes), "the input of this run".into());
});
