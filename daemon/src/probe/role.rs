//! What each NIC port is for, where simple signs tell.

use std::collections::BTreeSet;

use topology::snapshot::{LinkLayer, NicRole};

use super::nic::NicPort;

/// Slower ports do not carry traffic between GPUs.
const LEAST_FABRIC_MBIT: u64 = 10_000;

/// A port with what else its role depends on.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) port: &'a NicPort,
    /// PCI vendor and device, to tell ports of one kind.
    pub(super) model: Option<(u16, u16)>,
    /// Whether it shares a PCIe switch with a GPU: boards put the fabric's NICs there.
    pub(super) beside_gpu: bool,
}

/// Role of each port, in the same order, with the reason in words.
pub(super) fn roles(
    ports: &[Candidate<'_>],
    default_route: &BTreeSet<String>,
) -> Vec<(NicRole, &'static str)> {
    let fastest =
        ports.iter().filter(|p| p.port.up != Some(false)).filter_map(|p| p.port.mbit).max();
    let own: Vec<_> = ports.iter().map(|p| own_role(p.port, default_route, fastest)).collect();
    let fabric_models: BTreeSet<_> = ports
        .iter()
        .zip(&own)
        .filter(|(_, (role, _))| *role == NicRole::Fabric)
        .filter_map(|(p, _)| p.model)
        .collect();
    // First those beside GPUs, then all.
    let fabric_of = |layer: LinkLayer| {
        let fabric = ports.iter().zip(&own).filter(|(_, (role, _))| *role == NicRole::Fabric);
        let of_layer = fabric.filter(|(p, _)| p.port.link_layer == Some(layer));
        (of_layer.clone().filter(|(p, _)| p.beside_gpu).count(), of_layer.count())
    };
    let infiniband_prevails = fabric_of(LinkLayer::Infiniband) > fabric_of(LinkLayer::Ethernet);
    let any_fabric = own.iter().any(|(role, _)| *role == NicRole::Fabric);
    let by_siblings = |(p, own): (&Candidate<'_>, (NicRole, &'static str))| {
        let down = p.port.up == Some(false);
        let fabric_model = p.model.is_some_and(|model| fabric_models.contains(&model));
        match own {
            (NicRole::Unknown, _) if down && fabric_model => {
                (NicRole::Fabric, "down, of the model of the fabric's ports that are up")
            }
            (NicRole::Unknown, _) if any_fabric && !p.port.rdma => {
                (NicRole::Other, "no RDMA, beside ports that have it")
            }
            // The two do not reach each other: Ethernet beside more InfiniBand is for storage and the front end.
            (NicRole::Fabric, _)
                if infiniband_prevails && p.port.link_layer == Some(LinkLayer::Ethernet) =>
            {
                (NicRole::Other, "Ethernet, beside more ports of InfiniBand")
            }
            own => own,
        }
    };
    ports.iter().zip(own).map(by_siblings).collect()
}

fn own_role(
    port: &NicPort,
    default_route: &BTreeSet<String>,
    fastest: Option<u64>,
) -> (NicRole, &'static str) {
    let front_end = port.interfaces.iter().any(|interface| default_route.contains(interface));
    let slower = port.mbit.zip(fastest).is_some_and(|(own, fastest)| own < fastest);
    if port.manages_switch {
        (NicRole::Other, "an NVSwitch's own port")
    } else if port.is_virtual {
        (NicRole::Other, "virtual function")
    } else if port.in_bond {
        (NicRole::Other, "counted in its bond")
    } else if port.up == Some(false) {
        (NicRole::Unknown, "down")
    } else if port.mbit.is_some_and(|mbit| mbit < LEAST_FABRIC_MBIT) {
        (NicRole::Other, "slower than 10 Gbit/s")
    } else if front_end && port.link_layer != Some(LinkLayer::Infiniband) && slower {
        (NicRole::Other, "carries the default route, and there are faster ports")
    } else if port.rdma {
        (NicRole::Fabric, "RDMA at 10 Gbit/s or more")
    } else {
        (NicRole::Unknown, "no RDMA")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, mbit: u64) -> NicPort {
        NicPort {
            name: name.into(),
            mbit: Some(mbit),
            link_layer: Some(LinkLayer::Ethernet),
            up: Some(true),
            rdma: true,
            interfaces: vec![format!("{name}-if")],
            ..NicPort::default()
        }
    }

    #[track_caller]
    fn check(ports: &[NicPort], default_route: &str, expect: &[NicRole]) {
        let default_route = BTreeSet::from([default_route.to_owned()]);
        let model = |port: &NicPort| if port.rdma { Some((0x15b3, 0x1021)) } else { None };
        let candidates: Vec<_> = ports
            .iter()
            .map(|port| Candidate { port, model: model(port), beside_gpu: false })
            .collect();
        let found: Vec<NicRole> =
            roles(&candidates, &default_route).into_iter().map(|(role, _)| role).collect();
        assert_eq!(found, expect);
    }

    use NicRole::{Fabric, Other, Unknown};

    #[test]
    fn front_end_beside_faster_ports() {
        check(&[port("a", 400_000), port("b", 100_000)], "b-if", &[Fabric, Other]);
        // Of equal ports, the route alone tells nothing.
        check(&[port("a", 400_000), port("b", 400_000)], "b-if", &[Fabric, Fabric]);
    }

    #[test]
    fn virtual_slow_and_bonded() {
        let vf = NicPort { is_virtual: true, ..port("vf", 400_000) };
        let leg = NicPort { in_bond: true, ..port("leg", 400_000) };
        check(&[vf, leg, port("slow", 1_000)], "", &[Other, Other, Other]);
    }

    #[test]
    fn down_ports_are_known_by_their_siblings() {
        let down = NicPort { up: Some(false), mbit: None, ..port("down", 0) };
        check(&[port("a", 400_000), down.clone()], "", &[Fabric, Fabric]);
        check(std::slice::from_ref(&down), "", &[Unknown]);
        // A socket nobody plugged a cable into, beside a fabric.
        let unused = NicPort { rdma: false, ..down };
        check(&[port("a", 400_000), unused], "", &[Fabric, Other]);
    }

    #[test]
    fn ethernet_beside_infiniband() {
        let ib = |name| NicPort { link_layer: Some(LinkLayer::Infiniband), ..port(name, 200_000) };
        let roce = port("c", 200_000);
        check(&[ib("a"), ib("b"), roce.clone()], "", &[Fabric, Fabric, Other]);
        // As many of both say nothing.
        check(&[ib("a"), roce.clone()], "", &[Fabric, Fabric]);
        // But where one lies beside a GPU and the other does not.
        let near = ib("a");
        let candidates = [(&near, true), (&roce, false)].map(|(port, beside_gpu)| Candidate {
            port,
            model: None,
            beside_gpu,
        });
        let found = roles(&candidates, &BTreeSet::new()).into_iter().map(|(role, _)| role);
        assert_eq!(found.collect::<Vec<_>>(), [Fabric, Other]);
    }

    #[test]
    fn plain_ethernet() {
        let plain = NicPort { rdma: false, ..port("eth0", 100_000) };
        check(std::slice::from_ref(&plain), "", &[Unknown]);
        check(&[plain, port("a", 400_000)], "", &[Other, Fabric]);
    }
}
