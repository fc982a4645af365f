//! The C symbols.
//!
//! Every function checks what NVML's reference says it checks, in its order: initialised, device valid, pointers
//! not null, then the rest. Nothing unwinds into C: a panic becomes `NVML_ERROR_UNKNOWN`.
#![expect(
    unsafe_code,
    reason = "these are the C symbols of a library that callers load at run time"
)]
#![expect(unreachable_pub, reason = "the linker reaches them")]

use std::ffi::{
    CStr, CString, OsStr, c_char, c_int, c_longlong, c_uint, c_ulong, c_ulonglong, c_void,
};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use machines::scenario::{
    Code, Device, Fault, Remote, SCENARIO_BESIDE_LIBRARY, SCENARIO_VARIABLE, Scenario,
};
use nvml_wrapper_sys::bindings::*;
use topology::BusId;

use crate::answer::{self, Value};
use crate::session::{self, Place, Session};

/// Something a caller lent to be filled in.
struct Out<'a, T>(&'a mut MaybeUninit<T>);

impl<T> Out<'_, T> {
    /// # Safety
    /// The pointer is null or valid for writes of a `T`, and nothing else uses that memory during the call.
    unsafe fn new(pointer: *mut T) -> Result<Self, Code> {
        // SAFETY: as the caller promises; `MaybeUninit` asks for no initialised value.
        let place = unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() };
        place.map(Self).ok_or(Code::INVALID_ARGUMENT)
    }

    fn put(self, value: T) {
        self.0.write(value);
    }
}

/// An array a caller lent; empty or null is an invalid argument.
///
/// # Safety
/// The pointer is null or valid for reads and writes of `length` initialised elements during the call.
unsafe fn slice_of<'a, T>(pointer: *mut T, length: usize) -> Result<&'a mut [T], Code> {
    if pointer.is_null() || length == 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and otherwise as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

/// A C string a caller passed.
///
/// # Safety
/// The pointer is null or to a terminated string.
unsafe fn text_of<'a>(pointer: *const c_char) -> Result<&'a str, Code> {
    if pointer.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and otherwise as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Code::INVALID_ARGUMENT)
}

/// Writes a terminated string, or says that the buffer is too small and leaves it alone.
fn put_text(buffer: &mut [c_char], text: &str) -> Result<(), Code> {
    if buffer.len() <= text.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    for (slot, byte) in buffer.iter_mut().zip(text.bytes().chain([0])) {
        *slot = c_char::from_ne_bytes([byte]);
    }
    Ok(())
}

/// A string in an array of its own, cut to fit.
fn text_array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (slot, byte) in array.iter_mut().zip(text.bytes().take(N.saturating_sub(1))) {
        *slot = c_char::from_ne_bytes([byte]);
    }
    array
}

/// Sizes come as C `unsigned int`, which is no wider than a pointer on any system NVML exists for.
fn size(length: c_uint) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// Runs a body; a panic in it is an unknown error.
fn guard(body: impl FnOnce() -> Result<(), Code>) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// A call about no device.
fn system(call: &'static str, body: impl FnOnce(&Session) -> Result<(), Code>) -> nvmlReturn_t {
    guard(|| {
        let session = session::current()?;
        session.enter(Place { call, device: None, link: None, field: None })?;
        body(&session)
    })
}

/// A call about a device.
fn device(
    call: &'static str,
    handle: nvmlDevice_t,
    link: Option<u32>,
    body: impl FnOnce(&Session, &Device, u32) -> Result<(), Code>,
) -> nvmlReturn_t {
    guard(|| {
        let session = session::current()?;
        let index = index_of(handle)?;
        let device = session.device(index)?;
        session.enter(Place { call, device: Some(index), link, field: None })?;
        body(&session, device, index)
    })
}

/// Handles count up from here, so that a small number or a null is none. They point to nothing.
const FIRST_HANDLE: usize = 0x4e56_4d4c_0000;

fn handle_of(index: u32) -> nvmlDevice_t {
    ptr::without_provenance_mut(FIRST_HANDLE + size(index) * 16)
}

fn index_of(handle: nvmlDevice_t) -> Result<u32, Code> {
    let offset = handle.addr().checked_sub(FIRST_HANDLE).ok_or(Code::INVALID_ARGUMENT)?;
    if offset % 16 != 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    u32::try_from(offset / 16).map_err(|_| Code::INVALID_ARGUMENT)
}

/// Opens a session's scenario. One that cannot be read makes a session whose initialisation fails.
fn read_scenario() -> Scenario {
    let failed = |code, why: &str| {
        complain(why);
        Scenario {
            driver_version: String::new(),
            nvml_version: String::new(),
            cuda_driver_version: 0,
            max_links: 0,
            absent_link: Code::NOT_SUPPORTED,
            confidential: None,
            devices: Vec::new(),
            pairs: Vec::new(),
            events: Vec::new(),
            faults: vec![Fault::new("nvmlInit*", machines::scenario::Action::Return(code))],
            call_log: None,
        }
    };
    let Some(path) = scenario_path() else {
        return failed(Code::DRIVER_NOT_LOADED, "no scenario is named, so no driver is loaded");
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            return failed(Code::DRIVER_NOT_LOADED, &format!("{}: {error}", path.display()));
        }
    };
    match serde_json::from_str(&text) {
        Ok(scenario) => scenario,
        Err(error) => failed(Code::UNKNOWN, &format!("{}: {error}", path.display())),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a C return code cannot say what is wrong with the scenario"
)]
fn complain(why: &str) {
    eprintln!("nvml-double: {why}");
}

/// From the environment, else beside this library.
fn scenario_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(SCENARIO_VARIABLE) {
        return Some(path.into());
    }
    let beside = own_path()?.parent()?.join(SCENARIO_BESIDE_LIBRARY);
    beside.exists().then_some(beside)
}

/// Where this library was loaded from.
fn own_path() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let here: *const c_void = (own_path as fn() -> Option<PathBuf> as *const ()).cast();
    // SAFETY: `info` is valid for writes, and any address may be asked for.
    if unsafe { libc::dladdr(here, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: all of its fields may be zero, so it was initialised from the start.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives a terminated string that lives as long as this library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_owned())
}

// === library ===

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    guard(|| session::init("nvmlInit_v2", read_scenario))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    guard(|| session::init("nvmlInitWithFlags", read_scenario))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetConfComputeState(
    state: *mut nvmlConfComputeSystemState_t,
) -> nvmlReturn_t {
    system("nvmlSystemGetConfComputeState", |session| {
        // SAFETY: by NVML's contract null or valid for writes.
        let state = unsafe { Out::new(state) }?;
        let on = session.scenario.confidential.ok_or(Code::NOT_SUPPORTED)?;
        state.put(nvmlConfComputeSystemState_t {
            environment: u32::from(on),
            ccFeature: u32::from(on),
            devToolsMode: 0,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    guard(session::shutdown)
}

/// Works before `nvmlInit`, and has a text for every number.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    static TEXTS: LazyLock<Vec<(u32, CString)>> = LazyLock::new(|| {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        Code::ALL.iter().map(|(number, _, words)| (*number, text(words))).collect()
    });
    let known = TEXTS.iter().find(|(number, _)| *number == result);
    known.map_or(c"Unknown Error", |(_, text)| text.as_c_str()).as_ptr()
}

/// Calls that fill one string about the system.
macro_rules! system_texts {
    ($($name:ident = |$scenario:ident| $text:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(text: *mut c_char, length: c_uint) -> nvmlReturn_t {
            system(stringify!($name), |session| {
                let $scenario = &session.scenario;
                // SAFETY: by NVML's contract null or a buffer of that length; only bytes are written to it.
                let buffer = unsafe { slice_of(text, size(length)) }?;
                put_text(buffer, $text)
            })
        }
    )*};
}

system_texts! {
    nvmlSystemGetDriverVersion = |scenario| &scenario.driver_version;
    nvmlSystemGetNVMLVersion = |scenario| &scenario.nvml_version;
}

/// Calls that fill one value about the system.
macro_rules! system_values {
    ($($name:ident: $type:ty = |$scenario:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(value: *mut $type) -> nvmlReturn_t {
            system(stringify!($name), |session| {
                let $scenario = &session.scenario;
                // SAFETY: by NVML's contract null or valid for writes.
                let value = unsafe { Out::new(value) }?;
                value.put($value?);
                Ok(())
            })
        }
    )*};
}

system_values! {
    nvmlSystemGetCudaDriverVersion: c_int = |scenario| Ok::<_, Code>(scenario.cuda_driver_version);
    nvmlSystemGetCudaDriverVersion_v2: c_int = |scenario| Ok::<_, Code>(scenario.cuda_driver_version);
    nvmlDeviceGetCount: c_uint = |scenario| device_count(scenario);
    nvmlDeviceGetCount_v2: c_uint = |scenario| device_count(scenario);
    nvmlUnitGetCount: c_uint = |_scenario| Ok::<_, Code>(0);
    nvmlGetExcludedDeviceCount: c_uint = |_scenario| Ok::<_, Code>(0);
}

fn device_count(scenario: &Scenario) -> Result<c_uint, Code> {
    c_uint::try_from(scenario.devices.len()).map_err(|_| Code::UNKNOWN)
}

// === handles ===

/// Hands out a handle. Faults of the device play here too: NVML touches the device to make one.
unsafe fn give_handle(
    call: &'static str,
    out: *mut nvmlDevice_t,
    find: impl FnOnce(&Scenario) -> Result<usize, Code>,
) -> nvmlReturn_t {
    guard(|| {
        let session = session::current()?;
        // SAFETY: by NVML's contract null or valid for writes.
        let out = unsafe { Out::new(out) }?;
        let index = u32::try_from(find(&session.scenario)?).map_err(|_| Code::INVALID_ARGUMENT)?;
        session.enter(Place { call, device: Some(index), link: None, field: None })?;
        out.put(handle_of(index));
        Ok(())
    })
}

fn by_index(scenario: &Scenario, index: c_uint) -> Result<usize, Code> {
    let index = size(index);
    if index < scenario.devices.len() { Ok(index) } else { Err(Code::INVALID_ARGUMENT) }
}

fn by_bus_id(scenario: &Scenario, text: &str) -> Result<usize, Code> {
    let wanted: BusId = text.parse().map_err(|_| Code::INVALID_ARGUMENT)?;
    let found = scenario.devices.iter().position(|device| device.bus_id == wanted);
    found.ok_or(Code::NOT_FOUND)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex(
    index: c_uint,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: passed on as it came.
    unsafe { give_handle("nvmlDeviceGetHandleByIndex", out, |scenario| by_index(scenario, index)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: passed on as it came.
    unsafe {
        give_handle("nvmlDeviceGetHandleByIndex_v2", out, |scenario| by_index(scenario, index))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: *const c_char,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let find = |scenario: &Scenario| {
        // SAFETY: by NVML's contract null or a terminated string.
        by_bus_id(scenario, unsafe { text_of(bus_id) }?)
    };
    // SAFETY: passed on as it came.
    unsafe { give_handle("nvmlDeviceGetHandleByPciBusId_v2", out, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let find = |scenario: &Scenario| {
        // SAFETY: by NVML's contract null or a terminated string.
        let wanted = unsafe { text_of(uuid) }?;
        scenario.devices.iter().position(|device| device.uuid == wanted).ok_or(Code::NOT_FOUND)
    };
    // SAFETY: passed on as it came.
    unsafe { give_handle("nvmlDeviceGetHandleByUUID", out, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleBySerial(
    serial: *const c_char,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let find = |scenario: &Scenario| {
        // SAFETY: by NVML's contract null or a terminated string.
        let wanted = unsafe { text_of(serial) }?;
        let has = |device: &Device| device.serial.as_deref() == Some(wanted);
        scenario.devices.iter().position(has).ok_or(Code::NOT_FOUND)
    };
    // SAFETY: passed on as it came.
    unsafe { give_handle("nvmlDeviceGetHandleBySerial", out, find) }
}

// === facts of a device ===

/// Calls that fill one string about a device.
macro_rules! device_texts {
    ($($name:ident = |$device:ident| $text:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: nvmlDevice_t, text: *mut c_char, length: c_uint) -> nvmlReturn_t {
            device(stringify!($name), handle, None, |_, $device, _| {
                // SAFETY: by NVML's contract null or a buffer of that length; only bytes are written to it.
                let buffer = unsafe { slice_of(text, size(length)) }?;
                put_text(buffer, $text)
            })
        }
    )*};
}

device_texts! {
    nvmlDeviceGetName = |device| &device.name;
    nvmlDeviceGetUUID = |device| &device.uuid;
    nvmlDeviceGetSerial = |device| device.serial.as_ref().ok_or(Code::NOT_SUPPORTED)?;
    nvmlDeviceGetBoardPartNumber = |device| device.board_part_number.as_ref().ok_or(Code::NOT_SUPPORTED)?;
}

/// Calls that fill one value about a device.
macro_rules! device_values {
    ($($name:ident: $type:ty = |$device:ident, $index:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: nvmlDevice_t, value: *mut $type) -> nvmlReturn_t {
            device(stringify!($name), handle, None, |_, $device, $index| {
                // SAFETY: by NVML's contract null or valid for writes.
                let value = unsafe { Out::new(value) }?;
                let answer: Result<$type, Code> = $value;
                value.put(answer?);
                Ok(())
            })
        }
    )*};
}

device_values! {
    nvmlDeviceGetIndex: c_uint = |_device, index| Ok(index);
    nvmlDeviceGetMinorNumber: c_uint = |device, _index| Ok(device.minor);
    nvmlDeviceGetModuleId: c_uint = |device, _index| device.module_id.ok_or(Code::NOT_SUPPORTED);
    nvmlDeviceGetArchitecture: nvmlDeviceArchitecture_t = |device, _index| Ok(answer::architecture(device));
    nvmlDeviceGetBrand: nvmlBrandType_t = |_device, _index| Ok(nvmlBrandType_enum_NVML_BRAND_NVIDIA);
    nvmlDeviceGetBusType: nvmlBusType_t = |_device, _index| Ok(NVML_BUS_TYPE_PCIE);
    nvmlDeviceGetNumaNodeId: c_uint = |device, _index| device.own_numa_node.ok_or(Code::NOT_SUPPORTED);
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = |device, _index| Ok(device.pcie.max_generation);
    nvmlDeviceGetGpuMaxPcieLinkGeneration: c_uint = |device, _index| Ok(device.pcie.device_max_generation);
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = |device, _index| Ok(device.pcie.max_width);
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = |device, _index| Ok(device.pcie.current_generation);
    nvmlDeviceGetCurrPcieLinkWidth: c_uint = |device, _index| Ok(device.pcie.current_width);
    nvmlDeviceGetPcieLinkMaxSpeed: c_uint = |device, _index| max_speed(device.pcie.max_generation);
    nvmlDeviceGetPcieSpeed: c_uint = |device, _index| transfer_rate(device.pcie.current_generation);
    nvmlDeviceGetPcieReplayCounter: c_uint = |_device, _index| Ok(0);
    nvmlDeviceGetC2cModeInfoV: nvmlC2cModeInfo_v1_t = |device, _index| {
        let supported = device.compute_capability.0 >= 9;
        let enabled = device.c2c_links.iter().any(|link| link.active).into();
        supported.then_some(nvmlC2cModeInfo_v1_t { isC2cEnabled: enabled }).ok_or(Code::NOT_SUPPORTED)
    };
    nvmlDeviceGetMultiGpuBoard: c_uint = |_device, _index| Ok(0);
    nvmlDeviceIsMigDeviceHandle: c_uint = |_device, _index| Ok(0);
    nvmlDeviceGetMaxMigDeviceCount: c_uint = |device, _index| Ok(if device.mig.is_some() { 7 } else { 0 });
    nvmlDeviceGetPersistenceMode: nvmlEnableState_t = |_device, _index| Ok(nvmlEnableState_enum_NVML_FEATURE_ENABLED);
    nvmlDeviceGetSupportedEventTypes: c_ulonglong = |_device, _index| Ok(c_ulonglong::from(EVENTS));
    nvmlDeviceGetPciInfo_v3: nvmlPciInfo_t = |device, _index| Ok(pci_info(device));
    nvmlDeviceGetMemoryInfo: nvmlMemory_t = |device, _index| {
        let total = device.memory_total;
        Ok(nvmlMemory_t { total, free: total, used: 0 })
    };
}

/// The kinds of event that a data centre board supports.
const EVENTS: u32 = nvmlEventTypeSingleBitEccError
    | nvmlEventTypeDoubleBitEccError
    | nvmlEventTypeXidCriticalError
    | nvmlEventTypeClock
    | nvmlEventTypePState;

/// `NVML_PCIE_LINK_MAX_SPEED_*` of a generation.
const fn max_speed(generation: u32) -> Result<c_uint, Code> {
    match generation {
        1..=6 => Ok(generation),
        _ => Ok(NVML_PCIE_LINK_MAX_SPEED_INVALID),
    }
}

/// MT/s of a generation, which NVML calls Mbps.
const fn transfer_rate(generation: u32) -> Result<c_uint, Code> {
    match generation {
        1 => Ok(2500),
        2 => Ok(5000),
        3 => Ok(8000),
        4 => Ok(16000),
        5 => Ok(32000),
        6 => Ok(64000),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

fn pci_info(device: &Device) -> nvmlPciInfo_t {
    let id = device.bus_id;
    nvmlPciInfo_t {
        busIdLegacy: text_array(&answer::bus_id_legacy(id)),
        domain: id.domain(),
        bus: id.bus().into(),
        device: id.device().into(),
        pciDeviceId: device.pci_device_id,
        pciSubSystemId: device.pci_subsystem_id,
        busId: text_array(&answer::bus_id(id)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    handle: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> nvmlReturn_t {
    device("nvmlDeviceGetCudaComputeCapability", handle, None, |_, device, _| {
        // SAFETY: by NVML's contract null or valid for writes.
        let major = unsafe { Out::new(major) }?;
        // SAFETY: likewise.
        let minor = unsafe { Out::new(minor) }?;
        major.put(device.compute_capability.0);
        minor.put(device.compute_capability.1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    handle: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    device("nvmlDeviceGetMigMode", handle, None, |_, device, _| {
        // SAFETY: by NVML's contract null or valid for writes.
        let current = unsafe { Out::new(current) }?;
        // SAFETY: likewise.
        let pending = unsafe { Out::new(pending) }?;
        let mig = device.mig.ok_or(Code::NOT_SUPPORTED)?;
        current.put(mig.current.into());
        pending.put(mig.pending.into());
        Ok(())
    })
}

/// No instances are ever there, so with or without MIG mode there is none to find.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: nvmlDevice_t,
    _index: c_uint,
    _mig_device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetMigDeviceHandleByIndex", handle, None, |_, device, _| {
        Err(if device.mig.is_some() { Code::NOT_FOUND } else { Code::NOT_SUPPORTED })
    })
}

/// The version that a caller wrote into the first field of a versioned structure: its size and a number.
fn version_of<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(0) | number << 24
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    handle: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetMemoryInfo_v2", handle, None, |_, device, _| {
        // SAFETY: by NVML's contract null or a structure whose version the caller has set.
        let memory = unsafe { memory.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
        if memory.version != version_of::<nvmlMemory_v2_t>(2) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        memory.total = device.memory_total;
        memory.reserved = 0;
        memory.free = device.memory_total;
        memory.used = 0;
        Ok(())
    })
}

// === locality ===

/// Fills an array of machine words, of which NVML's are `unsigned long`.
unsafe fn put_bits(
    words: *mut c_ulong,
    length: c_uint,
    numbers: impl Iterator<Item = u32>,
) -> Result<(), Code> {
    // SAFETY: by NVML's contract null or an array of that length; every word is written.
    answer::set_bits(unsafe { slice_of(words, size(length)) }?, numbers);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCpuAffinity(
    handle: nvmlDevice_t,
    length: c_uint,
    words: *mut c_ulong,
) -> nvmlReturn_t {
    device("nvmlDeviceGetCpuAffinity", handle, None, |_, device, _| {
        let cpus = device.cpus.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: passed on as it came.
        unsafe { put_bits(words, length, cpus.iter()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCpuAffinityWithinScope(
    handle: nvmlDevice_t,
    length: c_uint,
    words: *mut c_ulong,
    scope: nvmlAffinityScope_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetCpuAffinityWithinScope", handle, None, |_, device, _| {
        check_scope(scope)?;
        let cpus = device.cpus.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: passed on as it came.
        unsafe { put_bits(words, length, cpus.iter()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    handle: nvmlDevice_t,
    length: c_uint,
    words: *mut c_ulong,
    scope: nvmlAffinityScope_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetMemoryAffinity", handle, None, |_, device, _| {
        check_scope(scope)?;
        let nodes = device.memory_nodes.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: passed on as it came.
        unsafe { put_bits(words, length, nodes.iter().copied()) }
    })
}

fn check_scope(scope: nvmlAffinityScope_t) -> Result<(), Code> {
    match scope {
        NVML_AFFINITY_SCOPE_NODE | NVML_AFFINITY_SCOPE_SOCKET => Ok(()),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    handle: nvmlDevice_t,
    other: nvmlDevice_t,
    level: *mut nvmlGpuTopologyLevel_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetTopologyCommonAncestor", handle, None, |session, _, index| {
        let other = index_of(other)?;
        session.device(other)?;
        // SAFETY: by NVML's contract null or valid for writes.
        let level = unsafe { Out::new(level) }?;
        level.put(answer::common_ancestor(&session.scenario, index, other));
        Ok(())
    })
}

/// The devices near a CPU. With a null array only their number is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetTopologyGpuSet(
    cpu: c_uint,
    count: *mut c_uint,
    devices: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    system("nvmlSystemGetTopologyGpuSet", |session| {
        let near = |device: &Device| {
            device.cpus.as_ref().is_some_and(|cpus| cpus.iter().any(|near| near == cpu))
        };
        let found = (0..).zip(&session.scenario.devices).filter(|(_, device)| near(device));
        let handles: Vec<_> = found.map(|(index, _)| handle_of(index)).collect();
        // SAFETY: passed on as they came.
        unsafe { put_handles(&handles, count, devices) }
    })
}

/// The devices that meet this one at just that level. With a null array only their number is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyNearestGpus(
    handle: nvmlDevice_t,
    level: nvmlGpuTopologyLevel_t,
    count: *mut c_uint,
    devices: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetTopologyNearestGpus", handle, None, |session, _, index| {
        let others = (0..device_count(&session.scenario)?).filter(|other| {
            *other != index && answer::common_ancestor(&session.scenario, index, *other) == level
        });
        let handles: Vec<_> = others.map(handle_of).collect();
        // SAFETY: passed on as they came.
        unsafe { put_handles(&handles, count, devices) }
    })
}

/// Tells how many there are and fills an array that has room for them; a null array is a question for the number.
///
/// # Safety
/// `count` is null or an initialised number; `devices` is null or has room for as many as it says.
unsafe fn put_handles(
    handles: &[nvmlDevice_t],
    count: *mut c_uint,
    devices: *mut nvmlDevice_t,
) -> Result<(), Code> {
    // SAFETY: as the caller promises.
    let count = unsafe { count.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
    let room = size(*count);
    *count = c_uint::try_from(handles.len()).map_err(|_| Code::UNKNOWN)?;
    if devices.is_null() || room == 0 {
        return Ok(());
    }
    if room < handles.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, and as the caller promises; the elements need no initial value.
    let slots = unsafe { slice_of(devices.cast::<MaybeUninit<nvmlDevice_t>>(), room) }?;
    for (slot, handle) in slots.iter_mut().zip(handles) {
        slot.write(*handle);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    handle: nvmlDevice_t,
    other: nvmlDevice_t,
    which: nvmlGpuP2PCapsIndex_t,
    status: *mut nvmlGpuP2PStatus_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetP2PStatus", handle, None, |session, _, index| {
        let other = index_of(other)?;
        session.device(other)?;
        // SAFETY: by NVML's contract null or valid for writes.
        let status = unsafe { Out::new(status) }?;
        status.put(answer::p2p_status(&session.scenario, index, other, which)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceOnSameBoard(
    handle: nvmlDevice_t,
    other: nvmlDevice_t,
    same: *mut c_int,
) -> nvmlReturn_t {
    device("nvmlDeviceOnSameBoard", handle, None, |session, _, index| {
        let other = index_of(other)?;
        session.device(other)?;
        // SAFETY: by NVML's contract null or valid for writes.
        let same = unsafe { Out::new(same) }?;
        same.put((index == other).into());
        Ok(())
    })
}

// === NVLink ===

/// Calls that fill one value about a link.
macro_rules! link_values {
    ($($name:ident: $type:ty = |$link:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: nvmlDevice_t, link: c_uint, value: *mut $type) -> nvmlReturn_t {
            device(stringify!($name), handle, Some(link), |session, device, _| {
                // SAFETY: by NVML's contract null or valid for writes.
                let value = unsafe { Out::new(value) }?;
                let $link = answer::nvlink(&session.scenario, device, link)?;
                let answer: Result<$type, Code> = $value;
                value.put(answer?);
                Ok(())
            })
        }
    )*};
}

link_values! {
    nvmlDeviceGetNvLinkState: nvmlEnableState_t = |link| Ok(link.active.into());
    nvmlDeviceGetNvLinkVersion: c_uint = |link| Ok(link.version);
    nvmlDeviceGetNvLinkRemotePciInfo_v2: nvmlPciInfo_t = |link| {
        link.remote.as_ref().map(remote_pci_info).ok_or(Code::NOT_SUPPORTED)
    };
    nvmlDeviceGetNvLinkRemoteDeviceType: nvmlIntNvLinkDeviceType_t = |link| {
        link.remote.as_ref().map(|remote| answer::remote_kind(remote.kind)).ok_or(Code::NOT_SUPPORTED)
    };
}

/// The subsystem is not filled in for the other end of a link.
fn remote_pci_info(remote: &Remote) -> nvmlPciInfo_t {
    let id = remote.bus_id.parse::<BusId>().ok();
    let (text, legacy) = match id {
        Some(id) => (answer::bus_id(id), answer::bus_id_legacy(id)),
        None => (remote.bus_id.clone(), remote.bus_id.clone()),
    };
    nvmlPciInfo_t {
        busIdLegacy: text_array(&legacy),
        domain: id.map_or(0, BusId::domain),
        bus: id.map_or(0, |id| id.bus().into()),
        device: id.map_or(0, |id| id.device().into()),
        pciDeviceId: remote.pci_device_id,
        pciSubSystemId: 0,
        busId: text_array(&text),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkCapability(
    handle: nvmlDevice_t,
    link: c_uint,
    capability: nvmlNvLinkCapability_t,
    result: *mut c_uint,
) -> nvmlReturn_t {
    device("nvmlDeviceGetNvLinkCapability", handle, Some(link), |session, device, _| {
        // SAFETY: by NVML's contract null or valid for writes.
        let result = unsafe { Out::new(result) }?;
        result.put(answer::capability(&session.scenario, device, link, capability)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    handle: nvmlDevice_t,
    link: c_uint,
    counter: nvmlNvLinkErrorCounter_t,
    value: *mut c_ulonglong,
) -> nvmlReturn_t {
    device("nvmlDeviceGetNvLinkErrorCounter", handle, Some(link), |session, device, _| {
        // SAFETY: by NVML's contract null or valid for writes.
        let value = unsafe { Out::new(value) }?;
        let link = answer::nvlink(&session.scenario, device, link)?;
        value.put(answer::error_counter(link, counter)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    handle: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    const CALL: &str = "nvmlDeviceGetFieldValues";
    device(CALL, handle, None, |session, device, index| {
        let count = usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)?;
        // SAFETY: by NVML's contract null or an array of that length in which the caller has set the ids.
        for value in unsafe { slice_of(values, count) }? {
            let (id, scope) = (value.fieldId, value.scopeId);
            let place =
                Place { call: CALL, device: Some(index), link: Some(scope), field: Some(id) };
            let answer = session
                .play(place)
                .and_then(|()| answer::field(&session.scenario, device, id, scope));
            value.timestamp = now_us();
            value.latencyUsec = 1;
            match answer {
                Ok(Value::Int(number)) => {
                    value.valueType = nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
                    value.value = nvmlValue_t { ullVal: number.into() };
                    value.nvmlReturn = Code::SUCCESS.0;
                }
                Ok(Value::LongLong(number)) => {
                    value.valueType = nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
                    value.value = nvmlValue_t { ullVal: number };
                    value.nvmlReturn = Code::SUCCESS.0;
                }
                Err(code) => value.nvmlReturn = code.0,
            }
        }
        Ok(())
    })
}

fn now_us() -> c_longlong {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    c_longlong::try_from(since.as_micros()).unwrap_or(c_longlong::MAX)
}

// === fabric ===

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfo(
    handle: nvmlDevice_t,
    info: *mut nvmlGpuFabricInfo_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetGpuFabricInfo", handle, None, |_, device, _| {
        // SAFETY: by NVML's contract null or valid for writes.
        let info = unsafe { Out::new(info) }?;
        let fabric = device.fabric.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        info.put(nvmlGpuFabricInfo_t {
            clusterUuid: fabric.cluster_uuid,
            status: fabric.status.0,
            cliqueId: fabric.clique_id,
            state: fabric.state,
        });
        Ok(())
    })
}

/// Fills the second or third form of the structure, as its version field asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    handle: nvmlDevice_t,
    info: *mut nvmlGpuFabricInfoV_t,
) -> nvmlReturn_t {
    device("nvmlDeviceGetGpuFabricInfoV", handle, None, |_, device, _| {
        if info.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and by NVML's contract every form starts with a version that the caller has set.
        let version = unsafe { info.cast::<c_uint>().read() };
        let fabric = device.fabric.as_ref().ok_or(Code::NOT_SUPPORTED);
        if version == version_of::<nvmlGpuFabricInfo_v2_t>(2) {
            let fabric = fabric?;
            // SAFETY: the version says that the caller's structure is of this form.
            let info = unsafe { Out::new(info.cast::<nvmlGpuFabricInfo_v2_t>()) }?;
            info.put(nvmlGpuFabricInfo_v2_t {
                version,
                clusterUuid: fabric.cluster_uuid,
                status: fabric.status.0,
                cliqueId: fabric.clique_id,
                state: fabric.state,
                healthMask: fabric.health_mask,
            });
            Ok(())
        } else if version == version_of::<nvmlGpuFabricInfo_v3_t>(3) {
            let fabric = fabric?;
            // SAFETY: the version says that the caller's structure is of this form.
            let info = unsafe { Out::new(info.cast::<nvmlGpuFabricInfo_v3_t>()) }?;
            info.put(nvmlGpuFabricInfo_v3_t {
                version,
                clusterUuid: fabric.cluster_uuid,
                status: fabric.status.0,
                cliqueId: fabric.clique_id,
                state: fabric.state,
                healthMask: fabric.health_mask,
                healthSummary: fabric.health_summary,
            });
            Ok(())
        } else {
            Err(Code::ARGUMENT_VERSION_MISMATCH)
        }
    })
}

// === events ===

/// An event set: for each device index, the kinds registered.
type EventSet = std::sync::Mutex<Vec<(u32, u64)>>;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    system("nvmlEventSetCreate", |_| {
        // SAFETY: by NVML's contract null or valid for writes.
        let set = unsafe { Out::new(set) }?;
        set.put(Arc::into_raw(Arc::new(EventSet::default())).cast_mut().cast());
        Ok(())
    })
}

/// Borrows a set for the time of a call, so that freeing it meanwhile does no harm.
///
/// # Safety
/// The pointer is null or came from `nvmlEventSetCreate` and was not freed.
unsafe fn event_set(set: nvmlEventSet_t) -> Result<Arc<EventSet>, Code> {
    if set.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let set = set.cast::<EventSet>().cast_const();
    // SAFETY: as the caller promises, it is the pointer that `Arc::into_raw` gave and still counted.
    unsafe { Arc::increment_strong_count(set) };
    // SAFETY: the count that was just added is this one's.
    Ok(unsafe { Arc::from_raw(set) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRegisterEvents(
    handle: nvmlDevice_t,
    kinds: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    device("nvmlDeviceRegisterEvents", handle, None, |_, _, index| {
        if kinds & !c_ulonglong::from(EVENTS) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: passed on as it came.
        let set = unsafe { event_set(set) }?;
        set.lock().map_err(|_| Code::UNKNOWN)?.push((index, kinds));
        Ok(())
    })
}

/// Waits for the scenario's next event whose device and kind the set has, until the time is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    system("nvmlEventSetWait_v2", |session| {
        // SAFETY: passed on as it came.
        let set = unsafe { event_set(set) }?;
        // SAFETY: by NVML's contract null or valid for writes.
        let data = unsafe { Out::new(data) }?;
        let end = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            let registered = set.lock().map_err(|_| Code::UNKNOWN)?.clone();
            let next = session.delivered.load(Ordering::Acquire);
            let ready = session.scenario.events.get(next).filter(|event| {
                let wanted = |(device, kinds): &(u32, u64)| {
                    *device == event.device && kinds & event.kind != 0
                };
                registered.iter().any(wanted)
                    && event.when_exists.as_ref().is_none_or(|file| file.exists())
            });
            let take = || {
                session
                    .delivered
                    .compare_exchange(next, next + 1, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            };
            if let Some(event) = ready
                && take()
            {
                data.put(nvmlEventData_t {
                    device: handle_of(event.device),
                    eventType: event.kind,
                    eventData: event.data,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                });
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(Code::TIMEOUT);
            }
            sleep(Duration::from_millis(2));
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    system("nvmlEventSetFree", |_| {
        // SAFETY: passed on as it came.
        let borrowed = unsafe { event_set(set) }?;
        // SAFETY: the count that `nvmlEventSetCreate` left is given back once, as the caller frees a set once.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&borrowed)) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_unwind_into_c() {
        assert_eq!(guard(|| panic!("on purpose")), Code::UNKNOWN.0);
    }

    #[test]
    fn handles() {
        for index in [0, 1, 17, u32::from(u16::MAX)] {
            assert_eq!(index_of(handle_of(index)), Ok(index));
        }
        for address in [0, 1, 64, FIRST_HANDLE - 16, FIRST_HANDLE + 8, usize::MAX] {
            assert_eq!(
                index_of(ptr::without_provenance_mut(address)),
                Err(Code::INVALID_ARGUMENT),
                "{address:x}"
            );
        }
    }

    #[test]
    fn texts_fit_with_their_end_or_not_at_all() {
        let mut buffer = [1; 4];
        assert_eq!(put_text(&mut buffer, "four"), Err(Code::INSUFFICIENT_SIZE));
        assert_eq!(buffer, [1; 4]);
        assert_eq!(put_text(&mut buffer, "abc"), Ok(()));
        assert_eq!(buffer.last(), Some(&0));
    }
}
