//! libnccl, loaded at run time: what nccl.h declares of it, as far as it is compared with.
#![expect(unsafe_code, reason = "loads and calls NCCL")]

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::ffi::{Gpu, Memory};

/// `NCCL_UNIQUE_ID_BYTES`.
pub(crate) const ID_BYTES: usize = 128;

/// What its packages install.
const LIBRARY: &str = "libnccl.so.2";

/// `ncclFloat32` and `ncclSum`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

type Communicator = *mut c_void;
type Code = c_int;
type LastError = unsafe extern "C" fn(Communicator) -> *const c_char;

/// Its functions.
pub(crate) struct Library {
    get_version: unsafe extern "C" fn(*mut c_int) -> Code,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    init_rank: unsafe extern "C" fn(*mut Communicator, c_int, UniqueId, c_int) -> Code,
    destroy: unsafe extern "C" fn(Communicator) -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    /// Since 2.13.
    last_error: Option<LastError>,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Communicator,
        *mut c_void,
    ) -> Code,
    all_gather: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        Communicator,
        *mut c_void,
    ) -> Code,
    _library: libloading::Library,
}

impl Library {
    /// # Errors
    /// Where it is not on the host, or lacks a function.
    pub(crate) fn find() -> Result<Self, String> {
        // SAFETY: NCCL's initialisers do nothing but set it up.
        let library = unsafe { libloading::Library::new(LIBRARY) };
        let library = library.map_err(|_| format!("{LIBRARY} is not on this host"))?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the declaration is the header's.
                let found = unsafe { library.get($name.as_bytes()) };
                *found.map_err(|_| format!("{LIBRARY} has no {}", $name))?
            }};
        }
        // SAFETY: as above.
        let last_error = unsafe { library.get::<LastError>(b"ncclGetLastError") };
        let last_error = last_error.ok().map(|found| *found);
        Ok(Self {
            get_version: function!("ncclGetVersion"),
            get_unique_id: function!("ncclGetUniqueId"),
            init_rank: function!("ncclCommInitRank"),
            destroy: function!("ncclCommDestroy"),
            error_string: function!("ncclGetErrorString"),
            last_error,
            all_reduce: function!("ncclAllReduce"),
            all_gather: function!("ncclAllGather"),
            _library: library,
        })
    }

    /// As in `2.21.5`.
    pub(crate) fn version(&self) -> Option<String> {
        let mut version = 0;
        // SAFETY: room for a number.
        let code = unsafe { (self.get_version)(&raw mut version) };
        // As nccl.h makes the number: in 2.8 and before, a hundred for a minor version.
        (code == 0).then(|| match version {
            10_000.. => format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100),
            _ => format!("{}.{}.{}", version / 1000, version / 100 % 10, version % 100),
        })
    }

    fn check(&self, what: &str, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: gives a text of its own for any number.
        let words = text(unsafe { (self.error_string)(code) });
        // SAFETY: no communicator is needed for the last error of all.
        let last = self.last_error.map(|ask| text(unsafe { ask(std::ptr::null_mut()) }));
        let last = last.filter(|last| !last.is_empty()).map(|last| format!(": {last}"));
        Err(format!("{what}: {words}{}", last.unwrap_or_default()))
    }

    /// An identifier by which ranks meet; this process serves it.
    pub(crate) fn unique_id(&self) -> Result<[u8; ID_BYTES], String> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: room for an identifier.
        let code = unsafe { (self.get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", code)?;
        Ok(id.0)
    }
}

fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: NCCL gives terminated texts that stay until its next error.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().trim().to_owned()
}

/// One rank of a group.
pub(crate) struct Group<'a> {
    library: &'a Library,
    communicator: Communicator,
}

impl<'a> Group<'a> {
    /// Meets the other ranks; the current context's device is this rank's.
    pub(crate) fn join(
        library: &'a Library,
        id: [u8; ID_BYTES],
        rank: u32,
        ranks: u32,
    ) -> Result<Self, String> {
        let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
        let mut communicator = std::ptr::null_mut();
        // SAFETY: room for a communicator; the identifier is rank 0's.
        let code = unsafe {
            (library.init_rank)(&raw mut communicator, number(ranks), UniqueId(id), number(rank))
        };
        library.check("ncclCommInitRank", code)?;
        Ok(Self { library, communicator })
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // SAFETY: made by NCCL and destroyed once. An error has nobody to go to.
        let _ = unsafe { (self.library.destroy)(self.communicator) };
    }
}

/// What a rank enqueues.
pub(crate) struct Nccl<'a> {
    library: &'a Library,
    group: &'a Group<'a>,
}

impl<'a> Nccl<'a> {
    pub(crate) fn new(library: &'a Library, group: &'a Group<'a>) -> Self {
        Self { library, group }
    }

    /// Sums `count` elements of f32.
    pub(crate) fn all_reduce(
        &self,
        gpu: &Gpu,
        from: &Memory,
        to: &Memory,
        count: usize,
    ) -> Result<(), String> {
        let (source, target) = (from.pointer(4 * count), to.pointer(4 * count));
        let (function, group) = (self.library.all_reduce, self.group.communicator);
        // SAFETY: both are so long, of this rank's device, and outlive the stream's work: the caller waits for it.
        let code = unsafe { function(source, target, count, FLOAT32, SUM, group, gpu.stream()) };
        self.library.check("ncclAllReduce", code)
    }

    /// Gathers `each` elements of f32 of every rank.
    pub(crate) fn all_gather(
        &self,
        gpu: &Gpu,
        from: &Memory,
        to: &Memory,
        each: usize,
    ) -> Result<(), String> {
        let (source, target) = (from.pointer(4 * each), to.pointer(4 * each));
        let (function, group) = (self.library.all_gather, self.group.communicator);
        // SAFETY: as above; the target is as long as all ranks' shards, as its maker counted.
        let code = unsafe { function(source, target, each, FLOAT32, group, gpu.stream()) };
        self.library.check("ncclAllGather", code)
    }
}
