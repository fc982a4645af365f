#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topology::formats::fuzz::hwloc_xml(bytes));
