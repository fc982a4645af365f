//! Addresses: where rank 0 listens, and where others look for it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Kind, PROTOCOL, Rendezvous};
use crate::host::Host;
use crate::variables::interfaces_here;

pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Listens on every address of both families, or the loopback alone.
pub(crate) fn listen(local: bool, port: u16) -> io::Result<TcpListener> {
    if local {
        return TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    }
    // A socket for both families where the kernel has IPv6, else IPv4 alone.
    let both = || -> io::Result<TcpListener> {
        let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None)?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    };
    both().or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

/// What rank 0 leaves in a file for the others.
#[derive(Debug, Serialize, Deserialize)]
struct Notice {
    protocol: String,
    host: Host,
    /// To be tried in order by ranks of other hosts.
    addresses: Vec<IpAddr>,
    port: u16,
}

/// Removes the file when the rendezvous is over, however it ends. (A killed process leaves it; the next one replaces it.)
#[derive(Debug)]
pub(super) struct Posted {
    path: PathBuf,
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "rendezvous file not removed");
        }
    }
}

/// Rank 0's listener, and the file that tells of it.
pub(super) fn open(
    rendezvous: &Rendezvous,
    chosen: Option<IpAddr>,
) -> io::Result<(TcpListener, Option<Posted>)> {
    match &rendezvous.kind {
        Kind::Tcp { port, .. } => {
            let local = rendezvous.is_local();
            // An IPv6 loopback is served by the socket for both families.
            let v6 = matches!(&rendezvous.kind, Kind::Tcp { host, .. } if host.contains(':'));
            Ok((listen(local && !v6, *port)?, None))
        }
        Kind::File(path) => {
            let listener = listen(false, 0)?;
            let notice = Notice {
                protocol: PROTOCOL.to_owned(),
                host: Host::this(),
                addresses: chosen.map_or_else(routable, |address| vec![address]),
                port: listener.local_addr()?.port(),
            };
            post(path, &notice)?;
            Ok((listener, Some(Posted { path: path.clone() })))
        }
    }
}

/// Writes the notice beside its place and moves it there, so that nobody reads half of it.
fn post(path: &Path, notice: &Notice) -> io::Result<()> {
    let json = serde_json::to_vec(notice)?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    let done = fs::write(&draft, json).and_then(|()| fs::rename(&draft, path));
    if done.is_err() {
        let _ = fs::remove_file(&draft);
    }
    done
}

/// This host's addresses towards other hosts: first the source addresses the kernel would use for a route out, then those of
/// its interfaces. No packet is sent.
fn routable() -> Vec<IpAddr> {
    let source = |any: IpAddr, out: IpAddr| -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((out, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    // Documentation addresses (RFC 5737, RFC 3849): routed by default, owned by nobody.
    let v4 = source(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let v6 =
        source(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    let mut all: Vec<IpAddr> = [v4, v6].into_iter().flatten().collect();
    // A host on a network of its own has no route out.
    let here = interfaces_here().unwrap_or_default();
    all.extend(here.into_iter().map(|found| found.address));
    let mut seen = BTreeSet::new();
    all.retain(|ip| !ip.is_loopback() && seen.insert(*ip));
    all
}

/// Where rank 0 may be, to be tried in order.
pub(super) fn candidates(rendezvous: &Rendezvous) -> io::Result<Vec<SocketAddr>> {
    match &rendezvous.kind {
        Kind::Tcp { host, port } => Ok((host.as_str(), *port).to_socket_addrs()?.collect()),
        Kind::File(path) => {
            let notice: Notice = serde_json::from_slice(&fs::read(path)?)?;
            if notice.protocol != PROTOCOL {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the file speaks {}, not {PROTOCOL}", notice.protocol),
                ));
            }
            let near = notice.host.shares_memory_with(&Host::this());
            let loopback = near.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let all = loopback.into_iter().chain(notice.addresses);
            Ok(all.map(|ip| SocketAddr::from((ip, notice.port))).collect())
        }
    }
}
