//! The kernels compile by NVRTC and assemble by ptxas for every compute capability that is promised, without a GPU.
//!
//! Both come from NVIDIA's packages: `cargo xtask ci` puts them under `target/cuda` where it can. `TOPOD_CUDA_PACKAGES` names
//! another folder that holds them.
#![expect(clippy::print_stdout, reason = "tests say what they skip and what they measured")]
#![expect(unsafe_code, reason = "loads a library")]

use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use transport_cuda::{CAPABILITIES, compile, is_here, names};

fn find(folder: &Path, file: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().find(|path| path.file_name().is_some_and(|name| name == file));
    here.or_else(|| folders.iter().find_map(|folder| find(folder, file)))
}

fn packages() -> PathBuf {
    std::env::var_os("TOPOD_CUDA_PACKAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda"),
        PathBuf::from,
    )
}

/// Registers of each kernel, and bytes spilled.
fn used(report: &str) -> Vec<(u32, u32)> {
    let number = |line: &str, before: &str| -> Option<u32> {
        line.split(before).next()?.split_whitespace().next_back()?.parse().ok()
    };
    let spills = report.lines().filter(|line| line.contains("bytes spill stores"));
    let registers = report.lines().filter(|line| line.contains(" registers"));
    let pair =
        |(s, r): (&str, &str)| Some((number(r, " registers")?, number(s, " bytes spill stores")?));
    spills.zip(registers).filter_map(pair).collect()
}

/// Makes a library that lies in no system folder one that is found by its name: one that is loaded has its name taken.
fn load(file: PathBuf) {
    // SAFETY: Initialisers of NVIDIA's compiler do nothing but set it up.
    let loaded = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.unwrap();
    std::mem::forget(loaded);
}

#[test]
fn every_kernel_compiles_and_assembles() {
    let packages = packages();
    let wanted = ["libnvrtc-builtins.so.12.9", "libnvrtc.so.12", "ptxas"];
    let found: Vec<PathBuf> = wanted.iter().filter_map(|file| find(&packages, file)).collect();
    let Ok([builtins, compiler, assembler]) = <[PathBuf; 3]>::try_from(found) else {
        println!("skipped: not all of {} below {}", wanted.join(", "), packages.display());
        return;
    };
    load(builtins);
    load(compiler);
    assert!(is_here(), "NVRTC cannot be loaded");
    let folder = tempfile::tempdir().unwrap();
    for capability in CAPABILITIES {
        let source = compile(capability).unwrap().to_src();
        for name in names() {
            assert!(source.contains(&format!(".entry {name}(")), "sm_{capability}: no {name}");
        }
        let file = folder.path().join("kernels.ptx");
        std::fs::write(&file, &source).unwrap();
        let mut command = Command::new(&assembler);
        command.arg("-v").arg(format!("--gpu-name=sm_{capability}")).arg(&file);
        let output = command.arg("-o").arg(folder.path().join("kernels.cubin")).output().unwrap();
        let report = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "sm_{capability}: {report}");
        let used = used(&report);
        assert_eq!(used.len(), names().len(), "sm_{capability}: {report}");
        let most = used.iter().map(|(registers, _)| *registers).max().unwrap();
        let spilled = used.iter().map(|(_, spilled)| *spilled).max().unwrap();
        // 512 threads of a block share 65,536 registers. What calls the subroutine of an exact division
        // may save a few around it.
        assert!(
            most <= 128 && spilled <= 32,
            "sm_{capability}: {most} registers, {spilled} bytes spilled"
        );
        println!(
            "sm_{capability}: {} kernels, at most {most} registers and {spilled} bytes spilled",
            used.len()
        );
    }
}
