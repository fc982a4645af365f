//! `topoctl export`: a plan in the files of other software.

mod graph;
mod launch;

use topology::formats;
use topology::nccl_topo::TopoFile;
use topology::plan::Plan;
use topology::{Algorithm, Collective, Executor, Rank, msccl};
use transport::schedule::Sizing;

use crate::args::{ExportArgs, ExportFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::plan;
use crate::source;

pub(crate) fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    let origin = source::load(&args.source)?;
    let text = match args.format {
        ExportFormat::Snapshot => {
            let [snapshot] = origin.topology.hosts() else {
                return Err(Failure::usage("a snapshot holds one host, and several are given"));
            };
            formats::write_snapshot(snapshot)
        }
        ExportFormat::NcclTopo => topology_file(args, &origin)?,
        ExportFormat::NcclGraph => graph::text(args, &origin)?,
        ExportFormat::NcclEnv => launch::nccl_conf(&origin)?,
        ExportFormat::TunerCsv => launch::tuner(args, &origin)?,
        ExportFormat::Rccl => launch::rccl(args, &origin)?,
        ExportFormat::Ucx => launch::ucx(args, &origin)?,
        ExportFormat::Hostfile | ExportFormat::SlurmHostfile | ExportFormat::Rankfile => {
            launch::ranks(args, &origin)?
        }
        ExportFormat::SlurmGres => launch::gres(&origin)?,
        ExportFormat::Msccl => {
            let (plan, _) = plan::make(&origin, &plan::request(&args.request))?;
            let collective = match args.request.collective.as_slice() {
                [collective] => *collective,
                [] => Collective::AllReduce,
                _ => {
                    return Err(Failure::usage(
                        "an MSCCL file holds one collective: name one with --collective",
                    ));
                }
            };
            msccl_text(&plan, collective)?
        }
    };
    match &args.output {
        None => output::print(&text)?,
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::internal(format!("{}: {error}", path.display())))?,
    }
    Ok(Exit::Ok)
}

/// The host as NCCL loads it, or the tree for a guest on it.
fn topology_file(args: &ExportArgs, origin: &source::Origin) -> Result<String, Failure> {
    let [host] = origin.topology.hosts() else {
        return Err(Failure::usage("NCCL's topology file holds one host, and several are given"));
    };
    let mut file = match &args.map {
        None => TopoFile::of_host(host),
        Some(path) => {
            let named = |error: &dyn std::fmt::Display| {
                Failure::usage(format!("{}: {error}", path.display()))
            };
            let bytes = source::read_bytes(path)?;
            let map = String::from_utf8_lossy(&bytes).parse().map_err(|error| named(&error))?;
            let guest = args.guest.as_deref().map(source::read_one).transpose()?;
            TopoFile::for_guest(host, &map, guest.as_ref())
        }
    }
    .map_err(|error| Failure::usage(error.to_string()))?;
    file.fit();
    file.notes().iter().for_each(|note| output::warn(note));
    Ok(file.write())
}

/// The schedule of the plan's best algorithm at infinite size, in the fewest chunks that all shares divide.
fn msccl_text(plan: &Plan, collective: Collective) -> Result<String, Failure> {
    let no_plan = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::NoPlan, format!("{collective}: {error}"))
    };
    let best = plan.collectives.get(&collective).and_then(|reached| reached.best.as_ref());
    if let Some(best) = best
        && best.algorithm == Algorithm::Direct
        && !best.executors.contains(&Executor::Msccl)
    {
        let why = "data of some pairs passes other GPUs, and MSCCL's sends go straight";
        return Err(no_plan(&why));
    }
    let mut plan = plan.clone();
    if let Some(reached) = plan.collectives.get_mut(&collective) {
        reached.by_size.clear();
    }
    let chunks = chunks(&plan, collective)
        .ok_or_else(|| no_plan(&"its shares need more than 2^20 chunks, more than MSCCL holds"))?;
    // An element of a whole cache line, so that chunks are never rounded to lines.
    let sizing = Sizing::new(64, 1 << 30).map_err(Failure::internal)?;
    let root = collective.has_root().then_some(Rank(0));
    let schedule = transport::schedule::schedule(&plan, collective, root, chunks, sizing)
        .map_err(|error| no_plan(&error))?;
    // What other software runs is checked as strictly as what we run ourselves.
    planner::check::schedule(&schedule, transport::schedule::MIN_SLOTS)
        .map_err(Failure::internal)?;
    let name = format!(
        "topod {collective} {} ranks {}",
        plan.ranks.len(),
        plan.topology.fingerprint.get(..12).unwrap_or_default()
    );
    msccl::write(&schedule, &name).map_err(|error| no_plan(&error))
}

/// Chunks such that every channel's share, and each rank's part of it, is a whole number of them.
fn chunks(plan: &Plan, collective: Collective) -> Option<usize> {
    let ranks = i128::try_from(plan.ranks.len()).ok()?;
    let mut shares = plan.channels_of(collective).map(|channel| channel.share.denominator());
    let least = shares.try_fold(1_i128, |least, denominator| {
        let (mut a, mut b) = (least, denominator);
        let product = a.checked_mul(b)?;
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Some(product / a)
    })?;
    let chunks = least.checked_mul(ranks)?;
    usize::try_from(chunks).ok().filter(|chunks| *chunks <= 1 << 20)
}
