//! The system calls, which neither the standard library nor rustix has.
#![expect(unsafe_code, reason = "system calls by number")]

use std::io;
use std::ptr;

use super::{MOST_NODES, NodeMask};

/// What a call that gives 0 on success came to.
fn result(returned: libc::c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The mode of this thread's policy.
pub(super) fn mode() -> io::Result<i32> {
    let mut mode = 0_i32;
    let nowhere: *mut u64 = ptr::null_mut();
    // SAFETY: The kernel writes one int to `mode`, and no mask where it is told that there is no room for one.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            ptr::from_mut(&mut mode),
            nowhere,
            0_usize,
            0_usize,
            0_usize,
        )
    };
    result(returned)?;
    Ok(mode)
}

/// Sets this thread's policy.
pub(super) fn set(mode: i32, nodes: &NodeMask) -> io::Result<()> {
    // The kernel takes one bit less than it is told that there are.
    let bits = MOST_NODES + 1;
    // SAFETY: The kernel reads no more words of the mask than it has.
    let returned = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), bits) };
    result(returned)
}
