//! The rows that hold for a communicator.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use topology::nccl_tuner::{self, MOST_BYTES, NcclAlgorithm, TunerRow};
use topology::{Collective, Protocol, formats::plan_json};

/// Variables that name the file; ours wins.
const FILES: [&str; 2] = ["TOPOD_TUNER_FILE", "NCCL_TUNER_CONFIG_FILE"];

/// Collectives by NCCL's numbers (`ncclFunc_t` of `nccl_common.h`).
const FUNCTIONS: [Collective; 5] = [
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
];

/// What NCCL asks.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// NCCL's number of the collective.
    pub function: usize,
    /// Total data.
    pub bytes: u64,
    /// Operations in the group.
    pub pipelined: u32,
    /// Whether buffers are registered; versions that do not tell are asked for rows that do not care.
    pub registered: Option<bool>,
}

/// Rows of one communicator, by NCCL's number of the collective.
#[derive(Debug, Default)]
pub struct Table {
    rows: [Vec<TunerRow>; FUNCTIONS.len()],
}

impl Table {
    /// From the file that the environment names, with words for the log; empty where there is none.
    #[must_use]
    pub fn of_environment(ranks: usize, hosts: usize) -> (Self, String) {
        let named = |name: &&str| env::var_os(name).filter(|value| !value.is_empty());
        let Some(path) = FILES.iter().find_map(named) else {
            return (Self::default(), format!("no {}: NCCL's own tuning", FILES.join(" or ")));
        };
        let shown = path.to_string_lossy().into_owned();
        match read(&path).and_then(|bytes| Self::new(&bytes, ranks, hosts)) {
            Ok(table) => {
                let words = format!("{shown}: {}", table.summary(ranks, hosts));
                (table, words)
            }
            Err(why) => (Self::default(), format!("{shown}: {why}; NCCL's own tuning")),
        }
    }

    /// The rows of a file that are for communicators of so many ranks on so many hosts.
    ///
    /// # Errors
    /// What is wrong with the file, in words.
    pub fn new(bytes: &[u8], ranks: usize, hosts: usize) -> Result<Self, String> {
        let all = if plan_json::recognise(bytes) {
            nccl_tuner::from_plan(&plan_json::read(bytes).map_err(|error| error.to_string())?).0
        } else {
            nccl_tuner::read(bytes).map_err(|error| error.to_string())?
        };
        let is =
            |wanted: Option<u32>, has: usize| wanted.is_none_or(|wanted| wanted as usize == has);
        let mut table = Self::default();
        for row in all.into_iter().filter(|row| is(row.ranks, ranks) && is(row.hosts, hosts)) {
            if let Some(function) = FUNCTIONS.iter().position(|own| *own == row.collective) {
                table.rows[function].push(row);
            }
        }
        Ok(table)
    }

    /// The rows that fit, in order.
    pub fn answers(&self, question: Question) -> impl Iterator<Item = &TunerRow> {
        let rows = self.rows.get(question.function).map_or(&[][..], Vec::as_slice);
        rows.iter().filter(move |row| {
            (row.min_bytes..=row.max_bytes).contains(&question.bytes)
                && row.pipelined.is_none_or(|own| own == question.pipelined)
                && row.registered.is_none_or(|own| question.registered == Some(own))
        })
    }

    /// How many rows, and a number that is equal on hosts with equal rows.
    fn summary(&self, ranks: usize, hosts: usize) -> String {
        let rows: Vec<TunerRow> = self.rows.iter().flatten().cloned().collect();
        let digest = fnv1a(nccl_tuner::write(&rows).as_bytes());
        format!(
            "{} rows for {ranks} ranks on {hosts} hosts, digest {digest:016x}, to be the same on every host",
            rows.len()
        )
    }
}

/// FNV-1a, 64 bits: no secret, only a sign that two hosts do not have the same.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Bytes of a regular file; a pipe would wait for a writer.
fn read(path: &OsString) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| error.to_string();
    let metadata = Path::new(path).metadata().map_err(words)?;
    if !metadata.is_file() {
        return Err("not a file".into());
    }
    let mut bytes = Vec::new();
    let most = MOST_BYTES as u64 + 1;
    File::open(path).map_err(words)?.take(most).read_to_end(&mut bytes).map_err(words)?;
    Ok(bytes)
}

/// NCCL's number of a protocol (`NCCL_PROTO_*`).
pub(crate) const fn protocol(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Ll => 0,
        Protocol::Ll128 => 1,
        Protocol::Simple => 2,
    }
}

/// Whether version 2, which has no table of what is possible, may be told of a row: it would take any that it is told. NCCL has trees for
/// all-reduce alone (`src/graph/tuning.cc`).
pub(crate) fn always_possible(row: &TunerRow) -> bool {
    let algorithm = match row.algorithm {
        NcclAlgorithm::Ring => true,
        NcclAlgorithm::Tree => row.collective == Collective::AllReduce,
        _ => false,
    };
    algorithm && row.protocol != Protocol::Ll128
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "allreduce,0,100,tree,ll,-1,1,8\nallreduce,50,1000,ring,simple,4,-1,-1,2\nallreduce,0,4294967295,ring,ll128,-1,-1,-1,-1,1\nbroadcast,0,9,ring,ll,-1,2,-1\n";

    /// What version 2 is told, by collective.
    #[test]
    fn trees_are_for_all_reduce_alone() {
        let rows = "allreduce,0,9,tree,simple,1,1,8\nbroadcast,0,9,tree,simple,1,1,8\nreduce,0,9,ring,ll128,1,1,8\n\
                    allgather,0,9,ring,simple,1,1,8\nreducescatter,0,9,nvls,simple,1,1,8\n";
        let table = Table::new(rows.as_bytes(), 8, 1).unwrap();
        let told = |function| {
            let question = Question { function, bytes: 5, pipelined: 1, registered: None };
            assert_eq!(table.answers(question).count(), 1);
            table.answers(question).any(always_possible)
        };
        assert_eq!([0, 1, 2, 3, 4].map(told), [false, false, true, false, true]);
    }

    #[test]
    fn the_first_row_that_fits() {
        let table = Table::new(ROWS.as_bytes(), 8, 1).unwrap();
        let ask = |function, bytes, pipelined, registered| -> Vec<NcclAlgorithm> {
            let question = Question { function, bytes, pipelined, registered };
            table.answers(question).map(|row| row.algorithm).collect()
        };
        assert_eq!(ask(4, 100, 1, None), [NcclAlgorithm::Tree]);
        assert_eq!(ask(4, 100, 2, Some(true)).len(), 3);
        assert_eq!(ask(4, 101, 1, Some(false)), []);
        assert_eq!(ask(4, 5_000_000_000, 1, Some(true)), []);
        assert_eq!(ask(0, 5, 1, None), [], "for two hosts");
        assert_eq!(ask(99, 5, 1, None), []);
        let other = Table::new(ROWS.as_bytes(), 4, 2).unwrap();
        assert_ne!(table.summary(8, 1), other.summary(8, 1));
        assert!(Table::new(b"nonsense", 8, 1).is_err());
    }
}
