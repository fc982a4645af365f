//! The topology, once or again after every change.

use std::sync::Arc;
use std::time::Duration;

use proto::v1;
use proto::v1::topology_service_server::TopologyService;
use proto::v1::watch_topology_response::Event;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::state::{Closing, Published, State};
use crate::status::CallError;

#[derive(Debug)]
pub(crate) struct TopologyApi {
    pub(crate) state: Arc<State>,
    pub(crate) heartbeat: Duration,
}

type Message = Result<v1::WatchTopologyResponse, Status>;

#[tonic::async_trait]
impl TopologyService for TopologyApi {
    async fn get_topology(
        &self,
        _: Request<v1::GetTopologyRequest>,
    ) -> Result<Response<v1::GetTopologyResponse>, Status> {
        let published = self.state.current().ok_or(CallError::NotReady)?;
        Ok(Response::new(v1::GetTopologyResponse { topology: Some(published.wire.clone()) }))
    }

    type WatchTopologyStream = ReceiverStream<Message>;

    async fn watch_topology(
        &self,
        request: Request<v1::WatchTopologyRequest>,
    ) -> Result<Response<Self::WatchTopologyStream>, Status> {
        // Room for one message: what a slow watcher does not take is not stored for it, it gets the latest later.
        let (sender, receiver) = mpsc::channel(1);
        let watch = Watch {
            published: self.state.subscribe(),
            closing: self.state.closing(),
            heartbeat: self.heartbeat,
            sender,
        };
        tokio::spawn(watch.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// One watcher's stream.
struct Watch {
    published: watch::Receiver<Option<Arc<Published>>>,
    closing: Closing,
    heartbeat: Duration,
    sender: mpsc::Sender<Message>,
}

/// The stream is over: the watcher left or the daemon drains.
struct Over;

impl Watch {
    async fn run(mut self, resume: v1::WatchTopologyRequest) {
        // Ends with `Over`, after which the stream has nothing to say.
        let Over = self.feed(resume).await;
    }

    async fn feed(&mut self, resume: v1::WatchTopologyRequest) -> Over {
        let mut resume = Some(resume);
        loop {
            let current = self.published.borrow_and_update().clone();
            if let Some(current) = &current {
                // Only the first topology can be the one the watcher has.
                let known = resume.take().is_some_and(|resume| has(&resume, current));
                let event = if known {
                    heartbeat(Some(current))
                } else {
                    Event::Topology(current.wire.clone())
                };
                if let Err(over) = self.send(event).await {
                    return over;
                }
            }
            if let Err(over) = self.wait_for_change(current.as_deref()).await {
                return over;
            }
        }
    }

    /// Heartbeats until another topology is published.
    async fn wait_for_change(&mut self, current: Option<&Published>) -> Result<(), Over> {
        loop {
            tokio::select! {
                changed = self.published.changed() => return changed.map_err(|_| Over),
                () = self.sender.closed() => return Err(Over),
                () = self.closing.wait() => {
                    // Where the watcher has not taken its last message it sees the stream end without a status.
                    drop(self.sender.try_send(Err(CallError::ShuttingDown.into())));
                    return Err(Over);
                }
                () = tokio::time::sleep(self.heartbeat) => {
                    self.send(heartbeat(current)).await?;
                }
            }
        }
    }

    async fn send(&mut self, event: Event) -> Result<(), Over> {
        let message = Ok(v1::WatchTopologyResponse { event: Some(event) });
        tokio::select! {
            sent = self.sender.send(message) => sent.map_err(|_| Over),
            () = self.closing.wait() => Err(Over),
        }
    }
}

/// Whether the watcher has `current` already.
fn has(resume: &v1::WatchTopologyRequest, current: &Published) -> bool {
    let fingerprint = current.topology.fingerprint();
    resume.resume_generation == Some(current.generation.0)
        && resume.resume_fingerprint.as_deref().is_none_or(|resumed| resumed == fingerprint)
}

fn heartbeat(current: Option<&Published>) -> Event {
    Event::Heartbeat(v1::Heartbeat {
        generation: current.map_or(0, |current| current.generation.0),
        fingerprint: current
            .map(|current| current.topology.fingerprint().into())
            .unwrap_or_default(),
    })
}
