//! Bodies of answers: whole, or a stream that its reader paces.
//!
//! Bounds: of a stream `PIECES_MAX` pieces of its writer's size are on their way, those that the HTTP
//! library has taken included: it keeps sixteen of its own for a reader that stalls. The writer waits
//! until one was sent, so a reader costs that much and no more.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep_until};

use super::answer::Answer;

/// Pieces of a stream that are on their way to its reader.
const PIECES_MAX: usize = 4;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// An answer on its way out.
pub type Reply = Response<Body>;

/// Where a stream is written to; dropping it ends the stream.
#[derive(Debug)]
pub struct Sink {
    pieces: mpsc::Sender<Piece>,
    room: Arc<Semaphore>,
}

/// Nobody reads the stream any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads the answer any more")]
pub struct Closed;

impl Sink {
    /// Sends a piece once there is room for it.
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        let room = Arc::clone(&self.room);
        let room = tokio::select! {
            room = room.acquire_owned() => room.map_err(|_| Closed)?,
            () = self.closed() => return Err(Closed),
        };
        self.pieces.send(Piece { bytes, _room: room }).await.map_err(|_| Closed)
    }

    /// Waits until nobody reads the stream any more.
    pub async fn closed(&self) {
        self.pieces.closed().await;
    }
}

/// A part of a stream; its room is free once it is sent, which is when it is dropped.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that is there already.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body that is written as it is read.
pub fn streamed() -> (Sink, Body) {
    let (pieces, read) = mpsc::channel(PIECES_MAX);
    let room = Arc::new(Semaphore::new(PIECES_MAX));
    (Sink { pieces, room }, Pieces(read).boxed_unsync())
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

/// The same body; it breaks off at that time, so that nobody takes what was sent for all of it.
pub fn until(body: Body, end: Instant) -> Aging {
    Aging { body, end, timer: None }
}

/// A body that has only so much time.
pub struct Aging {
    body: Body,
    end: Instant,
    /// Made when the body is first waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The time of an answer is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer took too long")]
pub struct Overdue;

impl HttpBody for Aging {
    type Data = Bytes;
    type Error = Overdue;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Overdue>>> {
        let end = self.end;
        if Instant::now() >= end {
            return Poll::Ready(Some(Err(Overdue)));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})));
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        timer.as_mut().poll(context).map(|()| Some(Err(Overdue)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Pieces(mpsc::Receiver<Piece>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| Ok(Frame::data(Bytes::from_owner(piece)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    /// The HTTP library takes pieces before they are sent: what it holds counts.
    #[tokio::test]
    async fn a_stream_waits_for_what_was_taken_and_not_sent() {
        let (sink, mut body) = streamed();
        let piece = || Bytes::from_static(b"piece");
        let mut taken = Vec::new();
        for _ in 0..PIECES_MAX {
            sink.send(piece()).await.expect("there is room");
            let frame = body.frame().await.expect("a piece").expect("never fails");
            taken.push(frame.into_data().expect("data"));
        }
        assert!(taken.iter().all(|bytes| **bytes == *b"piece"));
        assert_eq!(sink.send(piece()).now_or_never(), None, "all of it is on its way");
        taken.pop();
        assert_eq!(sink.send(piece()).now_or_never(), Some(Ok(())), "one was sent");
        let waits = sink.send(piece());
        drop(body);
        assert_eq!(waits.await, Err(Closed), "whoever waits learns that nobody reads");
    }
}
