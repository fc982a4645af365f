//! Modules and launches, with the host's build of the transport's kernels.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::raw::{Driver, at, code, out};

/// As NVRTC writes the head and the entry of a reduction.
pub(crate) fn module(version: &str, target: u32) -> String {
    let entry = |name: &str| {
        format!(
            ".visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[128],\n\t.param .u32 {name}_param_1,\n\
             \t.param .u64 {name}_param_2,\n\t.param .u64 {name}_param_3,\n\t.param .u32 {name}_param_4\n)\n\
             .maxntid 512\n{{\n\tret;\n}}\n"
        )
    };
    format!(
        ".version {version}\n.target sm_{target}\n.address_size 64\n{}{}{}\0",
        entry("topod_fold_f32_sum"),
        entry("topod_fold_i64_max"),
        entry("topod_fold_f32_none")
    )
}

/// `None` where there is no C++ compiler.
pub(crate) fn library() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        match machines::build_cuda_kernels(folder.path()) {
            Ok(file) => Some((folder, file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: g++: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    };
    BUILT.get_or_init(build).as_ref().map(|(_, file)| file)
}

fn start() -> Option<Driver> {
    Some(Driver::new(&format!(r#"{{"kernels": {:?}}}"#, library()?)))
}

fn function(driver: &Driver, name: &str) -> u64 {
    let text = module("8.8", 90);
    let module = driver.get::<u64>("cuModuleLoadData", &[at(text.as_bytes())]);
    let name = format!("{name}\0");
    driver.get("cuModuleGetFunction", &[module, at(name.as_bytes())])
}

/// Folds `sources` into `target` on a stream; the launch's code.
fn fold(
    driver: &Driver,
    function: u64,
    (sources, target): (&[u64], u64),
    elements: u64,
    (grid, block): (u64, u64),
    stream: u64,
) -> u32 {
    // Behind the sources lies what nobody filled.
    let mut all = [0xdead_beef_u64; 16];
    all[..sources.len()].copy_from_slice(sources);
    let count = u32::try_from(sources.len()).unwrap();
    let ranks = 0_i32;
    let parameters = [at(&all), at(&[count]), at(&[target]), at(&[elements]), at(&[ranks])];
    let parameters = at(&parameters);
    driver.call("cuLaunchKernel", &[function, grid, 1, 1, block, 1, 1, 0, stream, parameters, 0])
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_reduction_runs_on_device_memory() {
    let Some(driver) = start() else { return };
    let function = function(&driver, "topod_fold_f32_sum");
    assert_eq!(driver.get::<i32>("cuFuncGetAttribute", &[0, function]), 512);
    let values: [Vec<f32>; 3] =
        [1.0, 10.0, 0.25].map(|by| (0..1000_u16).map(|i| f32::from(i) * by).collect());
    let sources = values.each_ref().map(|values| {
        let memory = driver.allocate(4000);
        driver.put(memory, &floats(values));
        memory
    });
    let target = driver.allocate(4000);
    let stream = driver.stream();
    assert_eq!(fold(&driver, function, (&sources, target), 1000, (3, 64), stream), code::SUCCESS);
    driver.ok("cuStreamSynchronize", &[stream]);
    let expected: Vec<f32> =
        (0..1000).map(|i| values[0][i] + values[1][i] + values[2][i]).collect();
    assert_eq!(driver.bytes(target, 4000), floats(&expected));
}

/// Each is found when the kernel runs, and ends the context.
fn ends(wrong: impl FnOnce(&Driver, u64) -> (Vec<u64>, u64, u64), code: u32) {
    let Some(driver) = start() else { return };
    let function = function(&driver, "topod_fold_f32_sum");
    let source = driver.allocate(64);
    let (sources, target, elements) = wrong(&driver, source);
    let stream = driver.stream();
    assert_eq!(
        fold(&driver, function, (&sources, target), elements, (1, 32), stream),
        code::SUCCESS
    );
    driver.fails(code, "cuStreamSynchronize", &[stream]);
    driver.fails(code, "cuMemAlloc_v2", &[out(&mut 0_u64), 64]);
    driver.fails(code, "cuCtxSynchronize", &[]);
}

#[test]
fn a_kernel_reaches_what_its_device_reaches() {
    ends(|_, source| (vec![source, source], source, 17), code::ILLEGAL_ADDRESS);
    ends(|driver, source| (vec![source, source], driver.allocate(63), 16), code::ILLEGAL_ADDRESS);
    ends(|_, source| (vec![source, source + 2], source, 15), code::MISALIGNED);
    let host = [0_f32; 16];
    ends(|_, source| (vec![source, at(&host)], source, 16), code::ILLEGAL_ADDRESS);
    ends(
        |driver, source| {
            let context = driver.get::<u64>("cuCtxGetCurrent", &[]);
            driver.retain(1);
            let there = driver.allocate(64);
            driver.ok("cuCtxSetCurrent", &[context]);
            (vec![source, there], source, 16)
        },
        code::ILLEGAL_ADDRESS,
    );
    ends(
        |driver, source| {
            let gone = driver.allocate(64);
            driver.ok("cuMemFree_v2", &[gone]);
            (vec![source, gone], source, 16)
        },
        code::ILLEGAL_ADDRESS,
    );
}

#[test]
fn a_kernel_reaches_peers_and_pinned_memory() {
    let Some(driver) = start() else { return };
    let zero = driver.get::<u64>("cuCtxGetCurrent", &[]);
    let one = driver.retain(1);
    let there = driver.allocate(64);
    driver.put(there, &floats(&[2.0; 16]));
    driver.ok("cuCtxSetCurrent", &[zero]);
    driver.ok("cuCtxEnablePeerAccess", &[one, 0]);
    let pinned = driver.pinned(64);
    pinned.copy_from_slice(&floats(&[0.5; 16]));
    let target = driver.allocate(64);
    let function = function(&driver, "topod_fold_f32_sum");
    let sources = [there, out(&mut pinned[0])];
    let stream = driver.stream();
    assert_eq!(fold(&driver, function, (&sources, target), 16, (2, 16), stream), code::SUCCESS);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(driver.bytes(target, 64), floats(&[2.5; 16]));
}

#[test]
fn launches_are_checked_at_once_where_that_can_be() {
    let Some(driver) = start() else { return };
    let function = function(&driver, "topod_fold_f32_sum");
    let memory = driver.allocate(64);
    let stream = driver.stream();
    let launch = |shape, stream| fold(&driver, function, (&[memory], memory), 16, shape, stream);
    assert_eq!(launch((0, 32), stream), code::INVALID_VALUE);
    assert_eq!(launch((1, 1025), stream), code::INVALID_VALUE);
    assert_eq!(launch((1, 513), stream), code::OUT_OF_RESOURCES);
    let context = driver.get::<u64>("cuCtxGetCurrent", &[]);
    driver.retain(1);
    let other = driver.stream();
    assert_eq!(launch((1, 32), other), code::INVALID_HANDLE);
    assert_eq!(launch((1, 32), stream), code::INVALID_HANDLE);
    driver.ok("cuCtxSetCurrent", &[context]);
    assert_eq!(launch((1, 32), stream), code::SUCCESS);
    driver.ok("cuStreamSynchronize", &[stream]);
}

#[test]
fn modules_are_read() {
    let Some(library) = library() else { return };
    let driver = Driver::new(&format!(r#"{{"kernels": {library:?}, "capability": 80}}"#));
    let mut place = 0_u64;
    let load = |text: &str, place: &mut u64| {
        driver.call("cuModuleLoadData", &[out(place), at(text.as_bytes())])
    };
    assert_eq!(load(&module("8.8", 90), &mut place), code::NO_BINARY);
    assert_eq!(load(&module("99.0", 80), &mut place), 222);
    assert_eq!(load(".version 8.0\n.target sm_80\n\0", &mut place), code::INVALID_PTX);
    assert_eq!(load("\x7fELF\0", &mut place), 200);
    assert_eq!(load(&module("8.0", 70), &mut place), code::SUCCESS);
    let get = |name: &str| {
        let name = format!("{name}\0");
        driver.call("cuModuleGetFunction", &[out(&mut 0_u64), place, at(name.as_bytes())])
    };
    assert_eq!(get("topod_fold_i64_max"), code::SUCCESS);
    assert_eq!(get("topod_fold_i64_min"), code::NOT_FOUND);
    // In the text, but not in the host's build.
    assert_eq!(get("topod_fold_f32_none"), code::NOT_SUPPORTED);
    driver.ok("cuModuleUnload", &[place]);
    assert_eq!(get("topod_fold_i64_max"), code::INVALID_HANDLE);
}

/// A kernel that strays: outside of any allocation by far, and to memory that was freed. It ends its context, not the process.
#[test]
fn a_kernel_that_strays_ends_its_context() {
    let folder = tempfile::tempdir().unwrap();
    let source = "void stray_host(unsigned grid, unsigned block, int *at, unsigned long by) { (void)grid; (void)block; at[by] += 1; }\n";
    let Some(library) = built(folder.path(), source) else { return };
    let text = ".version 8.0\n.target sm_70\n.address_size 64\n\
                .visible .entry stray(.param .u64 a, .param .u64 b)\n{\nret;\n}\n\0";
    let stray = |by: u64, freed: bool| {
        let driver = Driver::new(&format!(r#"{{"kernels": {library:?}}}"#));
        let module = driver.get::<u64>("cuModuleLoadData", &[at(text.as_bytes())]);
        let function = driver.get::<u64>("cuModuleGetFunction", &[module, at(b"stray\0")]);
        let memory = driver.allocate(4096);
        driver.put(memory, &[0; 4096]);
        let stream = driver.stream();
        let at_memory = if freed { memory + (1 << 30) } else { memory };
        let parameters = at(&[at(&[at_memory]), at(&[by])]);
        driver.ok("cuLaunchKernel", &[function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0]);
        (driver.call("cuStreamSynchronize", &[stream]), driver, memory)
    };
    let (code, driver, memory) = stray(7, false);
    assert_eq!(code, code::SUCCESS);
    assert_eq!(driver.bytes(memory + 28, 4), [1, 0, 0, 0]);
    assert_eq!(stray(1024, false).0, code::ILLEGAL_ADDRESS, "one element behind");
    assert_eq!(stray(1 << 20, false).0, code::ILLEGAL_ADDRESS);
    assert_eq!(stray(0, true).0, code::ILLEGAL_ADDRESS);
}

/// Builds C source for the double to run; `None` without a compiler.
fn built(folder: &std::path::Path, source: &str) -> Option<PathBuf> {
    let (file, library) = (folder.join("kernel.c"), folder.join("kernel.so"));
    std::fs::write(&file, source).unwrap();
    let mut compiler = std::process::Command::new("cc");
    match compiler.arg("-shared").arg("-fPIC").arg(&file).arg("-o").arg(&library).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            println!("skipped: cc: {error}");
            return None;
        }
    }
    Some(library)
}

/// Each block writes at which turn it came; where `wait` is set, it waits until all have come.
const MEETING: &str = "#include <sched.h>\n\
    void meet_block(unsigned b, unsigned grid, unsigned threads, unsigned *come, unsigned *turn, unsigned wait) {\n\
    (void)threads; turn[b] = __atomic_fetch_add(come, 1, __ATOMIC_SEQ_CST);\n\
    while (wait && __atomic_load_n(come, __ATOMIC_SEQ_CST) < grid) sched_yield(); }\n";

#[test]
fn blocks_of_a_cooperative_launch_are_there_together() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = built(folder.path(), MEETING) else { return };
    let text = ".version 8.0\n.target sm_70\n.address_size 64\n\
                .visible .entry meet(.param .u64 a, .param .u64 b, .param .u32 c)\n.maxntid 512\n{\nret;\n}\n\0";
    let start = |attributes: &str| {
        let driver =
            Driver::new(&format!(r#"{{"kernels": {library:?}, "attributes": {{{attributes}}}}}"#));
        let module = driver.get::<u64>("cuModuleLoadData", &[at(text.as_bytes())]);
        let function = driver.get::<u64>("cuModuleGetFunction", &[module, at(b"meet\0")]);
        let memory = driver.allocate(4096);
        driver.put(memory, &[0; 4096]);
        let stream = driver.stream();
        (driver, function, memory, stream)
    };
    let launch =
        |driver: &Driver, call: &str, function, (memory, wait): (u64, u32), grid: u64, stream| {
            let parameters = at(&[at(&[memory]), at(&[memory + 64]), at(&[wait])]);
            driver.call(call, &[function, grid, 1, 1, 512, 1, 1, 0, stream, parameters, 0])
        };
    let turns = |driver: &Driver, memory: u64, grid: usize| -> Vec<u32> {
        let bytes = driver.bytes(memory + 64, 4 * grid);
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };

    let (driver, function, memory, stream) = start("");
    let call = "cuLaunchCooperativeKernel";
    assert_eq!(launch(&driver, call, function, (memory, 1), 9, stream), code::SUCCESS);
    driver.ok("cuStreamSynchronize", &[stream]);
    let mut met = turns(&driver, memory, 9);
    met.sort_unstable();
    assert_eq!(met, (0..9).collect::<Vec<_>>());
    // Four blocks of 512 threads on each of 132 multiprocessors.
    let too_many = launch(&driver, call, function, (memory, 0), 4 * 132 + 1, stream);
    assert_eq!(too_many, code::COOPERATIVE_TOO_LARGE);
    let resident =
        driver.get::<i32>("cuOccupancyMaxActiveBlocksPerMultiprocessor", &[function, 512, 0]);
    assert_eq!(resident, 4);

    // An ordinary launch promises no order, and has the one that is least expected.
    driver.put(memory, &[0; 4096]);
    assert_eq!(launch(&driver, "cuLaunchKernel", function, (memory, 0), 5, stream), code::SUCCESS);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(turns(&driver, memory, 5), [4, 3, 2, 1, 0]);

    let (driver, function, memory, stream) = start(r#""16": 1"#);
    let too_many = launch(&driver, call, function, (memory, 0), 5, stream);
    assert_eq!(too_many, code::COOPERATIVE_TOO_LARGE);
    let (driver, function, memory, stream) = start(r#""95": 0"#);
    let none = launch(&driver, call, function, (memory, 0), 1, stream);
    assert_eq!(none, code::NOT_SUPPORTED);
}
