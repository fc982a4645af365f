//! NIC ports: state, rate, errors, bonds, roles.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Examination;
use super::device::{Devices, nic_name};
use crate::Severity;
use crate::dpu::{self, DpuMode};
use crate::snapshot::{Nic, NicRole};

/// Times down since the driver started from which a port flaps: a reboot of the switch, a pulled cable and a bring-up
/// account for a few.
const FLAPS: u64 = 5;

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    let nics = &devices.snapshot.nics;
    for nic in nics.iter().filter(|nic| nic.role != NicRole::Other) {
        state(nic, found);
    }
    for nic in nics.iter().filter(|nic| nic.role == NicRole::Fabric) {
        counters(nic, nics, found);
        rate(devices, nic, found);
    }
    bonds(nics, found);
    dpus(devices, found);
    for nic in nics.iter().filter(|nic| nic.role == NicRole::Unknown && nic.up == Some(true)) {
        let reason = nic.role_reason.as_deref().unwrap_or("nothing tells");
        found.finding(
            "nic-role-doubtful",
            Severity::Info,
            nic_name(nic),
            format!("not known whether it carries traffic between GPUs: {reason}"),
            "name the NICs to use in the job's environment (NCCL_IB_HCA, NCCL_SOCKET_IFNAME)",
        );
    }
}

/// Of the ports that carry traffic between GPUs: who holds the card's switch.
fn dpus(devices: &Devices<'_>, found: &mut Examination) {
    let nics = devices.snapshot.nics.iter().filter(|nic| nic.role == NicRole::Fabric);
    for (nic, dpu) in nics.filter_map(|nic| Some((nic, dpu::of_nic(devices.snapshot, nic)?))) {
        match dpu.mode {
            DpuMode::Unknown => found.not_told.push("mode of DPUs"),
            DpuMode::Dpu => found.finding(
                "dpu-holds-its-switch",
                Severity::Info,
                nic_name(nic),
                format!("{}: {}", dpu.summary(), dpu.reason),
                "for traffic between GPUs of the host behind it, look whether NIC mode is wanted",
            ),
        }
    }
}

fn state(nic: &Nic, found: &mut Examination) {
    const CODE: &str = "nic-port-down";
    match nic.up {
        Some(true) => {}
        // A socket without RDMA that nobody plugged a cable into is no loss, as far as one can see.
        Some(false) if nic.role == NicRole::Unknown && nic.port.is_none() => {}
        Some(false) => {
            let state =
                nic.phys_state.as_deref().map(|s| format!(", link {s}")).unwrap_or_default();
            found.finding(
                CODE,
                Severity::Degraded,
                nic_name(nic),
                format!("port {} is down{state}", nic.port.unwrap_or(1)),
                "check cable, switch port and, on InfiniBand, the subnet manager",
            );
        }
        None if nic.role == NicRole::Fabric => {
            found.unchecked(CODE, nic_name(nic), "the state of the port is not known");
        }
        None => {}
    }
}

fn counters(nic: &Nic, nics: &[Nic], found: &mut Examination) {
    let Some(own) = nic.counters else {
        // Plain Ethernet has no such counters.
        if nic.port.is_some() {
            found.unchecked("nic-port-flapping", nic_name(nic), "its counters were not read");
        }
        return;
    };
    if let Some(downed) = own.link_downed.filter(|count| *count > 0) {
        let others: Vec<u64> = nics
            .iter()
            .filter(|other| other.role == NicRole::Fabric && other.name != nic.name)
            .filter_map(|other| other.counters?.link_downed)
            .collect();
        let usual = median(others).unwrap_or(0);
        let flaps = downed >= FLAPS && downed / 2 > usual;
        found.finding(
            if flaps { "nic-port-flapping" } else { "nic-port-was-down" },
            if flaps { Severity::Degraded } else { Severity::Info },
            nic_name(nic),
            format!("the link went down {downed} times since the driver started; the other ports' median is {usual}"),
            "check cable and transceiver; compare the counter a while later",
        );
    }
    let errors = [
        ("symbol errors", own.symbol_errors),
        ("receive errors", own.receive_errors),
        ("link recoveries", own.link_error_recovery),
    ];
    let words: Vec<String> = errors
        .into_iter()
        .filter_map(|(what, count)| Some(format!("{} {what}", count.filter(|n| *n > 0)?)))
        .collect();
    if !words.is_empty() {
        found.finding(
            "nic-port-errors",
            Severity::Info,
            nic_name(nic),
            words.join(", "),
            "watch whether the counters grow under load; if they do, clean or replace the cable",
        );
    }
}

fn median(mut numbers: Vec<u64>) -> Option<u64> {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied()
}

/// A fabric port slower than its siblings of the same model.
fn rate(devices: &Devices<'_>, nic: &Nic, found: &mut Examination) {
    const CODE: &str = "nic-rate-below-siblings";
    let Some(own) = nic.mbit else {
        if nic.up == Some(true) && !devices.is_virtual_machine() {
            found.unchecked(CODE, nic_name(nic), "its line rate is not known");
        }
        return;
    };
    let model = |nic: &Nic| {
        let function = nic.bus_id.and_then(|id| devices.function(id));
        (nic.link_layer, function.map(|function| (function.vendor, function.device)))
    };
    let same = |other: &&Nic| other.role == NicRole::Fabric && model(other) == model(nic);
    let siblings = devices.snapshot.nics.iter().filter(same);
    let most = siblings.clone().filter_map(|other| other.mbit).max().unwrap_or(own);
    let widest = siblings.filter_map(|other| other.lanes).max();
    if own < most {
        let lanes = match (nic.lanes, widest) {
            (Some(own), Some(widest)) if own < widest => format!(" on {own} of {widest} lanes"),
            _ => String::new(),
        };
        found.finding(
            CODE,
            Severity::Degraded,
            nic_name(nic),
            format!("{} Gbit/s{lanes}, its siblings have {}", own / 1000, most / 1000),
            "check cable, transceiver and the switch port's speed setting",
        );
    }
}

fn bonds(nics: &[Nic], found: &mut Examination) {
    let mut bonds = BTreeMap::new();
    for nic in nics {
        if let Some(bond) = &nic.bond {
            bonds.entry(bond.name.as_str()).or_insert((bond, nic.role));
        }
    }
    for (name, (bond, role)) in bonds {
        let down: Vec<&str> = bond
            .members
            .iter()
            .filter(|member| member.up == Some(false))
            .map(|member| member.name.as_str())
            .collect();
        if !down.is_empty() {
            found.finding(
                "bond-leg-down",
                Severity::Degraded,
                name,
                format!("{} of {} legs down: {}", down.len(), bond.members.len(), down.join(", ")),
                "check cable and switch port of the leg; the bond carries less until it is back",
            );
        }
        let shares = bond.mode.as_deref() != Some("active-backup");
        if role == NicRole::Fabric && shares && bond.members.len() > 1 {
            found.finding(
                "bond-needs-queue-pairs",
                Severity::Info,
                name,
                format!(
                    "{} legs; one queue pair uses one of them{}",
                    bond.members.len(),
                    bond.mode.as_deref().map(|mode| format!(" (mode {mode})")).unwrap_or_default()
                ),
                "set NCCL_IB_QPS_PER_CONNECTION to the number of legs, or a multiple",
            );
        }
    }
}
