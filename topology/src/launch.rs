//! What the tasks of a job are told and given on a host: variables, CPUs, memory, NICs.
//!
//! ```text
//!   CUDA_VISIBLE_DEVICES ── visible ──▶ the GPU of each local rank ── bind ──▶ CPUs and memory of its own
//!                                                                 └─ nics ──▶ ports beside it
//!   facts of the host ── exports ──▶ name, value and reason of each variable ── quote ──▶ text for a shell
//! ```
//!
//! All of it is advice: what a user has set stays, and what is not known is left to the runtime and said. A local rank, a CUDA
//! ordinal and an NVML index are three numbers; nothing here takes one for another.

mod binding;
mod cores;
mod exports;
mod local_rank;
mod nics;
mod quote;
mod ranks;
mod slurm;
mod visible;

pub use binding::{Binding, bind};
pub use exports::{Export, ExportOptions, Exports, exports};
pub use local_rank::{LocalPlace, NotALocalRank, local_place, task_gpus};
pub use nics::near_nics;
pub use quote::{comment, is_variable_name, quote};
pub use ranks::{RankHost, hostfile, rank_hosts, rankfile, slurm_hostfile, torchrun_order};
pub use slurm::slurm_gres;
pub use visible::{Visible, visible};
