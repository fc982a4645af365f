//! Settings by name.

use std::ffi::c_char;

use transport::Options;

use crate::error::{Error, Status, borrow_mut, give_handle, guard, take, text};

/// Settings of a communicator.
#[derive(Debug, Default)]
pub struct OptionsHandle {
    /// As given, in order; checked when given.
    settings: Vec<(String, String)>,
    pub(crate) progress_thread: bool,
}

impl OptionsHandle {
    /// What a communicator is made with: the environment, and over it what was set. (Options hold a hook and cannot be
    /// copied.)
    pub(crate) fn make(handle: Option<&Self>) -> Result<Options, Error> {
        let mut options = Options::for_all();
        options.set_from_environment()?;
        for (name, value) in handle.iter().flat_map(|handle| &handle.settings) {
            options.set(name, value).expect("it was checked when it was given");
        }
        transport_daemon::attach(&mut options);
        Ok(options)
    }
}

/// New settings, all at their defaults.
///
/// # Safety
/// `options` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_options_create(options: *mut *mut OptionsHandle) -> Status {
    // SAFETY: By the caller's word.
    guard(|| unsafe { give_handle(options, OptionsHandle::default()) })
}

/// Changes a setting: timeout_ms, join_timeout_ms, transport (auto, shm, tcp, verbs), paths (auto, plan), collectives (all, or
/// names separated by commas), heap_bytes, slots, slot_bytes, sockets, cross_memory, pin, timed (0 or 1), algo, proto, socket_ifname,
/// debug, debug_subsys, debug_file, ib_hca, ib_gid_index, ib_timeout, ib_retry_cnt, ib_qps_per_connection, ib_sl, ib_tc,
/// ib_adaptive_routing, ib_disable (as NCCL's variables); priorities (how many operations may have); bandwidth (bytes a second a
/// rank may send, 0 for any); report (the socket of a daemon that is told how operations end, or default); and progress_thread
/// (0 or 1): whether a thread moves operations while the caller computes. What is not set is the environment's: TOPOD_ and the
/// name in capitals, else NCCL's variable.
///
/// # Safety
/// `options` are options, `name` and `value` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_options_set(
    options: *mut OptionsHandle,
    name: *const c_char,
    value: *const c_char,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let options = unsafe { borrow_mut(options, "the options") }?;
        // SAFETY: By the caller's word.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: By the caller's word.
        let value = unsafe { text(value, "value") }?;
        if name == "progress_thread" && matches!(value, "0" | "1") {
            options.progress_thread = value == "1";
            return Ok(());
        }
        Options::default().set(name, value)?;
        options.settings.push((name.to_owned(), value.to_owned()));
        Ok(())
    })
}

/// Frees options; null is nothing.
///
/// # Safety
/// Options that are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_options_free(options: *mut OptionsHandle) {
    guard(|| {
        // SAFETY: By the caller's word.
        drop(unsafe { take(options) });
        Ok(())
    });
}
