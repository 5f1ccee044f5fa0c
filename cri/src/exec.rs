//! ExecSync whose answer is read piece by piece: of each output only the first bytes are kept.
//!
//! A command may print 16 MiB, and many run at a time. The usual way holds the whole answer before
//! its first field can be seen; callers that look at ten KiB of it read it here instead. Output:
//! the answer with its outputs cut. Bounds: `keep_bytes` of each output, and the pieces in which
//! the connection hands them over.

use std::future::poll_fn;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::client::not_ready;
use crate::{Call, Client, Error, MESSAGE_BYTES_MAX, Method, v1};

/// Bytes before a message: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;

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
    let mut scan = Scan::new(keep_bytes);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => scan.read(&data)?,
            Err(frame) => match frame.trailers_ref().and_then(Status::from_header_map) {
                Some(status) if status.code() == Code::Ok => return scan.done(),
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

/// Where the reader stands within the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the bytes before it; so many have come.
    Head(usize),
    /// In the key of a field.
    Key,
    /// In a number of that field.
    Number(u64),
    /// In the length of that field.
    Length(u64),
    /// In the content of that field, of which so many bytes are to come.
    Content(u64, u64),
}

/// Reads an `ExecSyncResponse` as its bytes come.
#[derive(Debug)]
struct Scan {
    at: At,
    keep_bytes: usize,
    /// The number that is being read, and how many of its bits have come.
    number: u64,
    bits: u32,
    /// Bytes of the message that are to come.
    left: u64,
    answer: v1::ExecSyncResponse,
}

impl Scan {
    fn new(keep_bytes: usize) -> Self {
        let answer = v1::ExecSyncResponse::default();
        Self { at: At::Head(0), keep_bytes, number: 0, bits: 0, left: 0, answer }
    }

    fn read(&mut self, mut data: &[u8]) -> Result<(), Status> {
        while !data.is_empty() {
            if let At::Content(field, length) = self.at {
                let here = usize::try_from(length).unwrap_or(usize::MAX).min(data.len());
                self.keep(field, &data[..here]);
                self.spend(here as u64)?;
                let length = length - here as u64;
                self.at = if length == 0 { At::Key } else { At::Content(field, length) };
                data = &data[here..];
                continue;
            }
            self.byte(data[0])?;
            data = &data[1..];
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> Result<(), Status> {
        if let At::Head(came) = self.at {
            if came == 0 && byte != 0 {
                return Err(Status::unimplemented("a compressed answer was not asked for"));
            }
            self.left = (self.left << 8) | u64::from(byte);
            self.at = if came + 1 == HEAD_BYTES { At::Key } else { At::Head(came + 1) };
            if self.left > MESSAGE_BYTES_MAX as u64 {
                let text = format!("an answer of {} bytes is too long", self.left);
                return Err(Status::resource_exhausted(text));
            }
            return Ok(());
        }
        self.spend(1)?;
        if self.bits >= u64::BITS {
            return Err(broken());
        }
        self.number |= u64::from(byte & 0x7F) << self.bits;
        self.bits += 7;
        if byte & 0x80 != 0 {
            return Ok(());
        }
        let number = std::mem::take(&mut self.number);
        self.bits = 0;
        self.at = match self.at {
            At::Key => match number & 7 {
                0 => At::Number(number >> 3),
                1 => At::Content(0, 8),
                2 => At::Length(number >> 3),
                5 => At::Content(0, 4),
                _ => return Err(broken()),
            },
            At::Length(_) if number == 0 => At::Key,
            At::Length(field) => At::Content(field, number),
            _ => {
                if self.at == At::Number(3) {
                    self.answer.exit_code = number as i32;
                }
                At::Key
            }
        };
        Ok(())
    }

    fn keep(&mut self, field: u64, data: &[u8]) {
        let output = match field {
            1 => &mut self.answer.stdout,
            2 => &mut self.answer.stderr,
            _ => return,
        };
        let room = self.keep_bytes.saturating_sub(output.len());
        output.extend_from_slice(&data[..data.len().min(room)]);
    }

    fn spend(&mut self, bytes: u64) -> Result<(), Status> {
        self.left = self.left.checked_sub(bytes).ok_or_else(broken)?;
        Ok(())
    }

    fn done(self) -> Result<v1::ExecSyncResponse, Status> {
        match self.at {
            At::Key if self.left == 0 => Ok(self.answer),
            _ => Err(broken()),
        }
    }
}

fn broken() -> Status {
    Status::internal("the runtime's answer is no ExecSyncResponse")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
        [&[0][..], &length, message].concat()
    }

    fn scan(pieces: &[&[u8]], keep_bytes: usize) -> Result<v1::ExecSyncResponse, Status> {
        let mut scan = Scan::new(keep_bytes);
        for piece in pieces {
            scan.read(piece)?;
        }
        scan.done()
    }

    proptest! {
        #[test]
        fn an_answer_is_read_whatever_its_pieces_and_cut(
            stdout in proptest::collection::vec(any::<u8>(), 0..300),
            stderr in proptest::collection::vec(any::<u8>(), 0..300),
            exit_code: i32, keep in 0_usize..320, cuts in proptest::collection::vec(0_usize..700, 0..6),
        ) {
            let answer = v1::ExecSyncResponse { stdout, stderr, exit_code };
            let bytes = framed(&answer.encode_to_vec());
            let mut cuts: Vec<_> = cuts.into_iter().map(|at| at.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let mut expected = answer;
            expected.stdout.truncate(keep);
            expected.stderr.truncate(keep);
            prop_assert_eq!(scan(&pieces, keep).expect("it is whole"), expected);
            let short = &bytes[..bytes.len() - 1];
            prop_assert!(bytes.len() == HEAD_BYTES || scan(&[short], keep).is_err());
        }

        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(answer) = scan(&[&framed(&bytes)], 10) {
                prop_assert!(answer.stdout.len() <= 10 && answer.stderr.len() <= 10);
            }
            let _ = scan(&[&bytes], 10);
        }
    }

    #[test]
    fn fields_of_a_later_protocol_are_passed_over() {
        let answer = v1::ExecSyncResponse { exit_code: 7, ..Default::default() };
        let mut bytes = vec![0x22, 3, b'x', b'y', b'z', 0x29]; // field 4: bytes, field 5: 64 bit
        bytes.extend([0; 8]);
        bytes.extend([0x35, 0, 0, 0, 0, 0x38, 0xAC, 2, 0x1A, 0]); // 32 bit, a number, nothing
        bytes.extend(answer.encode_to_vec());
        assert_eq!(scan(&[&framed(&bytes)], 5).expect("it is whole"), answer);
    }

    #[test]
    fn an_answer_beyond_the_bound_of_messages_is_refused_before_it_is_read() {
        let length = u32::try_from(MESSAGE_BYTES_MAX + 1).expect("it fits").to_be_bytes();
        let refused = scan(&[&[0], &length], 5).expect_err("it is too long");
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
}
