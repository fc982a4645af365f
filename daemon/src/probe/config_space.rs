//! PCI configuration space, as far as topology needs it: access control.
//!
//! Layout as in the PCI Express base specification: 64 bytes of header, capabilities in a list up to byte 255, extended
//! capabilities in another from byte 256 on. The kernel shows the header to everyone, the rest to the privileged.

use topology::snapshot::Acs;

const CAPABILITY_POINTER: usize = 0x34;
const EXPRESS: u8 = 0x10;
const EXTENDED: usize = 0x100;
const ACCESS_CONTROL: u32 = 0x000d;

/// Each list has at most as many entries as fit: 48 of 4 bytes, 960 of 4 bytes.
const MOST_CAPABILITIES: usize = 48;
const MOST_EXTENDED: usize = 960;

/// Access control from the bytes of a function's `config` file; none of it where the function has no such
/// capability. `None` where the bytes that would tell were not readable.
pub(super) fn access_control(config: &[u8]) -> Option<Acs> {
    match config.len() {
        0..256 => None,
        // The extended space is hidden, or this is conventional PCI and there is none.
        256..=EXTENDED => (!is_express(config)).then(Acs::default),
        _ => Some(extended(config, ACCESS_CONTROL).map_or_else(Acs::default, |at| Acs {
            supported: word(config, at + 4).unwrap_or(0),
            enabled: word(config, at + 6).unwrap_or(0),
        })),
    }
}

fn is_express(config: &[u8]) -> bool {
    let mut at = config.get(CAPABILITY_POINTER).copied().unwrap_or(0);
    for _ in 0..MOST_CAPABILITIES {
        let place = usize::from(at & 0xfc);
        if place < 64 {
            return false;
        }
        if config.get(place) == Some(&EXPRESS) {
            return true;
        }
        at = config.get(place + 1).copied().unwrap_or(0);
    }
    false
}

/// Where an extended capability begins.
fn extended(config: &[u8], id: u32) -> Option<usize> {
    let mut at = EXTENDED;
    for _ in 0..MOST_EXTENDED {
        let header = u32::from(word(config, at + 2)?) << 16 | u32::from(word(config, at)?);
        // A function that is gone reads as all ones.
        if header == 0 || header == u32::MAX {
            return None;
        }
        if header & 0xffff == id {
            return Some(at);
        }
        at = usize::try_from(header >> 20).ok()? & !3;
        if at < EXTENDED {
            return None;
        }
    }
    None
}

fn word(config: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(config: &mut [u8], at: usize, bytes: &[u8]) {
        config[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn express(length: usize) -> Vec<u8> {
        let mut config = vec![0; length];
        config[CAPABILITY_POINTER] = 0x50;
        put(&mut config, 0x50, &[0x01, 0x60]);
        put(&mut config, 0x60, &[EXPRESS, 0x00]);
        config
    }

    #[test]
    fn access_control_behind_other_capabilities() {
        let mut config = express(4096);
        // Advanced error reporting at 0x100, then access control at 0x2a0.
        put(&mut config, 0x100, &0x2a01_0001_u32.to_le_bytes());
        put(&mut config, 0x2a0, &0x0001_000d_u32.to_le_bytes());
        put(&mut config, 0x2a4, &[0x5f, 0x00, 0x1d, 0x00]);
        assert_eq!(access_control(&config), Some(Acs { supported: 0x5f, enabled: 0x1d }));
    }

    #[test]
    fn unreadable_is_unknown_and_absent_is_none() {
        assert_eq!(access_control(&[]), None);
        assert_eq!(access_control(&express(4096)[..64]), None);
        // Express, and the part that would tell is hidden.
        assert_eq!(access_control(&express(4096)[..256]), None);
        assert_eq!(access_control(&[0; 256]), Some(Acs::default()));
        assert_eq!(access_control(&express(4096)), Some(Acs::default()));
        assert_eq!(access_control(&[0xff; 4096]), Some(Acs::default()));
    }

    #[test]
    fn bytes_without_sense_end() {
        let mut config = express(4096);
        // A capability that points at itself, and one that points at nothing.
        put(&mut config, 0x100, &0x1001_0001_u32.to_le_bytes());
        assert_eq!(access_control(&config), Some(Acs::default()));
        put(&mut config, 0x100, &0xffc1_0001_u32.to_le_bytes());
        assert_eq!(access_control(&config), Some(Acs::default()));
        let mut list = vec![0x40; 256];
        list[0x34] = 0x40;
        assert_eq!(access_control(&list), Some(Acs::default()));
    }
}
