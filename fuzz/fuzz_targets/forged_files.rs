//! The files of an engine's store, forged behind their checksums, opened and used.
#![no_main]

#[path = "../../crates/engine/tests/forged_files/mod.rs"]
mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    driver::try_files(lacuna_sim::SeededRng::choosing(bytes), "the input of this run".into());
});
