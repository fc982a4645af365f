#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    daemon::probe::fuzz_probe_files(&String::from_utf8_lossy(bytes));
});
