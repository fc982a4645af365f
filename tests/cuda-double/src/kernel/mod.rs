//! Modules and launches: a PTX text says which functions there are and what they take; the host's build of the same source runs.
//!
//! What the host's build calls a kernel begins with `topod_host_` where the kernel's name begins with `topod_`. It takes the
//! number of blocks and of threads in a block, then the kernel's parameters in order: numbers as they are, structures by address.
//!
//! Where a kernel's blocks may wait for each other, the host's build has `topod_block_` instead, which runs one block: it takes the
//! block's number first. A cooperative launch, which promises that all blocks are on the device together, runs them all at once, a
//! thread each. An ordinary launch promises nothing: they run one after the other, the last first.

mod ffi;
mod guard;

use std::path::Path;
use std::sync::Arc;

use crate::code::Code;
use crate::context::Context;
use crate::driver::Driver;
use crate::memory::Place;
use crate::ptx::{Entry, Parameter, Ptx};
use crate::report::complain;

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) handle: usize,
    /// Handle of its context.
    pub(crate) context: usize,
    pub(crate) ptx: Ptx,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: Arc<Module>,
    pub(crate) entry: Entry,
    code: Build,
}

/// What the host's build has of a kernel.
#[derive(Clone, Copy, Debug)]
enum Build {
    /// All blocks in one call.
    Whole(ffi::Code),
    /// One block in a call.
    Block(ffi::Code),
}

/// How many blocks there are, and threads in each; and whether the launch promises that the blocks are there together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: u32,
    pub(crate) block: u32,
    pub(crate) cooperative: bool,
}

/// Most threads of a block on any device.
const MOST_THREADS: u32 = 1024;

/// Finds the host's build of an entry.
pub(crate) fn function(
    driver: &Driver,
    module: &Arc<Module>,
    name: &str,
) -> Result<Function, Code> {
    let entry = module.ptx.entries.iter().find(|entry| entry.name == name);
    let entry = entry.ok_or(Code::NOT_FOUND)?.clone();
    let not_played = |why: &str| {
        complain(&format!("{name} is in the module, but {why}"));
        Code::NOT_SUPPORTED
    };
    let library = driver.config.kernels.as_deref();
    let library = library.ok_or_else(|| not_played("no host's build of the kernels is named"))?;
    if entry.parameters.iter().any(|parameter| parameter.float) {
        return Err(not_played("a parameter is no integer"));
    }
    if entry.parameters.len() > ffi::MOST_PARAMETERS {
        return Err(not_played("it has too many parameters"));
    }
    let named = |kind: &str| match name.strip_prefix("topod_") {
        Some(rest) => format!("topod_{kind}_{rest}"),
        None => format!("{name}_{kind}"),
    };
    let find = |kind: &str| ffi::find(Path::new(library), &named(kind));
    let code = match find("block") {
        Ok(code) => Build::Block(code),
        Err(_) => Build::Whole(find("host").map_err(|why| not_played(&why))?),
    };
    Ok(Function { module: Arc::clone(module), entry, code })
}

impl Function {
    pub(crate) fn most_threads(&self) -> u32 {
        self.entry.most_threads.map_or(MOST_THREADS, |most| most.min(MOST_THREADS))
    }

    /// Blocks of so many threads that a multiprocessor holds at once.
    pub(crate) fn resident(&self, threads: u32) -> Result<u32, Code> {
        let fits = (1..=self.most_threads()).contains(&threads);
        // As many threads and blocks as a Hopper's multiprocessor.
        if fits { Ok((2048 / threads).min(32)) } else { Err(Code::INVALID_VALUE) }
    }

    /// Checks what a launch is asked for, as far as that is known at once.
    pub(crate) fn check(&self, grid: [u32; 3], block: [u32; 3]) -> Result<(u32, u32), Code> {
        if grid.contains(&0) || block.contains(&0) {
            return Err(Code::INVALID_VALUE);
        }
        let threads = block.iter().try_fold(1_u32, |all, one| all.checked_mul(*one));
        let threads = threads.filter(|threads| *threads <= MOST_THREADS);
        let threads = threads.ok_or(Code::INVALID_VALUE)?;
        if threads > self.most_threads() {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        if grid[1..] != [1, 1] || block[1..] != [1, 1] {
            complain(&format!("{}: only the first dimension is played", self.entry.name));
            return Err(Code::NOT_SUPPORTED);
        }
        Ok((grid[0], threads))
    }

    /// Runs the kernel over parameters as bytes, one vector each.
    pub(crate) fn launch(
        &self,
        driver: &Driver,
        context: &Context,
        shape: Shape,
        parameters: &[Vec<u8>],
    ) -> Result<(), Code> {
        let mut touched = Vec::new();
        // What a reduction touches is known to the byte, and not all of its structure is filled. Of other kernels each address
        // must be one that the device reaches.
        let known = self.entry.name.starts_with("topod_fold_");
        if known {
            fold(driver, context, &self.entry.name, parameters, &mut touched)?;
        }
        let mut own = parameters.to_vec();
        for (bytes, parameter) in own.iter_mut().zip(&self.entry.parameters) {
            translate(driver, bytes, *parameter, (!known).then_some(&mut touched));
        }
        for place in &touched {
            if !context.may_touch(place) || place.check().is_err() {
                return Err(Code::ILLEGAL_ADDRESS);
            }
        }
        let arguments = ffi::Arguments::new(&own, &self.entry.parameters);
        if !self.run(driver.memory.own_addresses(), shape, &arguments) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        for place in &touched {
            place.check()?;
        }
        Ok(())
    }

    /// Runs the blocks; whether none touched what is outside of allocations.
    fn run(&self, region: (u64, u64), shape: Shape, arguments: &ffi::Arguments) -> bool {
        let Shape { grid, block, cooperative } = shape;
        let code = match self.code {
            Build::Whole(code) => {
                return guard::run(region, || code.run(&[grid, block], arguments));
            }
            Build::Block(code) => code,
        };
        let one = |number| guard::run(region, || code.run(&[number, grid, block], arguments));
        if !cooperative {
            // All of them, whatever one does.
            return (0..grid).rev().filter(|number| !one(*number)).count() == 0;
        }
        std::thread::scope(|scope| {
            let one = &one;
            let others: Vec<_> = (1..grid).map(|number| scope.spawn(move || one(number))).collect();
            let inside = one(0);
            others.into_iter().fold(inside, |inside, other| other.join().unwrap_or(false) && inside)
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let part = bytes.get(at..bytes.len().min(at + 8)).unwrap_or_default();
    word[..part.len()].copy_from_slice(part);
    u64::from_le_bytes(word)
}

/// Device addresses in a parameter become those that the double uses. They are told by where they lie: no count lies there.
fn translate(
    driver: &Driver,
    bytes: &mut [u8],
    parameter: Parameter,
    mut touched: Option<&mut Vec<Place>>,
) {
    if !parameter.alignment.is_multiple_of(8) {
        return;
    }
    for part in bytes.chunks_exact_mut(8) {
        let address = word(part, 0);
        if !driver.memory.is_device_address(address) {
            continue;
        }
        part.copy_from_slice(&driver.memory.own_address(address).to_le_bytes());
        // Held while the kernel runs. What lies in no allocation is not read, or else the host's build meets untouchable memory.
        if let Some(touched) = touched.as_mut()
            && let Some(allocation) = driver.memory.containing(address)
        {
            touched.push(Place { bytes: address, allocation: Some(allocation) });
        }
    }
}

/// What a reduction reads and writes: every byte must be memory that the device reaches.
fn fold(
    driver: &Driver,
    context: &Context,
    name: &str,
    parameters: &[Vec<u8>],
    touched: &mut Vec<Place>,
) -> Result<(), Code> {
    let [sources, count, target, elements, _ranks] = parameters else { return Ok(()) };
    let bytes_each = match name.trim_start_matches("topod_fold_").split('_').next() {
        Some("f64" | "i64") => 8,
        Some("f32" | "i32") => 4,
        Some("f16" | "bf16") => 2,
        _ => 1,
    };
    let length = word(elements, 0).checked_mul(bytes_each).ok_or(Code::ILLEGAL_ADDRESS)?;
    if length == 0 {
        return Ok(());
    }
    let count = usize::try_from(word(count, 0)).unwrap_or(usize::MAX);
    if count == 0 || count > sources.len() / 8 {
        return Err(Code::ILLEGAL_ADDRESS);
    }
    let addresses = (0..count).map(|index| word(sources, 8 * index)).chain([word(target, 0)]);
    for address in addresses {
        let place = driver.memory.find(address, length).map_err(|_| Code::ILLEGAL_ADDRESS)?;
        // Pageable memory of the host is none of the device's; what the driver gave or registered is, with unified addresses.
        if place.is_pageable() || !context.may_touch(&place) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        if address % bytes_each != 0 {
            return Err(Code::MISALIGNED_ADDRESS);
        }
        touched.push(place);
    }
    Ok(())
}
