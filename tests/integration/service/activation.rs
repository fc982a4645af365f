//! Sockets that the service manager opened.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use proto::v1;
use rustix::process::Signal;

use crate::daemon::binary::{Topod, command};
use crate::daemon::harness::{Place, machine, record};

/// The command with these sockets as its descriptors 3 and 4, by a shell that moves them there and names the process as the manager does.
/// Not dash, which knows descriptors of one digit alone.
fn handed(daemon: &Command, names: &str, sockets: &[OwnedFd]) -> Command {
    let moves: Vec<String> = (3..)
        .zip(sockets)
        .map(|(place, socket)| format!("{place}<&{}", socket.as_raw_fd()))
        .collect();
    let script = format!(
        "export LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={names}; exec \"$@\" {}",
        sockets.len(),
        moves.join(" ")
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &script, "sh"]).arg(daemon.get_program()).args(daemon.get_args());
    for (name, value) in daemon.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    shell.stderr(Stdio::piped());
    shell
}

/// A socket that a child may have, at a number that no move overwrites.
fn inheritable(socket: impl Into<OwnedFd>) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(socket.into(), 60)
        .and_then(|socket| {
            rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty())?;
            Ok(socket)
        })
        .unwrap()
}

#[tokio::test]
async fn sockets_are_taken_over_by_name() {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let grpc = UnixListener::bind(place.socket()).unwrap();
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = metrics.local_addr().unwrap();
    let sockets = [inheritable(metrics), inheritable(grpc)];
    let topod = Topod::spawn(&mut handed(&command(&place), "metrics:grpc", &sockets));
    drop(sockets);
    place.notification("READY=1").await;
    let mut client = v1::status_service_client::StatusServiceClient::new(place.channel().await);
    let status = client.get_status(v1::GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.published.unwrap().gpus, 4);
    let page = get(TcpStream::connect(address).unwrap(), "/metrics");
    assert!(page.contains(" 200 OK\r\n") && page.contains("\ntopod_generation 1\n"), "{page}");
    topod.signal(Signal::TERM);
    assert!(topod.wait().status.success());
    // It is the manager's, for the next start.
    assert!(place.socket().exists());
}

#[tokio::test]
async fn what_means_nothing_is_refused() {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let sockets = ["a", "b"].map(|name| inheritable(UnixListener::bind(place.path(name)).unwrap()));
    let output = handed(&command(&place), "grpc:mystery", &sockets).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("socket 'mystery' cannot be used"), "{error}");
}

/// The answer to one request, in one piece, on a connection that ends with it: HTTP/1.0.
pub(super) fn get(mut stream: impl std::io::Read + std::io::Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
