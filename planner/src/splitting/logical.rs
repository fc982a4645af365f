//! What is left when switches are gone: capacities between ranks, and the paths that provide them.

use alloc::vec::Vec;

use crate::max_flow::scaled;
use crate::packing::RankGraph;

/// Capacities between ranks, with the paths of nodes that provide them.
#[derive(Clone, Debug)]
pub struct LogicalGraph {
    /// The capacities.
    pub graph: RankGraph,
    /// By `from * ranks + to`: switches passed, and how much of the capacity runs that way.
    pub(super) routes: Vec<Vec<Route>>,
}

#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) via: Vec<usize>,
    pub(super) amount: i64,
}

impl LogicalGraph {
    /// Multiplies every capacity; `None` where one would exceed 60 bits.
    #[must_use]
    pub fn scaled(mut self, factor: u64) -> Option<Self> {
        let times = |c: i64| scaled(c.unsigned_abs(), factor);
        let edges: Vec<_> = self.graph.edges().collect();
        for (u, t, c) in edges {
            self.graph.set_capacity(u, t, times(c)?);
        }
        for route in self.routes.iter_mut().flatten() {
            route.amount = times(route.amount)?;
        }
        Some(self)
    }

    /// Takes `amount` of the capacity from one rank to another out of the routes: the switches passed and how much goes that way.
    /// One route where one has room, the fewest otherwise.
    ///
    /// # Panics
    /// Where less is left.
    pub fn take(&mut self, from: usize, to: usize, amount: i64) -> Vec<(Vec<usize>, i64)> {
        let routes = &mut self.routes[from * self.graph.ranks() + to];
        let mut taken = Vec::new();
        let mut left = amount;
        while left > 0 {
            // The tightest route that holds all of it keeps the roomy ones whole for others.
            let fits = (0..routes.len())
                .filter(|&i| routes[i].amount >= left)
                .min_by_key(|&i| routes[i].amount);
            let most = || (0..routes.len()).rev().max_by_key(|&i| routes[i].amount);
            let i = fits.or_else(most).expect("trees take no more than the capacity");
            let part = left.min(routes[i].amount);
            taken.push((routes[i].via.clone(), part));
            left -= part;
            routes[i].amount -= part;
            if routes[i].amount == 0 {
                routes.remove(i);
            }
        }
        taken
    }
}
