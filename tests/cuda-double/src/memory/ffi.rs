//! Shared memory: reservations of addresses, files without a name, and the bytes in them.
//!
//! What a device does to memory is not ordered with what the host or another device does but by events and flags. So bytes are
//! moved as they are and nothing is promised of those that others write meanwhile.
#![expect(unsafe_code, reason = "maps memory that other processes share")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a page of this system.
pub(crate) fn page() -> u64 {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

fn at(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

fn size(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// Maps, and the address as a number.
fn map(
    address: u64,
    length: u64,
    access: i32,
    flags: i32,
    file: RawFd,
    offset: u64,
) -> io::Result<u64> {
    let offset = i64::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: fixed places are given only within a reservation of this file, whose pages are nobody else's.
    let place =
        unsafe { libc::mmap(at(address).cast(), size(length), access, flags, file, offset) };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(place.expose_provenance() as u64)
}

/// Addresses that are taken and that nobody can read or write.
pub(crate) fn reserve(length: u64) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    map(0, length, libc::PROT_NONE, flags, -1, 0)
}

/// Lays a file over reserved addresses. Both are multiples of a page.
pub(crate) fn map_file(address: u64, length: u64, file: &File) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map(address, length, access, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), 0)
        .map(|_| ())
}

/// Makes addresses within a reservation untouchable again.
pub(crate) fn unmap(address: u64, length: u64) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    map(address, length, libc::PROT_NONE, flags, -1, 0).map(|_| ())
}

/// Lets a page of a reservation be read and written; whether that is possible. Safe to call from a signal's handler.
pub(crate) fn open_page(address: u64) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a page that nobody else uses: within a reservation, and in no allocation, for that would have been readable.
    unsafe { libc::mprotect(at(address).cast(), size(page()), access) == 0 }
}

/// Maps a part of a file where there is room.
pub(crate) fn map_anywhere(length: u64, file: &File, offset: u64) -> io::Result<u64> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map(0, length, access, libc::MAP_SHARED, file.as_raw_fd(), offset)
}

/// Memory of the host alone.
pub(crate) fn map_host(length: u64) -> io::Result<u64> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    map(0, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
}

/// Gives back what `map_anywhere` or `map_host` gave.
pub(crate) fn give_back(address: u64, length: u64) {
    // SAFETY: a whole mapping that this file made, and whose owner is being dropped.
    unsafe { libc::munmap(at(address).cast(), size(length)) };
}

/// A file without a name, of that many zero bytes.
pub(crate) fn unnamed(length: u64) -> io::Result<File> {
    // SAFETY: a terminated name and known flags.
    let file = unsafe { libc::memfd_create(c"cuda-double".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    let file = unsafe { File::from_raw_fd(file) };
    file.set_len(length)?;
    Ok(file)
}

/// Opens such a file of another process; an error where that process no longer has it.
pub(crate) fn open_of(process: u32, descriptor: i32, inode: u64) -> io::Result<File> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.ino() != inode {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(file)
}

/// Another descriptor of the same file, for a caller to close.
pub(crate) fn duplicate(file: &File) -> io::Result<RawFd> {
    use std::os::fd::IntoRawFd as _;
    Ok(file.try_clone()?.into_raw_fd())
}

/// Moves bytes; the places may overlap. Each is within a mapping that the caller holds, or is host memory that the C caller
/// of the driver vouched for.
pub(crate) fn copy(to: u64, from: u64, length: u64) {
    // SAFETY: as above.
    unsafe { ptr::copy(at(from), at(to), size(length)) };
}

/// Sets bytes of a place as `copy` takes it.
pub(crate) fn fill(to: u64, byte: u8, length: u64) {
    // SAFETY: as for `copy`.
    unsafe { ptr::write_bytes(at(to), byte, size(length)) };
}

/// Sets words of 32 bits of a place as `copy` takes it, which is a multiple of 4.
pub(crate) fn fill_words(to: u64, word: u32, words: u64) {
    for index in 0..words {
        // SAFETY: as for `copy`; aligned.
        unsafe { ptr::write_volatile(at(to + 4 * index).cast(), word) };
    }
}

/// Bytes of a place as `copy` takes it.
pub(crate) fn bytes(from: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; size(length)];
    // SAFETY: as for `copy`; the vector is as long.
    unsafe { ptr::copy(at(from), bytes.as_mut_ptr(), size(length)) };
    bytes
}

/// Writes bytes to a place as `copy` takes it.
pub(crate) fn put_bytes(to: u64, bytes: &[u8]) {
    // SAFETY: as for `copy`.
    unsafe { ptr::copy(bytes.as_ptr(), at(to), bytes.len()) };
}

/// A word that other processes may change, within a mapping that the caller holds. `address` is a multiple of 4.
pub(crate) fn word32<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: as above; any bits are a value, and all that race on it are atomic or by another process.
    unsafe { AtomicU32::from_ptr(at(address).cast()) }
}

/// As `word32`, a multiple of 8.
pub(crate) fn word64<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: as for `word32`.
    unsafe { AtomicU64::from_ptr(at(address).cast()) }
}
