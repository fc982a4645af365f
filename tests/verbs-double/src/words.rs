//! What numbers are called; the words are this library's own.

/// Of `enum ibv_wc_status`, in its order.
const STATUSES: [&[u8]; 24] = [
    b"success\0",
    b"local length error\0",
    b"local QP operation error\0",
    b"local EE context operation error\0",
    b"local protection error\0",
    b"Work Request Flushed Error\0",
    b"memory management operation error\0",
    b"bad response error\0",
    b"local access error\0",
    b"remote invalid request error\0",
    b"remote access error\0",
    b"remote operation error\0",
    b"transport retry counter exceeded\0",
    b"RNR retry counter exceeded\0",
    b"local RDD violation error\0",
    b"remote invalid RD request\0",
    b"aborted error\0",
    b"invalid EE context number\0",
    b"invalid EE context state\0",
    b"fatal error\0",
    b"response timeout error\0",
    b"general error\0",
    b"TM error\0",
    b"TM software rendezvous\0",
];

/// Of `enum ibv_event_type`, in its order.
const EVENTS: [&[u8]; 20] = [
    b"CQ error\0",
    b"local work queue catastrophic error\0",
    b"invalid request local work queue error\0",
    b"local access violation work queue error\0",
    b"communication established\0",
    b"send queue drained\0",
    b"path migrated\0",
    b"path migration request error\0",
    b"local catastrophic error\0",
    b"port active\0",
    b"port error\0",
    b"LID change\0",
    b"P_Key change\0",
    b"SM change\0",
    b"SRQ catastrophic error\0",
    b"SRQ limit reached\0",
    b"last WQE reached\0",
    b"client reregistration\0",
    b"GID table change\0",
    b"WQ fatal\0",
];

/// Of `enum ibv_port_state`, in its order.
const PORT_STATES: [&[u8]; 6] =
    [b"no state change (NOP)\0", b"down\0", b"init\0", b"armed\0", b"active\0", b"active defer\0"];

/// Of `enum ibv_node_type` from 1 on.
const NODES: [&[u8]; 4] = [
    b"InfiniBand channel adapter\0",
    b"InfiniBand switch\0",
    b"InfiniBand router\0",
    b"iWARP NIC\0",
];

fn pick(words: &[&'static [u8]], place: i32) -> &'static [u8] {
    usize::try_from(place).ok().and_then(|place| words.get(place).copied()).unwrap_or(b"unknown\0")
}

pub(crate) fn status(status: i32) -> &'static [u8] {
    pick(&STATUSES, status)
}

pub(crate) fn event(event: i32) -> &'static [u8] {
    pick(&EVENTS, event)
}

pub(crate) fn port_state(state: i32) -> &'static [u8] {
    pick(&PORT_STATES, state)
}

pub(crate) fn node(kind: i32) -> &'static [u8] {
    pick(&NODES, kind.saturating_sub(1))
}
