//! How verbs links are used: what NCCL's `NCCL_IB_` variables say.

use topology::nccl_hca::HcaFilter;

/// Settings of verbs links. Those that NCCL has mean what they mean there, and have its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ib {
    /// Whether links that are chosen by what there is are never verbs links. Need not be equal.
    pub disable: bool,
    /// Which ports may be used; by default all that are active. Need not be equal on all ranks.
    pub hca: Option<HcaFilter>,
    /// Which entry of a port's GID table is used; by default the best the two ends have in common. Need not be equal.
    pub gid_index: Option<u8>,
    /// Time a NIC waits for an answer before it sends again, 4.096 us times two to this power: 1 to 31. Need not be equal.
    pub timeout: u8,
    /// Times it sends again before it gives up: 0 to 7. Need not be equal.
    pub retry_count: u8,
    /// Queue pairs of each connection, over which messages take turns: 1 to 128.
    pub queue_pairs: u32,
    /// Whether a long message is followed by an empty one that announces it, since adaptive routing may bring its packets in any
    /// order; by default on InfiniBand alone. Need not be equal.
    pub adaptive_routing: Option<bool>,
    /// InfiniBand service level, or RoCE priority. Need not be equal.
    pub service_level: u8,
    /// Traffic class of RoCE and of routed InfiniBand; on RoCE the DSCP is in its upper six bits. Need not be equal.
    pub traffic_class: u8,
}

impl Default for Ib {
    fn default() -> Self {
        Self {
            disable: false,
            hca: None,
            gid_index: None,
            timeout: 20,
            retry_count: 7,
            queue_pairs: 1,
            adaptive_routing: None,
            service_level: 0,
            traffic_class: 0,
        }
    }
}
