//! Modules, functions and launches.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{In, Out, Text};
use crate::code::Code;
use crate::driver::Driver;
use crate::kernel::{self, Function, Module, Shape};
use crate::memory::ffi;
use crate::ptx;

/// Keys of the array that may stand for the parameters.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// `CUdevice_attribute` values.
const MULTIPROCESSORS: i32 = 16;
const COOPERATIVE_LAUNCH: i32 = 95;

fn load(driver: &Driver, out: Out<usize>, image: *const c_char) -> Result<(), Code> {
    let context = driver.current()?;
    if image.is_null() || out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null; the caller promises an image, which ends with a zero where it is text, and an image that is none has one early.
    let text = unsafe { CStr::from_ptr(image) };
    // Only text is played: what is assembled cannot run here.
    let text = text.to_str().map_err(|_| Code::INVALID_IMAGE)?;
    if !text.contains(".version") {
        return Err(Code::INVALID_IMAGE);
    }
    let device = &driver.devices[context.device];
    let ptx = ptx::load(text, device.capability(), driver.version)?;
    let handle = driver.handle();
    driver.modules.add(handle, Arc::new(Module { handle, context: context.handle, ptx }));
    out.put(handle)
}

/// The parameters' bytes, copied at once as the driver does.
fn parameters(
    function: &Function,
    each: In<*const c_void>,
    extra: In<usize>,
) -> Result<Vec<Vec<u8>>, Code> {
    let wanted = &function.entry.parameters;
    if !each.is_null() {
        if !extra.is_null() && extra.at(0)? != END {
            return Err(Code::INVALID_VALUE);
        }
        let one = |(index, parameter): (usize, &ptx::Parameter)| {
            let at = each.at(index)?;
            if at.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            Ok(ffi::bytes(super::address(at), parameter.size as u64))
        };
        return wanted.iter().enumerate().map(one).collect();
    }
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let (mut buffer, mut size, mut index) = (0, None, 0);
    loop {
        match extra.at(index)? {
            END => break,
            BUFFER => buffer = extra.at(index + 1)?,
            BUFFER_SIZE => {
                size = Some(
                    In::<usize>(std::ptr::with_exposed_provenance(extra.at(index + 1)?)).at(0)?,
                )
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        index += 2;
    }
    let size = size.filter(|_| buffer != 0).ok_or(Code::INVALID_VALUE)?;
    let mut at = 0_usize;
    let mut one = |parameter: &ptx::Parameter| {
        at = at.next_multiple_of(parameter.alignment.max(1));
        let begin = at;
        at += parameter.size;
        if at > size {
            return Err(Code::INVALID_VALUE);
        }
        Ok(ffi::bytes((buffer + begin) as u64, parameter.size as u64))
    };
    wanted.iter().map(&mut one).collect()
}

fn attribute(function: &Function, which: u32) -> Result<i32, Code> {
    let module = &function.module.ptx;
    let signed = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    Ok(match which {
        0 => signed(function.most_threads()),
        // No shared, constant or local memory; registers as any kernel has.
        1..=3 | 7 => 0,
        4 => 32,
        5 => signed(module.version),
        6 => signed(module.target),
        8 => 49_152,
        9 => -1,
        _ => return Err(Code::INVALID_VALUE),
    })
}

#[expect(clippy::too_many_arguments, reason = "so the interface has it")]
fn launch(
    driver: &'static Driver,
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    stream: usize,
    each: In<*const c_void>,
    extra: In<usize>,
    (shared_bytes, cooperative): (u32, bool),
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    // A kernel runs only where its module is loaded, and on the current device.
    let current = driver.current()?;
    let function = driver.functions.get(function)?;
    let home = function.module.context;
    if stream.context.handle != current.handle || home != current.handle {
        return Err(Code::INVALID_HANDLE);
    }
    driver.modules.get(function.module.handle)?;
    if shared_bytes > 49_152 {
        return Err(Code::INVALID_VALUE);
    }
    let (grid, block) = function.check(grid, block)?;
    if cooperative {
        let device = &driver.devices[current.device];
        let attribute = |number| driver.attribute(device, number).unwrap_or(0);
        if attribute(COOPERATIVE_LAUNCH) == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // All blocks together, or none: no more than all multiprocessors hold at once.
        let multiprocessors = u32::try_from(attribute(MULTIPROCESSORS)).unwrap_or(0);
        if grid > function.resident(block)?.saturating_mul(multiprocessors) {
            return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    let shape = Shape { grid, block, cooperative };
    let parameters = parameters(&function, each, extra)?;
    driver.counts.launches.fetch_add(1, Ordering::Relaxed);
    stream.run(move |stream| function.launch(driver, &stream.context, shape, &parameters));
    Ok(())
}

entries! {
    fn cuModuleLoadData(driver, out: Out<usize>, image: *const c_char) {
        load(driver, out, image)
    }

    fn cuModuleLoadDataEx(driver, out: Out<usize>, image: *const c_char, _count: u32, _options: In<u32>, _values: In<usize>) {
        load(driver, out, image)
    }

    fn cuModuleUnload(driver, module: usize) {
        driver.current()?;
        driver.modules.take(module).map(|_| ())
    }

    fn cuModuleGetFunction(driver, out: Out<usize>, module: usize, name: Text) {
        driver.current()?;
        let module = driver.modules.get(module)?;
        let function = kernel::function(driver, &module, name.get()?)?;
        let handle = driver.handle();
        driver.functions.add(handle, Arc::new(function));
        out.put(handle)
    }

    fn cuFuncGetAttribute(driver, out: Out<i32>, which: u32, function: usize) {
        out.put(attribute(&*driver.functions.get(function)?, which)?)
    }

    fn cuFuncSetAttribute(driver, function: usize, which: u32, _value: i32) {
        driver.functions.get(function)?;
        if which == 8 || which == 9 { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuFuncSetCacheConfig(driver, function: usize, _config: u32) {
        driver.functions.get(function).map(|_| ())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(driver, out: Out<i32>, function: usize, threads: i32, _shared: usize) {
        let function = driver.functions.get(function)?;
        let threads = u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?;
        out.put(function.resident(threads)?.cast_signed())
    }

    fn cuLaunchKernel(driver, function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, each: In<*const c_void>, extra: In<usize>) {
        launch(driver, function, [gx, gy, gz], [bx, by, bz], stream, each, extra, (shared, false))
    }

    fn cuLaunchCooperativeKernel(driver, function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, each: In<*const c_void>) {
        launch(driver, function, [gx, gy, gz], [bx, by, bz], stream, each, In(std::ptr::null()), (shared, true))
    }
}
