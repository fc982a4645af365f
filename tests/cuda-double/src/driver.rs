//! The driver of this process: what `cuInit` makes, and what every call passes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::code::Code;
use crate::config::Config;
use crate::context::{self, Context};
use crate::device::Device;
use crate::event::Event;
use crate::fault::{self, Faults};
use crate::ffi;
use crate::kernel::{Function, Module};
use crate::memory::{Allocation, Memory};
use crate::report::{self, Counts};
use crate::stream::Stream;

/// What a driver of this age says of itself where the configuration does not: CUDA 12.9.
const VERSION: i32 = 12_090;

/// A configuration in the library's own folder, so that two copies in one process play two machines.
const BESIDE_LIBRARY: &str = "cuda-double.json";

/// Things by their handles.
#[derive(Debug)]
pub(crate) struct Table<T>(RwLock<BTreeMap<usize, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Table<T> {
    pub(crate) fn add(&self, handle: usize, value: Arc<T>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, value);
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, Code> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn take(&self, handle: usize) -> Result<Arc<T>, Code> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) config: Config,
    pub(crate) version: i32,
    pub(crate) devices: Vec<Device>,
    pub(crate) memory: Memory,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) faults: Faults,
    pub(crate) counts: Counts,
    process: u32,
    /// Tells this process from one that has its number later.
    pub(crate) nonce: u64,
    next_handle: AtomicUsize,
}

/// Handles point to nothing; they lie where no user's memory is on a 64-bit system with 47 bits of addresses.
const FIRST_HANDLE: usize = 0x00c0_da00_0000_0000;

static DRIVER: OnceLock<Result<Driver, Code>> = OnceLock::new();

thread_local! {
    /// Whether this thread runs a host's function of a stream, which must not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host's function of a stream.
pub(crate) fn in_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// The driver, initialised. A process made by `fork` does not have its parent's.
pub(crate) fn driver() -> Result<&'static Driver, Code> {
    match DRIVER.get() {
        Some(Ok(driver)) if driver.process == std::process::id() => Ok(driver),
        Some(Err(code)) => Err(*code),
        _ => Err(Code::NOT_INITIALIZED),
    }
}

/// `cuInit`.
pub(crate) fn init() -> Result<(), Code> {
    let driver = DRIVER.get_or_init(|| {
        let beside = ffi::own_path().and_then(|path| Some(path.parent()?.join(BESIDE_LIBRARY)));
        let config = Config::read(|name| std::env::var(name).ok(), beside);
        config.and_then(Driver::new).map_err(|why| {
            report::complain(&why);
            Code::SYSTEM_NOT_READY
        })
    });
    match driver {
        Ok(driver) if driver.devices.is_empty() => Err(Code::NO_DEVICE),
        Ok(driver) if driver.process != std::process::id() => Err(Code::NOT_INITIALIZED),
        Ok(driver) => {
            static ONCE: OnceLock<()> = OnceLock::new();
            ONCE.get_or_init(|| report::at_exit(driver));
            Ok(())
        }
        Err(code) => Err(*code),
    }
}

impl Driver {
    fn new(config: Config) -> Result<Self, String> {
        let faults = Faults::new(fault::parse(&config.faults)?);
        let devices: Vec<Device> =
            config.described().into_iter().map(Device::new).collect::<Result<_, _>>()?;
        let largest = devices.iter().map(|device| device.memory).max().unwrap_or(0);
        let memory = Memory::new(devices.len().max(1), largest, config.reuse)
            .map_err(|error| format!("addresses for devices: {error}"))?;
        let process = std::process::id();
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanoseconds =
            time.map_or(0, |time| u64::from(time.subsec_nanos()) ^ time.as_secs() << 20);
        Ok(Self {
            version: config.driver_version.unwrap_or(VERSION),
            config,
            devices,
            memory,
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            faults,
            counts: Counts::default(),
            process,
            nonce: nanoseconds << 20 | u64::from(process),
            next_handle: AtomicUsize::new(1),
        })
    }

    /// A handle that was never given out.
    pub(crate) fn handle(&self) -> usize {
        FIRST_HANDLE + 16 * self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<(usize, &Device), Code> {
        let index = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        self.devices.get(index).map(|device| (index, device)).ok_or(Code::INVALID_DEVICE)
    }

    /// A device's attribute, as it was configured or else as such devices have it.
    pub(crate) fn attribute(&self, device: &Device, number: i32) -> Option<i32> {
        let asked = self.config.attributes.get(&number).copied();
        asked.or_else(|| device.attribute(number))
    }

    /// The context that is current on this thread, in whatever state.
    pub(crate) fn current_any(&self) -> Result<Arc<Context>, Code> {
        match context::current_handle() {
            0 => Err(Code::INVALID_CONTEXT),
            handle => self.contexts.get(handle).map_err(|_| Code::CONTEXT_IS_DESTROYED),
        }
    }

    /// The context that is current on this thread and works.
    pub(crate) fn current(&self) -> Result<Arc<Context>, Code> {
        let context = self.current_any()?;
        context.check()?;
        Ok(context)
    }

    /// A context by its handle.
    pub(crate) fn context(&self, handle: usize) -> Result<Arc<Context>, Code> {
        self.contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)
    }

    /// A stream by its handle: 0 and 1 are the default stream of the current context, 2 a stream of this thread's own.
    pub(crate) fn stream(&'static self, handle: usize) -> Result<Arc<Stream>, Code> {
        thread_local! {
            static OWN: std::cell::RefCell<BTreeMap<usize, Arc<Stream>>> = const { std::cell::RefCell::new(BTreeMap::new()) };
        }
        let stream = match handle {
            0 | 1 => Arc::clone(self.current()?.default_stream()),
            2 => {
                let context = self.current()?;
                OWN.with_borrow_mut(|own| {
                    let made = || Stream::start(self, &context, 0, 0);
                    Arc::clone(own.entry(context.handle).or_insert_with(made))
                })
            }
            _ => self.streams.get(handle)?,
        };
        stream.context.check()?;
        Ok(stream)
    }

    /// Whether a device may reach another's memory.
    pub(crate) fn can_reach(&self, from: usize, to: usize) -> bool {
        let refused = |pair: &(usize, usize)| *pair == (from, to) || *pair == (to, from);
        from != to && !self.config.no_peer.iter().any(refused)
    }

    /// Ends a context: abandons what has not run, and frees what it owns.
    pub(crate) fn destroy(&self, context: &Arc<Context>) {
        context.end();
        for stream in context.all_streams() {
            if self.streams.take(stream.handle).is_ok() {
                self.counts.left_streams.fetch_add(1, Ordering::Relaxed);
            }
            stream.close();
            stream.wait_for(stream.submitted());
        }
        for event in self.events.all() {
            if event.context == context.handle {
                self.counts.left_events.fetch_add(1, Ordering::Relaxed);
                let _ = self.events.take(event.handle);
            }
        }
        for allocation in self.memory.all() {
            if allocation.context == context.handle {
                self.counts.left(&allocation);
                self.release(&allocation);
            }
        }
        for module in self.modules.all() {
            if module.context == context.handle {
                let _ = self.modules.take(module.handle);
            }
        }
        let _ = self.contexts.take(context.handle);
    }

    /// Takes memory out of the tables and the device's account.
    pub(crate) fn release(&self, allocation: &Arc<Allocation>) {
        if self.memory.remove(allocation).is_ok() && allocation.kind == crate::memory::Kind::Device
        {
            self.devices[allocation.device].used.fetch_sub(allocation.size, Ordering::AcqRel);
            if allocation.opened_elsewhere() > 0 {
                self.counts.freed_while_open.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Runs a call that needs no initialised driver.
pub(crate) fn call_without_driver(body: impl FnOnce() -> Result<(), Code>) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Runs a call: counts it, plays the faults that name it, and turns a panic into an unknown error.
pub(crate) fn call(
    name: &'static str,
    body: impl FnOnce(&'static Driver) -> Result<(), Code>,
) -> u32 {
    call_without_driver(|| {
        if IN_HOST_FUNCTION.get() {
            return Err(Code::NOT_PERMITTED);
        }
        let driver = driver()?;
        driver.counts.call(name);
        match driver.faults.call(name) {
            Some(code) => Err(code),
            None => body(driver),
        }
    })
}

/// Most ranges of priorities: least and greatest, as drivers of this age have.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// Counts allocations that were asked for, for faults that strike the nth.
pub(crate) fn out_of_memory(driver: &Driver, kind: fault::Kind, device: usize) -> Result<(), Code> {
    match driver.faults.strike(|one| *one == kind, Some(device), None) {
        Some(code) => Err(code.unwrap_or(Code::OUT_OF_MEMORY)),
        None => Ok(()),
    }
}
