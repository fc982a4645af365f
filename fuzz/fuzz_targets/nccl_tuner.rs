#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topology::nccl_tuner::fuzz(bytes));
