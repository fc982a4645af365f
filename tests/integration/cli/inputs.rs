//! Inputs that are refused: exit code 2, nothing on stdout, and one line with place and reason.

use std::fs;

use super::topoctl;

/// Input, and what topoctl says of it after the name of the source.
const REFUSED: [(&str, &str); 16] = [
    ("", "unrecognised input: the input is empty"),
    (
        "nothing of the kind",
        "unrecognised input, line 1: no header naming GPU0, GPU1, … and no row of path classes",
    ),
    (
        "<system version=\"1\">\n<cpu numaid=\"0\">\n<pci/></cpu></system>",
        "NCCL topology XML, line 3: <pci> states no busid",
    ),
    (
        "<system version=\"1\">\n  <gpu dev=\"0\"/></system>",
        "NCCL topology XML, line 2: <gpu> cannot be inside <system>",
    ),
    (
        "<system version=\"1\">\n<cpu numaid=\"0\">\n",
        "NCCL topology XML, line 2: the file ends early: cut off here",
    ),
    (
        "<graphs version=\"1\">\n</graphs>",
        "NCCL graph XML, line 1: it holds the channels NCCL uses, no machine",
    ),
    (
        "<topology version=\"9\"/>",
        "hwloc XML, line 1: version 9 of the format is not known (1 to 3 are)",
    ),
    (
        "<nvidia_smi_log>\n<gpu id=\"x\"/></nvidia_smi_log>",
        "nvidia-smi -q -x XML, line 2: id 'x' of <gpu> is no PCI address",
    ),
    (
        "  GPU0 GPU1\nGPU0 X PIX\nGPU1 PHB X\n",
        "nvidia-smi topo -m matrix, line 3: GPU1 to GPU0 is PHB, GPU0 to GPU1 is PIX",
    ),
    (
        "  GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n",
        "nvidia-smi topo -p2p matrix, line 2: it tells which pairs may access each other's memory",
    ),
    ("n1:1:2 [0] NCCL INFO Bootstrap\n", "NCCL log, line 1: it tells what NCCL chose on a machine"),
    (
        "$ ibstat\nCA 'mlx5_0'\n",
        "ibstat output, line 2: it is the state of the InfiniBand ports of a host",
    ),
    (
        "01:00.0 VGA compatible controller: NVIDIA Corporation X\n",
        "lspci output without the tree, line 1: it does not tell which bridge",
    ),
    (
        "=== Link Type between two GPUs ===\nGPU0 GPU1\nGPU0 0 XGMI\nGPU1 PCIE 0\n",
        "rocm-smi or amd-smi topology, line 2: row 0 has XGMI to 1",
    ),
    (
        "{\"schema_version\": 9, \"source\": \"live\"}",
        "topod snapshot JSON: schema version 9 is newer than 1",
    ),
    (
        "{\n\"schema_version\":1,\"name\":\"n\",\"gpus\":[],\"switches\":[],\n\"links\":[[\"a\"]]}",
        "link graph JSON, line 3: ",
    ),
];

#[track_caller]
fn check(source: &str, stdin: &str, said: &str) {
    let output = topoctl(&["show", "--from", source], stdin);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}: {stderr}");
    assert!(output.stdout.is_empty(), "{said}");
    assert!(stderr.contains(&format!("{source}: {said}")), "expected '{said}' in: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
}

#[test]
fn each_refusal_names_place_and_reason() {
    for (input, said) in REFUSED {
        check("-", input, said);
    }
}

#[test]
fn a_file_and_a_directory_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().display().to_string();
    check(&folder, "", "directory: no sys in it");
    let file = dir.path().join("host.tar.gz");
    fs::write(&file, [0x1F, 0x8B, 8, 0]).expect("written");
    check(&file.display().to_string(), "", "gzip data: damaged or cut off");
    check(&dir.path().join("absent").display().to_string(), "", "No such file");
}
