//! Proxy mode: upstream's mock suites answer the calls themselves, outside of the cluster.
//!
//! Input: connections of clients to the driver's socket, connections of the suite to a TCP port,
//! which it opens in advance. Output: each client is joined with one connection of the suite.
//! Connections that the suite has closed meanwhile are skipped. Flags are the host-path driver's.
// k8s: test/e2e/storage/drivers/proxy/portproxy.go Listen

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UnixListener};

use crate::go_flags::GoFlags;

/// How long to look for the end of a connection that has not been used.
const CLOSED_WITHIN: Duration = Duration::from_millis(1);

/// Where the proxy listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// Socket for clients of the driver.
    pub endpoint: PathBuf,
    /// `HOST:PORT` for the suite.
    pub suite: String,
}

impl ProxySettings {
    /// The addresses; `None` without `-proxy-endpoint`. Other flags mean nothing to a proxy.
    pub fn of_flags(flags: &GoFlags) -> Option<Self> {
        let endpoint = flags.value("endpoint")?.trim_start_matches("unix://");
        let address = flags.value("proxy-endpoint")?.trim_start_matches("tcp://");
        let any = if address.starts_with(':') { "0.0.0.0" } else { "" };
        Some(Self { endpoint: PathBuf::from(endpoint), suite: format!("{any}{address}") })
    }
}

/// Serves until the process ends, or the future is dropped.
///
/// # Errors
/// One of the addresses cannot be listened at.
pub async fn serve(settings: &ProxySettings) -> Result<()> {
    let suite = TcpListener::bind(&settings.suite).await;
    let suite = suite.with_context(|| format!("cannot listen at {}", settings.suite))?;
    join(&bind(&settings.endpoint)?, &suite).await
}

fn bind(path: &Path) -> Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let _ = std::fs::remove_file(path); // of an earlier process
    UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))
}

/// Joins connections in their order.
async fn join(clients: &UnixListener, suite: &TcpListener) -> Result<()> {
    loop {
        let (mut client, _) = clients.accept().await?;
        let mut server = next_open(suite).await?;
        tokio::spawn(async move {
            // The end of either side is the end of both.
            let _ = copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

async fn next_open(suite: &TcpListener) -> Result<TcpStream> {
    loop {
        let (server, _) = suite.accept().await?;
        let peeked = tokio::time::timeout(CLOSED_WITHIN, server.peek(&mut [0])).await;
        if !matches!(peeked, Ok(Ok(0) | Err(_))) {
            return Ok(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn flags_of_the_host_path_driver_name_both_addresses() {
        let flags =
            ["-v=5", "-nodeid=n1", "-endpoint=/csi/csi.sock", "-proxy-endpoint=tcp://:9000"];
        let expected = ProxySettings {
            endpoint: PathBuf::from("/csi/csi.sock"),
            suite: "0.0.0.0:9000".to_owned(),
        };
        assert_eq!(ProxySettings::of_flags(&GoFlags::read(flags)), Some(expected));
        let driver = GoFlags::read(["--endpoint=/csi/csi.sock", "--state=/s"]);
        assert_eq!(ProxySettings::of_flags(&driver), None);
    }

    #[tokio::test]
    async fn client_is_joined_with_the_first_connection_that_is_still_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("csi.sock");
        let clients = bind(&socket).expect("bound");
        let suite = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = suite.local_addr().expect("an address");
        drop(TcpStream::connect(address).await.expect("connected"));
        let mut server = TcpStream::connect(address).await.expect("connected");
        server.write_all(b"settings").await.expect("written");
        let mut client = UnixStream::connect(&socket).await.expect("connected");
        client.write_all(b"preface").await.expect("written");
        let exchange = async {
            let mut text = [0; 8];
            client.read_exact(&mut text).await.expect("read");
            assert_eq!(&text, b"settings");
            server.read_exact(&mut text[..7]).await.expect("read");
            assert_eq!(&text[..7], b"preface");
            drop(client);
            assert_eq!(server.read(&mut text).await.expect("read"), 0, "the client is gone");
        };
        tokio::select! {
            ended = join(&clients, &suite) => panic!("{ended:?}"),
            () = exchange => {}
        }
    }
}
