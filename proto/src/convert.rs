//! Every conversion between the wire and the vocabulary.
//!
//! To the wire: `From<&Domain>`, which cannot fail. From the wire: `TryFrom<v1::Message>`, which checks everything the
//! domain promises and names the field it refuses.

mod enums;
mod facts;
mod plan;
mod report;
mod request;
mod snapshot;
mod topology;

/// Decodes `bytes` as each message a peer may send and converts what decodes: a body for fuzzers.
/// Whatever the bytes are, the outcome is a value or an error.
pub fn fuzz_messages(bytes: &[u8]) {
    fn attempt<W: Message + Default, D: TryFrom<W, Error = WireError>>(bytes: &[u8]) {
        if let Ok(message) = W::decode(bytes) {
            drop(D::try_from(message));
        }
    }
    attempt::<v1::WatchTopologyResponse, WatchEvent>(bytes);
    attempt::<v1::Topology, Published>(bytes);
    attempt::<v1::Snapshot, Snapshot>(bytes);
    attempt::<v1::GetPlanRequest, PlanQuery>(bytes);
    attempt::<v1::ReportOperationsRequest, Vec<OperationReport>>(bytes);
    if let (Ok(changes), Ok(mut topology)) =
        (v1::TopologyChanges::decode(bytes), v1::Topology::decode(bytes))
    {
        drop(changes.apply_to(&mut topology));
    }
    attempt::<v1::Plan, Plan>(bytes);
}

#[cfg(test)]
mod round_trip;
#[cfg(test)]
pub(crate) mod strategies;

use ::topology::{
    BusId, CpuList, Fraction, InvalidBusId, InvalidCpuList, InvalidFraction, Plan, Snapshot,
};
use prost::Message;

use crate::{OperationReport, PlanQuery, Published, WatchEvent, v1};

/// Why a message from the wire was refused. Fields are named as in the .proto files, `Message.field`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field without which the message means nothing is absent or unspecified.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// An enum's number that this version does not know.
    #[error("{field}: {value} is no value that this version knows")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// As sent.
        value: i32,
    },
    /// A number beyond the width the field has.
    #[error("{field}: {value} exceeds {most}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// As sent.
        value: u32,
        /// The greatest there is.
        most: u32,
    },
    /// Text that is no PCI address.
    #[error("{field}")]
    BusId {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        source: InvalidBusId,
    },
    /// Text that is no CPU list.
    #[error("{field}")]
    CpuList {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        source: InvalidCpuList,
    },
    /// Text that is no fraction.
    #[error("{field}")]
    Fraction {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        source: InvalidFraction,
    },
    /// Facts of a schema that this version cannot read in full.
    #[error(
        "Snapshot.schema_version: {found} is newer than {known}, the newest that this version knows"
    )]
    SchemaVersion {
        /// As sent.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// A matrix without one row per device and one cell per device in each.
    #[error("Matrix.rows: {devices} devices need as many rows of as many cells")]
    NotSquare {
        /// Devices in the header.
        devices: usize,
    },
    /// Text or a list longer than the daemon takes.
    #[error("{field}: longer than {most}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The longest there is: bytes of a text, elements of a list.
        most: usize,
    },
    /// Something listed twice that must be listed once.
    #[error("{field}: {value} is listed twice")]
    Duplicate {
        /// The field.
        field: &'static str,
        /// What is repeated.
        value: String,
    },
}

/// A message inside a message that must be there.
fn present<T>(field: &'static str, message: Option<T>) -> Result<T, WireError> {
    message.ok_or(WireError::Missing { field })
}

fn bus_id(field: &'static str, text: &str) -> Result<BusId, WireError> {
    text.parse().map_err(|source| WireError::BusId { field, source })
}

fn some_bus_id(field: &'static str, text: Option<&str>) -> Result<Option<BusId>, WireError> {
    text.map(|text| bus_id(field, text)).transpose()
}

fn some_cpus(field: &'static str, text: Option<&str>) -> Result<Option<CpuList>, WireError> {
    text.map(|text| text.parse().map_err(|source| WireError::CpuList { field, source })).transpose()
}

fn fraction(field: &'static str, text: &str) -> Result<Fraction, WireError> {
    text.parse().map_err(|source| WireError::Fraction { field, source })
}

fn narrow_u16(field: &'static str, value: u32) -> Result<u16, WireError> {
    u16::try_from(value).map_err(|_| WireError::OutOfRange { field, value, most: u16::MAX.into() })
}

fn narrow_u8(field: &'static str, value: u32) -> Result<u8, WireError> {
    u8::try_from(value).map_err(|_| WireError::OutOfRange { field, value, most: u8::MAX.into() })
}

/// Converts each element, stopping at the first that is refused.
fn each<W, D>(list: Vec<W>) -> Result<Vec<D>, WireError>
where
    D: TryFrom<W, Error = WireError>,
{
    list.into_iter().map(D::try_from).collect()
}

/// Converts each element to the wire.
fn to_each<'a, D, W>(list: &'a [D]) -> Vec<W>
where
    W: From<&'a D>,
{
    list.iter().map(W::from).collect()
}
