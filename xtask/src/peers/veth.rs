//! Two hosts on one: network namespaces that a pair of virtual Ethernet devices joins, with half of the ranks in each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The hosts' names.
const HOSTS: [&str; 2] = ["topod-peers-a", "topod-peers-b"];
/// Their addresses, of a network that is kept for documentation (RFC 5737).
const ADDRESSES: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
const NETWORK: &str = "198.51.100.0/24";
/// The device of either.
const DEVICE: &str = "topod-peers";

/// The namespaces, which are deleted however it ends, and the scripts that start ranks in them.
#[derive(Debug)]
pub(super) struct Hosts {
    folder: PathBuf,
}

impl Hosts {
    /// # Errors
    /// Why there can be none.
    pub(super) fn new(folder: &Path) -> Result<Self, String> {
        delete();
        let hosts = Self { folder: folder.to_path_buf() };
        let [a, b] = HOSTS;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add {DEVICE} netns {a} type veth peer name {DEVICE} netns {b}"))?;
        for (host, address) in HOSTS.iter().zip(ADDRESSES) {
            ip(&format!("-n {host} address add {address}/24 dev {DEVICE}"))?;
            ip(&format!("-n {host} link set {DEVICE} up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        hosts.write("veth-agent", &agent())?;
        hosts.write("veth-ranks", &ranks())?;
        Ok(hosts)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        use std::os::unix::fs::PermissionsExt;

        let path = self.folder.join(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        delete();
    }
}

fn delete() {
    for host in HOSTS {
        // One that is not there is not to be deleted.
        let words = ["netns", "delete", host];
        drop(Command::new("ip").args(words).stderr(Stdio::null()).status());
    }
}

fn ip(words: &str) -> Result<(), String> {
    super::libraries::quiet(Command::new("ip").args(words.split(' ')))
        .map_err(|why| format!("no network namespaces here: ip {words}: {why}"))
}

/// What MPI's launcher calls in the place of ssh, with a host's address and a command: a host by itself in name and network.
fn agent() -> String {
    let ([a, b], [_, second]) = (HOSTS, ADDRESSES);
    format!(
        "#!/bin/sh\n\
         case \"$1\" in {second}) host={b};; *) host={a};; esac\n\
         shift\n\
         exec ip netns exec $host unshare --uts sh -c \"hostname $host; $*\"\n"
    )
}

/// Starts so many ranks of a command that joins a job by the environment, half on either host, each on a core of its own.
fn ranks() -> String {
    let ([a, b], [first, _]) = (HOSTS, ADDRESSES);
    format!(
        "#!/bin/sh\n\
         ranks=$1; shift\n\
         export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$((ranks / 2)) MASTER_ADDR={first} MASTER_PORT=29500\n\
         cores=$(nproc); rank=0\n\
         while [ $rank -lt $ranks ]; do\n\
         \x20 if [ $rank -lt $((ranks / 2)) ]; then host={a}; else host={b}; fi\n\
         \x20 RANK=$rank LOCAL_RANK=$((rank % (ranks / 2))) \\\n\
         \x20   taskset -c $((rank % cores)) ip netns exec $host \"$@\" &\n\
         \x20 last=$!; [ $rank -gt 0 ] || zero=$last\n\
         \x20 rank=$((rank + 1))\n\
         done\n\
         wait $zero\n\
         status=$?\n\
         wait\n\
         exit $status\n"
    )
}

/// Our benchmark as ranks on both hosts.
pub(super) fn own(folder: &Path, ranks: u32, mut bench: Vec<String>) -> Vec<String> {
    bench.extend(["--rendezvous".to_owned(), "env://".to_owned()]);
    let script = folder.join("veth-ranks").display().to_string();
    [vec![script, ranks.to_string()], bench].concat()
}

/// MPI's launcher with what spreads ranks over both hosts.
pub(super) fn mpi(folder: &Path, ranks: u32, launcher: &[String]) -> Vec<String> {
    let [first, second] = ADDRESSES;
    let each = ranks / 2;
    let inside = ["ip", "netns", "exec", HOSTS[0]].map(str::to_owned);
    let agent = folder.join("veth-agent").display().to_string();
    let hosts = format!("{first}:{each},{second}:{each}");
    let spread = ["--mca", "plm_rsh_agent", &agent, "--host", &hosts].map(str::to_owned);
    let network = ["--mca", "btl_tcp_if_include", NETWORK].map(str::to_owned);
    [&inside[..], launcher, &spread, &network].concat()
}

/// What tells Gloo's script of the hosts.
pub(super) fn gloo(command: Vec<String>) -> Vec<String> {
    let ([a, b], [first, _]) = (HOSTS, ADDRESSES);
    let told = format!("TOPOD_PEERS_HOSTS={a},{b},{first},{DEVICE}");
    [vec!["env".to_owned(), told], command].concat()
}
