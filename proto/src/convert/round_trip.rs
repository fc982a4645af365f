//! What goes out comes back: through the message and through its bytes. What is not valid is refused by name.

use proptest::prelude::*;
use prost::Message;
use topology::{Plan, Snapshot};

use super::strategies::{plan, plan_query, published, snapshot};
use super::{WireError, narrow_u8};
use crate::{PlanQuery, Published, v1};

/// Domain to message to bytes to message to domain.
fn through_the_wire<D, W>(value: &D) -> Result<D, WireError>
where
    D: TryFrom<W, Error = WireError>,
    W: for<'a> From<&'a D> + Message + Default + PartialEq,
{
    let message = W::from(value);
    let decoded = W::decode(message.encode_to_vec().as_slice()).expect("our own bytes decode");
    assert!(decoded == message, "prost changed the message");
    decoded.try_into()
}

proptest! {
    #[test]
    fn snapshots(value in snapshot()) {
        prop_assert_eq!(through_the_wire::<Snapshot, v1::Snapshot>(&value), Ok(value));
    }

    #[test]
    fn published_topologies(value in published()) {
        prop_assert_eq!(through_the_wire::<Published, v1::Topology>(&value), Ok(value));
    }

    #[test]
    fn plans(value in plan()) {
        prop_assert_eq!(through_the_wire::<Plan, v1::Plan>(&value), Ok(value));
    }

    #[test]
    fn plan_queries(value in plan_query()) {
        prop_assert_eq!(through_the_wire::<PlanQuery, v1::GetPlanRequest>(&value), Ok(value));
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        super::fuzz_messages(&bytes);
    }

    /// Valid messages with one byte changed get further into the conversions than noise does.
    #[test]
    fn one_byte_changed(value in plan(), place: prop::sample::Index, byte: u8) {
        let mut bytes = v1::Plan::from(&value).encode_to_vec();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        super::fuzz_messages(&bytes);
    }
}

#[track_caller]
fn check_snapshot(change: impl FnOnce(&mut v1::Snapshot), expect: &str) {
    let mut message = v1::Snapshot::from(&Snapshot::new(topology::Source::Live));
    change(&mut message);
    let error = Snapshot::try_from(message).unwrap_err();
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        text = format!("{text}: {source}");
    }
    assert_eq!(text, expect);
}

#[test]
fn refusals_name_the_field() {
    check_snapshot(|s| s.source = 0, "Snapshot.source is missing");
    check_snapshot(|s| s.source = 99, "Snapshot.source: 99 is no value that this version knows");
    check_snapshot(
        |s| s.schema_version = 1000,
        "Snapshot.schema_version: 1000 is newer than 1, the newest that this version knows",
    );
    check_snapshot(
        |s| s.gpus.push(v1::Gpu { bus_id: Some("here".into()), ..Default::default() }),
        "Gpu.bus_id: 'here' is not a PCI address (domain:bus:device.function)",
    );
    check_snapshot(
        |s| s.gpus.push(v1::Gpu { cpus: Some("a-b".into()), ..Default::default() }),
        "Gpu.cpus: 'a-b' is not a CPU list",
    );
    check_snapshot(
        |s| s.matrix = Some(v1::Matrix { devices: vec!["GPU0".into()], rows: vec![] }),
        "Matrix.rows: 1 devices need as many rows of as many cells",
    );
    check_snapshot(
        |s| {
            let links = v1::GpuLinks { kind: 1, ..Default::default() };
            s.gpus.push(v1::Gpu { links: vec![links], ..Default::default() });
        },
        "GpuLinks.peer is missing",
    );
    check_snapshot(
        |s| {
            s.pci_devices.push(v1::PciDevice {
                bus_id: "0000:01:00.0".into(),
                kind: 1,
                vendor: Some(0x1_0000),
                ..Default::default()
            });
        },
        "PciDevice.vendor: 65536 exceeds 65535",
    );
}

#[test]
fn widths_are_checked() {
    assert_eq!(narrow_u8("PcieLink.width", 255), Ok(255));
    let error = narrow_u8("PcieLink.width", 256).unwrap_err();
    assert_eq!(error, WireError::OutOfRange { field: "PcieLink.width", value: 256, most: 255 });
}

#[test]
fn a_collective_is_planned_once() {
    let topology = v1::TopologyRef { source: 1, rates: 1, ..Default::default() };
    let reached = v1::CollectivePlan { collective: 1, ..Default::default() };
    let message = v1::Plan {
        topology: Some(topology),
        collectives: vec![reached.clone(), reached],
        ..Default::default()
    };
    let error = Plan::try_from(message).unwrap_err();
    assert_eq!(error.to_string(), "Plan.collectives: all-reduce is listed twice");
}

#[test]
fn unknown_stays_unknown() {
    let gpu = v1::Gpu { index: 3, ..Default::default() };
    let mut message = v1::Snapshot::from(&Snapshot::new(topology::Source::Live));
    message.gpus.push(gpu);
    let snapshot = Snapshot::try_from(message).unwrap();
    let gpu = &snapshot.gpus[0];
    assert_eq!((gpu.bus_id, gpu.numa_node, gpu.memory_bytes, gpu.gdr), (None, None, None, None));
    assert_eq!((&gpu.cpus, gpu.inactive_links), (&None, None));
}
