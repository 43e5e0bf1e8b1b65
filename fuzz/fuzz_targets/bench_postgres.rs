#![no_main]

// All that a server may say: messages, a login, answers.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lacuna_bench::sql::postgres::fuzz(bytes));
