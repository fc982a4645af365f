//! Launchers: variables evaluated by real shells, and tasks started by real launchers, with what they were bound to read back from them.

mod mpirun;
mod shells;
mod slurm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use topology::snapshot::{CpuTopology, LinkLayer, NicRole, NumaNode, Source};
use topology::{BusId, CpuList, Gpu, GpuIndex, Nic, Snapshot, formats};

/// CPUs this test may use.
fn own_cpus() -> CpuList {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().parse().unwrap()
}

/// A host with this one's CPUs, each a core, one NUMA node, two GPUs and two NICs beside them.
fn host() -> Snapshot {
    let cpus = own_cpus();
    let mut host = Snapshot::new(Source::Live);
    let cores = cpus.iter().map(|cpu| CpuList::from_cpus([cpu])).collect();
    let packages = [(0, cpus.clone())].into();
    host.host.cpus = Some(CpuTopology { packages, cores, ..CpuTopology::default() });
    host.numa_nodes = vec![NumaNode {
        cpus: Some(cpus.clone()),
        memory_bytes: Some(1 << 30),
        ..NumaNode::new(0)
    }];
    for index in 0..2 {
        host.gpus.push(Gpu {
            bus_id: BusId::new(0, index + 1, 0, 0),
            uuid: Some(format!("GPU-0000000{index}-0000-4000-8000-000000000000")),
            name: Some("NVIDIA H100".into()),
            minor: Some(u32::from(index)),
            numa_node: Some(0),
            cpus: Some(cpus.clone()),
            ..Gpu::new(GpuIndex(u32::from(index)))
        });
        host.nics.push(Nic {
            bus_id: BusId::new(0, index + 11, 0, 0),
            numa_node: Some(0),
            port: Some(1),
            mbit: Some(400_000),
            link_layer: Some(LinkLayer::Infiniband),
            up: Some(true),
            role: NicRole::Fabric,
            ..Nic::new(format!("mlx5_{index}"))
        });
    }
    host
}

/// The snapshot in a file of a folder of its own.
fn recorded(host: &Snapshot) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.json");
    fs::write(&path, formats::write_snapshot(host)).unwrap();
    (folder, path)
}

/// Variables that launchers around this test may have left.
const LAUNCHERS: [&str; 10] = [
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
    "CUDA_VISIBLE_DEVICES",
    "TOPOD_SOCKET",
    "UCX_NET_DEVICES",
];

/// A command without them.
fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in LAUNCHERS {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// What a task is bound to, as itself reads it: local rank by the variable named, CPUs, memory policy of its first page, UCX's ports.
fn report(rank: &str) -> String {
    format!(
        "echo rank=${rank} cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) \
         memory=$(awk 'NR==1{{print $2}}' /proc/self/numa_maps 2>/dev/null) ucx=$UCX_NET_DEVICES"
    )
}

/// Lines of [`report`], by rank.
#[track_caller]
fn reports(output: &Output) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{error}", output.status);
    let mut lines: Vec<String> =
        out.lines().filter(|line| line.starts_with("rank=")).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn field<'a>(line: &'a str, key: &str) -> &'a str {
    let field = line.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
    field.unwrap_or_else(|| panic!("{line} has no {key}"))
}

/// Two tasks have half of the CPUs each, where there are two; together all; each its own NIC.
#[track_caller]
fn halves(lines: &[String]) {
    let [first, second] = lines else { panic!("{lines:?}") };
    let all = own_cpus();
    let [a, b]: [CpuList; 2] = [first, second].map(|line| field(line, "cpus").parse().unwrap());
    if all.len() > 1 {
        assert!(
            a.iter().all(|cpu| !b.contains(cpu)) && !a.is_empty() && !b.is_empty(),
            "{lines:?}"
        );
    }
    assert_eq!(CpuList::from_cpus(a.iter().chain(b.iter())), all, "{lines:?}");
    assert_eq!((field(first, "ucx"), field(second, "ucx")), ("mlx5_0:1", "mlx5_1:1"));
    for line in lines {
        // Where the kernel shows policies and lets them be set.
        let memory = field(line, "memory");
        assert!(["", "default", "prefer:0"].contains(&memory), "{line}");
    }
}

fn exec(from: &Path) -> Command {
    let mut command = clean(crate::programs::topoctl());
    command.args(["exec", "--from"]).arg(from);
    command
}

#[test]
fn tasks_of_torchrun_are_bound_beside_their_gpus() {
    let (_folder, from) = recorded(&host());
    let lines: Vec<String> = (0..2)
        .map(|rank| {
            let mut command = exec(&from);
            command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", "2");
            let output = command.args(["--", "sh", "-c", &report("LOCAL_RANK")]).output().unwrap();
            reports(&output).remove(0)
        })
        .collect();
    halves(&lines);
}

/// Whatever is missing, the command runs, and stderr says why it is not bound.
#[test]
fn a_launch_depends_on_nothing() {
    let (folder, from) = recorded(&host());
    let without_gpus = folder.path().join("empty.json");
    fs::write(&without_gpus, formats::write_snapshot(&Snapshot::new(Source::Live))).unwrap();
    let no_such = folder.path().join("no-such.json");
    let check = |from: &Path, set: &[(&str, &str)], strict: bool, word: &str| {
        let mut command = exec(from);
        command.envs(set.iter().copied());
        if strict {
            command.arg("--strict");
        }
        let output = command.args(["--", "sh", "-c", "echo ran; exit 9"]).output().unwrap();
        let (out, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(error.contains(word), "{word}: {error}");
        if strict {
            assert!(out.is_empty() && output.status.code() != Some(9), "{out}");
        } else {
            assert_eq!((out.as_ref(), output.status.code()), ("ran\n", Some(9)), "{error}");
        }
    };
    let rank = [("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")];
    for strict in [false, true] {
        check(&no_such, &rank, strict, "no-such.json");
        check(&without_gpus, &rank, strict, "no GPU is known");
        check(&from, &[], strict, "no launcher tells a local rank");
        check(&from, &[("LOCAL_RANK", "x")], strict, "no local rank");
        let none = [rank[0], rank[1], ("CUDA_VISIBLE_DEVICES", "-1")];
        check(&from, &none, strict, "which GPU local rank 0 has is not known");
    }
    // No daemon where one is named.
    let mut command = clean(crate::programs::topoctl());
    command.args(["exec", "--socket", "/no/such/socket", "--", "echo", "ran"]);
    let output = command.output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"ran\n"[..], Some(0)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no daemon answers"));
    // What a shell would end with.
    for (program, code) in [("/no/such/program", 127), ("/", 126)] {
        let output = exec(&from).args(["--", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{program}");
    }
}

/// A device list in another order moves bindings and NICs with the GPUs, by identity.
#[test]
fn devices_follow_their_uuids() {
    let (_folder, from) = recorded(&host());
    let told = |list: &str| -> String {
        let mut command = exec(&from);
        command
            .env("LOCAL_RANK", "0")
            .env("LOCAL_WORLD_SIZE", "2")
            .env("CUDA_VISIBLE_DEVICES", list);
        let output = command.args(["--", "sh", "-c", &report("LOCAL_RANK")]).output().unwrap();
        reports(&output).remove(0)
    };
    let plain = told("0,1");
    assert_eq!(told("GPU-00000000,GPU-00000001"), plain);
    // The first task has the second GPU; NICs are equally near, and still one each.
    let turned = told("GPU-00000001,GPU-00000000");
    assert_eq!(told("1,0"), turned);
    // A task that sees its own GPU alone.
    let mut command = exec(&from);
    command.env("LOCAL_RANK", "1").env("LOCAL_WORLD_SIZE", "2").env("CUDA_VISIBLE_DEVICES", "1");
    let output = command.args(["--", "sh", "-c", &report("LOCAL_RANK")]).output().unwrap();
    let alone = reports(&output).remove(0);
    assert_eq!(field(&alone, "ucx"), "mlx5_1:1");
}
