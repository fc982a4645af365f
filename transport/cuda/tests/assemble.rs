//! The kernels compile by NVRTC and assemble by ptxas for every compute capability that is promised, without a GPU.
#![expect(clippy::print_stdout, reason = "tests say what they skip and what they measured")]

mod packages;

use std::process::Command;

use transport_cuda::{CAPABILITIES, compile, flagged_names, is_here, names};

use packages::{COMPILER, load, wanted};

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

#[test]
fn every_kernel_compiles_and_assembles() {
    let [builtins, compiler] = COMPILER;
    let Some([builtins, compiler, assembler]) = wanted([builtins, compiler, "ptxas"]) else {
        return;
    };
    load(builtins);
    load(compiler);
    assert!(is_here(), "NVRTC cannot be loaded");
    let folder = tempfile::tempdir().unwrap();
    for capability in CAPABILITIES {
        let source = compile(capability).unwrap().to_src();
        let names = [names(), flagged_names()].concat();
        for name in &names {
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
        assert_eq!(used.len(), names.len(), "sm_{capability}: {report}");
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
