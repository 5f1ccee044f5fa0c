//! Just enough HTTP/2 to answer `grpc.health.v1.Health/Check`.
//!
//! Every request on a connection is treated as a health check; its headers are not decoded, so no
//! compression state is needed, and ours are sent as literals. The requested service name is read
//! from the message: `unknown` is answered with NOT_FOUND, every other one with the shared health.
//! Our own because a full HTTP/2 stack would be larger than everything else in the image.

use std::io::{Error, Read, Write};
use std::net::TcpStream;

use crate::serve::ServedHealth;

/// Connection preface of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Largest frame a client may send without asking, in bytes.
const FRAME_BYTES_MAX: usize = 16 << 10;
/// The service name that this server answers with NOT_FOUND.
const UNKNOWN_SERVICE: &[u8] = b"unknown";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(crate) fn serve(mut stream: TcpStream, health: &ServedHealth) -> std::io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface)?;
    send(&mut stream, SETTINGS, 0, 0, &[])?;
    let mut message = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if length > FRAME_BYTES_MAX {
            return Err(Error::other("frame too long"));
        }
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        match kind {
            SETTINGS if flags & ACK == 0 => send(&mut stream, SETTINGS, ACK, 0, &[])?,
            PING if flags & ACK == 0 => send(&mut stream, PING, ACK, 0, &body)?,
            DATA => {
                message.extend_from_slice(&body);
                if flags & END_STREAM != 0 {
                    answer(&mut stream, id, &message, health)?;
                    message.clear();
                }
            }
            _ => {}
        }
    }
}

/// Sends headers, one message and trailers.
fn answer(
    stream: &mut TcpStream,
    id: u32,
    asked: &[u8],
    health: &ServedHealth,
) -> std::io::Result<()> {
    let is_healthy = health.ask();
    let mut headers = vec![0x88]; // :status 200, from the static table
    literal(&mut headers, "content-type", "application/grpc");
    send(stream, HEADERS, END_HEADERS, id, &headers)?;
    // Five bytes of gRPC framing, then field 1 (service) of the request.
    let service = asked.get(7..).unwrap_or_default();
    let is_known = service != UNKNOWN_SERVICE;
    if is_known {
        // HealthCheckResponse { status }: SERVING is 1, NOT_SERVING 2.
        let status = if is_healthy { 1 } else { 2 };
        send(stream, DATA, 0, id, &[0, 0, 0, 0, 2, 0x08, status])?;
    }
    let mut trailers = Vec::new();
    literal(&mut trailers, "grpc-status", if is_known { "0" } else { "5" });
    send(stream, HEADERS, END_HEADERS | END_STREAM, id, &trailers)
}

/// A header field that neither side remembers.
fn literal(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    for text in [name, value] {
        assert!(text.len() < 127, "one length byte");
        out.push(text.len() as u8);
        out.extend_from_slice(text.as_bytes());
    }
}

fn send(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, body: &[u8]) -> std::io::Result<()> {
    let mut frame = (body.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend(body);
    stream.write_all(&frame)
}
