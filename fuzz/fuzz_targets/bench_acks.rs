#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lacuna_bench::linkbench::fuzz_acks(bytes);
    lacuna_bench::tpcc::fuzz_acks(bytes);
});
