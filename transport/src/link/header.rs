//! What goes before the data of a message on links that carry bytes between hosts.
//!
//! ```text
//!   0 magic (4) │ 4 bytes (4) │ 8 session (8) │ 16 generation (8) │ 24 channel (4) │ 28 connection (4)
//!   32 sequence (8) │ 40 operation (8) │ 48 count (8) │ 56 signature (8)                little endian
//! ```
//!
//! A header that is not the expected one is an error, never data.

use super::{LinkError, Tag};
use crate::schedule::ConnectionId;

const MAGIC: u32 = u32::from_le_bytes(*b"tpd1");
/// Bytes of a header.
pub(crate) const HEADER: usize = 64;

/// What never changes on a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) session: u64,
    pub(crate) generation: u64,
    pub(crate) id: ConnectionId,
}

pub(crate) fn encode(identity: &Identity, sequence: u64, tag: &Tag) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&tag.bytes.to_le_bytes());
    out[8..16].copy_from_slice(&identity.session.to_le_bytes());
    out[16..24].copy_from_slice(&identity.generation.to_le_bytes());
    out[24..28].copy_from_slice(&identity.id.channel.to_le_bytes());
    out[28..32].copy_from_slice(&identity.id.connection.to_le_bytes());
    out[32..40].copy_from_slice(&sequence.to_le_bytes());
    out[40..48].copy_from_slice(&tag.operation.to_le_bytes());
    out[48..56].copy_from_slice(&tag.count.to_le_bytes());
    out[56..64].copy_from_slice(&tag.signature.to_le_bytes());
    out
}

/// The number that a header gives its message.
pub(crate) fn sequence(header: &[u8; HEADER]) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *header.first_chunk::<40>().unwrap_or(&[0; 40]);
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

pub(crate) fn decode(
    identity: &Identity,
    sequence: u64,
    header: &[u8; HEADER],
) -> Result<Tag, LinkError> {
    let u32_at = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    for (what, expected, found) in [
        ("magic", u64::from(MAGIC), u64::from(u32_at(0))),
        ("session", identity.session, u64_at(8)),
        ("generation", identity.generation, u64_at(16)),
        ("channel", u64::from(identity.id.channel), u64::from(u32_at(24))),
        ("connection", u64::from(identity.id.connection), u64::from(u32_at(28))),
        ("sequence", sequence, u64_at(32)),
    ] {
        if expected != found {
            return Err(LinkError::Corrupt { what, expected, found });
        }
    }
    Ok(Tag { operation: u64_at(40), count: u64_at(48), signature: u64_at(56), bytes: u32_at(4) })
}

/// Decodes any bytes as a frame header; what a fuzzer calls.
pub fn fuzz_header(bytes: &[u8]) {
    let id =
        ConnectionId { from: topology::Rank(0), to: topology::Rank(1), channel: 0, connection: 0 };
    let identity = Identity { session: 0, generation: 0, id };
    if let Some(header) = bytes.first_chunk::<HEADER>()
        && let Ok(tag) = decode(&identity, 0, header)
    {
        assert_eq!(encode(&identity, 0, &tag), *header, "a header that decodes is the one encoded");
    }
}
