//! Answers that are sent twice: what no gRPC library lets a driver do.
//!
//! Input: the answers of a service. Output: the same, but of methods that the faults name `Twice` each
//! message of the body is sent again. The effect of the call is the usual one.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use crate::faults::FaultFile;

/// A service with answers that may be doubled.
#[derive(Clone, Debug)]
pub(crate) struct Doubled<S> {
    pub(crate) service: S,
    pub(crate) faults: FaultFile,
}

impl<S: NamedService> NamedService for Doubled<S> {
    const NAME: &'static str = S::NAME;
}

type Answer = Result<http::Response<Body>, Infallible>;

impl<S> Service<http::Request<Body>> for Doubled<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let method = path.rsplit_once('/').map_or(path, |(_, method)| method);
        // Before the call: it uses the rule up.
        let is_doubled = self.faults.is_doubled(method);
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(match is_doubled {
                true => answer.map(|body| Body::new(Echo { body, again: None })),
                false => answer,
            })
        })
    }
}

/// A body that sends each of its messages twice.
struct Echo {
    body: Body,
    again: Option<Bytes>,
}

impl hyper::body::Body for Echo {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        if let Some(bytes) = self.again.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.again = frame.data_ref().cloned();
        }
        frame
    }
}
