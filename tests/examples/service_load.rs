//! What the daemon serves: plan requests a second and how long they take, watchers and what they see, and its memory.
//!
//! ```text
//! cargo run --release -p tests --example service_load -- [TOPOD] [SECONDS]
//! cargo run --release -p tests --example service_load -- --churn TOPOD MINUTES
//! ```
//!
//! `--churn` opens and drops clients and watchers, some of whom never read, asks for plans and reports results while the topology changes
//! ten times a second, and prints the daemon's memory every minute.
//!
//! `TOPOD` is the program (default: beside this one), `SECONDS` the length of each part (default 10). The machine is a recorded one: 8 GPUs
//! joined by NVLink. Clients share the machine with the daemon, so on few cores they take their share of it.
#![expect(clippy::print_stdout, reason = "it prints figures")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proto::v1;
use proto::v1::plan_service_client::PlanServiceClient;
use proto::v1::report_service_client::ReportServiceClient;
use proto::v1::status_service_client::StatusServiceClient;
use proto::v1::topology_service_client::TopologyServiceClient;
use proto::v1::watch_topology_response::Event;
use tonic::transport::{Channel, Endpoint};

type Failure = Box<dyn Error + Send + Sync>;

const CLIENTS: usize = 64;
/// Requests a second of the part that does not saturate the machine.
const HALF: u32 = 5000;
const WATCHERS: usize = 1000;
/// Streams of one connection, well under what the daemon allows.
const WATCHERS_PER_CONNECTION: usize = 100;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let first = args.next();
    if first.as_deref() == Some("--churn") {
        let program = args.next().ok_or("--churn TOPOD MINUTES")?;
        let minutes = args.next().ok_or("--churn TOPOD MINUTES")?.parse()?;
        return runtime.block_on(churn(Path::new(&program), minutes));
    }
    let program = match first {
        Some(program) => PathBuf::from(program),
        None => beside()?,
    };
    let seconds: u64 = args.next().map_or(Ok(10), |seconds| seconds.parse())?;
    runtime.block_on(measure(&program, Duration::from_secs(seconds)))
}

/// target/PROFILE/topod, from target/PROFILE/examples/service_load.
fn beside() -> Result<PathBuf, Failure> {
    let this = std::env::current_exe()?;
    let folder = this.ancestors().nth(2).ok_or("this program has no folder")?;
    Ok(folder.join("topod"))
}

struct Daemon {
    child: Child,
    socket: PathBuf,
    machine: PathBuf,
    gbps: u64,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Daemon {
    async fn start(program: &Path, folder: &Path) -> Result<Self, Failure> {
        let (socket, machine) = (folder.join("topod.sock"), folder.join("machine.json"));
        fs::write(&machine, description(20))?;
        let child = Command::new(program)
            .arg("--socket")
            .arg(&socket)
            .arg("--source")
            .arg(&machine)
            .args(["--events", "none", "--poll", "0", "--log", "warn"])
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let daemon = Self { child, socket, machine, gbps: 20 };
        loop {
            if let Ok(channel) = daemon.connect().await {
                let mut client = StatusServiceClient::new(channel);
                let status = client.get_status(v1::GetStatusRequest {}).await?.into_inner();
                if status.published.is_some() {
                    return Ok(daemon);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        Endpoint::from_shared(format!("unix://{}", self.socket.display()))?.connect().await
    }

    /// Another machine, and word of it.
    fn change(&mut self) -> Result<(), Failure> {
        self.gbps = 20 + (self.gbps + 1) % 20;
        let new = self.machine.with_extension("new");
        fs::write(&new, description(self.gbps))?;
        fs::rename(new, &self.machine)?;
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::HUP)?)
    }

    /// Resident memory in KiB.
    fn resident(&self) -> Result<u64, Failure> {
        self.told("status", "VmRSS:")
    }

    fn told(&self, file: &str, name: &str) -> Result<u64, Failure> {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.ok_or("the kernel does not tell")?.parse()?)
    }

    /// Times it was put to sleep and woken again by itself, over all threads.
    fn wake_ups(&self) -> Result<u64, Failure> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("status"))?;
            let line = text.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            sum += line.and_then(|line| line.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Processor time in milliseconds.
    fn processor_ms(&self) -> Result<u64, Failure> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let rest = text.rsplit(')').next().unwrap_or_default();
        let mut fields = rest.split_whitespace().skip(11);
        let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        // A hundred ticks a second, whatever the kernel's own are (proc(5), USER_HZ).
        Ok((ticks() + ticks()) * 10)
    }
}

/// Eight GPUs, each joined to each, as a link graph.
fn description(gbps: u64) -> String {
    let names: Vec<String> = (0..8).map(|gpu| format!("\"{gpu}\"")).collect();
    let mut links = Vec::new();
    for from in 0..8 {
        for to in (0..8).filter(|to| *to != from) {
            links.push(format!("[\"{from}\",\"{to}\",{gbps}]"));
        }
    }
    format!(
        "{{\"schema_version\":1,\"name\":\"load\",\"gpus\":[{}],\"switches\":[],\"links\":[{}]}}",
        names.join(","),
        links.join(",")
    )
}

async fn measure(program: &Path, each: Duration) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut daemon = Daemon::start(program, folder.path()).await?;
    println!("idle: resident {} KiB", daemon.resident()?);
    let (processor, wakes) = (daemon.processor_ms()?, daemon.wake_ups()?);
    tokio::time::sleep(each).await;
    println!(
        "idle for {} s: {} ms of a core, {} wake-ups",
        each.as_secs(),
        daemon.processor_ms()? - processor,
        daemon.wake_ups()? - wakes
    );
    plans(&daemon, each, false, None).await?;
    println!("after plans: resident {} KiB", daemon.resident()?);
    plans(&daemon, each, true, None).await?;
    // As many as leave the clients' own share of the machine some room: what is waited for then is the daemon.
    plans(&daemon, each, true, Some(HALF)).await?;
    watchers(&mut daemon, each).await?;
    println!("at the end: resident {} KiB", daemon.resident()?);
    Ok(())
}

/// Rounds of a second for some minutes; the daemon's memory after each minute, with nobody connected.
async fn churn(program: &Path, minutes: u64) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut daemon = Daemon::start(program, folder.path()).await?;
    println!("at the start: resident {} KiB", daemon.resident()?);
    let mut counts = Counts::default();
    for minute in 1..=minutes {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            round(&mut daemon, &mut counts).await?;
        }
        println!(
            "minute {minute}: resident {} KiB; {counts:?} so far; {} descriptors",
            daemon.resident()?,
            fs::read_dir(format!("/proc/{}/fd", daemon.child.id()))?.count()
        );
    }
    Ok(())
}

/// What was done to the daemon.
#[derive(Debug, Default)]
struct Counts {
    connections: u64,
    watchers: u64,
    changes: u64,
    plans: u64,
    reports: u64,
}

/// One second of a busy host.
async fn round(daemon: &mut Daemon, counts: &mut Counts) -> Result<(), Failure> {
    const STREAMS: u32 = 20;
    let channels = [daemon.connect().await?, daemon.connect().await?];
    counts.connections += 2;
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let request = v1::WatchTopologyRequest { changes: number % 2 == 0, ..Default::default() };
        let mut client = TopologyServiceClient::new(channels[0].clone());
        streams.push(client.watch_topology(request).await?.into_inner());
        counts.watchers += 1;
    }
    for change in 0..10_u32 {
        daemon.change()?;
        counts.changes += 1;
        let pair = [change % 8, (change + 1 + change / 8) % 8];
        let gpus = pair.map(|index| v1::GpuSelector {
            selector: Some(v1::gpu_selector::Selector::Index(index)),
        });
        let request = v1::GetPlanRequest {
            gpus: gpus.to_vec(),
            collectives: vec![v1::Collective::AllReduce.into()],
            ..Default::default()
        };
        PlanServiceClient::new(channels[1].clone()).get_plan(request).await?;
        counts.plans += 1;
        let operation = v1::OperationReport {
            collective: v1::Collective::AllReduce.into(),
            outcome: v1::OperationOutcome::Ok.into(),
            bytes: 1 << change,
            duration_ns: 1000,
            ..Default::default()
        };
        let request = v1::ReportOperationsRequest { operations: vec![operation; 100] };
        ReportServiceClient::new(channels[1].clone()).report_operations(request).await?;
        counts.reports += 100;
        // Half of the watchers read what has come; the others never do.
        for stream in streams.iter_mut().step_by(2) {
            let message = tokio::time::timeout(Duration::from_millis(100), stream.message()).await;
            if let Ok(message) = message {
                message?;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Cached plans, as fast as they come or so many a second.
async fn plans(
    daemon: &Daemon,
    each: Duration,
    busy: bool,
    rate: Option<u32>,
) -> Result<(), Failure> {
    let clients_count = u32::try_from(CLIENTS)?;
    let between = rate.map(|rate| Duration::from_secs(1) * clients_count / rate);
    let pid = rustix::process::Pid::from_child(&daemon.child);
    let stop = Arc::new(AtomicBool::new(false));
    let processor = daemon.processor_ms()?;
    let mut clients = Vec::new();
    for number in 0..clients_count {
        let mut client = PlanServiceClient::new(daemon.connect().await?);
        let stop = Arc::clone(&stop);
        // Sets of GPUs as launchers ask for them: all, and pairs.
        let gpus: Vec<u32> = if number % 2 == 0 { vec![] } else { vec![0, number % 7 + 1] };
        let index =
            |index| v1::GpuSelector { selector: Some(v1::gpu_selector::Selector::Index(index)) };
        let request = v1::GetPlanRequest {
            gpus: gpus.into_iter().map(index).collect(),
            collectives: vec![v1::Collective::AllReduce.into()],
            ..Default::default()
        };
        client.get_plan(request.clone()).await?;
        clients.push(tokio::spawn(async move {
            let mut times = Vec::new();
            let mut ticks = between.map(|between| {
                // Not all at once.
                let first = tokio::time::Instant::now() + between * number / clients_count;
                tokio::time::interval_at(first, between)
            });
            while !stop.load(Ordering::Relaxed) {
                if let Some(ticks) = &mut ticks {
                    ticks.tick().await;
                }
                let begin = Instant::now();
                client.get_plan(request.clone()).await?;
                times.push(begin.elapsed());
            }
            Ok::<_, tonic::Status>(times)
        }));
    }
    let begin = Instant::now();
    while begin.elapsed() < each {
        if busy {
            // The machine is read again and again, and is what it was.
            rustix::process::kill_process(pid, rustix::process::Signal::HUP)?;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await??);
    }
    let took = begin.elapsed();
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 1000).copied().unwrap_or_default();
    println!(
        "{} cached plans from {CLIENTS} clients{}{}: {:.0} a second, p50 {:?}, p99 {:?}, p99.9 {:?}; the daemon used {:.0} % of a core",
        times.len(),
        if busy { " beside a busy probe" } else { "" },
        if rate.is_some() { ", paced" } else { "" },
        f64::from(u32::try_from(times.len())?) / took.as_secs_f64(),
        at(500),
        at(990),
        at(999),
        f64::from(u32::try_from(daemon.processor_ms()? - processor)?) / took.as_secs_f64() / 10.0
    );
    Ok(())
}

/// A thousand watchers while topologies change: each sees every generation, or a resync in the place of those it missed.
async fn watchers(daemon: &mut Daemon, each: Duration) -> Result<(), Failure> {
    let before = daemon.resident()?;
    let latest = Arc::new(AtomicU64::new(0));
    let mut watchers = Vec::new();
    let mut channel = daemon.connect().await?;
    for number in 0..WATCHERS {
        if number % WATCHERS_PER_CONNECTION == 0 {
            channel = daemon.connect().await?;
        }
        let request = v1::WatchTopologyRequest { changes: true, ..Default::default() };
        let mut stream =
            TopologyServiceClient::new(channel.clone()).watch_topology(request).await?.into_inner();
        let latest = Arc::clone(&latest);
        watchers.push(tokio::spawn(async move {
            let (mut has, mut seen, mut resyncs) = (0, 0_u64, 0_u64);
            while let Some(message) = stream.message().await? {
                match message.event {
                    Some(Event::Topology(topology)) => has = topology.generation,
                    Some(Event::Changes(changes)) => {
                        if changes.base_generation != has {
                            return Err(tonic::Status::internal(
                                "a generation was missed without a word",
                            ));
                        }
                        has = changes.generation;
                    }
                    Some(Event::Resync(_)) => resyncs += 1,
                    Some(Event::Heartbeat(_)) | None => continue,
                }
                seen += 1;
                let last = latest.load(Ordering::Relaxed);
                if last > 0 && has >= last {
                    break;
                }
            }
            Ok((seen, resyncs))
        }));
    }
    let opened = daemon.resident()?;
    let (begin, mut changes, mut most) = (Instant::now(), 0, opened);
    let mut status = StatusServiceClient::new(daemon.connect().await?);
    while begin.elapsed() < each {
        daemon.change()?;
        changes += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
        most = most.max(daemon.resident()?);
    }
    let ended = Instant::now();
    daemon.change()?;
    // A change that came while the one before was read may be one with it: what counts is what is published.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let published = status.get_status(v1::GetStatusRequest {}).await?.into_inner().published;
    let generation = published.ok_or("nothing is published")?.generation;
    latest.store(generation, Ordering::Relaxed);
    daemon.change()?;
    let (mut seen, mut resyncs) = (0, 0);
    for watcher in watchers {
        let (events, lost) = watcher.await??;
        seen += events;
        resyncs += lost;
    }
    println!(
        "{WATCHERS} watchers, {changes} changes in {:?}: generation {generation} reached all, {seen} messages, {resyncs} resyncs; resident {before} KiB before, {opened} open, {most} at most",
        ended - begin
    );
    Ok(())
}
