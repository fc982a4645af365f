//! Mutual TLS: who connects shows a certificate that one of our authorities signed, and so do we.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::{Error as PemError, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Where certificates are, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The daemon's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities whose clients are let in.
    pub client_ca: PathBuf,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no PEM.
    #[error("{} is not valid PEM: {reason}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file holds none of what it is for.
    #[error("{} holds no {wanted}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it is for.
        wanted: &'static str,
    },
    /// Certificate and key are not a pair, or one is of a kind that is not supported.
    #[error("certificate {} and key {} cannot be used together", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The authorities are none.
    #[error("{} is no authority for clients", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        source: VerifierBuilderError,
    },
}

impl TlsFiles {
    /// Reads the files anew.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.client_ca)? {
            roots.add(authority).map_err(|error| TlsError::Pem {
                path: self.client_ca.clone(),
                reason: error.to_string(),
            })?;
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|source| TlsError::Authority { path: self.client_ca.clone(), source })?;
        let pair = |source| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&self.certificate)?, key(&self.key)?)
            .map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.into(), source })
}

fn pem(path: &Path, error: &PemError, wanted: &'static str) -> TlsError {
    match error {
        PemError::NoItemsFound => TlsError::Empty { path: path.into(), wanted },
        error => TlsError::Pem { path: path.into(), reason: error.to_string() },
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let wanted = "certificate";
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let list = list.map_err(|error| pem(path, &error, wanted))?;
    if list.is_empty() { Err(TlsError::Empty { path: path.into(), wanted }) } else { Ok(list) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| pem(path, &error, "private key"))
}
