//! The reduction kernels: their results beside the host's, and their traffic beside the roof.

use std::path::Path;

use serde::Serialize;
use transport::{ElementType, ReduceOp};
use transport_cuda::{SOURCES, THREADS, compile, name};

use crate::budget::Deadline;
use crate::ffi::{Fold, Function, Gpu, Memory, Module};
use crate::measure::{BATCHES, JUDGED, median_and_best, rate, repeats, sizes};
use crate::reference::{first_difference, folded, numbers};
use crate::report::Stage;

/// Blocks for each multiprocessor: two of 512 threads fill most, twice that evens out.
const BLOCKS_EACH: u32 = 4;

/// Of the roof, what a kernel reaches at least at the judged size.
const OF_ROOF: f64 = 0.9;

/// A kernel over memory that is long enough to show its traffic.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Traffic {
    kernel: String,
    /// Of one source.
    bytes: usize,
    sources: usize,
    blocks: u32,
    /// Read and written.
    median_gb_per_s: f64,
    best_gb_per_s: f64,
    /// Of the roof; `None` where that is unknown.
    of_roof: Option<f64>,
}

/// The kernels, and where they are from.
pub(crate) fn load(gpu: &Gpu, file: Option<&Path>) -> Result<(Module, String), String> {
    let (text, how) = match file {
        Some(file) => {
            let text =
                std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
            (text, file.display().to_string())
        }
        None => {
            let compiled = compile(gpu.capability()).map_err(|error| {
                format!("{error}; or compile them elsewhere with --compile and bring the file with --ptx")
            })?;
            (compiled.to_src(), "nvrtc".to_owned())
        }
    };
    Ok((gpu.load(&text)?, how))
}

/// Element types with the operations that combine them, averages among them.
fn combinations() -> impl Iterator<Item = (ElementType, ReduceOp, String)> {
    let pairs = ElementType::ALL.into_iter().flat_map(|e| ReduceOp::ALL.map(|op| (e, op)));
    pairs.filter_map(|(element, op)| Some((element, op, name(element, op)?)))
}

fn blocks(gpu: &Gpu, elements: usize, element_bytes: usize) -> u32 {
    let wide = (elements * element_bytes).div_ceil(16 * THREADS as usize).max(1);
    u32::try_from(wide).unwrap_or(u32::MAX).min(gpu.multiprocessors().max(1) * BLOCKS_EACH)
}

/// Every kernel on numbers with everything special, ragged tails and places that are not aligned for wide loads.
pub(crate) fn results(gpu: &Gpu, module: &Module, deadline: Deadline) -> Stage {
    let (mut wrong, mut missed) = (Vec::new(), Vec::new());
    let mut checked = 0_u64;
    for (element, op, name) in combinations() {
        if deadline.is_over() {
            missed.push(format!("{name} and those after it were not checked: no time"));
            break;
        }
        let function = match gpu.function(module, &name) {
            Ok(function) => function,
            Err(why) => return Stage::failed(why),
        };
        for (sources, elements, shift) in [
            (1, 33, 0),
            (2, 5000, 0),
            (2, 4999, 1),
            (3, 1, 0),
            (3, 0, 0),
            (8, 1037, 0),
            (SOURCES, 259, 3),
            (2, 100_003, 0),
        ] {
            match difference(gpu, function, (element, op), (sources, elements, shift)) {
                Ok(None) => checked += elements as u64,
                Ok(Some(what)) => wrong.push(format!("{name} ({op:?}), {sources} sources: {what}")),
                Err(why) => return Stage::failed(format!("{name}: {why}")),
            }
        }
    }
    Stage::of(wrong, missed, format!("{checked} elements as on the host"))
}

/// What is not as on the host.
fn difference(
    gpu: &Gpu,
    function: Function,
    (element, op): (ElementType, ReduceOp),
    (count, elements, shift): (usize, usize, usize),
) -> Result<Option<String>, String> {
    let width = element.bytes();
    let inputs: Vec<Vec<u8>> =
        (0..count).map(|source| numbers(element, elements + shift, source as u64 + 1)).collect();
    let mut memories = Vec::new();
    for input in &inputs {
        let memory = gpu.allocate(input.len())?;
        gpu.to_device(&memory, input)?;
        memories.push(memory);
    }
    let sources: Vec<&Memory> = memories.iter().collect();
    // One element behind, and those before: nobody writes them.
    let around = numbers(element, shift + elements + 1, 99);
    let target = gpu.allocate(around.len())?;
    gpu.to_device(&target, &around)?;
    let ranks = if op == ReduceOp::Avg { i32::try_from(count).unwrap_or(1) } else { 0 };
    let blocks = blocks(gpu, elements, width);
    gpu.fold(
        function,
        &Fold {
            sources: &sources,
            target: &target,
            element_bytes: width,
            elements,
            shift,
            ranks,
            blocks,
        },
    )?;
    let mut found = vec![0; around.len()];
    gpu.to_host(&mut found, &target)?;
    gpu.wait()?;
    let begin = shift * width;
    let end = begin + elements * width;
    if found[..begin] != around[..begin] || found[end..] != around[end..] {
        return Ok(Some(format!("wrote beside its {elements} elements")));
    }
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|input| input[begin..].to_vec()).collect();
    let expected = folded(element, op, ranks, &inputs);
    Ok(first_difference(element, &found[begin..end], &expected).map(|(index, found, expected)| {
        format!("element {index} of {elements} is {found:02x?}, not {expected:02x?}")
    }))
}

/// Every kernel at the judged size with two sources, and one of them over sizes and sources.
pub(crate) fn traffic(
    gpu: &Gpu,
    module: &Module,
    quick: bool,
    roof: Option<f64>,
    deadline: Deadline,
) -> Result<Vec<Traffic>, String> {
    let judged = if quick { 1 << 20 } else { JUDGED };
    let mut all = Vec::new();
    for (element, _, name) in combinations().filter(|(_, op, _)| *op != ReduceOp::Avg) {
        if deadline.is_over() {
            break;
        }
        all.push(one(gpu, module, (element, name.as_str()), (judged, 2), quick, roof)?);
    }
    let element = ElementType::F32;
    let Some(name) = name(element, ReduceOp::Sum) else { return Ok(all) };
    for bytes in sizes(quick) {
        for sources in [2, 4, 8] {
            let room = gpu.free_bytes()? > (sources as u64 + 2) * bytes as u64;
            if (bytes, sources) != (judged, 2) && room && !deadline.is_over() {
                all.push(one(
                    gpu,
                    module,
                    (element, name.as_str()),
                    (bytes, sources),
                    quick,
                    roof,
                )?);
            }
        }
    }
    Ok(all)
}

fn one(
    gpu: &Gpu,
    module: &Module,
    (element, name): (ElementType, &str),
    (bytes, count): (usize, usize),
    quick: bool,
    roof: Option<f64>,
) -> Result<Traffic, String> {
    let function = gpu.function(module, name)?;
    let input = vec![0_u8; bytes];
    let memories: Vec<Memory> =
        (0..=count).map(|_| gpu.allocate(bytes)).collect::<Result<_, _>>()?;
    for memory in &memories {
        gpu.to_device(memory, &input)?;
    }
    let (target, sources) = memories.split_last().ok_or("no memory")?;
    let sources: Vec<&Memory> = sources.iter().collect();
    let elements = bytes / element.bytes();
    let blocks = blocks(gpu, elements, element.bytes());
    let fold = Fold {
        sources: &sources,
        target,
        element_bytes: element.bytes(),
        elements,
        shift: 0,
        ranks: 0,
        blocks,
    };
    let repeats = repeats(bytes, quick);
    let run = || gpu.timed(|| (0..repeats).try_for_each(|_| gpu.fold(function, &fold)));
    run()?;
    let moved = (bytes * (count + 1)) as f64 * f64::from(repeats);
    let rates = (0..BATCHES).map(|_| run().map(|time| rate(moved, time)));
    let (median, best) = median_and_best(rates.collect::<Result<_, _>>()?);
    Ok(Traffic {
        kernel: name.to_owned(),
        bytes,
        sources: count,
        blocks,
        median_gb_per_s: median,
        best_gb_per_s: best,
        of_roof: roof.filter(|roof| *roof > 0.0).map(|roof| median / roof),
    })
}

/// Whether each kernel reaches its share of the roof at the judged size.
pub(crate) fn judged(traffic: &[Traffic], quick: bool, deadline: Deadline) -> Stage {
    if quick {
        return Stage::skipped("--quick: measured at small sizes, and not judged".to_owned());
    }
    let at_size = |one: &&Traffic| one.bytes == JUDGED && one.sources == 2;
    let shares: Vec<(&str, f64)> = traffic
        .iter()
        .filter(at_size)
        .filter_map(|one| Some((one.kernel.as_str(), one.of_roof?)))
        .collect();
    let expected = combinations().filter(|(_, op, _)| *op != ReduceOp::Avg).count();
    let slow: Vec<String> = shares
        .iter()
        .filter(|(_, share)| *share < OF_ROOF)
        .map(|(name, share)| format!("{name}: {:.0} % of the device-to-device copy", share * 100.0))
        .collect();
    let mut missed = Vec::new();
    if shares.len() < expected {
        missed.push(format!("{} of {expected} kernels were measured", shares.len()));
    }
    // Without a roof nothing can be judged, however much time there is.
    if !missed.is_empty() && !deadline.is_over() {
        return Stage::failed_by(slow.into_iter().chain(missed).collect());
    }
    let least = shares.iter().map(|(_, share)| *share).fold(f64::INFINITY, f64::min);
    let passed = format!("at least {:.0} % of the device-to-device copy at 64 MiB", least * 100.0);
    Stage::of(slow, missed, passed)
}

/// How long a launch takes that has nothing to do, when many follow each other.
pub(crate) fn launches(gpu: &Gpu, module: &Module, into: &mut Option<f64>) -> Stage {
    const LAUNCHES: u32 = 1000;
    let measured = || {
        let name = name(ElementType::F32, ReduceOp::Sum).ok_or("no such kernel")?;
        let function = gpu.function(module, &name)?;
        let memory = gpu.allocate(16)?;
        let fold = Fold {
            sources: &[&memory],
            target: &memory,
            element_bytes: 4,
            elements: 0,
            shift: 0,
            ranks: 0,
            blocks: 1,
        };
        let run =
            || gpu.timed_by_host(|| (0..LAUNCHES).try_for_each(|_| gpu.fold(function, &fold)));
        run()?;
        run().map(|time| time.as_secs_f64() * 1e6 / f64::from(LAUNCHES))
    };
    match measured() {
        Ok(microseconds) => {
            *into = Some(microseconds);
            Stage::passed(format!("{microseconds:.1} µs each, {LAUNCHES} in a row"))
        }
        Err(why) => Stage::failed(why),
    }
}
