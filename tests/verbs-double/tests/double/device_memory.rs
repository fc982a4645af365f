//! Memory of devices: by DMA-BUFs, and as a peer memory module registers it.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;

use libloading::Library;

use crate::abi::{Mr, SendWr, Sge, access, opcode, status, wc_opcode};
use crate::raw::{ALL, End, Verbs, at, bytes, errno, int, pair, request, to};

const PAGE: u64 = 4096;

/// Memory without a name, which stands for what a device's driver exports.
fn memory(pages: u64) -> File {
    let file = rustix::fs::memfd_create("device", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(file);
    file.set_len(pages * PAGE).unwrap();
    file
}

fn dma_buf(end: &End<'_>, offset: u64, length: u64, iova: u64, fd: i32, access: u32) -> *mut Mr {
    let fd = u64::from(fd.cast_unsigned());
    let words = [at(end.pd), offset, length, iova, fd, access.into()];
    to(end.verbs.call("ibv_reg_dmabuf_mr", &words))
}

fn keys(region: *mut Mr) -> (u32, u32) {
    assert!(!region.is_null(), "error {}", errno());
    // SAFETY: a region that was made and lives.
    let region = unsafe { &*region };
    (region.lkey, region.rkey)
}

fn read(file: &File, from: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, from).unwrap();
    bytes
}

/// Writes the left's first bytes to the right by a key, and reads them back from there to the left.
fn there_and_back(left: &mut End<'_>, address: u64, rkey: u32) {
    left.memory[..6].copy_from_slice(b"device");
    let from = [left.piece(0, 6)];
    let write = SendWr { remote_addr: address, rkey, ..request(opcode::RDMA_WRITE, &from) };
    assert_eq!(left.post(&write), 0);
    assert_eq!(left.await_polled(1)[0].status, status::SUCCESS);
    let into = [left.piece(100, 6)];
    let read = SendWr { remote_addr: address, rkey, ..request(opcode::RDMA_READ, &into) };
    assert_eq!(left.post(&read), 0);
    let wc = left.await_polled(1)[0];
    assert_eq!((wc.status, wc.opcode), (status::SUCCESS, wc_opcode::RDMA_READ));
    assert_eq!(bytes(left, 100, 6), b"device");
}

#[test]
fn a_dma_buf_is_reached_from_where_it_is_said_to_begin() {
    let verbs = Verbs::load("");
    let (mut left, right) = pair(&verbs, |_| {});
    let file = memory(3);
    // Nobody could touch memory at such an address.
    let iova = (7 << 40) + 512;
    let region = dma_buf(&right, PAGE + 512, PAGE, iova, file.as_raw_fd(), ALL);
    there_and_back(&mut left, iova + 100, keys(region).1);
    assert_eq!(read(&file, PAGE + 612, 6), b"device");
    // Its own end names it by the same addresses.
    let (lkey, piece) = (keys(region).0, left.memory.as_ptr().wrapping_add(200));
    let from = [Sge { addr: iova + 100, length: 6, lkey }];
    let write = SendWr {
        remote_addr: at(piece),
        rkey: left.keys().1,
        ..request(opcode::RDMA_WRITE, &from)
    };
    assert_eq!(right.post(&write), 0);
    assert_eq!(right.await_polled(1)[0].status, status::SUCCESS);
    assert_eq!(bytes(&left, 200, 6), b"device");
    let report = verbs.report();
    assert_eq!(
        (&report["registered"]["dma_buf"], &report["registered"]["host"]),
        (&1.into(), &2.into())
    );
    assert_eq!((&report["into_devices"], &report["from_devices"]), (&6.into(), &6.into()));
    assert_eq!(report["pinned_most"], 2 * PAGE, "nothing of a device's is locked");
    // The descriptor need not live; the region goes with its mapping.
    drop(file);
    there_and_back(&mut left, iova, keys(region).1);
    assert_eq!(int(verbs.call("ibv_dereg_mr", &[at(region)])), 0);
    left.destroy();
    right.destroy();
    assert_eq!(verbs.report()["misuse"], serde_json::json!([]));
}

#[test]
fn what_is_no_dma_buf_or_not_all_in_it_is_refused() {
    let verbs = Verbs::load("");
    let (_left, right) = pair(&verbs, |_| {});
    let file = memory(2);
    let refused = |offset, length, iova, fd, access, expected| {
        assert!(dma_buf(&right, offset, length, iova, fd, access).is_null());
        assert_eq!(errno(), expected);
    };
    let fd = file.as_raw_fd();
    refused(512, 100, 1024, fd, ALL, libc::EINVAL);
    refused(PAGE, 2 * PAGE, 0, fd, ALL, libc::EINVAL);
    refused(0, 0, 0, fd, ALL, libc::EINVAL);
    refused(0, PAGE, 0, -1, ALL, libc::EINVAL);
    refused(0, PAGE, 0, fd, access::REMOTE_WRITE, libc::EINVAL);
    let (pipe, _other) = std::io::pipe().unwrap();
    refused(0, PAGE, 0, pipe.as_raw_fd(), ALL, libc::EINVAL);
    verbs.set_faults("register:device=1");
    refused(0, PAGE, 0, fd, ALL, libc::ENOMEM);
    verbs.set_faults("call:ibv_reg_dmabuf_mr,code=95");
    refused(0, PAGE, 0, fd, ALL, libc::EOPNOTSUPP);
    let old = Verbs::load("DMA_BUF=0\n");
    let (_left, right) = pair(&old, |_| {});
    assert!(dma_buf(&right, 0, PAGE, 0, fd, ALL).is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
}

/// The double of CUDA's driver, with memory on its first device.
struct Gpu {
    library: Library,
    address: u64,
    _folder: tempfile::TempDir,
}

impl Gpu {
    fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = r#"{"memory": 1073741824, "count": 1}"#;
        std::fs::write(folder.path().join("cuda-double.json"), config).unwrap();
        let library = machines::install_cuda_double(folder.path()).unwrap();
        // SAFETY: the double has no initialisers.
        let library = unsafe { Library::new(library) }.unwrap();
        let mut gpu = Self { library, address: 0, _folder: folder };
        let mut context = 0_u64;
        gpu.call("cuInit", &[0]);
        gpu.call("cuDevicePrimaryCtxRetain", &[at(&raw mut context), 0]);
        gpu.call("cuCtxSetCurrent", &[context]);
        let mut address = 0_u64;
        gpu.call("cuMemAlloc_v2", &[at(&raw mut address), bytes]);
        gpu.address = address;
        gpu
    }

    #[track_caller]
    fn call(&self, name: &str, words: &[u64]) {
        type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64) -> u32;
        // SAFETY: the functions that are called take words, at most five.
        let function = unsafe { self.library.get::<Any>(name.as_bytes()) }.unwrap();
        let word = |index| words.get(index).copied().unwrap_or(0);
        // SAFETY: as above; places outlast the call.
        let code = unsafe { function(word(0), word(1), word(2), word(3), word(4)) };
        assert_eq!(code, 0, "{name}");
    }

    fn read(&self, from: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0_u8; length];
        self.call("cuMemcpyDtoH_v2", &[at(bytes.as_mut_ptr()), self.address + from, length as u64]);
        bytes
    }
}

#[test]
fn memory_of_a_gpu_is_reached_by_its_dma_buf_and_by_its_module() {
    let gpu = Gpu::new(4 * PAGE);
    for config in ["", "PEER_MEMORY=1\n"] {
        let verbs = Verbs::load(config);
        let (mut left, right) = pair(&verbs, |_| {});
        let by_address = |length: u64| {
            let words = [at(right.pd), gpu.address, length, ALL.into()];
            to::<Mr>(verbs.call("ibv_reg_mr", &words))
        };
        let region = if config.is_empty() {
            assert!(by_address(4 * PAGE).is_null(), "without a module it is no memory");
            assert_eq!(errno(), libc::EFAULT);
            let mut fd = -1_i32;
            let words = [at(&raw mut fd), gpu.address, 4 * PAGE, 1, 0];
            gpu.call("cuMemGetHandleForAddressRange", &words);
            // SAFETY: the call gave it, for its caller to close.
            let fd = unsafe { File::from_raw_fd(fd) };
            dma_buf(&right, 0, 4 * PAGE, gpu.address, fd.as_raw_fd(), ALL)
        } else {
            assert!(by_address(5 * PAGE).is_null(), "not all of it is the GPU's");
            by_address(4 * PAGE)
        };
        there_and_back(&mut left, gpu.address + PAGE, keys(region).1);
        gpu.call("cuFlushGPUDirectRDMAWrites", &[0, 100]);
        assert_eq!(gpu.read(PAGE, 6), b"device");
        assert_eq!(int(verbs.call("ibv_dereg_mr", &[at(region)])), 0);
        let kind = if config.is_empty() { "dma_buf" } else { "peer" };
        assert_eq!(verbs.report()["registered"][kind], 1);
        left.destroy();
        right.destroy();
    }
}
