//! What numbers are called, and fork support, which the double has no need of.

use std::ffi::{c_char, c_int};

use crate::words;

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    words::status(status).as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    words::event(event).as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    words::port_state(state).as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    words::node(kind).as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}
