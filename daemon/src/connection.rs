//! A connection of a client, whatever it runs over, with who called and what that one may take.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;

use crate::limits::RateLimit;
use crate::peer::Peer;

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(crate) enum Who {
    /// A process of this host.
    Process(Peer),
    /// Someone whose certificate one of our authorities signed.
    Remote(SocketAddr),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(peer) => peer.fmt(f),
            Self::Remote(address) => address.fmt(f),
        }
    }
}

/// What every call of a connection carries with it.
#[derive(Debug)]
pub(crate) struct Caller {
    who: Who,
    rate: RateLimit,
}

impl Caller {
    pub(crate) fn new(who: Who, calls_per_second: u32) -> Self {
        Self { who, rate: RateLimit::new(calls_per_second, Instant::now()) }
    }

    pub(crate) fn who(&self) -> &Who {
        &self.who
    }

    /// Whether it may make another call now.
    pub(crate) fn may_call(&self) -> bool {
        self.rate.pass(Instant::now())
    }
}

/// Longest wait for a client's first bytes. HTTP/2 looks after connections that have begun, by pings; one that says nothing at all would
/// hold its place for ever.
const GREETING: Duration = Duration::from_secs(10);

/// A client begins with so many bytes that are always the same (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// A connection; it counts against the most there may be for as long as it lives.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Either<UnixStream, Box<TlsStream<TcpStream>>>,
    /// Bytes of the preface that are still to come, and when they must be there; `None` once they are.
    greeting: Option<(usize, Pin<Box<Sleep>>)>,
    caller: Arc<Caller>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(crate) fn new(
        stream: Either<UnixStream, Box<TlsStream<TcpStream>>>,
        caller: Caller,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let greeting = Some((PREFACE_BYTES, Box::pin(sleep(GREETING))));
        Self { stream, greeting, caller: Arc::new(caller), _permit: permit }
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<Caller>;

    fn connect_info(&self) -> Arc<Caller> {
        Arc::clone(&self.caller)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some((missing, limit)) = &mut self.greeting else { return read };
        *missing = missing.saturating_sub(buffer.filled().len() - before);
        if *missing == 0 {
            self.greeting = None;
        } else if read.is_pending() && limit.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Semaphore;

    use super::*;

    /// A connection, and the client's end of it.
    fn connection() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let caller = Caller::new(Who::Process(Peer::of(&ours).unwrap()), 1);
        (Connection::new(Either::Left(ours), caller, permit), theirs)
    }

    /// Bytes that a client sends before it falls silent for long, and whether that ends its connection.
    async fn check(sent: usize, ends: bool) {
        let (mut connection, mut client) = connection();
        client.write_all(&vec![b'x'; sent]).await.unwrap();
        let mut bytes = vec![0; sent];
        connection.read_exact(&mut bytes).await.unwrap();
        let silence = tokio::time::timeout(100 * GREETING, connection.read_u8()).await;
        let ended = silence.is_ok_and(|read| {
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
            true
        });
        assert_eq!(ended, ends, "after {sent} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_has_no_place_for_ever() {
        check(0, true).await;
        check(PREFACE_BYTES - 1, true).await;
        check(PREFACE_BYTES, false).await;
        check(PREFACE_BYTES + 100, false).await;
    }
}
