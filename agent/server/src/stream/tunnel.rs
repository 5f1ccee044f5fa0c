//! Port-forward through a WebSocket: its messages carry the bytes of a SPDY connection.
//!
//! Effects. Input: a WebSocket that offers `SPDY/3.1+…`. Output: the runtime's SPDY connection, its
//! bytes wrapped into binary messages. SPDY itself is not parsed. Bounds: those of `proxy`.
// k8s: staging/src/k8s.io/apiserver/pkg/util/proxy/streamtunnel.go

use hyper::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, StatusCode};
use hyper_util::rt::TokioIo;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::Reply;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;

use super::proxy::{BUFFER_BYTES, dial, refused};
use super::request::{TUNNEL_PREFIX, tunnelled};
use super::websocket::{self, FrameReader, Opcode};
use super::{StreamRequest, handshake};

/// Protocol within a SPDY connection.
pub(super) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Name of SPDY in an upgrade.
pub(super) const SPDY: HeaderValue = HeaderValue::from_static("SPDY/3.1");

/// Opens a tunnel.
pub(super) async fn open(wanted: StreamRequest) -> Reply {
    let StreamRequest { mut request, url, turn, .. } = wanted;
    let mut answer = match dial(&url, Method::POST, spdy_headers(request.headers())).await {
        Ok(answer) => answer,
        Err(error) => return HttpAnswer::text(500, format!("{error}\n")).into(),
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return refused(answer).await;
    }
    let chosen = answer.headers().get(STREAM_PROTOCOL).and_then(|value| value.to_str().ok());
    let protocol = format!("{TUNNEL_PREFIX}{}", chosen.unwrap_or_default().trim());
    let Some(reply) = handshake::accept(request.headers(), &protocol) else {
        return HttpAnswer::text(400, "the WebSocket has no key\n").into();
    };
    let runtime = hyper::upgrade::on(&mut answer);
    let client = hyper::upgrade::on(&mut request);
    pintle_daemon::tasks::serve("stream", async move {
        turn.hold(join(client, runtime)).await;
    });
    reply
}

/// The client's headers, asking for SPDY instead of a WebSocket.
fn spdy_headers(headers: &HeaderMap) -> HeaderMap {
    let mut sent = headers.clone();
    for websocket in [SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION] {
        sent.remove(websocket);
    }
    sent.remove(hyper::header::SEC_WEBSOCKET_EXTENSIONS);
    sent.remove(hyper::header::AUTHORIZATION);
    sent.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    sent.insert(UPGRADE, SPDY);
    sent.remove(STREAM_PROTOCOL);
    for protocol in tunnelled(headers) {
        if let Ok(value) = HeaderValue::from_str(protocol) {
            sent.append(STREAM_PROTOCOL, value);
        }
    }
    sent
}

async fn join(client: OnUpgrade, runtime: OnUpgrade) {
    let (client, runtime) = match tokio::try_join!(client, runtime) {
        Ok(both) => both,
        Err(error) => return tracing::debug!(%error, "a tunnel was not upgraded"),
    };
    if let Err(error) = copy(TokioIo::new(client), TokioIo::new(runtime)).await {
        tracing::debug!(%error, "a tunnel broke");
    }
}

async fn copy(
    client: impl AsyncRead + AsyncWrite + Unpin,
    runtime: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let (from_client, to_client) = tokio::io::split(client);
    let (mut from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let to_client = Mutex::new(to_client);
    let up = async {
        let mut reader = FrameReader::new(from_client);
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(mut head) = reader.head().await? {
            match head.opcode {
                Opcode::Binary | Opcode::Continuation => loop {
                    let read = reader.piece(&mut head, &mut buffer).await?;
                    if read == 0 {
                        break;
                    }
                    to_runtime.write_all(&buffer[..read]).await?;
                },
                Opcode::Ping => {
                    let payload = reader.control(head).await?;
                    let mut to = to_client.lock().await;
                    websocket::write(&mut *to, Opcode::Pong, None, &payload).await?;
                }
                Opcode::Close => break,
                Opcode::Pong => drop(reader.control(head).await?),
                // The kubelet reads nothing but binary messages.
                Opcode::Text => return Err(std::io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    };
    let down = async {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = from_runtime.read(&mut buffer).await?;
            let mut to = to_client.lock().await;
            if read == 0 {
                return websocket::close(&mut *to).await;
            }
            websocket::write(&mut *to, Opcode::Binary, None, &buffer[..read]).await?;
        }
    };
    // As the kubelet: a side that ends, ends the tunnel. Streams inside have ends of their own.
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::websocket::masked;

    #[tokio::test]
    async fn messages_are_unwrapped_and_wrapped_and_pings_answered() {
        let (mut user, client) = tokio::io::duplex(4096);
        let (runtime, mut container) = tokio::io::duplex(4096);
        let tunnel = tokio::spawn(copy(client, runtime));
        for frame in [
            masked(Opcode::Ping, true, b"?"),
            masked(Opcode::Binary, false, b"ab"),
            masked(Opcode::Continuation, true, b"cd"),
            masked(Opcode::Binary, true, b"ef"),
        ] {
            user.write_all(&frame).await.expect("sent");
        }
        let mut got = [0; 6];
        container.read_exact(&mut got).await.expect("unwrapped");
        assert_eq!(&got, b"abcdef");
        container.write_all(b"answer").await.expect("sent");
        let mut frames = [0; 3 + 8];
        user.read_exact(&mut frames).await.expect("wrapped");
        assert_eq!(&frames, b"\x8a\x01?\x82\x06answer");
        drop(container);
        let mut rest = Vec::new();
        user.read_to_end(&mut rest).await.expect("closed");
        assert_eq!(rest, [0x88, 2, 0x03, 0xe8]);
        tunnel.await.expect("no panic").expect("no error");
    }

    #[test]
    fn the_runtime_is_asked_for_spdy() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("upgrade", "websocket"),
            ("sec-websocket-key", "k"),
            ("sec-websocket-protocol", "SPDY/3.1+portforward.k8s.io"),
            ("authorization", "Bearer secret"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let sent = spdy_headers(&headers);
        assert_eq!(sent[UPGRADE], "SPDY/3.1");
        assert_eq!(sent[STREAM_PROTOCOL], "portforward.k8s.io");
        assert!(!sent.keys().any(|name| name.as_str().starts_with("sec-websocket")));
        assert!(!sent.contains_key("authorization"));
    }
}
