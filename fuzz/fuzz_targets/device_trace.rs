#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lacuna_device::trace::fuzz::trace(bytes));
