//! The RDMA ports of this host, and which of them a rank uses.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::events::Watch;
use super::ffi::{self, Context, Domain, PORT_ACTIVE, PortAttributes, Region};
use super::gid::{self, Gid, Kind, Protocol};
use super::registry::Registry;
use crate::memory::Aligned;
use crate::variables::Ib;

/// Where the kernel shows RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// Names another folder of that form, for a recorded or a made one.
const DEVICES_VARIABLE: &str = "TOPOD_VERBS_SYSFS";

fn devices() -> PathBuf {
    std::env::var_os(DEVICES_VARIABLE).map_or_else(|| DEVICES.into(), PathBuf::from)
}

/// A port of a device that is open.
#[derive(Debug)]
pub(super) struct Nic {
    pub(super) domain: Arc<Domain>,
    pub(super) context: Arc<Context>,
    /// Shared by the ports of a device.
    pub(super) watch: Arc<Watch>,
    /// The callers' buffers it may read; those of all NICs of a communicator.
    pub(super) registry: Arc<Registry>,
    pub(super) port: u8,
    pub(super) infiniband: bool,
    pub(super) lid: u16,
    /// `enum ibv_mtu`.
    pub(super) mtu: i32,
    /// Longest message in bytes.
    pub(super) longest: u32,
    /// The entries that may be used, in order of their places.
    pub(super) gids: Vec<Gid>,
}

impl Nic {
    pub(super) fn name(&self) -> &str {
        &self.context.name
    }
}

/// Every port that may be used.
#[derive(Debug)]
pub(crate) struct Nics {
    /// In order of their names.
    ports: Vec<Arc<Nic>>,
    pub(crate) registry: Arc<Registry>,
}

impl Nics {
    /// Opens the active ports that `ib` chooses, in the order of their names: `mlx5_2` before `mlx5_10`, so that the n-th port is on
    /// the same rail on every host of a kind.
    ///
    /// # Errors
    /// Without the library, and where no port is left; the error says of each what is against it.
    pub(crate) fn open(ib: &Ib) -> io::Result<Self> {
        let folder = devices();
        let ports_of = |name: &str| ports(&folder.join(name));
        let chosen = |name: &str, port: u8| {
            ib.hca.as_ref().is_none_or(|filter| filter.selects(name, u32::from(port)))
        };
        let registry = Arc::new(Registry::default());
        let mut against = Vec::new();
        let mut nics = Vec::new();
        let opened = ffi::open(|name| {
            let wanted = ports_of(name).iter().any(|port| chosen(name, *port));
            if !wanted {
                against.push(format!("{name} is not chosen"));
            }
            wanted
        })?;
        for context in opened {
            let context = match context {
                Ok(context) => Arc::new(context),
                Err(error) => {
                    against.push(error.to_string());
                    continue;
                }
            };
            let device = folder.join(&context.name);
            let watch = Arc::new(Watch::new(Arc::clone(&context), device.clone()));
            for port in ports_of(&context.name) {
                let name = format!("{} port {port}", context.name);
                if !chosen(&context.name, port) {
                    against.push(format!("{name} is not chosen"));
                    continue;
                }
                match usable(&context, (&watch, &registry), &device, port, ib) {
                    Ok(nic) => nics.push(nic),
                    Err(why) => against.push(format!("{name}: {why}")),
                }
            }
        }
        if nics.is_empty() {
            let why =
                if against.is_empty() { "there is none".to_owned() } else { against.join("; ") };
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no RDMA port can be used: {why}"),
            ));
        }
        for why in against {
            tracing::info!(target: "topod::net", "not used: {why}");
        }
        nics.sort_by_key(|nic| natural(nic.name(), nic.port));
        for nic in &nics {
            let layer = if nic.infiniband { "InfiniBand" } else { "Ethernet" };
            let gids: Vec<_> = nic.gids.iter().map(ToString::to_string).collect();
            tracing::info!(target: "topod::net", "{} port {} over {layer}, GIDs {}", nic.name(), nic.port, gids.join(", "));
        }
        Ok(Self { ports: nics.into_iter().map(Arc::new).collect(), registry })
    }

    /// The port a channel uses: the one `named`, as in `mlx5_0` or `mlx5_0:2`; where none is, or it is not among those that may be
    /// used, channels take turns.
    pub(super) fn of_channel(&self, channel: u32, named: Option<&str>) -> &Arc<Nic> {
        if let Some(named) = named {
            if let Some(found) = self.ports.iter().find(|nic| is_named(nic.name(), nic.port, named))
            {
                return found;
            }
            tracing::warn!(target: "topod::net", "channel {channel}: the plan names {named}, which cannot be used; ports take turns");
        }
        // There is at least one.
        let at = usize::try_from(channel).unwrap_or(0) % self.ports.len();
        &self.ports[at]
    }

    /// Leaves ports of one link layer, InfiniBand where there is any: the others of a host are for storage or for people.
    pub(crate) fn of_one_layer(mut self) -> Self {
        if self.ports.iter().any(|nic| nic.infiniband) {
            self.ports.retain(|nic| {
                if !nic.infiniband {
                    let name = nic.name();
                    tracing::info!(target: "topod::net", "not used: {name} port {}: it is on Ethernet, others are on InfiniBand", nic.port);
                }
                nic.infiniband
            });
        }
        self
    }

    /// Whether each port's device takes so many bytes of memory for a connection: where locked memory is limited, it is better known
    /// before a link is chosen.
    pub(crate) fn take(&self, bytes: usize) -> io::Result<()> {
        let take = |nic: &Arc<Nic>| Region::new(&nic.domain, Aligned::new(bytes), true).map(drop);
        self.ports.iter().try_for_each(take)
    }

    /// What peers need to know to tell whether they reach this rank: of ports that are alike in that the first.
    pub(crate) fn ports(&self) -> Vec<Port> {
        let mut ports: Vec<Port> = Vec::new();
        for nic in &self.ports {
            let (infiniband, kinds) = (nic.infiniband, gid::kinds(&nic.gids));
            if !ports.iter().any(|port| (port.infiniband, &port.kinds) == (infiniband, &kinds)) {
                ports.push(Port { nic: nic.name().to_owned(), port: nic.port, infiniband, kinds });
            }
        }
        ports
    }

    /// Whether the kernel shows any RDMA device. Costs next to nothing, unlike loading the library to ask it.
    pub(crate) fn any() -> bool {
        std::fs::read_dir(devices()).is_ok_and(|mut devices| devices.next().is_some())
    }
}

/// A port as other ranks know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    nic: String,
    port: u8,
    infiniband: bool,
    kinds: BTreeSet<Kind>,
}

/// What is against that any port of one rank reaches any of another's, whichever a channel uses, as far as can be told without sending;
/// both ranks find the same.
pub(crate) fn against(own: &[Port], peer: &[Port]) -> Option<String> {
    own.iter().flat_map(|a| peer.iter().map(move |b| (a, b))).find_map(|(a, b)| {
        let against = if a.infiniband != b.infiniband {
            "are on InfiniBand and on Ethernet"
        } else if a.kinds.is_disjoint(&b.kinds) {
            "have no kind of GID in common"
        } else {
            return None;
        };
        Some(format!("{} port {} and {} port {} {against}", a.nic, a.port, b.nic, b.port))
    })
}

/// Whether a port is the one meant. Without a number any port of the device is.
fn is_named(device: &str, port: u8, named: &str) -> bool {
    let (name, number) = named.split_once(':').map_or((named, None), |(n, p)| (n, Some(p)));
    name == device && number.is_none_or(|number| number.parse() == Ok(port))
}

/// Ports of a device by its folder, from 1.
fn ports(device: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(device.join("ports")).into_iter().flatten().flatten();
    let mut ports: Vec<u8> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ports.sort_unstable();
    ports
}

/// What a port is, or what is against using it.
fn usable(
    context: &Arc<Context>,
    (watch, registry): (&Arc<Watch>, &Arc<Registry>),
    device: &Path,
    port: u8,
    ib: &Ib,
) -> Result<Nic, String> {
    let words = |error: io::Error| error.to_string();
    reliable(device)?;
    let attributes = context.port(port).map_err(words)?;
    if attributes.state != PORT_ACTIVE {
        return Err(format!("it is {}", state(attributes.state)));
    }
    let PortAttributes { lid, active_mtu, max_msg_sz, link_layer, .. } = attributes;
    // Devices from before there was another say 0.
    let infiniband = link_layer <= ffi::LINK_LAYER_INFINIBAND;
    let folder: PathBuf = device.join("ports").join(port.to_string());
    let mut all = gid::table(&folder);
    if infiniband {
        for gid in &mut all {
            gid.protocol = Protocol::InfiniBand;
        }
    }
    let shown = all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let gids: Vec<Gid> =
        all.into_iter().filter(|gid| ib.gid_index.is_none_or(|index| index == gid.index)).collect();
    if let (true, Some(index)) = (gids.is_empty(), ib.gid_index) {
        return Err(format!("it has no GID at index {index}; there are {shown}"));
    }
    if gids.is_empty() {
        return Err("it has no GID that can be read; its interface may have no address".to_owned());
    }
    let domain = Arc::new(Domain::new(context).map_err(words)?);
    let (context, watch, registry) = (Arc::clone(context), Arc::clone(watch), Arc::clone(registry));
    let (mtu, longest) = (active_mtu, max_msg_sz);
    Ok(Nic { domain, context, watch, registry, port, infiniband, lid, mtu, longest, gids })
}

/// Whether a device has reliable connections without a connection manager: neither iWARP nor EFA does.
fn reliable(device: &Path) -> Result<(), String> {
    let kind =
        std::fs::read_to_string(device.join("node_type")).map_err(|error| error.to_string())?;
    match kind.trim() {
        "1: CA" => Ok(()),
        other => Err(format!("its node type is '{other}', not that of InfiniBand and RoCE")),
    }
}

/// `enum ibv_port_state` in words.
fn state(state: i32) -> &'static str {
    match state {
        1 => "down",
        2 => "initialising: no subnet manager has set it up",
        3 => "armed",
        5 => "active, deferred",
        _ => "in an unknown state",
    }
}

/// Orders names by their number where they end in one.
fn natural(name: &str, port: u8) -> (String, u64, u8) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_owned(), number, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_by_number() {
        let mut names = ["mlx5_10", "mlx5_2", "rxe", "mlx5_0", "bnxt_re0"];
        names.sort_by_key(|name| natural(name, 1));
        assert_eq!(names, ["bnxt_re0", "mlx5_0", "mlx5_2", "mlx5_10", "rxe"]);
        assert!(natural("mlx5_0", 1) < natural("mlx5_0", 2));
    }

    #[test]
    fn plans_name_devices_and_ports() {
        assert!(is_named("mlx5_1", 1, "mlx5_1") && is_named("mlx5_1", 2, "mlx5_1"));
        assert!(is_named("mlx5_1", 2, "mlx5_1:2") && !is_named("mlx5_1", 1, "mlx5_1:2"));
        assert!(!is_named("mlx5_10", 1, "mlx5_1") && !is_named("mlx5_1", 1, "mlx5_1:x"));
    }

    #[test]
    fn ranks_reach_each_other_where_all_their_ports_do() {
        let port = |nic: &str, infiniband, address: &str| {
            let protocol = if infiniband { Protocol::InfiniBand } else { Protocol::RoceV2 };
            let gid = Gid { index: 0, protocol, address: address.parse().unwrap() };
            Port { nic: nic.to_owned(), port: 1, infiniband, kinds: gid::kinds(&[gid]) }
        };
        let [v4, v6, infiniband] = [
            port("a", false, "::ffff:10.0.0.1"),
            port("b", false, "2001:db8::1"),
            port("c", true, "fe80::1"),
        ];
        let check = |own: &[Port], peer: &[Port], expected: Option<&str>| {
            assert_eq!(against(own, peer).as_deref(), expected);
            assert_eq!(against(peer, own).is_some(), expected.is_some(), "the other end agrees");
        };
        let one = |port: &Port| vec![port.clone()];
        check(&one(&v4), &one(&v4), None);
        check(&one(&infiniband), &one(&infiniband), None);
        let kinds = "a port 1 and b port 1 have no kind of GID in common";
        check(&one(&v4), &one(&v6), Some(kinds));
        let layers = "a port 1 and c port 1 are on InfiniBand and on Ethernet";
        check(&one(&v4), &[v4.clone(), infiniband], Some(layers));
    }

    #[test]
    fn devices_without_reliable_connections_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |kind: &str| {
            std::fs::write(folder.path().join("node_type"), kind).unwrap();
            reliable(folder.path())
        };
        check("1: CA\n").unwrap();
        assert!(check("4: RNIC\n").unwrap_err().contains("4: RNIC"));
        std::fs::create_dir_all(folder.path().join("ports/2")).unwrap();
        std::fs::create_dir_all(folder.path().join("ports/1")).unwrap();
        assert_eq!(ports(folder.path()), [1, 2]);
        assert!(ports(Path::new("/nonexistent")).is_empty());
    }
}
