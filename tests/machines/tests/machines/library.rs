//! The double is found, and built where it is not.

#[test]
fn a_copy_beside_the_scenario() {
    let directory = tempfile::tempdir().unwrap();
    let copy = machines::install_nvml_double(directory.path()).unwrap();
    assert_eq!(copy, directory.path().join("libnvidia-ml.so.1"));
    let bytes = std::fs::read(copy).unwrap();
    assert!(bytes.starts_with(b"\x7fELF"));
    // The name of a symbol that callers look up.
    assert!(bytes.windows(11).any(|window| window == b"nvmlInit_v2"));
}
