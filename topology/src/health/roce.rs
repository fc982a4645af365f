//! GID tables of ports that do RDMA over Ethernet.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Examination;
use super::device::{Devices, nic_name};
use crate::snapshot::{Gid, GidKind, LinkLayer, NicRole};
use crate::{Nic, Severity};

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    let roce = |nic: &&Nic| {
        nic.role == NicRole::Fabric
            && nic.port.is_some()
            && nic.link_layer == Some(LinkLayer::Ethernet)
            && nic.up == Some(true)
    };
    let mut usable: Vec<(String, BTreeSet<u32>)> = Vec::new();
    for nic in devices.snapshot.nics.iter().filter(roce) {
        let name = nic_name(nic);
        let Some(gids) = &nic.gids else {
            found.unchecked("roce-gid-missing", name, "its GID table was not read");
            continue;
        };
        let routable: BTreeSet<u32> =
            gids.iter().filter(|gid| gid.is_routable()).map(|gid| gid.index).collect();
        if routable.is_empty() {
            missing(&name, gids, found);
        } else {
            usable.push((name, routable));
        }
    }
    differing(&usable, found);
}

fn missing(name: &str, gids: &[Gid], found: &mut Examination) {
    let second = gids.iter().filter(|gid| gid.kind == GidKind::RoceV2).count();
    let evidence = match (gids.len(), second) {
        (0, _) => "the GID table is empty".into(),
        (all, 0) => format!("{all} GID entries, none of RoCE v2"),
        (_, second) => format!("{second} RoCE v2 entries, all link-local: no address is set"),
    };
    found.finding(
        "roce-gid-missing",
        Severity::Degraded,
        name,
        evidence,
        "give the port's interface an IP address, and use RoCE v2 (cma_roce_mode -m 2)",
    );
}

/// NCCL has one index for all ports; without a common one it must be told by address instead.
fn differing(usable: &[(String, BTreeSet<u32>)], found: &mut Examination) {
    let Some(((_, first), rest)) = usable.split_first() else { return };
    let common = rest
        .iter()
        .fold(first.clone(), |common, (_, own)| common.intersection(own).copied().collect());
    if !common.is_empty() {
        return;
    }
    let words: Vec<String> = usable
        .iter()
        .map(|(name, indices)| {
            let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
            format!("{name} {}", indices.join("/"))
        })
        .collect();
    found.finding(
        "roce-gid-indices-differ",
        Severity::Degraded,
        "host",
        format!("no GID index is a routable RoCE v2 entry on every port: {}", words.join(", ")),
        "leave NCCL_IB_GID_INDEX unset; set NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE and NCCL_IB_ROCE_VERSION_NUM=2",
    );
}
