//! Snapshots against what is publicly known of the machines.

use machines::{Deviation, Machine, catalogue, dgx1p, dgx1v};
use topology::snapshot::{LinkPeer, PciKind};

/// For each GPU, its links to GPUs by index: `0:1 3:2` is one to GPU0 and two to GPU3.
#[track_caller]
fn check_links(machine: &Machine, expect: &[&str]) {
    let snapshot = machine.snapshot();
    let index_of = |peer: &LinkPeer| {
        let LinkPeer::Gpu(bus_id) = peer else { panic!("{peer:?} is no GPU") };
        snapshot.gpus.iter().position(|gpu| gpu.bus_id == Some(*bus_id)).unwrap()
    };
    let found: Vec<String> = snapshot
        .gpus
        .iter()
        .map(|gpu| {
            let links =
                gpu.links.iter().map(|links| format!("{}:{}", index_of(&links.peer), links.count));
            links.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(found, expect);
}

#[test]
fn dgx1v_links() {
    check_links(
        &dgx1v(),
        &[
            "1:1 2:1 3:2 4:2",
            "0:1 2:2 3:1 5:2",
            "0:1 1:2 3:2 6:1",
            "0:2 1:1 2:2 7:1",
            "0:2 5:1 6:1 7:2",
            "1:2 4:1 6:2 7:1",
            "2:1 4:1 5:2 7:2",
            "3:1 4:2 5:1 6:2",
        ],
    );
}

#[test]
fn dgx1p_links() {
    check_links(
        &dgx1p(),
        &[
            "1:1 2:1 3:1 4:1",
            "0:1 2:1 3:1 5:1",
            "0:1 1:1 3:1 6:1",
            "0:1 1:1 2:1 7:1",
            "0:1 5:1 6:1 7:1",
            "1:1 4:1 6:1 7:1",
            "2:1 4:1 5:1 7:1",
            "3:1 4:1 5:1 6:1",
        ],
    );
}

#[test]
fn a_link_down_is_down_at_both_ends() {
    // Link 2 of GPU0 is the first of its pair to GPU3.
    let snapshot = dgx1v().with(Deviation::NvLinkDown { gpu: 0, link: 2 }).snapshot();
    let inactive: Vec<_> = snapshot.gpus.iter().map(|gpu| gpu.inactive_links.unwrap()).collect();
    assert_eq!(inactive, [1, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn without_a_driver_the_devices_remain() {
    let snapshot = dgx1v().with(Deviation::NoDriver).snapshot();
    assert_eq!(snapshot.gpus.len(), 8);
    assert!(
        snapshot
            .gpus
            .iter()
            .all(|gpu| gpu.uuid.is_none() && gpu.links.is_empty() && gpu.numa_node.is_some())
    );
    assert_eq!(snapshot.host.driver, None);
}

#[test]
fn numa_from_the_driver_where_firmware_is_silent() {
    let snapshot = dgx1v().with(Deviation::NumaUnknown).snapshot();
    assert!(snapshot.pci_devices.iter().all(|device| device.numa_node.is_none()));
    assert_eq!(snapshot.gpus[7].numa_node, Some(1));
    assert_eq!(snapshot.nics[3].numa_node, None);
    let silent = dgx1v().with(Deviation::NumaUnknown).with(Deviation::NoDriver).snapshot();
    assert_eq!(silent.gpus[7].numa_node, None);
}

#[test]
fn idle_and_half_width() {
    let idle = dgx1v().with(Deviation::Idle).snapshot();
    let gpu = |snapshot: &topology::Snapshot| {
        let bus_id = snapshot.gpus[0].bus_id.unwrap();
        snapshot.pci_devices.iter().find(|device| device.bus_id == bus_id).unwrap().link
    };
    assert_eq!(gpu(&idle).trained.unwrap().mtps, 2500);
    assert_eq!(gpu(&idle).usable(), (Some(8000), Some(16)));
    let half = dgx1v().with(Deviation::HalfWidth { nic: "mlx5_2".to_owned() });
    let bus_id = half.nics[2].bus_id;
    let snapshot = half.snapshot();
    let link = snapshot.pci_devices.iter().find(|device| device.bus_id == bus_id).unwrap().link;
    assert_eq!(link.usable(), (Some(8000), Some(8)));
}

/// Parents exist and come with a link; devices are in address order and none twice; every GPU and NIC has its function.
#[test]
fn every_machine_is_whole() {
    for machine in catalogue::all() {
        let snapshot = machine.snapshot();
        let name = machine.name;
        let addresses: Vec<_> = snapshot.pci_devices.iter().map(|device| device.bus_id).collect();
        assert!(addresses.is_sorted_by(|a, b| a < b), "{name}");
        for device in &snapshot.pci_devices {
            assert_eq!(
                device.parent.is_none(),
                device.host_bridge.is_some(),
                "{name} {}",
                device.bus_id
            );
            assert!(device.parent.is_none_or(|parent| addresses.contains(&parent)), "{name}");
            if device.kind == PciKind::SwitchPort {
                let above =
                    snapshot.pci_devices.iter().find(|other| Some(other.bus_id) == device.parent);
                assert_eq!(above.unwrap().kind, PciKind::Switch, "{name} {}", device.bus_id);
            }
        }
        let ends = snapshot
            .gpus
            .iter()
            .map(|gpu| gpu.bus_id)
            .chain(snapshot.nics.iter().map(|nic| nic.bus_id));
        for end in ends {
            assert!(addresses.contains(&end.unwrap()), "{name} {end:?}");
        }
        let indices: Vec<_> = snapshot.gpus.iter().map(|gpu| gpu.bus_id).collect();
        assert!(indices.is_sorted(), "{name}: NVML numbers GPUs by address");
    }
}
