//! TLS that accepts any certificate, and detects a peer that answers in plain HTTP.
//!
//! The certificate of a pod is self-signed as a rule, and the kubelet does not verify it either. A
//! peer without TLS is distinguished from a broken one by the first bytes of its answer, as in Go's
//! client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;

/// How an answer in plain HTTP begins.
// Go: crypto/tls RecordHeaderError, net/http persistConn.addTLS
const PLAIN: [u8; 5] = *b"HTTP/";

/// Why there is no TLS session.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: io::Error,
    /// The peer answered in plain HTTP.
    pub(super) plain: bool,
}

/// Opens a session; with `http2` the peer may choose that.
pub(super) async fn open(
    name: rustls::pki_types::ServerName<'static>,
    socket: TcpStream,
    http2: bool,
) -> Result<TlsStream<Opening>, Refused> {
    let connector = tokio_rustls::TlsConnector::from(insecure_tls(http2));
    let opening = Opening { socket, first: [0; PLAIN.len()], heard: 0 };
    let opened = connector.connect(name, opening).into_fallible().await;
    opened.map_err(|(error, opening)| Refused { error, plain: opening.first == PLAIN })
}

/// True where the server has chosen HTTP/2.
pub(super) fn is_http2(stream: &TlsStream<Opening>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// A socket that remembers its first bytes.
#[derive(Debug)]
pub(super) struct Opening {
    socket: TcpStream,
    first: [u8; PLAIN.len()],
    heard: usize,
}

impl AsyncRead for Opening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        for byte in &buffer.filled()[before..] {
            let at = self.heard;
            let Some(slot) = self.first.get_mut(at) else { break };
            *slot = *byte;
            self.heard += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Opening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

fn insecure_tls(http2: bool) -> Arc<rustls::ClientConfig> {
    static CONFIGS: std::sync::OnceLock<[Arc<rustls::ClientConfig>; 2]> =
        std::sync::OnceLock::new();
    let make = |protocols: &[&[u8]]| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut schemes = provider.signature_verification_algorithms.supported_schemes();
        // ring cannot verify it, and nothing is verified.
        schemes.push(rustls::SignatureScheme::ECDSA_NISTP521_SHA512);
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports the default TLS versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(schemes)))
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    };
    let configs = CONFIGS.get_or_init(|| [make(&[]), make(&[b"h2", b"http/1.1"])]);
    Arc::clone(&configs[usize::from(http2)])
}

#[derive(Debug)]
struct AnyCertificate(Vec<rustls::SignatureScheme>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls::pki_types::CertificateDer<'_>,
        _intermediates: &[rustls::pki_types::CertificateDer<'_>],
        _server_name: &rustls::pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.clone()
    }
}
