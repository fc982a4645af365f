//! What the kernel shows of RDMA devices in `/sys/class/infiniband`, as files elsewhere.

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::Path;

use crate::abi::gid_type;
use crate::device::{Device, GID_TABLE, Gid};

/// Writes the devices' folders: kind, and GIDs of the ports with their types.
///
/// # Errors
/// Where a file cannot be written.
pub(crate) fn write(folder: &Path, devices: &[Device]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for device in devices {
        let place = folder.join(&device.name);
        fs::create_dir_all(&place)?;
        fs::write(place.join("node_type"), "1: CA\n")?;
        for (number, port) in (1_u8..).zip(&device.ports) {
            let place = place.join("ports").join(number.to_string());
            for index in 0..GID_TABLE.max(port.gids.len()) {
                entry(&place, index, port.gids.get(index).copied().flatten())?;
            }
        }
    }
    Ok(())
}

/// One place of a table. The kernel shows zeros for the address of an empty one, and its type cannot be read.
fn entry(port: &Path, index: usize, gid: Option<Gid>) -> io::Result<()> {
    let (addresses, types) = (port.join("gids"), port.join("gid_attrs/types"));
    fs::create_dir_all(&addresses)?;
    fs::create_dir_all(&types)?;
    let address = Ipv6Addr::from(gid.map_or([0; 16], |gid| gid.bytes));
    let groups = address.segments().map(|group| format!("{group:04x}"));
    // Replaced whole, for a reader may be looking.
    let draft = port.join(format!("draft-{index}"));
    fs::write(&draft, groups.join(":") + "\n")?;
    fs::rename(&draft, addresses.join(index.to_string()))?;
    let Some(gid) = gid else { return Ok(()) };
    // The kernel has one name for InfiniBand and version 1.
    let name = if gid.kind == gid_type::ROCE_V2 { "RoCE v2\n" } else { "IB/RoCE v1\n" };
    fs::write(types.join(index.to_string()), name)
}
