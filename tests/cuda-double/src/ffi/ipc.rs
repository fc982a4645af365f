//! Memory and events of other processes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Out;
use crate::code::Code;
use crate::driver::Driver;
use crate::event::{Event, INTERPROCESS};
use crate::ipc::{Handle, SIZE, What};
use crate::memory::{Kind, Shared};

/// Passed by value, as the header has it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle([u8; SIZE]);

/// The only flag there is: enables access to the peer where the memory is another device's.
const LAZY_PEER_ACCESS: u32 = 1;

fn handle(driver: &Driver, what: What, device: usize, shared: Shared) -> IpcHandle {
    let uuid = driver.devices[device].uuid;
    let (process, nonce) = (std::process::id(), driver.nonce);
    IpcHandle(Handle { what, process, nonce, shared, uuid }.bytes())
}

/// Reads a handle of another process, and finds its device here.
fn other(driver: &Driver, bytes: &IpcHandle, what: What) -> Result<(Handle, usize), Code> {
    let handle = Handle::parse(&bytes.0, what)?;
    if handle.process == std::process::id() && handle.nonce == driver.nonce {
        return Err(Code::INVALID_CONTEXT);
    }
    let device = driver.devices.iter().position(|device| device.uuid == handle.uuid);
    Ok((handle, device.ok_or(Code::INVALID_DEVICE)?))
}

entries! {
    // Any address in an allocation gives the handle of the whole.
    fn cuIpcGetMemHandle(driver, out: Out<IpcHandle>, at: u64) {
        driver.current()?;
        if driver.faults.ipc("export") {
            return Err(Code::NOT_SUPPORTED);
        }
        let allocation = driver.memory.containing(at).filter(|one| one.kind == Kind::Device);
        let allocation = allocation.ok_or(Code::INVALID_VALUE)?;
        let shared = allocation.shared().ok_or(Code::OPERATING_SYSTEM)?;
        out.put(handle(driver, What::Memory, allocation.device, shared))
    }

    fn cuIpcOpenMemHandle_v2(driver, out: Out<u64>, bytes: IpcHandle, flags: u32) {
        let context = driver.current()?;
        if flags != LAZY_PEER_ACCESS || out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let (handle, device) = other(driver, &bytes, What::Memory)?;
        if driver.faults.ipc("open") {
            return Err(Code::MAP_FAILED);
        }
        if device != context.device {
            if !driver.can_reach(context.device, device) {
                return Err(Code::PEER_ACCESS_UNSUPPORTED);
            }
            context.enable_peer(device);
        }
        // Opened twice by a context, it is the same memory, counted.
        let again = driver.memory.all().into_iter().find(|one| {
            one.kind == Kind::Imported
                && one.context == context.handle
                && one.is_alive()
                && one.shared().is_some_and(|shared| shared.inode == handle.shared.inode)
        });
        if let Some(open) = again {
            open.opened.fetch_add(1, Ordering::AcqRel);
            return out.put(open.base);
        }
        out.put(driver.memory.import((device, context.handle), handle.process, handle.shared)?.base)
    }

    fn cuIpcCloseMemHandle(driver, at: u64) {
        driver.current_any()?;
        let allocation = driver.memory.beginning(at).filter(|one| one.kind == Kind::Imported);
        let allocation = allocation.ok_or(Code::INVALID_VALUE)?;
        if allocation.opened.fetch_sub(1, Ordering::AcqRel) == 1 {
            driver.release(&allocation);
        }
        Ok(())
    }

    fn cuIpcGetEventHandle(driver, out: Out<IpcHandle>, event: usize) {
        let event = driver.events.get(event)?;
        if driver.faults.ipc("event") {
            return Err(Code::NOT_SUPPORTED);
        }
        if event.flags & INTERPROCESS == 0 || event.imported {
            return Err(Code::INVALID_HANDLE);
        }
        let device = driver.context(event.context)?.device;
        let shared = event.shared().ok_or(Code::OPERATING_SYSTEM)?;
        out.put(handle(driver, What::Event, device, shared))
    }

    fn cuIpcOpenEventHandle(driver, out: Out<usize>, bytes: IpcHandle) {
        let context = driver.current()?;
        if out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let (shared, _) = other(driver, &bytes, What::Event)?;
        let made = Event::import(driver.handle(), context.handle, shared.process, shared.shared)?;
        let handle = made.handle;
        driver.events.add(handle, Arc::new(made));
        out.put(handle)
    }
}
