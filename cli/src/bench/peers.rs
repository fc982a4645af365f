//! A peer's figures: JSON lines as a benchmark of another library prints them, or a file with a list of the best.

use std::path::Path;

use serde::Deserialize;
use topology::Collective;

use crate::exit::Failure;

/// One figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Figure {
    /// Who.
    #[serde(alias = "peer")]
    tag: String,
    op: String,
    ranks: usize,
    bytes: u64,
    /// Microseconds an operation.
    us: f64,
    #[serde(default)]
    cold: u8,
}

#[derive(Deserialize)]
struct List {
    best_peer_us: Vec<Figure>,
}

/// The figures of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Vec<Figure>);

impl Peers {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        Self::parse(&text).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        if let Ok(list) = serde_json::from_str::<List>(text) {
            return Ok(Self(list.best_peer_us));
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(at, line)| {
                serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The fastest peer: microseconds and who.
    pub(crate) fn best(&self, case: &Case) -> Option<(f64, &str)> {
        let names = case.names();
        let fits = |figure: &&Figure| {
            names.contains(&figure.op.as_str())
                && figure.ranks == case.ranks
                && (figure.bytes == case.bytes || case.collective == Collective::Barrier)
                && (figure.cold != 0) == case.cold
        };
        let best = self.0.iter().filter(fits).min_by(|a, b| a.us.total_cmp(&b.us))?;
        Some((best.us, &best.tag))
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) ranks: usize,
    /// As asked for; libraries round it to whole blocks each their way.
    pub(crate) bytes: u64,
    pub(crate) in_place: bool,
    pub(crate) cold: bool,
}

impl Case {
    /// As benchmarks of other libraries spell the collective; in place where they tell it apart.
    fn names(&self) -> &'static [&'static str] {
        match self.collective {
            Collective::AllReduce if self.in_place => &["allreduce_inplace"],
            Collective::AllReduce => &["allreduce"],
            Collective::AllGather => &["allgather"],
            Collective::ReduceScatter => &["reducescatter", "reduce_scatter"],
            Collective::Broadcast => &["broadcast", "bcast"],
            Collective::Reduce => &["reduce"],
            Collective::AllToAll => &["alltoall"],
            Collective::Gather => &["gather"],
            Collective::Scatter => &["scatter"],
            Collective::SendRecv => &["sendrecv"],
            Collective::Barrier => &["barrier"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"tag":"a","op":"allreduce","ranks":2,"bytes":8,"us":0.5,"us_min":0.4}
{"tag":"b","op":"allreduce","ranks":2,"bytes":8,"us":0.3}

{"tag":"b","op":"allreduce_inplace","ranks":2,"bytes":8,"cold":1,"us":9.0}
"#;

    #[test]
    fn the_fastest_that_fits_is_found() {
        let peers = Peers::parse(LINES).unwrap();
        let case = Case {
            collective: Collective::AllReduce,
            ranks: 2,
            bytes: 8,
            in_place: false,
            cold: false,
        };
        assert_eq!(peers.best(&case), Some((0.3, "b")));
        assert_eq!(peers.best(&Case { in_place: true, ..case }), None);
        assert_eq!(peers.best(&Case { in_place: true, cold: true, ..case }), Some((9.0, "b")));
        assert_eq!(peers.best(&Case { ranks: 3, ..case }), None);
        let list = r#"{"what": "", "best_peer_us": [{"op":"alltoall","ranks":4,"bytes":64,"us":1.5,"peer":"x"}]}"#;
        let case = Case { collective: Collective::AllToAll, ranks: 4, bytes: 64, ..case };
        assert_eq!(Peers::parse(list).unwrap().best(&case), Some((1.5, "x")));
        assert!(Peers::parse("{}\n").unwrap_err().starts_with("line 1: "));
    }
}
