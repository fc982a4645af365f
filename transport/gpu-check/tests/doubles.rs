//! The whole program over the doubles of the CUDA driver and NVML, with an nvidia-smi that prints recorded texts: what it
//! reports, and that it finds what is wrong. No rate here means anything.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const UUID: &str = "GPU-5d1f1c2e-0000-4000-8000-00000000001b";

const SCENARIO: &str = r#"{
  "driver_version": "550.54.15",
  "devices": [
    { "uuid": "GPU-5d1f1c2e-0000-4000-8000-00000000001b", "name": "NVIDIA H100 PCIe", "bus_id": "0000:1b:00.0",
      "pci_device_id": 590418142, "minor": 0, "memory_total": 85520809984, "compute_capability": [9, 0],
      "pcie": { "max_generation": 5, "device_max_generation": 5, "max_width": 16, "current_generation": 5, "current_width": 16 },
      "nvlinks": [] } ],
  "pairs": [],
  "faults": []
}"#;

const QUERY: &str = r#"<?xml version="1.0" ?>
<nvidia_smi_log>
	<driver_version>550.54.15</driver_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:1B:00.0">
		<product_name>NVIDIA H100 PCIe</product_name>
		<uuid>GPU-5d1f1c2e-0000-4000-8000-00000000001b</uuid>
		<fb_memory_usage>
			<total>81559 MiB</total>
		</fb_memory_usage>
	</gpu>
</nvidia_smi_log>
"#;

/// The same for people.
const TEXT: &str = "
==============NVSMI LOG==============

Timestamp                                 : Tue Mar  5 10:00:00 2024
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 PCIe
    GPU UUID                              : GPU-5d1f1c2e-0000-4000-8000-00000000001b
    FB Memory Usage
        Total                             : 81559 MiB
";

/// Two GPUs, of which the CUDA driver alone is told.
const PAIR: &str = r#"{
  "driver_version": "550.54.15",
  "devices": [
    { "uuid": "GPU-5d1f1c2e-0000-4000-8000-00000000001b", "name": "NVIDIA H100 PCIe", "bus_id": "0000:1b:00.0",
      "pci_device_id": 590418142, "minor": 0, "memory_total": 85520809984, "compute_capability": [9, 0],
      "pcie": { "max_generation": 5, "device_max_generation": 5, "max_width": 16, "current_generation": 5, "current_width": 16 },
      "nvlinks": [] },
    { "uuid": "GPU-5d1f1c2e-0000-4000-8000-0000000000b1", "name": "NVIDIA H100 PCIe", "bus_id": "0000:b1:00.0",
      "pci_device_id": 590418142, "minor": 1, "memory_total": 85520809984, "compute_capability": [9, 0],
      "pcie": { "max_generation": 5, "device_max_generation": 5, "max_width": 16, "current_generation": 5, "current_width": 16 },
      "nvlinks": [] } ],
  "pairs": [],
  "faults": []
}"#;

const MATRIX: &str =
    "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tN/A\tN/A\t\tN/A\n";

/// A host: both doubles, nvidia-smi, and the kernels.
struct Stage {
    folder: TempDir,
    kernels: PathBuf,
}

impl Stage {
    /// `None` where there is no C++ compiler.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let kernels = match machines::build_cuda_kernels(folder.path()) {
            Ok(kernels) => kernels,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: g++: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        machines::install_cuda_double(folder.path()).unwrap();
        machines::install_nvml_double(folder.path()).unwrap();
        let stage = Self { folder, kernels };
        stage.write("nvml-scenario.json", SCENARIO);
        stage.write("query", QUERY);
        stage.write("text", TEXT);
        stage.write("pair.json", PAIR);
        stage.write("matrix", MATRIX);
        let script = "#!/bin/sh\nfolder=$(dirname \"$0\")\ncase \"$*\" in\n'-q -x') cat \"$folder/query\" ;;\n-q) cat \"$folder/text\" ;;\n\
                      'topo -m') cat \"$folder/matrix\" ;;\n*) exit 1 ;;\nesac\n";
        stage.write("nvidia-smi", script);
        fs::set_permissions(stage.path("nvidia-smi"), fs::Permissions::from_mode(0o755)).unwrap();
        stage.write("kernels.ptx", &ptx());
        Some(stage)
    }

    /// Puts the double of NCCL where its library is looked for.
    fn with_nccl(&self) {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nccl/double.c");
        let built = Command::new("cc")
            .args(["-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-o"])
            .arg(self.path("libnccl.so.2"))
            .args([source, "-ldl"])
            .status();
        assert!(built.unwrap().success());
    }

    /// What every process of a run left behind, by the double's account: nothing.
    #[track_caller]
    fn nothing_is_left(&self, processes: usize) {
        let told = fs::read_to_string(self.path("left")).unwrap();
        assert_eq!(told.lines().count(), processes, "{told}");
        for line in told.lines() {
            let left: Value = serde_json::from_str(line).unwrap();
            for (what, count) in left["left"].as_object().unwrap() {
                assert_eq!(count, 0, "{what}: {left}");
            }
            assert_eq!(left["freed_while_open"], 0, "{left}");
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn run(&self, variables: &[(&str, &Path)], arguments: &[&str]) -> (Output, Option<Value>) {
        // One that hangs is killed, and fails by that.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "600", env!("CARGO_BIN_EXE_topod-gpu-check")]);
        let search = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{search}", self.folder.path().display()));
        command.env("LD_LIBRARY_PATH", self.folder.path());
        command.env("TOPOD_CUDA_DOUBLE_NVML_SCENARIO", self.path("nvml-scenario.json"));
        command.env("TOPOD_CUDA_DOUBLE_KERNELS", &self.kernels);
        command.env("TOPOD_CUDA_DOUBLE_REPORT", self.path("left"));
        command.envs(variables.iter().copied());
        let report = self.path("report.json");
        command.arg("--quick").arg("--json").arg(&report);
        command.arg("--ptx").arg(self.path("kernels.ptx")).args(arguments);
        let output = command.output().unwrap();
        let text = fs::read(&report).ok();
        (output, text.map(|text| serde_json::from_slice(&text).unwrap()))
    }
}

/// As NVRTC writes the heads of all kernels; their bodies are the host's build.
fn ptx() -> String {
    let entry = |name: String| {
        format!(
            ".visible .entry {name}(\n.param .align 8 .b8 {name}_param_0[128],\n.param .u32 {name}_param_1,\n\
             .param .u64 {name}_param_2,\n.param .u64 {name}_param_3,\n.param .u32 {name}_param_4\n)\n.maxntid 512\n{{\nret;\n}}\n"
        )
    };
    let folds = transport_cuda::names().into_iter().filter(|name| name.starts_with("topod_fold_"));
    let flagged = |name: String| {
        let [places, program] = transport_cuda::FLAGGED_PARAMETERS;
        format!(
            ".visible .entry {name}(\n.param .align 8 .b8 {name}_param_0[{places}],\n\
             .param .align 4 .b8 {name}_param_1[{program}]\n)\n.maxntid 512\n{{\nret;\n}}\n"
        )
    };
    let flagged = transport_cuda::flagged_names().into_iter().map(flagged);
    let entries: String = folds.map(entry).chain(flagged).collect();
    format!(".version 8.8\n.target sm_90\n.address_size 64\n{entries}")
}

#[track_caller]
fn outcome<'a>(report: &'a Value, stage: &str) -> (&'a str, String) {
    let stages = report["stages"].as_array().unwrap();
    let found =
        stages.iter().find(|found| found["name"] == stage).unwrap_or_else(|| panic!("no {stage}"));
    (found["outcome"].as_str().unwrap(), found["details"].to_string())
}

#[test]
fn a_good_host() {
    let Some(stage) = Stage::new() else { return };
    let (output, report) = stage.run(&[], &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report = report.unwrap();
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["gpu"]["uuid"], UUID);
    assert_eq!(report["gpu"]["bus_id"], "0000:1B:00.0");
    for stage in ["probe", "copies", "kernel results", "kernel launches"] {
        assert_eq!(outcome(&report, stage).0, "passed", "{stage}: {}", outcome(&report, stage).1);
    }
    for stage in ["collectives", "memory between ranks"] {
        assert_eq!(outcome(&report, stage).0, "passed", "{stage}: {}", outcome(&report, stage).1);
    }
    // Small sizes are not judged, and that is no pass. Nor is a library that is missing.
    for stage in ["kernel traffic", "nccl"] {
        assert_eq!(outcome(&report, stage).0, "skipped", "{stage}");
    }
    assert_eq!(report["copies"].as_array().unwrap().len(), 2 * 5);
    // Every kernel once, and one of them over sizes and sources.
    let folds =
        transport_cuda::names().iter().filter(|name| name.starts_with("topod_fold_")).count();
    assert_eq!(report["kernels"].as_array().unwrap().len(), folds + 5);
    let collectives = &report["collectives"];
    assert_eq!((&collectives["ranks"], &collectives["devices"]), (&4.into(), &vec![0; 4].into()));
    // From each of four ranks to each other.
    assert_eq!(collectives["ways"], serde_json::json!({ "peer": 12 }));
    assert_eq!(collectives["rates"].as_array().unwrap().len(), 6 * 2);
    assert!(collectives["elements_checked"].as_u64().unwrap() > 1_000_000, "{collectives}");
    // By messages with flags, every result again, and times beside those of copies.
    let with_flags = report["with_flags"].as_array().unwrap();
    for (found, name) in with_flags.iter().zip(["ll", "ll128"]) {
        let (outcome, details) =
            outcome(&report, &format!("collectives by {}", name.to_uppercase()));
        assert_eq!(outcome, "passed", "{details}");
        assert_eq!(found["protocol"], name);
        assert!(found["by_protocol"][name].as_u64().unwrap() > 1000, "{found}");
        assert!(found["elements_checked"].as_u64().unwrap() > 100_000, "{found}");
        assert_eq!(found["beside_copies"].as_array().unwrap().len(), 6, "{found}");
    }
    assert_eq!(with_flags.len(), 2);
    assert!(report["cannot_show"].as_array().unwrap().len() > 3);
    assert!(text.contains("One GPU does not show:") && text.contains("NVLink"), "{text}");
    // The program gives back what it takes, and so do its ranks.
    stage.nothing_is_left(13);
}

/// NCCL refuses ranks that share a GPU: that is told, and one rank alone is no comparison.
#[test]
fn nccl_on_one_gpu_is_no_comparison() {
    let Some(stage) = Stage::new() else { return };
    stage.with_nccl();
    let (output, report) = stage.run(&[], &["--ranks", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let report = report.unwrap();
    let (outcome, details) = outcome(&report, "nccl");
    assert_eq!(outcome, "skipped", "{details}");
    assert!(details.contains("Duplicate GPU detected"), "{details}");
    assert!(details.contains("one rank alone gives right results"), "{details}");
    let nccl = &report["nccl"];
    assert_eq!(nccl["version"], "2.21.5");
    assert!(nccl["refused"].as_str().unwrap().contains("invalid usage"), "{nccl}");
    assert_eq!(nccl["ratios"], serde_json::json!([]));
    assert!(nccl["not_shown"].to_string().contains("between ranks"), "{nccl}");
}

/// A GPU for each rank: all of them are used, and NCCL is compared with, whose results are looked at too.
#[test]
fn several_gpus_are_all_used_and_nccl_is_compared_with() {
    let Some(stage) = Stage::new() else { return };
    stage.with_nccl();
    let pair = stage.path("pair.json");
    let scenario = ("TOPOD_CUDA_DOUBLE_NVML_SCENARIO", pair.as_path());
    let (output, report) = stage.run(&[scenario], &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let report = report.unwrap();
    assert_eq!(report["collectives"]["devices"], serde_json::json!([0, 1]));
    for stage in ["collectives", "memory between ranks", "nccl"] {
        assert_eq!(outcome(&report, stage).0, "passed", "{stage}: {}", outcome(&report, stage).1);
    }
    let ratios = report["nccl"]["ratios"].as_array().unwrap();
    let compared: Vec<_> = ratios.iter().map(|r| (&r["collective"], r["bytes"].as_u64())).collect();
    assert_eq!(compared.len(), 2 * 2, "two collectives at two sizes: {compared:?}");
    for ratio in ratios {
        let number = |key: &str| ratio[key].as_f64().unwrap();
        let expected = number("ours_gb_per_s") / number("nccl_gb_per_s");
        assert!((number("ratio") - expected).abs() <= 1e-9 * expected, "{ratio}");
    }
    assert!(text.contains("One host does not show:") && !text.contains("One GPU"), "{text}");
    let wrong = [scenario, ("NCCL_DOUBLE_WRONG", Path::new("1"))];
    let (output, report) = stage.run(&wrong, &[]);
    assert_eq!(output.status.code(), Some(1));
    let report = report.unwrap();
    let (outcome, details) = outcome(&report, "nccl");
    assert_eq!(outcome, "wrong", "{details}");
    assert!(details.contains("NCCL's all-reduce: element 0"), "{details}");
}

/// Where no handle opens, results are right by the host's memory, and what was to be shown is not passed.
#[test]
fn memory_that_other_processes_may_not_open_is_told() {
    let Some(stage) = Stage::new() else { return };
    let (output, report) =
        stage.run(&[("TOPOD_CUDA_DOUBLE_FAULTS", Path::new("ipc:open"))], &["--ranks", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let report = report.unwrap();
    assert_eq!(outcome(&report, "collectives").0, "passed");
    for stage in ["collectives by LL", "collectives by LL128"] {
        let (outcome, details) = outcome(&report, stage);
        assert_eq!(outcome, "skipped", "{details}");
        assert!(details.contains("cuIpcOpenMemHandle"), "{details}");
    }
    let (outcome, details) = outcome(&report, "memory between ranks");
    assert_eq!(outcome, "skipped", "{details}");
    assert!(details.contains("0 of 2 ways") && details.contains("cuIpcOpenMemHandle"), "{details}");
    assert_eq!(report["collectives"]["ways"], serde_json::json!({ "staged": 2 }));
}

/// The device is gone while ranks are in a collective: every rank ends, and the words say whose device it was.
#[test]
fn a_device_that_is_lost_in_a_collective_is_told() {
    let Some(stage) = Stage::new() else { return };
    // The program itself has some 6,600 operations on its device, a rank four times as many: of each process so many go.
    let fault = ("TOPOD_CUDA_DOUBLE_FAULTS", Path::new("lost:device=0,after=12000"));
    let (output, report) = stage.run(&[fault], &["--ranks", "2"]);
    assert_eq!(output.status.code(), Some(1));
    let report = report.unwrap();
    assert_eq!(outcome(&report, "kernel results").0, "passed", "the program's own device lives");
    let (outcome, details) = outcome(&report, "collectives");
    assert_eq!(outcome, "failed", "{details}");
    assert!(details.contains("CUDA_ERROR_LAUNCH_FAILED"), "{details}");
    assert!(details.contains("0000:1b:00.0"), "{details}");
}

/// No stage passes that had no time.
#[test]
fn without_time_nothing_passes() {
    let Some(stage) = Stage::new() else { return };
    let (output, report) = stage.run(&[], &["--limit", "0"]);
    // nvidia-smi is not waited for, so the probe fails unless it was that quick.
    assert!(matches!(output.status.code(), Some(1 | 4)), "{output:?}");
    let report = report.unwrap();
    for stage in [
        "copies",
        "kernel results",
        "collectives",
        "memory between ranks",
        "collectives by LL",
        "nccl",
    ] {
        assert_eq!(outcome(&report, stage).0, "stopped", "{stage}: {}", outcome(&report, stage).1);
    }
}

#[test]
fn what_tools_say_otherwise_is_found() {
    let Some(stage) = Stage::new() else { return };
    stage.write("query", &QUERY.replace("001b</uuid>", "001c</uuid>"));
    stage.write(
        "matrix",
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV4\tN/A\tN/A\t\tN/A\n\
         GPU1\tNV4\t X \tN/A\tN/A\t\tN/A\n",
    );
    let (output, report) = stage.run(&[], &[]);
    assert_eq!(output.status.code(), Some(1));
    let report = report.unwrap();
    let (outcome, details) = outcome(&report, "probe");
    assert_eq!(outcome, "wrong", "{details}");
    assert!(details.contains("nvidia-smi -q -x: GPU 0: UUID"), "{details}");
    assert!(details.contains("nvidia-smi topo -m: GPUs: 2"), "{details}");
}

/// Kernels that were built with another meaning: each is told by name.
#[test]
fn wrong_results_are_found() {
    let Some(stage) = Stage::new() else { return };
    let source =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda/src/kernels.cu")).unwrap();
    // A product that is a sum: the first of the two functions of this form.
    let wrong = source.replacen("return (T)(U)((U)a * (U)b);", "return (T)(U)((U)a + (U)b);", 1);
    assert_ne!(wrong, source);
    stage.write("kernels.cu", &wrong);
    // It includes the other.
    stage.write("flagged.cu", transport_cuda::FLAGGED_SOURCE);
    let library = stage.path("wrong.so");
    let built = Command::new("g++")
        .args([
            "-std=c++17",
            "-O1",
            "-Wno-unknown-pragmas",
            "-ffp-contract=off",
            "-DTOPOD_HOST",
            "-x",
            "c++",
        ])
        .arg(stage.path("flagged.cu"))
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .status()
        .unwrap();
    assert!(built.success());
    let (output, report) = stage.run(&[("TOPOD_CUDA_DOUBLE_KERNELS", &library)], &[]);
    assert_eq!(output.status.code(), Some(1));
    let report = report.unwrap();
    let (outcome, details) = outcome(&report, "kernel results");
    assert_eq!(outcome, "wrong");
    assert!(details.contains("topod_fold_f32_prod") && !details.contains("_sum "), "{details}");
    let (outcome, details) = self::outcome(&report, "collectives");
    assert_eq!(outcome, "wrong");
    assert!(details.contains("all-reduce, prod") && !details.contains(", sum"), "{details}");
    for stage in ["collectives by LL", "collectives by LL128"] {
        let (outcome, details) = self::outcome(&report, stage);
        assert_eq!(outcome, "wrong", "{details}");
        assert!(details.contains("all-reduce, prod") && !details.contains(", sum"), "{details}");
    }
}

#[test]
fn a_device_that_is_lost_is_no_pass() {
    let Some(stage) = Stage::new() else { return };
    let (output, report) =
        stage.run(&[("TOPOD_CUDA_DOUBLE_FAULTS", Path::new("lost:device=0,after=300"))], &[]);
    assert_eq!(output.status.code(), Some(1));
    let report = report.unwrap();
    let stages = report["stages"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["outcome"] == "failed"), "{stages:?}");
    assert!(report.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{report}");
}

#[test]
fn without_a_gpu_it_says_so() {
    let Some(stage) = Stage::new() else { return };
    let (output, report) = stage.run(&[("TOPOD_CUDA_DOUBLE_DEVICES", Path::new("0"))], &[]);
    assert_eq!((output.status.code(), report.is_none()), (Some(3), true));
    let (output, _) = stage.run(&[], &["--device", "7"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the driver shows 1"));
    // No driver at all: the program starts, for nothing of CUDA is linked.
    let nothing = tempfile::tempdir().unwrap();
    let (output, _) = stage.run(&[("LD_LIBRARY_PATH", nothing.path())], &[]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.contains("no CUDA driver") {
        assert_eq!(output.status.code(), Some(3));
        assert!(String::from_utf8_lossy(&output.stdout).contains("Nothing was checked"));
    } else {
        println!("skipped in part: this host has a CUDA driver");
    }
}
