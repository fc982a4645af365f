//! Copies and fills.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::address;
use crate::code::Code;
use crate::context::Context;
use crate::driver::Driver;
use crate::memory::{Place, ffi};
use crate::stream::Stream;

/// Whether peers need not be enabled: for calls that name both contexts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Enabled,
    Any,
}

/// Checks what a copy on a context's streams may touch.
fn may_touch(
    driver: &Driver,
    context: &Context,
    places: [&Place; 2],
    between: Between,
) -> Result<(), Code> {
    let staged = between == Between::Any || driver.config.staged_copies;
    if staged || places.iter().all(|place| context.may_touch(place)) {
        Ok(())
    } else {
        Err(Code::INVALID_VALUE)
    }
}

/// Moves bytes as an operation of a stream.
fn moved(stream: &Stream, to: &Place, from: &Place, length: u64) -> Result<(), Code> {
    to.check()?;
    from.check()?;
    match stream.parting(length) {
        Some((at, end_first)) => {
            let parts = [(0, at), (at, length - at)];
            let (first, second) =
                if end_first { (parts[1], parts[0]) } else { (parts[0], parts[1]) };
            ffi::copy(to.bytes + first.0, from.bytes + first.0, first.1);
            stream.put_off();
            ffi::copy(to.bytes + second.0, from.bytes + second.0, second.1);
        }
        None => ffi::copy(to.bytes, from.bytes, length),
    }
    Ok(())
}

/// Queues a copy. With pageable memory it is only in part asynchronous, as the reference says: what is read is read before the
/// call returns, and what is written is there by then.
fn copy(
    driver: &'static Driver,
    stream: &Arc<Stream>,
    (to, from): (u64, u64),
    length: usize,
    between: Between,
) -> Result<(), Code> {
    let length = length as u64;
    if length == 0 {
        return Ok(());
    }
    let (to, from) = (driver.memory.find(to, length)?, driver.memory.find(from, length)?);
    may_touch(driver, &stream.context, [&to, &from], between)?;
    let synchronous = [&to, &from].into_iter().any(|place| {
        let asked = |one: &Arc<crate::memory::Allocation>| one.synchronous.load(Ordering::Relaxed);
        place.allocation.as_ref().is_some_and(asked)
    });
    if to.is_pageable() || from.is_pageable() {
        driver.counts.pageable_copies.fetch_add(1, Ordering::Relaxed);
    }
    if from.is_pageable() && !to.is_pageable() {
        stream.synchronize()?;
        let bytes = ffi::bytes(from.bytes, length);
        stream.run(move |_| {
            to.check()?;
            ffi::put_bytes(to.bytes, &bytes);
            Ok(())
        });
        return Ok(());
    }
    let wait = synchronous || to.is_pageable();
    let number = stream.run(move |stream| moved(stream, &to, &from, length));
    if wait {
        stream.wait_for(number);
        return stream.context.check();
    }
    Ok(())
}

/// Copies and waits, on the default stream.
fn copy_now(
    driver: &'static Driver,
    (to, from): (u64, u64),
    length: usize,
    between: Between,
) -> Result<(), Code> {
    let stream = driver.stream(0)?;
    copy(driver, &stream, (to, from), length, between)?;
    stream.synchronize()
}

/// A host's address where the call wants one.
fn host(driver: &Driver, pointer: *const c_void) -> Result<u64, Code> {
    let at = address(pointer);
    if driver.memory.is_device_address(at) { Err(Code::INVALID_VALUE) } else { Ok(at) }
}

/// A device's address where the call wants one: of device memory, or of host memory that devices reach.
fn device(driver: &Driver, at: u64) -> Result<u64, Code> {
    driver.memory.containing(at).map(|_| at).ok_or(Code::INVALID_VALUE)
}

/// Fills as an operation of a stream; `width` bytes for each of `count` elements.
fn fill(
    driver: &'static Driver,
    stream: &Arc<Stream>,
    at: u64,
    (value, width): (u32, u64),
    count: usize,
) -> Result<u64, Code> {
    let count = count as u64;
    if count == 0 {
        return Ok(0);
    }
    let length = count.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
    let place = driver.memory.find(at, length)?;
    if place.is_pageable() || !at.is_multiple_of(width) || !stream.context.may_touch(&place) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(stream.run(move |_| {
        place.check()?;
        if width == 4 {
            ffi::fill_words(place.bytes, value, count);
        } else {
            ffi::fill(place.bytes, value.to_le_bytes()[0], count);
        }
        Ok(())
    }))
}

entries! {
    fn cuMemcpyHtoD_v2(driver, to: u64, from: *const c_void, length: usize) {
        copy_now(driver, (device(driver, to)?, host(driver, from)?), length, Between::Enabled)
    }

    fn cuMemcpyDtoH_v2(driver, to: *const c_void, from: u64, length: usize) {
        copy_now(driver, (host(driver, to)?, device(driver, from)?), length, Between::Enabled)
    }

    fn cuMemcpyDtoD_v2(driver, to: u64, from: u64, length: usize) {
        copy_now(driver, (device(driver, to)?, device(driver, from)?), length, Between::Enabled)
    }

    fn cuMemcpy(driver, to: u64, from: u64, length: usize) {
        copy_now(driver, (to, from), length, Between::Enabled)
    }

    fn cuMemcpyPeer(driver, to: u64, to_context: usize, from: u64, from_context: usize, length: usize) {
        driver.context(to_context)?;
        driver.context(from_context)?;
        copy_now(driver, (device(driver, to)?, device(driver, from)?), length, Between::Any)
    }

    fn cuMemcpyHtoDAsync_v2(driver, to: u64, from: *const c_void, length: usize, stream: usize) {
        let places = (device(driver, to)?, host(driver, from)?);
        copy(driver, &driver.stream(stream)?, places, length, Between::Enabled)
    }

    fn cuMemcpyDtoHAsync_v2(driver, to: *const c_void, from: u64, length: usize, stream: usize) {
        let places = (host(driver, to)?, device(driver, from)?);
        copy(driver, &driver.stream(stream)?, places, length, Between::Enabled)
    }

    fn cuMemcpyDtoDAsync_v2(driver, to: u64, from: u64, length: usize, stream: usize) {
        let places = (device(driver, to)?, device(driver, from)?);
        copy(driver, &driver.stream(stream)?, places, length, Between::Enabled)
    }

    fn cuMemcpyAsync(driver, to: u64, from: u64, length: usize, stream: usize) {
        copy(driver, &driver.stream(stream)?, (to, from), length, Between::Enabled)
    }

    fn cuMemcpyPeerAsync(driver, to: u64, to_context: usize, from: u64, from_context: usize, length: usize, stream: usize) {
        let contexts = (driver.context(to_context)?, driver.context(from_context)?);
        contexts.0.check()?;
        contexts.1.check()?;
        let places = (device(driver, to)?, device(driver, from)?);
        copy(driver, &driver.stream(stream)?, places, length, Between::Any)
    }

    fn cuMemsetD8_v2(driver, at: u64, value: u8, count: usize) {
        let stream = driver.stream(0)?;
        let number = fill(driver, &stream, at, (value.into(), 1), count)?;
        stream.wait_for(number);
        stream.context.check()
    }

    fn cuMemsetD32_v2(driver, at: u64, value: u32, count: usize) {
        let stream = driver.stream(0)?;
        let number = fill(driver, &stream, at, (value, 4), count)?;
        stream.wait_for(number);
        stream.context.check()
    }

    fn cuMemsetD8Async(driver, at: u64, value: u8, count: usize, stream: usize) {
        fill(driver, &driver.stream(stream)?, at, (value.into(), 1), count).map(|_| ())
    }

    fn cuMemsetD32Async(driver, at: u64, value: u32, count: usize, stream: usize) {
        fill(driver, &driver.stream(stream)?, at, (value, 4), count).map(|_| ())
    }
}
