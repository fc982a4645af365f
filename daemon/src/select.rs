//! From the names a client gives GPUs to the indices a planner takes.

use proto::{GpuSelector, PlanQuery};
use topology::snapshot::Gpu;
use topology::{GpuIndex, PlanRequest, Topology};

/// Why a selection of GPUs means nothing on this topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectError {
    /// No such GPU.
    #[error("there is no GPU {name}")]
    Unknown { name: String },
    /// The same GPU twice, by whatever names.
    #[error("GPU {name} is selected twice")]
    Twice { name: String },
    /// A plan takes the same indices on every host, so one host's UUID or address selects nothing on the others.
    #[error("GPU {name}: with several hosts GPUs are selected by index")]
    SeveralHosts { name: String },
}

/// The request a planner takes.
pub(crate) fn request(query: PlanQuery, topology: &Topology) -> Result<PlanRequest, SelectError> {
    let mut gpus = Vec::with_capacity(query.gpus.len());
    for selector in &query.gpus {
        let index = index(selector, topology)?;
        if gpus.contains(&index) {
            return Err(SelectError::Twice { name: name(selector) });
        }
        gpus.push(index);
    }
    Ok(PlanRequest {
        gpus: (!gpus.is_empty()).then_some(gpus),
        collectives: query.collectives,
        size_bytes: query.size_bytes,
        links: query.links,
    })
}

fn index(selector: &GpuSelector, topology: &Topology) -> Result<GpuIndex, SelectError> {
    let of_one_host = |matches: &dyn Fn(&Gpu) -> bool| {
        let [host] = topology.hosts() else {
            return Err(SelectError::SeveralHosts { name: name(selector) });
        };
        let found = host.gpus.iter().find(|gpu| matches(gpu));
        found.map(|gpu| gpu.index).ok_or_else(|| SelectError::Unknown { name: name(selector) })
    };
    match selector {
        // Whether every host has it is for the planner to say.
        GpuSelector::Index(index) => Ok(*index),
        GpuSelector::Uuid(uuid) => of_one_host(&|gpu| gpu.uuid.as_ref() == Some(uuid)),
        GpuSelector::BusId(id) => of_one_host(&|gpu| gpu.bus_id == Some(*id)),
    }
}

fn name(selector: &GpuSelector) -> String {
    match selector {
        GpuSelector::Index(index) => index.to_string(),
        GpuSelector::Uuid(uuid) => uuid.clone(),
        GpuSelector::BusId(id) => id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use topology::snapshot::{PciDevice, PciKind};
    use topology::{BusId, RateModel, Snapshot, Source, lower};

    use super::*;

    /// Two GPUs whose order by address is not that by index.
    fn host() -> Snapshot {
        let mut snapshot = Snapshot::new(Source::Live);
        for (index, bus) in [(0, 0x20), (1, 0x10)] {
            let bus_id = BusId::new(0, bus, 0, 0).unwrap();
            snapshot
                .pci_devices
                .push(PciDevice { numa_node: Some(0), ..PciDevice::new(bus_id, PciKind::Gpu) });
            snapshot.gpus.push(Gpu {
                bus_id: Some(bus_id),
                uuid: Some(format!("GPU-{index}")),
                numa_node: Some(0),
                ..Gpu::new(GpuIndex(index))
            });
        }
        snapshot.pci_devices.sort_by_key(|device| device.bus_id);
        snapshot
    }

    #[track_caller]
    fn check(hosts: usize, gpus: &[GpuSelector], expect: Result<Option<&[u32]>, &str>) {
        let topology = lower(&vec![host(); hosts], RateModel::Effective).unwrap();
        let query = PlanQuery { gpus: gpus.to_vec(), ..Default::default() };
        let selected = request(query, &topology).map(|request| request.gpus);
        let expect = expect.map(|indices| {
            indices.map(|indices| indices.iter().copied().map(GpuIndex).collect::<Vec<_>>())
        });
        assert_eq!(selected.map_err(|error| error.to_string()), expect.map_err(str::to_owned));
    }

    fn by_uuid(uuid: &str) -> GpuSelector {
        GpuSelector::Uuid(uuid.into())
    }

    fn by_address(text: &str) -> GpuSelector {
        GpuSelector::BusId(text.parse().unwrap())
    }

    fn by_index(index: u32) -> GpuSelector {
        GpuSelector::Index(GpuIndex(index))
    }

    #[test]
    fn names_become_indices_in_the_order_given() {
        check(1, &[], Ok(None));
        check(1, &[by_index(1), by_index(0)], Ok(Some(&[1, 0])));
        check(1, &[by_uuid("GPU-1"), by_address("00000000:20:00.0")], Ok(Some(&[1, 0])));
        check(1, &[by_uuid("GPU-2")], Err("there is no GPU GPU-2"));
        check(1, &[by_address("0000:30:00.0")], Err("there is no GPU 0000:30:00.0"));
        check(1, &[by_index(0), by_address("20:00.0")], Err("GPU 0000:20:00.0 is selected twice"));
        check(2, &[by_index(1), by_index(0)], Ok(Some(&[1, 0])));
        check(
            2,
            &[by_uuid("GPU-1")],
            Err("GPU GPU-1: with several hosts GPUs are selected by index"),
        );
    }
}
