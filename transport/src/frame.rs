//! Messages of set-up and control: a length of four bytes (little endian), then JSON. Never used for data.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde::{Serialize, de::DeserializeOwned};

/// Longest message taken from anybody; the table of ten thousand ranks fits.
const LONGEST: usize = 8 << 20;

/// `message` as it goes over the wire.
pub(crate) fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    let json = serde_json::to_vec(message).expect("messages are structs of strings and numbers");
    let length = u32::try_from(json.len()).expect("tables of ranks are far below 4 GiB");
    let mut out = length.to_le_bytes().to_vec();
    out.extend_from_slice(&json);
    out
}

/// Takes the first message off `inbound`; `None` while it is not whole.
pub(crate) fn decode<M: DeserializeOwned>(inbound: &mut Vec<u8>) -> io::Result<Option<M>> {
    let Some(head) = inbound.first_chunk::<4>() else { return Ok(None) };
    let length = length(*head)?;
    let Some(json) = inbound.get(4..4 + length) else { return Ok(None) };
    let message = serde_json::from_slice(json).map_err(io::Error::from)?;
    inbound.drain(..4 + length);
    Ok(Some(message))
}

/// Reads what there is from a non-blocking stream; `false` once the other end has closed.
pub(crate) fn fill(mut stream: impl Read, inbound: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(bytes) => inbound.extend_from_slice(&buffer[..bytes]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Sends one message on a blocking stream.
pub(crate) fn send<M: Serialize>(mut stream: impl Write, message: &M) -> io::Result<()> {
    stream.write_all(&encode(message))
}

/// Receives one message on a blocking stream, reading nothing beyond it.
pub(crate) fn receive<M: DeserializeOwned>(mut stream: impl Read) -> io::Result<M> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let mut json = vec![0; length(head)?];
    stream.read_exact(&mut json)?;
    serde_json::from_slice(&json).map_err(io::Error::from)
}

fn length(head: [u8; 4]) -> io::Result<usize> {
    let length = usize::try_from(u32::from_le_bytes(head)).unwrap_or(usize::MAX);
    if length > LONGEST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes; at most {LONGEST} are taken"),
        ));
    }
    Ok(length)
}

/// Time until `deadline`; `None` once it has passed.
pub(crate) fn remaining(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|d| !d.is_zero())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_round_trip_in_any_pieces(texts in proptest::collection::vec(".{0,40}", 0..5), cut in 1_usize..9) {
            let wire: Vec<u8> = texts.iter().flat_map(encode).collect();
            let (mut inbound, mut seen) = (Vec::new(), Vec::new());
            for piece in wire.chunks(cut) {
                inbound.extend_from_slice(piece);
                while let Some(text) = decode::<String>(&mut inbound).unwrap() {
                    seen.push(text);
                }
            }
            prop_assert_eq!(&seen, &texts);
            let mut stream = &wire[..];
            for text in texts {
                prop_assert_eq!(receive::<String>(&mut stream).unwrap(), text);
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            let _ = decode::<Vec<String>>(&mut bytes.clone());
            let _ = receive::<Vec<String>>(&bytes[..]);
        }
    }
}
