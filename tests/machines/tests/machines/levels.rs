//! Where paths meet, against public `nvidia-smi topo -m` listings of such machines.

use machines::scenario::Level;
use machines::{Machine, dgx_a100, dgx_h100, dgx1v, dgx2, pcie_two_sockets, vm_flat};
use topology::BusId;

/// Devices named as in the listing: `GPU0`, or a NIC's name.
fn bus_id(machine: &Machine, name: &str) -> BusId {
    match name.strip_prefix("GPU") {
        Some(index) => machine.gpus[index.parse::<usize>().unwrap()].bus_id,
        None => machine.nics.iter().find(|nic| nic.name() == name).unwrap().bus_id,
    }
}

/// One row of a listing, NVLink left out of account.
#[track_caller]
fn check(machine: &Machine, row: &str, expect: &[(&str, &str)]) {
    for (column, word) in expect {
        let level = match machine.level(bus_id(machine, row), bus_id(machine, column)) {
            Level::Internal => "X",
            Level::Single => "PIX",
            Level::Multiple => "PXB",
            Level::HostBridge => "PHB",
            Level::Node => "NODE",
            Level::System => "SYS",
        };
        assert_eq!(level, *word, "{}: {row} to {column}", machine.name);
    }
}

#[test]
fn dgx1() {
    let machine = dgx1v();
    check(
        &machine,
        "GPU0",
        &[
            ("GPU1", "PIX"),
            ("GPU2", "PHB"),
            ("GPU4", "SYS"),
            ("mlx5_0", "PIX"),
            ("mlx5_1", "PHB"),
            ("mlx5_2", "SYS"),
        ],
    );
    check(
        &machine,
        "GPU7",
        &[("GPU6", "PIX"), ("mlx5_3", "PIX"), ("mlx5_2", "PHB"), ("mlx5_0", "SYS")],
    );
}

#[test]
fn dgx2_quarters() {
    let machine = dgx2();
    check(
        &machine,
        "GPU0",
        &[
            ("GPU1", "PIX"),
            ("GPU2", "PXB"),
            ("GPU4", "NODE"),
            ("GPU8", "SYS"),
            ("mlx5_0", "PIX"),
            ("mlx5_1", "PXB"),
            ("mlx5_2", "NODE"),
            ("mlx5_4", "SYS"),
        ],
    );
}

#[test]
fn dgx_a100_quarters() {
    let machine = dgx_a100();
    check(
        &machine,
        "GPU0",
        &[
            ("GPU1", "PXB"),
            ("GPU2", "SYS"),
            ("mlx5_0", "PXB"),
            ("mlx5_1", "PXB"),
            ("mlx5_2", "SYS"),
            ("mlx5_4", "SYS"),
        ],
    );
    check(&machine, "GPU1", &[("mlx5_0", "PXB"), ("mlx5_1", "PXB")]);
    check(&machine, "GPU7", &[("mlx5_8", "PXB"), ("mlx5_9", "PXB"), ("mlx5_10", "SYS")]);
}

#[test]
fn dgx_h100_pairs() {
    let machine = dgx_h100();
    check(
        &machine,
        "GPU0",
        &[
            ("mlx5_0", "PXB"),
            ("mlx5_3", "NODE"),
            ("mlx5_1", "NODE"),
            ("mlx5_6", "SYS"),
            ("GPU1", "NODE"),
            ("GPU4", "SYS"),
        ],
    );
    check(&machine, "GPU7", &[("mlx5_11", "PXB"), ("mlx5_7", "NODE")]);
    check(&machine, "mlx5_1", &[("mlx5_2", "PIX")]);
}

#[test]
fn cards() {
    let machine = pcie_two_sockets();
    check(
        &machine,
        "GPU0",
        &[
            ("GPU1", "PHB"),
            ("GPU2", "NODE"),
            ("GPU3", "SYS"),
            ("mlx5_0", "NODE"),
            ("mlx5_2", "SYS"),
            ("eno1", "NODE"),
        ],
    );
}

#[test]
fn flat() {
    check(&vm_flat(), "GPU0", &[("GPU3", "PHB"), ("mlx5_0", "PHB"), ("eth0", "PHB")]);
}
