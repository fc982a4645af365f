//! Streams, the host's functions in them, and what they do with single words of memory.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{HostFunction, Out};
use crate::code::Code;
use crate::driver::{Driver, PRIORITIES, in_host_function};
use crate::memory::{Place, ffi};
use crate::stream::{NON_BLOCKING, Stream, pause};

fn create(driver: &'static Driver, out: Out<usize>, flags: u32, priority: i32) -> Result<(), Code> {
    let context = driver.current()?;
    if flags & !NON_BLOCKING != 0 || out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let stream = Stream::start(driver, &context, flags, priority);
    driver.streams.add(stream.handle, Arc::clone(&stream));
    out.put(stream.handle)
}

/// A word of memory that a stream may use.
fn word(driver: &Driver, stream: &Stream, at: u64, width: u64) -> Result<Place, Code> {
    let place = driver.memory.find(at, width)?;
    if place.is_pageable() || !at.is_multiple_of(width) || !stream.context.may_touch(&place) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(place)
}

fn load(place: &Place, wide: bool) -> u64 {
    if wide {
        ffi::word64(place.bytes).load(Ordering::Acquire)
    } else {
        ffi::word32(place.bytes).load(Ordering::Acquire).into()
    }
}

/// Lets a stream wait for a word of memory.
fn wait_value(
    driver: &'static Driver,
    stream: usize,
    at: u64,
    wanted: u64,
    flags: u32,
    wide: bool,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    let place = word(driver, &stream, at, if wide { 8 } else { 4 })?;
    // Flushing other devices' writes is asked for by the highest of the flags; this device cannot.
    if flags & !3 != 0 {
        return Err(if flags & !(3 | 1 << 30) == 0 {
            Code::NOT_SUPPORTED
        } else {
            Code::INVALID_VALUE
        });
    }
    let reached = move |found: u64| match flags & 3 {
        // Not below it in the order of a circle: a difference, read with its sign.
        0 if wide => found.wrapping_sub(wanted).cast_signed() >= 0,
        0 => {
            let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0);
            low(found).wrapping_sub(low(wanted)).cast_signed() >= 0
        }
        1 => found == wanted,
        2 => found & wanted != 0,
        _ if wide => !(found | wanted) != 0,
        _ => !(found | wanted) & 0xffff_ffff != 0,
    };
    stream.run(move |stream| {
        let mut times = 0;
        while !reached(load(&place, wide)) {
            place.check()?;
            stream.context.check()?;
            pause(&mut times);
        }
        Ok(())
    });
    Ok(())
}

fn write_value(
    driver: &'static Driver,
    stream: usize,
    at: u64,
    value: u64,
    flags: u32,
    wide: bool,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    let place = word(driver, &stream, at, if wide { 8 } else { 4 })?;
    // Whether a barrier comes before it; here there always is one.
    if flags & !1 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    stream.run(move |_| {
        place.check()?;
        if wide {
            ffi::word64(place.bytes).store(value, Ordering::Release);
        } else {
            let value = u32::try_from(value & 0xffff_ffff).unwrap_or(0);
            ffi::word32(place.bytes).store(value, Ordering::Release);
        }
        Ok(())
    });
    Ok(())
}

entries! {
    fn cuStreamCreate(driver, out: Out<usize>, flags: u32) {
        create(driver, out, flags, 0)
    }

    fn cuStreamCreateWithPriority(driver, out: Out<usize>, flags: u32, priority: i32) {
        create(driver, out, flags, priority)
    }

    // Returns at once; what is queued still runs.
    fn cuStreamDestroy_v2(driver, stream: usize) {
        let stream = driver.streams.take(stream)?;
        stream.close();
        Ok(())
    }

    fn cuStreamSynchronize(driver, stream: usize) {
        driver.stream(stream)?.synchronize()
    }

    fn cuStreamQuery(driver, stream: usize) {
        let stream = driver.stream(stream)?;
        let idle = stream.is_idle();
        stream.context.check()?;
        if idle { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamWaitEvent(driver, stream: usize, event: usize, flags: u32) {
        let (stream, event) = (driver.stream(stream)?, driver.events.get(event)?);
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        event.hold_up(&stream);
        Ok(())
    }

    fn cuStreamGetPriority(driver, stream: usize, out: Out<i32>) {
        out.put(driver.stream(stream)?.priority)
    }

    fn cuStreamGetFlags(driver, stream: usize, out: Out<u32>) {
        out.put(driver.stream(stream)?.flags)
    }

    fn cuStreamGetCtx(driver, stream: usize, out: Out<usize>) {
        out.put(driver.stream(stream)?.context.handle)
    }

    fn cuStreamIsCapturing(driver, stream: usize, out: Out<u32>) {
        driver.stream(stream)?;
        out.put(0)
    }

    fn cuLaunchHostFunc(driver, stream: usize, function: Option<extern "C" fn(*mut c_void)>, data: *mut c_void) {
        let stream = driver.stream(stream)?;
        let function = HostFunction(function.ok_or(Code::INVALID_VALUE)?, data.expose_provenance());
        stream.run(move |_| {
            in_host_function(|| function.call());
            Ok(())
        });
        Ok(())
    }

    fn cuStreamWaitValue32_v2(driver, stream: usize, at: u64, value: u32, flags: u32) {
        wait_value(driver, stream, at, value.into(), flags, false)
    }

    fn cuStreamWaitValue64_v2(driver, stream: usize, at: u64, value: u64, flags: u32) {
        wait_value(driver, stream, at, value, flags, true)
    }

    fn cuStreamWriteValue32_v2(driver, stream: usize, at: u64, value: u32, flags: u32) {
        write_value(driver, stream, at, value.into(), flags, false)
    }

    fn cuStreamWriteValue64_v2(driver, stream: usize, at: u64, value: u64, flags: u32) {
        write_value(driver, stream, at, value, flags, true)
    }
}
