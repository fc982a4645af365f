//! The command line.

use std::path::PathBuf;

use clap::builder::ArgPredicate;
use clap::{Args, Parser, Subcommand, ValueEnum};
use topology::health::Launcher;
use topology::{Collective, RateModel};

/// Shows, explains, checks and plans the topology of GPU hosts: from a recorded file, the daemon, or this host.
///
/// Exit codes: 0 ok, 1 internal error, 2 usage or unreadable input, 3 degraded, 4 critical, 5 unknown or partial
/// data, 6 daemon unreachable, 7 no plan exists.
#[derive(Debug, Parser)]
#[command(name = "topoctl", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The matrix of path classes in nvidia-smi's words and order, affinities, NICs, and what is degraded or assumed.
    Show(ShowArgs),
    /// The path between two devices hop by hop, its limit, and why it is no better.
    Explain(ExplainArgs),
    /// Findings with evidence and fix.
    Check(CheckArgs),
    /// What hosts that should be alike do not have in common.
    Compare(CompareArgs),
    /// Channels for collectives, with what they reach, the proved bound and what limits.
    Plan(PlanArgs),
    /// Checks a plan file with code that did not make it.
    Verify(VerifyArgs),
    /// Which GPUs to give to a job: the best N that are free, leaving the rest as whole as can be.
    Select(SelectArgs),
    /// Which GPU each rank of a parallel job is to have, what each axis then takes, and what to tell the launcher.
    Map(MapArgs),
    /// Runs a collective over the transport along the plan, checks every element, measures.
    Bench(BenchArgs),
    /// A plan or topology in the files of other software.
    Export(ExportArgs),
    /// Variables for the tasks of a job on this host, as quoted exports with a reason each: eval "$(topoctl env --launcher srun)".
    Env(EnvArgs),
    /// Runs a command as a task of a job, with those variables and bound to CPUs and memory beside its GPU; without a topology just
    /// runs it. Ends as the command does, or with 126 or 127 where it cannot be run or is not there.
    Exec(ExecArgs),
    /// What stock NCCL takes from this host's files and variables.
    Nccl(NcclArgs),
    /// The network between hosts from a file about it: tiers, leaf and rail of each NIC, what is odd; with --order hosts in
    /// the order that suits it.
    Fabric(FabricArgs),
    /// Records this host (or what --from names) as a snapshot.
    Snapshot(SnapshotArgs),
    /// What the daemon is, and what it publishes.
    Status(StatusArgs),
    /// What becomes of the topology and its health, line by line, as the daemon sees it.
    Watch(WatchArgs),
    /// Completions for a shell.
    Completions(CompletionsArgs),
    /// Manual pages of topoctl and topod.
    Man(ManArgs),
    /// One rank of a local benchmark; the job comes on stdin.
    #[command(hide = true)]
    BenchRank,
}

/// Where the topology comes from.
#[derive(Clone, Debug, Args)]
pub(crate) struct SourceArgs {
    /// Recorded machine, told by its content: snapshot, NCCL topology XML, hwloc XML, `nvidia-smi topo -m` or `-q -x`,
    /// `rocm-smi --showtopo`, `amd-smi topology`, `lspci -vv` or `-tv`, link graph, or a host's /sys as a directory, .tar,
    /// .tar.gz or .tar.bz2; `-` is stdin.
    /// Repeat for several hosts, in rank order. Without it the daemon is asked, else this host is probed.
    #[arg(long, value_name = "SRC")]
    pub(crate) from: Vec<PathBuf>,
    /// Plan on this many copies of the one source.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) hosts: u16,
    /// The network between the hosts: a file as `topoctl fabric` reads. Without it, all NICs meet in one that blocks nothing.
    #[arg(long, value_name = "FILE")]
    pub(crate) fabric: Option<PathBuf>,
    /// With --fabric: what its file calls the hosts, in rank order, as Slurm writes lists: n[1-3,07],m2.
    #[arg(long, value_name = "LIST", requires = "fabric")]
    pub(crate) fabric_hosts: Option<String>,
    /// Whose link rates: NCCL's effective ones, wire rates, or corrected by measurement.
    #[arg(long, value_name = "effective|nominal|measured", default_value = "effective")]
    pub(crate) rates: RateModel,
    /// The daemon's socket.
    #[arg(long, value_name = "PATH", env = "TOPOD_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Probe here instead of asking the daemon, with this directory in the place of /.
    #[arg(long, value_name = "DIR", env = "TOPOD_SYSFS_ROOT", conflicts_with = "from")]
    pub(crate) sysfs_root: Option<PathBuf>,
    /// Probe here instead of asking the daemon, with this NVML library.
    #[arg(long, value_name = "PATH", env = "TOPOD_NVML", conflicts_with = "from")]
    pub(crate) nvml: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShowFormat {
    Table,
    Json,
    Yaml,
    Dot,
    Svg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextFormat {
    Table,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    Table,
    Json,
    Nagios,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    Degraded,
    Critical,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: ShowFormat,
}

/// Changes made in thought.
#[derive(Clone, Debug, Args)]
pub(crate) struct WhatIfArgs {
    /// As if the machine were changed; repeat for several, made in order. 'remove GPU0-GPU3', 'remove GPU0-GPU3 x1',
    /// 'remove mlx5_0', 'GPU0-GPU3 x1', 'slow mlx5_0 to 12.5GB/s', 'add GPU0-GPU3', 'add GPU0-GPU3 25GB/s',
    /// 'add nic mlx5_8 to 0000:05:00.0', 'move mlx5_2 to 0000:05:00.0'. A-B means both directions, A>B one.
    #[arg(long = "what-if", value_name = "CHANGE")]
    pub(crate) what_if: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) what_if: WhatIfArgs,
    /// A device: GPU0, NIC1, mlx5_0, or a PCI address; with several hosts HOST:NAME.
    pub(crate) a: String,
    /// The other device.
    pub(crate) b: String,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// From which severity on the exit code is not 0. Unknown never passes.
    #[arg(long, value_enum, default_value = "degraded")]
    pub(crate) fail_on: FailOn,
    /// What the host is to be like: a snapshot of it, or of one of its kind, from its good days. Every difference that
    /// matters is a finding.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) against: Option<PathBuf>,
    /// Run as a task of a job: also what its launcher left to it of the host's GPUs.
    #[arg(long, value_name = "slurm|mpirun|torchrun|kubernetes")]
    pub(crate) launcher: Option<Launcher>,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: CheckFormat,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Recorded machines, in any form that --from takes; a golden profile is a host like others. Of two, the second is
    /// compared with the first; of more, each with the one that has most in common with all.
    #[arg(required = true, value_name = "SRC")]
    pub(crate) hosts: Vec<PathBuf>,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) what_if: WhatIfArgs,
    /// Choose by size as for processes on this host, with the figures that `topoctl bench --calibrate` wrote; needs --rates measured.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Say also why there are so many channels, which links are full, and what one more link or NIC would bring.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Plan each kind of host once, and say what hosts do by their kind: for many hosts, and by itself for more than 32.
    #[arg(long, conflicts_with_all = ["what_if", "explain"])]
    pub(crate) by_class: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

/// What is to be planned.
#[derive(Clone, Debug, Args)]
pub(crate) struct RequestArgs {
    /// NVML indices (`dev` in NCCL XML, places in a link graph), the same on every host; default all.
    #[arg(long, value_delimiter = ',', value_name = "0,1,..")]
    pub(crate) gpus: Option<Vec<u32>>,
    /// Default: every collective the planner knows.
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    pub(crate) collective: Vec<Collective>,
    /// Expected size of an operation, such as 64MiB or 1GB.
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) size: Option<u64>,
    /// `auto`: NVLink alone where it connects all requested GPUs of a host; `all`: NVLink and PCIe together.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) links: Links,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Links {
    Auto,
    All,
}

#[derive(Debug, Args)]
pub(crate) struct SelectArgs {
    /// How many GPUs.
    #[arg(value_name = "N")]
    pub(crate) count: usize,
    /// GPUs to choose from, NVML indices; default all.
    #[arg(long, value_delimiter = ',', value_name = "0,1,..")]
    pub(crate) free: Option<Vec<u32>>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// `auto`: NVLink alone where it connects a set of GPUs; `all`: NVLink and PCIe together.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) links: Links,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct MapArgs {
    /// Tensor parallel size.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) tp: usize,
    /// Pipeline stages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) pp: usize,
    /// Data parallel size; default what the other axes leave of the GPUs.
    #[arg(long, value_name = "N")]
    pub(crate) dp: Option<usize>,
    /// Expert parallel size, inside cp times dp as in Megatron.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) ep: usize,
    /// Context parallel size.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cp: usize,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// NVML indices, the same on every host; default all.
    #[arg(long, value_delimiter = ',', value_name = "0,1,..")]
    pub(crate) gpus: Option<Vec<u32>>,
    /// `auto`: NVLink alone where it connects a group's GPUs of a host; `all`: NVLink and PCIe together.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) links: Links,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

/// What a training step sends: derived from a transformer's sizes, or given by axis.
#[derive(Clone, Debug, Args)]
pub(crate) struct TrafficArgs {
    /// Hidden size.
    #[arg(long, value_name = "N")]
    pub(crate) hidden: Option<u64>,
    /// Tokens of a sequence.
    #[arg(long, value_name = "N")]
    pub(crate) sequence: Option<u64>,
    /// Layers.
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<u64>,
    /// Sequences in a microbatch.
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<u64>,
    /// Microbatches of a pass through the pipeline.
    #[arg(long, value_name = "N")]
    pub(crate) microbatches: Option<u64>,
    /// Passes whose gradients are added up before they are reduced.
    #[arg(long, value_name = "N")]
    pub(crate) accumulation: Option<u64>,
    /// Bytes of an element.
    #[arg(long, value_name = "N")]
    pub(crate) element_bytes: Option<u64>,
    /// Words; 0 leaves embeddings out.
    #[arg(long, value_name = "N")]
    pub(crate) vocabulary: Option<u64>,
    /// Experts of a layer; default one for each rank of --ep.
    #[arg(long, value_name = "N")]
    pub(crate) experts: Option<u64>,
    /// Experts that a token is sent to.
    #[arg(long, value_name = "N")]
    pub(crate) experts_per_token: Option<u64>,
    /// What a GPU computes in training, in 1e12 operations a second. With it, communication that computing hides is told apart.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) tflops: Option<u64>,
    /// Bytes of one all-reduce of activations, instead of the derived ones; 0 for none. So for each axis.
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) bytes_tp: Option<u64>,
    /// Bytes of one all-gather of keys and values.
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) bytes_cp: Option<u64>,
    /// Bytes that a rank sends in one all-to-all to experts.
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) bytes_ep: Option<u64>,
    /// Bytes of a rank's gradients.
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) bytes_dp: Option<u64>,
    /// Bytes of the gradients of a rank's experts.
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) bytes_expert_dp: Option<u64>,
    /// Bytes that a rank sends to the next stage for a microbatch.
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) bytes_pp: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The plan, as `topoctl plan -o json` printed it; `-` is stdin.
    pub(crate) plan: PathBuf,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// NCCL_TOPO_FILE: the host's tree with GPUs, links and NICs; with --for-vm the tree alone, for a guest.
    NcclTopo,
    /// NCCL_GRAPH_FILE: the plan's rings, for experts; see the warning it prints.
    NcclGraph,
    /// Lines for /etc/nccl.conf: NCCL's variables of this host, with reasons.
    NcclEnv,
    /// Rows for NCCL's example tuner plugin and for topod's own: the plan's algorithm and protocol by size.
    TunerCsv,
    /// RCCL: NCCL_RINGS and RCCL_TREES, as exports for a shell.
    Rccl,
    /// UCX and UCC: UCX_NET_DEVICES and UCC_TL_UCP_TUNE, as exports for a shell.
    Ucx,
    /// Open MPI's host file, in rank order.
    Hostfile,
    /// SLURM_HOSTFILE for srun -m arbitrary, a line a task.
    SlurmHostfile,
    /// Open MPI's rank file: each rank on cores beside its GPU.
    Rankfile,
    /// Slurm's gres.conf: device files, cores and links of GPUs.
    SlurmGres,
    /// MSCCL algorithm XML: the whole schedule of one collective.
    Msccl,
    /// topod's own snapshot.
    Snapshot,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[arg(long, value_enum)]
    pub(crate) format: ExportFormat,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    /// With nccl-topo: for a guest on this host, which has some of its GPUs and NICs under other addresses.
    #[arg(long, requires = "map")]
    pub(crate) for_vm: bool,
    /// With --for-vm: a file of pairs of PCI addresses, the host's and the guest's; `-` is stdin.
    #[arg(long, value_name = "FILE", requires = "for_vm")]
    pub(crate) map: Option<PathBuf>,
    /// With --for-vm: the guest as recorded there, in any form that --from takes. Its addresses are then checked, and CPU masks
    /// are its own.
    #[arg(long, value_name = "SRC", requires = "for_vm")]
    pub(crate) guest: Option<PathBuf>,
    /// With nccl-graph: also where the GPUs planned are not all that jobs see here, so that NCCL fails for communicators over
    /// others.
    #[arg(long)]
    pub(crate) break_other_communicators: bool,
    /// With hostfile, slurm-hostfile and rankfile: what launchers call the hosts, in rank order; of one host, default localhost.
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    pub(crate) host_name: Vec<String>,
    /// Where to write; default stdout.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvFormat {
    /// Lines for any POSIX shell.
    Sh,
    Json,
    /// Items for `env:` of a container in a pod.
    K8s,
}

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    /// What starts the tasks.
    #[arg(long, value_name = "torchrun|mpirun|srun|kubernetes")]
    pub(crate) launcher: Launcher,
    /// Each task is started through `topoctl exec`: the launcher itself is to bind none.
    #[arg(long)]
    pub(crate) exec: bool,
    /// Set also what is set already.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[arg(short, long, value_enum, default_value = "sh")]
    pub(crate) output: EnvFormat,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Variable that holds the task's place on its host, instead of those of the launchers known.
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) local_rank_from: Option<String>,
    /// Bind anew where the launcher has bound the task; never beyond its control group.
    #[arg(long)]
    pub(crate) rebind: bool,
    /// Set also variables that are set already.
    #[arg(long)]
    pub(crate) force: bool,
    /// Say what was set and bound.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// End with an error where the topology or the task's GPU is not known, instead of running the command as it is.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct NcclArgs {
    #[command(subcommand)]
    pub(crate) command: NcclCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NcclCommand {
    /// What of NCCL's variables, configuration files and the files they name will fail or be passed over: the environment,
    /// NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf.
    Lint(NcclLintArgs),
    /// NCCL_IB_HCA for this host, with whole names and ports; or what is wrong with a string.
    Hca(NcclHcaArgs),
    /// What NCCL itself made of this host, beside what is known of it and a plan: its dumps (NCCL_TOPO_DUMP_FILE,
    /// NCCL_GRAPH_DUMP_FILE) and its log (NCCL_DEBUG=INFO).
    Diff(NcclDiffArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NcclDiffArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    /// NCCL's topology.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["graph", "log"])]
    pub(crate) topo: Option<PathBuf>,
    /// NCCL's channels.
    #[arg(long, value_name = "FILE")]
    pub(crate) graph: Option<PathBuf>,
    /// NCCL's log; `-` is stdin.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct NcclLintArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Configuration files to read instead of those that NCCL finds here, in order; the environment is then left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) conf: Vec<PathBuf>,
    /// Directory that the files' paths are in, as of an unpacked image; default /.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct NcclHcaArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// A string to check, as one would set it.
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    pub(crate) check: Option<String>,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct FabricArgs {
    /// ibnetdiscover output (also of -p), ibsim net file, Slurm topology.conf or topology.yaml, topograph graph JSON or model YAML, told by
    /// content; `-` is stdin. `lldpctl -f json` is of one host, called by the file's name: give one file per host.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Hosts in depth-first order of the network, one a line, after comments that say how many edges of NCCL's ring and double tree cross
    /// which tier, before and after.
    #[arg(long)]
    pub(crate) order: bool,
    /// With --order: these hosts alone, as Slurm writes lists: n[1-3,07],m2.
    #[arg(long, value_name = "LIST", requires = "order")]
    pub(crate) hosts: Option<String>,
    /// Which topology of a topology.yaml; default the cluster's default.
    #[arg(long, value_name = "NAME")]
    pub(crate) topology: Option<String>,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Probe this host, and add the files that were read: one archive, .tar or .tar.gz by the name of the output.
    /// Without host names, serial numbers and addresses.
    #[arg(long, conflicts_with_all = ["from", "socket"])]
    pub(crate) raw: bool,
    /// Where to write; default stdout.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The daemon's socket.
    #[arg(long, value_name = "PATH", env = "TOPOD_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The daemon's socket.
    #[arg(long, value_name = "PATH", env = "TOPOD_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// End after so many lines.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Where the daemon goes away, wait for it to come back rather than end with exit code 6.
    #[arg(long)]
    pub(crate) reconnect: bool,
    /// `json` is one document a line.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder to write the pages to: topoctl.1, topoctl-VERB.1 and topod.8.
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The collective.
    #[arg(
        required = false,
        required_unless_present = "calibrate",
        default_value_if("calibrate", ArgPredicate::IsPresent, "all-reduce")
    )]
    pub(crate) collective: Collective,
    /// Instead: measure this host's links and the plan's algorithms on them, and write the figures here, for --predict and
    /// `topoctl plan --rates measured`. Takes up to a minute; pin the ranks and let nothing else run.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["peer", "svg", "rendezvous", "algorithm", "cold"])]
    pub(crate) calibrate: Option<PathBuf>,
    /// With --calibrate: these collectives alone.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,..",
        requires = "calibrate",
        default_value = "all-reduce,all-gather,reduce-scatter,broadcast"
    )]
    pub(crate) only: Vec<Collective>,
    /// Predict with the figures that --calibrate wrote on this host, and show them beside what is measured.
    #[arg(long, value_name = "FILE")]
    pub(crate) predict: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Local processes to start; they take the place of the first N GPUs of the plan.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) ranks: u32,
    /// Sizes in bytes: FROM:TO:FACTOR, or a list such as 8,1KiB,64MiB.
    #[arg(long, value_name = "SIZES", default_value = "8,64,512,4K,32K,256K,2M,16M,64M")]
    pub(crate) sizes: crate::size::Sizes,
    /// Which link carries the data.
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) transport: LinkKind,
    /// Use another algorithm of the plan than the one it names for the size; several are measured in turn.
    #[arg(long, value_delimiter = ',', value_name = "ring|tree|direct|..")]
    pub(crate) algorithm: Vec<topology::Algorithm>,
    /// Which protocols may be used, as NCCL_PROTO says it: without LL small messages take the way of large ones. Wins over the environment.
    #[arg(long, value_name = "LL,Simple|^LL|..", value_parser = protocols)]
    pub(crate) protocol: Option<String>,
    /// Type of the elements.
    #[arg(long, value_name = "f32|f64|f16|bf16|i8|i32|i64|u8", default_value = "f32")]
    pub(crate) element: transport::ElementType,
    /// What elements are combined by.
    #[arg(long, value_name = "sum|prod|min|max|avg|and|or", default_value = "sum")]
    pub(crate) op: transport::ReduceOp,
    /// Whether the result takes the place of the input. By default it does, where the collective has such a form.
    #[arg(
        long,
        value_enum,
        default_value = "in",
        default_value_if("collective", "all-to-all", "out"),
        default_value_if("collective", "send-recv", "out")
    )]
    pub(crate) placement: Placement,
    /// Time each operation alone, on buffers that are in no cache.
    #[arg(long)]
    pub(crate) cold: bool,
    /// Use registered buffers, which operations on one host need not copy first.
    #[arg(long)]
    pub(crate) registered: bool,
    /// Along the plan's channels even where all ranks share a host. Implied by --algorithm.
    #[arg(long)]
    pub(crate) by_plan: bool,
    /// Bind each rank to a core of its own, as far as there are so many.
    #[arg(long)]
    pub(crate) pin: bool,
    /// Also measure how much of each operation hides behind work of its own length, without a progress thread.
    #[arg(long)]
    pub(crate) overlap: bool,
    /// Tell the daemon at --socket how each operation ends, for its metrics.
    #[arg(long)]
    pub(crate) report: bool,
    /// Operations before the clock counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) warm_up: u32,
    /// Figures of another library to compare with: JSON lines with tag, op, ranks, bytes and us.
    #[arg(long, value_name = "FILE")]
    pub(crate) peer: Option<PathBuf>,
    /// Also draw time against size: measured, limit, prediction, peer.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Limit for every operation, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) timeout: u32,
    /// Least time spent on each size, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub(crate) min_time: u32,
    /// Join a job as one rank instead of starting local processes: env://, which is told by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
    /// or by mpirun, Hydra or srun.
    #[arg(long, value_name = "URL")]
    pub(crate) rendezvous: Option<String>,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TextFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    In,
    Out,
}

/// A list of protocols that the transport takes.
fn protocols(text: &str) -> Result<String, String> {
    let taken = transport::Options::default().set("proto", text);
    taken.map(|()| text.to_owned()).map_err(|error| error.to_string())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkKind {
    /// Shared memory within a host; between hosts RDMA where both ends have it, else TCP.
    Auto,
    Shm,
    Tcp,
    Verbs,
}
