//! Primary contexts, what is current, and peers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Out;
use crate::code::Code;
use crate::context::{self, Context};
use crate::driver::PRIORITIES;

entries! {
    fn cuDevicePrimaryCtxRetain(driver, out: Out<usize>, device: i32) {
        let (index, device) = driver.device(device)?;
        if out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut primary = device.primary.lock().unwrap_or_else(PoisonError::into_inner);
        // A lost device makes no new context; one that is there tells what ended it.
        if device.lost.load(Ordering::Acquire) && primary.1.is_none() {
            return Err(Code::DEVICE_UNAVAILABLE);
        }
        let context = primary.1.get_or_insert_with(|| {
            let context = Arc::new(Context::new(driver.handle(), index));
            driver.contexts.add(context.handle, Arc::clone(&context));
            context
        });
        out.put(context.handle)?;
        primary.0 += 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(driver, device: i32) {
        let (_, device) = driver.device(device)?;
        let ended = {
            let mut primary = device.primary.lock().unwrap_or_else(PoisonError::into_inner);
            primary.0 = primary.0.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
            if primary.0 == 0 { primary.1.take() } else { None }
        };
        if let Some(context) = ended {
            driver.destroy(&context);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(driver, device: i32) {
        let (_, device) = driver.device(device)?;
        let ended = device.primary.lock().unwrap_or_else(PoisonError::into_inner).1.take();
        if let Some(context) = ended {
            driver.destroy(&context);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(driver, device: i32, _flags: u32) {
        driver.device(device).map(|_| ())
    }

    fn cuDevicePrimaryCtxGetState(driver, device: i32, flags: Out<u32>, active: Out<i32>) {
        let (_, device) = driver.device(device)?;
        let primary = device.primary.lock().unwrap_or_else(PoisonError::into_inner);
        flags.put(0)?;
        active.put(i32::from(primary.1.is_some()))
    }

    fn cuCtxSetCurrent(driver, handle: usize) {
        if handle != 0 {
            driver.context(handle)?;
        }
        context::set_current(handle);
        Ok(())
    }

    fn cuCtxGetCurrent(_driver, out: Out<usize>) {
        out.put(context::current_handle())
    }

    fn cuCtxPushCurrent_v2(driver, handle: usize) {
        driver.context(handle)?;
        context::push(handle);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(_driver, out: Out<usize>) {
        let handle = context::pop().ok_or(Code::INVALID_CONTEXT)?;
        out.put_if_wanted(handle);
        Ok(())
    }

    fn cuCtxGetDevice(driver, out: Out<i32>) {
        out.put(i32::try_from(driver.current_any()?.device).unwrap_or(0))
    }

    fn cuCtxGetFlags(driver, flags: Out<u32>) {
        driver.current()?;
        flags.put(0)
    }

    fn cuCtxGetApiVersion(driver, handle: usize, version: Out<u32>) {
        if handle != 0 {
            driver.context(handle)?;
        }
        version.put(3020)
    }

    fn cuCtxGetStreamPriorityRange(driver, least: Out<i32>, greatest: Out<i32>) {
        driver.current()?;
        least.put_if_wanted(PRIORITIES.0);
        greatest.put_if_wanted(PRIORITIES.1);
        Ok(())
    }

    fn cuCtxSynchronize(driver) {
        driver.current()?.synchronize()
    }

    fn cuCtxEnablePeerAccess(driver, peer: usize, flags: u32) {
        let current = driver.current()?;
        let peer = driver.context(peer)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if peer.device == current.device {
            return Err(Code::INVALID_DEVICE);
        }
        if !driver.can_reach(current.device, peer.device) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if current.enable_peer(peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(driver, peer: usize) {
        let current = driver.current()?;
        let peer = driver.context(peer)?;
        if current.disable_peer(peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}
