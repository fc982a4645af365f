//! Events of a device.

use std::fs;
use std::thread;

use machines::dgx1v;
use machines::scenario::Event;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;

use crate::Stage;

#[test]
fn delivered_when_they_happen() {
    let stage = Stage::new(&dgx1v());
    let happens = stage.path("happens");
    let mut machine = dgx1v();
    machine.events = vec![
        Event { device: 3, kind: 8, data: 79, when_exists: None },
        Event { device: 3, kind: 8, data: 74, when_exists: Some(happens.clone()) },
    ];
    stage.play(&machine);
    let nvml = stage.nvml();
    let set = nvml.create_event_set().unwrap();
    let device = nvml.device_by_index(3).unwrap();
    assert!(device.supported_event_types().unwrap().contains(EventTypes::CRITICAL_XID_ERROR));
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    let first = set.wait(1000).unwrap();
    assert_eq!(first.device.index().unwrap(), 3);
    assert_eq!(first.event_data.unwrap(), nvml_wrapper::enums::event::XidError::Value(79));
    assert!(matches!(set.wait(5), Err(NvmlError::Timeout)));
    let second = thread::scope(|scope| {
        scope.spawn(|| fs::write(&happens, "").unwrap());
        set.wait(30_000).unwrap()
    });
    assert_eq!(second.event_data.unwrap(), nvml_wrapper::enums::event::XidError::Value(74));
    set.release_events().unwrap();
}

#[test]
fn not_for_devices_that_did_not_register() {
    let mut machine = dgx1v();
    machine.events = vec![Event { device: 3, kind: 8, data: 79, when_exists: None }];
    let stage = Stage::new(&machine);
    let nvml = stage.nvml();
    let set = nvml.create_event_set().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    assert!(matches!(set.wait(5), Err(NvmlError::Timeout)));
}
