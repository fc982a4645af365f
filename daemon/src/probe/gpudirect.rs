//! Whether NICs can reach GPU memory themselves (GPUDirect RDMA), as far as the kernel tells.
//!
//! There are two ways: a module that registers GPU memory with the RDMA stack (`nvidia_peermem`, formerly
//! `nv_peer_mem`), and DMA-BUF, which needs the driver's open flavour and a kernel from 5.12 on. NCCL looks at the same
//! files for the first (`ncclIbGdrSupport` in `src/transport/net_ib`); the second it asks of CUDA, which a probe does
//! not start.

use super::root::Root;

/// Modules that register GPU memory.
const MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// Where such a module, or the client it registers, shows.
const SIGNS: [&str; 3] = [
    "sys/module/nvidia_peermem/version",
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
];

/// The first kernel whose RDMA stack takes DMA-BUF.
const DMABUF_KERNEL: (u32, u32) = (5, 12);

/// Whether NVIDIA GPUs take part; `None` where the kernel does not tell its modules, or the GPUs are others'.
pub(super) fn read(root: &Root, kernel: Option<&str>) -> Option<bool> {
    let modules = root.read("proc/modules").ok();
    let loaded = |name: &str| {
        let names = modules.iter().flat_map(|text| text.lines());
        names.filter_map(|line| line.split_whitespace().next()).any(|other| other == name)
    };
    if SIGNS.iter().any(|sign| root.exists(sign)) || MODULES.into_iter().any(loaded) {
        return Some(true);
    }
    let driver = root.read("proc/driver/nvidia/version").ok();
    match driver {
        Some(driver) if driver.contains("Open Kernel Module") => {
            Some(release(kernel?)? >= DMABUF_KERNEL)
        }
        Some(_) => modules.map(|_| false),
        // Without NVIDIA's driver nothing reaches NVIDIA GPUs; of AMD's nothing is known here.
        None if loaded("amdgpu") => None,
        None => modules.map(|_| false),
    }
}

/// Major and minor number of `5.15.0-91-generic`.
fn release(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[track_caller]
    fn check(files: &[(&str, &str)], kernel: &str, expect: Option<bool>) {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(read(&Root::new(dir.path()), Some(kernel)), expect);
    }

    const MODULES_FILE: &str = "proc/modules";
    const DRIVER_FILE: &str = "proc/driver/nvidia/version";
    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat";
    const OPEN: &str =
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release";

    #[test]
    fn peermem() {
        let modules = "nvidia_peermem 16384 0 - Live 0x0\nnvidia 1 2 nvidia_peermem, Live 0x0\n";
        check(&[(MODULES_FILE, modules), (DRIVER_FILE, CLOSED)], "5.4.0", Some(true));
        check(&[(SIGNS[1], "1.3"), (DRIVER_FILE, CLOSED)], "5.4.0", Some(true));
        // A module that others use is not the module itself.
        let without = "nvidia 1 2 nvidia_uvm, Live 0x0\nnot_nvidia_peermem 1 0 - Live 0x0\n";
        check(&[(MODULES_FILE, without), (DRIVER_FILE, CLOSED)], "5.15.0", Some(false));
    }

    #[test]
    fn dma_buf_needs_the_open_driver_and_a_kernel() {
        let files = [(MODULES_FILE, "nvidia 1 2 - Live 0x0\n"), (DRIVER_FILE, OPEN)];
        check(&files, "5.15.0-91-generic", Some(true));
        check(&files, "5.4.0-1", Some(false));
        check(&files, "6.8.0", Some(true));
        check(&files, "unknown", None);
    }

    #[test]
    fn other_hosts() {
        check(&[], "6.8.0", None);
        check(&[(MODULES_FILE, "mlx5_core 1 0 - Live 0x0\n")], "6.8.0", Some(false));
        check(&[(MODULES_FILE, "amdgpu 1 0 - Live 0x0\n")], "6.8.0", None);
        check(&[(DRIVER_FILE, CLOSED)], "6.8.0", None);
    }
}
