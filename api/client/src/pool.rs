//! The connections of one client.
//!
//! HTTP/2 connections are shared by up to `STREAMS_MAX` requests each; another is made when they
//! are full, so that many watches never delay a write. Pings find a dead peer within
//! [`DEAD_AFTER`]; its waiting requests then fail and a new connection is made. When certificates
//! change, every connection ends. A server without HTTP/2 gets one connection per request, until
//! one of them speaks it, and the kernel's probes stand in for pings (`dial`). Bounds:
//! `CONNECTIONS_MAX` shared connections, or `ALONE_MAX` of one request each; further requests wait
//! for a place in `places`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use tokio::sync::{Mutex, watch};

use crate::dial::{self, Dialed};
use crate::identity::ClientIdentity;
use crate::observer::Observer;
use crate::places::{RequestPlaces, TakenPlace};
use crate::turns::{Lane, TenantShare};

/// A peer that is gone is found within this time.
pub const DEAD_AFTER: Duration = Duration::from_secs(9);
/// Pause between pings, and how long one may stay without an answer.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(4));
/// Requests that share a connection; no server allows less than 100.
const STREAMS_MAX: usize = 100;
const CONNECTIONS_MAX: usize = 64;
/// Connections to a server that takes one request on each at a time.
const ALONE_MAX: usize = 1_024;
/// Bytes of one answer, and of all, that may be in flight before they are read.
const WINDOWS: (u32, u32) = (512 << 10, 4 << 20);

/// The connections of one client.
pub(crate) struct ConnectionPool {
    identity: Arc<ClientIdentity>,
    shared: Mutex<SharedPool>,
    places: Arc<RequestPlaces>,
}

struct SharedPool {
    generation: u64,
    connections: Vec<Shareable>,
    close: watch::Sender<bool>,
    /// The server that was met last does not speak HTTP/2.
    one_each: bool,
}

struct Shareable {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
}

/// A place on a connection.
enum StreamPlace {
    Stream(http2::SendRequest<Body>, TakenStream),
    Alone(http1::SendRequest<Body>),
}

/// Counts a stream of a connection; it is given back before the room that it was taken with.
struct TakenStream(Arc<AtomicUsize>);

impl Drop for TakenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body; its place is given back when it ends.
pub(crate) struct AnswerBody {
    body: Incoming,
    measure: Option<ByteMeasure>,
    _stream: Option<TakenStream>,
    _room: TakenPlace,
}

/// Adds up the bytes of an answer for an observer.
pub(crate) struct ByteMeasure {
    observer: Arc<dyn Observer>,
    method: Method,
    host: Arc<str>,
    bytes: u64,
}

impl ByteMeasure {
    pub(crate) fn new(observer: Arc<dyn Observer>, method: Method, host: Arc<str>) -> Self {
        Self { observer, method, host, bytes: 0 }
    }
}

impl AnswerBody {
    fn new(body: Incoming, stream: Option<TakenStream>, room: TakenPlace) -> Self {
        Self { body, measure: None, _stream: stream, _room: room }
    }

    /// Reports its size in bytes, once it was read to its end.
    pub(crate) fn measure(&mut self, measure: ByteMeasure) {
        self.measure = Some(measure);
        if self.body.is_end_stream() {
            self.record_received();
        }
    }

    fn record_received(&mut self) {
        if let Some(ByteMeasure { observer, method, host, bytes }) = self.measure.take() {
            observer.received(method.as_str(), &host, bytes);
        }
    }
}

impl ConnectionPool {
    pub(crate) fn new(identity: Arc<ClientIdentity>) -> Self {
        let shared = SharedPool {
            generation: 0,
            connections: Vec::new(),
            close: watch::Sender::new(false),
            one_each: false,
        };
        let places = RequestPlaces::new(CONNECTIONS_MAX * STREAMS_MAX);
        Self { identity, shared: Mutex::new(shared), places }
    }

    /// Waits until one more request may be in flight.
    pub(crate) async fn room(&self, lane: Lane, share: &TenantShare) -> TakenPlace {
        self.places.room(lane, share).await
    }

    /// Sends a request; connections that turn out to be closed before anything was sent are
    /// replaced. A server that ends closes each, which is noticed at the next request.
    pub(crate) async fn send(
        &self,
        request: Request<Body>,
        room: TakenPlace,
    ) -> io::Result<Response<AnswerBody>> {
        let mut request = request;
        let mut again = self.shared.lock().await.connections.len().max(1);
        loop {
            match self.place().await? {
                StreamPlace::Alone(mut sender) => {
                    let request = for_http1(request)?;
                    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
                    return Ok(answer.map(|body| AnswerBody::new(body, None, room)));
                }
                StreamPlace::Stream(mut sender, taken) => {
                    match sender.try_send_request(request).await {
                        Ok(answer) => {
                            return Ok(answer.map(|body| AnswerBody::new(body, Some(taken), room)));
                        }
                        Err(mut error) => match error.take_message() {
                            Some(unsent) if again > 0 => {
                                again -= 1;
                                request = unsent;
                            }
                            _ => return Err(io::Error::other(error.into_error())),
                        },
                    }
                }
            }
        }
    }

    /// A free place, on a new connection if there is none.
    async fn place(&self) -> io::Result<StreamPlace> {
        let now = self.identity.now()?;
        let mut shared = self.shared.lock().await;
        if shared.generation != now.generation {
            shared.generation = now.generation;
            shared.connections.clear();
            shared.close.send_replace(true);
            shared.close = watch::Sender::new(false);
        }
        shared.connections.retain(|connection| !connection.sender.is_closed());
        if let Some(connection) = shared.connections.iter().find(|one| one.has_room()) {
            return Ok(connection.place());
        }
        let closed = shared.close.subscribe();
        if shared.one_each {
            // The next request need not wait for this connection.
            drop(shared);
            let dialed = dial::dial(&self.identity.access, now.tls, closed).await?;
            return match dialed.http2 {
                true => self.share(shareable(dialed).await?, now.generation).await,
                false => alone(dialed).await,
            };
        }
        // With a room there is one on a connection, unless some of them have just been replaced.
        let least = |one: &&Shareable| one.streams.load(Ordering::Relaxed);
        if shared.connections.len() >= CONNECTIONS_MAX
            && let Some(connection) = shared.connections.iter().min_by_key(least)
        {
            return Ok(connection.place());
        }
        // Requests that come meanwhile wait for this connection rather than make their own.
        let dialed = dial::dial(&self.identity.access, now.tls, closed).await?;
        if !dialed.http2 {
            shared.one_each = true;
            self.places.limit(ALONE_MAX);
            return alone(dialed).await;
        }
        let connection = shareable(dialed).await?;
        let place = connection.place();
        shared.connections.push(connection);
        Ok(place)
    }

    /// A place on a connection to a server that did not speak HTTP/2 before: behind one address may
    /// be several, and one may learn it.
    async fn share(&self, connection: Shareable, generation: u64) -> io::Result<StreamPlace> {
        let mut shared = self.shared.lock().await;
        if std::mem::take(&mut shared.one_each) {
            self.places.limit(CONNECTIONS_MAX * STREAMS_MAX);
        }
        let place = connection.place();
        // Of many that were made at once some serve one request each.
        if shared.generation == generation && shared.connections.len() < CONNECTIONS_MAX {
            shared.connections.push(connection);
        }
        Ok(place)
    }
}

impl Shareable {
    fn has_room(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < STREAMS_MAX
    }

    fn place(&self) -> StreamPlace {
        self.streams.fetch_add(1, Ordering::Relaxed);
        StreamPlace::Stream(self.sender.clone(), TakenStream(Arc::clone(&self.streams)))
    }
}

async fn shareable(dialed: Dialed) -> io::Result<Shareable> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .handshake(TokioIo::new(dialed.stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the API server");
        }
    });
    Ok(Shareable { sender, streams: Arc::default() })
}

async fn alone(dialed: Dialed) -> io::Result<StreamPlace> {
    let handshake = http1::handshake(TokioIo::new(dialed.stream)).await;
    let (sender, connection) = handshake.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the API server");
        }
    });
    Ok(StreamPlace::Alone(sender))
}

/// HTTP/1.1 wants the server in a header and the path alone in the first line.
fn for_http1(mut request: Request<Body>) -> io::Result<Request<Body>> {
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(io::Error::other)?;
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    *request.uri_mut() = path.parse().map_err(io::Error::other)?;
    Ok(request)
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let (Some(measure), Some(Ok(frame))) = (&mut self.measure, &frame) {
            measure.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        match &frame {
            // A reader that knows that this was the last piece does not ask for another.
            None => self.record_received(),
            Some(Ok(_)) if self.body.is_end_stream() => self.record_received(),
            Some(Ok(_)) => {}
            Some(Err(_)) => self.measure = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
