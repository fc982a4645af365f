//! The tool's library and the tables it fills.
//!
//! ```text
//!   InitializeInjectionNvtx2(get_export_table)   the tool's; not 0 where it takes part
//!     get_export_table(1)   { size, get_module_function_table }
//!       (module)            an array of places, each for one function of the module, by number
//!     get_export_table(3)   { size, version of NVTX, ... }
//! ```
#![expect(unsafe_code, reason = "loads a profiler's library and calls what it gives")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::os::unix::Library;

/// Names the tool's library, for processes of 64 bits.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";
const INITIALIZE: &[u8] = b"InitializeInjectionNvtx2\0";

/// `NVTX_VERSION`.
const VERSION: u32 = 3;
/// The same of events.
const EVENT_VERSION: u16 = 3;

/// `NVTX_ETID_CALLBACKS` and `NVTX_ETID_VERSIONINFO`.
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;

/// Functions of the modules 1 to 6, one more than there are, for numbers begin at 1 (`NVTX_CBID_*_SIZE`): core, CUDA, OpenCL, the CUDA
/// runtime, core with domains, synchronisation.
const SIZES: [usize; 6] = [16, 9, 15, 7, 16, 7];
/// Place of the module with domains, and its functions that are called here (`NVTX_CBID_CORE2_*`).
const DOMAINS: usize = 4;
const RANGE_PUSH: usize = 4;
const RANGE_POP: usize = 5;
const DOMAIN_CREATE: usize = 11;

/// `NVTX_PAYLOAD_TYPE_UNSIGNED_INT64` and `NVTX_MESSAGE_TYPE_ASCII`.
const PAYLOAD_U64: i32 = 1;
const MESSAGE_ASCII: i32 = 1;

const DOMAIN: &CStr = c"topod";

type GetExportTable = extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;
type DomainCreate = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type RangePush = unsafe extern "C" fn(*mut c_void, *const EventAttributes) -> c_int;
type RangePop = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct ExportedCallbacks {
    size: usize,
    function_table: extern "C" fn(c_int, *mut *const usize, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct ExportedVersion {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "C" fn(u32),
}

static EXPORTED_CALLBACKS: ExportedCallbacks =
    ExportedCallbacks { size: size_of::<ExportedCallbacks>(), function_table };

static EXPORTED_VERSION: ExportedVersion = ExportedVersion {
    size: size_of::<ExportedVersion>(),
    version: VERSION,
    reserved: 0,
    set_tool_version,
};

/// Places of functions: the tool writes into them.
struct Module {
    functions: Vec<AtomicUsize>,
    /// Where each of them is, by number; the first is none, and none is behind the last.
    places: Vec<usize>,
}

fn modules() -> &'static [Module] {
    static MODULES: OnceLock<Vec<Module>> = OnceLock::new();
    MODULES.get_or_init(|| {
        let made = SIZES.iter().map(|size| {
            let functions: Vec<AtomicUsize> = (0..*size).map(|_| AtomicUsize::new(0)).collect();
            // They stay where they are: nothing is added to the list.
            let places = functions.iter().map(|f| f.as_ptr().expose_provenance());
            let mut places: Vec<usize> = places.chain([0]).collect();
            places[0] = 0;
            Module { functions, places }
        });
        made.collect()
    })
}

extern "C" fn get_export_table(id: u32) -> *const c_void {
    match id {
        CALLBACKS => (&raw const EXPORTED_CALLBACKS).cast(),
        VERSION_INFO => (&raw const EXPORTED_VERSION).cast(),
        _ => std::ptr::null(),
    }
}

extern "C" fn function_table(module: c_int, table: *mut *const usize, size: *mut c_uint) -> c_int {
    let place = usize::try_from(module).ok().and_then(|module| module.checked_sub(1));
    let Some(module) = place.and_then(|place| modules().get(place)) else { return 0 };
    if !table.is_null() {
        // SAFETY: The tool's own place for a pointer.
        unsafe { *table = module.places.as_ptr() };
    }
    if !size.is_null() {
        // SAFETY: The tool's own place for a number.
        unsafe { *size = c_uint::try_from(module.functions.len()).unwrap_or(0) };
    }
    1
}

/// The headers say that nothing is made of it.
extern "C" fn set_tool_version(_version: u32) {}

/// A tool that takes part.
#[derive(Debug)]
pub(crate) struct Tool {
    push: RangePush,
    pop: RangePop,
    /// A pointer nobody follows here.
    domain: usize,
}

/// The tool, loaded at the first call; `None` where none is asked for, or it does not take part.
pub(crate) fn tool() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    TOOL.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        let shown = path.display().to_string();
        match Tool::load(path) {
            Ok(tool) => Some(tool),
            Err(why) => {
                tracing::warn!(library = shown, why, "no ranges for a profiler");
                None
            }
        }
    })
    .as_ref()
}

impl Tool {
    fn load(path: std::ffi::OsString) -> Result<Self, String> {
        // SAFETY: The library is the user's own choice.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        // SAFETY: The declaration is the headers'.
        let found = unsafe { library.get::<Initialize>(INITIALIZE) };
        let initialize = *found.map_err(|error| error.to_string())?;
        // SAFETY: It is given what it asks for, which lives as long as the process.
        let takes_part = unsafe { initialize(get_export_table) };
        if takes_part == 0 {
            // It is unloaded, as the headers do, and what it wrote is not looked at.
            return Err("the tool does not take part".to_owned());
        }
        // It is called until the process ends.
        std::mem::forget(library);
        let function = |number: usize| modules()[DOMAINS].functions[number].load(Ordering::Acquire);
        let (create, push, pop) =
            (function(DOMAIN_CREATE), function(RANGE_PUSH), function(RANGE_POP));
        if push == 0 || pop == 0 {
            return Err("the tool looks at no ranges of domains".to_owned());
        }
        let domain = if create == 0 {
            0
        } else {
            // SAFETY: What the tool wrote there is such a function.
            let create = unsafe { std::mem::transmute::<usize, DomainCreate>(create) };
            // SAFETY: A terminated text.
            unsafe { create(DOMAIN.as_ptr()) }.expose_provenance()
        };
        // SAFETY: As above, and it is not 0.
        let push = unsafe { std::mem::transmute::<usize, RangePush>(push) };
        // SAFETY: As above.
        let pop = unsafe { std::mem::transmute::<usize, RangePop>(pop) };
        Ok(Self { push, pop, domain })
    }

    /// Begins a range on this thread.
    pub(crate) fn push(&self, name: &str, payload: u64) {
        let message = CString::new(name).unwrap_or_default();
        let attributes = EventAttributes {
            version: EVENT_VERSION,
            size: u16::try_from(size_of::<EventAttributes>()).unwrap_or(0),
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: PAYLOAD_U64,
            reserved: 0,
            payload,
            message_type: MESSAGE_ASCII,
            message: message.as_ptr(),
        };
        // SAFETY: The tool copies what it keeps of the event; all of it lives for the call.
        unsafe {
            (self.push)(std::ptr::with_exposed_provenance_mut(self.domain), &raw const attributes)
        };
    }

    /// Ends the last range of this thread.
    pub(crate) fn pop(&self) {
        // SAFETY: The domain is the tool's.
        unsafe { (self.pop)(std::ptr::with_exposed_provenance_mut(self.domain)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tool writes by number into the places that it is shown.
    #[test]
    fn tables_are_as_the_headers_have_them() {
        let callbacks = get_export_table(CALLBACKS).cast::<ExportedCallbacks>();
        // SAFETY: The table of that number.
        let callbacks = unsafe { &*callbacks };
        assert_eq!(callbacks.size, 16);
        for (module, functions) in (1..).zip(SIZES) {
            let (mut table, mut size) = (std::ptr::null(), 0);
            assert_eq!((callbacks.function_table)(module, &raw mut table, &raw mut size), 1);
            assert_eq!(size as usize, functions);
            // SAFETY: So many and one more, as was said.
            let places = unsafe { std::slice::from_raw_parts(table, functions + 1) };
            assert!(places[0] == 0 && places[functions] == 0);
            assert!(places[1..functions].iter().all(|place| *place != 0));
        }
        let none = (callbacks.function_table)(7, std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(none, 0);
        assert!(get_export_table(2).is_null());
        assert_eq!(size_of::<EventAttributes>(), 48);
        assert_eq!(size_of::<ExportedVersion>(), 24);
    }
}
