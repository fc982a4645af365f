//! `topoctl watch`: what becomes of the topology and its health.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::v1::health_service_client::HealthServiceClient;
use proto::v1::topology_service_client::TopologyServiceClient;
use proto::v1::{self, watch_health_response as health, watch_topology_response as topology};
use serde::Serialize;
use tonic::Streaming;

use crate::args::{TextFormat, WatchArgs};
use crate::client::{self, MOST_BYTES};
use crate::exit::{Exit, Failure};
use crate::output;

/// A daemon that lives says so three times in this long on each of the two streams.
const SILENCE: Duration = Duration::from_secs(60);

/// Between attempts to reach a daemon that went away.
const PAUSE: Duration = Duration::from_secs(1);

/// One line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Line {
    /// A topology: the first, or one after changes got lost.
    Topology { generation: u64, fingerprint: String, gpus: usize, nics: usize, faults: usize },
    /// What leads to the next one.
    Changes { generation: u64, fingerprint: String, changed: Vec<String>, removed: Vec<String> },
    /// Changes got lost, since this end was slow; a topology follows.
    Resync { generation: u64 },
    /// A verdict: the first, or another one.
    Health {
        generation: u64,
        status: Option<&'static str>,
        appeared: Vec<String>,
        cleared: Vec<String>,
    },
    /// The daemon went away.
    Lost { reason: String },
}

/// What is known of the daemon's topology, to go on from after it went away.
type Resume = Option<(u64, String)>;

pub(crate) fn run(args: &WatchArgs) -> Result<Exit, Failure> {
    let socket = args.socket.clone().unwrap_or_else(|| PathBuf::from(proto::DEFAULT_SOCKET));
    let mut printer = Printer { output: args.output, left: args.count };
    if printer.left == Some(0) {
        return Ok(Exit::Ok);
    }
    client::runtime()?.block_on(async {
        let mut resume = None;
        let mut reached = false;
        loop {
            match follow(&socket, &mut resume, &mut printer, &mut reached).await {
                Ok(()) => return Ok(Exit::Ok),
                // One that never was there is a slip of the command line more often than not.
                Err(failure)
                    if args.reconnect && reached && failure.exit == Exit::DaemonUnreachable =>
                {
                    if printer.print(&Line::Lost { reason: failure.message })? {
                        return Ok(Exit::Ok);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    })
}

struct Printer {
    output: TextFormat,
    left: Option<u64>,
}

impl Printer {
    /// Whether that was the last line.
    fn print(&mut self, line: &Line) -> Result<bool, Failure> {
        match self.output {
            TextFormat::Json => {
                let json = serde_json::to_string(line).map_err(Failure::internal)?;
                output::print(&format!("{json}\n"))?;
            }
            TextFormat::Table => output::print(&format!("{}\n", text(line)))?,
        }
        self.left = self.left.map(|left| left.saturating_sub(1));
        Ok(self.left == Some(0))
    }
}

async fn follow(
    socket: &Path,
    resume: &mut Resume,
    printer: &mut Printer,
    reached: &mut bool,
) -> Result<(), Failure> {
    let (channel, _) = client::connect(socket).await?;
    let request = v1::WatchTopologyRequest {
        resume_generation: resume.as_ref().map(|(generation, _)| *generation),
        resume_fingerprint: resume.as_ref().map(|(_, fingerprint)| fingerprint.clone()),
        changes: true,
    };
    let refused = |status: tonic::Status| client::refused(&status);
    let mut topologies = TopologyServiceClient::new(channel.clone())
        .max_decoding_message_size(MOST_BYTES)
        .watch_topology(request)
        .await
        .map_err(refused)?
        .into_inner();
    let mut verdicts = HealthServiceClient::new(channel)
        .max_decoding_message_size(MOST_BYTES)
        .watch_health(v1::WatchHealthRequest { changes: true })
        .await
        .map_err(refused)?
        .into_inner();
    *reached = true;
    loop {
        let line = unless_silent(async {
            Ok(tokio::select! {
                event = next(&mut topologies) => topology_line(event?.event, resume),
                event = next(&mut verdicts) => health_line(event?.event),
            })
        })
        .await?;
        if let Some(line) = line
            && printer.print(&line)?
        {
            return Ok(());
        }
    }
}

/// What is said; who says nothing for long has hung, or is stopped, or the way there is cut.
async fn unless_silent<T>(said: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(SILENCE, said).await.unwrap_or_else(|_| {
        let reason =
            format!("the daemon said nothing for {} s, not even a heartbeat", SILENCE.as_secs());
        Err(Failure::new(Exit::DaemonUnreachable, reason))
    })
}

async fn next<T>(stream: &mut Streaming<T>) -> Result<T, Failure> {
    let message = stream.message().await.map_err(|status| client::refused(&status))?;
    message.ok_or_else(|| Failure::new(Exit::DaemonUnreachable, "the daemon ended the watch"))
}

fn topology_line(event: Option<topology::Event>, resume: &mut Resume) -> Option<Line> {
    match event? {
        topology::Event::Topology(topology) => {
            *resume = Some((topology.generation, topology.fingerprint.clone()));
            Some(Line::Topology {
                generation: topology.generation,
                fingerprint: topology.fingerprint,
                gpus: topology.hosts.iter().map(gpus).sum(),
                nics: topology.hosts.iter().map(|host| host.nics.len()).sum(),
                faults: topology.hosts.iter().map(|host| host.faults.len()).sum(),
            })
        }
        topology::Event::Changes(changes) => {
            *resume = Some((changes.generation, changes.fingerprint.clone()));
            let (mut changed, mut removed) = (Vec::new(), Vec::new());
            for host in &changes.hosts {
                tell(host, &mut changed, &mut removed);
            }
            let (generation, fingerprint) = (changes.generation, changes.fingerprint);
            Some(Line::Changes { generation, fingerprint, changed, removed })
        }
        topology::Event::Resync(resync) => Some(Line::Resync { generation: resync.generation }),
        topology::Event::Heartbeat(_) => None,
    }
}

/// A link graph has names of GPUs alone.
fn gpus(host: &v1::Snapshot) -> usize {
    host.gpus.len() + host.link_graph.as_ref().map_or(0, |graph| graph.gpus.len())
}

/// Devices by name; fields of the host as a whole by the field's.
fn tell(host: &v1::SnapshotChanges, changed: &mut Vec<String>, removed: &mut Vec<String>) {
    let set = host.set.clone().unwrap_or_default();
    changed.extend(set.gpus.iter().map(|gpu| format!("GPU{}", gpu.index)));
    changed.extend(set.nics.iter().map(|nic| nic.name.clone()));
    changed.extend(set.pci_devices.iter().map(|device| device.bus_id.clone()));
    changed.extend(set.numa_nodes.iter().map(|node| format!("NUMA node {}", node.id)));
    let lists = ["gpus", "nics", "pci_devices", "numa_nodes"];
    changed.extend(host.replaced.iter().filter(|field| !lists.contains(&&field[..])).cloned());
    removed.extend(host.removed_gpus.iter().map(|index| format!("GPU{index}")));
    removed.extend(host.removed_nics.iter().cloned());
    removed.extend(host.removed_pci_devices.iter().cloned());
    removed.extend(host.removed_numa_nodes.iter().map(|id| format!("NUMA node {id}")));
}

fn health_line(event: Option<health::Event>) -> Option<Line> {
    let names = |findings: &[v1::Finding]| -> Vec<String> {
        findings.iter().map(|finding| format!("{} {}", finding.code, finding.component)).collect()
    };
    match event? {
        health::Event::Report(report) => Some(Line::Health {
            generation: report.generation,
            status: report.status().word(),
            appeared: names(&report.findings),
            cleared: vec![],
        }),
        health::Event::Changes(changes) => Some(Line::Health {
            generation: changes.generation,
            status: changes.status().word(),
            appeared: names(&changes.appeared),
            cleared: names(&changes.cleared),
        }),
        health::Event::Resync(_) | health::Event::Heartbeat(_) => None,
    }
}

fn text(line: &Line) -> String {
    let list = |word: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!("; {word} {}", names.join(", ")),
    };
    let short = |fingerprint: &str| fingerprint.get(..12).unwrap_or(fingerprint).to_owned();
    match line {
        Line::Topology { generation, fingerprint, gpus, nics, faults } => format!(
            "generation {generation} ({}): {gpus} GPUs, {nics} NICs, {faults} facts not read",
            short(fingerprint)
        ),
        Line::Changes { generation, fingerprint, changed, removed } => format!(
            "generation {generation} ({}){}{}",
            short(fingerprint),
            list("changed:", changed),
            list("gone:", removed)
        ),
        Line::Resync { generation } => format!("resync to generation {generation}"),
        Line::Health { status, appeared, cleared, .. } => format!(
            "health {}{}{}",
            status.unwrap_or("not judged"),
            list("found:", appeared),
            list("cleared:", cleared)
        ),
        Line::Lost { reason } => format!("lost: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_minute_of_silence_is_the_end() {
        let begin = tokio::time::Instant::now();
        let failure = unless_silent(pending::<Result<(), Failure>>()).await.unwrap_err();
        assert_eq!((failure.exit, begin.elapsed()), (Exit::DaemonUnreachable, SILENCE));
        assert!(failure.message.contains("nothing for 60 s"), "{}", failure.message);
        assert_eq!(unless_silent(ready(Ok(7))).await.unwrap(), 7);
        let late = async {
            tokio::time::sleep(SILENCE - Duration::from_secs(1)).await;
            Ok(7)
        };
        assert_eq!(unless_silent(late).await.unwrap(), 7);
    }
}
