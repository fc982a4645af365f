//! Takes connections.

use std::io;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, warn};

use crate::peer::Peer;
use crate::state::Closing;

/// Wait after a failed accept. The usual cause is that file descriptors ran out: the failure lasts until some
/// connection ends, and trying again at once would only burn the processor.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepted connections, each logged with its peer, until the daemon drains. Errors of accept are logged and outlived:
/// passed on, they would end the server.
pub(crate) fn connections(
    listener: UnixListener,
    mut closing: Closing,
) -> ReceiverStream<io::Result<UnixStream>> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
                () = sender.closed() => return,
                // The server keeps the stream while it drains; who comes now must see that nobody listens.
                () = closing.wait() => return,
            };
            match Peer::of(&stream) {
                // One line a call at least: for whoever looks for it.
                Ok(peer) => debug!(%peer, "connected"),
                Err(error) => {
                    // Who cannot be named is not served.
                    warn!(%error, "cannot tell the peer of a connection");
                    continue;
                }
            }
            if sender.send(Ok(stream)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}
