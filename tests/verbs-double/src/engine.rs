//! The one lock, and the thread that does what is due later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Instant;

use crate::config::Config;
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::{fault, ffi, report};

struct Engine {
    fabric: Mutex<Fabric>,
    due: Condvar,
}

static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();

/// The file that lies beside the library.
const BESIDE: &str = "verbs-double.conf";

fn start() -> Option<Engine> {
    let beside = ffi::own_path().map(|path| path.with_file_name(BESIDE));
    let file = beside.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let config = Config::read(|name| std::env::var(name).ok(), &file);
    match config.and_then(Fabric::new) {
        Ok(fabric) => {
            fabric.show();
            report::at_exit(&fabric);
            Some(Engine { fabric: Mutex::new(fabric), due: Condvar::new() })
        }
        Err(why) => {
            report::complain(&why);
            None
        }
    }
}

fn lock(engine: &Engine) -> MutexGuard<'_, Fabric> {
    engine.fabric.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(engine: &Engine) {
    let mut fabric = lock(engine);
    loop {
        fabric.run_due(Instant::now());
        fabric.rescheduled = false;
        let wait = fabric.next_due().map(|due| due.saturating_duration_since(Instant::now()));
        fabric = match wait {
            None => engine.due.wait(fabric).unwrap_or_else(PoisonError::into_inner),
            Some(wait) => {
                let waited = engine.due.wait_timeout(fabric, wait);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// Does something with the fabric. What is wrong with the configuration makes every call an I/O error, and nothing unwinds into C.
pub(crate) fn with<T>(action: impl FnOnce(&mut Fabric) -> Result<T, Errno>) -> Result<T, Errno> {
    static THREAD: Once = Once::new();
    let engine = ENGINE.get_or_init(start).as_ref().ok_or(Errno::IO)?;
    THREAD.call_once(|| {
        ffi::stay();
        std::thread::spawn(move || run(engine));
    });
    let act = AssertUnwindSafe(|| {
        let mut fabric = lock(engine);
        let result = action(&mut fabric);
        if fabric.rescheduled {
            engine.due.notify_one();
        }
        result
    });
    catch_unwind(act).unwrap_or(Err(Errno::IO))
}

/// One call: counted, and spoilt where a fault says so.
pub(crate) fn call<T>(
    name: &'static str,
    device: impl FnOnce(&Fabric) -> Option<usize>,
    action: impl FnOnce(&mut Fabric) -> Result<T, Errno>,
) -> Result<T, Errno> {
    with(|fabric| {
        fabric.counts.call(name);
        let device = device(fabric);
        match fault::call(&mut fabric.faults, name, device) {
            Some(errno) => Err(errno),
            None => action(fabric),
        }
    })
}

/// For the report: whatever state the process ends in.
pub(crate) fn at_end<T>(action: impl FnOnce(&Fabric) -> Option<T>) -> Option<T> {
    let engine = ENGINE.get()?.as_ref()?;
    action(&lock(engine))
}
