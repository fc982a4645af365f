#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topology::formats::fuzz::nvidia_smi_xml(bytes));
