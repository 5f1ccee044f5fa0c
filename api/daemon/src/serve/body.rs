//! Bodies of answers: whole, or a stream at the pace of its reader. A body that is aborted ends
//! with an error, so that its client does not take the received part for the whole.
//!
//! Bounds: at most `PIECES_MAX` pieces of a stream are in memory, each of the size that the writer
//! chose. The pieces that the HTTP library has taken count, because it would take sixteen of them
//! for a reader that stalls. The writer waits until a piece was sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep_until};

use super::answer::HttpAnswer;

/// Bytes of a whole body that the HTTP library takes at a time. The library takes further slices
/// only as it sends, so a large body is not released before its reader has nearly all of it.
const SLICE_BYTES: usize = 64 * 1024;
/// The most pieces of a stream that are not sent yet.
const PIECES_MAX: usize = 4;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Broken>;
/// An answer on its way out.
pub type Reply = Response<Body>;

/// Reason why an answer is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The answer exceeded its time limit.
    #[error("the answer took too long")]
    Overdue,
    /// The stream was ended because another one needed its place.
    #[error("the stream was ended to make room for another one")]
    Displaced,
}

/// The writing end of a stream; dropping it ends the stream.
#[derive(Debug)]
pub struct StreamSink {
    pieces: mpsc::Sender<Result<Piece, Broken>>,
    room: Arc<Semaphore>,
}

/// The reader has closed the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client no longer reads the answer")]
pub struct Closed;

impl StreamSink {
    /// Sends a piece once there is room for it.
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        let room = Arc::clone(&self.room);
        let room = tokio::select! {
            room = room.acquire_owned() => room.map_err(|_| Closed)?,
            () = self.closed() => return Err(Closed),
        };
        self.pieces.send(Ok(Piece { bytes, _room: room })).await.map_err(|_| Closed)
    }

    /// Ends the stream with an error, which follows the pieces that were sent before.
    pub fn break_off(self, why: Broken) {
        // The channel has room for the error, because it holds one entry more than `PIECES_MAX`.
        let _ = self.pieces.try_send(Err(why));
    }

    /// Waits until the reader closes the stream.
    pub async fn closed(&self) {
        self.pieces.closed().await;
    }
}

/// A part of a stream. The HTTP library drops it after it was sent, which releases its permit.
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

/// A body with all its bytes available.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Whole(bytes.into()).boxed_unsync()
}

/// A body that is written as it is read.
pub fn streamed() -> (StreamSink, Body) {
    let (pieces, read) = mpsc::channel(PIECES_MAX + 1);
    let room = Arc::new(Semaphore::new(PIECES_MAX));
    (StreamSink { pieces, room }, Pieces(read).boxed_unsync())
}

impl From<HttpAnswer> for Reply {
    fn from(answer: HttpAnswer) -> Self {
        Response::<Bytes>::from(answer).map(whole)
    }
}

struct Whole(Bytes);

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let length = self.0.len().min(SLICE_BYTES);
        let slice = self.0.split_to(length);
        Poll::Ready((!slice.is_empty()).then(|| Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// The same body; `held` is dropped with the body, after it was sent or its reader disconnected.
pub fn holding<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    Holding { body, _held: held }.boxed_unsync()
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The same body, which ends with [`Broken::Overdue`] if it is not complete at `end`.
pub fn until(body: Body, end: Instant) -> Aging {
    Aging { body, end, timer: None }
}

/// A body with a deadline.
pub struct Aging {
    body: Body,
    end: Instant,
    /// Created when the body first has to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Aging {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let end = self.end;
        if Instant::now() >= end {
            return Poll::Ready(Some(Err(Broken::Overdue)));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        timer.as_mut().poll(context).map(|()| Some(Err(Broken::Overdue)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Pieces(mpsc::Receiver<Result<Piece, Broken>>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| Some(piece?.map(|piece| Frame::data(Bytes::from_owner(piece)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    /// The HTTP library takes pieces before they are sent: pieces that it holds count.
    #[tokio::test]
    async fn stream_waits_until_taken_pieces_are_sent() {
        let (sink, mut body) = streamed();
        let piece = || Bytes::from_static(b"piece");
        let mut taken = Vec::new();
        for _ in 0..PIECES_MAX {
            sink.send(piece()).await.expect("there is room");
            let frame = body.frame().await.expect("a piece").expect("never fails");
            taken.push(frame.into_data().expect("data"));
        }
        assert!(taken.iter().all(|bytes| **bytes == *b"piece"));
        assert_eq!(sink.send(piece()).now_or_never(), None, "no piece was sent yet");
        taken.pop();
        assert_eq!(sink.send(piece()).now_or_never(), Some(Ok(())), "one was sent");
        let waits = sink.send(piece());
        drop(body);
        assert_eq!(waits.await, Err(Closed), "the waiting writer gets an error");
    }

    #[tokio::test]
    async fn aborted_stream_ends_with_an_error() {
        let (sink, mut body) = streamed();
        for _ in 0..PIECES_MAX {
            sink.send(Bytes::from_static(b"piece")).await.expect("there is room");
        }
        sink.break_off(Broken::Displaced);
        for _ in 0..PIECES_MAX {
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        }
        let end = body.frame().await.map(|frame| frame.map(|_| ()));
        assert_eq!(end, Some(Err(Broken::Displaced)));
    }
}
