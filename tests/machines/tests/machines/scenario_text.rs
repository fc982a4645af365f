//! The scenario's JSON form.

use machines::scenario::{Code, Scenario};
use machines::{Deviation, catalogue, dgx1v};

#[test]
fn round_trip() {
    for machine in catalogue::all() {
        let machine = machine.with(Deviation::GpuLost { gpu: 0 }).with(Deviation::Hang {
            call: "nvmlInit*".to_owned(),
            gpu: None,
            until_gone: Some("/gate".into()),
        });
        let scenario = machine.scenario();
        let text = serde_json::to_string(&scenario).unwrap();
        assert_eq!(serde_json::from_str::<Scenario>(&text).unwrap(), scenario, "{}", machine.name);
    }
}

#[test]
fn a_small_one_by_hand() {
    let text = r#"{
        "driver_version": "550.54.15",
        "devices": [{
            "uuid": "GPU-1", "name": "Test", "bus_id": "00000000:3B:00.0", "pci_device_id": 535826654, "minor": 0,
            "memory_total": 1, "compute_capability": [8, 0],
            "pcie": {"max_generation": 4, "device_max_generation": 4, "max_width": 16, "current_generation": 1, "current_width": 16}
        }],
        "faults": [
            {"call": "nvmlDeviceGetName", "action": {"return": "gpu-is-lost"}},
            {"call": "nvmlDeviceGetUUID", "action": {"return": 77}},
            {"call": "nvmlInit*", "action": {"hang": {}}},
            {"call": "nvmlShutdown", "action": "abort"}
        ]
    }"#;
    let scenario: Scenario = serde_json::from_str(text).unwrap();
    assert_eq!(scenario.max_links, 18);
    assert_eq!(scenario.absent_link, Code::NOT_SUPPORTED);
    assert_eq!(scenario.devices[0].bus_id.to_string(), "0000:3b:00.0");
}

#[test]
fn misspelt_is_refused() {
    #[track_caller]
    fn check(from: &str, to: &str) {
        let text =
            serde_json::to_string(&dgx1v().with(Deviation::GpuLost { gpu: 0 }).scenario()).unwrap();
        assert!(text.contains(from), "{from}");
        assert!(serde_json::from_str::<Scenario>(&text.replace(from, to)).is_err(), "{to}");
    }
    check("gpu-is-lost", "gpu-is-gone");
    check("\"uuid\"", "\"uid\"");
    check("\"return\"", "\"returns\"");
}
