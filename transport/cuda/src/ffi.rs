//! libcuda, loaded at run time: the calls this crate makes, as safe functions.
//!
//! Codes are numbers here, not a list of names: a driver newer than the list it was written from may answer what the list does not have,
//! and a name for it would be undefined behaviour. Handles are numbers too: nothing here looks behind them.
#![expect(unsafe_code, reason = "loads and calls CUDA's driver")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use libloading::Library;
use transport::{Communicator as Group, DeviceMemory};

use crate::SOURCES;
use crate::buffer::{Buffer, Memory};
use crate::context::Context;
use crate::error::{DriverError, NoDriver};
use crate::flagged::{self, Places, Words};
use crate::stream::Stream;

/// What the driver installs; the name without a number belongs to the toolkit, and may be its stub.
const LIBRARY: &str = "libcuda.so.1";

/// Names another library, by path: a driver in an unusual place, or a double.
const LIBRARY_VARIABLE: &str = "TOPOD_CUDA_LIBRARY";

/// Where something lies for the driver, and with unified addressing for every device of the process (`CUdeviceptr`).
pub(crate) type Address = u64;

/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`: a pointer nobody follows.
pub(crate) type Handle = usize;

/// Bytes of a handle that names memory to another process (`CU_IPC_HANDLE_SIZE`).
pub(crate) const IPC_BYTES: usize = 64;

/// `CUipcMemHandle`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpcHandle(pub(crate) [u8; IPC_BYTES]);

/// `CUresult` values this crate acts on (cuda.h).
pub(crate) mod code {
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
}

/// `CUdevice_attribute` values (cuda.h).
pub(crate) mod attribute {
    pub(crate) const MULTIPROCESSOR_COUNT: i32 = 16;
    pub(crate) const UNIFIED_ADDRESSING: i32 = 41;
    pub(crate) const COOPERATIVE_LAUNCH: i32 = 95;
    pub(crate) const CAPABILITY_MAJOR: i32 = 75;
    pub(crate) const CAPABILITY_MINOR: i32 = 76;
    pub(crate) const GPU_DIRECT_RDMA_SUPPORTED: i32 = 116;
    pub(crate) const GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: i32 = 117;
    pub(crate) const GPU_DIRECT_RDMA_WRITES_ORDERING: i32 = 118;
    pub(crate) const DMA_BUF_SUPPORTED: i32 = 124;
}

/// `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`: over NVLink, not over PCIe.
const P2P_NATIVE_ATOMICS: c_uint = 3;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const RANGE_AS_DMA_BUF: c_uint = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`.
const FLUSH_OF_CURRENT: c_uint = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`.
const FLUSH_TO_OWNER: c_uint = 100;

/// `cuMemGetHandleForAddressRange`, of CUDA 11.7.
type RangeHandle = unsafe extern "C" fn(*mut c_int, Address, usize, c_uint, u64) -> u32;
/// `cuFlushGPUDirectRDMAWrites`, of CUDA 11.3.
type FlushWrites = unsafe extern "C" fn(c_uint, c_uint) -> u32;

/// `CU_STREAM_NON_BLOCKING`: no order with the legacy default stream.
const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const REGISTER_FOR_ALL: u32 = 1 | 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const IPC_PEER_ACCESS: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`: on through the wrap, for the difference is what is compared.
const WAIT_AT_LEAST: u32 = 0;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: after everything before it in the stream is visible to the whole system.
const WRITE_AFTER_ALL: u32 = 0;

macro_rules! table {
    ($($field:ident: $symbol:literal ($($name:ident: $type:ty),*);)*) => {
        /// The driver's functions.
        pub(crate) struct Driver {
            /// By which path or name it was found.
            library: String,
            $($field: unsafe extern "C" fn($($type),*) -> u32,)*
            /// What older drivers do without.
            range_handle: Option<RangeHandle>,
            flush_writes: Option<FlushWrites>,
            _library: Library,
        }

        impl Driver {
            fn bind(library: Library, name: String) -> Result<Self, NoDriver> {
                $(
                    // SAFETY: The declaration is the header's.
                    let found = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> u32>($symbol.as_bytes()) };
                    let $field = *found.map_err(|_| NoDriver::Old {
                        library: name.clone(),
                        missing: $symbol,
                    })?;
                )*
                let range_handle = optional::<RangeHandle>(&library, b"cuMemGetHandleForAddressRange\0");
                let flush_writes = optional::<FlushWrites>(&library, b"cuFlushGPUDirectRDMAWrites\0");
                Ok(Self { library: name, $($field,)* range_handle, flush_writes, _library: library })
            }
        }

        /// Each function by its declaration, without a judgement of its code.
        #[expect(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        impl Driver {
            $(
                fn $field(&self, $($name: $type),*) -> u32 {
                    let function = self.$field;
                    // SAFETY: The callers in this module pass places that live for the call and are as long as they say.
                    unsafe { function($($name),*) }
                }
            )*
        }
    };
}

table! {
    init: "cuInit" (flags: c_uint);
    version: "cuDriverGetVersion" (version: *mut c_int);
    error_name: "cuGetErrorName" (code: u32, name: *mut *const c_char);
    error_words: "cuGetErrorString" (code: u32, words: *mut *const c_char);
    device_count: "cuDeviceGetCount" (count: *mut c_int);
    device_get: "cuDeviceGet" (device: *mut c_int, ordinal: c_int);
    device_name: "cuDeviceGetName" (name: *mut c_char, length: c_int, device: c_int);
    device_bus_id: "cuDeviceGetPCIBusId" (id: *mut c_char, length: c_int, device: c_int);
    device_by_bus_id: "cuDeviceGetByPCIBusId" (device: *mut c_int, id: *const c_char);
    device_attribute: "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: c_int);
    can_access_peer: "cuDeviceCanAccessPeer" (can: *mut c_int, device: c_int, peer: c_int);
    peer_attribute: "cuDeviceGetP2PAttribute" (value: *mut c_int, attribute: c_uint, device: c_int, peer: c_int);
    primary_retain: "cuDevicePrimaryCtxRetain" (context: *mut Handle, device: c_int);
    primary_release: "cuDevicePrimaryCtxRelease_v2" (device: c_int);
    context_push: "cuCtxPushCurrent_v2" (context: Handle);
    context_pop: "cuCtxPopCurrent_v2" (context: *mut Handle);
    priority_range: "cuCtxGetStreamPriorityRange" (least: *mut c_int, greatest: *mut c_int);
    enable_peer: "cuCtxEnablePeerAccess" (peer: Handle, flags: c_uint);
    memory_allocate: "cuMemAlloc_v2" (address: *mut Address, bytes: usize);
    memory_free: "cuMemFree_v2" (address: Address);
    memory_range: "cuMemGetAddressRange_v2" (base: *mut Address, bytes: *mut usize, address: Address);
    host_register: "cuMemHostRegister_v2" (place: *mut c_void, bytes: usize, flags: c_uint);
    host_unregister: "cuMemHostUnregister" (place: *mut c_void);
    host_address: "cuMemHostGetDevicePointer_v2" (address: *mut Address, place: *mut c_void, flags: c_uint);
    copy_in: "cuMemcpyHtoD_v2" (target: Address, source: *const c_void, bytes: usize);
    copy_out: "cuMemcpyDtoH_v2" (target: *mut c_void, source: Address, bytes: usize);
    copy_async: "cuMemcpyAsync" (target: Address, source: Address, bytes: usize, stream: Handle);
    stream_create: "cuStreamCreateWithPriority" (stream: *mut Handle, flags: c_uint, priority: c_int);
    stream_destroy: "cuStreamDestroy_v2" (stream: Handle);
    stream_synchronize: "cuStreamSynchronize" (stream: Handle);
    stream_wait_event: "cuStreamWaitEvent" (stream: Handle, event: Handle, flags: c_uint);
    stream_wait_value: "cuStreamWaitValue32_v2" (stream: Handle, address: Address, value: u32, flags: c_uint);
    stream_write_value: "cuStreamWriteValue32_v2" (stream: Handle, address: Address, value: u32, flags: c_uint);
    event_create: "cuEventCreate" (event: *mut Handle, flags: c_uint);
    event_record: "cuEventRecord" (event: Handle, stream: Handle);
    stream_query: "cuStreamQuery" (stream: Handle);
    event_query: "cuEventQuery" (event: Handle);
    event_destroy: "cuEventDestroy_v2" (event: Handle);
    ipc_get: "cuIpcGetMemHandle" (handle: *mut IpcHandle, address: Address);
    ipc_open: "cuIpcOpenMemHandle_v2" (address: *mut Address, handle: IpcHandle, flags: c_uint);
    ipc_close: "cuIpcCloseMemHandle" (address: Address);
    module_load: "cuModuleLoadData" (module: *mut Handle, image: *const c_void);
    module_function: "cuModuleGetFunction" (function: *mut Handle, module: Handle, name: *const c_char);
    module_unload: "cuModuleUnload" (module: Handle);
    launch: "cuLaunchKernel" (
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
    launch_together: "cuLaunchCooperativeKernel" (
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: Handle, parameters: *mut *mut c_void
    );
    resident_blocks: "cuOccupancyMaxActiveBlocksPerMultiprocessor" (
        blocks: *mut c_int, function: Handle, threads: c_int, shared: usize
    );
}

/// A function that older drivers do without; `T` is its declaration in the header.
fn optional<T: Copy>(library: &Library, symbol: &[u8]) -> Option<T> {
    // SAFETY: Who names a symbol names its declaration with it.
    unsafe { library.get::<T>(symbol) }.ok().map(|found| *found)
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("library", &self.library).finish_non_exhaustive()
    }
}

type Outcome<T = ()> = Result<T, DriverError>;

impl Driver {
    /// The driver of this process, loaded and initialised at the first call.
    pub(crate) fn get() -> Result<&'static Self, NoDriver> {
        static DRIVER: OnceLock<Result<Driver, NoDriver>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, NoDriver> {
        let named = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty());
        let path = named.map_or_else(|| PathBuf::from(LIBRARY), PathBuf::from);
        let name = path.display().to_string();
        // SAFETY: The driver's initialisers do nothing but set it up; another library is the user's own choice.
        let library = unsafe { Library::new(&path) }.map_err(|error| NoDriver::NotFound {
            library: name.clone(),
            cause: error.to_string(),
        })?;
        let driver = Self::bind(library, name)?;
        match driver.check("cuInit", driver.init(0)) {
            Ok(()) => Ok(driver),
            Err(error) if error.code == code::NO_DEVICE => Err(NoDriver::NoDevice),
            Err(error) => Err(NoDriver::Refused(error)),
        }
    }

    fn check(&self, call: &'static str, code: u32) -> Outcome {
        if code == 0 {
            return Ok(());
        }
        Err(DriverError {
            call,
            device: None,
            code,
            name: self.name_of(code),
            words: self.words_of(code),
        })
    }

    fn name_of(&self, code: u32) -> String {
        let mut name = std::ptr::null();
        let known = self.error_name(code, &raw mut name);
        text(known, name).unwrap_or_else(|| format!("CUDA error {code}"))
    }

    fn words_of(&self, code: u32) -> String {
        let mut words = std::ptr::null();
        let known = self.error_words(code, &raw mut words);
        text(known, words).unwrap_or_default()
    }

    /// As in 12080 for 12.8.
    pub(crate) fn cuda_version(&self) -> Outcome<i32> {
        let mut version = 0;
        self.check("cuDriverGetVersion", self.version(&raw mut version))?;
        Ok(version)
    }

    pub(crate) fn devices(&self) -> Outcome<i32> {
        let mut count = 0;
        self.check("cuDeviceGetCount", self.device_count(&raw mut count))?;
        Ok(count)
    }

    pub(crate) fn device(&self, ordinal: i32) -> Outcome<i32> {
        let mut device = 0;
        self.check("cuDeviceGet", self.device_get(&raw mut device, ordinal))?;
        Ok(device)
    }

    pub(crate) fn device_at(&self, bus_id: &str) -> Outcome<i32> {
        let mut device = 0;
        let id = CString::new(bus_id).unwrap_or_default();
        self.check("cuDeviceGetByPCIBusId", self.device_by_bus_id(&raw mut device, id.as_ptr()))?;
        Ok(device)
    }

    pub(crate) fn name(&self, device: i32) -> Outcome<String> {
        let mut name = [0; 256];
        self.check("cuDeviceGetName", self.device_name(name.as_mut_ptr(), 256, device))?;
        Ok(terminated(&name))
    }

    pub(crate) fn bus_id(&self, device: i32) -> Outcome<String> {
        let mut id = [0; 64];
        self.check("cuDeviceGetPCIBusId", self.device_bus_id(id.as_mut_ptr(), 64, device))?;
        Ok(terminated(&id))
    }

    pub(crate) fn attribute(&self, attribute: i32, device: i32) -> Outcome<i32> {
        let mut value = 0;
        self.check(
            "cuDeviceGetAttribute",
            self.device_attribute(&raw mut value, attribute, device),
        )?;
        Ok(value)
    }

    pub(crate) fn reaches(&self, device: i32, peer: i32) -> Outcome<bool> {
        let mut can = 0;
        self.check("cuDeviceCanAccessPeer", self.can_access_peer(&raw mut can, device, peer))?;
        Ok(can != 0)
    }

    /// Whether atomic operations between two devices are the link's own, as over NVLink.
    pub(crate) fn has_native_atomics(&self, device: i32, peer: i32) -> Outcome<bool> {
        let mut value = 0;
        let code = self.peer_attribute(&raw mut value, P2P_NATIVE_ATOMICS, device, peer);
        self.check("cuDeviceGetP2PAttribute", code)?;
        Ok(value != 0)
    }

    pub(crate) fn retain(&self, device: i32) -> Outcome<Handle> {
        let mut context = 0;
        self.check("cuDevicePrimaryCtxRetain", self.primary_retain(&raw mut context, device))?;
        Ok(context)
    }

    pub(crate) fn release(&self, device: i32) -> Outcome {
        self.check("cuDevicePrimaryCtxRelease_v2", self.primary_release(device))
    }

    pub(crate) fn push(&self, context: Handle) -> Outcome {
        self.check("cuCtxPushCurrent_v2", self.context_push(context))
    }

    pub(crate) fn pop(&self) -> Outcome {
        let mut context = 0;
        self.check("cuCtxPopCurrent_v2", self.context_pop(&raw mut context))
    }

    /// Least and greatest; numbers of greater priority are lower.
    pub(crate) fn priorities(&self) -> Outcome<(i32, i32)> {
        let (mut least, mut greatest) = (0, 0);
        let code = self.priority_range(&raw mut least, &raw mut greatest);
        self.check("cuCtxGetStreamPriorityRange", code)?;
        Ok((least, greatest))
    }

    /// Lets the current context reach memory of another; done twice is as well.
    pub(crate) fn enable(&self, peer: Handle) -> Outcome {
        match self.enable_peer(peer, 0) {
            code::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => self.check("cuCtxEnablePeerAccess", other),
        }
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Outcome<Address> {
        let mut address = 0;
        self.check("cuMemAlloc_v2", self.memory_allocate(&raw mut address, bytes))?;
        Ok(address)
    }

    pub(crate) fn free(&self, address: Address) -> Outcome {
        self.check("cuMemFree_v2", self.memory_free(address))
    }

    /// Start and bytes of the allocation an address lies in.
    pub(crate) fn range(&self, address: Address) -> Outcome<(Address, usize)> {
        let (mut base, mut bytes) = (0, 0);
        let code = self.memory_range(&raw mut base, &raw mut bytes, address);
        self.check("cuMemGetAddressRange_v2", code)?;
        Ok((base, bytes))
    }

    /// Pins memory of this process and lets every device reach it; where it lies for the current context's device.
    pub(crate) fn register(&self, place: *mut u8, bytes: usize) -> Outcome<Address> {
        let code = self.host_register(place.cast(), bytes, REGISTER_FOR_ALL);
        self.check("cuMemHostRegister_v2", code)?;
        let mut address = 0;
        let code = self.host_address(&raw mut address, place.cast(), 0);
        self.check("cuMemHostGetDevicePointer_v2", code).inspect_err(|_| {
            self.host_unregister(place.cast());
        })?;
        Ok(address)
    }

    pub(crate) fn unregister(&self, place: *mut u8) -> Outcome {
        self.check("cuMemHostUnregister", self.host_unregister(place.cast()))
    }

    /// Copies and returns when that is done.
    pub(crate) fn write<T: Copy>(&self, target: Address, source: &[T]) -> Outcome {
        let code = self.copy_in(target, source.as_ptr().cast(), size_of_val(source));
        self.check("cuMemcpyHtoD_v2", code)
    }

    /// Copies and returns when that is done. Any bits must be a value of `T`.
    pub(crate) fn read<T: transport::Element>(&self, target: &mut [T], source: Address) -> Outcome {
        let code = self.copy_out(target.as_mut_ptr().cast(), source, size_of_val(target));
        self.check("cuMemcpyDtoH_v2", code)
    }

    pub(crate) fn copy(
        &self,
        target: Address,
        source: Address,
        bytes: usize,
        stream: Handle,
    ) -> Outcome {
        self.check("cuMemcpyAsync", self.copy_async(target, source, bytes, stream))
    }

    pub(crate) fn create_stream(&self, priority: i32) -> Outcome<Handle> {
        let mut stream = 0;
        let code = self.stream_create(&raw mut stream, STREAM_NON_BLOCKING, priority);
        self.check("cuStreamCreateWithPriority", code)?;
        Ok(stream)
    }

    pub(crate) fn destroy_stream(&self, stream: Handle) -> Outcome {
        self.check("cuStreamDestroy_v2", self.stream_destroy(stream))
    }

    pub(crate) fn synchronize(&self, stream: Handle) -> Outcome {
        self.check("cuStreamSynchronize", self.stream_synchronize(stream))
    }

    pub(crate) fn wait_event(&self, stream: Handle, event: Handle) -> Outcome {
        self.check("cuStreamWaitEvent", self.stream_wait_event(stream, event, 0))
    }

    /// The stream goes on once the word is at least the value, counted on through the wrap.
    pub(crate) fn wait_value(&self, stream: Handle, word: Address, value: u32) -> Outcome {
        let code = self.stream_wait_value(stream, word, value, WAIT_AT_LEAST);
        self.check("cuStreamWaitValue32_v2", code)
    }

    /// The word becomes the value once everything before it in the stream is visible to the whole system.
    pub(crate) fn write_value(&self, stream: Handle, word: Address, value: u32) -> Outcome {
        let code = self.stream_write_value(stream, word, value, WRITE_AFTER_ALL);
        self.check("cuStreamWriteValue32_v2", code)
    }

    pub(crate) fn create_event(&self) -> Outcome<Handle> {
        let mut event = 0;
        self.check("cuEventCreate", self.event_create(&raw mut event, EVENT_DISABLE_TIMING))?;
        Ok(event)
    }

    pub(crate) fn record(&self, event: Handle, stream: Handle) -> Outcome {
        self.check("cuEventRecord", self.event_record(event, stream))
    }

    /// Whether what was recorded is done.
    pub(crate) fn is_done(&self, event: Handle) -> Outcome<bool> {
        match self.event_query(event) {
            code::NOT_READY => Ok(false),
            other => self.check("cuEventQuery", other).map(|()| true),
        }
    }

    /// Whether everything in a stream is done.
    pub(crate) fn is_idle(&self, stream: Handle) -> Outcome<bool> {
        match self.stream_query(stream) {
            code::NOT_READY => Ok(false),
            other => self.check("cuStreamQuery", other).map(|()| true),
        }
    }

    pub(crate) fn destroy_event(&self, event: Handle) -> Outcome {
        self.check("cuEventDestroy_v2", self.event_destroy(event))
    }

    /// A DMA-BUF of a range that begins and ends with pages; `None` where the driver has no such call.
    pub(crate) fn export_range(&self, start: Address, bytes: usize) -> Outcome<Option<OwnedFd>> {
        let Some(export) = self.range_handle else { return Ok(None) };
        let mut fd = -1;
        // SAFETY: The descriptor is written.
        let code = unsafe { export(&raw mut fd, start, bytes, RANGE_AS_DMA_BUF, 0) };
        self.check("cuMemGetHandleForAddressRange", code)?;
        // SAFETY: The driver made it for its caller to close.
        Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Whether [`Driver::flush_remote_writes`] is there.
    pub(crate) const fn flushes(&self) -> bool {
        self.flush_writes.is_some()
    }

    /// Returns once what NICs have written to the current context's device is there for its own work.
    pub(crate) fn flush_remote_writes(&self) -> Outcome {
        let Some(flush) = self.flush_writes else { return Ok(()) };
        // SAFETY: It takes numbers alone.
        let code = unsafe { flush(FLUSH_OF_CURRENT, FLUSH_TO_OWNER) };
        self.check("cuFlushGPUDirectRDMAWrites", code)
    }

    /// Names the allocation that begins at an address to other processes.
    pub(crate) fn export(&self, base: Address) -> Outcome<IpcHandle> {
        let mut handle = IpcHandle([0; IPC_BYTES]);
        self.check("cuIpcGetMemHandle", self.ipc_get(&raw mut handle, base))?;
        Ok(handle)
    }

    /// Where an allocation of another process lies here.
    pub(crate) fn open(&self, handle: IpcHandle) -> Outcome<Address> {
        let mut address = 0;
        let code = self.ipc_open(&raw mut address, handle, IPC_PEER_ACCESS);
        self.check("cuIpcOpenMemHandle_v2", code)?;
        Ok(address)
    }

    pub(crate) fn close(&self, address: Address) -> Outcome {
        self.check("cuIpcCloseMemHandle", self.ipc_close(address))
    }

    /// Loads PTX or a cubin.
    pub(crate) fn load_module(&self, image: &[u8]) -> Outcome<Handle> {
        // PTX ends with a zero; what comes after a cubin is not looked at.
        let image = [image, &[0]].concat();
        let mut module = 0;
        self.check("cuModuleLoadData", self.module_load(&raw mut module, image.as_ptr().cast()))?;
        Ok(module)
    }

    pub(crate) fn function(&self, module: Handle, name: &str) -> Outcome<Handle> {
        let name = CString::new(name).unwrap_or_default();
        let mut function = 0;
        let code = self.module_function(&raw mut function, module, name.as_ptr());
        self.check("cuModuleGetFunction", code)?;
        Ok(function)
    }

    pub(crate) fn unload(&self, module: Handle) -> Outcome {
        self.check("cuModuleUnload", self.module_unload(module))
    }

    /// Launches one of the kernels of this crate, by their parameters.
    pub(crate) fn fold(&self, function: Handle, grid: u32, stream: Handle, fold: &Fold) -> Outcome {
        let mut fold = *fold;
        let mut parameters: [*mut c_void; 5] = [
            (&raw mut fold.sources).cast(),
            (&raw mut fold.count).cast(),
            (&raw mut fold.target).cast(),
            (&raw mut fold.elements).cast(),
            (&raw mut fold.ranks).cast(),
        ];
        let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        let code =
            self.launch(function, grid, 1, 1, crate::THREADS, 1, 1, 0, stream, parameters, extra);
        self.check("cuLaunchKernel", code)
    }
}

impl Driver {
    /// Launches a kernel of messages with flags, its blocks all at once.
    pub(crate) fn flagged(
        &self,
        function: Handle,
        blocks: u32,
        stream: Handle,
        (mut places, mut program): (Places, Words),
    ) -> Outcome {
        let mut parameters: [*mut c_void; 2] =
            [(&raw mut places).cast(), (&raw mut program).cast()];
        let parameters = parameters.as_mut_ptr();
        let threads = flagged::THREADS;
        let code =
            self.launch_together(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters);
        self.check("cuLaunchCooperativeKernel", code)
    }

    /// Blocks of so many threads that a multiprocessor holds at once; the function is loaded after that.
    pub(crate) fn resident(&self, function: Handle, threads: u32) -> Outcome<u32> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let code = self.resident_blocks(&raw mut blocks, function, threads, 0);
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }
}

/// What a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    pub(crate) sources: [Address; SOURCES],
    pub(crate) count: u32,
    pub(crate) target: Address,
    pub(crate) elements: u64,
    /// 0 where nothing is divided.
    pub(crate) ranks: i32,
}

/// Gives all of a buffer to the group's NICs, which may have it until they let it go; `None` where the group has none.
pub(crate) fn adopt(
    group: &Group,
    buffer: &Arc<Buffer>,
    dma_buf: Option<OwnedFd>,
) -> Option<DeviceMemory> {
    let owner = Box::new(Arc::clone(buffer));
    // SAFETY: The buffer is device memory of that length as long as its owner lives.
    unsafe { group.adopt(buffer.address(), buffer.bytes(), dma_buf, owner) }
}

/// A text of the driver's own, where it knows one.
fn text(code: u32, text: *const c_char) -> Option<String> {
    if code != 0 || text.is_null() {
        return None;
    }
    // SAFETY: The driver's texts end with a zero and live as long as the driver.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn terminated(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().take_while(|c| **c != 0).map(|c| c.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Memory {
    /// Memory of a device that somebody else owns, such as a tensor's.
    ///
    /// # Safety
    /// `address` is one of the context's device (or reachable from it) and valid for `bytes` bytes until every operation that was given the
    /// memory is done; nothing else writes it meanwhile, or reads what is written.
    #[must_use]
    pub const unsafe fn borrowed(address: u64, bytes: usize) -> Self {
        Self::of(None, address, bytes)
    }
}

impl Stream {
    /// A stream that somebody else owns, such as a framework's: the value of its `CUstream`; 0 is the legacy default stream.
    ///
    /// # Safety
    /// It is a stream of the context's device, and lives as long as this value.
    #[must_use]
    pub unsafe fn borrowed(context: &Arc<Context>, stream: usize) -> Self {
        Self::of(Arc::clone(context), stream, false)
    }
}
