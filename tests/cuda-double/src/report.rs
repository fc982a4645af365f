//! What a process did with the driver and what it left behind: a line of JSON for each process that ends.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use crate::driver::{Driver, driver};
use crate::ffi;
use crate::memory::{Allocation, Kind};

/// What is counted over a process's life. What is left is counted where its context ends, and again at exit of what has none.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    calls: Mutex<BTreeMap<&'static str, u64>>,
    pub(crate) left_streams: AtomicU64,
    pub(crate) left_events: AtomicU64,
    left_allocations: AtomicU64,
    left_imports: AtomicU64,
    left_host: AtomicU64,
    /// Memory that was freed while another process had it open.
    pub(crate) freed_while_open: AtomicU64,
    /// Asynchronous copies that were not, for the host's memory was pageable.
    pub(crate) pageable_copies: AtomicU64,
    /// Kernels that were launched.
    pub(crate) launches: AtomicU64,
}

impl Counts {
    pub(crate) fn call(&self, name: &'static str) {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    }

    pub(crate) fn left(&self, allocation: &Allocation) {
        let count = match allocation.kind {
            Kind::Device => &self.left_allocations,
            Kind::Imported => &self.left_imports,
            Kind::Host(_) | Kind::Registered(_) => &self.left_host,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is to say now, as JSON.
pub(crate) fn text(driver: &Driver) -> String {
    let counts = &driver.counts;
    let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (mut allocations, mut imports, mut host) = (0, 0, 0);
    for allocation in driver.memory.all() {
        match allocation.kind {
            Kind::Device => allocations += 1,
            Kind::Imported => imports += 1,
            Kind::Host(_) | Kind::Registered(_) => host += 1,
        }
    }
    let calls = counts.calls.lock().unwrap_or_else(PoisonError::into_inner);
    let retained: u32 = driver
        .devices
        .iter()
        .map(|device| device.primary.lock().unwrap_or_else(PoisonError::into_inner).0)
        .sum();
    let operations = driver.devices.iter().map(|device| number(&device.operations));
    json!({
        "process": std::process::id(),
        "left": {
            "contexts": retained,
            "streams": number(&counts.left_streams) + driver.streams.all().len() as u64,
            "events": number(&counts.left_events) + driver.events.all().len() as u64,
            "allocations": number(&counts.left_allocations) + allocations,
            "imports": number(&counts.left_imports) + imports,
            "host_allocations": number(&counts.left_host) + host,
        },
        "freed_while_open": number(&counts.freed_while_open),
        "pageable_copies": number(&counts.pageable_copies),
        "launches": number(&counts.launches),
        "operations": operations.collect::<Vec<_>>(),
        "calls": *calls,
    })
    .to_string()
}

/// Has the report written when the process ends, where one is asked for.
pub(crate) fn at_exit(driver: &'static Driver) {
    if driver.config.report.is_some() {
        ffi::at_exit(write);
    }
}

extern "C" fn write() {
    // A process made by `fork` has done nothing with the driver.
    let Ok(driver) = driver() else { return };
    let Some(path) = &driver.config.report else { return };
    let line = text(driver) + "\n";
    let file = OpenOptions::new().create(true).append(true).open(path);
    // One write, so that lines of several processes do not mix.
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        complain(&format!("{}: {error}", path.display()));
    }
}

#[expect(clippy::print_stderr, reason = "a C return code cannot say what is wrong")]
pub(crate) fn complain(why: &str) {
    eprintln!("cuda-double: {why}");
}
