//! What ranks must agree on in an operation, in one word, so that those that call different ones are told apart.

use std::fmt;

use topology::{Collective, Rank};
use transport::{ElementType, ReduceOp};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) root: Option<Rank>,
    /// The receiver, of send-receive.
    pub(crate) receiver: Option<Rank>,
    pub(crate) element: ElementType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) count: usize,
}

const NO_ROOT: u64 = 0xffff;

impl Call {
    /// Places in lists, the root's 16 bits and the count's lowest 36.
    pub(crate) fn signature(&self) -> u64 {
        let op = self.op.map_or(0, |op| 1 + op as u64);
        let root = self.root.map_or(NO_ROOT, |root| u64::from(root.0) & NO_ROOT);
        let count = self.count as u64;
        self.collective as u64 | (self.element as u64) << 4 | op << 8 | root << 12 | count << 28
    }

    pub(crate) const fn of(signature: u64) -> Said {
        Said(signature)
    }
}

/// A signature, to be read.
pub(crate) struct Said(u64);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |shift: u32, bits: u32| (self.0 >> shift) & ((1 << bits) - 1);
        let place = |shift| usize::try_from(part(shift, 4)).unwrap_or(usize::MAX);
        match (Collective::ALL.get(place(0)), ElementType::ALL.get(place(4))) {
            (Some(collective), Some(element)) => {
                write!(f, "{collective} of {} elements ({element}", part(28, 36))?;
            }
            _ => return write!(f, "operation {:#x}", self.0),
        }
        if let Some(op) = place(8).checked_sub(1).and_then(|op| ReduceOp::ALL.get(op)) {
            write!(f, ", {op}")?;
        }
        write!(f, ")")?;
        if part(12, 16) != NO_ROOT {
            write!(f, " with root {}", part(12, 16))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_read_as_it_was_made() {
        let call = Call {
            collective: Collective::Reduce,
            root: Some(Rank(3)),
            receiver: None,
            element: ElementType::Bf16,
            op: Some(ReduceOp::Max),
            count: 1000,
        };
        let words = Call::of(call.signature()).to_string();
        assert_eq!(words, "reduce of 1000 elements (bf16, max) with root 3");
        let other = Call { root: None, op: None, collective: Collective::Barrier, ..call };
        assert_eq!(Call::of(other.signature()).to_string(), "barrier of 1000 elements (bf16)");
        assert_ne!(call.signature(), Call { count: 1001, ..call }.signature());
        for (at, collective) in Collective::ALL.iter().enumerate() {
            let call = Call { collective: *collective, ..call };
            assert_eq!(call.signature() & 0xf, at as u64, "places in the list are the numbers");
        }
    }
}
