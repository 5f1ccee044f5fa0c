//! The agent's HTTPS port, by blocking sockets: a client that the agent trusts, and any other.
//!
//! A CA of our own signs the one client; the server's certificate is self-signed.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pintle_api::AnyServer;
use pintle_testbed::TestNode;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName,
};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};
use xtask::node::http::{self, NodeHttpReply, NodeHttpRequest};

/// The port.
const PORT: u16 = 10250;
/// How long a connection or an answer may take; limits of tests are shorter.
const WAIT: Duration = Duration::from_secs(20);
/// Connection preface and empty settings of an h2 client.
pub(crate) const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A connection with TLS.
pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Certificate of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Signed by the authority that the agent trusts.
    Known,
    /// None.
    Nobody,
    /// None, and the client asks for h2.
    NobodyWithH2,
}

/// An authority and its client's certificate.
pub(crate) struct ClientKeys {
    dir: TempDir,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl ClientKeys {
    /// New ones; the authority's certificate lies in a file.
    pub(crate) fn make() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).expect("signed");
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("ca.crt"), authority.pem()).expect("written");
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "known");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).expect("signed");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Self { dir, certificate: certificate.der().clone(), key }
    }

    /// The authority's certificate.
    pub(crate) fn authority_file(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }
}

/// The port of a node, seen from inside its network.
pub(crate) struct NodePort {
    known: Arc<ClientConfig>,
    nobody: Arc<ClientConfig>,
    nobody_h2: Arc<ClientConfig>,
    _keys: ClientKeys,
}

impl NodePort {
    /// For a node with an agent that trusts the CA of the keys.
    pub(crate) fn of(_: &TestNode, keys: ClientKeys) -> Self {
        let provider = Arc::new(ring::default_provider());
        let builder = || {
            let builder = ClientConfig::builder_with_provider(provider.clone());
            let builder = builder.with_safe_default_protocol_versions().expect("versions");
            let trusting = Arc::new(AnyServer::new(&provider));
            builder.dangerous().with_custom_certificate_verifier(trusting)
        };
        let (chain, key) = (vec![keys.certificate.clone()], keys.key.clone_key());
        let known = builder().with_client_auth_cert(chain, key).expect("a client's key");
        let nobody = builder().with_no_client_auth();
        let mut nobody_h2 = builder().with_no_client_auth();
        nobody_h2.alpn_protocols = vec![b"h2".to_vec()];
        let (known, nobody) = (Arc::new(known), Arc::new(nobody));
        Self { known, nobody, nobody_h2: Arc::new(nobody_h2), _keys: keys }
    }

    /// A connection after its handshake.
    pub(crate) fn connect(&self, node: &TestNode, who: Who) -> Result<Stream> {
        self.on(self.socket(node)?, who)
    }

    /// A new connection to the port, before any data.
    pub(crate) fn socket(&self, node: &TestNode) -> Result<TcpStream> {
        let socket = node.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))?;
        socket.set_read_timeout(Some(WAIT))?;
        socket.set_write_timeout(Some(WAIT))?;
        Ok(socket)
    }

    /// TLS on a connection.
    pub(crate) fn on(&self, mut socket: TcpStream, who: Who) -> Result<Stream> {
        let config = match who {
            Who::Known => &self.known,
            Who::Nobody => &self.nobody,
            Who::NobodyWithH2 => &self.nobody_h2,
        };
        let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST));
        let mut tls = ClientConnection::new(config.clone(), name)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).context("shake hands")?;
        }
        Ok(StreamOwned::new(tls, socket))
    }

    /// GET by the known client, on a connection of its own.
    pub(crate) fn get(&self, node: &TestNode, path: &str) -> Result<NodeHttpReply> {
        self.ask(node, Who::Known, "GET", path)
    }

    /// Any request.
    pub(crate) fn ask(
        &self,
        node: &TestNode,
        who: Who,
        method: &str,
        path: &str,
    ) -> Result<NodeHttpReply> {
        let request = NodeHttpRequest { method, path, content_type: "", body: "" };
        http::send(self.connect(node, who)?, request)
    }

    /// Runs `echo WORD` in a container; `path` is that of the exec.
    pub(crate) fn exec(&self, node: &TestNode, path: &str, word: &str) -> Result<()> {
        let query = format!("{path}?command=echo&command={word}&output=1");
        let mut stream = self.upgraded(node, &query)?;
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        // Frames of a server carry their payload unmasked: one of them contains the word.
        while !contains(&seen, word.as_bytes()) {
            let read = stream.read(&mut buffer).context("read the command's output")?;
            ensure!(read > 0, "it ended without the word: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..read]);
        }
        Ok(())
    }

    /// A connection of the known client after an upgrade to WebSocket.
    pub(crate) fn upgraded(&self, node: &TestNode, path: &str) -> Result<Stream> {
        let mut stream = self.connect(node, Who::Known)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\
             Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
        )?;
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            let read = stream.read(&mut byte).context("read the head")?;
            if read == 0 {
                bail!("no head: {}", String::from_utf8_lossy(&head));
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        ensure!(head.starts_with("HTTP/1.1 101 "), "{path}: {head}");
        Ok(stream)
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}
