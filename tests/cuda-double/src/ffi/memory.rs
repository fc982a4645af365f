//! Allocations and what addresses are.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{In, Out, address};
use crate::code::Code;
use crate::driver::{Driver, out_of_memory};
use crate::fault;
use crate::memory::{Allocation, Kind, ffi};

/// A value of `cuPointerGetAttribute`, of the type that the attribute has.
enum Value {
    Word(u64),
    Int(u32),
    Byte(bool),
}

impl Value {
    fn put(self, to: *mut c_void) -> Result<(), Code> {
        match self {
            Self::Word(value) => Out(to.cast()).put(value),
            Self::Int(value) => Out(to.cast()).put(value),
            Self::Byte(value) => Out(to.cast()).put(u8::from(value)),
        }
    }
}

/// `None` where the attribute says nothing of such memory.
fn attribute(allocation: &Allocation, at: u64, attribute: u32) -> Option<Value> {
    let host = allocation.is_host();
    Some(match attribute {
        1 => Value::Word(allocation.context as u64),
        2 => Value::Int(if host { 1 } else { 2 }),
        3 => Value::Word(at),
        4 if host => Value::Word(at),
        6 => Value::Byte(allocation.synchronous.load(Ordering::Relaxed)),
        7 => Value::Word(allocation.id),
        8 => Value::Byte(false),
        9 => Value::Int(u32::try_from(allocation.device).unwrap_or(0)),
        10 => Value::Byte(allocation.kind == Kind::Device),
        11 => Value::Word(allocation.base),
        12 => Value::Word(allocation.size),
        13 => Value::Byte(true),
        14 => Value::Word(0),
        15 => Value::Byte(!host),
        // Read and write.
        16 => Value::Int(3),
        17 => Value::Word(0),
        _ => return None,
    })
}

/// What an attribute of an unknown address is, in the plural call.
fn nothing(attribute: u32) -> Result<Value, Code> {
    Ok(match attribute {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => Value::Word(0),
        2 | 16 => Value::Int(0),
        9 => Value::Int((-2_i32).cast_unsigned()),
        6 | 8 | 10 | 13 | 15 => Value::Byte(false),
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Frees after everything that was queued: a real driver waits for the device.
fn free(driver: &Driver, allocation: &Arc<Allocation>) -> Result<(), Code> {
    let result = match driver.context(allocation.context) {
        Ok(context) => context.synchronize(),
        Err(_) => Ok(()),
    };
    driver.release(allocation);
    result
}

entries! {
    fn cuMemGetInfo_v2(driver, free: Out<usize>, total: Out<usize>) {
        let device = &driver.devices[driver.current()?.device];
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        free.put(size(device.memory.saturating_sub(device.used.load(Ordering::Acquire))))?;
        total.put(size(device.memory))
    }

    fn cuMemAlloc_v2(driver, out: Out<u64>, bytes: usize) {
        let context = driver.current()?;
        if bytes == 0 || out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        out_of_memory(driver, fault::Kind::Memory, context.device)?;
        let (device, bytes) = (&driver.devices[context.device], bytes as u64);
        let before = device.used.fetch_add(bytes, Ordering::AcqRel);
        let fits = before.checked_add(bytes).is_some_and(|used| used <= device.memory);
        let owner = (context.device, context.handle);
        let made = if fits { driver.memory.allocate(owner, bytes) } else { Err(Code::OUT_OF_MEMORY) };
        if made.is_err() {
            device.used.fetch_sub(bytes, Ordering::AcqRel);
        }
        out.put(made?.base)
    }

    fn cuMemFree_v2(driver, at: u64) {
        driver.current_any()?;
        if at == 0 {
            return Ok(());
        }
        let allocation = driver.memory.beginning(at).filter(|one| one.kind == Kind::Device);
        free(driver, &allocation.ok_or(Code::INVALID_VALUE)?)
    }

    fn cuMemGetAddressRange_v2(driver, base: Out<u64>, size: Out<usize>, at: u64) {
        driver.current()?;
        let allocation = driver.memory.containing(at).filter(|one| !one.is_host());
        let allocation = allocation.ok_or(Code::NOT_FOUND)?;
        base.put_if_wanted(allocation.base);
        size.put_if_wanted(usize::try_from(allocation.size).unwrap_or(usize::MAX));
        Ok(())
    }

    fn cuMemHostAlloc(driver, out: Out<u64>, bytes: usize, flags: u32) {
        let context = driver.current()?;
        // Portable, mapped, write-combined.
        if bytes == 0 || flags & !7 != 0 || out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        out_of_memory(driver, fault::Kind::HostMemory, context.device)?;
        let owner = (context.device, context.handle);
        out.put(driver.memory.allocate_host(owner, bytes as u64, flags)?.base)
    }

    fn cuMemAllocHost_v2(driver, out: Out<u64>, bytes: usize) {
        let context = driver.current()?;
        if bytes == 0 || out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        out_of_memory(driver, fault::Kind::HostMemory, context.device)?;
        let owner = (context.device, context.handle);
        out.put(driver.memory.allocate_host(owner, bytes as u64, 0)?.base)
    }

    fn cuMemFreeHost(driver, pointer: *const c_void) {
        driver.current_any()?;
        let host = |one: &Arc<Allocation>| matches!(one.kind, Kind::Host(_));
        let allocation = driver.memory.beginning(address(pointer)).filter(host);
        free(driver, &allocation.ok_or(Code::INVALID_VALUE)?)
    }

    fn cuMemHostRegister_v2(driver, pointer: *const c_void, bytes: usize, flags: u32) {
        let context = driver.current()?;
        // Portable, mapped, memory of a device, read only. The third is for memory that is no system's.
        if pointer.is_null() || bytes == 0 || flags & !15 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & 4 != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let owner = (context.device, context.handle);
        driver.memory.register(owner, address(pointer), bytes as u64, flags)
    }

    fn cuMemHostUnregister(driver, pointer: *const c_void) {
        driver.current_any()?;
        let registered = |one: &Arc<Allocation>| matches!(one.kind, Kind::Registered(_));
        let allocation = driver.memory.beginning(address(pointer)).filter(registered);
        free(driver, &allocation.ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?)
    }

    fn cuMemHostGetDevicePointer_v2(driver, out: Out<u64>, pointer: *const c_void, flags: u32) {
        driver.current()?;
        let allocation = driver.memory.containing(address(pointer));
        if flags != 0 || !allocation.is_some_and(|one| one.is_host()) {
            return Err(Code::INVALID_VALUE);
        }
        // Addresses are unified, so it is the same.
        out.put(address(pointer))
    }

    fn cuMemHostGetFlags(driver, out: Out<u32>, pointer: *const c_void) {
        driver.current()?;
        match driver.memory.containing(address(pointer)).map(|one| one.kind) {
            Some(Kind::Host(flags) | Kind::Registered(flags)) => out.put(flags | 2),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuPointerGetAttribute(driver, out: *mut c_void, which: u32, at: u64) {
        let allocation = driver.memory.containing(at).ok_or(Code::INVALID_VALUE)?;
        if which == 5 {
            return Err(Code::NOT_SUPPORTED);
        }
        attribute(&allocation, at, which).ok_or(Code::INVALID_VALUE)?.put(out)
    }

    fn cuPointerGetAttributes(driver, count: u32, which: In<u32>, out: In<*mut c_void>, at: u64) {
        let allocation = driver.memory.containing(at);
        for index in 0..usize::try_from(count).unwrap_or(0) {
            let (which, out) = (which.at(index)?, out.at(index)?);
            let known = allocation.as_ref().and_then(|one| attribute(one, at, which));
            match known {
                Some(value) => value.put(out)?,
                None => nothing(which)?.put(out)?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(driver, value: In<i32>, which: u32, at: u64) {
        let allocation = driver.memory.containing(at).ok_or(Code::INVALID_VALUE)?;
        if which != 6 {
            return Err(Code::INVALID_VALUE);
        }
        allocation.synchronous.store(value.at(0)? != 0, Ordering::Relaxed);
        Ok(())
    }

    fn cuFlushGPUDirectRDMAWrites(driver, target: u32, scope: u32) {
        driver.current()?;
        // Of the current context's device; as its owner sees it, or as all devices do.
        if target != 0 || !matches!(scope, 100 | 200) {
            return Err(Code::INVALID_VALUE);
        }
        // `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST` among the device's options.
        let options = driver.config.attributes.get(&117).copied().unwrap_or(1);
        if options & 1 == 0 { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
    }

    fn cuMemGetHandleForAddressRange(driver, out: Out<i32>, at: u64, bytes: usize, kind: u32, flags: u64) {
        driver.current()?;
        let page = ffi::page();
        if kind != 1 || flags != 0 || bytes == 0 || !at.is_multiple_of(page) || !(bytes as u64).is_multiple_of(page) {
            return Err(Code::INVALID_VALUE);
        }
        if driver.config.attributes.get(&124) == Some(&0) {
            return Err(Code::NOT_SUPPORTED);
        }
        let place = driver.memory.find(at, bytes as u64)?;
        let allocation = place.allocation.filter(|one| one.kind == Kind::Device);
        let allocation = allocation.ok_or(Code::INVALID_VALUE)?;
        if at != allocation.base {
            // A file holds a whole allocation here, and a caller would map its begin.
            return Err(Code::NOT_SUPPORTED);
        }
        out.put(allocation.descriptor()?)
    }
}
