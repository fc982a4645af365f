//! The variables that tell runtimes of a host what they would else guess, each with its reason.
//!
//! Only what is known is told, and only where a guess would go wrong; what is left unset is said with the reason, too. A variable
//! that older versions do not know, and so pass over, says from which one on it is taken.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Serialize;

use super::nics::carries_gpu_traffic;
use super::quote::is_variable_name;
use crate::health::{Launcher, judge};
use crate::nccl_hca::HcaFilter;
use crate::snapshot::{Gid, GidScope, LinkLayer, NicRole, Snapshot};
use crate::words::some_of;
use crate::{CpuList, Nic};

/// A variable to set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Export {
    /// Its name, which any shell takes.
    pub name: String,
    /// Its value: any text without a zero byte.
    pub value: String,
    /// Why.
    pub reason: String,
}

/// Variables, and what is left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports {
    /// By theme: devices, RDMA ports, the interface to meet on, the launcher's own.
    pub set: Vec<Export>,
    /// Why others are not set.
    pub notes: Vec<String>,
    /// What the user has set, and stays.
    pub kept: Vec<String>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportOptions {
    /// Whose variables to add.
    pub launcher: Option<Launcher>,
    /// Ranks are started through `topoctl exec`, which binds them: the launcher is to leave that alone.
    pub bound_by_exec: bool,
    /// Set also what the user has set.
    pub force: bool,
}

/// What to set for jobs on a host. `variable` reads the environment they are started from.
#[must_use]
pub fn exports(
    snapshot: &Snapshot,
    options: ExportOptions,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Exports {
    let mut found = Exports::default();
    devices(snapshot, variable, &mut found);
    rdma(snapshot, options.bound_by_exec, &mut found);
    if options.launcher == Some(Launcher::Kubernetes) {
        found.notes.push(
            "NCCL_SOCKET_IFNAME: not set, a pod has interfaces of its own, and these are the host's"
                .to_owned(),
        );
    } else {
        sockets(snapshot, &mut found);
    }
    guests(snapshot, &mut found);
    if let Some(launcher) = options.launcher {
        of_launcher(snapshot, launcher, options.bound_by_exec, &mut found);
    }
    found.set.retain(|export| {
        let own = variable(&export.name).filter(|_| !options.force);
        if let Some(own) = &own {
            found.kept.push(match *own == export.value {
                true => format!("{} is set as it would be", export.name),
                false => format!(
                    "{}='{own}' is set and stays; it would be '{}'",
                    export.name, export.value
                ),
            });
        }
        own.is_none()
    });
    found
}

impl Exports {
    /// The environment as it will be: these over those.
    pub fn over<'a>(
        &'a self,
        variable: &'a dyn Fn(&str) -> Option<String>,
    ) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| {
            let own = self.set.iter().find(|export| export.name == name);
            own.map_or_else(|| variable(name), |export| Some(export.value.clone()))
        }
    }

    fn set(&mut self, name: &str, value: impl Into<String>, reason: impl Into<String>) {
        let value = value.into();
        debug_assert!(is_variable_name(name), "{name}");
        if value.contains('\0') {
            self.notes.push(format!("{name}: not set, a device's name has a zero byte"));
            return;
        }
        self.set.push(Export { name: name.to_owned(), value, reason: reason.into() });
    }
}

fn devices(snapshot: &Snapshot, variable: &dyn Fn(&str) -> Option<String>, found: &mut Exports) {
    let amd = snapshot.gpus.iter().any(|gpu| gpu.gfx.is_some());
    if snapshot.gpus.is_empty() || amd {
        return;
    }
    let alike = snapshot.gpus.windows(2).all(|pair| pair[0].name == pair[1].name);
    let numbered = variable("CUDA_VISIBLE_DEVICES")
        .is_some_and(|list| list.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    if !alike && numbered {
        found.notes.push(
            "CUDA_DEVICE_ORDER: not set, the numbers in CUDA_VISIBLE_DEVICES would mean other GPUs, as these are of several models"
                .to_owned(),
        );
        return;
    }
    let reason = "device numbers are then those of nvidia-smi: in order of PCI address, not the fastest first";
    found.set("CUDA_DEVICE_ORDER", "PCI_BUS_ID", reason);
}

fn rdma(snapshot: &Snapshot, bound: bool, found: &mut Exports) {
    let ports: Vec<&Nic> = snapshot.nics.iter().filter(|nic| nic.port.is_some()).collect();
    if ports.is_empty() {
        found.notes.push("NCCL_IB_HCA: not set, this host shows no RDMA port".to_owned());
        return;
    }
    let Some(filter) = HcaFilter::of(&snapshot.nics) else {
        let reason = "no RDMA port is known to be up and for traffic between GPUs";
        found.notes.push(format!("NCCL_IB_HCA: not set, {reason}"));
        return;
    };
    let text = filter.to_string();
    if text.parse() != Ok(filter.clone()) {
        // A name with a comma or colon in it, which NCCL would take apart.
        let reason = "the ports' names are none that NCCL would read back";
        found.notes.push(format!("NCCL_IB_HCA: not set, {reason}"));
        return;
    }
    let others: Vec<String> = ports
        .iter()
        .filter(|nic| !carries_gpu_traffic(nic))
        .map(|nic| {
            let down = (nic.up == Some(false)).then_some("down");
            let reason = nic.role_reason.as_deref().or(down).unwrap_or("for what is not known");
            format!("{} ({reason})", nic.name)
        })
        .collect();
    let beside = match others.is_empty() {
        true => String::new(),
        false => format!(", without {}", some_of(&others)),
    };
    let count = filter.entries.len();
    found.set(
        "NCCL_IB_HCA",
        text,
        format!(
            "the {count} of {} RDMA ports for traffic between GPUs, whole names with port{beside}",
            ports.len()
        ),
    );
    addresses(snapshot, found);
    if bound {
        found.notes.push(
            "UCX_NET_DEVICES: not set, topoctl exec gives each rank the ports beside its GPU"
                .to_owned(),
        );
        return;
    }
    let ucx: Vec<String> = filter
        .entries
        .iter()
        .map(|entry| format!("{}:{}", entry.name, entry.port.unwrap_or(1)))
        .collect();
    let reason = "the same ports for UCX, which would else take the nearest to each process, storage and front end among them";
    found.set("UCX_NET_DEVICES", ucx.join(","), reason);
}

/// Global identifiers of ports that do RDMA over Ethernet. NCCL has one index for all of them.
fn addresses(snapshot: &Snapshot, found: &mut Exports) {
    let used: Vec<&Nic> =
        snapshot.nics.iter().filter(|nic| carries_gpu_traffic(nic) && nic.port.is_some()).collect();
    let ethernet = used.iter().filter(|nic| nic.link_layer == Some(LinkLayer::Ethernet)).count();
    if ethernet == 0 {
        return;
    }
    let unset = |found: &mut Exports, why: &str| {
        found.notes.push(format!("NCCL_IB_GID_INDEX: not set, {why}"));
    };
    if ethernet < used.len() {
        return unset(found, "some ports are InfiniBand, and the index would hold for them too");
    }
    let tables: Option<Vec<&Vec<Gid>>> = used.iter().map(|nic| nic.gids.as_ref()).collect();
    let Some(tables) = tables else {
        return unset(found, "not every port's table of GIDs could be read");
    };
    let routable = |gids: &[Gid], scope: Option<GidScope>| -> BTreeSet<u32> {
        let fits = |gid: &&Gid| gid.is_routable() && scope.is_none_or(|scope| gid.scope == scope);
        gids.iter().filter(fits).map(|gid| gid.index).collect()
    };
    let common = |scope: Option<GidScope>| -> Option<u32> {
        let mut sets = tables.iter().map(|gids| routable(gids, scope));
        let first = sets.next()?;
        let all = sets.fold(first, |all, own| all.intersection(&own).copied().collect());
        all.into_iter().next()
    };
    if let Some(index) = common(Some(GidScope::Ipv4)).or_else(|| common(None)) {
        let reason = format!("a routable RoCE v2 entry on each of the {} ports", used.len());
        found.set("NCCL_IB_GID_INDEX", index.to_string(), reason);
        return;
    }
    let all_have = |scopes: &[GidScope]| {
        tables
            .iter()
            .all(|gids| gids.iter().any(|gid| gid.is_routable() && scopes.contains(&gid.scope)))
    };
    let family = match () {
        () if all_have(&[GidScope::Ipv4]) => Some("AF_INET"),
        () if all_have(&[GidScope::Global, GidScope::UniqueLocal]) => Some("AF_INET6"),
        () => None,
    };
    let Some(family) = family else {
        return unset(found, "not every port has a routable RoCE v2 entry");
    };
    unset(found, "the entries have other indices on other ports, and NCCL has one index for all");
    let reason =
        "each port has a routable RoCE v2 entry of this family; NCCL 2.21 and later look for it";
    found.set("NCCL_IB_ADDR_FAMILY", family, reason);
    found.set("NCCL_IB_ROCE_VERSION_NUM", "2", reason);
}

/// The interface for what is no traffic between GPUs: meeting, and sockets.
fn sockets(snapshot: &Snapshot, found: &mut Exports) {
    let candidates: Vec<(&Nic, &String)> = snapshot
        .nics
        .iter()
        .filter(|nic| nic.role == NicRole::Other && nic.up == Some(true))
        .filter(|nic| nic.link_layer == Some(LinkLayer::Ethernet))
        .filter_map(|nic| match nic.netdevs.as_slice() {
            [netdev] => Some((nic, netdev)),
            _ => None,
        })
        .collect();
    let default_route = |nic: &Nic| {
        nic.role_reason.as_deref().is_some_and(|reason| reason.contains("default route"))
    };
    let by_route: Vec<&(&Nic, &String)> =
        candidates.iter().filter(|(nic, _)| default_route(nic)).collect();
    let chosen = match (by_route.as_slice(), candidates.as_slice()) {
        ([(_, netdev)], _) => Some((*netdev, "it carries the default route")),
        ([], [(_, netdev)]) => Some((
            *netdev,
            "the only Ethernet interface that is up and not for traffic between GPUs",
        )),
        _ => None,
    };
    // NCCL parts its list at commas, and each entry at a colon.
    match chosen.filter(|(netdev, _)| !netdev.contains([',', ':', '^', '='])) {
        Some((netdev, reason)) => {
            found.set("NCCL_SOCKET_IFNAME", format!("={netdev}"), reason);
            found.set("GLOO_SOCKET_IFNAME", netdev.clone(), reason);
        }
        None => found.notes.push(
            "NCCL_SOCKET_IFNAME: not set, which interface the hosts of a job meet on is not known here"
                .to_owned(),
        ),
    }
}

fn guests(snapshot: &Snapshot, found: &mut Exports) {
    let flat = judge(snapshot).findings.into_iter().find(|finding| finding.code == "vm-flat-pci");
    if let Some(finding) = flat {
        found.notes.push(format!(
            "NCCL_TOPO_FILE: not set, and this guest needs one: {}; topoctl export --format nccl-topo --for-vm makes it on the host",
            finding.evidence
        ));
    }
}

fn of_launcher(snapshot: &Snapshot, launcher: Launcher, bound: bool, found: &mut Exports) {
    let by_exec = "topoctl exec binds each rank beside its GPU, within what the launcher's own binding would leave it";
    match launcher {
        Launcher::Mpirun if bound => {
            found.set("OMPI_MCA_hwloc_base_binding_policy", "none", by_exec);
            found.set("PRTE_MCA_hwloc_default_binding_policy", "none", by_exec);
        }
        Launcher::Slurm if bound => found.set("SLURM_CPU_BIND", "none", by_exec),
        Launcher::Torchrun => {
            if let Some(cores) = cores_for_each(snapshot) {
                let reason = "cores of the host for each GPU; torchrun sets 1";
                found.set("OMP_NUM_THREADS", cores.to_string(), reason);
            }
            found.notes.push(
                "ranks follow the hosts' names as text under c10d rendezvous (node10 before node2): --node-rank counts under --rdzv-backend=static alone"
                    .to_owned(),
            );
            if bound {
                found
                    .notes
                    .push("do not add torchrun --numa-binding: topoctl exec binds".to_owned());
            }
        }
        Launcher::Slurm | Launcher::Mpirun | Launcher::Kubernetes => {}
    }
}

/// Cores of the host, parted among its GPUs.
fn cores_for_each(snapshot: &Snapshot) -> Option<usize> {
    let cores: usize =
        snapshot.host.cpus.as_ref()?.cores.iter().filter(|core| !CpuList::is_empty(core)).count();
    Some(cores / snapshot.gpus.len().max(1)).filter(|each| *each > 0 && !snapshot.gpus.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuIndex;
    use crate::snapshot::{GidKind, Gpu, Source};

    fn port(name: &str, role: NicRole, layer: LinkLayer) -> Nic {
        Nic {
            port: Some(1),
            role,
            link_layer: Some(layer),
            up: Some(true),
            netdevs: [format!("if-{name}")].into(),
            gids: Some(Vec::new()),
            ..Nic::new(name)
        }
    }

    fn host(nics: Vec<Nic>) -> Snapshot {
        let mut host = Snapshot::new(Source::NcclXml);
        host.gpus = (0..2).map(|index| Gpu::new(GpuIndex(index))).collect();
        host.nics = nics;
        host
    }

    fn gids(entries: &[(u32, GidScope)]) -> Option<Vec<Gid>> {
        let gid = |(index, scope): &(u32, GidScope)| Gid {
            index: *index,
            kind: GidKind::RoceV2,
            scope: *scope,
            netdev: None,
        };
        Some(entries.iter().map(gid).collect())
    }

    fn told(host: &Snapshot, options: ExportOptions, set: &[(&str, &str)]) -> Exports {
        let variable = |name: &str| {
            set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        };
        exports(host, options, &variable)
    }

    #[track_caller]
    fn check(host: &Snapshot, name: &str, expect: Option<&str>) {
        let found = told(host, ExportOptions::default(), &[]);
        let value = found.set.iter().find(|export| export.name == name).map(|e| e.value.as_str());
        assert_eq!(value, expect, "{found:#?}");
        assert!(found.set.iter().all(|export| !export.reason.is_empty()));
    }

    /// Names differ from host to host, and so do the lists (NVIDIA/nccl#856, #1277).
    #[test]
    fn field_case_077_each_host_has_a_list_of_its_own() {
        use LinkLayer::{Ethernet, Infiniband};
        let of = |names: &[&str]| {
            let fabric = names.iter().map(|name| port(name, NicRole::Fabric, Infiniband));
            let storage = port("mlx5_9", NicRole::Other, Ethernet);
            host(fabric.chain([storage]).collect())
        };
        let (a, b) = (of(&["mlx5_0", "mlx5_3", "mlx5_5"]), of(&["mlx5_0", "mlx5_1", "mlx5_4"]));
        check(&a, "NCCL_IB_HCA", Some("=mlx5_0:1,mlx5_3:1,mlx5_5:1"));
        check(&b, "NCCL_IB_HCA", Some("=mlx5_0:1,mlx5_1:1,mlx5_4:1"));
        check(&b, "UCX_NET_DEVICES", Some("mlx5_0:1,mlx5_1:1,mlx5_4:1"));
        check(&b, "NCCL_SOCKET_IFNAME", Some("=if-mlx5_9"));
        check(&b, "NCCL_IB_GID_INDEX", None);
        check(&host(Vec::new()), "NCCL_IB_HCA", None);
        // A name that NCCL would take apart.
        check(&of(&["mlx5_0,mlx5_9"]), "NCCL_IB_HCA", None);
        // Rails, where they are known, make ports of one position meet.
        let mut railed = of(&["mlx5_0", "mlx5_3"]);
        railed.nics[0].rail = Some(crate::Rail(1));
        railed.nics[1].rail = Some(crate::Rail(0));
        check(&railed, "NCCL_IB_HCA", Some("=mlx5_0:1:1,mlx5_3:1:0"));
    }

    /// One index for all ports, or none (NVIDIA/nccl#426, #1131).
    #[test]
    fn an_index_of_gids_only_where_it_is_equal() {
        use GidScope::{Global, Ipv4, LinkLocal};
        let of = |tables: [Option<Vec<Gid>>; 2]| {
            let [a, b] = tables;
            let nic = |name, gids| Nic { gids, ..port(name, NicRole::Fabric, LinkLayer::Ethernet) };
            host([nic("mlx5_0", a), nic("mlx5_1", b)].into())
        };
        let index = "NCCL_IB_GID_INDEX";
        let equal = of([gids(&[(1, LinkLocal), (3, Ipv4)]), gids(&[(1, LinkLocal), (3, Ipv4)])]);
        check(&equal, index, Some("3"));
        let moved = of([gids(&[(3, Ipv4)]), gids(&[(5, Ipv4)])]);
        check(&moved, index, None);
        check(&moved, "NCCL_IB_ADDR_FAMILY", Some("AF_INET"));
        check(&moved, "NCCL_IB_ROCE_VERSION_NUM", Some("2"));
        let six = of([gids(&[(2, Global)]), gids(&[(4, Global)])]);
        check(&six, "NCCL_IB_ADDR_FAMILY", Some("AF_INET6"));
        // An entry of another family under the same index is not the one.
        let crossed = of([gids(&[(3, Ipv4), (5, Global)]), gids(&[(5, Ipv4), (3, Global)])]);
        check(&crossed, index, Some("3"));
        for lacking in
            [of([gids(&[(3, Ipv4)]), None]), of([gids(&[(3, Ipv4)]), gids(&[(1, LinkLocal)])])]
        {
            check(&lacking, index, None);
            check(&lacking, "NCCL_IB_ADDR_FAMILY", None);
        }
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let host = host([port("mlx5_0", NicRole::Fabric, LinkLayer::Infiniband)].into());
        let set = [("NCCL_IB_HCA", "mlx5"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
        let found = told(&host, ExportOptions::default(), &set);
        assert!(found.set.iter().all(|export| set.iter().all(|(name, _)| export.name != *name)));
        assert_eq!(found.kept.len(), 2, "{:?}", found.kept);
        let forced = told(&host, ExportOptions { force: true, ..ExportOptions::default() }, &set);
        assert!(forced.set.iter().any(|e| e.name == "NCCL_IB_HCA" && e.value == "=mlx5_0:1"));
        assert!(forced.kept.is_empty());
    }

    #[test]
    fn numbers_keep_their_meaning() {
        let mut host = host(Vec::new());
        check(&host, "CUDA_DEVICE_ORDER", Some("PCI_BUS_ID"));
        host.gpus[1].name = Some("T4".into());
        check(&host, "CUDA_DEVICE_ORDER", Some("PCI_BUS_ID"));
        let set = [("CUDA_VISIBLE_DEVICES", "1,0")];
        assert!(told(&host, ExportOptions::default(), &set).set.is_empty());
    }

    /// torchrun numbers hosts by their names as text (pytorch#150660), and Slurm by its own order: each is told what it takes.
    #[test]
    fn field_case_078_each_launcher_has_its_own_rule() {
        let host = host(Vec::new());
        let names = |launcher, bound_by_exec| -> Vec<String> {
            let options = ExportOptions { launcher: Some(launcher), bound_by_exec, force: false };
            told(&host, options, &[]).set.into_iter().map(|export| export.name).collect()
        };
        let base = names(Launcher::Kubernetes, false);
        assert_eq!(names(Launcher::Mpirun, false), base);
        assert_eq!(names(Launcher::Slurm, true).last().unwrap(), "SLURM_CPU_BIND");
        assert!(names(Launcher::Mpirun, true).iter().any(|name| name.starts_with("OMPI_MCA_")));
        let options =
            ExportOptions { launcher: Some(Launcher::Torchrun), ..ExportOptions::default() };
        assert!(
            told(&host, options, &[]).notes.iter().any(|note| note.contains("node10 before node2"))
        );
    }
}
