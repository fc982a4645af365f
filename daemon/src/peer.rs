//! Who is at the other end of a connection.

use std::fmt;

use tokio::net::UnixStream;

/// Credentials the kernel attests (`SO_PEERCRED`), as of when the peer connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    uid: u32,
    gid: u32,
    /// None where the peer lives in a PID namespace this process cannot see.
    pid: Option<i32>,
}

impl Peer {
    /// The peer of `stream`.
    pub(crate) fn of(stream: &UnixStream) -> std::io::Result<Self> {
        let credentials = stream.peer_cred()?;
        Ok(Self { uid: credentials.uid(), gid: credentials.gid(), pid: credentials.pid() })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {} gid {}", self.uid, self.gid)?;
        match self.pid {
            Some(pid) => write!(f, " pid {pid}"),
            None => f.write_str(" pid unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credentials_are_the_kernels() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(peer.pid, Some(pid));
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        assert!(peer.to_string().ends_with(&format!("pid {pid}")));
        let hidden = Peer { pid: None, ..peer };
        assert!(hidden.to_string().ends_with("pid unknown"));
    }
}
