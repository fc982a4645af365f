//! The CUDA driver, as far as the check needs it: one device, one stream.
#![expect(unsafe_code, reason = "calls the driver's C interface")]

use std::ffi::{CString, c_char, c_void};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{DriverError, result};

/// What the driver said, with its own words.
fn said(what: &str) -> impl Fn(DriverError) -> String + '_ {
    move |error| {
        let words = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let name = error.error_name().map(|text| text.to_string_lossy().into_owned());
        format!("{what}: {} ({})", words.unwrap_or_default(), name.unwrap_or_default())
    }
}

/// A device with its context current on this thread, and a stream.
#[derive(Debug)]
pub(crate) struct Gpu {
    device: sys::CUdevice,
    stream: sys::CUstream,
    capability: u32,
    multiprocessors: u32,
}

impl Gpu {
    /// # Errors
    /// Says what is missing: the driver, or the device.
    pub(crate) fn open(number: u32) -> Result<Self, String> {
        // SAFETY: the driver's initialisers do nothing but set it up.
        if !unsafe { sys::is_culib_present() } {
            return Err("no CUDA driver: libcuda.so.1 is not on this host".to_owned());
        }
        result::init().map_err(said("the CUDA driver does not start"))?;
        let count = result::device::get_count().map_err(said("devices"))?;
        let number = i32::try_from(number).map_err(|_| format!("no GPU {number}"))?;
        if number >= count {
            return Err(format!("no GPU {number}: the driver shows {count}"));
        }
        let device = result::device::get(number).map_err(said("the device"))?;
        // SAFETY: a device that the driver just named.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(said("its context"))?;
        // SAFETY: a context that is retained to the end of this.
        unsafe { result::ctx::set_current(context) }.map_err(said("its context"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let mut gpu = Self {
            device,
            stream: stream.map_err(said("a stream"))?,
            capability: 0,
            multiprocessors: 0,
        };
        let major = gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        gpu.capability = major * 10 + minor;
        gpu.multiprocessors = gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(gpu)
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32, String> {
        // SAFETY: a device of the driver's.
        let value = unsafe { result::device::get_attribute(self.device, attribute) };
        Ok(u32::try_from(value.map_err(said("an attribute"))?).unwrap_or(0))
    }

    /// Times ten, as in 90.
    pub(crate) fn capability(&self) -> u32 {
        self.capability
    }

    pub(crate) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    pub(crate) fn name(&self) -> Result<String, String> {
        result::device::get_name(self.device).map_err(said("its name"))
    }

    /// As `0000:1B:00.0`.
    pub(crate) fn bus_id(&self) -> Result<String, String> {
        let mut text = [0_u8; 32];
        // SAFETY: room for so many letters.
        let code = unsafe {
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast::<c_char>(), 32, self.device)
        };
        code.result().map_err(said("its bus"))?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// As NVML spells it.
    pub(crate) fn uuid(&self) -> Result<String, String> {
        let uuid = result::device::get_uuid(self.device).map_err(said("its UUID"))?;
        let hex: Vec<String> =
            uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect();
        let part = |from: usize, to: usize| hex[from..to].concat();
        Ok(format!(
            "GPU-{}-{}-{}-{}-{}",
            part(0, 4),
            part(4, 6),
            part(6, 8),
            part(8, 10),
            part(10, 16)
        ))
    }

    pub(crate) fn memory_bytes(&self) -> Result<u64, String> {
        // SAFETY: a device of the driver's.
        let bytes = unsafe { result::device::total_mem(self.device) };
        Ok(bytes.map_err(said("its memory"))? as u64)
    }

    /// Bytes that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64, String> {
        Ok(result::mem_get_info().map_err(said("its free memory"))?.0 as u64)
    }

    pub(crate) fn driver_version(&self) -> Result<i32, String> {
        let mut version = 0;
        // SAFETY: room for a number.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .map_err(said("its version"))?;
        Ok(version)
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<Memory, String> {
        // SAFETY: the context is current; what is in the memory is not read before it is written.
        let at = unsafe { result::malloc_sync(bytes.max(1)) }
            .map_err(said(&format!("{bytes} bytes of memory")))?;
        Ok(Memory { at, bytes })
    }

    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned, String> {
        // SAFETY: the context is current.
        let at = unsafe { result::malloc_host(bytes.max(1), 0) };
        let at = at.map_err(said(&format!("{bytes} bytes of pinned memory")))?;
        // SAFETY: so many bytes that were just given; any are a value.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, bytes) };
        Ok(Pinned { at: at.cast(), bytes })
    }

    /// The stream, for a library that takes one.
    pub(crate) fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }

    /// How many GPUs the driver shows.
    pub(crate) fn count() -> Result<u32, String> {
        let count = result::device::get_count().map_err(said("devices"))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Waits for the stream.
    pub(crate) fn wait(&self) -> Result<(), String> {
        // SAFETY: this device's stream.
        unsafe { result::stream::synchronize(self.stream) }.map_err(said("the stream"))
    }

    /// Queues a copy to the device; the host's memory is not touched before `wait`.
    pub(crate) fn to_device(&self, to: &Memory, from: &[u8]) -> Result<(), String> {
        assert!(from.len() <= to.bytes, "a copy stays within its memory");
        // SAFETY: both are as long, and the caller waits.
        unsafe { result::memcpy_htod_async(to.at, from, self.stream) }
            .map_err(said("a copy to the device"))
    }

    /// Queues a copy from the device.
    pub(crate) fn to_host(&self, to: &mut [u8], from: &Memory) -> Result<(), String> {
        assert!(to.len() <= from.bytes, "a copy stays within its memory");
        // SAFETY: both are as long, and the caller waits.
        unsafe { result::memcpy_dtoh_async(to, from.at, self.stream) }
            .map_err(said("a copy to the host"))
    }

    /// Queues a copy on the device.
    pub(crate) fn on_device(&self, to: &Memory, from: &Memory, bytes: usize) -> Result<(), String> {
        assert!(bytes <= to.bytes && bytes <= from.bytes, "a copy stays within its memory");
        // SAFETY: both are as long.
        unsafe { result::memcpy_dtod_async(to.at, from.at, bytes, self.stream) }
            .map_err(said("a copy on the device"))
    }

    /// How long the stream takes for what is queued meanwhile, by its own clock.
    pub(crate) fn timed(
        &self,
        queue: impl FnOnce() -> Result<(), String>,
    ) -> Result<Duration, String> {
        let start = Event::new()?;
        let end = Event::new()?;
        start.record(self.stream)?;
        queue()?;
        end.record(self.stream)?;
        self.wait()?;
        // SAFETY: both were recorded and reached.
        let milliseconds =
            unsafe { result::event::elapsed(start.0, end.0) }.map_err(said("a time"))?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1000.0))
    }

    /// As `timed`, by the host's clock, with the waiting.
    pub(crate) fn timed_by_host(
        &self,
        queue: impl FnOnce() -> Result<(), String>,
    ) -> Result<Duration, String> {
        let start = Instant::now();
        queue()?;
        self.wait()?;
        Ok(start.elapsed())
    }

    pub(crate) fn load(&self, ptx: &str) -> Result<Module, String> {
        let text = CString::new(ptx).map_err(|error| error.to_string())?;
        // SAFETY: a terminated text.
        let module = unsafe { result::module::load_data(text.as_ptr().cast::<c_void>()) };
        module.map(Module).map_err(said("the kernels do not load"))
    }

    pub(crate) fn function(&self, module: &Module, name: &str) -> Result<Function, String> {
        let text = CString::new(name).map_err(|error| error.to_string())?;
        let handle = module.0;
        // SAFETY: a module that is loaded.
        let function = unsafe { result::module::get_function(handle, text) };
        Ok(Function(function.map_err(said(name))?))
    }

    /// Queues a reduction: `target[i] = sources[0][i] op sources[1][i] ...`, elements from `shift` on in each.
    pub(crate) fn fold(&self, function: Function, fold: &Fold<'_>) -> Result<(), String> {
        assert!(fold.sources.len() <= transport_cuda::SOURCES, "more sources than a launch takes");
        let offset = (fold.shift * fold.element_bytes) as u64;
        let bytes = (fold.shift + fold.elements) * fold.element_bytes;
        let fits = fold.sources.iter().chain([&fold.target]).all(|memory| bytes <= memory.bytes);
        assert!(fits, "a reduction stays within its memory");
        let mut sources = [0_u64; transport_cuda::SOURCES];
        for (place, memory) in sources.iter_mut().zip(fold.sources) {
            *place = memory.at + offset;
        }
        let mut count = u32::try_from(fold.sources.len()).unwrap_or(0);
        let mut target = fold.target.at + offset;
        let mut elements = fold.elements as u64;
        let mut ranks = fold.ranks;
        let mut parameters: [*mut c_void; 5] = [
            (&raw mut sources).cast(),
            (&raw mut count).cast(),
            (&raw mut target).cast(),
            (&raw mut elements).cast(),
            (&raw mut ranks).cast(),
        ];
        let (grid, block) = ((fold.blocks, 1, 1), (transport_cuda::THREADS, 1, 1));
        // SAFETY: the kernel's parameters in its order, over memory as long as it is told.
        let launched = unsafe {
            result::launch_kernel(function.0, grid, block, 0, self.stream, &mut parameters)
        };
        launched.map_err(said("a launch"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: this device's stream, which nothing uses any more.
        let _ = unsafe { result::stream::destroy(self.stream) };
        // SAFETY: retained when this was opened.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// One reduction.
#[derive(Debug)]
pub(crate) struct Fold<'a> {
    pub(crate) sources: &'a [&'a Memory],
    pub(crate) target: &'a Memory,
    pub(crate) element_bytes: usize,
    pub(crate) elements: usize,
    /// Elements before the first.
    pub(crate) shift: usize,
    /// What a sum is divided by; 0 for nothing.
    pub(crate) ranks: i32,
    pub(crate) blocks: u32,
}

/// Memory of the device.
#[derive(Debug)]
pub(crate) struct Memory {
    at: sys::CUdeviceptr,
    bytes: usize,
}

impl Memory {
    /// Where it begins, for a library that takes so many bytes of it.
    pub(crate) fn pointer(&self, bytes: usize) -> *mut c_void {
        assert!(bytes <= self.bytes, "a library stays within its memory");
        std::ptr::without_provenance_mut(usize::try_from(self.at).unwrap_or(0))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by the driver and freed once. An error was told by the call that met it.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

/// Pinned memory of the host.
#[derive(Debug)]
pub(crate) struct Pinned {
    at: *mut u8,
    bytes: usize,
}

impl Pinned {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes, filled when they were given.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: given by the driver and freed once.
        let _ = unsafe { result::free_host(self.at.cast()) };
    }
}

struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Self, String> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        event.map(Self).map_err(said("an event"))
    }

    fn record(&self, stream: sys::CUstream) -> Result<(), String> {
        // SAFETY: an event and a stream of the same device.
        unsafe { result::event::record(self.0, stream) }.map_err(said("an event"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by the driver and destroyed once.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Loaded kernels; they stay until the context ends.
#[derive(Clone, Debug)]
pub(crate) struct Module(sys::CUmodule);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(sys::CUfunction);
