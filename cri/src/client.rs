//! `Client`: the calls of CRI v1 as typed async methods (made from the table in call.rs).
//!
//! Input: a request. Output: its reply, or an `Error` that names method and subject. Each call is
//! entered into the table of calls in flight, gets the deadline of its class here and at the
//! runtime, and is not made at all when the runtime answered on this connection that it does not
//! implement the call. Dropping a call's future cancels it at the runtime as well.
//!
//! Owner: any caller; clones are cheap and share connection, table and memory. Needs a tokio
//! runtime, a current-thread one is enough. Bounds: `MESSAGE_BYTES_MAX` a message,
//! `in_flight::CALLS_MAX` calls. Nothing is retried here: only the caller knows whether repeating a
//! call is right.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, future::BoxFuture};
use tonic::{
    Request, Response, Status, Streaming, client::Grpc, codegen::http::uri::PathAndQuery,
    transport::Channel,
};
use tonic_prost::ProstCodec;

use crate::{
    Code, CriCall, Deadlines, Error, InFlight, MESSAGE_BYTES_MAX, Method, Observer, StreamCall,
    error::Origin,
    in_flight::{CallTicket, Calls},
    transport::{EndpointError, Link, SocketEndpoint},
    v1,
};

/// A runtime behind a unix socket.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    link: Arc<Link>,
    deadlines: Arc<Deadlines>,
    calls: Calls,
}

impl Client {
    /// A client of the runtime at `endpoint` (`unix:///path`). Connects with the first call.
    /// Must be called inside a tokio runtime, which then drives the connection.
    pub fn connect(endpoint: &str, deadlines: Deadlines) -> Result<Self, EndpointError> {
        let link = Link::new(SocketEndpoint::parse(endpoint)?);
        let (channel, calls) = (link.channel(), Calls::default());
        Ok(Self { channel, link, deadlines: Arc::new(deadlines), calls })
    }

    /// The same connection, with calls counted and timed by `observer`. Its table of calls in
    /// flight is a new one, so this belongs right after `connect`.
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { calls: Calls::with_observer(observer), ..self }
    }

    /// The same connection and table with other deadlines.
    pub fn with_deadlines(&self, deadlines: Deadlines) -> Self {
        Self { deadlines: Arc::new(deadlines), ..self.clone() }
    }

    /// Makes a call within the deadline of its class.
    pub async fn call<R: CriCall>(&self, request: R) -> Result<R::Reply, Error> {
        let deadline = self.deadlines.of(request.class());
        self.call_within(request, deadline).await
    }

    /// Makes a call within a deadline of the caller's own choice, of `DEADLINE_MAX` at most.
    pub async fn call_within<R: CriCall>(
        &self,
        request: R,
        deadline: Option<Duration>,
    ) -> Result<R::Reply, Error> {
        let deadline = deadline.map(crate::deadlines::representable);
        let subject = request.subject();
        let sent = self.unary::<R>(request, deadline);
        self.within(R::METHOD, &subject, deadline, sent).await
    }

    /// Enters a call, waits for its answer within the deadline and learns from it.
    pub(crate) async fn within<T>(
        &self,
        method: Method,
        subject: &str,
        deadline: Option<Duration>,
        sent: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Error> {
        let mut ticket = self.admit(method, subject, deadline)?;
        let answer = match deadline {
            None => sent.await,
            Some(limit) => match tokio::time::timeout(limit, sent).await {
                Ok(answer) => answer,
                Err(_) => Err(Status::from_error(Box::new(tonic::TimeoutExpired(())))),
            },
        };
        self.settle(&mut ticket, subject, answer)
    }

    /// The connection, for calls that read their answer themselves.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Opens a stream. Nothing is sent before the first `next`, and an answer may take long:
    /// runtimes send nothing until there is a first item.
    pub fn stream<R: StreamCall>(&self, request: R) -> Result<Replies<R::Reply>, Error> {
        let ticket = self.admit(R::METHOD, "", None)?;
        let mut grpc = self.grpc();
        let opening = Box::pin(async move {
            grpc.ready().await.map_err(not_ready)?;
            let codec = ProstCodec::<R, R::Reply>::default();
            let path = PathAndQuery::from_static(R::METHOD.path());
            grpc.server_streaming(Request::new(request), path, codec).await
        });
        Ok(Replies { client: self.clone(), ticket, method: R::METHOD, state: Open(opening) })
    }

    /// Returns once the runtime answers, with its version. Waits for ever: wrap it in a timeout
    /// where that is wrong.
    pub async fn ready(&self) -> v1::VersionResponse {
        self.ready_telling(|_| ()).await
    }

    /// As `ready`; calls `told` with the error of each failed attempt.
    pub async fn ready_telling(&self, mut told: impl FnMut(&Error)) -> v1::VersionResponse {
        loop {
            match self.version(v1::VersionRequest::default()).await {
                Ok(version) => return version,
                Err(error) => {
                    tracing::debug!(%error, "runtime is not ready");
                    told(&error);
                }
            }
            tokio::time::sleep(self.link.wait().max(crate::transport::BACKOFF_MIN)).await;
        }
    }

    /// The calls in flight, oldest first.
    pub fn in_flight(&self) -> Vec<InFlight> {
        self.calls.list()
    }

    /// Counts the connections made so far: another number than before means that the runtime
    /// restarted, or at least hung up.
    pub fn connection(&self) -> u64 {
        self.link.connection()
    }

    /// The deadlines in force.
    pub fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    async fn unary<R: CriCall>(
        &self,
        message: R,
        deadline: Option<Duration>,
    ) -> Result<R::Reply, Status> {
        let mut grpc = self.grpc();
        grpc.ready().await.map_err(not_ready)?;
        let mut request = Request::new(message);
        if let Some(deadline) = deadline {
            request.set_timeout(deadline); // lets the runtime stop working on it, too
        }
        let path = PathAndQuery::from_static(R::METHOD.path());
        let codec = ProstCodec::<R, R::Reply>::default();
        grpc.unary(request, path, codec).await.map(Response::into_inner)
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Admits a call, or returns why not.
    fn admit(
        &self,
        method: Method,
        subject: &str,
        deadline: Option<Duration>,
    ) -> Result<CallTicket, Error> {
        if self.link.is_unimplemented(method) {
            let message = "this runtime has no such call".to_owned();
            return Err(Error::client(method, subject, Code::Unimplemented, message));
        }
        self.calls.enter(method, subject.to_owned(), deadline).ok_or_else(|| {
            let message = format!("{} calls are under way already", crate::in_flight::CALLS_MAX);
            Error::client(method, subject, Code::ResourceExhausted, message)
        })
    }

    /// Turns an answer into a result and learns from it.
    fn settle<T>(
        &self,
        ticket: &mut CallTicket,
        subject: &str,
        answer: Result<T, Status>,
    ) -> Result<T, Error> {
        let result = answer.map_err(|status| Error::from_status(ticket.method(), subject, &status));
        let (code, origin) = match &result {
            Ok(_) => (Code::Ok, Origin::Runtime),
            Err(error) => (error.code, error.origin),
        };
        ticket.ended(code);
        if origin == Origin::Runtime {
            self.link.answered();
            if code == Code::Unimplemented {
                self.link.set_unimplemented(ticket.method());
            }
        }
        result
    }
}

/// The items of a streamed answer. Dropping it ends the stream.
#[derive(Debug)]
pub struct Replies<T> {
    client: Client,
    ticket: CallTicket,
    method: Method,
    state: State<T>,
}

enum State<T> {
    Open(BoxFuture<'static, Result<Response<Streaming<T>>, Status>>),
    Flowing(Box<Streaming<T>>),
    Ended,
}
use State::{Ended, Flowing, Open};

impl<T> Replies<T> {
    /// The next item; `None` after the runtime ended the stream. Cancel safe. After an error
    /// there is nothing more to come.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Gathers all items of a stream that ends, as the list-streaming calls do. A part of a list
    /// is never returned.
    // k8s: cri-client/pkg/remote_runtime.go: partial results of a stream are discarded
    pub async fn collect(mut self, within: Duration) -> Result<Vec<T>, Error> {
        let gather = async {
            let mut items = Vec::new();
            while let Some(item) = self.next().await {
                items.push(item?);
            }
            Ok(items)
        };
        tokio::time::timeout(within, gather).await.unwrap_or_else(|_| {
            let message = "the stream did not end within the deadline".to_owned();
            Err(Error::client(self.method, "", Code::DeadlineExceeded, message))
        })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Error>>> {
        let answer = loop {
            match &mut self.state {
                Open(opening) => match ready!(opening.as_mut().poll(context)) {
                    Ok(response) => self.state = Flowing(Box::new(response.into_inner())),
                    Err(status) => break Err(status),
                },
                Flowing(stream) => match ready!(Pin::new(stream).poll_next(context)) {
                    Some(answer) => break answer,
                    None => {
                        self.state = Ended;
                        self.ticket.ended(Code::Ok);
                        return Poll::Ready(None);
                    }
                },
                Ended => return Poll::Ready(None),
            }
        };
        if answer.is_err() {
            self.state = Ended;
        }
        Poll::Ready(Some(self.client.settle(&mut self.ticket, "", answer)))
    }
}

impl<T> Stream for Replies<T> {
    type Item = Result<T, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(context)
    }
}

impl<T> std::fmt::Debug for State<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Open(_) => "Open",
            Flowing(_) => "Flowing",
            Ended => "Ended",
        })
    }
}

pub(crate) fn not_ready(error: tonic::transport::Error) -> Status {
    Status::from_error(Box::new(error))
}
