//! Takes connections: of processes of this host over the Unix socket, and where it is on, of others over TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tracing::{debug, warn};

use crate::connection::{Caller, Connection, Who};
use crate::limits::Limits;
use crate::peer::Peer;
use crate::state::Closing;

/// Wait after a failed accept. The usual cause is that file descriptors ran out: the failure lasts until some
/// connection ends, and trying again at once would only burn the processor.
const PAUSE: Duration = Duration::from_millis(100);

/// TLS handshakes at once. They are bounded before they take a place among the connections: who never ends one takes none.
const HANDSHAKES: usize = 64;

/// Longest TLS handshake: one that never ends must hold no place for ever.
const HANDSHAKE: Duration = Duration::from_secs(10);

type Accepted = io::Result<Connection>;

/// Where connections go, and how many there may be.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    sender: mpsc::Sender<Accepted>,
    places: Arc<Semaphore>,
    calls_per_second: u32,
    closing: Closing,
}

impl Door {
    /// A door, and the connections that come through it. They end when the daemon drains and no listener is left.
    pub(crate) fn new(limits: &Limits, closing: Closing) -> (Self, mpsc::Receiver<Accepted>) {
        let (sender, receiver) = mpsc::channel(16);
        let places = Arc::new(Semaphore::new(limits.connections));
        (Self { sender, places, calls_per_second: limits.calls_per_second, closing }, receiver)
    }

    /// A place for one more connection; who finds none is turned away at once rather than left to wait.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            warn!("too many connections: one was turned away");
        }
        place
    }

    /// Lets processes of this host in until the daemon drains.
    pub(crate) fn listen_unix(mut self, listener: UnixListener) {
        tokio::spawn(async move {
            while let Some(stream) = self.next(listener.accept()).await {
                let Some(stream) = stream else { continue };
                if let Some(place) = self.place()
                    && let Some(connection) = self.process(stream, place)
                    && self.sender.send(Ok(connection)).await.is_err()
                {
                    return;
                }
            }
        });
    }

    fn process(&self, stream: UnixStream, place: OwnedSemaphorePermit) -> Option<Connection> {
        match Peer::of(&stream) {
            // One line a call at least: for whoever looks for it.
            Ok(peer) => {
                debug!(%peer, "connected");
                let caller = Caller::new(Who::Process(peer), self.calls_per_second);
                Some(Connection::new(Either::Left(stream), caller, place))
            }
            Err(error) => {
                // Who cannot be named is not served.
                warn!(%error, "cannot tell the peer of a connection");
                None
            }
        }
    }

    /// Lets those in whose certificate is signed as `config` wants it; each handshake by the configuration of its moment.
    pub(crate) fn listen_tls(
        mut self,
        listener: TcpListener,
        config: watch::Receiver<Arc<ServerConfig>>,
    ) {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        tokio::spawn(async move {
            while let Some(stream) = self.next(listener.accept()).await {
                let Some(stream) = stream else { continue };
                // Further ones wait with the kernel, for no longer than a handshake may take.
                let turn = tokio::select! {
                    turn = Arc::clone(&handshakes).acquire_owned() => turn,
                    () = self.closing.wait() => return,
                };
                // Never closed.
                let Ok(turn) = turn else { return };
                let acceptor = TlsAcceptor::from(Arc::clone(&config.borrow()));
                let door = self.clone();
                // Apart from accepting: one that is slow holds up nobody.
                tokio::spawn(async move {
                    let connection = door.remote(stream, acceptor).await;
                    drop(turn);
                    if let Some(connection) = connection {
                        drop(door.sender.send(Ok(connection)).await);
                    }
                });
            }
        });
    }

    async fn remote(&self, stream: TcpStream, acceptor: TlsAcceptor) -> Option<Connection> {
        let address = stream.peer_addr().ok()?;
        drop(stream.set_nodelay(true));
        match timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let place = self.place()?;
                debug!(peer = %address, "connected over TLS");
                let caller = Caller::new(Who::Remote(address), self.calls_per_second);
                Some(Connection::new(Either::Right(Box::new(stream)), caller, place))
            }
            Ok(Err(error)) => {
                warn!(peer = %address, %error, "a TLS handshake failed");
                None
            }
            Err(_) => {
                warn!(peer = %address, "a TLS handshake took too long");
                None
            }
        }
    }

    /// What comes of accepting: `None` once the daemon drains or nobody takes connections. Errors are logged and outlived.
    async fn next<S, A>(
        &mut self,
        accept: impl Future<Output = io::Result<(S, A)>>,
    ) -> Option<Option<S>> {
        tokio::select! {
            accepted = accept => match accepted {
                Ok((stream, _)) => Some(Some(stream)),
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    Some(None)
                }
            },
            () = self.sender.closed() => None,
            // The server keeps the stream while it drains; who comes now must see that nobody listens.
            () = self.closing.wait() => None,
        }
    }
}
