//! Lowering: from facts of hosts to one clean graph.
//!
//! ```text
//!   facts                                      graph
//!   root port ─ switch ─ port ─ GPU            numa0 ─ 0000:01:00.0 ─ GPU0      ports vanish, a switch is one vertex
//!   NVLink table per GPU                       GPU0 ═ GPU1, or GPU0 ═ nvs0      directed, as each side lists them
//!   NIC with ports                             switch ─ mlx5_0 ─ fabric         all hosts' NICs meet in one fabric, or as a file tells
//!   matrix of classes                          the least tree with those classes
//! ```
//!
//! What the facts do not tell is filled by a documented default and listed in
//! [`Topology::assumptions`]; nothing is ever filled with 0.

pub(crate) mod builder;
mod devices;
mod link_graph;
mod matrix;
mod network;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;

use crate::{HostId, RateModel, Snapshot, Topology};
use builder::Builder;
pub use network::Network;
use network::Wiring;

/// Why facts make no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host {host}: {reason}")]
pub struct LowerError {
    /// Which snapshot, from 0.
    pub host: usize,
    /// What is wrong, in words.
    pub reason: String,
}

/// One graph of all hosts, in the order given (which is rank order).
///
/// # Errors
/// Where there is no host, the facts of one contradict each other, or a link graph is joined with other hosts
/// (it has no NICs to join by).
pub fn lower(hosts: &[Snapshot], rates: RateModel) -> Result<Topology, LowerError> {
    lower_in(hosts, rates, None)
}

/// The same, with the network between the hosts as a file tells it; without one, all NICs meet in one vertex that blocks nothing.
///
/// # Errors
/// As [`lower`], and where the network does not tell which of its ports a host's NICs are.
pub fn lower_in(
    hosts: &[Snapshot],
    rates: RateModel,
    network: Option<Network<'_>>,
) -> Result<Topology, LowerError> {
    if hosts.is_empty() {
        return Err(LowerError { host: 0, reason: "no host given".into() });
    }
    let wired = network.map(|network| Wiring::new(network, hosts)).transpose()?;
    let (wiring, assumed) = wired.unzip();
    let mut builder = Builder::new(rates, hosts.len() > 1, wiring);
    for (host, what) in assumed.into_iter().flatten() {
        builder.assume(host, &what);
    }
    for (place, snapshot) in hosts.iter().enumerate() {
        let refuse = |reason| LowerError { host: place, reason };
        let host = HostId(
            u32::try_from(place).map_err(|_| refuse(format!("more than {} hosts", u32::MAX)))?,
        );
        let done = if let Some(graph) = &snapshot.link_graph {
            if hosts.len() > 1 {
                return Err(refuse(
                    "a link graph is a whole fabric and cannot be one of several hosts".into(),
                ));
            }
            link_graph::lower(&mut builder, host, graph)
        } else if let Some(matrix) = &snapshot.matrix {
            matrix::lower(&mut builder, host, snapshot, matrix)
        } else {
            devices::lower(&mut builder, host, snapshot)
        };
        done.map_err(refuse)?;
    }
    builder.finish(hosts)
}
