//! NCCL's side: the structures it looks up by name, and the functions in them.
//!
//! Facts of the layouts are those of NCCL's public headers (`src/include/plugin/tuner/tuner_v2.h` to `tuner_v6.h`).
#![expect(unsafe_code, reason = "the other side of every function here is C")]
#![allow(non_upper_case_globals, reason = "NCCL looks symbols up by these names")]

use std::ffi::{CString, c_char, c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use crate::table::{Question, Table, always_possible, protocol};

/// `ncclSuccess`: everything here succeeds, with or without an answer. What is not answered NCCL works out itself.
const SUCCESS: c_int = 0;

/// `NCCL_ALGO_PROTO_IGNORE`: a combination that NCCL has ruled out.
const RULED_OUT: f32 = -1.0;

/// `NCCL_LOG_INFO` and `NCCL_TUNING`.
const INFO: c_int = 3;
const TUNING: c_ulong = 64;

type Log = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;

type Init = unsafe extern "C" fn(usize, usize, Log, *mut *mut c_void) -> c_int;
type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    usize,
    usize,
    Log,
    *mut c_void,
    *mut c_void,
) -> c_int;
type AskV2 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *mut c_int,
    *mut c_int,
) -> c_int;
type AskV3 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    *mut f32,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;
type AskV4 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;
type End = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A version of the interface: its name for logs, then functions.
#[repr(C)]
#[derive(Debug)]
pub struct Plugin<I, A> {
    name: Name,
    init: I,
    ask: A,
    end: End,
}

/// The newest: one function more, which may be absent.
#[repr(C)]
#[derive(Debug)]
pub struct PluginV6 {
    plugin: Plugin<InitV5, AskV4>,
    chunk_size: Option<End>,
}

/// A text that lives as long as the library.
#[repr(transparent)]
#[derive(Debug)]
struct Name(*const c_char);

// SAFETY: It points at constant text.
unsafe impl Sync for Name {}

const fn plugin<I: Copy, A: Copy>(init: I, ask: A) -> Plugin<I, A> {
    Plugin { name: Name(c"topod".as_ptr()), init, ask, end }
}

/// NCCL 2.21.
// SAFETY: No other library has the name; NCCL asks each for it.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v2: Plugin<Init, AskV2> = plugin(init_v2, ask_v2);

/// NCCL 2.22, 2.23.
// SAFETY: As for version 2.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v3: Plugin<Init, AskV3> = plugin(init_v2, ask_v3);

/// NCCL 2.24 to 2.27.
// SAFETY: As for version 2.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v4: Plugin<Init, AskV4> = plugin(init_v2, ask_v4);

/// NCCL 2.28.
// SAFETY: As for version 2.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v5: Plugin<InitV5, AskV4> = plugin(init_v5, ask_v4);

/// NCCL 2.30.
// SAFETY: As for version 2.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v6: PluginV6 =
    PluginV6 { plugin: plugin(init_v5, ask_v4), chunk_size: None };

unsafe extern "C" fn init_v2(
    ranks: usize,
    hosts: usize,
    log: Log,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives a place for the context, or none.
    unsafe { init(ranks, hosts, log, context) }
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    _communicator: u64,
    ranks: usize,
    hosts: usize,
    log: Log,
    _domains: *mut c_void,
    // Constants of NCCL's own model, for which there is nothing better here.
    _constants: *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives a place for the context, or none.
    unsafe { init(ranks, hosts, log, context) }
}

/// # Safety
/// `context` is null or a place for a pointer, `log` NCCL's function.
unsafe fn init(ranks: usize, hosts: usize, log: Log, context: *mut *mut c_void) -> c_int {
    // A null context is one without rows.
    // SAFETY: As the caller vouches.
    let Some(context) = (unsafe { context.as_mut() }) else { return SUCCESS };
    *context = std::ptr::null_mut();
    let loaded = catch_unwind(|| Table::of_environment(ranks, hosts));
    let Ok((table, words)) = loaded else { return SUCCESS };
    *context = Box::into_raw(Box::new(table)).cast();
    if let (Some(log), Ok(words)) = (log, CString::new(words)) {
        let (file, format) = (c"topod".as_ptr(), c"TUNER/topod: %s".as_ptr());
        // SAFETY: The format takes the one text it is given, and NCCL copies it.
        unsafe { log(INFO, TUNING, file, 0, format, words.as_ptr()) };
    }
    SUCCESS
}

unsafe extern "C" fn ask_v2(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    _coll_net: c_int,
    _nvls: c_int,
    pipelined: c_int,
    algorithm: *mut c_int,
    protocol_out: *mut c_int,
    channels: *mut c_int,
) -> c_int {
    let question = question(function, bytes, pipelined, None);
    // SAFETY: NCCL gives back what init gave it.
    let table = unsafe { context.cast::<Table>().as_ref() };
    // SAFETY: NCCL gives a place for the answer.
    let algorithm = unsafe { algorithm.as_mut() };
    // SAFETY: As for the algorithm.
    let protocol_out = unsafe { protocol_out.as_mut() };
    let (Some(table), Some(algorithm), Some(protocol_out)) = (table, algorithm, protocol_out)
    else {
        return SUCCESS;
    };
    let row =
        catch_unwind(AssertUnwindSafe(|| table.answers(question).find(|row| always_possible(row))));
    if let Ok(Some(row)) = row {
        *algorithm = row.algorithm as c_int;
        *protocol_out = c_int::try_from(protocol(row.protocol)).unwrap_or_default();
        // SAFETY: A place for the answer, or none.
        unsafe { set_channels(row.channels, channels) };
    }
    SUCCESS
}

unsafe extern "C" fn ask_v3(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipelined: c_int,
    costs: *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> c_int {
    let question = question(function, bytes, pipelined, None);
    // SAFETY: As of version 4, which tells one thing more.
    unsafe { ask(context, question, costs, algorithms, protocols, channels) }
}

unsafe extern "C" fn ask_v4(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    pipelined: c_int,
    costs: *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> c_int {
    let question = question(function, bytes, pipelined, Some(registered != 0));
    // SAFETY: NCCL gives back what init gave it, a table of so many algorithms and protocols, and a place for the channels.
    unsafe { ask(context, question, costs, algorithms, protocols, channels) }
}

fn question(function: c_int, bytes: usize, pipelined: c_int, registered: Option<bool>) -> Question {
    // A negative number is beyond all that are known.
    let function = usize::try_from(function).unwrap_or(usize::MAX);
    let pipelined = u32::try_from(pipelined).unwrap_or(u32::MAX);
    Question { function, bytes: bytes as u64, pipelined, registered }
}

/// # Safety
/// `context` is what init gave, `costs` points at `algorithms` times `protocols` costs (the header's `float**` is a flat table, row
/// by row: `src/enqueue.cc` casts it), `channels` at one number; each may be null.
unsafe fn ask(
    context: *mut c_void,
    question: Question,
    costs: *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> c_int {
    let (Ok(algorithms), Ok(protocols)) = (usize::try_from(algorithms), usize::try_from(protocols))
    else {
        return SUCCESS;
    };
    // SAFETY: As the caller vouches.
    let Some(table) = (unsafe { context.cast::<Table>().as_ref() }) else { return SUCCESS };
    if costs.is_null() {
        return SUCCESS;
    }
    // SAFETY: As the caller vouches.
    let costs = unsafe { slice::from_raw_parts_mut(costs, algorithms * protocols) };
    let cell = |row: &topology::nccl_tuner::TunerRow| {
        let (algorithm, protocol) = (row.algorithm as usize, protocol(row.protocol));
        (algorithm < algorithms && protocol < protocols).then_some(algorithm * protocols + protocol)
    };
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let allowed = |at: &usize| costs[*at] > RULED_OUT;
        table.answers(question).find_map(|row| Some((cell(row).filter(allowed)?, row.channels)))
    }));
    if let Ok(Some((at, wanted))) = answer {
        costs[at] = 0.0;
        // SAFETY: As the caller vouches.
        unsafe { set_channels(wanted, channels) };
    }
    SUCCESS
}

/// Leaves the number to NCCL where the row does.
///
/// # Safety
/// `channels` is null or a place for a number.
unsafe fn set_channels(wanted: Option<u32>, channels: *mut c_int) {
    let wanted = wanted.and_then(|wanted| c_int::try_from(wanted).ok());
    // SAFETY: As the caller vouches.
    if let (Some(wanted), Some(channels)) = (wanted, unsafe { channels.as_mut() }) {
        *channels = wanted;
    }
}

unsafe extern "C" fn end(context: *mut c_void) -> c_int {
    if !context.is_null() {
        // SAFETY: What init gave, and NCCL gives it back once.
        let table = unsafe { Box::from_raw(context.cast::<Table>()) };
        // Nothing of it panics; a defect of the allocator is none of NCCL's.
        drop(catch_unwind(AssertUnwindSafe(|| drop(table))));
    }
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts() {
        let pointer = size_of::<usize>();
        assert_eq!(size_of::<Plugin<Init, AskV2>>(), 4 * pointer);
        assert_eq!(size_of::<PluginV6>(), 5 * pointer);
        assert_eq!(offset_of!(PluginV6, chunk_size), 4 * pointer);
        assert_eq!(offset_of!(Plugin<InitV5, AskV4>, end), 3 * pointer);
        // SAFETY: It points at constant text.
        let name = unsafe { CStr::from_ptr(ncclTunerPlugin_v6.plugin.name.0) };
        assert_eq!(name, c"topod");
    }
}
