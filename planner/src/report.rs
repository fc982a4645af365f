//! Plans side by side with another search: the table of the benchmarks.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use topology::{Collective, Fraction, Plan};

/// One machine or group of GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Whatever tells it apart.
    pub name: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Sum of the ring rates, GB/s; zero without rings.
    pub ring_gbps: f64,
    /// All-gather, bus bandwidth in GB/s, and its bound.
    pub all_gather: (f64, f64),
    /// All-reduce, algorithm bandwidth in GB/s, and its bound.
    pub all_reduce: (f64, f64),
    /// The same three figures of the other search, where there are some.
    pub other: Option<[f64; 3]>,
}

impl Row {
    /// The figures of a plan.
    #[must_use]
    pub fn of(name: &str, plan: &Plan, other: Option<[f64; 3]>) -> Self {
        let ranks = plan.ranks.len();
        let reached = |collective: Collective| {
            let entry = plan.collectives.get(&collective);
            let best = entry.and_then(|e| e.best.as_ref()).map(|b| b.algbw_gbps);
            let bound = entry.and_then(|e| e.bound.as_ref()).map(|b| b.algbw_gbps);
            let figure = |f: Option<Fraction>| f.map_or(0.0, Fraction::to_f64);
            (figure(best), figure(bound))
        };
        let ring = plan
            .collectives
            .get(&Collective::AllGather)
            .and_then(|e| e.ring.as_ref())
            .map_or(0.0, |r| r.algbw_gbps.to_f64());
        let to_bus = Collective::AllGather.busbw_factor(u32::try_from(ranks).unwrap_or(u32::MAX));
        let (best, bound) = reached(Collective::AllGather);
        Self {
            name: name.into(),
            ranks,
            ring_gbps: ring * to_bus,
            all_gather: (best * to_bus, bound * to_bus),
            all_reduce: reached(Collective::AllReduce),
            other,
        }
    }

    /// What falls short of the other search, in words; the tolerance is that of figures printed with two decimals.
    #[must_use]
    pub fn shortfalls(&self) -> Vec<String> {
        let Some([ring, gather, reduce]) = self.other else { return Vec::new() };
        let ours = [self.ring_gbps, self.all_gather.0, self.all_reduce.0];
        ["ring total", "all-gather", "all-reduce"]
            .into_iter()
            .zip(ours)
            .zip([ring, gather, reduce])
            .filter(|((_, ours), other)| *ours < *other - 0.01)
            .map(|((what, ours), other)| {
                format!("{}: {what} {ours:.2} GB/s below {other:.2}", self.name)
            })
            .collect()
    }
}

/// The rows as Markdown; ratios are to the other search.
#[must_use]
pub fn table(rows: &[Row], other: &str) -> String {
    let mut text = format!(
        "| machine | GPUs | rings GB/s | {other} | all-gather busbw | bound | {other} | all-reduce algbw | bound | {other} |\n\
         |---|---|---|---|---|---|---|---|---|---|\n"
    );
    for row in rows {
        let [ring, gather, reduce] =
            row.other.map_or_else(Default::default, |figures| figures.map(|f| format!("{f:.2}")));
        text.push_str(&format!(
            "| {} | {} | {:.2} | {ring} | {:.2} | {:.2} | {gather} | {:.2} | {:.2} | {reduce} |\n",
            row.name,
            row.ranks,
            row.ring_gbps,
            row.all_gather.0,
            row.all_gather.1,
            row.all_reduce.0,
            row.all_reduce.1,
        ));
    }
    text
}
