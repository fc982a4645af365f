//! Initialisation, versions, names of errors, symbols by name, and the double's own controls.

use std::ffi::{c_char, c_void};

use super::{Out, Text, TextOut, symbol as any_symbol};
use crate::code::Code;
use crate::driver::{call_without_driver, driver, init};
use crate::memory::Kind;
use crate::{fault, report};

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> u32 {
    call_without_driver(|| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        init()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<i32>) -> u32 {
    // It answers before initialisation too.
    call_without_driver(|| {
        let told = driver().map_or(12_090, |driver| driver.version);
        version.put(told)
    })
}

fn text(
    code: u32,
    out: Out<*const c_char>,
    pick: fn((&'static str, &'static str)) -> &'static str,
) -> Result<(), Code> {
    match Code(code).texts() {
        Some(texts) => out.put(pick(texts).as_ptr().cast()),
        None => {
            out.put(std::ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: u32, name: Out<*const c_char>) -> u32 {
    call_without_driver(|| text(code, name, |texts| texts.0))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: u32, string: Out<*const c_char>) -> u32 {
    call_without_driver(|| text(code, string, |texts| texts.1))
}

/// For NICs' doubles, as a module of the kernel that registers device memory with the RDMA stack: where a range of this process's device
/// memory can be reached, until it is freed; 0 where it is none.
#[unsafe(no_mangle)]
pub extern "C" fn topodPeerMemory(address: u64, length: u64) -> u64 {
    let Ok(driver) = driver() else { return 0 };
    let found = driver.memory.find(address, length).ok();
    let place = found.filter(|place| {
        place.allocation.as_ref().is_some_and(|allocation| allocation.kind == Kind::Device)
    });
    place.map_or(0, |place| place.bytes)
}

/// The latest version of a function, as a name without a suffix asks for.
fn latest(name: &str) -> Option<*const c_void> {
    let versions = ["_v3", "_v2", ""].map(|version| any_symbol(&format!("{name}{version}")));
    versions.into_iter().flatten().next()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2(
    name: Text,
    function: Out<*const c_void>,
    _version: i32,
    _flags: u64,
    status: Out<u32>,
) -> u32 {
    call_without_driver(|| match latest(name.get()?) {
        Some(address) => {
            status.put_if_wanted(0);
            function.put(address)
        }
        None => {
            status.put_if_wanted(1);
            function.put(std::ptr::null())?;
            Err(Code::NOT_FOUND)
        }
    })
}

/// Symbols of this file that answer before initialisation.
pub(super) fn early_symbol(name: &str) -> Option<*const c_void> {
    Some(match name {
        "cuInit" => cuInit as *const c_void,
        "cuDriverGetVersion" => cuDriverGetVersion as *const c_void,
        "cuGetErrorName" => cuGetErrorName as *const c_void,
        "cuGetErrorString" => cuGetErrorString as *const c_void,
        "cuGetProcAddress_v2" => cuGetProcAddress_v2 as *const c_void,
        _ => return None,
    })
}

entries! {
    // Replaces the faults in force; none for a null or an empty text.
    fn topodCudaDoubleSetFaults(driver, faults: Text) {
        let text = faults.get().unwrap_or_default();
        let faults = fault::parse(text).map_err(|why| {
            report::complain(&why);
            Code::INVALID_VALUE
        })?;
        driver.faults.replace(faults);
        Ok(())
    }

    // Writes what would be reported at exit; an error where there is no room for it.
    fn topodCudaDoubleReport(driver, text: TextOut, room: i32) {
        let report = report::text(driver);
        if i32::try_from(report.len()).is_ok_and(|length| length < room) {
            text.put(&report, room)
        } else {
            Err(Code::INVALID_VALUE)
        }
    }
}
