//! What GPUDirect RDMA needs of the kernel: whether NICs can reach GPU memory themselves.
//!
//! There are two ways: a module that registers GPU memory with the RDMA stack (`nvidia_peermem`, formerly
//! `nv_peer_mem`), and DMA-BUF, which needs a driver that exports it and a kernel from 5.12 on. NCCL looks at the same
//! files for the first (`ncclIbGdrSupport` in `src/transport/net_ib`); the second it asks of CUDA, which a probe does
//! not start.

use std::io::Read as _;

use topology::snapshot::GpuDirectFacts;

use super::root::Root;

/// Modules that register GPU memory.
const MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// Where the clients that such modules register show.
const CLIENTS: [&str; 2] =
    ["sys/kernel/mm/memory_peers/nv_mem/version", "sys/kernel/mm/memory_peers/nv_mem_nc/version"];

/// The first kernel whose RDMA stack takes DMA-BUF.
const DMABUF_KERNEL: (u32, u32) = (5, 12);

/// The kernel option for DMA between devices.
const P2PDMA: &str = "CONFIG_PCI_P2PDMA";

/// Most bytes of a kernel's configuration; a full one has about 300 KiB.
const MOST_CONFIG: u64 = 4 << 20;

/// What the kernel tells; `None` where it tells nothing of its modules.
pub(super) fn read(root: &Root, kernel: Option<&str>) -> Option<GpuDirectFacts> {
    let modules = root.read("proc/modules").ok();
    let loaded = |name: &str| {
        let names = modules.iter().flat_map(|text| text.lines());
        names.filter_map(|line| line.split_whitespace().next()).any(|other| other == name)
    };
    let registered = CLIENTS.iter().any(|sign| root.exists(sign));
    let peermem = registered
        || root.exists("sys/module/nvidia_peermem/version")
        || MODULES.into_iter().any(loaded);
    let nvidia = root.read("proc/driver/nvidia/version").ok();
    let dma_buf_driver = match &nvidia {
        Some(driver) => Some(driver.contains("Open Kernel Module")),
        None if loaded("amdgpu") => Some(true),
        // Without a GPU driver nothing exports GPU memory.
        None => modules.as_ref().map(|_| false),
    };
    let facts = GpuDirectFacts {
        peermem_loaded: if peermem { Some(true) } else { modules.as_ref().map(|_| false) },
        // The directory of clients is beside others that every kernel has.
        peermem_registered: match registered {
            true => Some(true),
            false if !peermem => modules.as_ref().map(|_| false),
            false => root.exists("sys/kernel/mm").then_some(false),
        },
        dma_buf_driver,
        dma_buf_kernel: kernel.and_then(release).map(|release| release >= DMABUF_KERNEL),
        p2pdma: p2pdma(root, kernel),
    };
    (facts.peermem_loaded.is_some() || facts.dma_buf_driver.is_some()).then_some(facts)
}

/// Whether GPUs and NICs can do it at all, by either way; `None` where that is not known.
pub(super) fn possible(facts: &GpuDirectFacts) -> Option<bool> {
    let peermem = match (facts.peermem_loaded, facts.peermem_registered) {
        (_, Some(true)) | (Some(true), None) => Some(true),
        (Some(false), _) | (_, Some(false)) => Some(false),
        (None, None) => None,
    };
    let dma_buf = match (facts.dma_buf_driver, facts.dma_buf_kernel) {
        (Some(true), Some(true)) => Some(facts.p2pdma != Some(false)),
        (Some(false), _) | (_, Some(false)) => Some(false),
        _ => None,
    };
    match (peermem, dma_buf) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    }
}

/// Major and minor number of `5.15.0-91-generic`.
fn release(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// From the kernel's own configuration, or the copy that distributions install.
fn p2pdma(root: &Root, kernel: Option<&str>) -> Option<bool> {
    let own = root.read_bytes("proc/config.gz").ok().and_then(|bytes| {
        let mut text = String::new();
        let decoder = flate2::read::GzDecoder::new(bytes.as_slice());
        decoder.take(MOST_CONFIG).read_to_string(&mut text).ok().map(|_| text)
    });
    let text = own.or_else(|| root.read(&format!("boot/config-{}", kernel?)).ok())?;
    parse_option(&text, P2PDMA)
}

/// Whether an option is on; a configuration lists those that are off as comments, or not at all.
fn parse_option(text: &str, option: &str) -> Option<bool> {
    if !text.contains("CONFIG_") {
        return None;
    }
    let on = |line: &str| line.strip_prefix(option).is_some_and(|rest| rest.starts_with("=y"));
    Some(text.lines().any(on))
}

/// Feeds the parsers of this file.
pub(super) fn fuzz(text: &str) {
    let _ = parse_option(text, P2PDMA);
    let _ = release(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write as _;

    fn root(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (file, bytes) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let root = Root::new(dir.path());
        (dir, root)
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], kernel: &str, expect: Option<bool>) {
        let files: Vec<_> = files.iter().map(|(file, text)| (*file, text.as_bytes())).collect();
        let (_dir, root) = root(&files);
        let facts = read(&root, Some(kernel));
        assert_eq!(facts.as_ref().and_then(possible), expect, "{facts:?}");
    }

    const MODULES_FILE: &str = "proc/modules";
    const DRIVER_FILE: &str = "proc/driver/nvidia/version";
    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat";
    const OPEN: &str =
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release";
    const PEERMEM: &str =
        "nvidia_peermem 16384 0 - Live 0x0\nnvidia 1 2 nvidia_peermem, Live 0x0\n";

    #[test]
    fn peermem() {
        check(&[(MODULES_FILE, PEERMEM), (DRIVER_FILE, CLOSED)], "5.4.0", Some(true));
        check(&[(CLIENTS[0], "1.3"), (DRIVER_FILE, CLOSED)], "5.4.0", Some(true));
        // A module that others use is not the module itself.
        let without = "nvidia 1 2 nvidia_uvm, Live 0x0\nnot_nvidia_peermem 1 0 - Live 0x0\n";
        check(&[(MODULES_FILE, without), (DRIVER_FILE, CLOSED)], "5.15.0", Some(false));
    }

    /// In the list of modules, and not registered with the RDMA stack (NVIDIA/nccl#1939).
    #[test]
    fn field_case_056_loaded_is_not_registered() {
        let loaded = [(MODULES_FILE, PEERMEM), (DRIVER_FILE, CLOSED)];
        let beside = ("sys/kernel/mm/hugepages/x", "");
        check(&[loaded[0], loaded[1], beside], "5.15.0", Some(false));
        check(&[loaded[0], loaded[1], beside, (CLIENTS[0], "1")], "5.15.0", Some(true));
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
        check(&[(MODULES_FILE, "amdgpu 1 0 - Live 0x0\n")], "6.8.0", Some(true));
        check(&[(MODULES_FILE, "amdgpu 1 0 - Live 0x0\n")], "5.4.0", Some(false));
        check(&[(DRIVER_FILE, CLOSED)], "6.8.0", None);
    }

    /// A kernel without the option, from its compressed configuration and from the installed copy
    /// (siderolabs/pkgs#1356).
    #[test]
    fn field_case_058_kernel_options() {
        let check = |text: &str, expect: Option<bool>| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            let bytes = encoder.finish().unwrap();
            let of = |files: &[(&str, &[u8])]| {
                let (_dir, root) = root(files);
                p2pdma(&root, Some("6.8.0"))
            };
            assert_eq!(of(&[("proc/config.gz", &bytes)]), expect, "{text}");
            assert_eq!(of(&[("boot/config-6.8.0", text.as_bytes())]), expect, "{text}");
        };
        check("CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n", Some(true));
        check("CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n", Some(false));
        check("CONFIG_PCI=y\n", Some(false));
        check("nothing", None);
        let (_dir, damaged) = root(&[("proc/config.gz", b"\x1f\x8bnonsense")]);
        assert_eq!(p2pdma(&damaged, None), None);
    }
}
