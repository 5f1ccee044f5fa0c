//! ExecSync with an answer that is read piece by piece: of each output only the first bytes are
//! kept.
//!
//! A command may print 16 MiB, and many run at a time. The usual way holds the whole answer before
//! its first field can be seen; callers that need ten KiB of it read it here instead. Output: the
//! answer with its outputs cut. Bounds: `keep_bytes` of each output, and the pieces in which the
//! connection hands them over. `exec_answer` decodes the bytes.

use std::future::poll_fn;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::client::not_ready;
use crate::exec_answer::{HEAD_BYTES, Scan, Unreadable};
use crate::{Client, CriCall, Error, MESSAGE_BYTES_MAX, Method, v1};

impl Client {
    /// Runs a command within a deadline of the caller's own choice and keeps no more than the
    /// first bytes of each of its outputs.
    pub async fn exec_cut(
        &self,
        request: v1::ExecSyncRequest,
        deadline: Option<Duration>,
        keep_bytes: usize,
    ) -> Result<v1::ExecSyncResponse, Error> {
        let subject = request.subject();
        let sent = exec(self.channel(), request, deadline, keep_bytes);
        self.within(Method::ExecSync, &subject, deadline, sent).await
    }
}

async fn exec(
    mut channel: Channel,
    request: v1::ExecSyncRequest,
    deadline: Option<Duration>,
    keep_bytes: usize,
) -> Result<v1::ExecSyncResponse, Status> {
    poll_fn(|context| channel.poll_ready(context)).await.map_err(not_ready)?;
    let wire = wire(&request, deadline).map_err(|error| Status::internal(error.to_string()))?;
    let answer = channel.call(wire).await.map_err(|error| Status::from_error(Box::new(error)))?;
    if let Some(status) = Status::from_header_map(answer.headers())
        && status.code() != Code::Ok
    {
        return Err(status);
    }
    let http = answer.status();
    let mut body = answer.into_body();
    let mut scan = Scan::new(keep_bytes, MESSAGE_BYTES_MAX);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => scan.read(&data)?,
            Err(frame) => match frame.trailers_ref().and_then(Status::from_header_map) {
                Some(status) if status.code() == Code::Ok => return Ok(scan.done()?),
                Some(status) => return Err(status),
                None => {}
            },
        }
    }
    Err(Status::unknown(format!("the runtime's answer broke off (HTTP status {http})")))
}

fn wire(
    request: &v1::ExecSyncRequest,
    deadline: Option<Duration>,
) -> Result<http::Request<Body>, http::Error> {
    let length = request.encoded_len();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + length);
    bytes.push(0);
    bytes.extend((length as u32).to_be_bytes());
    request.encode_raw(&mut bytes);
    let mut headers = Request::new(());
    if let Some(deadline) = deadline {
        headers.set_timeout(deadline); // lets the runtime stop working on it, too
    }
    let mut wire = http::Request::builder()
        .method(http::Method::POST)
        .version(http::Version::HTTP_2)
        .uri(Method::ExecSync.path())
        .body(Body::new(Full::new(Bytes::from(bytes))))?;
    *wire.headers_mut() = headers.into_parts().0.into_headers();
    let value = http::HeaderValue::from_static;
    wire.headers_mut().insert(http::header::TE, value("trailers"));
    wire.headers_mut().insert(http::header::CONTENT_TYPE, value("application/grpc"));
    Ok(wire)
}

impl From<Unreadable> for Status {
    fn from(why: Unreadable) -> Self {
        let text = why.to_string();
        match why {
            Unreadable::Compressed => Self::unimplemented(text),
            Unreadable::TooLong(_) => Self::resource_exhausted(text),
            Unreadable::Broken => Self::internal(text),
        }
    }
}
