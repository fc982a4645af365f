//! Plans: from a file, from the daemon, or even ones.

use std::ffi::c_char;
use std::path::Path;

use topology::Plan;
use topology::formats::plan_json;
use transport::even::full_plan;

use crate::error::{Error, Status, array, borrow, give, give_handle, guard, take, text};

/// A plan: which rank sends to which, along which channels. Every rank of a group must hold the same.
#[derive(Debug)]
pub struct PlanHandle(pub(crate) Plan);

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::new(Status::Plan, format!("the plan: {error}"))
}

/// Reads a plan as `topoctl plan -o json` writes it.
///
/// # Safety
/// `json` is `length` bytes; `plan` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_plan_parse(
    json: *const c_char,
    length: usize,
    plan: *mut *mut PlanHandle,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let json = unsafe { array(json.cast::<u8>(), length, "json") }?;
        let read = plan_json::read(json).map_err(unreadable)?;
        // SAFETY: By the caller's word.
        unsafe { give_handle(plan, PlanHandle(read)) }
    })
}

/// Reads a plan file.
///
/// # Safety
/// `path` is a string; `plan` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_plan_load(
    path: *const c_char,
    plan: *mut *mut PlanHandle,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let path = unsafe { text(path, "path") }?;
        let json = std::fs::read(path).map_err(|error| unreadable(format!("{path}: {error}")))?;
        let read =
            plan_json::read(&json).map_err(|error| unreadable(format!("{path}: {error}")))?;
        // SAFETY: By the caller's word.
        unsafe { give_handle(plan, PlanHandle(read)) }
    })
}

/// Asks the daemon for the plan of the GPUs with these NVML indices, in rank order; of all where `count` is 0. `socket` may
/// be null: then it is TOPOD_SOCKET's, or the usual one.
///
/// # Safety
/// `socket` is null or a string, `gpus` has `count` numbers, `plan` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_plan_from_daemon(
    socket: *const c_char,
    gpus: *const u32,
    count: usize,
    plan: *mut *mut PlanHandle,
) -> Status {
    guard(|| {
        let socket = if socket.is_null() {
            transport_daemon::default_socket()
        } else {
            // SAFETY: By the caller's word.
            Path::new(unsafe { text(socket, "socket") }?).to_path_buf()
        };
        // SAFETY: By the caller's word.
        let gpus = unsafe { array(gpus, count, "gpus") }?;
        let made = transport_daemon::plan(&socket, gpus)?;
        // SAFETY: By the caller's word.
        unsafe { give_handle(plan, PlanHandle(made)) }
    })
}

/// A plan that knows of no topology: two rings, one each way, and direct exchanges. It serves every operation, for
/// processes on one host or where nothing better is at hand.
///
/// # Safety
/// `plan` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_plan_even(ranks: u32, plan: *mut *mut PlanHandle) -> Status {
    guard(|| {
        if !(1..=65_536).contains(&ranks) {
            return Err(Error::invalid(format!("a plan of {ranks} ranks: there are 1 to 65536")));
        }
        // SAFETY: By the caller's word.
        unsafe { give_handle(plan, PlanHandle(full_plan(ranks, 2))) }
    })
}

/// Writes the number of ranks of a plan.
///
/// # Safety
/// `plan` is a plan, `ranks` has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_plan_ranks(plan: *const PlanHandle, ranks: *mut u32) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let plan = unsafe { borrow(plan, "the plan") }?;
        let count = u32::try_from(plan.0.ranks.len()).unwrap_or(u32::MAX);
        // SAFETY: By the caller's word.
        unsafe { give(ranks, count) };
        Ok(())
    })
}

/// Frees a plan; null is nothing. Communicators made of it keep their own.
///
/// # Safety
/// A plan that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_plan_free(plan: *mut PlanHandle) {
    guard(|| {
        // SAFETY: By the caller's word.
        drop(unsafe { take(plan) });
        Ok(())
    });
}
