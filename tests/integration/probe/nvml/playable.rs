//! Every trouble that only the driver tells of, played by the double and found by the rules.

use machines::catalogue::gb200_tray;
use machines::scenario::{Code, Fabric};
use machines::{Deviation, Machine, dgx_h100, dgx1v};
use topology::health::judge;

use super::{probe, with_driver_of, write};

/// With something changed the machine has these findings besides those it always has.
#[track_caller]
fn check(machine: Machine, change: impl FnOnce(&mut Machine), expect: &[&str]) {
    let mut usual: Vec<String> =
        judge(&machine.snapshot()).findings.into_iter().map(|finding| finding.code).collect();
    let mut changed = machine;
    change(&mut changed);
    // The tree of the DGX-1V is written once for all.
    let written = if changed.name == "dgx1v" { with_driver_of(&changed) } else { write(&changed) };
    let found = judge(&probe(&written.config));
    let mut codes: Vec<String> = found.findings.into_iter().map(|finding| finding.code).collect();
    codes.retain(|code| match usual.iter().position(|usual| usual == code) {
        Some(at) => {
            usual.swap_remove(at);
            false
        }
        None => true,
    });
    codes.sort();
    codes.dedup();
    assert_eq!(codes, expect, "{}", changed.name);
}

fn fabric(machine: &mut Machine, gpu: usize) -> &mut Fabric {
    machine.gpus[gpu].fabric.as_mut().expect("it takes part in a fabric")
}

#[test]
fn links() {
    let inactive = ["gpu-links-fewer-than-siblings", "gpu-links-inactive"];
    check(dgx1v(), |m| *m = m.clone().with(Deviation::NvLinkDown { gpu: 2, link: 1 }), &inactive);
    check(dgx1v(), |m| *m = m.clone().with(Deviation::NvLinksDown { gpu: 2 }), &inactive);
    // Down at one end alone.
    let one_way = ["gpu-links-asymmetric", "gpu-links-fewer-than-siblings", "gpu-links-inactive"];
    check(dgx1v(), |m| m.gpus[2].links[1].active = false, &one_way);
    let errors = |m: &mut Machine| {
        let link = &mut m.gpus[4].links[0];
        link.errors.insert(machines::scenario::NvLinkError::Replay, 7);
    };
    check(dgx1v(), errors, &["gpu-link-errors"]);
}

#[test]
fn peers_partitions_and_devices() {
    let denied = Deviation::PeerAccessDenied { a: 0, b: 3 };
    check(dgx1v(), |m| *m = m.clone().with(denied), &["peer-access-denied"]);
    check(dgx_h100(), |m| m.gpus[3].mig = true, &["mig-no-peer-access"]);
    check(dgx1v(), |m| *m = m.clone().with(Deviation::GpuLost { gpu: 5 }), &["gpu-lost"]);
    check(dgx1v(), |m| m.confidential = Some(true), &["confidential-computing"]);
}

#[test]
fn fabrics() {
    let unhealthy = ["fabric-not-healthy"];
    check(dgx_h100(), |m| fabric(m, 1).state = 2, &["fabric-not-registered"]);
    check(dgx_h100(), |m| fabric(m, 1).status = Code::UNKNOWN, &["fabric-not-registered"]);
    check(gb200_tray(), |m| fabric(m, 1).health_mask = 0xa9, &unhealthy);
    check(gb200_tray(), |m| fabric(m, 1).health_summary = 2, &unhealthy);
    check(gb200_tray(), |m| fabric(m, 1).clique_id = 32_766, &["fabric-clique-unknown"]);
    check(gb200_tray(), |m| fabric(m, 1).clique_id += 1, &["fabric-cliques-differ"]);
    check(gb200_tray(), |m| m.imex_channels = Some(0), &["imex-no-channel"]);
}
