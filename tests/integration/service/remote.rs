//! Other hosts: only with a certificate, and with the certificates of the moment.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use daemon::tls::TlsFiles;
use daemon::{Config, Signal, TcpConfig};
use proto::v1;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::daemon::harness::{Daemon, Place, machine, record};

/// An authority, and those it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key for a name.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn files(place: &Place) -> TlsFiles {
    TlsFiles {
        certificate: place.path("certificate.pem"),
        key: place.path("key.pem"),
        client_ca: place.path("authority.pem"),
    }
}

fn install(files: &TlsFiles, authority: &Authority) {
    let (certificate, key) = authority.sign("topod.test");
    write(&files.certificate, &certificate);
    write(&files.key, &key);
    write(&files.client_ca, &authority.pem());
}

fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

async fn start(authority: &Authority) -> (Daemon, TlsFiles, SocketAddr) {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let files = files(&place);
    install(&files, authority);
    // A port that was free a moment ago.
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tcp = Some(TcpConfig { listen, files: files.clone() });
    let config = Config { tcp, ..place.config() };
    (Daemon::start_with(place, config).await, files, listen)
}

/// Connects as one whom `authority` signed, or as nobody.
async fn ask(
    address: SocketAddr,
    trusts: &Authority,
    client: Option<&Authority>,
) -> Result<v1::GetStatusResponse, String> {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(trusts.pem()))
        .domain_name("topod.test");
    if let Some(authority) = client {
        let (certificate, key) = authority.sign("client.test");
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let connect = async || -> Result<Channel, tonic::transport::Error> {
        endpoint.tls_config(tls)?.connect().await
    };
    let channel = connect().await.map_err(|error| daemon::chain(&error))?;
    let mut client = v1::status_service_client::StatusServiceClient::new(channel);
    let status = client.get_status(v1::GetStatusRequest {}).await;
    status.map(tonic::Response::into_inner).map_err(|status| status.to_string())
}

#[tokio::test]
async fn only_who_is_signed_is_served() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (daemon, _, address) = start(&ours).await;
    let status = ask(address, &ours, Some(&ours)).await.unwrap();
    assert_eq!(status.published.unwrap().gpus, 4);
    ask(address, &ours, None).await.expect_err("without a certificate nobody is let in");
    ask(address, &ours, Some(&theirs)).await.expect_err("nor with another authority's");
    ask(address, &theirs, Some(&ours)).await.expect_err("and the daemon shows one, too");
    // Without TLS there is nothing to talk to.
    let plain = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = plain.connect().await.unwrap();
    let mut client = v1::status_service_client::StatusServiceClient::new(channel);
    client.get_status(v1::GetStatusRequest {}).await.unwrap_err();
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
}

#[tokio::test]
async fn certificates_are_exchanged_in_flight() {
    let (old, new) = (Authority::new(), Authority::new());
    let (daemon, files, address) = start(&old).await;
    ask(address, &old, Some(&old)).await.unwrap();

    install(&files, &new);
    daemon.signals.send(Signal::Reload).await.unwrap();
    daemon.place.notification("RELOADING=1").await;
    daemon.place.notification("READY=1").await;
    ask(address, &new, Some(&new)).await.unwrap();
    ask(address, &new, Some(&old)).await.expect_err("the old authority has no say any more");

    // Half of a pair: those before stay, and it is told.
    write(&files.key, &old.sign("topod.test").1);
    daemon.signals.send(Signal::Reload).await.unwrap();
    daemon.place.notification("RELOADING=1").await;
    daemon.place.notification("READY=1").await;
    let status = ask(address, &new, Some(&new)).await.unwrap();
    assert!(status.warnings[0].contains("cannot be used together"), "{:?}", status.warnings);

    install(&files, &new);
    daemon.signals.send(Signal::Reload).await.unwrap();
    daemon.place.notification("RELOADING=1").await;
    daemon.place.notification("READY=1").await;
    let status = ask(address, &new, Some(&new)).await.unwrap();
    assert!(status.warnings.is_empty(), "{:?}", status.warnings);
}
