//! What memory there is: device memory, memory of other processes, and host memory that the driver knows.
//!
//! ```text
//!   what a program holds   │ device 0      │ device 1      │ ...     reserved, never readable
//!   what the double uses   │ device 0      │ device 1      │ ...     the same offsets, mapped where there is an allocation
//! ```
//!
//! Addresses are handed out once and not again, so one that was freed stays wrong; `reuse` in the configuration hands out the
//! last freed first, as real drivers tend to. Small allocations begin at multiples of 512 and end at a page's end, so that what runs over them touches nothing else.

pub(crate) mod ffi;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::code::Code;

/// Addresses of a device: this many times its memory, and no fewer than that, so that what was freed need not be handed out again.
const TIMES: u64 = 4;
const FEWEST: u64 = 16 << 30;

/// What `cuMemAlloc` promises is suitable for any variable; real drivers give multiples of this.
const ALIGNMENT: u64 = 512;

/// Allocations from here on begin at multiples of this, as real drivers' do.
const LARGE: u64 = 2 << 20;

/// What fresh device memory holds, up to `FILLED` bytes: not zero, and not a number in any float format.
const FRESH: u8 = 0xff;
const FILLED: u64 = 1 << 20;

/// Words in the page behind the data, which all processes that map it share.
const ALIVE: u64 = 0;
const OPENED: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// Another process's, opened by a handle.
    Imported,
    /// `cuMemHostAlloc`, with its flags.
    Host(u32),
    /// `cuMemHostRegister`, with its flags.
    Registered(u32),
}

/// One allocation. Its bytes stay mapped while anything holds it, but it is no longer found once it was freed.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// As the program knows it.
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    /// Where the bytes are; that of the context where it is host memory.
    pub(crate) device: usize,
    /// Handle of the context that it belongs to.
    pub(crate) context: usize,
    /// Counts up over the process; never the same twice.
    pub(crate) id: u64,
    /// Where `base` is for the double.
    bytes: u64,
    /// Mapping and its length; of no length where the memory is the caller's.
    mapped: (u64, u64),
    reserved: bool,
    freed: AtomicBool,
    file: Option<File>,
    /// Page that is shared beside the data.
    control: Option<Control>,
    /// Whether copies are to be synchronous: `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(crate) synchronous: AtomicBool,
    /// How often this import is open in this process.
    pub(crate) opened: AtomicU64,
}

#[derive(Debug)]
struct Control(u64);

impl Control {
    fn map(file: &File, offset: u64) -> io::Result<Self> {
        ffi::map_anywhere(ffi::page(), file, offset).map(Self)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        ffi::give_back(self.0, ffi::page());
    }
}

/// What another process needs to map an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub(crate) descriptor: i32,
    pub(crate) inode: u64,
    pub(crate) size: u64,
}

impl Allocation {
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_) | Kind::Registered(_))
    }

    /// Whether neither this process nor that which it belongs to has freed it.
    pub(crate) fn is_alive(&self) -> bool {
        let elsewhere =
            |control: &Control| ffi::word32(control.0 + ALIVE).load(Ordering::Acquire) == 1;
        !self.freed.load(Ordering::Acquire) && self.control.as_ref().is_none_or(elsewhere)
    }

    /// How many other processes have it open.
    pub(crate) fn opened_elsewhere(&self) -> u32 {
        let count = |control: &Control| ffi::word32(control.0 + OPENED).load(Ordering::Acquire);
        self.control.as_ref().map_or(0, count)
    }

    pub(crate) fn shared(&self) -> Option<Shared> {
        let file = self.file.as_ref()?;
        let inode = file.metadata().ok()?.ino();
        Some(Shared { descriptor: file.as_raw_fd(), inode, size: self.size })
    }

    /// A descriptor of its bytes from a page on, which the caller closes.
    pub(crate) fn descriptor(&self) -> Result<i32, Code> {
        let file = self.file.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        ffi::duplicate(file).map_err(|_| Code::OPERATING_SYSTEM)
    }

    fn contains(&self, address: u64, length: u64) -> bool {
        let offset = address.checked_sub(self.base);
        offset.and_then(|offset| offset.checked_add(length)).is_some_and(|end| end <= self.size)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let (address, length) = self.mapped;
        if self.reserved {
            let _ = ffi::unmap(address, length);
        } else if length > 0 {
            ffi::give_back(address, length);
        }
    }
}

/// Bytes that an operation moves: where they are for the double, and what holds them there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// For the double's own access.
    pub(crate) bytes: u64,
    /// `None` for pageable memory of the host.
    pub(crate) allocation: Option<Arc<Allocation>>,
}

impl Place {
    pub(crate) fn is_pageable(&self) -> bool {
        self.allocation.is_none()
    }

    /// An error where it was freed since it was found.
    pub(crate) fn check(&self) -> Result<(), Code> {
        match &self.allocation {
            Some(allocation) if !allocation.is_alive() => Err(Code::ILLEGAL_ADDRESS),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Window {
    next: u64,
    /// Address ranges that were freed, by length: the last freed is handed out first.
    freed: Vec<(u64, u64)>,
}

/// All memory that the driver knows of in this process.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Begin of the addresses that programs get.
    handed_out: u64,
    /// Begin of those that the double uses.
    own: u64,
    length: u64,
    window_length: u64,
    reuse: bool,
    windows: Vec<Mutex<Window>>,
    by_base: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    next_id: AtomicU64,
}

fn up(value: u64, step: u64) -> u64 {
    value.next_multiple_of(step)
}

impl Memory {
    /// For so many devices, of which the largest has that many bytes.
    pub(crate) fn new(devices: usize, largest: u64, reuse: bool) -> io::Result<Self> {
        let window_length = up(largest.saturating_mul(TIMES).clamp(FEWEST, 1 << 41), LARGE);
        let length = window_length * devices as u64;
        let handed_out = ffi::reserve(length)?;
        let own = ffi::reserve(length)?;
        let window = |device: usize| {
            // The first address of a window is none, and large allocations begin at multiples of their alignment.
            let next = up(handed_out + window_length * device as u64 + 1, LARGE);
            Mutex::new(Window { next, freed: Vec::new() })
        };
        Ok(Self {
            handed_out,
            own,
            length,
            window_length,
            reuse,
            windows: (0..devices).map(window).collect(),
            by_base: RwLock::default(),
            next_id: AtomicU64::new(1),
        })
    }

    /// Whether an address is one of a device, allocated or not.
    pub(crate) fn is_device_address(&self, address: u64) -> bool {
        address.checked_sub(self.handed_out).is_some_and(|offset| offset < self.length)
    }

    /// A device address as the double reads it, allocated or not.
    pub(crate) fn own_address(&self, address: u64) -> u64 {
        address - self.handed_out + self.own
    }

    /// Begin and end of all that the double uses for devices.
    pub(crate) fn own_addresses(&self) -> (u64, u64) {
        (self.own, self.own + self.length)
    }

    /// Takes addresses: where the allocation begins, and the pages around it.
    fn place(&self, device: usize, size: u64) -> Result<(u64, u64, u64), Code> {
        let page = ffi::page();
        let (pages, offset) = if size >= LARGE {
            (up(size, page), 0)
        } else {
            let pages = up(size, page);
            (pages, (pages - up(size, ALIGNMENT)) / ALIGNMENT * ALIGNMENT)
        };
        let mut window = self.windows[device].lock().unwrap_or_else(PoisonError::into_inner);
        let fits = window.freed.iter().rposition(|(_, length)| *length == pages);
        if let Some(index) = fits.filter(|_| self.reuse) {
            let (address, _) = window.freed.remove(index);
            return Ok((address + offset, address, pages));
        }
        let address = if size >= LARGE { up(window.next, LARGE) } else { window.next };
        // An untouchable page stays between one allocation and the next.
        let end = address + pages + page;
        if end > self.handed_out + self.window_length * (device as u64 + 1) {
            return Err(Code::OUT_OF_MEMORY);
        }
        window.next = end;
        Ok((address + offset, address, pages))
    }

    fn add(&self, allocation: Allocation) -> Arc<Allocation> {
        let allocation = Arc::new(allocation);
        let mut by_base = self.by_base.write().unwrap_or_else(PoisonError::into_inner);
        by_base.insert(allocation.base, Arc::clone(&allocation));
        allocation
    }

    fn map(
        &self,
        kind: Kind,
        (device, context): (usize, usize),
        size: u64,
        file: File,
    ) -> Result<Arc<Allocation>, Code> {
        let (base, address, pages) = self.place(device, size)?;
        let mapped = (self.own_address(address), pages);
        let failed = |_| Code::MAP_FAILED;
        ffi::map_file(mapped.0, pages, &file).map_err(failed)?;
        let control = Control::map(&file, pages).map_err(failed)?;
        Ok(self.add(Allocation {
            base,
            size,
            kind,
            device,
            context,
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            bytes: self.own_address(base),
            mapped,
            reserved: true,
            freed: AtomicBool::new(false),
            file: Some(file),
            control: Some(control),
            synchronous: AtomicBool::new(false),
            opened: AtomicU64::new(1),
        }))
    }

    /// Device memory, filled with what is no number.
    pub(crate) fn allocate(
        &self,
        owner: (usize, usize),
        size: u64,
    ) -> Result<Arc<Allocation>, Code> {
        let length = up(size, ffi::page()) + ffi::page();
        let file = ffi::unnamed(length).map_err(|_| Code::OUT_OF_MEMORY)?;
        let allocation = self.map(Kind::Device, owner, size, file)?;
        ffi::fill(allocation.bytes, FRESH, size.min(FILLED));
        if let Some(control) = &allocation.control {
            ffi::word32(control.0 + ALIVE).store(1, Ordering::Release);
        }
        Ok(allocation)
    }

    /// Memory of another process.
    pub(crate) fn import(
        &self,
        owner: (usize, usize),
        process: u32,
        shared: Shared,
    ) -> Result<Arc<Allocation>, Code> {
        let file = ffi::open_of(process, shared.descriptor, shared.inode);
        let file = file.map_err(|_| Code::MAP_FAILED)?;
        let allocation = self.map(Kind::Imported, owner, shared.size, file)?;
        if !allocation.is_alive() {
            let _ = self.remove(&allocation);
            return Err(Code::MAP_FAILED);
        }
        if let Some(control) = &allocation.control {
            ffi::word32(control.0 + OPENED).fetch_add(1, Ordering::AcqRel);
        }
        Ok(allocation)
    }

    fn host(
        &self,
        kind: Kind,
        (device, context): (usize, usize),
        base: u64,
        size: u64,
        mapped: (u64, u64),
    ) -> Arc<Allocation> {
        self.add(Allocation {
            base,
            size,
            kind,
            device,
            context,
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            bytes: base,
            mapped,
            reserved: false,
            freed: AtomicBool::new(false),
            file: None,
            control: None,
            synchronous: AtomicBool::new(false),
            opened: AtomicU64::new(0),
        })
    }

    /// Host memory that devices reach, filled as device memory is.
    pub(crate) fn allocate_host(
        &self,
        owner: (usize, usize),
        size: u64,
        flags: u32,
    ) -> Result<Arc<Allocation>, Code> {
        let length = up(size, ffi::page());
        let address = ffi::map_host(length).map_err(|_| Code::OUT_OF_MEMORY)?;
        ffi::fill(address, FRESH, size.min(FILLED));
        Ok(self.host(Kind::Host(flags), owner, address, size, (address, length)))
    }

    /// Makes memory of the caller's known.
    pub(crate) fn register(
        &self,
        owner: (usize, usize),
        base: u64,
        size: u64,
        flags: u32,
    ) -> Result<(), Code> {
        if self.is_device_address(base) {
            return Err(Code::INVALID_VALUE);
        }
        let end = base.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let overlaps = |one: &Allocation| one.base < end && base < one.base + one.size;
        if self.all().iter().any(|one| overlaps(one)) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.host(Kind::Registered(flags), owner, base, size, (0, 0));
        Ok(())
    }

    /// The allocation that an address lies in.
    pub(crate) fn containing(&self, address: u64) -> Option<Arc<Allocation>> {
        let by_base = self.by_base.read().unwrap_or_else(PoisonError::into_inner);
        let (_, allocation) = by_base.range(..=address).next_back()?;
        allocation.contains(address, 1).then(|| Arc::clone(allocation))
    }

    /// What begins at an address.
    pub(crate) fn beginning(&self, address: u64) -> Option<Arc<Allocation>> {
        let by_base = self.by_base.read().unwrap_or_else(PoisonError::into_inner);
        by_base.get(&address).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Allocation>> {
        let by_base = self.by_base.read().unwrap_or_else(PoisonError::into_inner);
        by_base.values().cloned().collect()
    }

    /// Forgets an allocation, for other processes too where it is ours. An error where somebody was faster.
    pub(crate) fn remove(&self, allocation: &Arc<Allocation>) -> Result<(), Code> {
        {
            let mut by_base = self.by_base.write().unwrap_or_else(PoisonError::into_inner);
            by_base.remove(&allocation.base).ok_or(Code::INVALID_VALUE)?;
        }
        allocation.freed.store(true, Ordering::Release);
        if let Some(control) = &allocation.control {
            if allocation.kind == Kind::Device {
                ffi::word32(control.0 + ALIVE).store(0, Ordering::Release);
            } else if allocation.kind == Kind::Imported {
                ffi::word32(control.0 + OPENED).fetch_sub(1, Ordering::AcqRel);
            }
        }
        if self.reuse && allocation.reserved {
            let (address, length) = allocation.mapped;
            let address = address - self.own + self.handed_out;
            // What still holds the bytes keeps them; new ones are laid over the addresses only.
            if Arc::strong_count(allocation) == 1 {
                let window = &self.windows[allocation.device];
                let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
                window.freed.push((address, length));
            }
        }
        Ok(())
    }

    /// Finds the bytes of a range that lies in one allocation, or in pageable memory as a whole.
    pub(crate) fn find(&self, address: u64, length: u64) -> Result<Place, Code> {
        if let Some(allocation) = self.containing(address) {
            if !allocation.contains(address, length) || !allocation.is_alive() {
                return Err(Code::INVALID_VALUE);
            }
            let bytes = allocation.bytes + (address - allocation.base);
            return Ok(Place { bytes, allocation: Some(allocation) });
        }
        if address == 0 || self.is_device_address(address) {
            return Err(Code::INVALID_VALUE);
        }
        let end = address.checked_add(length).ok_or(Code::INVALID_VALUE)?;
        // A range that runs into memory the driver knows is in part pageable, in part not: drivers refuse it.
        let by_base = self.by_base.read().unwrap_or_else(PoisonError::into_inner);
        if by_base.range(address..end).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Place { bytes: address, allocation: None })
    }
}
