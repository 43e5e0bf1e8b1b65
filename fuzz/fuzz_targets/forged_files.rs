//! The files of an engine's store, forged behind their checksums, opened and used.
#![no_main]

#[path = "../../crates/engine/tests/forged_files/mod.rs"]
mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // The first byte says whether pages may be torn.
    let (place, bytes) = match bytes.split_first() {
        Some((first, bytes)) if first % 2 == 1 => (driver::Place::Tearing, bytes),
        Some((_, bytes)) => (driver::Place::Atomic, bytes),
        None => return,
    };
    driver::try_files(place, lacuna_sim::SeededRng::choosing(bytes), "the input of this run".into());
});
