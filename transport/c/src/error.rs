//! Statuses and their words, and the ways in and out of C that check what can be checked.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use transport::{ConnectError, InvalidSetting, TransportError, with_causes};
use transport_daemon::DaemonError;

/// What became of a call.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It did what it says.
    Ok = 0,
    /// An argument makes no sense; nothing was sent.
    Invalid = 1,
    /// The ranks did not come together, or do not hold the same plan and settings.
    Connect = 2,
    /// A rank died, fell silent or did something else: the group is broken, on every rank.
    Failed = 3,
    /// The group was broken before; nothing was sent.
    Unusable = 4,
    /// Ranks did not come to a monitored barrier; the group is as usable as before.
    Missing = 5,
    /// No memory for a registered buffer.
    NoMemory = 6,
    /// The operation is not done yet.
    NotDone = 7,
    /// No daemon answers, or it has no such plan.
    Daemon = 8,
    /// The plan cannot be read, or has no channels for the operation; nothing was sent.
    Plan = 9,
    /// A defect of this library.
    Internal = 10,
}

/// A status with its words.
#[derive(Debug)]
pub(crate) struct Error {
    status: Status,
    words: String,
}

impl Error {
    pub(crate) fn new(status: Status, words: impl Into<String>) -> Self {
        Self { status, words: words.into() }
    }

    pub(crate) fn invalid(words: impl Into<String>) -> Self {
        Self::new(Status::Invalid, words)
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Self {
        let status = match &error {
            TransportError::Failed(_) => Status::Failed,
            TransportError::Unusable(_) => Status::Unusable,
            TransportError::Missing { .. } => Status::Missing,
            TransportError::NoMemory { .. } => Status::NoMemory,
            TransportError::Schedule(_) => Status::Plan,
            _ => Status::Invalid,
        };
        Self::new(status, with_causes(&error))
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        let status = match &error {
            ConnectError::NoSuchRank { .. }
            | ConnectError::Options(_)
            | ConnectError::Sizing(_) => Status::Invalid,
            ConnectError::Schedule(_) => Status::Plan,
            _ => Status::Connect,
        };
        Self::new(status, with_causes(&error))
    }
}

impl From<InvalidSetting> for Error {
    fn from(error: InvalidSetting) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<DaemonError> for Error {
    fn from(error: DaemonError) -> Self {
        Self::new(Status::Daemon, with_causes(&error))
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call, keeps its words, and keeps panics inside.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Error>) -> Status {
    let ended = catch_unwind(AssertUnwindSafe(call));
    let Error { status, words } = match ended {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(error)) => error,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            let words = format!("a defect of the library: {}", said.unwrap_or_default());
            Error::new(Status::Internal, words)
        }
    };
    let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| last.replace(words));
    status
}

/// The words to the last call of this thread that did not return TOPOD_STATUS_OK; never null. Valid until this thread calls
/// again.
#[unsafe(no_mangle)]
pub extern "C" fn topod_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// The library's version, as in "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn topod_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"unknown",
        };
    VERSION.as_ptr()
}

/// What a handle is of.
///
/// # Safety
/// Null, or a handle of this kind that was not freed.
pub(crate) unsafe fn borrow<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: By the caller's word.
    unsafe { handle.as_ref() }.ok_or_else(|| Error::invalid(format!("{what} is null")))
}

/// As [`borrow`], to change it.
///
/// # Safety
/// As [`borrow`], and no other thread uses it.
pub(crate) unsafe fn borrow_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Error> {
    // SAFETY: By the caller's word.
    unsafe { handle.as_mut() }.ok_or_else(|| Error::invalid(format!("{what} is null")))
}

/// Leaves a result where C wants it.
///
/// # Safety
/// Null, or valid for a write.
pub(crate) unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: By the caller's word.
        unsafe { place.write(value) }
    }
}

/// Leaves a new handle.
///
/// # Safety
/// Null, or valid for a write.
pub(crate) unsafe fn give_handle<T>(place: *mut *mut T, value: T) -> Result<(), Error> {
    if place.is_null() {
        return Err(Error::invalid("there is no place for the handle"));
    }
    // SAFETY: By the caller's word.
    unsafe { give(place, Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Takes a handle back.
///
/// # Safety
/// Null, or made by [`give_handle`] and not taken back before.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: By the caller's word.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// Text from C.
///
/// # Safety
/// Null, or a string that ends in a zero and lives as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::invalid(format!("{what} is null")));
    }
    // SAFETY: By the caller's word.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}

/// An array from C.
///
/// # Safety
/// `count` elements that live as long as the result is used; anything where `count` is 0.
pub(crate) unsafe fn array<'a, T>(
    first: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Error> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Error::invalid(format!("{what} is null or not aligned")));
    }
    // SAFETY: By the caller's word.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}
