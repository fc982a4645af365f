//! A tuner plugin for stock NCCL: which algorithm and protocol to take for which size, by a file.
//!
//! ```text
//!   NCCL ── init ──▶ the file is read, once a communicator; rows for its ranks and hosts stay
//!        ── getCollInfo ──▶ the first row that fits and that NCCL allows: its cell of the cost table becomes 0
//!        ── finalize or destroy ──▶ freed
//! ```
//!
//! The file is named by `TOPOD_TUNER_FILE`, else by `NCCL_TUNER_CONFIG_FILE`: rows as [`topology::nccl_tuner`] has them, or a plan
//! as `topoctl plan -o json` prints it. The answer follows from the file and what NCCL asks alone, so ranks that read equal files
//! answer alike; they must, or the job hangs, which is why init logs a digest of the rows. Without a file, with one that
//! cannot be read, and after a panic, NCCL goes by its own tuning: nothing here fails a job. There are no threads, and no call but
//! init reads a file.
//!
//! All versions of the interface that NCCL has had from 2.21 (v2) to 2.30 (v6) are exported; NCCL takes the newest it knows.

pub mod ffi;

mod table;

pub use table::{Question, Table};
