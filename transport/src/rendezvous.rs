//! How the ranks of a communicator find each other.
//!
//! ```text
//!   rank 0   listens: at host:port (tcp, env) or anywhere, its address in a file (file)
//!   rank r   connects, sends what it holds and where it can be reached
//!   rank 0   compares; once all are in, tells everybody where everybody is. Or why not
//! ```
//!
//! A rank that holds another plan, generation or setting is refused on every rank, both named; so is a second process
//! for one rank. After the time limit everybody is told who is missing. The traffic is neither encrypted nor
//! authenticated: the place must be one that only the job can reach.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use topology::Rank;

use crate::error::{ConnectError, Refusal};
use crate::host::Host;
use crate::link::verbs::Port;
use crate::survivors;

mod client;
mod place;
pub(crate) use place::listen;
mod server;
#[cfg(test)]
mod tests;

/// Changes whenever the messages do.
const PROTOCOL: &str = "topod-rendezvous-2";

/// Where ranks meet: `tcp://host:port`, `file:///path` or `env://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    kind: Kind,
    own_place: Option<OwnPlace>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Tcp { host: String, port: u16 },
    File(PathBuf),
}

/// Where launchers put the rank and the number of ranks: torchrun, Open MPI (mpirun(1)), MPICH's Hydra and Intel MPI, Slurm
/// (srun(1)).
const PLACES: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Which rank of how many the environment says this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPlace {
    /// `RANK`, or what the launcher calls it.
    pub rank: Rank,
    /// `WORLD_SIZE`, or what the launcher calls it.
    pub ranks: u32,
}

/// Text that names no rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no rendezvous: {why}")]
pub struct InvalidRendezvous {
    /// As given.
    pub text: String,
    /// What is wrong.
    pub why: String,
}

impl Rendezvous {
    /// `env://` with variables from `lookup`: `MASTER_ADDR` and `MASTER_PORT` say where rank 0 listens, `RANK` and `WORLD_SIZE`
    /// who this process is. These are the names torchrun sets; where the last two are missing, those of Open MPI's mpirun
    /// (`OMPI_COMM_WORLD_RANK`), of MPICH's and Intel's (`PMI_RANK`) and of Slurm's srun (`SLURM_PROCID`) are taken.
    ///
    /// # Errors
    /// Where one is missing or no number.
    pub fn from_variables(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidRendezvous> {
        let invalid = |why| InvalidRendezvous { text: "env://".to_owned(), why };
        let text = |name: &str| lookup(name).ok_or_else(|| invalid(format!("{name} is not set")));
        let number = |name: &str| {
            let text = text(name)?;
            text.parse::<u32>().map_err(|_| invalid(format!("{name}={text} is no number")))
        };
        let set = |(rank, ranks): &&(&str, &str)| lookup(rank).is_some() || lookup(ranks).is_some();
        let Some((rank_name, ranks_name)) = PLACES.iter().find(set) else {
            let known: Vec<_> = PLACES.iter().map(|(rank, _)| *rank).collect();
            let why =
                format!("none of {} is set: no launcher says which rank this is", known.join(", "));
            return Err(invalid(why));
        };
        let (rank, ranks) = (number(rank_name)?, number(ranks_name)?);
        if rank >= ranks {
            return Err(invalid(format!("{rank_name}={rank} is not below {ranks_name}={ranks}")));
        }
        let port = number("MASTER_PORT")?;
        let port = u16::try_from(port)
            .ok()
            .filter(|p| *p != 0)
            .ok_or_else(|| invalid(format!("MASTER_PORT={port} is no port")))?;
        Ok(Self {
            kind: Kind::Tcp { host: text("MASTER_ADDR")?, port },
            own_place: Some(OwnPlace { rank: Rank(rank), ranks }),
        })
    }

    /// Which rank the environment says this is; `None` unless the rendezvous is `env://`.
    #[must_use]
    pub const fn own_place(&self) -> Option<OwnPlace> {
        self.own_place
    }

    /// Whether it can be reached from this host alone.
    pub(crate) fn is_local(&self) -> bool {
        matches!(&self.kind, Kind::Tcp { host, .. } if place::is_loopback(host))
    }
}

impl FromStr for Rendezvous {
    type Err = InvalidRendezvous;

    fn from_str(text: &str) -> Result<Self, InvalidRendezvous> {
        let invalid = |why: &str| InvalidRendezvous { text: text.to_owned(), why: why.to_owned() };
        if text == "env://" {
            return Self::from_variables(|name| std::env::var(name).ok());
        }
        let kind = if let Some(path) = text.strip_prefix("file://") {
            if path.is_empty() {
                return Err(invalid("no path"));
            }
            Kind::File(PathBuf::from(path))
        } else if let Some(place) = text.strip_prefix("tcp://") {
            let (host, port) = place.rsplit_once(':').ok_or_else(|| invalid("no port"))?;
            let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
            let port = port.parse().ok().filter(|p| *p != 0);
            match port {
                Some(port) if !host.is_empty() => Kind::Tcp { host: host.to_owned(), port },
                Some(_) => return Err(invalid("no host")),
                None => return Err(invalid("the port is no number from 1 to 65535")),
            }
        } else {
            return Err(invalid("known are tcp://HOST:PORT, file://PATH and env://"));
        };
        Ok(Self { kind, own_place: None })
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Kind::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Kind::File(path) => write!(f, "file://{}", path.display()),
        }
    }
}

/// What a rank brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Join {
    protocol: String,
    pub(crate) rank: Rank,
    /// What must be equal on all ranks, by name.
    claims: Vec<(String, String)>,
    reach: Reach,
}

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reach {
    pub(crate) host: Host,
    /// Where it listens for TCP links.
    pub(crate) port: u16,
    /// Where it listens for links in shared memory: a Unix socket's abstract name.
    pub(crate) unix: String,
    /// Where it wants to be reached by other hosts; by default where rank 0 sees it.
    pub(crate) address: Option<IpAddr>,
    /// Its RDMA ports, where links are chosen by what there is; else why there are none for that.
    pub(crate) rdma: Result<Vec<Port>, String>,
}

impl Join {
    pub(crate) fn new(rank: Rank, claims: Vec<(String, String)>, reach: Reach) -> Self {
        Self { protocol: PROTOCOL.to_owned(), rank, claims, reach }
    }

    pub(crate) const fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The first claim on which two ranks differ.
    pub(crate) fn differs(&self, other: &Self) -> Option<Refusal> {
        let protocol = |join: &Self| ("rendezvous protocol".to_owned(), join.protocol.clone());
        let claims =
            |join: &Self| std::iter::once(protocol(join)).chain(join.claims.clone()).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = (claims(self), claims(other));
        let pairs = ours.into_iter().zip(theirs);
        for ((what, a_value), (_, b_value)) in pairs {
            if a_value != b_value {
                return Some(Refusal::Differs {
                    what,
                    a: self.rank,
                    a_host: self.reach.host.name.clone(),
                    a_value,
                    b: other.rank,
                    b_host: other.reach.host.name.clone(),
                    b_value,
                });
            }
        }
        None
    }
}

/// What rank 0 answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    /// Not all are in yet.
    Waiting {
        missing: Vec<Rank>,
    },
    Welcome {
        session: u64,
        /// By rank.
        members: Vec<(Reach, SeenAt)>,
    },
    Refused(Refusal),
}

/// A rank's address as rank 0 sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SeenAt {
    Address(IpAddr),
    /// Where rank 0 is: over the loopback, which means nothing to others.
    WithRankZero,
}

/// Everybody, as this rank can reach them.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Same on all ranks, different in every other group: connections of another group are not taken for ours.
    pub(crate) session: u64,
    /// By rank.
    pub(crate) members: Vec<Member>,
}

impl Group {
    /// Ranks on the host of a rank, and the cores they have in all; every one of them finds the same.
    pub(crate) fn crowding(&self, rank: Rank) -> (usize, usize) {
        let host = &self.members[rank.index()].reach.host;
        let hosts = self.members.iter().map(|member| &member.reach.host);
        let near = hosts.filter(|other| other.boot == host.boot);
        (near.clone().count(), Host::cores_of(near))
    }
}

/// A rank as this one can reach it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) reach: Reach,
    pub(crate) address: IpAddr,
}

/// Brings `own` together with the other `ranks - 1`.
pub(crate) fn meet(
    rendezvous: &Rendezvous,
    ranks: usize,
    own: &Join,
    limit: Duration,
) -> Result<Group, ConnectError> {
    let deadline = Instant::now() + limit;
    if own.rank == Rank(0) {
        server::serve(rendezvous, ranks, own, deadline, limit)
    } else {
        client::join(|| place::candidates(rendezvous), rendezvous, own, deadline, limit)
    }
}

/// Brings together the ranks of a group that know each other already.
pub(crate) fn meet_at(
    place: &survivors::Place,
    ranks: usize,
    own: &Join,
    limit: Duration,
) -> Result<Group, ConnectError> {
    let deadline = Instant::now() + limit;
    match place {
        survivors::Place::Here(listener) => {
            let failed = |source| ConnectError::Serve {
                place: "the place of the lowest rank that lives".to_owned(),
                source,
            };
            server::serve_at(listener, &failed, ranks, own, deadline, limit)
        }
        survivors::Place::There(address) => {
            client::join(|| Ok(vec![*address]), address, own, deadline, limit)
        }
    }
}
