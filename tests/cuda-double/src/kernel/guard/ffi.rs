//! The handler of the signal that untouchable memory raises.
//!
//! While a kernel runs on a thread, a page of the devices' addresses that it touches and that belongs to no allocation is opened to it, so that
//! it goes on, and noted. Behind it the page is closed again. All other faults are the process's own.
#![expect(unsafe_code, reason = "handles a signal")]

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crate::memory::ffi as memory;

/// Most pages that a kernel may stray to; one that goes further ends the process.
const MOST: usize = 256;

thread_local! {
    /// Addresses that are watched; none while no kernel runs.
    static REGION: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// Pages that were opened. Never grows in the handler.
    static OPENED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

static BEFORE: OnceLock<usize> = OnceLock::new();

/// Runs a kernel; whether it touched nothing outside of allocations.
pub(crate) fn run(region: (u64, u64), kernel: impl FnOnce()) -> bool {
    BEFORE.get_or_init(install);
    OPENED.with_borrow_mut(|opened| opened.reserve(MOST));
    REGION.set(region);
    kernel();
    REGION.set((0, 0));
    OPENED.with_borrow_mut(|opened| {
        let inside = opened.is_empty();
        for page in opened.drain(..) {
            let _ = memory::unmap(page, memory::page());
        }
        inside
    })
}

/// Installs the handler; what was there before, as a number.
fn install() -> usize {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zero is a value of this structure of numbers.
    let action = unsafe { action.assume_init_mut() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a handler of this form, and room for the one before.
    unsafe { libc::sigaction(libc::SIGSEGV, action, before.as_mut_ptr()) };
    // SAFETY: filled by the call, or all zero.
    let before = unsafe { before.assume_init() };
    if before.sa_flags & libc::SA_SIGINFO == 0 { libc::SIG_DFL } else { before.sa_sigaction }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system hands over what the fault was.
    let info_of_fault = unsafe { &*info };
    // SAFETY: this signal's information holds an address.
    let address = unsafe { info_of_fault.si_addr() }.expose_provenance() as u64;
    let (begin, end) = REGION.get();
    if (begin..end).contains(&address) {
        let page = address & !(memory::page() - 1);
        let noted = OPENED.try_with(|opened| match opened.try_borrow_mut() {
            Ok(mut opened) if opened.len() < MOST && memory::open_page(page) => {
                opened.push(page);
                true
            }
            _ => false,
        });
        if noted == Ok(true) {
            return;
        }
    }
    let before = BEFORE.get().copied().unwrap_or(libc::SIG_DFL);
    if before == libc::SIG_DFL || before == libc::SIG_IGN {
        // SAFETY: back to what ends the process, which happens when the instruction is tried again.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: a handler of this form was installed before.
    let before = unsafe {
        std::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(
            before,
        )
    };
    before(signal, info, context);
}
