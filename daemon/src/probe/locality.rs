//! Which NUMA node a device is near, when its own files do not say.

use std::collections::BTreeMap;

use topology::snapshot::NumaNode;
use topology::{BusId, CpuList};

use super::pci::PciFunction;

/// What locality is found from.
#[derive(Clone, Copy)]
pub(super) struct Locality<'a> {
    pub(super) functions: &'a BTreeMap<BusId, PciFunction>,
    pub(super) nodes: &'a [NumaNode],
}

impl Locality<'_> {
    /// The node of a PCI function: its own, else that of the nearest bridge above that has one. Each is asked for
    /// its node, then for its CPUs.
    pub(super) fn node_of(self, bus_id: BusId) -> Option<u32> {
        let mut next = self.functions.get(&bus_id);
        // As many steps as there are functions end any loop of parents.
        for _ in 0..self.functions.len() {
            let function = next?;
            let by_cpus = || function.local_cpus.as_ref().and_then(|cpus| self.node_of_cpus(cpus));
            if let Some(node) = function.numa_node.or_else(by_cpus) {
                return Some(node);
            }
            next = function.parent.and_then(|parent| self.functions.get(&parent));
        }
        None
    }

    /// The one node that has all these CPUs. A device of unknown place lists the CPUs of the whole host; so where
    /// only one node has CPUs, a list tells nothing.
    pub(super) fn node_of_cpus(self, cpus: &CpuList) -> Option<u32> {
        let told = |node: &&NumaNode| node.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
        if cpus.is_empty() || self.nodes.iter().filter(told).count() < 2 {
            return None;
        }
        let holds = |node: &&NumaNode| {
            let all: Vec<u32> = node.cpus.iter().flat_map(CpuList::iter).collect();
            cpus.iter().all(|cpu| all.binary_search(&cpu).is_ok())
        };
        self.nodes.iter().find(holds).map(|node| node.id)
    }

    /// The CPUs near a PCI function: as its file lists them where that is a place, else all of its node.
    pub(super) fn cpus_of(self, bus_id: BusId) -> Option<CpuList> {
        let own = self.functions.get(&bus_id).and_then(|function| function.local_cpus.clone());
        own.filter(|cpus| self.node_of_cpus(cpus).is_some()).or_else(|| {
            let id = self.node_of(bus_id)?;
            self.nodes.iter().find(|node| node.id == id)?.cpus.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> BusId {
        text.parse().unwrap()
    }

    #[track_caller]
    fn check(functions: &[(&str, Option<&str>, Option<u32>, &str)], expect: Option<u32>) {
        let node =
            |id, cpus: &str| NumaNode { cpus: Some(cpus.parse().unwrap()), ..NumaNode::new(id) };
        let nodes = [node(0, "0-3"), node(1, "4-7"), node(2, "")];
        let functions: BTreeMap<_, _> = functions
            .iter()
            .map(|(bus_id, parent, numa_node, cpus)| {
                let function = PciFunction {
                    parent: parent.map(id),
                    numa_node: *numa_node,
                    local_cpus: Some(cpus.parse().unwrap()),
                    ..PciFunction::default()
                };
                (id(bus_id), function)
            })
            .collect();
        let locality = Locality { functions: &functions, nodes: &nodes };
        assert_eq!(locality.node_of(id("01:00.0")), expect);
    }

    #[test]
    fn own_then_cpus_then_ancestors() {
        check(&[("01:00.0", None, Some(1), "0-3")], Some(1));
        check(&[("01:00.0", None, None, "4-7")], Some(1));
        check(&[("01:00.0", None, None, "0-7")], None);
        check(&[("01:00.0", None, None, "")], None);
        check(
            &[("01:00.0", Some("00:01.0"), None, "0-7"), ("00:01.0", None, Some(1), "")],
            Some(1),
        );
        check(
            &[("01:00.0", Some("00:01.0"), None, "0-7"), ("00:01.0", None, None, "0-1")],
            Some(0),
        );
        check(&[("01:00.0", Some("00:01.0"), None, "0-7")], None);
        check(&[("01:00.0", Some("01:00.0"), None, "0-7")], None);
        check(&[], None);
    }

    #[test]
    fn on_a_host_of_one_node_a_list_tells_nothing() {
        let node = NumaNode { cpus: Some(CpuList::from_cpus([0, 1])), ..NumaNode::new(0) };
        let locality = Locality { functions: &BTreeMap::new(), nodes: &[node] };
        assert_eq!(locality.node_of_cpus(&CpuList::from_cpus([0, 1])), None);
    }
}
