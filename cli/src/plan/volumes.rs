//! What an operation moves: exact bytes of each rank, of each link and of the whole job.

use std::collections::BTreeMap;
use std::fmt::Write;

use planner::check;
use planner::simulate::{chain_ns, chain_pieces};
use serde::Serialize;
use topology::plan::Pattern;
use topology::{Collective, Fraction, Plan, Rank, Topology};

use crate::exit::Failure;
use crate::output;
use crate::size;

/// Total data where the request says no size.
const DEFAULT_BYTES: u64 = 1 << 30;

/// One hop of a chain, in nanoseconds: the planner's constant for Simple over NVLink (NCCL 2.30, tuning.cc).
const HOP_NS: f64 = 3_400.0;

/// By collective.
#[derive(Debug, Serialize)]
pub(super) struct Volumes {
    /// Total data of each operation.
    of_bytes: u64,
    collectives: BTreeMap<Collective, Moved>,
}

/// Bytes; exact, as fractions where shards do not divide.
#[derive(Debug, Serialize)]
struct Moved {
    /// All that ranks send.
    job_bytes: String,
    ranks: Vec<OfRank>,
    links: Vec<OfLink>,
    /// Of a broadcast along rings: in how many pieces it goes fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<Chain>,
}

#[derive(Debug, Serialize)]
struct OfRank {
    rank: Rank,
    sent_bytes: String,
    received_bytes: String,
}

#[derive(Debug, Serialize)]
struct OfLink {
    from: String,
    to: String,
    bytes: String,
}

#[derive(Debug, Serialize)]
struct Chain {
    pieces: u64,
    /// N (S + K - 2) / (S B) and a latency for each of those S + K - 2 steps.
    predicted_us: f64,
}

impl Volumes {
    pub(super) fn new(
        topology: &Topology,
        plan: &Plan,
        bytes: Option<u64>,
    ) -> Result<Self, Failure> {
        let of_bytes = bytes.unwrap_or(DEFAULT_BYTES);
        let counted = check::volumes(topology, plan).map_err(|found| {
            Failure::internal(found.first().map(ToString::to_string).unwrap_or_default())
        })?;
        let whole = Fraction::integer(of_bytes.into());
        let exact = |part: &Fraction| {
            part.checked_mul(whole)
                .map_or_else(|| format!("{part} of {of_bytes}"), |b| b.to_string())
        };
        let name = |id| topology.vertex(id).name.clone();
        let moved = |(collective, volumes): (Collective, check::Volumes)| {
            let ranks = (0..).map(Rank).zip(&volumes.ranks);
            let ranks = ranks.map(|(rank, (sent, received))| OfRank {
                rank,
                sent_bytes: exact(sent),
                received_bytes: exact(received),
            });
            let links = volumes.links.iter().filter_map(|(link, part)| {
                let (from, to) = topology.graph().edge_endpoints(*link)?;
                Some(OfLink { from: name(from), to: name(to), bytes: exact(part) })
            });
            let of = Moved {
                job_bytes: exact(&volumes.job),
                ranks: ranks.collect(),
                links: links.collect(),
                chain: chain(plan, collective, of_bytes),
            };
            (collective, of)
        };
        Ok(Self { of_bytes, collectives: counted.into_iter().map(moved).collect() })
    }

    pub(super) fn render(&self) -> String {
        let mut rows = vec![
            ["COLLECTIVE", "JOB BYTES", "RANK SENDS AT MOST", "LINK CARRIES AT MOST", "LINKS"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for (collective, moved) in &self.collectives {
            let most = |texts: &mut dyn Iterator<Item = &String>| {
                let value = |text: &&String| text.parse::<Fraction>().unwrap_or(Fraction::ZERO);
                texts.max_by_key(value).cloned().unwrap_or_default()
            };
            rows.push(vec![
                collective.to_string(),
                moved.job_bytes.clone(),
                most(&mut moved.ranks.iter().map(|rank| &rank.sent_bytes)),
                most(&mut moved.links.iter().map(|link| &link.bytes)),
                moved.links.len().to_string(),
            ]);
        }
        if rows.len() == 1 {
            return String::new();
        }
        let mut text = format!(
            "\nVolumes of {} (-o json has every rank and link):\n{}",
            size::display(self.of_bytes),
            output::table(&rows)
        );
        if let Some(chain) = self.collectives.values().find_map(|moved| moved.chain.as_ref()) {
            let _ = writeln!(
                text,
                "a broadcast along the rings is fastest in {} pieces a ring: {:.1} us",
                chain.pieces, chain.predicted_us
            );
        }
        text
    }
}

/// Of the ring that takes longest.
fn chain(plan: &Plan, collective: Collective, bytes: u64) -> Option<Chain> {
    if collective != Collective::Broadcast {
        return None;
    }
    let ranks = plan.ranks.len();
    let best = plan.collectives.get(&collective)?.best.as_ref()?;
    let rings = plan.channels_of(collective).filter(|c| c.pattern == Pattern::Ring);
    let of_ring = |share: Fraction, gbps: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive part of a u64"
        )]
        let part = (bytes as f64 * share.to_f64()) as u64;
        let pieces = chain_pieces(part, ranks, gbps, HOP_NS);
        Chain { pieces, predicted_us: chain_ns(part, ranks, pieces, gbps, HOP_NS) / 1e3 }
    };
    let rated = rings.filter_map(|ring| {
        let gbps = check::channel_gbps(ring, collective, best.algbw_gbps, ranks)?;
        (!gbps.is_zero()).then(|| of_ring(ring.share, gbps.to_f64()))
    });
    rated.max_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us))
}
