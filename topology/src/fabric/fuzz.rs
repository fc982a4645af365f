//! Bodies of the fuzz targets. They hold for any bytes, so the test suite runs them too.

use alloc::string::String;
use alloc::vec::Vec;

use super::slurm::SlurmTopology;
use super::topograph::Model;
use super::{Fabric, FabricForm, Peer, host_list, read, slurm, sniff, topograph};

/// Every reader, without the recognition before it.
pub fn fabric(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = sniff(&text);
    let forms = [
        FabricForm::Infiniband,
        FabricForm::PortList,
        FabricForm::SlurmConf,
        FabricForm::TopographGraph,
        FabricForm::Lldp,
    ];
    for fabric in forms.into_iter().filter_map(|form| read(form, &text).ok()) {
        sound(&fabric);
    }
    // JSON is YAML.
    if let Ok(topologies) = serde_json::from_str::<Vec<SlurmTopology>>(&text) {
        slurm::from_yaml(&topologies, None).iter().for_each(sound);
    }
    if let Ok(model) = serde_json::from_str::<Model>(&text) {
        topograph::from_model(&model).iter().for_each(sound);
    }
    if text.len() < 200
        && let Ok(names) = host_list::expand(&text)
    {
        assert_eq!(host_list::expand(&host_list::fold(&names)), Ok(names), "folded and expanded");
    }
}

/// Places are within bounds, links have two ends, the order has every host once.
pub(super) fn sound(fabric: &Fabric) {
    let switches = fabric.switches.len();
    let mut ends = Vec::new();
    for (from, switch) in fabric.switches.iter().enumerate() {
        for port in &switch.ports {
            match port.to {
                Peer::Switch(to) => {
                    assert!(to < switches, "a switch that is there");
                    if to != from {
                        ends.push((from.min(to), from.max(to)));
                    }
                }
                Peer::Host(host) => assert!(host < fabric.hosts.len(), "a host that is there"),
                Peer::Unnamed | Peer::Other => {}
            }
        }
    }
    ends.sort_unstable();
    for pair in ends.chunk_by(|a, b| a == b) {
        assert_eq!(pair.len() % 2, 0, "a link between switches is seen from both");
    }
    let nics = fabric.hosts.iter().flat_map(|host| &host.nics).chain(&fabric.unnamed);
    for leaf in nics.filter_map(|nic| nic.leaf) {
        assert!(leaf < switches, "a leaf that is there");
    }
    let levels = fabric.levels();
    let mut order = levels.order().to_vec();
    order.sort_unstable();
    assert!(order.into_iter().eq(0..fabric.hosts.len()), "every host once");
    let ring = levels.order().windows(2).map(|pair| (pair[0], pair[1]));
    let crossings = levels.count(ring);
    let total = crossings.by_level.iter().sum::<usize>() + crossings.apart;
    assert_eq!(total, fabric.hosts.len().saturating_sub(1), "every edge once");
    let _ = (fabric.tiers(), fabric.odd(), fabric.links());
}
