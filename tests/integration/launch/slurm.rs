//! Debian's Slurm: a cluster of this host alone, its daemons in the foreground, on ports and in folders of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::{clean, field, halves, host, recorded, report, reports};
use crate::cli::check;
use crate::faces::free_port;

/// Tries to reach a daemon, one after the other: each waits for an answer itself.
const TRIES: u32 = 200;

struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            drop(daemon.kill());
            drop(daemon.wait());
        }
    }
}

fn has(program: &str) -> bool {
    let dirs = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    dirs.iter().any(|dir| Path::new(dir).join(program).is_file())
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Cluster {
    /// With the GPUs that `gres` lists, whose device files are made to be there; `None`, with the reason, where it cannot be.
    fn new(gres: &str, gpus: usize) -> Option<Self> {
        let missing = ["munged", "slurmctld", "slurmd", "srun"].into_iter().find(|name| !has(name));
        if let Some(missing) = missing {
            println!("skipped: there is no {missing}");
            return None;
        }
        if !rustix::process::getuid().is_root() {
            println!("skipped: Slurm's daemons need root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self { folder, daemons: Vec::new() };
        let dir = cluster.dir();
        for name in ["state", "spool"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let at = |name: &str| dir.join(name).display().to_string();
        for gpu in 0..gpus {
            // Slurm wants a device; this one is /dev/null by another name.
            if !succeeds(Command::new("mknod").args([&at(&format!("nvidia{gpu}")), "c", "1", "3"]))
            {
                println!("skipped: device files cannot be made here");
                return None;
            }
        }
        let name = hostname();
        let (controller, daemon) = (free_port(), free_port());
        let conf = format!(
            "ClusterName=topod\nSlurmctldHost={name}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={munge}\n\
             SlurmctldPort={controller}\nSlurmdPort={daemon}\nStateSaveLocation={state}\nSlurmdSpoolDir={spool}\n\
             SlurmctldPidFile={ctlpid}\nSlurmdPidFile={pid}\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/affinity\nMpiDefault=none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             ReturnToService=2\nGresTypes=gpu\n\
             NodeName={name} NodeAddr=127.0.0.1 Port={daemon} CPUs={cpus} Gres={counted} State=UNKNOWN\n\
             PartitionName=all Nodes={name} Default=YES State=UP OverSubscribe=YES\n",
            munge = at("munge"),
            state = at("state"),
            spool = at("spool"),
            ctlpid = at("slurmctld.pid"),
            pid = at("slurmd.pid"),
            cpus = super::own_cpus().len(),
            // As the export says.
            counted = gres.split_once("Gres=").unwrap().1.split_whitespace().next().unwrap(),
        );
        fs::write(dir.join("slurm.conf"), conf).unwrap();
        fs::write(dir.join("gres.conf"), gres.replace("/dev/nvidia", &at("nvidia"))).unwrap();
        let key = dir.join("key");
        fs::write(&key, [7_u8; 128]).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        cluster.start(
            "munged",
            &[
                "--foreground",
                "--force",
                "--key-file",
                &at("key"),
                "--socket",
                &at("munge"),
                "--pid-file",
                &at("munge.pid"),
                "--log-file",
                &at("munge.log"),
                "--seed-file",
                &at("munge.seed"),
            ],
        );
        let socket = format!("--socket={}", at("munge"));
        cluster.wait("munge", &["-n", &socket])?;
        cluster.start("slurmctld", &["-D", "-c"]);
        cluster.start("slurmd", &["-D", "-c"]);
        // The node is idle once the daemon has registered.
        cluster.wait("srun", &["-n1", "--immediate=2", "true"])?;
        Some(cluster)
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = clean(program);
        command.env("SLURM_CONF", self.dir().join("slurm.conf"));
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    fn start(&mut self, program: &str, arguments: &[&str]) {
        let log = fs::File::create(self.dir().join(format!("{program}.out"))).unwrap();
        let mut command = self.command(program);
        command.args(arguments).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    /// Until the command succeeds; `None`, with what the daemons said, where it never does.
    fn wait(&self, program: &str, arguments: &[&str]) -> Option<()> {
        if (0..TRIES).any(|_| succeeds(self.command(program).args(arguments))) {
            return Some(());
        }
        for name in ["munged", "slurmctld", "slurmd"] {
            let said =
                fs::read_to_string(self.dir().join(format!("{name}.out"))).unwrap_or_default();
            println!("{name}: {said}");
        }
        println!("skipped: Slurm does not start here");
        None
    }

    fn srun(&self, arguments: &[&str]) -> Output {
        self.command("srun").args(arguments).output().unwrap()
    }
}

fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().split('.').next().unwrap().to_owned()
}

/// One cluster for all that Slurm is asked, as it takes seconds to start.
#[test]
fn tasks_of_slurm_are_bound_beside_their_gpus() {
    let (_folder, from) = recorded(&host());
    let from = from.display().to_string();
    let gres = check(&["export", "--format", "slurm-gres", "--from", &from], "", 0);
    let Some(cluster) = Cluster::new(&gres, 2) else { return };
    let topoctl = crate::programs::topoctl().display().to_string();
    let task = report("SLURM_LOCALID");
    let exec = [&topoctl, "exec", "--from", &from, "--", "sh", "-c", &task];

    halves(&reports(&cluster.srun(&[&["-n2", "--cpu-bind=none"], &exec[..]].concat())));
    // As topoctl env tells srun to leave binding alone.
    let exports = check(&["env", "--launcher", "srun", "--exec", "--from", &from], "", 0);
    assert!(exports.contains("export SLURM_CPU_BIND='none'"), "{exports}");
    let mut command = cluster.command("srun");
    command.env("SLURM_CPU_BIND", "none").arg("-n2").args(exec);
    halves(&reports(&command.output().unwrap()));

    // Slurm gives each task a GPU of its own, and its list tells which.
    let bound = ["-n2", "--gres=gpu:2", "--gpu-bind=map_gpu:1,0", "--cpu-bind=none"];
    let output = cluster.srun(&[&bound[..], &exec].concat());
    let lines = reports(&output);
    assert_eq!(lines.len(), 2, "{lines:?}");
    let ports: Vec<&str> = lines.iter().map(|line| field(line, "ucx")).collect();
    assert_eq!(ports, ["mlx5_1:1", "mlx5_0:1"], "{lines:?}");

    // A file of hosts in our order, a line a task.
    let hosts = check(
        &["export", "--format", "slurm-hostfile", "--host-name", &hostname(), "--from", &from],
        "",
        0,
    );
    let file = cluster.dir().join("hosts");
    fs::write(&file, hosts).unwrap();
    let mut command = cluster.command("srun");
    command
        .env("SLURM_HOSTFILE", &file)
        .args(["-n2", "-m", "arbitrary", "--cpu-bind=none"])
        .args(exec);
    halves(&reports(&command.output().unwrap()));

    // What slurmd makes of gres.conf: both GPUs, with their cores.
    let output = cluster.command("slurmd").arg("-G").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(
        said.matches("Name=gpu Type=nvidia_h100 Count=1").count() == 2 && !said.contains("error"),
        "{said}\n{gres}"
    );
}
