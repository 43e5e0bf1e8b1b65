//! Whole stores of the ftl with a file system, forged behind their checksums, opened and used.
#![no_main]

#[path = "../../crates/nvmfs/tests/forged_store/mod.rs"]
mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    driver::try_store(lacuna_sim::SeededRng::choosing(bytes), "the input of this run".into());
});
