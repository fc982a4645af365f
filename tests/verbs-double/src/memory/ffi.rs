//! Reading and writing memory by address, as a NIC does beside the threads of a process.
#![expect(
    unsafe_code,
    reason = "a NIC's memory is what callers registered, known by address alone"
)]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use super::Piece;

const WORD: usize = size_of::<u64>();

fn byte<'a>(address: u64) -> &'a AtomicU8 {
    let pointer = std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0));
    // SAFETY: within a region that was registered and is mapped now, which who calls this has looked at; whoever registered memory lets a
    // NIC read and write it at any time. Atomic, for threads look at it meanwhile.
    unsafe { AtomicU8::from_ptr(pointer) }
}

fn word<'a>(address: u64) -> &'a AtomicU64 {
    let pointer = std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0));
    // SAFETY: as in `byte`, and callers give addresses that are multiples of 8.
    unsafe { AtomicU64::from_ptr(pointer) }
}

/// How many bytes to the next multiple of 8, at most so many.
fn to_boundary(address: u64, length: usize) -> usize {
    let over = usize::try_from(address % WORD as u64).unwrap_or(0);
    ((WORD - over) % WORD).min(length)
}

/// Writes bytes, whole words where they are aligned: who polls such a word sees it whole, and all that was written before.
pub(super) fn store(address: u64, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(to_boundary(address, bytes.len()));
    let mut next = address;
    let single = |bytes: &[u8], next: &mut u64| {
        for value in bytes {
            byte(*next).store(*value, Ordering::Release);
            *next += 1;
        }
    };
    single(head, &mut next);
    let (words, tail) = rest.as_chunks::<WORD>();
    for value in words {
        word(next).store(u64::from_ne_bytes(*value), Ordering::Release);
        next += WORD as u64;
    }
    single(tail, &mut next);
}

fn load(address: u64, length: usize, into: &mut Vec<u8>) {
    let (mut next, mut left) = (address, length);
    let head = to_boundary(next, left);
    for _ in 0..head {
        into.push(byte(next).load(Ordering::Relaxed));
        next += 1;
    }
    left -= head;
    for _ in 0..left / WORD {
        into.extend_from_slice(&word(next).load(Ordering::Relaxed).to_ne_bytes());
        next += WORD as u64;
    }
    for _ in 0..left % WORD {
        into.push(byte(next).load(Ordering::Relaxed));
        next += 1;
    }
}

/// The bytes of pieces one after another, and how many pieces were not there any more, for which there are zeros.
pub(crate) fn gather(pieces: &[Piece]) -> (Vec<u8>, u64) {
    // Whoever posted the request wrote these before, on another thread perhaps.
    fence(Ordering::Acquire);
    let (mut bytes, mut lost) = (Vec::new(), 0);
    for piece in pieces {
        let length = usize::try_from(piece.length).unwrap_or(0);
        if mapped(*piece) {
            bytes.reserve(length);
            load(piece.start, length, &mut bytes);
        } else {
            bytes.resize(bytes.len() + length, 0);
            lost += 1;
        }
    }
    (bytes, lost)
}

/// A part of a descriptor's memory, mapped while this lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: usize,
    length: usize,
}

impl Mapping {
    /// So many bytes from a multiple of pages on, to read and write; where that is not all there, an error.
    pub(crate) fn of(fd: RawFd, start: u64, length: u64) -> io::Result<Self> {
        if fd < 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the caller of the C function lends the descriptor for the call; one that is none is an error.
        let lent = unsafe { BorrowedFd::borrow_raw(fd) };
        let size = u64::try_from(rustix::fs::fstat(lent)?.st_size).unwrap_or(0);
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let wrong = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let length = usize::try_from(length).map_err(wrong)?;
        let start = i64::try_from(start).map_err(wrong)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let place = unsafe {
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, fd, start)
        };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address: place.expose_provenance(), length })
    }

    pub(crate) const fn start(&self) -> u64 {
        self.address as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let place = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: mapped by this and not unmapped; the region whose it is has gone.
        unsafe { libc::munmap(place, self.length) };
    }
}

/// What a library tells who knows device memory: where a range can be reached, or 0.
type PeerMemory = unsafe extern "C" fn(u64, u64) -> u64;

/// Asks the libraries of this process that know device memory, as modules of the kernel are asked.
pub(crate) fn peer(address: u64, length: u64) -> Option<u64> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    // SAFETY: the function takes what it is given, and it lives for the call.
    unsafe { libc::dl_iterate_phdr(Some(name), (&raw mut names).cast()) };
    names.iter().find_map(|name| {
        let name = CStr::from_bytes_with_nul(name).ok()?;
        // SAFETY: it is loaded already, so nothing is run.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if library.is_null() {
            return None;
        }
        // SAFETY: a library that is loaded.
        let found = unsafe { libc::dlsym(library, c"topodPeerMemory".as_ptr()) };
        let asked = (!found.is_null()).then(|| {
            // SAFETY: functions of this name have this signature.
            let ask = unsafe { std::mem::transmute::<*mut c_void, PeerMemory>(found) };
            // SAFETY: it takes any numbers.
            unsafe { ask(address, length) }
        });
        // SAFETY: opened once above; who loaded it has it open still.
        unsafe { libc::dlclose(library) };
        asked.filter(|place| *place != 0)
    })
}

/// Adds a library's name to those found.
unsafe extern "C" fn name(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    names: *mut c_void,
) -> c_int {
    // SAFETY: what `peer` passed.
    let names = unsafe { &mut *names.cast::<Vec<Vec<u8>>>() };
    // SAFETY: the loader's own, for the call.
    let name = unsafe { (*info).dlpi_name };
    if !name.is_null() {
        // SAFETY: a terminated text.
        let name = unsafe { CStr::from_ptr(name) };
        if !name.is_empty() {
            names.push(name.to_bytes_with_nul().to_vec());
        }
    }
    0
}

/// Whether all of a piece is mapped. A real NIC goes on with the pages it pinned, which nobody else sees any more.
pub(crate) fn mapped(piece: Piece) -> bool {
    const PAGE: u64 = 4096;
    if piece.length == 0 {
        return true;
    }
    let first = piece.start / PAGE * PAGE;
    let length = (piece.start + piece.length).next_multiple_of(PAGE) - first;
    let Ok(pages) = usize::try_from(length / PAGE) else { return false };
    let mut resident = vec![0_u8; pages];
    let start = std::ptr::with_exposed_provenance_mut(usize::try_from(first).unwrap_or(0));
    let length = usize::try_from(length).unwrap_or(0);
    // SAFETY: it looks at page tables alone, and the answer has a byte for each page.
    unsafe { libc::mincore(start, length, resident.as_mut_ptr()) == 0 }
}
