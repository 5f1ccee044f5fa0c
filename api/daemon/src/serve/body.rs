//! Bodies of answers: whole, or a stream that its reader paces.
//!
//! Bounds: a stream holds `CHUNKS_MAX` chunks of its writer's size; the writer waits for room, so a
//! reader that stalls costs that much and no more.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

use super::answer::Answer;

/// Chunks of a stream that wait for their reader.
const CHUNKS_MAX: usize = 2;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// An answer on its way out.
pub type Reply = Response<Body>;
/// Where a stream is written to; dropping it ends the stream.
pub type Sink = mpsc::Sender<Bytes>;

/// A body that is there already.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body that is written as it is read.
pub fn streamed() -> (Sink, Body) {
    let (sink, chunks) = mpsc::channel(CHUNKS_MAX);
    (sink, Chunks(chunks).boxed_unsync())
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Response::<Full<Bytes>>::from(answer).map(|body| body.boxed_unsync())
    }
}

/// The same body; `held` is dropped with it, when it was sent or nobody wants it any more.
pub fn holding<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    Holding { body, _held: held }.boxed_unsync()
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Chunks(mpsc::Receiver<Bytes>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}
