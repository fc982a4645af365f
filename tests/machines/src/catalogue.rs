//! Known machines, from what their makers and users have published.
//!
//! Wiring, addresses, processors and CPU numbering are as in public listings of such machines. Where a listing does
//! not show something (ports within a PCIe switch, the order of link numbers), it is filled in so that what the listing does show
//! comes out.

mod dgx1;
mod models;

pub use dgx1::{dgx1p, dgx1v};

use crate::Machine;

/// Every machine here.
#[must_use]
pub fn all() -> Vec<Machine> {
    vec![dgx1p(), dgx1v()]
}
