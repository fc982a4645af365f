//! `topoctl snapshot`: the facts as a file that every other verb reads, with the files they come from on request.

use daemon::probe::probe_and_record;
use topology::{Snapshot, formats};

use crate::archive;
use crate::args::SnapshotArgs;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

pub(crate) fn run(args: &SnapshotArgs) -> Result<Exit, Failure> {
    if args.raw {
        let (snapshot, recording) = probe_and_record(&source::this_host(&args.source)?);
        let facts = formats::write_snapshot(&snapshot);
        archive::write(args.output.as_deref(), &facts, &recording)?;
        return Ok(exit(&snapshot));
    }
    let topology = source::load(&args.source)?.topology;
    let [snapshot] = topology.hosts() else {
        return Err(Failure::usage(format!(
            "a snapshot holds one host, and {} are given",
            topology.hosts().len()
        )));
    };
    let text = formats::write_snapshot(snapshot);
    match &args.output {
        None => output::print(&text)?,
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::internal(format!("{}: {error}", path.display())))?,
    }
    Ok(exit(snapshot))
}

fn exit(snapshot: &Snapshot) -> Exit {
    if snapshot.faults.is_empty() { Exit::Ok } else { Exit::Unknown }
}
