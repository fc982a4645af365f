#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topology::formats::plan_json::fuzz(bytes));
