//! Calls of the host's build of the kernels.
#![expect(unsafe_code, reason = "loads and calls what a C++ compiler made")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::ptx::Parameter;

/// Beside those that say which block, and how many blocks and threads there are.
pub(crate) const MOST_PARAMETERS: usize = 13;

/// Words that a call passes.
const WORDS: usize = 16;

type Word = u64;

/// Integers and addresses are passed alike, in registers and then in words of the stack, by the calling conventions of 64-bit
/// Linux on x86 and Arm; a function that takes fewer never looks at the rest.
type Any = unsafe extern "C" fn(
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
    Word,
);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Code(Any);

/// Finds a function in a library, which stays loaded.
pub(crate) fn find(library: &Path, name: &str) -> Result<Code, String> {
    static LOADED: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = match loaded.get(library) {
        Some(handle) => *handle,
        None => {
            let path = CString::new(library.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
            // SAFETY: a terminated path; a build of the kernels has no initialisers.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if handle.is_null() {
                return Err(last_error());
            }
            let handle = handle.expose_provenance();
            loaded.insert(library.to_owned(), handle);
            handle
        }
    };
    let symbol = CString::new(name).map_err(|error| error.to_string())?;
    let handle: *mut c_void = std::ptr::with_exposed_provenance_mut(handle);
    // SAFETY: a library that is loaded and a terminated name.
    let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    if address.is_null() {
        return Err(format!("{} has no {name}", library.display()));
    }
    // SAFETY: what the source defines under such a name is a function of integers and addresses.
    Ok(Code(unsafe { std::mem::transmute::<*mut c_void, Any>(address) }))
}

fn last_error() -> String {
    // SAFETY: asks for a text of this thread's last error.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "it does not load".to_owned();
    }
    // SAFETY: a terminated text until the next such call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A kernel's parameters, as its host's build takes them.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// Of structures, at addresses that are multiples of 16: held here while words name them.
    _structures: Vec<Vec<u128>>,
    words: Vec<Word>,
}

impl Arguments {
    /// Structures go by address, numbers as they are.
    pub(crate) fn new(values: &[Vec<u8>], parameters: &[Parameter]) -> Self {
        let (mut structures, mut words) = (Vec::new(), Vec::new());
        for (value, parameter) in values.iter().zip(parameters) {
            if parameter.structure {
                let copied = value.chunks(16).map(|part| {
                    let mut whole = [0; 16];
                    whole[..part.len()].copy_from_slice(part);
                    u128::from_ne_bytes(whole)
                });
                let copied: Vec<u128> = copied.collect();
                words.push(copied.as_ptr().expose_provenance() as u64);
                structures.push(copied);
            } else {
                let mut whole = [0; 8];
                let length = value.len().min(8);
                whole[..length].copy_from_slice(&value[..length]);
                words.push(u64::from_ne_bytes(whole));
            }
        }
        Self { _structures: structures, words }
    }
}

impl Code {
    /// Runs it with some words before the kernel's own. Addresses in the parameters are ones that the double reads.
    pub(crate) fn run(self, before: &[u32], arguments: &Arguments) {
        let mut words = [0; WORDS];
        let all =
            before.iter().map(|word| Word::from(*word)).chain(arguments.words.iter().copied());
        words.iter_mut().zip(all).for_each(|(word, value)| *word = value);
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = words;
        // SAFETY: as `Any` says; the caller has checked what the function reads and writes.
        unsafe { (self.0)(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) };
    }
}
