//! TLS of the proxy: it serves the agent as the API server, and calls the API server as the node.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use xtask::cluster::Cluster;
use xtask::cluster::layout::CONTROL;

use super::Protocol;
use crate::cluster::NODE;

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The way to the API server, in the node's name.
pub(super) struct Upstream(TlsConnector);

impl Upstream {
    pub(super) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
        let name = ServerName::IpAddress(std::net::IpAddr::V4(CONTROL).into());
        Ok(self.0.connect(name, stream).await?)
    }
}

/// The API server's certificate.
pub(super) fn acceptor(cluster: &Cluster, protocol: Protocol) -> Result<TlsAcceptor> {
    let (chain, key) = pair(cluster, "apiserver")?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = match protocol {
        Protocol::Http2 => vec![b"h2".to_vec()],
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
    };
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The node's certificate.
pub(super) fn connector(cluster: &Cluster) -> Result<Upstream> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(cluster.layout().pki("ca.crt"))? {
        roots.add(authority?)?;
    }
    let (chain, key) = pair(cluster, NODE)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Upstream(TlsConnector::from(Arc::new(config))))
}

fn pair(cluster: &Cluster, name: &str) -> Result<Pair> {
    let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
    let chain = CertificateDer::pem_file_iter(cluster.layout().pki(&cert))
        .and_then(Iterator::collect)
        .with_context(|| format!("read {cert}"))?;
    let key = PrivateKeyDer::from_pem_file(cluster.layout().pki(&key))
        .with_context(|| format!("read {key}"))?;
    Ok((chain, key))
}
