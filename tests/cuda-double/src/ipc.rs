//! Handles that other processes open: 64 bytes that say where a file without a name is.

use crate::code::Code;
use crate::memory::Shared;

/// `CU_IPC_HANDLE_SIZE`.
pub(crate) const SIZE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Memory,
    Event,
}

/// What a handle says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    pub(crate) what: What,
    pub(crate) process: u32,
    pub(crate) nonce: u64,
    pub(crate) shared: Shared,
    pub(crate) uuid: [u8; 16],
}

const MEMORY: u64 = u64::from_le_bytes(*b"cudamem1");
const EVENT: u64 = u64::from_le_bytes(*b"cudaevt1");

impl Handle {
    pub(crate) fn bytes(&self) -> [u8; SIZE] {
        let magic = if self.what == What::Memory { MEMORY } else { EVENT };
        let mut bytes = [0; SIZE];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&magic.to_le_bytes());
        put(&self.process.to_le_bytes());
        put(&self.shared.descriptor.to_le_bytes());
        put(&self.shared.inode.to_le_bytes());
        put(&self.nonce.to_le_bytes());
        put(&self.uuid);
        put(&self.shared.size.to_le_bytes());
        bytes
    }

    /// # Errors
    /// Where the bytes are no handle of that kind.
    pub(crate) fn parse(bytes: &[u8; SIZE], what: What) -> Result<Self, Code> {
        let part = |from: usize| {
            let mut part = [0; 8];
            part.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(part)
        };
        let magic = if what == What::Memory { MEMORY } else { EVENT };
        if part(0) != magic {
            return Err(Code::INVALID_VALUE);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[32..48]);
        let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0);
        Ok(Self {
            what,
            process: half(part(8)),
            nonce: part(24),
            shared: Shared {
                descriptor: half(part(8) >> 32).cast_signed(),
                inode: part(16),
                size: part(48),
            },
            uuid,
        })
    }
}
