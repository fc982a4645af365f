//! Where a command's topology comes from: recorded files, the daemon, or this host.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use daemon::probe::{NvmlChoice, ProbeConfig, probe};
use daemon::recorded;
use planner::fleet::Fleet;
use topology::fabric::Fabric;
use topology::{LowerError, Network, Snapshot, Topology, lower, lower_in, what_if};

use crate::args::SourceArgs;
use crate::client;
use crate::exit::{Exit, Failure};
use crate::fabric;
use crate::plan::by_class;

/// Larger inputs are no recorded machine.
const MOST_BYTES: u64 = 64 << 20;

/// A topology, and the generation it has at the daemon (0 without one).
pub(crate) struct Origin {
    pub(crate) topology: Topology,
    pub(crate) generation: u64,
    /// The network of --fabric, and where the hosts are in it.
    pub(crate) network: Option<(Fabric, Vec<usize>)>,
}

impl Origin {
    /// The same after changes made in thought. No daemon publishes it, so it has no generation.
    pub(crate) fn changed(&self, changes: &[String]) -> Result<Self, Failure> {
        let topology = what_if::apply(&self.topology, changes)
            .map_err(|error| Failure::usage(format!("--what-if {error}")))?;
        Ok(Self { topology, generation: 0, network: self.network.clone() })
    }
}

/// The topology a command is about.
pub(crate) fn load(args: &SourceArgs) -> Result<Origin, Failure> {
    let (mut hosts, generation) = hosts(args)?;
    if args.hosts > 1 {
        hosts = vec![only(&hosts)?.clone(); usize::from(args.hosts)];
    }
    let refuse = |error: LowerError| Failure::usage(error.to_string());
    let Some(path) = &args.fabric else {
        let topology = lower(&hosts, args.rates).map_err(refuse)?;
        return Ok(Origin { topology, generation, network: None });
    };
    let fabric = fabric::read(path, None)?;
    let places = in_fabric(&fabric, path, args, hosts.len())?;
    let network = Network { fabric: &fabric, hosts: &places };
    let topology = lower_in(&hosts, args.rates, Some(network)).map_err(refuse)?;
    // No daemon publishes it.
    Ok(Origin { topology, generation: 0, network: Some((fabric, places)) })
}

/// Where the hosts are in a network.
fn in_fabric(
    network: &Fabric,
    path: &Path,
    args: &SourceArgs,
    hosts: usize,
) -> Result<Vec<usize>, Failure> {
    let this_host;
    let list = match &args.fabric_hosts {
        Some(list) => list,
        None if args.from.is_empty() && hosts == 1 => {
            this_host = this_host_name()?;
            &this_host
        }
        None => {
            return Err(Failure::usage(format!(
                "{hosts} hosts, and their files do not say what {} calls them: name them in rank order with --fabric-hosts",
                path.display()
            )));
        }
    };
    let places = fabric::places(network, "--fabric-hosts", list)?;
    if places.len() != hosts {
        let given = places.len();
        return Err(Failure::usage(format!(
            "--fabric-hosts names {given}, and there are {hosts} hosts"
        )));
    }
    Ok(places)
}

fn this_host_name() -> Result<String, Failure> {
    let path = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{path}: {error}; give --fabric-hosts")))?;
    Ok(name.trim().to_owned())
}

/// The same by class, so that many hosts cost no more than a few.
pub(crate) fn fleet(args: &SourceArgs) -> Result<Fleet, Failure> {
    if args.fabric.is_some() {
        return Err(Failure::usage(format!(
            "--fabric is for plans in which every channel is listed, of at most {} hosts: by class, the network is taken as blocking nothing",
            by_class::MANY_HOSTS
        )));
    }
    let (hosts, _) = hosts(args)?;
    let mut fleet =
        Fleet::new(&hosts, args.rates).map_err(|error| Failure::usage(error.to_string()))?;
    if args.hosts > 1 {
        only(&hosts)?;
        fleet.class_of = vec![0; usize::from(args.hosts)];
    }
    Ok(fleet)
}

/// The one host that is to be copied.
fn only(hosts: &[Snapshot]) -> Result<&Snapshot, Failure> {
    match hosts {
        [host] => Ok(host),
        _ => Err(Failure::usage(format!("--hosts copies one host, and {} are given", hosts.len()))),
    }
}

/// Each host that is named, or this one, with the daemon's generation.
fn hosts(args: &SourceArgs) -> Result<(Vec<Snapshot>, u64), Failure> {
    Ok(if !args.from.is_empty() {
        (read_all(args)?, 0)
    } else if args.sysfs_root.is_none()
        && args.nvml.is_none()
        && let Some(published) = client::topology(args.socket.as_deref())?
    {
        (published.hosts, published.generation.0)
    } else {
        (vec![probe(&this_host(args)?)], 0)
    })
}

fn read_all(args: &SourceArgs) -> Result<Vec<Snapshot>, Failure> {
    let mut hosts = Vec::new();
    for path in &args.from {
        hosts.extend(read(path)?);
    }
    Ok(hosts)
}

/// The hosts that a path, or stdin for `-`, holds.
pub(crate) fn read(path: &Path) -> Result<Vec<Snapshot>, Failure> {
    let stdin = path == Path::new("-");
    let read = if stdin { recorded::read_from(io::stdin()) } else { recorded::read(path) };
    read.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// The one host that a path holds.
pub(crate) fn read_one(path: &Path) -> Result<Snapshot, Failure> {
    let mut hosts = read(path)?;
    match hosts.len() {
        1 => Ok(hosts.remove(0)),
        count => Err(Failure::usage(format!(
            "{}: one host is wanted, and this holds {count}",
            path.display()
        ))),
    }
}

/// How this host is probed: itself, or what stands for it.
pub(crate) fn this_host(args: &SourceArgs) -> Result<ProbeConfig, Failure> {
    let mut config = match &args.sysfs_root {
        None => ProbeConfig::live(),
        Some(root) if root.is_dir() => ProbeConfig::recorded(root),
        Some(root) => {
            return Err(Failure::usage(format!("{}: not a directory", root.display())));
        }
    };
    if let Some(library) = &args.nvml {
        config.nvml = NvmlChoice::Library(library.clone());
    }
    Ok(config.with_child())
}

/// The bytes of a file, or of stdin for `-`.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let stdin = path == Path::new("-");
    let named =
        |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    let reader: Box<dyn Read> = if stdin {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(|e| named(&e))?)
    };
    let count = reader.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| named(&e))?;
    if u64::try_from(count).is_ok_and(|count| count > MOST_BYTES) {
        return Err(Failure::new(
            Exit::Usage,
            format!("{}: larger than {MOST_BYTES} bytes", path.display()),
        ));
    }
    Ok(bytes)
}
