//! The symbols, called with words: integers and addresses are passed alike by the calling conventions of 64-bit Linux.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;

use libloading::Library;
use tempfile::TempDir;

/// Codes as `cuda.h` numbers them.
pub(crate) mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NOT_INITIALIZED: u32 = 3;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const MAP_FAILED: u32 = 205;
    pub(crate) const NO_BINARY: u32 = 209;
    pub(crate) const NO_PEER_ACCESS: u32 = 217;
    pub(crate) const INVALID_PTX: u32 = 218;
    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
    pub(crate) const OUT_OF_RESOURCES: u32 = 701;
    pub(crate) const PEER_ENABLED: u32 = 704;
    pub(crate) const PEER_NOT_ENABLED: u32 = 705;
    pub(crate) const CONTEXT_DESTROYED: u32 = 709;
    pub(crate) const REGISTERED: u32 = 712;
    pub(crate) const NOT_REGISTERED: u32 = 713;
    pub(crate) const MISALIGNED: u32 = 716;
    pub(crate) const LAUNCH_FAILED: u32 = 719;
    pub(crate) const COOPERATIVE_TOO_LARGE: u32 = 720;
    pub(crate) const NOT_PERMITTED: u32 = 800;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
}

type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;

/// A handle of memory or an event for other processes, by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// A driver of its own: a copy of the double, with its configuration.
pub(crate) struct Driver {
    library: Library,
    _directory: Option<TempDir>,
}

/// A place for a result.
pub(crate) fn out<T>(place: &mut T) -> u64 {
    std::ptr::from_mut(place).expose_provenance() as u64
}

/// Where values are.
pub(crate) fn at<T>(values: &[T]) -> u64 {
    values.as_ptr().expose_provenance() as u64
}

impl Driver {
    /// Loads a copy; nothing is initialised.
    pub(crate) fn load(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Little memory, for each driver of this process takes addresses for it.
        let config = match config.strip_prefix('{') {
            Some("}") => r#"{"memory": 1073741824}"#.to_owned(),
            Some(rest) if !rest.contains("memory") => format!(r#"{{"memory": 1073741824, {rest}"#),
            _ => config.to_owned(),
        };
        std::fs::write(directory.path().join("cuda-double.json"), config).unwrap();
        let library = machines::install_cuda_double(directory.path()).unwrap();
        Self { _directory: Some(directory), ..Self::open(library) }
    }

    pub(crate) fn open(library: PathBuf) -> Self {
        // SAFETY: the double has no initialisers.
        Self { library: unsafe { Library::new(library) }.unwrap(), _directory: None }
    }

    /// With the first device's context current.
    pub(crate) fn new(config: &str) -> Self {
        let driver = Self::load(config);
        driver.ok("cuInit", &[0]);
        driver.retain(0);
        driver
    }

    pub(crate) fn call(&self, name: &str, arguments: &[u64]) -> u32 {
        // SAFETY: the header says that such a function takes words; those it does not take are ignored.
        let function = unsafe { self.library.get::<Any>(name.as_bytes()) };
        let function = function.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut words = [0; 12];
        words[..arguments.len()].copy_from_slice(arguments);
        let [a, b, c, d, e, f, g, h, i, j, k, l] = words;
        // SAFETY: as above; what the words point to outlasts the call.
        unsafe { function(a, b, c, d, e, f, g, h, i, j, k, l) }
    }

    /// With a handle by value between an address and flags.
    pub(crate) fn open_handle(&self, name: &str, place: u64, handle: IpcHandle, flags: u32) -> u32 {
        type Open = unsafe extern "C" fn(u64, IpcHandle, u32) -> u32;
        // SAFETY: as the header has it; the call for events takes no flags and ignores them.
        let function = unsafe { self.library.get::<Open>(name.as_bytes()) }.unwrap();
        // SAFETY: as above.
        unsafe { function(place, handle, flags) }
    }

    #[track_caller]
    pub(crate) fn ok(&self, name: &str, arguments: &[u64]) {
        let code = self.call(name, arguments);
        assert_eq!(code, code::SUCCESS, "{name}: {}", self.name(code));
    }

    #[track_caller]
    pub(crate) fn fails(&self, code: u32, name: &str, arguments: &[u64]) {
        let found = self.call(name, arguments);
        assert_eq!(found, code, "{name}: {}, not {}", self.name(found), self.name(code));
    }

    /// What a call writes to its first argument.
    #[track_caller]
    pub(crate) fn get<T: Default>(&self, name: &str, arguments: &[u64]) -> T {
        let mut result = T::default();
        let mut words = vec![out(&mut result)];
        words.extend(arguments);
        self.ok(name, &words);
        result
    }

    fn name(&self, code: u32) -> String {
        let mut text: *const c_char = std::ptr::null();
        if self.call("cuGetErrorName", &[code.into(), out(&mut text)]) != 0 {
            return code.to_string();
        }
        // SAFETY: a terminated text of the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Makes a device's context current.
    #[track_caller]
    pub(crate) fn retain(&self, device: u64) -> u64 {
        let context = self.get::<u64>("cuDevicePrimaryCtxRetain", &[device]);
        self.ok("cuCtxSetCurrent", &[context]);
        context
    }

    #[track_caller]
    pub(crate) fn allocate(&self, bytes: u64) -> u64 {
        self.get("cuMemAlloc_v2", &[bytes])
    }

    /// Pinned memory of the host.
    #[track_caller]
    pub(crate) fn pinned(&self, bytes: usize) -> &'static mut [u8] {
        let address = self.get::<u64>("cuMemHostAlloc", &[bytes as u64, 0]);
        let address = std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap());
        // SAFETY: so many bytes that the driver just gave, and that no test frees before its end.
        unsafe { std::slice::from_raw_parts_mut(address, bytes) }
    }

    /// A stream that the default stream is not ordered with.
    #[track_caller]
    pub(crate) fn stream(&self) -> u64 {
        self.get("cuStreamCreate", &[1])
    }

    #[track_caller]
    pub(crate) fn event(&self) -> u64 {
        self.get("cuEventCreate", &[2])
    }

    #[track_caller]
    pub(crate) fn put(&self, to: u64, values: &[u8]) {
        self.ok("cuMemcpyHtoD_v2", &[to, at(values), values.len() as u64]);
    }

    #[track_caller]
    pub(crate) fn bytes(&self, from: u64, count: usize) -> Vec<u8> {
        let mut values = vec![0; count];
        self.ok(
            "cuMemcpyDtoH_v2",
            &[values.as_mut_ptr().expose_provenance() as u64, from, count as u64],
        );
        values
    }

    /// What would be reported at exit.
    pub(crate) fn report(&self) -> String {
        let mut text = vec![0_u8; 1 << 16];
        self.ok(
            "topodCudaDoubleReport",
            &[text.as_mut_ptr().expose_provenance() as u64, text.len() as u64],
        );
        CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
    }

    pub(crate) fn faults(&self, text: &CStr) {
        self.ok("topodCudaDoubleSetFaults", &[text.as_ptr().expose_provenance() as u64]);
    }
}
