//! The C symbols.
//!
//! What pointers point to is what the caller of a C function promises. Objects are known by their address, and one that is none (for it was
//! destroyed, or never was) is refused without being looked at.
#![expect(
    unsafe_code,
    reason = "these are the C symbols of a library that callers load at run time"
)]
#![expect(unreachable_pub, reason = "the linker reaches them")]

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use crate::errno::Errno;
use crate::fabric::Address;

mod completion;
mod control;
mod device;
mod event;
mod memory;
mod queue_pair;
mod words;

/// The value at a pointer of the caller's.
fn read<T: Copy>(pointer: *const T) -> Result<T, Errno> {
    if pointer.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: not null, and the caller promises a value.
    Ok(unsafe { pointer.read_unaligned() })
}

/// The elements of an array of the caller's.
fn read_all<T: Copy>(pointer: *const T, count: c_int) -> Result<Vec<T>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
    // SAFETY: the caller promises so many elements; `read` looks at each.
    (0..count).map(|index| read(pointer.wrapping_add(index))).collect()
}

/// Writes a value to a place of the caller's.
fn write<T>(pointer: *mut T, value: T) -> Result<(), Errno> {
    if pointer.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: not null, and the caller promises room for a value; it may hold none yet.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Writes the beginning of a value, as much as the caller has room for.
fn write_start<T: Copy>(pointer: *mut T, value: &T, room: usize) -> Result<(), Errno> {
    if pointer.is_null() {
        return Err(Errno::INVALID);
    }
    let length = room.min(size_of::<T>());
    // SAFETY: not null, the caller promises that much room, and the value has as much.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast::<u8>(),
            pointer.cast(),
            length,
        );
    }
    Ok(())
}

fn address<T>(pointer: *const T) -> Address {
    pointer.expose_provenance()
}

fn pointer<T>(address: Address) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Gives a structure to the caller, known by its address from now on.
fn give<T>(value: T) -> Address {
    address(Box::into_raw(Box::new(value)))
}

/// Frees what [`give`] gave.
fn take_back<T>(address: Address) {
    // SAFETY: callers found the address among those that were given as this type and not taken back, and removed it there.
    drop(unsafe { Box::from_raw(pointer::<T>(address)) });
}

fn set_errno(errno: Errno) {
    // SAFETY: the C library's place for this thread's number.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; it lives as long as the thread.
    unsafe { place.write(errno.0) };
}

/// As calls answer that give an object.
fn object<T>(result: Result<Address, Errno>) -> *mut T {
    result.map_or_else(
        |errno| {
            set_errno(errno);
            std::ptr::null_mut()
        },
        pointer,
    )
}

/// As calls answer that return an error number, and set it too.
fn number(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            set_errno(errno);
            errno.0
        },
        |()| 0,
    )
}

/// As calls answer that return -1.
fn minus_one(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            set_errno(errno);
            -1
        },
        |()| 0,
    )
}

/// Has a function called when the process ends.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function takes nothing and lives as long as this library, which runs a thread and is never unloaded.
    unsafe { libc::atexit(function) };
}

/// Has this library stay in memory until the process ends: who loaded it may give it up while its thread runs, or is about to.
pub(crate) fn stay() {
    let Some(path) = own_path() else { return };
    let Ok(path) = CString::new(path.into_os_string().into_vec()) else { return };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: it is loaded already, so nothing is run.
    unsafe { libc::dlopen(path.as_ptr(), flags) };
}

/// Where this library was loaded from.
pub(crate) fn own_path() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let here = at_exit as *const c_void;
    // SAFETY: an address in this library, and room for the answer.
    let found = unsafe { libc::dladdr(here, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: it succeeded, so the answer is there.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a terminated text that lives as long as the library.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
