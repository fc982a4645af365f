//! `topoctl bench`: runs a collective along the plan, checks every element, measures.
//!
//! ```text
//!   topoctl bench ── plan from the daemon or a file ──┬── topoctl bench-rank (rank 0) ──┐  they meet through a file
//!                                                     ├── topoctl bench-rank (rank 1) ──┤  and time each operation;
//!                                                     └── ...                         ──┘  this process adds it up
//! ```

pub(crate) mod calibrate;
mod job;
mod overlap;
mod peers;
mod plot;
mod rank;
mod report;
mod values;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use proto::PlanQuery;
use topology::calibration::Calibration;
use topology::plan::{PlanRequest, SizeChoice};
use topology::{Algorithm, Collective, GpuIndex, Plan, Protocol, Topology, VertexKind};

use crate::args::{BenchArgs, LinkKind, Placement, TextFormat};
use crate::client;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::plan;
use crate::size;
use crate::source::{self, Origin};

use peers::Peers;
pub(crate) use rank::run as run_rank;

pub(crate) fn run(args: &BenchArgs) -> Result<Exit, Failure> {
    if let Some(path) = &args.calibrate {
        return calibrate::run(args, path);
    }
    let element = args.element.bytes() as u64;
    if args.sizes.0.iter().any(|size| *size == 0 || !size.is_multiple_of(element)) {
        let element = args.element;
        let message = format!(
            "sizes must be positive multiples of the {} bytes of {element}",
            element.bytes()
        );
        return Err(Failure::usage(message));
    }
    if !args.op.combines(args.element) {
        let message = format!("{} does not combine elements of type {}", args.op, args.element);
        return Err(Failure::usage(message));
    }
    if !has_place(args.collective) && args.placement == Placement::In {
        return Err(Failure::usage(format!(
            "{} has no form in place: use --placement out",
            args.collective
        )));
    }
    if args.overlap && !overlap::can(args.collective) {
        let message =
            format!("{} is not one that --overlap can start and wait for", args.collective);
        return Err(Failure::usage(message));
    }
    if args.collective == Collective::SendRecv && args.ranks < 2 {
        return Err(Failure::usage("one rank has nobody to send to"));
    }
    let peers = args.peer.as_deref().map_or_else(|| Ok(Peers::default()), Peers::read)?;
    let largest = args.sizes.0.iter().copied().max().unwrap_or(0);
    let memory = rustix::system::sysinfo();
    let memory = memory.totalram.saturating_mul(memory.mem_unit.into());
    let buffers = if args.placement == Placement::In { 1 } else { 2 };
    if largest.saturating_mul(buffers).saturating_mul(args.ranks.into()) > memory / 2 {
        let message = format!(
            "{} on {} ranks need more than half of this host's memory",
            size::display(largest),
            args.ranks
        );
        return Err(Failure::usage(message));
    }
    let rendezvous =
        args.rendezvous.as_deref().map(str::parse::<transport::Rendezvous>).transpose();
    let rendezvous = rendezvous.map_err(|error| Failure::usage(error.to_string()))?;
    let ranks = rendezvous
        .as_ref()
        .and_then(transport::Rendezvous::own_place)
        .map_or(args.ranks, |place| place.ranks);
    let plan = fetch(args, ranks)?;
    let forced = |algorithm: &Algorithm| forced(plan.clone(), args.collective, *algorithm);
    let plans = match args.algorithm.as_slice() {
        [] => vec![plan],
        some => some.iter().map(forced).collect::<Result<_, _>>()?,
    };
    let predictor = args.predict.as_deref().map(calibrate::read).transpose()?;
    match (rendezvous, plans.as_slice()) {
        (None, plans) => local(args, plans, &peers, predictor.as_ref()),
        (Some(rendezvous), [plan]) => {
            one_of_a_job(args, plan, &rendezvous, &peers, predictor.as_ref())
        }
        (Some(_), _) => Err(Failure::usage("a job measures one algorithm at a time")),
    }
}

/// Whether a collective has a form in which the result takes the place of the input.
const fn has_place(collective: Collective) -> bool {
    !matches!(collective, Collective::AllToAll | Collective::SendRecv)
}

/// The plan for the first `ranks` GPUs: from the daemon, so that it is the very plan a job would get, else made here.
fn fetch(args: &BenchArgs, ranks: u32) -> Result<Plan, Failure> {
    fetch_for(args, &source::load(&args.source)?, ranks, planned(args.collective))
}

fn fetch_for(
    args: &BenchArgs,
    origin: &Origin,
    ranks: u32,
    collectives: Vec<Collective>,
) -> Result<Plan, Failure> {
    let request = PlanRequest {
        gpus: Some(first_gpus(&origin.topology, ranks)?),
        collectives,
        ..PlanRequest::default()
    };
    let from_daemon =
        args.source.from.is_empty() && origin.generation > 0 && args.source.hosts == 1;
    if !from_daemon {
        return plan::make(origin, &request).map(|(plan, _)| plan);
    }
    let socket = args.source.socket.clone().unwrap_or_else(|| PathBuf::from(proto::DEFAULT_SOCKET));
    client::plan(
        &socket,
        &PlanQuery {
            expected_generation: Some(topology::Generation(origin.generation)),
            ..PlanQuery::from(&request)
        },
    )
}

/// What is planned: the collective, where it is one that is planned, and all-reduce, by which the ranks agree on times.
fn planned(collective: Collective) -> Vec<Collective> {
    let own = Some(collective).filter(|c| planner::assemble::PLANNED.contains(c));
    let mut all = vec![Collective::AllReduce];
    all.extend(own.filter(|c| *c != Collective::AllReduce));
    all
}

fn first_gpus(topology: &Topology, ranks: u32) -> Result<Vec<GpuIndex>, Failure> {
    let hosts = u32::try_from(topology.hosts().len()).unwrap_or(u32::MAX);
    let first_host = topology
        .gpus()
        .iter()
        .filter(|id| topology.vertex(**id).host.is_some_and(|host| host.0 == 0));
    let indices: Vec<GpuIndex> = first_host
        .filter_map(|id| match topology.vertex(*id).kind {
            VertexKind::Gpu { index } => Some(index),
            _ => None,
        })
        .collect();
    let per_host = usize::try_from(ranks / hosts).unwrap_or(usize::MAX);
    if !ranks.is_multiple_of(hosts) || per_host > indices.len() {
        return Err(Failure::new(Exit::NoPlan, does_not_fit(ranks, hosts, indices.len())));
    }
    Ok(indices.into_iter().take(per_host).collect())
}

/// Why so many ranks do not take the places of a topology's GPUs, and what to do.
fn does_not_fit(ranks: u32, hosts: u32, gpus: usize) -> String {
    if gpus == 0 {
        return format!(
            "no GPU for {ranks} ranks to take the place of: give a recorded machine with --from"
        );
    }
    if !ranks.is_multiple_of(hosts) {
        return format!("{ranks} ranks cannot be spread evenly over {hosts} hosts");
    }
    let per_host = ranks / hosts;
    format!("{per_host} ranks of a host need as many GPUs: the first host has {gpus}")
}

/// The plan whose every size uses one algorithm.
fn forced(mut plan: Plan, collective: Collective, algorithm: Algorithm) -> Result<Plan, Failure> {
    let Some(reached) = plan.collectives.get_mut(&collective) else { return Ok(plan) };
    let channels = if reached.best.as_ref().is_some_and(|best| best.algorithm == algorithm) {
        reached.best.as_ref().map(|best| best.channels)
    } else {
        let sets = plan
            .alternatives
            .iter()
            .filter(|set| set.algorithm == algorithm && set.collectives.contains(&collective));
        sets.map(|set| u32::try_from(set.channels.len()).unwrap_or(u32::MAX)).next()
    };
    let Some(channels) = channels else {
        let known: Vec<&str> =
            algorithms(&plan, collective).into_iter().map(Algorithm::as_str).collect();
        return Err(Failure::usage(format!(
            "the plan has no {algorithm} channels for {collective}; it has {}",
            known.join(", ")
        )));
    };
    reached.by_size = vec![SizeChoice {
        max_bytes: u64::MAX,
        algorithm,
        protocol: Protocol::Simple,
        channels,
        predicted_ps: None,
    }];
    Ok(plan)
}

/// What a plan has channels of, the best first.
fn algorithms(plan: &Plan, collective: Collective) -> Vec<Algorithm> {
    let best = plan.collectives.get(&collective).and_then(|reached| reached.best.as_ref());
    let others = plan.alternatives.iter().filter(|set| set.collectives.contains(&collective));
    let mut all: Vec<Algorithm> =
        best.iter().map(|best| best.algorithm).chain(others.map(|set| set.algorithm)).collect();
    let mut seen = BTreeSet::new();
    all.retain(|algorithm| seen.insert(*algorithm));
    all
}

fn job(args: &BenchArgs, plan: &Plan, rank: u32, rendezvous: &str) -> job::Job {
    job::Job {
        plan: topology::formats::plan_json::write(plan, None),
        rank,
        rendezvous: rendezvous.to_owned(),
        sizes: args.sizes.0.clone(),
        transport: match args.transport {
            LinkKind::Auto => job::Link::Auto,
            LinkKind::Shm => job::Link::Shm,
            LinkKind::Tcp => job::Link::Tcp,
            LinkKind::Verbs => job::Link::Verbs,
        },
        protocol: args.protocol.clone(),
        timeout_s: args.timeout,
        min_time_ms: args.min_time,
        most_time_ms: None,
        warm_up: args.warm_up,
        collective: args.collective,
        element: args.element.to_string(),
        op: args.op.to_string(),
        in_place: args.placement == Placement::In,
        cold: args.cold,
        shared: args.registered,
        // An algorithm that was asked for is one of the plan's.
        by_plan: !args.algorithm.is_empty() || args.by_plan,
        pin: args.pin,
        overlap: args.overlap,
        ping_pong: false,
        report: args.report.then(|| {
            let socket = args.source.socket.as_deref();
            socket.map_or_else(|| "default".to_owned(), |socket| socket.display().to_string())
        }),
    }
}

/// Runs a collective on local ranks, the job of each changed before it starts; what was measured, by size.
fn measure(
    args: &BenchArgs,
    ranks: u32,
    plan: &Plan,
    change: impl Fn(&mut job::Job),
) -> Result<Vec<job::Measured>, Failure> {
    let folder = tempfile::tempdir()
        .map_err(|error| Failure::internal(format!("temporary folder: {error}")))?;
    let rendezvous = format!("file://{}", folder.path().join("meet").display());
    let program = std::env::current_exe().map_err(Failure::internal)?;
    let mut processes = Vec::new();
    for rank in 0..ranks {
        let mut job = job(args, plan, rank, &rendezvous);
        change(&mut job);
        processes.push(start(&program, &job)?);
    }
    let outcomes = gather(processes, Duration::from_secs(args.timeout.into()))?;
    // All ranks agreed on the figures.
    Ok(outcomes.into_iter().next().unwrap_or_default())
}

/// N processes on this host.
fn local(
    args: &BenchArgs,
    plans: &[Plan],
    peers: &Peers,
    predictor: Option<&Calibration>,
) -> Result<Exit, Failure> {
    let limits = args
        .sizes
        .0
        .iter()
        .map(|size| {
            transport::memory_limit(args.ranks, usize::try_from(*size).unwrap_or(usize::MAX))
        })
        .collect::<Vec<_>>();
    let mut whole: Option<report::Report> = None;
    for plan in plans {
        let measured = measure(args, args.ranks, plan, |_| {})?;
        let report = report::Report::new(args, plan, &measured, &limits, peers, predictor);
        whole = Some(match whole {
            Some(before) => before.with(report),
            None => report,
        });
    }
    whole.map_or(Ok(Exit::Ok), |report| finish(args, &report))
}

/// Starts a rank. Its stdin stays open as long as this process lives: a rank whose stdin ends has lost its parent and ends too.
fn start(program: &Path, job: &job::Job) -> Result<Child, Failure> {
    let failed = |error: std::io::Error| Failure::internal(format!("rank {}: {error}", job.rank));
    let mut process = Command::new(program)
        .arg("bench-rank")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut text = serde_json::to_vec(job).map_err(Failure::internal)?;
    text.push(b'\n');
    if let Some(stdin) = &mut process.stdin {
        stdin.write_all(&text).map_err(failed)?;
    }
    Ok(process)
}

/// What every rank measured, by rank. After the first failure the others have the time limit to say what they saw; a rank
/// that says nothing by then is killed.
fn gather(mut processes: Vec<Child>, limit: Duration) -> Result<Vec<Vec<job::Measured>>, Failure> {
    let (sender, receiver) = mpsc::channel();
    for (rank, process) in processes.iter_mut().enumerate() {
        let (sender, stdout) = (sender.clone(), process.stdout.take());
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let read = stdout.map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut text));
            let outcome =
                read.ok().and_then(|_| serde_json::from_slice::<job::Outcome>(&text).ok());
            // The receiver is gone only once every rank is accounted for.
            let _ = sender.send((rank, outcome));
        });
    }
    let mut outcomes = vec![Vec::new(); processes.len()];
    let mut errors = Vec::new();
    let mut waiting: BTreeSet<usize> = (0..processes.len()).collect();
    let mut deadline: Option<Instant> = None;
    while !waiting.is_empty() {
        let told = match deadline {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
        };
        let Ok((rank, outcome)) = told else {
            for rank in std::mem::take(&mut waiting) {
                errors.push(format!("rank {rank}: silent, killed"));
                // It may have ended just now.
                let _ = processes[rank].kill();
            }
            break;
        };
        waiting.remove(&rank);
        match outcome {
            Some(job::Outcome::Done(measured)) => outcomes[rank] = measured,
            Some(job::Outcome::Failed(error)) => errors.push(format!("rank {rank}: {error}")),
            None => errors.push(format!("rank {rank}: ended without a result")),
        }
        if !errors.is_empty() && deadline.is_none() {
            deadline = Some(Instant::now() + limit);
        }
    }
    for process in &mut processes {
        // Reaps it; how it ended is told above.
        let _ = process.wait();
    }
    if errors.is_empty() {
        Ok(outcomes)
    } else {
        Err(Failure::internal(errors.join("\ntopoctl: ")))
    }
}

/// One rank of a job some launcher started; rank 0 tells.
fn one_of_a_job(
    args: &BenchArgs,
    plan: &Plan,
    rendezvous: &transport::Rendezvous,
    peers: &Peers,
    predictor: Option<&Calibration>,
) -> Result<Exit, Failure> {
    let place = rendezvous.own_place().ok_or_else(|| {
        Failure::usage(
            "--rendezvous takes env://, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT or what mpirun, Hydra and srun set: \
             only there is it known which rank this is",
        )
    })?;
    let measured = rank::measure(&job(args, plan, place.rank.0, "env://"), plan, rendezvous)
        .map_err(Failure::internal)?;
    if place.rank.0 != 0 {
        return Ok(Exit::Ok);
    }
    let report = report::Report::new(args, plan, &measured, &[], peers, predictor);
    finish(args, &report)
}

fn finish(args: &BenchArgs, report: &report::Report) -> Result<Exit, Failure> {
    if let Some(path) = &args.svg {
        std::fs::write(path, report.plot())
            .map_err(|error| Failure::internal(format!("{}: {error}", path.display())))?;
    }
    match args.output {
        TextFormat::Json => output::print_json(report)?,
        TextFormat::Table => output::print(&report.render())?,
    }
    if report.wrong() > 0 {
        return Err(Failure::internal(format!("{} elements were wrong", report.wrong())));
    }
    Ok(Exit::Ok)
}
