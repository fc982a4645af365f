//! The C symbols.
//!
//! Pointers of callers arrive as types that check for null and do nothing else: what they point to is what the caller of a C
//! function promises. Nothing unwinds into C: a panic becomes `CUDA_ERROR_UNKNOWN`.
#![expect(
    unsafe_code,
    reason = "these are the C symbols of a library that callers load at run time"
)]
#![expect(unreachable_pub, reason = "the linker reaches them")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::code::Code;

/// Defines the symbols of a file and how they are found by name.
macro_rules! entries {
    ($(fn $name:ident($driver:ident $(, $argument:ident: $kind:ty)* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $kind),*) -> u32 {
                $crate::driver::call(stringify!($name), move |$driver| $body)
            }
        )*

        /// The address of a symbol of this file.
        pub(super) fn symbol(name: &str) -> Option<*const std::ffi::c_void> {
            $(if name == stringify!($name) {
                return Some($name as *const std::ffi::c_void);
            })*
            None
        }
    };
}

mod context;
mod control;
mod copy;
mod device;
mod event;
mod ipc;
mod memory;
mod module;
mod stream;

/// A place that the caller lends for a result.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    fn put(self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller promises room for a value; it may hold none yet.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// For results that a caller need not want.
    fn put_if_wanted(self, value: T) {
        let _ = self.put(value);
    }

    fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// Arrays and values that the caller lends to read.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The element at a place of an array.
    fn at(self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller promises so many elements.
        let place = unsafe { self.0.add(index) };
        // SAFETY: as above.
        Ok(unsafe { place.read_unaligned() })
    }
}

/// A terminated text of the caller's.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(*const c_char);

impl Text {
    fn get<'a>(self) -> Result<&'a str, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller promises a terminated text that outlasts the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_VALUE)
    }
}

/// A buffer of the caller's for a text.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct TextOut(*mut c_char);

impl TextOut {
    /// Writes as much as fits, and a zero.
    fn put(self, text: &str, room: i32) -> Result<(), Code> {
        let room =
            usize::try_from(room).ok().filter(|room| *room > 0).ok_or(Code::INVALID_VALUE)?;
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        for (index, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
            // SAFETY: not null, and the caller promises that much room.
            let place = unsafe { self.0.add(index) };
            // SAFETY: as above.
            unsafe { place.write(c_char::from_ne_bytes([byte])) };
        }
        Ok(())
    }
}

/// A function of the caller's that a stream calls, and what it is given.
#[derive(Clone, Copy, Debug)]
struct HostFunction(extern "C" fn(*mut c_void), usize);

impl HostFunction {
    fn call(self) {
        (self.0)(std::ptr::with_exposed_provenance_mut(self.1));
    }
}

/// An address that a caller gave, as a number.
fn address(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// Has a function called when the process ends.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function takes nothing and lives as long as this library, which is never unloaded.
    unsafe { libc::atexit(function) };
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

/// A symbol by its whole name.
fn symbol(name: &str) -> Option<*const c_void> {
    let files = [
        context::symbol,
        control::symbol,
        copy::symbol,
        device::symbol,
        event::symbol,
        ipc::symbol,
        memory::symbol,
        module::symbol,
        stream::symbol,
    ];
    files.iter().find_map(|find| find(name)).or_else(|| control::early_symbol(name))
}
