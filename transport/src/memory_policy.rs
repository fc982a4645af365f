//! From which NUMA nodes new memory of this thread, and of the program it becomes, is taken.
//!
//! A preference, not a limit: where the nodes are full the kernel takes others, and a job is slower instead of dead.

mod ffi;

use std::io;

/// Most nodes that a mask here holds, as many as any kernel is built for (`CONFIG_NODES_SHIFT` up to 10).
const MOST_NODES: usize = 1024;

/// Nodes as the kernel takes them: bit by bit in words, the least first.
type NodeMask = [u64; MOST_NODES / 64];

/// Modes of <linux/mempolicy.h>. The one for several nodes is of Linux 5.15.
const DEFAULT: i32 = 0;
const PREFERRED: i32 = 1;
const PREFERRED_MANY: i32 = 5;

/// Whether somebody has given this thread a policy, as numactl does.
///
/// # Errors
/// Where the kernel has no NUMA, or a container's filter forbids the call.
pub fn has_memory_policy() -> io::Result<bool> {
    Ok(ffi::mode()? != DEFAULT)
}

/// Prefers memory of these nodes.
///
/// # Errors
/// Where the kernel does not have the nodes, or refuses the call: containers without `CAP_SYS_NICE` are often not let.
pub fn prefer_memory(nodes: &[u32]) -> io::Result<()> {
    let mut mask: NodeMask = [0; MOST_NODES / 64];
    for node in nodes {
        let node = *node as usize;
        let word = mask.get_mut(node / 64).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node % 64);
    }
    let mode = if nodes.len() > 1 { PREFERRED_MANY } else { PREFERRED };
    ffi::set(mode, &mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::thread;

    /// Read back from the kernel: the policy is a thread's own, and shows on the pages of what it has.
    #[test]
    fn a_preference_is_kept_by_the_kernel() {
        let tried = thread::spawn(|| {
            let before = has_memory_policy()?;
            prefer_memory(&[0])?;
            let maps = fs::read_to_string("/proc/thread-self/numa_maps").unwrap_or_default();
            Ok::<_, io::Error>((before, has_memory_policy()?, maps))
        });
        match tried.join().unwrap() {
            Ok((before, after, maps)) => {
                assert!(!before && after);
                assert!(maps.is_empty() || maps.contains("prefer:0"), "{maps}");
            }
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}")
            }
        }
        assert!(prefer_memory(&[5000]).is_err());
        assert!(!has_memory_policy().unwrap_or(false), "another thread's is its own");
    }
}
