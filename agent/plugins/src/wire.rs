//! One gRPC call with one answer over a unix socket, for plugins that are trusted with nothing.
//!
//! Input: an endpoint, a method, a message, a time limit. Output: the answer's message, or a
//! `CallError` that says which side made it. Calls to an endpoint that are under way at the same
//! time share a connection; it is closed when the last of them ends, so an idle plugin costs
//! nothing, and a plugin that was restarted is dialled again. The bytes are decoded here and not by
//! a library: an answer that is too long, doubled or broken must be distinguishable from the
//! plugin's verdict. Bounds: `ANSWER_BYTES_MAX`, `HEADERS_BYTES_MAX`, `WINDOW_BYTES`, the caller's
//! time limit.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::error::CallError;

/// The largest answer, in bytes.
// k8s: google.golang.org/grpc defaultClientMaxReceiveMessageSize
pub(crate) const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Headers and trailers of an answer, in bytes.
const HEADERS_BYTES_MAX: u32 = 256 * 1024;
/// What a plugin may send before it is read, in bytes, in a stream and in all.
const WINDOW_BYTES: u32 = 64 * 1024;
const WINDOW_BYTES_ALL: u32 = 1024 * 1024;
/// How long a plugin may take to accept a connection.
pub(crate) const DIAL_MAX: Duration = Duration::from_secs(1);
/// Bytes before a message: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;
/// Bytes that the kernel takes in a socket's address, with the zero at its end.
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 108;

/// Why bytes can become no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Malformed {
    #[error("an answer of {0} bytes is larger than max ({ANSWER_BYTES_MAX})")]
    TooLong(usize),
    #[error("more than one answer")]
    Several,
    #[error("a compressed answer was not asked for")]
    Compressed,
}

/// A method of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    /// Its name, for people.
    pub(crate) name: &'static str,
    /// `/package.Service/Name`.
    pub(crate) path: &'static str,
}

/// A plugin's endpoint. Clones share its connection.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    path: Arc<PathBuf>,
    shared: Arc<Mutex<Weak<PluginConnection>>>,
}

/// An open connection; what it does in the background ends when it is dropped.
#[derive(Debug)]
struct PluginConnection {
    sender: http2::SendRequest<Full<Bytes>>,
    _running: Arc<Mutex<JoinSet<()>>>,
}

/// Runs what belongs to a connection, until that is dropped.
#[derive(Clone)]
struct Background(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Background {
    fn execute(&self, work: F) {
        let Some(running) = self.0.upgrade() else { return };
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        while running.try_join_next().is_some() {} // those that have ended need no memory
        running.spawn(work);
    }
}

impl Endpoint {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: Arc::new(path.to_owned()), shared: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a call. `limit` includes dialling.
    pub(crate) async fn call<Q: Message, A: Message + Default>(
        &self,
        method: Method,
        request: &Q,
        limit: Duration,
    ) -> Result<A, CallError> {
        let answer = self.exchange(method, framed(request), limit).await?;
        let broken = |error: prost::DecodeError| {
            CallError::agent(method.name, Code::Internal, format!("unreadable answer: {error}"))
        };
        A::decode(answer).map_err(broken)
    }

    async fn exchange(
        &self,
        method: Method,
        message: Bytes,
        limit: Duration,
    ) -> Result<Bytes, CallError> {
        let talk = async {
            let connection = self.connection(method).await?;
            // It holds the connection open until the answer is complete.
            let mut sender = connection.sender.clone();
            let lost = |error: hyper::Error| unavailable(method, &error);
            sender.ready().await.map_err(lost)?;
            let answer = sender.send_request(wire(method, message, limit)).await.map_err(lost)?;
            read(method, answer).await
        };
        tokio::time::timeout(limit, talk).await.unwrap_or_else(|_| {
            let words = "context deadline exceeded";
            Err(CallError::agent(method.name, Code::DeadlineExceeded, words))
        })
    }

    /// The connection that calls under way have, or a new one.
    async fn connection(&self, method: Method) -> Result<Arc<PluginConnection>, CallError> {
        let open = self.lock().upgrade().filter(|open| !open.sender.is_closed());
        if let Some(open) = open {
            return Ok(open);
        }
        let connection = Arc::new(self.dial(method).await?);
        // Of calls that begin together each may have dialled; later ones share the last connection.
        *self.lock() = Arc::downgrade(&connection);
        Ok(connection)
    }

    async fn dial(&self, method: Method) -> Result<PluginConnection, CallError> {
        let failed = |why: String| {
            let words = format!("dial unix {}: {why}", self.path.display());
            CallError::agent(method.name, Code::Unavailable, words)
        };
        let dialled =
            tokio::time::timeout(DIAL_MAX, UnixStream::connect(self.path.as_path())).await;
        let stream = match dialled {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed("no connection was accepted in time".to_owned())),
        };
        let running = Arc::new(Mutex::new(JoinSet::new()));
        let (sender, connection) = http2::Builder::new(Background(Arc::downgrade(&running)))
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES_ALL)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unavailable(method, &error))?;
        let serve = async move {
            let _ = connection.await; // calls under way fail with the reason
        };
        running.lock().unwrap_or_else(PoisonError::into_inner).spawn(serve);
        Ok(PluginConnection { sender, _running: running })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Weak<PluginConnection>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message with the head that gRPC wants.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + length);
    bytes.push(0);
    let length = u32::try_from(length).expect("requests are made of objects of the API");
    bytes.extend(length.to_be_bytes());
    message.encode_raw(&mut bytes);
    bytes.into()
}

fn wire(method: Method, message: Bytes, limit: Duration) -> Request<Full<Bytes>> {
    let value = HeaderValue::from_static;
    let millis = format!("{}m", limit.as_millis().min(99_999_999)); // eight digits, says gRPC
    Request::post(format!("http://localhost{}", method.path))
        .version(http::Version::HTTP_2)
        .header(header::TE, value("trailers"))
        .header(header::CONTENT_TYPE, value("application/grpc"))
        .header("grpc-timeout", millis)
        .body(Full::new(message))
        .expect("method names are URLs")
}

/// Reads an answer: exactly one message, then a status.
async fn read(method: Method, answer: Response<Incoming>) -> Result<Bytes, CallError> {
    let broken = |code, words: &str| Err(CallError::agent(method.name, code, words));
    if let Some(status) = Status::from_header_map(answer.headers()) {
        return match status.code() {
            Code::Ok => broken(Code::Internal, "the answer has a status and no message"),
            _ => Err(CallError::answered(method.name, &status)),
        };
    }
    if answer.status() != StatusCode::OK {
        let words = format!("unexpected HTTP status {}", answer.status());
        return broken(Code::Unavailable, &words);
    }
    let mut body = answer.into_body();
    let mut bytes = BytesMut::new();
    let mut is_complete = false;
    while let Some(frame) = body.frame().await {
        match frame.map_err(|error| unavailable(method, &error))?.into_data() {
            Ok(data) => {
                bytes.extend_from_slice(&data);
                let refused = |why: Malformed| {
                    CallError::agent(method.name, Code::ResourceExhausted, why.to_string())
                };
                check(&bytes).map_err(refused)?;
            }
            Err(frame) => match frame.trailers_ref().and_then(Status::from_header_map) {
                Some(status) if status.code() == Code::Ok => is_complete = true,
                Some(status) => return Err(CallError::answered(method.name, &status)),
                None => return broken(Code::Internal, "the answer has no status"),
            },
        }
    }
    match length(&bytes) {
        Some(length) if is_complete && bytes.len() == HEAD_BYTES + length => {
            Ok(bytes.split_off(HEAD_BYTES).into())
        }
        _ => broken(Code::Internal, "the answer ended early"),
    }
}

/// The length that a message announces, once its head is there.
fn length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    usize::try_from(length).ok()
}

/// Refuses what can become no answer, before more of it is read.
fn check(bytes: &[u8]) -> Result<(), Malformed> {
    let Some(length) = length(bytes) else { return Ok(()) };
    match bytes[0] {
        _ if length > ANSWER_BYTES_MAX => Err(Malformed::TooLong(length)),
        0 if bytes.len() > HEAD_BYTES + length => Err(Malformed::Several),
        0 => Ok(()),
        _ => Err(Malformed::Compressed),
    }
}

/// The innermost reason: hyper's own says only that something failed.
fn unavailable(method: Method, error: &hyper::Error) -> CallError {
    let mut reason: &dyn std::error::Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    CallError::agent(method.name, Code::Unavailable, format!("connection error: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_or_oversized_response_is_rejected_as_soon_as_its_header_arrives() {
        assert_eq!(check(&[0, 0, 0]), Ok(()));
        assert_eq!(check(&[0, 0, 0, 0, 2, 7]), Ok(()));
        assert_eq!(check(&[0, 0, 0, 0, 1, 7]), Ok(()));
        assert!(check(&[0, 0, 0, 0, 1, 7, 0]).is_err());
        assert!(check(&[1, 0, 0, 0, 1]).is_err());
        assert!(check(&[0, 0xff, 0xff, 0xff, 0xff]).is_err());
        let most = u32::try_from(ANSWER_BYTES_MAX).expect("it fits").to_be_bytes();
        assert_eq!(check(&[0, most[0], most[1], most[2], most[3]]), Ok(()));
        assert!(check(&[0, most[0], most[1], most[2], most[3] + 1]).is_err());
    }

    #[test]
    fn grpc_timeout_header_has_at_most_eight_digits() {
        let method = Method { name: "X", path: "/a.B/X" };
        let limit = |limit| wire(method, Bytes::new(), limit).headers()["grpc-timeout"].clone();
        assert_eq!(limit(Duration::from_secs(120)), "120000m");
        assert_eq!(limit(Duration::MAX), "99999999m");
    }
}
