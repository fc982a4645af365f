//! What settings must be, and what of them must be equal on every rank.

use transport::schedule::{MIN_SLOTS, Sizing};

use super::Options;
use crate::error::CudaError;
use crate::flagged;
use crate::protocols::{Asked, Usable};

pub(super) fn check(options: &Options) -> Result<(), CudaError> {
    if options.slots < MIN_SLOTS {
        return Err(CudaError::Options("a connection needs at least two slots"));
    }
    if options.slot_bytes > 1 << 30 {
        return Err(CudaError::Options("slots are at most 1 GiB"));
    }
    // So that a message finds its slot, and its elements a place that wide loads can read.
    if !options.slot_bytes.is_multiple_of(256) {
        return Err(CudaError::Options("slots are a multiple of 256 bytes long"));
    }
    if options.streams == 0 {
        return Err(CudaError::Options("a group needs a stream"));
    }
    if !(1..=Options::MOST_PRIORITIES).contains(&options.priorities) {
        return Err(CudaError::Options("a group has 1 to 8 priorities"));
    }
    let flagged = options.flagged_bytes;
    if flagged == 0 || !flagged.is_multiple_of(256) || flagged > 32 << 10 {
        return Err(CudaError::Options(
            "messages with flags carry a multiple of 256 bytes, at most 32 KiB",
        ));
    }
    Sizing::new(1, options.slot_bytes)?;
    Ok(())
}

/// Says which protocols are not used though they were asked for.
pub(super) fn told(usable: &Usable) {
    for protocol in flagged::PROTOCOLS {
        if let Some(why) = usable.why_not(protocol) {
            tracing::info!(%protocol, why, "not used on device memory");
        }
    }
}

pub(super) fn claims(options: &Options, asked: &Asked) -> Vec<(String, String)> {
    let collectives: Vec<_> = options.collectives.iter().map(|c| c.as_str()).collect();
    [
        ("slots", format!("{} of {} bytes", options.slots, options.slot_bytes)),
        ("buckets", format!("of {} bytes", options.bucket_bytes)),
        ("streams", options.streams.to_string()),
        ("priorities", options.priorities.to_string()),
        ("memory budget", format!("{} bytes", options.memory_bytes)),
        ("writing each other's memory", options.peer.to_string()),
        ("collectives", collectives.join(",")),
        ("messages with flags", format!("of {} bytes, {}", options.flagged_bytes, asked.claim())),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into()
}
