//! Rates of copies. Device to device is the roof: a reduction reads and writes the same memory.

use std::time::Duration;

use serde::Serialize;

use crate::budget::Deadline;
use crate::ffi::Gpu;

/// Bytes of the size that kernels are judged at.
pub(crate) const JUDGED: usize = 64 << 20;

/// How often each is measured; the median counts.
pub(crate) const BATCHES: usize = 7;

/// One way of copying, at one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Copy {
    pub(crate) way: &'static str,
    pub(crate) bytes: usize,
    /// Of all batches, in GB/s of bytes copied.
    pub(crate) median_gb_per_s: f64,
    pub(crate) best_gb_per_s: f64,
}

/// Sizes in bytes, ascending.
pub(crate) fn sizes(quick: bool) -> Vec<usize> {
    if quick {
        vec![4 << 10, 1 << 20]
    } else {
        vec![4 << 10, 64 << 10, 1 << 20, 8 << 20, JUDGED, 256 << 20]
    }
}

/// So often that a batch moves some hundred megabytes, or is a hundred copies.
pub(crate) fn repeats(bytes: usize, quick: bool) -> u32 {
    if quick {
        return 2;
    }
    u32::try_from((256 << 20) / bytes.max(1)).unwrap_or(1).clamp(2, 100)
}

/// GB/s of so many bytes in a time; nothing where the clock did not move.
pub(crate) fn rate(bytes: f64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { bytes / seconds / 1e9 } else { 0.0 }
}

/// Median and best.
pub(crate) fn median_and_best(mut rates: Vec<f64>) -> (f64, f64) {
    rates.sort_by(f64::total_cmp);
    let median = rates.get(rates.len() / 2).copied().unwrap_or(0.0);
    (median, rates.last().copied().unwrap_or(0.0))
}

/// GB/s of traffic, read and written, of the largest device-to-device copy up to the judged size.
pub(crate) fn roof(copies: &[Copy]) -> Option<f64> {
    let fit = copies.iter().filter(|copy| copy.way == "device_to_device" && copy.bytes <= JUDGED);
    fit.max_by_key(|copy| copy.bytes).map(|copy| 2.0 * copy.median_gb_per_s)
}

/// What was measured of copies.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pub(crate) copies: Vec<Copy>,
    /// What did not arrive as it was sent.
    pub(crate) wrong: Vec<String>,
    /// Sizes that were left out.
    pub(crate) missed: Vec<String>,
}

/// All ways at all sizes.
pub(crate) fn copies(gpu: &Gpu, quick: bool, deadline: Deadline) -> Result<Copies, String> {
    let Copies { mut copies, mut wrong, mut missed } = Copies::default();
    for bytes in sizes(quick) {
        if deadline.is_over() || gpu.free_bytes()? < 3 * bytes as u64 {
            missed.push(format!("{bytes} bytes were not measured: no time, or no memory"));
            continue;
        }
        let repeats = repeats(bytes, quick);
        let (here, there) = (gpu.allocate(bytes)?, gpu.allocate(bytes)?);
        let mut pinned = gpu.pinned(bytes)?;
        let mut pageable = pattern(bytes);
        let mut measure = |way, run: &mut dyn FnMut() -> Result<Duration, String>| {
            run()?;
            let rates = (0..BATCHES).map(|_| {
                let moved = bytes as f64 * f64::from(repeats);
                run().map(|time| rate(moved, time))
            });
            let (median, best) = median_and_best(rates.collect::<Result<_, _>>()?);
            copies.push(Copy { way, bytes, median_gb_per_s: median, best_gb_per_s: best });
            Ok::<_, String>(())
        };
        measure("host_to_device_pageable", &mut || {
            gpu.timed_by_host(|| (0..repeats).try_for_each(|_| gpu.to_device(&here, &pageable)))
        })?;
        measure("device_to_device", &mut || {
            gpu.timed(|| (0..repeats).try_for_each(|_| gpu.on_device(&there, &here, bytes)))
        })?;
        measure("device_to_host_pinned", &mut || {
            gpu.timed(|| (0..repeats).try_for_each(|_| gpu.to_host(pinned.bytes_mut(), &there)))
        })?;
        // What went there and back by three ways is what was sent.
        if pinned.bytes() != pageable {
            wrong.push(format!("{bytes} bytes came back changed"));
        }
        pinned.bytes_mut().fill(0x5a);
        measure("host_to_device_pinned", &mut || {
            gpu.timed(|| (0..repeats).try_for_each(|_| gpu.to_device(&here, pinned.bytes())))
        })?;
        measure("device_to_host_pageable", &mut || {
            gpu.timed_by_host(|| (0..repeats).try_for_each(|_| gpu.to_host(&mut pageable, &here)))
        })?;
        if pageable.iter().any(|byte| *byte != 0x5a) {
            wrong.push(format!("{bytes} bytes of pinned memory came back changed"));
        }
    }
    Ok(Copies { copies, wrong, missed })
}

/// Bytes of which no two pages are alike.
fn pattern(bytes: usize) -> Vec<u8> {
    let mixed = |index: usize| (index ^ index >> 8 ^ index >> 16).to_le_bytes()[0];
    (0..bytes).map(mixed).collect()
}
