//! HTTP/2 with a server that has chosen it.
//!
//! The connection's background work ends with the exchange, at the latest when the caller gives
//! that up: a peer that stops reading holds nothing.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, Uri};
use tokio::task::JoinSet;

use super::{HEAD_BYTES_MAX, HttpAnswer, RequestProgress, talk};

/// Bytes of a body that the peer may send before it is read.
const WINDOW_BYTES: u32 = 64 * 1024;

/// Runs the tasks of a connection, until that is over.
#[derive(Clone)]
struct Background(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Background {
    fn execute(&self, work: F) {
        if let Some(running) = self.0.upgrade() {
            running.lock().unwrap_or_else(PoisonError::into_inner).spawn(work);
        }
    }
}

/// The request in the form of HTTP/2: the server is part of the target, and no header is about the
/// connection.
pub(super) fn request(mut wire: Request<Empty<Bytes>>) -> Option<Request<Empty<Bytes>>> {
    wire.headers_mut().remove(CONNECTION);
    let host = wire.headers_mut().remove(HOST)?;
    let target = wire.uri().path_and_query()?.as_str();
    let uri = Uri::builder().scheme("https").authority(host.as_bytes()).path_and_query(target);
    *wire.uri_mut() = uri.build().ok()?;
    Some(wire)
}

/// Sends the request over a new connection.
pub(super) async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    limit: usize,
    watch: &RequestProgress,
) -> Result<(HttpAnswer, Option<String>), hyper::Error>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let running = Arc::new(Mutex::new(JoinSet::new()));
    let (mut sender, connection) = http2::Builder::new(Background(Arc::downgrade(&running)))
        .initial_stream_window_size(WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .handshake(stream)
        .await?;
    talk(sender.send_request(request), connection, limit, watch).await
}
