//! Snapshots make graphs, and the graph's matrix is the one that the driver's view of the machine gives: two ways to the same
//! answer that share no code.

use machines::machine::NvLinkPeer;
use machines::scenario::Level;
use machines::{Deviation, Machine, catalogue, dgx1v};
use topology::{BusId, HostId, RateModel, Topology, lower};

fn graph(machine: &Machine) -> Topology {
    lower(&[machine.snapshot()], RateModel::Effective)
        .unwrap_or_else(|error| panic!("{}: {error}", machine.name))
}

/// The cell of nvidia-smi's matrix for two devices. Between switches the lesser number of links counts.
fn cell(machine: &Machine, a: BusId, b: BusId) -> String {
    if a == b {
        return "X".to_owned();
    }
    let gpu = |bus_id| machine.gpus.iter().position(|gpu| gpu.bus_id == bus_id);
    if let (Some(a), Some(b)) = (gpu(a), gpu(b)) {
        let count = |index: usize, wanted: &dyn Fn(NvLinkPeer) -> bool| {
            machine.gpus[index].links.iter().filter(|link| link.active && wanted(link.peer)).count()
        };
        let direct = count(a, &|peer| matches!(peer, NvLinkPeer::Gpu(other, _) if other == b));
        let to_switch = |index| count(index, &|peer| matches!(peer, NvLinkPeer::Switch(_)));
        let links = direct.max(to_switch(a).min(to_switch(b)));
        if links > 0 {
            return format!("NV{links}");
        }
    }
    let word = match machine.level(a, b) {
        Level::Internal => "X",
        Level::Single => "PIX",
        Level::Multiple => "PXB",
        Level::HostBridge => "PHB",
        Level::Node => "NODE",
        Level::System => "SYS",
    };
    word.to_owned()
}

#[track_caller]
fn check(machine: &Machine) {
    let matrix = graph(machine).matrix(HostId(0));
    let devices: Vec<BusId> = machine
        .gpus
        .iter()
        .map(|gpu| gpu.bus_id)
        .chain(machine.nics.iter().map(|nic| nic.bus_id))
        .collect();
    assert_eq!(matrix.devices.len(), devices.len(), "{}", machine.name);
    for (row, from) in matrix.cells.iter().zip(&devices) {
        for (found, to) in row.iter().zip(&devices) {
            let found = found.expect("a graph leaves no cell empty").to_string();
            assert_eq!(found, cell(machine, *from, *to), "{}: {from} to {to}", machine.name);
        }
    }
}

#[test]
fn every_machine() {
    for machine in catalogue::all() {
        check(&machine);
    }
}

#[test]
fn with_links_down() {
    check(&dgx1v().with(Deviation::NvLinkDown { gpu: 0, link: 0 }));
    check(&dgx1v().with(Deviation::NvLinksDown { gpu: 4 }));
    check(&machines::dgx_h100().with(Deviation::NvLinkDown { gpu: 2, link: 7 }));
}

#[test]
fn idle_and_silent_machines_are_the_same_graph() {
    let healthy = graph(&dgx1v());
    // Idle links are no slower, and the driver knows the nodes of GPUs; NICs then have none.
    assert_eq!(graph(&dgx1v().with(Deviation::Idle)).fingerprint(), healthy.fingerprint());
    let half = dgx1v().with(Deviation::HalfWidth { nic: "mlx5_0".to_owned() });
    assert_ne!(graph(&half).fingerprint(), healthy.fingerprint());
    assert!(
        lower(&[dgx1v().with(Deviation::NumaUnknown).snapshot()], RateModel::Effective).is_ok()
    );
    assert!(lower(&[dgx1v().with(Deviation::NoDriver).snapshot()], RateModel::Effective).is_ok());
}
