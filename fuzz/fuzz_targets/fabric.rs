#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topology::fabric::fuzz::fabric(bytes));
