//! A connection of a client, whatever it runs over, with who called and what that one may take.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
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

/// A connection; it counts against the most there may be for as long as it lives.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Either<UnixStream, Box<TlsStream<TcpStream>>>,
    caller: Arc<Caller>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(crate) fn new(
        stream: Either<UnixStream, Box<TlsStream<TcpStream>>>,
        caller: Caller,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { stream, caller: Arc::new(caller), _permit: permit }
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
