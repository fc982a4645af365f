//! `topoctl snapshot`: the facts as a file that every other verb reads.

use topology::formats;

use crate::args::SnapshotArgs;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

pub(crate) fn run(args: &SnapshotArgs) -> Result<Exit, Failure> {
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
    Ok(if snapshot.faults.is_empty() { Exit::Ok } else { Exit::Unknown })
}
