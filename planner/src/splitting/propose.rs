//! Splitting a switch off in one go: a proposal for all its pairs, kept if every rank can still be sent everything.

use alloc::vec;
use alloc::vec::Vec;

use super::splitter::{Pair, Splitter};
use crate::max_flow::{FlowNetwork, UNLIMITED};

impl Splitter<'_> {
    /// Tries to split the switch off at once, spread evenly over all pairs, or over those `far` apart. Keeps the result
    /// only if every rank can still be sent everything.
    pub(super) fn propose(&mut self, switch: usize, far: bool, steps: &mut u64) -> bool {
        let (ins, outs) = (self.entering(switch), self.leaving(switch));
        let mut allowed: Vec<Vec<bool>> =
            ins.iter().map(|&(u, _)| outs.iter().map(|&(t, _)| u != t).collect()).collect();
        if far {
            let away: Vec<Vec<usize>> = ins
                .iter()
                .map(|&(u, _)| {
                    let distance = self.distances(switch, u);
                    outs.iter().map(|&(t, _)| distance[t]).collect()
                })
                .collect();
            let furthest_in: Vec<usize> =
                away.iter().map(|row| row.iter().copied().max().unwrap_or(0)).collect();
            let furthest_out: Vec<usize> =
                (0..outs.len()).map(|j| away.iter().map(|row| row[j]).max().unwrap_or(0)).collect();
            let mut all = true;
            for (i, row) in allowed.iter_mut().enumerate() {
                for (j, ok) in row.iter_mut().enumerate() {
                    let near = away[i][j] != furthest_in[i] && away[i][j] != furthest_out[j];
                    all &= !(*ok && near);
                    *ok &= !near;
                }
            }
            if all {
                // Nobody is nearer than others, so this is the proposal without preference.
                return false;
            }
        }
        let pairs = spread(&ins, &outs, &allowed);
        let mut capacity = self.capacity.clone();
        for other in 0..self.nodes {
            capacity[switch * self.nodes + other] = 0;
            capacity[other * self.nodes + switch] = 0;
        }
        pairs.iter().for_each(|pair| capacity[pair.from * self.nodes + pair.to] += pair.amount);
        // Routes follow only what is kept.
        if !self.supports(&capacity, steps) {
            return false;
        }
        for pair in pairs {
            self.split(switch, pair);
        }
        self.drop_node(switch);
        true
    }
}

/// Whole amounts for the allowed pairs that use up what enters and leaves as far as they can, in proportion first.
fn spread(ins: &[(usize, i64)], outs: &[(usize, i64)], allowed: &[Vec<bool>]) -> Vec<Pair> {
    let mut amounts = vec![vec![0_i64; outs.len()]; ins.len()];
    let mut left_in: Vec<i64> = ins.iter().map(|e| e.1).collect();
    let mut left_out: Vec<i64> = outs.iter().map(|e| e.1).collect();
    let reach_in: Vec<i64> = allowed
        .iter()
        .map(|row| row.iter().zip(outs).filter(|(ok, _)| **ok).map(|(_, e)| e.1).sum())
        .collect();
    let reach_out: Vec<i64> = (0..outs.len())
        .map(|j| allowed.iter().zip(ins).filter(|(row, _)| row[j]).map(|(_, e)| e.1).sum())
        .collect();
    let part = |a: i64, b: i64, whole: i64| {
        i64::try_from(i128::from(a) * i128::from(b) / i128::from(whole.max(1))).unwrap_or(0)
    };
    for (i, row) in allowed.iter().enumerate() {
        for j in (0..outs.len()).filter(|&j| row[j]) {
            let (a, b) = (ins[i].1, outs[j].1);
            let amount = part(a, b, reach_in[i]).min(part(a, b, reach_out[j]));
            amounts[i][j] = amount;
            left_in[i] -= amount;
            left_out[j] -= amount;
        }
    }
    // The remainders of rounding, by a flow: at first no pair gets more than its share of them.
    let (source, sink) = (ins.len() + outs.len(), ins.len() + outs.len() + 1);
    let mut net = FlowNetwork::new(sink + 1);
    left_in.iter().enumerate().for_each(|(i, &left)| {
        net.add_edge(source, i, left);
    });
    left_out.iter().enumerate().for_each(|(j, &left)| {
        net.add_edge(ins.len() + j, sink, left);
    });
    let mut cells = Vec::new();
    for (i, row) in allowed.iter().enumerate() {
        // Rotated, so that equal remainders do not all go to the first.
        for j in (0..outs.len()).map(|j| (i + 1 + j) % outs.len()).filter(|&j| row[j]) {
            cells.push((i, j, net.add_edge(i, ins.len() + j, 1)));
        }
    }
    let most = left_in.iter().copied().max().unwrap_or(0);
    let mut cap = 1;
    loop {
        net.max_flow(source, sink, UNLIMITED);
        let used: i64 = cells.iter().map(|c| net.flow(c.2)).sum();
        if cap >= most || used == left_in.iter().sum::<i64>() {
            break;
        }
        cap = (cap * 2).min(most);
        cells.iter().for_each(|c| net.set_capacity(c.2, cap));
    }
    for &(i, j, id) in &cells {
        amounts[i][j] += net.flow(id);
    }
    let mut pairs = Vec::new();
    for (i, row) in amounts.iter().enumerate() {
        for (j, &amount) in row.iter().enumerate().filter(|(_, a)| **a > 0) {
            pairs.push(Pair { from: ins[i].0, to: outs[j].0, amount });
        }
    }
    pairs
}
