//! From a graph with switches to capacities between ranks, and back from an edge between ranks to physical paths.
//!
//! Two stages. [`Reduction`] simplifies without losing anything: a switch between two neighbours becomes an edge, switches whose
//! capacities are in proportion become one. [`remove_switches`] then splits edges off at each remaining switch w,
//!
//! ```text
//!      u ──c──> w ──c'──> t          u ──c-γ──> w ──c'-γ──> t
//!                             ⇒      └───────────γ─────────>┘     (through w)
//! ```
//!
//! with γ such that every rank can still be sent everything at once. That a switch with equal capacity in and out can be
//! split off completely is the theorem of Bang-Jensen, Frank and Jackson; that the result supports the trees is
//! checked afterwards all the same.
//!
//! Trees get low when every pair of neighbours gets its part, so shares are spread evenly first, and between ranks that are far
//! apart without the switch before those that are near.
use crate::flow_graph::FlowGraph;
use splitter::Splitter;

pub use logical::LogicalGraph;
pub use reduction::{Reduction, SharedPath};

mod logical;
mod pairwise;
mod probe;
mod propose;
mod reduction;
mod splitter;
#[cfg(test)]
mod tests;
mod trim;

/// Splits all switches off `graph` such that every rank can still be sent everything that the ranks own (`weights`) at once, as
/// far as that is possible: ask [`RankGraph::supports`]. Uses one of `steps` per maximum flow, and beyond that budget
/// takes only the splits that need none.
///
/// # Panics
/// Where there is not one weight per rank, or capacities do not fit 60 bits.
#[must_use]
pub fn remove_switches(graph: &FlowGraph, weights: &[i64], steps: &mut u64) -> LogicalGraph {
    assert_eq!(weights.len(), graph.ranks, "one weight per rank");
    let mut splitter = Splitter::new(graph, weights);
    if !splitter.balanced() {
        splitter.trim(steps);
    }
    for switch in splitter.order() {
        if !splitter.propose(switch, true, steps) && !splitter.propose(switch, false, steps) {
            splitter.split_off(switch, steps);
        }
        splitter.drop_node(switch);
    }
    splitter.finish()
}

/// The graph with capacities lowered until as much enters every switch as leaves it; `None` where that is so already.
///
/// A switch that only forwards cannot use more, so plans lose nothing by some such lowering; this one avoids, as far as it sees,
/// what would hurt the all-gather of `weights`, and spreads the rest in proportion.
///
/// # Panics
/// Where there is not one weight per rank, or capacities do not fit 60 bits.
#[must_use]
pub fn balanced(graph: &FlowGraph, weights: &[i64], steps: &mut u64) -> Option<FlowGraph> {
    assert_eq!(weights.len(), graph.ranks, "one weight per rank");
    let mut splitter = Splitter::new(graph, weights);
    if splitter.balanced() {
        return None;
    }
    splitter.trim(steps);
    splitter.level();
    Some(splitter.flow_graph())
}
