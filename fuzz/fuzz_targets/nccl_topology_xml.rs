#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topology::formats::fuzz::nccl_topology_xml(bytes));
