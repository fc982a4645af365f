//! The recorded machine of the README's demonstration.

use std::path::Path;

/// `TOPOD_BLESS=1 cargo test -p machines` writes it anew.
#[test]
fn dgx1v_is_in_step_with_its_description() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/dgx1v/snapshot.json");
    let mut expected = serde_json::to_string_pretty(&machines::dgx1v().snapshot()).unwrap();
    expected.push('\n');
    if std::env::var_os("TOPOD_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} is out of step: run with TOPOD_BLESS=1", path.display());
    let read: topology::Snapshot = serde_json::from_str(&found).unwrap();
    assert_eq!(read, machines::dgx1v().snapshot());
}
