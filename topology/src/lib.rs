//! The vocabulary of topod. Pure: no IO, no clock, no environment, no threads, no hash order.
//!
//! ```text
//!   text of any format ── formats ──▶ Snapshot ── lower ──▶ Topology ── (planner) ──▶ Plan ── (transport) ──▶ Schedule
//!         facts, each optional           one clean graph           channels, bounds         steps per rank
//! ```
//!
//! [`Snapshot`] is what was read of a host and [`Fault`]s for what could not be; [`Topology`] the graph made
//! from one or several of them; [`Plan`] says which channels carry which collective; [`schedule::Schedule`] what each
//! rank does for one operation. Probing, planning and executing live in other crates and know this one alone.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod calibration;
pub mod dpu;
pub mod explain;
pub mod fabric;
pub mod formats;
pub mod health;
pub mod job_plan;
pub mod launch;
pub mod matrix;
pub mod msccl;
pub mod nccl_conf;
pub mod nccl_dialect;
pub mod nccl_diff;
pub mod nccl_graph;
pub mod nccl_hca;
pub mod nccl_log;
pub mod nccl_topo;
pub mod nccl_tuner;
pub mod plan;
pub mod rates;
pub mod rccl;
pub mod schedule;
pub mod snapshot;
pub mod ucc;
pub mod what_if;

mod bandwidth;
mod bus_id;
mod collective;
mod cpu_list;
mod finding;
mod fraction;
mod graph;
mod ids;
mod lower;
mod path_type;
mod paths;
mod words;

pub use bandwidth::Bandwidth;
pub use bus_id::{BusId, InvalidBusId};
pub use collective::{Algorithm, Collective, Executor, Protocol, UnknownName};
pub use cpu_list::{CpuList, InvalidCpuList};
pub use finding::{Finding, Severity};
pub use fraction::{Fraction, InvalidFraction};
pub use graph::{Link, LinkId, LinkKind, RateModel, Topology, Vertex, VertexId, VertexKind};
pub use ids::{Generation, GpuIndex, HostId, LocalRank, Rail, Rank};
pub use lower::{LowerError, Network, lower, lower_in};
pub use path_type::PathType;
pub use paths::{Hop, Path};
pub use plan::{Channel, Plan, PlanRequest};
pub use snapshot::{CpuArch, CpuModel, Fault, Gpu, Nic, Snapshot, Source};
