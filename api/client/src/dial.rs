//! Makes one connection: TCP, through a proxy if there is one, then TLS.
//!
//! Output: a stream and whether the server speaks HTTP/2. Bounds: `DIAL_MAX` in all,
//! `PROXY_HEAD_BYTES_MAX` of a proxy's answer. A `Closable` stream ends, with all its requests,
//! when its connection must be replaced, and when the kernel receives nothing from the other end
//! for [`DEAD_AFTER`]. With a proxy that end is the proxy: only HTTP/2's pings show whether the
//! server behind it is reachable and still runs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::access::Access;
use crate::pool::DEAD_AFTER;
use crate::proxy::{Proxy, ProxyKind};
use crate::tls::{of_handshake, system_tls};

/// The longest that a connection may take to be made.
const DIAL_MAX: Duration = Duration::from_secs(8);
const PROXY_HEAD_BYTES_MAX: usize = 8 << 10;
/// When a connection that is quiet is probed first, and the pause between two probes. The last
/// one is due at [`DEAD_AFTER`]: the kernel looks at the clock only when a probe is due.
const PROBE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));
const _: () = assert!(PROBE.0.as_secs() + 2 * PROBE.1.as_secs() == DEAD_AFTER.as_secs());

/// Any stream.
pub(crate) trait DialStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> DialStream for T {}

/// A stream that was made.
pub(crate) struct Dialed {
    pub(crate) stream: Closable,
    pub(crate) http2: bool,
}

/// Connects as `access` says. The stream ends when `closed` becomes true.
pub(crate) async fn dial(
    access: &Access,
    tls: Option<Arc<ClientConfig>>,
    closed: watch::Receiver<bool>,
) -> io::Result<Dialed> {
    let made = tokio::time::timeout(DIAL_MAX, connect(access, tls)).await;
    let (stream, http2) = made.map_err(|_| {
        let server = access.server.authority().map_or("", |authority| authority.as_str());
        io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {server} within 8 s"))
    })??;
    let closed = Box::pin(async move {
        let mut closed = closed;
        // A pool that is gone needs no connection either.
        let _ = closed.wait_for(|closed| *closed).await;
    });
    Ok(Dialed { stream: Closable { stream, closed }, http2 })
}

async fn connect(
    access: &Access,
    tls: Option<Arc<ClientConfig>>,
) -> io::Result<(Box<dyn DialStream>, bool)> {
    let host = access.server.host().unwrap_or_default().trim_matches(['[', ']']);
    let default = if tls.is_some() { 443 } else { 80 };
    let port = access.server.port_u16().unwrap_or(default);
    let stream = match &access.proxy {
        None => Box::new(tcp(host, port).await?),
        Some(proxy) => tunnel(proxy, host, port).await?,
    };
    let Some(tls) = tls else { return Ok((stream, false)) };
    let name = access.server_name.as_deref().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let made = TlsConnector::from(tls).connect(name, stream).await;
    let stream = made.map_err(of_handshake)?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((Box::new(stream), http2))
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    end_when_dead(&stream)?;
    Ok(stream)
}

/// Has the kernel end a connection whose other end does not acknowledge anything for
/// [`DEAD_AFTER`]: neither bytes nor, while there are none, probes. Without pings, which HTTP/1.1
/// has not got, a watch would wait for ever otherwise.
///
/// The same ends a connection whose other end takes no more bytes for that long: a server that does
/// not read a request will not answer it either. A machine that slept and an address that moved
/// are no cases of their own: the next probe is answered, refused, or lost.
// k8s: staging/src/k8s.io/client-go/transport/cache.go get, where probes alone do it in 5 min
fn end_when_dead(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE.0).with_interval(PROBE.1);
    socket.set_tcp_keepalive(&probes)?;
    // It overrules the number of probes, too.
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}

async fn tunnel(proxy: &Proxy, host: &str, port: u16) -> io::Result<Box<dyn DialStream>> {
    let refused = |error: io::Error| {
        io::Error::new(error.kind(), format!("proxy {}:{}: {error}", proxy.host, proxy.port))
    };
    let tcp = tcp(&proxy.host, proxy.port).await.map_err(refused)?;
    let mut stream: Box<dyn DialStream> = match proxy.kind {
        ProxyKind::Http | ProxyKind::Socks5 => Box::new(tcp),
        ProxyKind::Https => {
            let name = ServerName::try_from(proxy.host.clone()).map_err(io::Error::other)?;
            let connector = TlsConnector::from(Arc::new(system_tls().map_err(io::Error::other)?));
            Box::new(connector.connect(name, tcp).await.map_err(refused)?)
        }
    };
    match proxy.kind {
        ProxyKind::Http | ProxyKind::Https => {
            stream.write_all(proxy.connect_request(host, port).as_bytes()).await?;
            http_answer(&mut stream).await.map_err(refused)?;
        }
        ProxyKind::Socks5 => socks(&mut stream, proxy, host, port).await.map_err(refused)?,
    }
    Ok(stream)
}

async fn http_answer(stream: &mut Box<dyn DialStream>) -> io::Result<()> {
    // Byte by byte: the bytes behind the head belong to the tunnel.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= PROXY_HEAD_BYTES_MAX {
            return Err(io::Error::other("its answer has no end"));
        }
        head.push(stream.read_u8().await?);
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    match line.split(' ').nth(1) {
        Some(code) if code.starts_with('2') => Ok(()),
        _ => Err(io::Error::other(format!("it says {line:?}"))),
    }
}

async fn socks(
    stream: &mut Box<dyn DialStream>,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> io::Result<()> {
    let method = if proxy.user().is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method]).await?;
    if stream.read_u8().await? != 5 || stream.read_u8().await? != method {
        return Err(io::Error::other("it wants another way to log in"));
    }
    if let Some((name, password)) = proxy.user() {
        let mut hello = vec![1];
        for text in [name, password] {
            hello.push(u8::try_from(text.len()).map_err(io::Error::other)?);
            hello.extend_from_slice(text.as_bytes());
        }
        stream.write_all(&hello).await?;
        let _version = stream.read_u8().await?;
        if stream.read_u8().await? != 0 {
            return Err(io::Error::other("it refuses name and password"));
        }
    }
    let mut ask = vec![5, 1, 0, 3, u8::try_from(host.len()).map_err(io::Error::other)?];
    ask.extend_from_slice(host.as_bytes());
    ask.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&ask).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    if head[1] != 0 {
        return Err(io::Error::other(format!("it answers with code {}", head[1])));
    }
    let rest = match head[3] {
        1 => 4,
        4 => 16,
        _ => usize::from(stream.read_u8().await?),
    };
    stream.read_exact(&mut vec![0; rest + 2]).await.map(drop)
}

/// A stream that can be ended from outside.
pub(crate) struct Closable {
    stream: Box<dyn DialStream>,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Closable {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.closed.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                // Polled again after it is ready, it must be ready again.
                self.closed = Box::pin(std::future::ready(()));
                Err(io::Error::new(io::ErrorKind::ConnectionReset, "connection made anew"))
            }
        }
    }
}

impl AsyncRead for Closable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Closable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
