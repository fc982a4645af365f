//! Sockets that device events arrive at.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram as StdUnixDatagram;

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::EventSource;

/// The kernel's multicast group for uevents; group 2 carries udev's own.
const KERNEL_GROUP: u32 = 1;
/// The kernel's limit for one message is 2 KiB of fields and the path.
const LARGEST: usize = 8192;

/// An open socket.
#[derive(Debug)]
pub(super) struct Source {
    /// A netlink socket too: the type only waits for it and owns it, reading is done below.
    socket: UnixDatagram,
    /// Whether only the kernel may be believed.
    kernel: bool,
}

impl Source {
    /// `None` where no events are wanted.
    pub(super) fn open(from: &EventSource) -> io::Result<Option<Self>> {
        let (socket, kernel) = match from {
            EventSource::None => return Ok(None),
            EventSource::Kernel => {
                let socket = rustix::net::socket_with(
                    AddressFamily::NETLINK,
                    SocketType::DGRAM,
                    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                    Some(KOBJECT_UEVENT),
                )?;
                rustix::net::bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
                (socket, true)
            }
            EventSource::Socket(path) => {
                // A socket left by an earlier run is in the way; anything else stays.
                if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
                    fs::remove_file(path)?;
                }
                let socket = StdUnixDatagram::bind(path)?;
                socket.set_nonblocking(true)?;
                (OwnedFd::from(socket), false)
            }
        };
        Ok(Some(Self { socket: UnixDatagram::from_std(socket.into())?, kernel }))
    }

    /// The next message.
    pub(super) async fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let mut buffer = vec![0; LARGEST];
            let read =
                || Ok(rustix::net::recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty())?);
            let (_, length, from) = self.socket.async_io(Interest::READABLE, read).await?;
            // Other processes with privileges can send to the group too.
            let sender = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            if self.kernel && sender.is_none_or(|sender| sender.pid() != 0) {
                continue;
            }
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}
