//! What stock NCCL, RCCL and UCC are given, read back; and what NCCL said of real machines, beside ours.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use topology::nccl_dialect::scan;
use topology::nccl_topo::TopoFile;
use topology::{
    RateModel, Snapshot, Topology, formats, lower, nccl_diff, nccl_graph, nccl_log, nccl_tuner,
};

use super::{check, check_json, corpus, dgx1v, loaded, topoctl};

/// Two GPUs on four links, with a NIC each, as NCCL would dump it.
const SEEN: &str = r#"<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80"><nvlink target="0000:12:00.0" count="4"/></gpu></pci>
      <pci busid="0000:03:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" port="1" speed="200000"/></nic></pci>
    </pci>
    <pci busid="0000:11:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:12:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="80"><nvlink target="0000:02:00.0" count="4"/></gpu></pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_1" port="1" speed="200000"/></nic></pci>
    </pci>
  </cpu>
</system>
"#;

fn codes(document: &Value) -> Vec<&str> {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect()
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

#[test]
fn nccl_diff_says_what_nccl_does_not_see() {
    let files = Files::new();
    let known = files.write("known.xml", SEEN);
    let diff = |seen: &str, exit| {
        let seen = files.write("seen.xml", seen);
        check_json(&["nccl", "diff", "--from", &known, "--topo", &seen, "-o", "json"], "", exit)
    };
    let same = diff(SEEN, 0);
    assert!(codes(&same).is_empty() && same["compared"].as_u64() >= Some(6), "{same}");
    // A file that lists fewer links keeps NCCL from asking the driver.
    assert_eq!(
        codes(&diff(&SEEN.replace("count=\"4\"", "count=\"2\""), 3)),
        ["nccl-sees-fewer-nvlinks"]
    );
    let without = SEEN.replace("<nvlink target=\"0000:12:00.0\" count=\"4\"/>", "");
    let without = without.replace("<nvlink target=\"0000:02:00.0\" count=\"4\"/>", "");
    assert_eq!(codes(&diff(&without, 3)), ["nccl-sees-fewer-nvlinks"]);
    // Flat, as in a guest: both NICs and GPUs at the root.
    let flat: String = SEEN
        .lines()
        .filter(|line| !line.contains("0x060400") && line.trim() != "</pci>")
        .map(|line| format!("{line}\n"))
        .collect();
    let flat = diff(&flat, 3);
    assert_eq!(codes(&flat), ["nccl-sees-longer-path"; 2], "{flat}");
    assert!(
        flat["findings"][0]["evidence"].as_str().unwrap().contains("PIX here, PHB to NCCL"),
        "{flat}"
    );
    let turned =
        SEEN.replace("gpu dev=\"0\"", "gpu dev=\"9\"").replace("gpu dev=\"1\"", "gpu dev=\"0\"");
    let turned = diff(&turned.replace("gpu dev=\"9\"", "gpu dev=\"1\""), 3);
    assert_eq!(codes(&turned), ["nccl-gpu-number-differs"; 2], "{turned}");
    let other = diff(&SEEN.replace("0000:12:00.0", "0000:22:00.0"), 3);
    assert!(codes(&other).contains(&"nccl-has-other-gpu"), "{other}");
    // In words, for people.
    let seen = files.write("seen.xml", SEEN);
    let text = check(&["nccl", "diff", "--from", &known, "--topo", &seen], "", 0);
    assert!(text.contains("2 GPUs") && text.contains("0 differ"), "{text}");
    // A matrix tells no addresses: nothing compared is no agreement.
    let matrix = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n";
    let matrix = files.write("matrix", matrix);
    check(&["nccl", "diff", "--from", &matrix, "--topo", &seen], "", 5);
    check(&["nccl", "diff", "--from", &known], "", 2);
    check(&["nccl", "diff", "--from", &known, "--graph", &seen], "", 2);
    check(&["nccl", "diff", "--from", &known, "--log", &seen], "", 2);
}

#[test]
fn nccl_diff_compares_channels_with_the_plan() {
    let files = Files::new();
    let from = dgx1v();
    let graph = check(&["export", "--format", "nccl-graph", "--from", &from], "", 0);
    let diff = |text: &str, exit| {
        let graph = files.write("graph.xml", text);
        check_json(&["nccl", "diff", "--from", &from, "--graph", &graph, "-o", "json"], "", exit)
    };
    let same = diff(&graph, 0);
    assert!(codes(&same).is_empty() && same["compared"] == 2, "{same}");
    let slow = graph.replace("speedintra=\"20\"", "speedintra=\"10\"");
    let slow = diff(&slow, 3);
    assert_eq!(codes(&slow), ["nccl-rings-below-plan"]);
    let evidence = slow["findings"][0]["evidence"].as_str().unwrap();
    assert!(evidence.contains("60 GB/s in all") && evidence.contains("120 GB/s"), "{evidence}");
    let around = diff(&graph.replace("typeintra=\"NVL\"", "typeintra=\"SYS\""), 3);
    assert_eq!(codes(&around), ["nccl-rings-cross-worse-paths"]);
    let above = diff(&graph.replace("speedintra=\"20\"", "speedintra=\"30\""), 0);
    assert_eq!(codes(&above), ["nccl-rings-above-plan"]);
    let graph = files.write("graph.xml", &graph);
    let fewer =
        ["nccl", "diff", "--from", &from, "--gpus", "0,1,2,3", "--graph", &graph, "-o", "json"];
    assert_eq!(codes(&check_json(&fewer, "", 3)), ["nccl-rings-of-other-gpus"]);
}

#[test]
fn nccl_diff_reads_logs() {
    let files = Files::new();
    let known = files.write("known.json", &{
        let mut host: Snapshot = formats::read(SEEN.as_bytes()).unwrap().remove(0);
        host.nics.iter_mut().for_each(|nic| {
            nic.role = topology::snapshot::NicRole::Fabric;
            nic.up = Some(true);
        });
        formats::write_snapshot(&host)
    });
    let log = |via: &str, nics: &str| {
        format!(
            "n0:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 2000 commId 0x2 - Init START\n\
             n0:2:2 [1] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 12000 commId 0x2 - Init START\n\
             n0:1:1 [0] NCCL INFO NET/IB : Using {nics}; OOB eth0:192.0.2.1<0>\n\
             n0:1:1 [0] NCCL INFO Channel 00/01 :    0   1\n\
             n0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}\n"
        )
    };
    let diff = |text: &str, exit| {
        let log = files.write("log", text);
        check_json(&["nccl", "diff", "--from", &known, "--log", &log, "-o", "json"], "", exit)
    };
    let both = "[0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]";
    let good = diff(&log("P2P/IPC", both), 0);
    assert!(codes(&good).is_empty() && good["compared"].as_u64() >= Some(3), "{good}");
    assert_eq!(codes(&diff(&log("SHM/direct/direct", both), 3)), ["nccl-goes-around"]);
    assert_eq!(codes(&diff(&log("P2P/IPC", "[0]mlx5_1:1/IB"), 3)), ["nccl-misses-nic"]);
    let more = format!("{both} [2]mlx5_7:1/RoCE");
    assert_eq!(codes(&diff(&log("P2P/IPC", &more), 3)), ["nccl-uses-other-nic"]);
}

/// Real logs of five years: what they tell is read, and makes sense.
#[test]
fn real_logs_are_understood() {
    let Some(files) = corpus("real/nccl-log") else { return };
    let (mut rings, mut connections, mut ports, mut devices) = (0, 0, 0, 0);
    for path in &files {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let log = nccl_log::read(&text);
        assert!(log.rings.values().all(|ring| ring.len() == log.ranks), "{}", path.display());
        rings += usize::from(!log.rings.is_empty());
        connections += usize::from(!log.connections.is_empty());
        ports += usize::from(!log.ports.is_empty());
        devices += usize::from(!log.devices.is_empty());
        // Another machine's log beside ours: words, and no panic.
        let host = lower(&loaded(Path::new(&dgx1v())).unwrap(), RateModel::Effective).unwrap();
        let found = nccl_diff::log(&host, None, &log);
        assert!(found.findings.iter().all(|finding| !finding.evidence.is_empty()));
    }
    eprintln!(
        "{} logs: {rings} with rings, {connections} with connections, {ports} with ports, {devices} with devices",
        files.len()
    );
    assert_eq!((rings, connections, ports, devices), (20, 18, 12, 19), "of 25 logs");
}

/// The four GPUs of a real tray, NCCL's own topology and its own channels of the same machine.
#[test]
fn a_real_dump_and_its_graph_agree() {
    let Some(topologies) = corpus("real/nccl-topo-xml") else { return };
    let Some(graphs) = corpus("real/nccl-graph-xml") else { return };
    let named = |files: &[PathBuf], name: &str| {
        files.iter().find(|path| path.ends_with(name)).unwrap().display().to_string()
    };
    let topo = named(&topologies, "datacrunch__gb300-1tray-healthy.xml");
    let graph = named(&graphs, "datacrunch__gb300-1tray.xml");
    let arguments =
        ["nccl", "diff", "--from", &topo, "--topo", &topo, "--graph", &graph, "-o", "json"];
    let output = topoctl(&arguments, "");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ours: Vec<&str> =
        codes(&found).into_iter().filter(|code| *code != "nccl-rings-above-plan").collect();
    assert!(ours.is_empty(), "{found:#}");
    assert!(found["compared"].as_u64() >= Some(10), "{found:#}");
}

/// Folders of machines that tell addresses.
const MACHINES: [&str; 3] = ["nccl-model", "real/nccl-topo-xml", "real/hwloc-xml"];

fn machines() -> Option<Vec<(PathBuf, Snapshot)>> {
    let mut found = Vec::new();
    for folder in MACHINES {
        for path in corpus(folder)?.into_iter().filter(|path| path.is_file()) {
            if let Some([host]) = loaded(&path).and_then(|hosts| <[_; 1]>::try_from(hosts).ok()) {
                found.push((path, host));
            }
        }
    }
    Some(found)
}

/// Every machine's file is NCCL's dialect, is read back by the strict reader, and tells NCCL what is known here: paths between all
/// GPUs, and between GPUs and NICs.
#[test]
fn every_machines_topology_file_reads_back() {
    let Some(machines) = machines() else { return };
    let (mut same, mut fitted, mut refused) = (0, 0, Vec::new());
    for (path, host) in machines.iter().filter(|(_, host)| !host.gpus.is_empty()) {
        let name = path.file_name().unwrap().to_string_lossy();
        let mut file = match TopoFile::of_host(host) {
            Ok(file) => file,
            Err(error) => {
                refused.push(format!("{name}: {error}"));
                continue;
            }
        };
        file.fit();
        let text = file.write();
        let elements = scan(&text).unwrap_or_else(|offence| panic!("{name}: {offence}")).elements;
        assert_eq!(elements, file.elements(), "{name}");
        let again =
            formats::read(text.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let of = |hosts: &[Snapshot]| -> Topology { lower(hosts, RateModel::Effective).unwrap() };
        let gpus = |host: &Snapshot| -> BTreeSet<_> {
            host.gpus.iter().map(|gpu| (gpu.index, gpu.bus_id)).collect()
        };
        if file.notes().is_empty() {
            assert_eq!(gpus(&again[0]), gpus(host), "{name}");
            let found = nccl_diff::topology(&of(std::slice::from_ref(host)), &of(&again));
            assert!(found.findings.is_empty(), "{name}: {:#?}", found.findings);
            same += 1;
        } else {
            fitted += 1;
        }
    }
    eprintln!(
        "{same} files read back the same, {fitted} with something left out, refused: {refused:#?}"
    );
    assert!(same >= 60, "only {same}");
}

/// A graph file is refused where communicators over other GPUs of the host would fail by it.
#[test]
fn a_graph_file_for_some_gpus_is_refused() {
    let export = ["export", "--format", "nccl-graph", "--gpus", "0,1,2,3", "--from"];
    check(&[&export[..], &[&dgx1v()]].concat(), "", 7);
    let insisted =
        check(&[&export[..], &[&dgx1v(), "--break-other-communicators"]].concat(), "", 0);
    assert_eq!(nccl_graph::read(insisted.as_bytes()).unwrap().graphs[0].channels[0].gpus.len(), 4);
    let mut command = std::process::Command::new(crate::programs::topoctl());
    command
        .args(export)
        .arg(dgx1v())
        .env("CUDA_VISIBLE_DEVICES", "3,2,1,0")
        .env_remove("TOPOD_SOCKET");
    assert!(command.output().unwrap().status.success(), "jobs see just these");
}

#[test]
fn exports_for_other_runtimes_are_read_back() {
    let from = |format: &'static str, from: String| {
        ["export", "--format", format, "--from"]
            .map(String::from)
            .into_iter()
            .chain([from])
            .collect::<Vec<_>>()
    };
    let export = |format, source: &str, exit| {
        let arguments = from(format, source.into());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        check(&arguments, "", exit)
    };
    let machine = |name: &str| {
        crate::workspace_root()
            .join(format!("tests/fixtures/machines/{name}.json"))
            .display()
            .to_string()
    };
    // NCCL's configuration file, by the linter that knows it.
    let conf = export("nccl-env", &machine("dgx_h100"), 0);
    let files = Files::new();
    let path = files.write("nccl.conf", &conf);
    let lint = ["nccl", "lint", "--from", &machine("dgx_h100"), "--conf", &path, "-o", "json"];
    let lint = check_json(&lint, "", 0);
    assert_eq!(lint["settings"][0]["variable"], "NCCL_IB_HCA", "{lint}");
    assert!(codes(&lint).is_empty(), "{lint}");

    let rows = nccl_tuner::read(export("tuner-csv", &dgx1v(), 0).as_bytes()).unwrap();
    assert!(rows.len() >= 5 && rows.iter().all(|row| row.ranks == Some(8) && row.hosts == Some(1)));

    // RCCL's rings: every one over all eight, as its parser wants them.
    let rccl = export("rccl", &machine("mi300x"), 0);
    let value =
        rccl.lines().find_map(|line| line.strip_prefix("export NCCL_RINGS='")?.strip_suffix('\''));
    for ring in value.unwrap().split('|') {
        let gpus: BTreeSet<u32> = ring.split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(gpus.into_iter().eq(0..8), "{ring}");
    }

    let ucx = export("ucx", &machine("dgx_h100"), 0);
    assert!(ucx.contains("export UCX_NET_DEVICES='mlx5_0:1,mlx5_3:1,"), "{ucx}");
    let tune = ucx
        .lines()
        .find_map(|line| line.strip_prefix("export UCC_TL_UCP_TUNE='")?.strip_suffix('\''));
    for token in tune.unwrap_or_default().split('#').filter(|token| !token.is_empty()) {
        let fields: Vec<&str> = token.split(':').collect();
        let [_, sizes, "[8-8]", algorithm] = fields[..] else { panic!("{token}") };
        let (from, to) = sizes.split_once('-').unwrap();
        assert!(
            from.parse::<u64>().is_ok() && (to == "inf" || to.parse::<u64>().is_ok()),
            "{token}"
        );
        assert!(algorithm.starts_with('@'), "{token}");
    }
    // What the input does not tell is no guess.
    export("slurm-gres", &dgx1v(), if export_has_cores(&dgx1v()) { 0 } else { 5 });
    let two = ["export", "--format", "hostfile", "--hosts", "2", "--from", &dgx1v()];
    check(&two, "", 2);
    let named = check(&[&two[..], &["--host-name", "b,a"]].concat(), "", 0);
    assert!(named.ends_with("b slots=8\na slots=8\n"), "{named}");
}

fn export_has_cores(path: &str) -> bool {
    loaded(Path::new(path)).unwrap()[0].host.cpus.is_some()
}
