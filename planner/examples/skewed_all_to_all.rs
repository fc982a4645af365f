//! What balancing a skewed all-to-all gains: Zipf demand, as tokens that are routed to experts, on 4 hosts of 8 GPUs.
//!
//! `cargo run --release -p planner --example skewed_all_to_all`
//!
//! Both orders are simulated over the same NICs and links, so that the gain is not one of two formulas.

#![expect(clippy::print_stdout, reason = "a table for people")]

use planner::simulate::{Sharing, Transfer, simulate};
use planner::skewed::{Demand, zipf};

const HOSTS: usize = 4;
const PER_HOST: usize = 8;
/// An H100's: 50 GB/s of NIC and 370 GB/s of NVLink each.
const NIC_GBPS: f64 = 50.0;
const LINK_GBPS: f64 = 370.0;
/// From one host to another, and within one.
const LATENCY_NS: f64 = 5_000.0;
const BYTES: u64 = 64 << 20;

fn main() {
    let ranks = HOSTS * PER_HOST;
    println!("4 hosts of 8, each rank sends 64 MiB; times in us, simulated");
    println!("{:<44} {:>9} {:>9} {:>9} {:>6}", "DEMAND", "LEAST", "NAIVE", "BALANCED", "GAIN");
    // Which receivers each sender wants most. The same few experts for everybody, or each its own.
    let scattered =
        |from: usize| (0..ranks).map(|k| (from * 7 + k * 13) % ranks).collect::<Vec<_>>();
    let popular = |_: usize| (0..ranks).map(|k| (k * 11) % ranks).collect::<Vec<_>>();
    let cases = [
        ("even", Demand::new(HOSTS, PER_HOST, vec![BYTES / ranks as u64; ranks * ranks])),
        ("Zipf, every sender its own favourites", zipf(HOSTS, PER_HOST, BYTES, scattered)),
        ("Zipf, all the same favourites", zipf(HOSTS, PER_HOST, BYTES, popular)),
        ("Zipf, one rank sends ten times as much", heavy(&scattered)),
    ];
    for (name, demand) in cases {
        let demand = demand.expect("sizes fit");
        let (naive, balanced) = (naive_ns(&demand), balanced_ns(&demand));
        println!(
            "{name:<44} {:>9.0} {:>9.0} {:>9.0} {:>6.2}",
            demand.least_ns(NIC_GBPS) / 1e3,
            naive / 1e3,
            balanced / 1e3,
            naive / balanced
        );
    }
}

fn heavy(order: &dyn Fn(usize) -> Vec<usize>) -> Option<Demand> {
    let even = zipf(HOSTS, PER_HOST, BYTES, order)?;
    let ranks = even.ranks();
    let blocks = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let times = |from: usize| if from == 0 { 10 } else { 1 };
    Demand::new(HOSTS, PER_HOST, blocks.map(|(a, b)| even.of(a, b) * times(a)).collect())
}

/// Resources of a rank: NIC out and in, links out and in.
fn resources() -> Vec<f64> {
    let of_rank = [NIC_GBPS, NIC_GBPS, LINK_GBPS, LINK_GBPS];
    (0..HOSTS * PER_HOST).flat_map(|_| of_rank).collect()
}

fn transfer(from: usize, to: usize, bytes: u64, after: Vec<usize>) -> Transfer {
    let inside = from / PER_HOST == to / PER_HOST;
    let over = match inside {
        true => vec![(4 * from + 2, 1.0), (4 * to + 3, 1.0)],
        false => vec![(4 * from, 1.0), (4 * to + 1, 1.0)],
    };
    let latency_ns = if inside { LATENCY_NS / 5.0 } else { LATENCY_NS };
    Transfer { bytes, over, latency_ns, after }
}

fn end(transfers: &[Transfer]) -> f64 {
    simulate(&resources(), transfers, Sharing::Fair).expect("a sound list").end_ns()
}

/// Step s: rank r to rank r + s, each rank's steps one after the other.
fn naive_ns(demand: &Demand) -> f64 {
    let ranks = demand.ranks();
    let mut all = Vec::new();
    let mut last: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for step in 1..ranks {
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); ranks];
        for from in 0..ranks {
            let to = (from + step) % ranks;
            all.push(transfer(from, to, demand.of(from, to), last[from].clone()));
            // A rank goes on when it has sent its block and received another's.
            next[from].push(all.len() - 1);
            next[to].push(all.len() - 1);
        }
        last = next;
    }
    end(&all)
}

/// Spread inside the hosts, stages between them over all NICs alike, home inside the hosts.
fn balanced_ns(demand: &Demand) -> f64 {
    let balanced = demand.balanced();
    let mut all = Vec::new();
    // What stays in a host needs nobody's NIC.
    let ranks = demand.ranks();
    for from in 0..ranks {
        for to in (0..ranks).filter(|to| *to != from && to / PER_HOST == from / PER_HOST) {
            all.push(transfer(from, to, demand.of(from, to), Vec::new()));
        }
    }
    let total = balanced.stage_bytes().max(1);
    let mut last: Vec<Option<usize>> = vec![None; HOSTS * PER_HOST];
    for stage in &balanced.stages {
        for (a, b) in stage.to.iter().enumerate().filter_map(|(a, b)| Some((a, (*b)?))) {
            for place in 0..PER_HOST {
                let (from, to) = (a * PER_HOST + place, b * PER_HOST + place);
                let neighbour = |rank: usize| rank / PER_HOST * PER_HOST + (rank + 1) % PER_HOST;
                // Its part of the moves inside, to and from the next rank, before and after the stage.
                let share =
                    u128::from(balanced.inside) * u128::from(stage.bytes) / u128::from(2 * total);
                let share = u64::try_from(share).expect("less than is moved in all");
                all.push(transfer(from, neighbour(from), share, Vec::new()));
                let after = [Some(all.len() - 1), last[from]].into_iter().flatten().collect();
                all.push(transfer(from, to, stage.bytes / PER_HOST as u64, after));
                last[from] = Some(all.len() - 1);
                all.push(transfer(to, neighbour(to), share, vec![all.len() - 1]));
            }
        }
    }
    end(&all)
}
