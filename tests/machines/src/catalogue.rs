//! Known machines, from what their makers and users have published.
//!
//! Wiring, addresses, processors and CPU numbering are as in public listings of such machines. Where a listing
//! does not show something (ports within a PCIe switch, the order of link numbers), it is filled in so that
//! what the listing does show comes out.

mod dgx1;
mod dgx2;
mod dgx_a100;
mod dgx_b200;
mod dgx_h100;
mod gb200;
mod mi300x;
mod models;
mod pcie;

pub use dgx_a100::{dgx_a100, dgx_a100_four_nics, dgx_a100_mig};
pub use dgx_b200::dgx_b200;
pub use dgx_h100::dgx_h100;
pub use dgx1::{dgx1p, dgx1v};
pub use dgx2::dgx2;
pub use gb200::gb200_tray;
pub use mi300x::mi300x;
pub use pcie::{nvlink_bridges, pcie_one_socket, pcie_switches, pcie_two_sockets, vm_flat};

use crate::Machine;

/// Every machine here.
#[must_use]
pub fn all() -> Vec<Machine> {
    vec![
        dgx1p(),
        dgx1v(),
        dgx2(),
        dgx_a100(),
        dgx_a100_four_nics(),
        dgx_a100_mig(),
        dgx_b200(),
        dgx_h100(),
        gb200_tray(),
        mi300x(),
        nvlink_bridges(),
        pcie_one_socket(),
        pcie_switches(),
        pcie_two_sockets(),
        vm_flat(),
    ]
}
