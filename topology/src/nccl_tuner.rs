//! Which algorithm and protocol NCCL is to take for which size: the file of NCCL's example tuner plugin, which ours takes too.
//!
//! ```text
//!   collective,min_bytes,max_bytes,algorithm,protocol,channels,hosts,ranks[,pipelined[,registered]]      # comments, empty lines
//!   allreduce,0,65536,tree,ll,-1,1,8
//! ```
//!
//! -1 stands for any, and for channels it leaves the number to NCCL. The first row that fits holds. The example plugin
//! (`plugins/tuner/example` of NCCL 2.30) takes what it does not understand for all-reduce, ring and simple, reads lines of at
//! most 255 bytes, and asks for one channel where no row fits; so what is written is plain, and what is read is read strictly.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use crate::formats::ReadError;
use crate::{Algorithm, Collective, Plan, Protocol};

const FORMAT: &str = "NCCL tuner CSV";

/// Largest file read, in bytes.
pub const MOST_BYTES: usize = 4 << 20;

/// Most rows; NCCL asks again for every operation.
pub const MOST_ROWS: usize = 4096;

/// NCCL's algorithms, by its numbers (`NCCL_ALGO_*` of `nccl_common.h`, 2.28).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NcclAlgorithm {
    /// Double binary tree.
    Tree = 0,
    /// Rings.
    Ring = 1,
    /// Network switches, each GPU to each head.
    CollNetDirect = 2,
    /// Network switches, along chains.
    CollNetChain = 3,
    /// NVSwitches.
    Nvls = 4,
    /// NVSwitches inside hosts, trees between them.
    NvlsTree = 5,
    /// Parallel aggregated trees.
    Pat = 6,
}

const ALGORITHMS: [(&str, NcclAlgorithm); 7] = [
    ("tree", NcclAlgorithm::Tree),
    ("ring", NcclAlgorithm::Ring),
    ("collnet_direct", NcclAlgorithm::CollNetDirect),
    ("collnet_chain", NcclAlgorithm::CollNetChain),
    ("nvls", NcclAlgorithm::Nvls),
    ("nvls_tree", NcclAlgorithm::NvlsTree),
    ("pat", NcclAlgorithm::Pat),
];

const PROTOCOLS: [(&str, Protocol); 3] =
    [("ll", Protocol::Ll), ("ll128", Protocol::Ll128), ("simple", Protocol::Simple)];

const COLLECTIVES: [(&str, Collective); 5] = [
    ("broadcast", Collective::Broadcast),
    ("reduce", Collective::Reduce),
    ("allgather", Collective::AllGather),
    ("reducescatter", Collective::ReduceScatter),
    ("allreduce", Collective::AllReduce),
];

/// A rule for operations of some sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunerRow {
    /// Of which collective; those that NCCL chooses algorithms for.
    pub collective: Collective,
    /// Least size in bytes, of the collective's total data.
    pub min_bytes: u64,
    /// Largest.
    pub max_bytes: u64,
    /// What to take.
    pub algorithm: NcclAlgorithm,
    /// How.
    pub protocol: Protocol,
    /// On how many of NCCL's channels; `None` is NCCL's own choice.
    pub channels: Option<u32>,
    /// In communicators over that many hosts.
    pub hosts: Option<u32>,
    /// In communicators of that many ranks.
    pub ranks: Option<u32>,
    /// For groups of that many operations.
    pub pipelined: Option<u32>,
    /// For buffers that are registered, or are not.
    pub registered: Option<bool>,
}

/// What a plan tells NCCL to take, and what of it NCCL cannot do, in words. Channels are left to NCCL, which doubles those it
/// finds: a plan's count is of others.
#[must_use]
pub fn from_plan(plan: &Plan) -> (Vec<TunerRow>, Vec<String>) {
    let count = |number: usize| u32::try_from(number).ok();
    let mut hosts: Vec<_> = plan.ranks.iter().map(|rank| rank.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let (mut rows, mut left) = (Vec::new(), Vec::new());
    for (_, collective) in COLLECTIVES {
        let Some(reached) = plan.collectives.get(&collective) else { continue };
        let mut min_bytes = 0;
        for choice in &reached.by_size {
            let algorithm = match choice.algorithm {
                Algorithm::Ring => Some(NcclAlgorithm::Ring),
                Algorithm::Tree => Some(NcclAlgorithm::Tree),
                // NCCL's is for all-gather and reduce-scatter.
                Algorithm::Pat if collective == Collective::AllReduce => None,
                Algorithm::Pat => Some(NcclAlgorithm::Pat),
                Algorithm::Nvls => Some(NcclAlgorithm::Nvls),
                Algorithm::CollNet => Some(NcclAlgorithm::CollNetDirect),
                Algorithm::Forest
                | Algorithm::Direct
                | Algorithm::Hierarchical
                | Algorithm::OneShot
                | Algorithm::RecursiveDoubling
                | Algorithm::HalvingDoubling
                | Algorithm::Bruck => None,
            };
            // NCCL's trees are for all-reduce alone.
            let algorithm = algorithm.filter(|algorithm| {
                *algorithm != NcclAlgorithm::Tree || collective == Collective::AllReduce
            });
            match algorithm {
                Some(algorithm) => rows.push(TunerRow {
                    collective,
                    min_bytes,
                    max_bytes: choice.max_bytes,
                    algorithm,
                    protocol: choice.protocol,
                    channels: None,
                    hosts: count(hosts.len()),
                    ranks: count(plan.ranks.len()),
                    pipelined: None,
                    registered: None,
                }),
                None => left.push(format!(
                    "{collective} from {min_bytes} bytes: the plan's {} is none of NCCL's, which keeps its own choice",
                    choice.algorithm
                )),
            }
            min_bytes = choice.max_bytes.saturating_add(1);
        }
    }
    (rows, left)
}

/// The text.
#[must_use]
pub fn write(rows: &[TunerRow]) -> String {
    let mut text = String::from(
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,hosts,ranks,pipelined,registered\n",
    );
    let number = |number: Option<u32>| number.map_or_else(|| "-1".into(), |n| n.to_string());
    for row in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{}",
            name_of(&COLLECTIVES, row.collective),
            row.min_bytes,
            row.max_bytes,
            name_of(&ALGORITHMS, row.algorithm),
            name_of(&PROTOCOLS, row.protocol),
            number(row.channels),
            number(row.hosts),
            number(row.ranks),
            number(row.pipelined),
            number(row.registered.map(u32::from))
        );
    }
    text
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], wanted: T) -> &'static str {
    names.iter().find(|(_, own)| *own == wanted).map_or("", |(name, _)| name)
}

/// Reads a file strictly: a word that NCCL's example plugin would take for another is an error.
///
/// # Errors
/// With the line and the reason.
pub fn read(bytes: &[u8]) -> Result<Vec<TunerRow>, ReadError> {
    let refuse = |line: usize, reason: String| ReadError { format: FORMAT, line, reason };
    if bytes.len() > MOST_BYTES {
        return Err(refuse(0, format!("larger than {MOST_BYTES} bytes")));
    }
    let text = core::str::from_utf8(bytes).map_err(|_| refuse(0, "not UTF-8".into()))?;
    let mut rows = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        // As the example plugin: a comment begins the line.
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        if rows.len() == MOST_ROWS {
            return Err(refuse(line, format!("more than {MOST_ROWS} rows")));
        }
        rows.push(row(text).map_err(|reason| refuse(line, reason))?);
    }
    Ok(rows)
}

fn row(text: &str) -> Result<TunerRow, String> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    if !(8..=10).contains(&fields.len()) {
        return Err(format!("{} fields; there are 8 to 10", fields.len()));
    }
    let bytes = |at: usize| {
        fields[at].parse::<u64>().map_err(|_| format!("'{}' is no size in bytes", fields[at]))
    };
    let number = |at: usize| match fields.get(at) {
        None | Some(&"-1") => Ok(None),
        Some(text) => {
            text.parse::<u32>().map(Some).map_err(|_| format!("'{text}' is no number, nor -1"))
        }
    };
    let (min_bytes, max_bytes) = (bytes(1)?, bytes(2)?);
    if min_bytes > max_bytes {
        return Err(format!("sizes from {min_bytes} to {max_bytes}"));
    }
    let channels = number(5)?;
    if channels == Some(0) {
        return Err("no channel at all; -1 leaves them to NCCL".into());
    }
    let registered = match number(9)? {
        None => None,
        Some(0) => Some(false),
        Some(1) => Some(true),
        Some(other) => return Err(format!("registered is 0, 1 or -1, not {other}")),
    };
    Ok(TunerRow {
        collective: named(&COLLECTIVES, "collective", fields[0])?,
        min_bytes,
        max_bytes,
        algorithm: named(&ALGORITHMS, "algorithm", fields[3])?,
        protocol: named(&PROTOCOLS, "protocol", fields[4])?,
        channels,
        hosts: number(6)?,
        ranks: number(7)?,
        pipelined: number(8)?,
        registered,
    })
}

fn named<T: Copy>(names: &[(&str, T)], what: &str, text: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("'{text}' is no {what}: {} are", names.join(", "))
    })
}

/// Body of the fuzz target: any bytes are read or refused, and what was read survives a round trip.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(rows) = read(bytes) {
        assert_eq!(
            read(write(&rows).as_bytes()).as_ref(),
            Ok(&rows),
            "a written file is read back"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: Result<usize, (usize, &str)>) {
        match (read(text.as_bytes()), expect) {
            (Ok(rows), Ok(count)) => assert_eq!(rows.len(), count, "{text}"),
            (Err(error), Err((line, word))) => {
                assert!(error.line == line && error.reason.contains(word), "{error:?} of {text}");
            }
            (got, want) => panic!("{got:?}, not {want:?}, of {text}"),
        }
    }

    #[test]
    fn rows_of_eight_to_ten_fields() {
        check("# c\n\nallreduce,0,65536,tree,simple,2,1,-1\n", Ok(1));
        check(
            "allreduce,0,65536, tree ,simple,2,1,-1,-1,1\r\nreduce,0,9,ring,ll,-1,-1,-1,4",
            Ok(2),
        );
        check("allreduce,0,1,tree,simple,2,1", Err((1, "7 fields")));
        check("allreduce,0,1,tree,simple,2,1,1,1,1,1", Err((1, "11 fields")));
        check("\nall-reduce,0,1,tree,simple,2,1,1", Err((2, "no collective")));
        check("allreduce,0,1,Tree,simple,2,1,1", Err((1, "no algorithm")));
        check("allreduce,0,1,tree,LL,2,1,1", Err((1, "no protocol")));
        check("allreduce,2,1,tree,ll,2,1,1", Err((1, "from 2 to 1")));
        check("allreduce,-1,1,tree,ll,2,1,1", Err((1, "'-1' is no size")));
        check("allreduce,0,1,tree,ll,0,1,1", Err((1, "no channel")));
        check("allreduce,0,1,tree,ll,1,1,1,1,2", Err((1, "0, 1 or -1")));
        check("allreduce,0,1,tree,ll,1,x,1", Err((1, "'x' is no number")));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            of in 0_usize..5, sizes in (any::<u64>(), any::<u64>()), algorithm in 0_usize..7, protocol in 0_usize..3,
            numbers in proptest::array::uniform4(proptest::option::of(1_u32..)), registered in any::<Option<bool>>(),
        ) {
            let [channels, hosts, ranks, pipelined] = numbers;
            let row = TunerRow {
                collective: COLLECTIVES[of].1,
                min_bytes: sizes.0.min(sizes.1),
                max_bytes: sizes.0.max(sizes.1),
                algorithm: ALGORITHMS[algorithm].1,
                protocol: PROTOCOLS[protocol].1,
                channels, hosts, ranks, pipelined, registered,
            };
            let text = write(core::slice::from_ref(&row));
            // The example plugin reads no longer lines.
            prop_assert!(text.lines().all(|line| line.len() < 255));
            prop_assert_eq!(read(text.as_bytes()), Ok(Vec::from([row])));
        }

        #[test]
        fn never_panics(text in "[a-z0-9,_#\\- \\n]{0,80}") {
            fuzz(text.as_bytes());
        }
    }
}
