//! The page of metrics over HTTP: for a scraper every few seconds, so plain and apart from gRPC.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::metrics::page;
use crate::state::State;

/// Connections at once. Scrapers are few.
const MOST_CONNECTIONS: usize = 16;
/// A request, or the next one, must come within this.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// See `accept`.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the page is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address of this host only: the page has no access control.
    Loopback(SocketAddr),
}

/// An open listener for it.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Serves until the task is aborted.
pub(crate) fn start(listener: Listener, state: Arc<State>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            // Never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let accepted: io::Result<()> = match &listener {
                Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                    serve(stream, Arc::clone(&state), place);
                }),
                Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    serve(stream, Arc::clone(&state), place);
                }),
            };
            if let Err(error) = accepted {
                warn!(%error, "cannot accept a connection for metrics");
                tokio::time::sleep(PAUSE).await;
            }
        }
    })
}

fn serve<S>(stream: S, state: Arc<State>, place: tokio::sync::OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        let answer = service_fn(|request| {
            let response = respond(&request, &state);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_LIMIT)
            .serve_connection(TokioIo::new(stream), answer);
        // Whoever broke it knows.
        drop(connection.await);
        drop(place);
    });
}

fn respond(request: &Request<Incoming>, state: &State) -> Response<Full<Bytes>> {
    let text = |status: StatusCode, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n".into());
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".into());
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match page(state) {
        Ok(page) => {
            let mut response = text(StatusCode::OK, page);
            let kind = hyper::header::HeaderValue::from_static(prometheus::TEXT_FORMAT);
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}
