//! The body of an answer, with what the fault makes of it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use serde_json::json;

use super::RequestFault;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A body that breaks as its fault says.
pub(super) struct Broken {
    from: From,
    /// Bytes that pass; beyond them the fault has its way.
    left: usize,
    then: Then,
}

enum From {
    ApiServer(Incoming),
    /// A text of ours; `None` when it was sent.
    Own(Option<Bytes>),
}

/// Action when `left` bytes have passed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// There is no limit.
    Pass,
    Fail,
    End,
}

impl Broken {
    /// A text of ours.
    pub(super) fn whole(text: String) -> Self {
        Self { from: From::Own(Some(text.into())), left: 0, then: Then::Pass }
    }

    /// The API server's body under a fault.
    pub(super) fn of(body: Incoming, fault: RequestFault) -> Self {
        let (left, then) = match fault {
            RequestFault::Gone => return Self::whole(gone()),
            RequestFault::Lose => (0, Then::Fail),
            RequestFault::Truncate(bytes) => (bytes, Then::Fail),
            RequestFault::End(bytes) => (bytes, Then::End),
            RequestFault::Swallow => (0, Then::End),
            RequestFault::None | RequestFault::Refuse(..) | RequestFault::Slow(_) => {
                (0, Then::Pass)
            }
        };
        Self { from: From::ApiServer(body), left, then }
    }

    /// Passes, changes or drops some bytes; `None` ends the body.
    fn pass(&mut self, mut bytes: Bytes) -> Option<Result<Bytes, Failure>> {
        if self.then == Then::Pass {
            return Some(Ok(bytes));
        }
        bytes.truncate(self.left);
        self.left -= bytes.len();
        match self.then {
            _ if !bytes.is_empty() => Some(Ok(bytes)),
            Then::Fail => Some(Err("broken by the test".into())),
            Then::End | Then::Pass => None,
        }
    }
}

/// The event with which a watch reports that its resource version is too old.
fn gone() -> String {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410,
    });
    format!("{}\n", json!({"type": "ERROR", "object": status}))
}

impl Body for Broken {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let frame = match &mut self.from {
            From::Own(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            From::ApiServer(body) => ready!(Pin::new(body).poll_frame(context)),
        };
        let Some(frame) = frame else { return Poll::Ready(None) };
        let passed = match frame.map(Frame::into_data) {
            Ok(Ok(bytes)) => self.pass(bytes),
            // Trailers: there are none that matter.
            Ok(Err(_)) => None,
            Err(error) => Some(Err(error.into())),
        };
        Poll::Ready(passed.map(|bytes| bytes.map(Frame::data)))
    }
}
