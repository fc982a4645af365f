//! Colours of nodes: what a node looks like, from its neighbours, and theirs, and so on.
//!
//! Two colourings of one network grow side by side, one for the nodes and one for their images. As long as they show the same colours equally
//! often, a renaming may exist. Colours are hashes; what is concluded from equal ones is checked against the edges in the end.

use alloc::vec;
use alloc::vec::Vec;

use crate::network::Network;

/// Colours of the nodes and of their images.
#[derive(Clone, Debug)]
pub(super) struct Pair<'a> {
    network: &'a Network,
    /// What each edge looks like.
    labels: alloc::rc::Rc<Vec<u64>>,
    nodes: Vec<u64>,
    images: Vec<u64>,
    /// Whether the images see every edge turned round.
    turned: bool,
    named: u64,
}

impl<'a> Pair<'a> {
    /// Ranks one colour, forwarders another.
    pub(super) fn new(network: &'a Network, turned: bool) -> Self {
        let graph = &network.graph;
        let mut users = vec![0_u64; network.capacity.len()];
        network.pool_of.iter().for_each(|&pool| users[pool] += 1);
        let label = |i: usize| {
            let pool = network.pool_of[i];
            mix(mix(graph.edges[i].capacity)
                ^ mix(network.capacity[pool]).rotate_left(7)
                ^ users[pool])
        };
        let labels = (0..graph.edges.len()).map(label).collect();
        let nodes: Vec<u64> = (0..graph.nodes).map(|v| u64::from(v < graph.ranks)).collect();
        Self {
            network,
            labels: alloc::rc::Rc::new(labels),
            images: nodes.clone(),
            nodes,
            turned,
            named: 0,
        }
    }

    /// `node` is to go to `image`.
    pub(super) fn identify(&mut self, node: usize, image: usize) {
        self.named += 1;
        let name = mix(self.named ^ 0x5bd1_e995_7b93_d4a1);
        self.nodes[node] = name;
        self.images[image] = name;
    }

    /// Whether `node` may go to `image` as far as colours tell.
    pub(super) fn alike(&self, node: usize, image: usize) -> bool {
        self.nodes[node] == self.images[image]
    }

    /// Lets every node see its neighbours until nothing new is seen; whether both sides still look the same.
    pub(super) fn refine(&mut self) -> bool {
        let mut known = 0;
        loop {
            let (mut a, mut b) = (self.nodes.clone(), self.images.clone());
            a.sort_unstable();
            b.sort_unstable();
            if a != b {
                return false;
            }
            a.dedup();
            if a.len() <= known {
                return true;
            }
            known = a.len();
            if known == self.nodes.len() {
                return true;
            }
            self.nodes = self.seen(&self.nodes, false);
            self.images = self.seen(&self.images, self.turned);
        }
    }

    fn seen(&self, colours: &[u64], turned: bool) -> Vec<u64> {
        let mut seen: Vec<u64> = colours.iter().map(|&c| mix(c)).collect();
        for (e, &label) in self.network.graph.edges.iter().zip(self.labels.iter()) {
            let (from, to) = if turned { (e.to, e.from) } else { (e.from, e.to) };
            seen[to] = seen[to].wrapping_add(mix(colours[from] ^ label));
            seen[from] = seen[from].wrapping_add(mix(colours[to] ^ label.rotate_left(32)));
        }
        seen
    }

    /// Each node's image by colour; nodes of one colour keep their order.
    pub(super) fn matched(&self) -> Option<Vec<usize>> {
        let by_colour = |colours: &[u64]| -> Vec<(u64, usize)> {
            let mut order: Vec<(u64, usize)> =
                colours.iter().enumerate().map(|(v, &c)| (c, v)).collect();
            order.sort_unstable();
            order
        };
        let mut map = vec![0; self.nodes.len()];
        for (a, b) in by_colour(&self.nodes).into_iter().zip(by_colour(&self.images)) {
            if a.0 != b.0 {
                return None;
            }
            map[a.1] = b.1;
        }
        Some(map)
    }
}

/// Scatters bits (the finaliser of SplitMix64).
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
