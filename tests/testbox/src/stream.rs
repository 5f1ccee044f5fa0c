//! Bytes in and out: a small HTTP client, a log writer with a rate, a slow TCP proxy.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;

/// Rates are kept in slices of this length.
const SLICE: Duration = Duration::from_millis(20);
/// How long a request may take.
const GET_WAIT: Duration = Duration::from_secs(5);

/// GET `HOST:PORT/PATH` (an `http://` before it is fine) and print the body.
pub(crate) fn get(url: &str) -> Outcome {
    let url = url.strip_prefix("http://").unwrap_or(url);
    let (host, path) = url.split_once('/').unwrap_or((url, ""));
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(GET_WAIT))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP answer")?;
    println!("{body}");
    let status = head.split(' ').nth(1).unwrap_or_default();
    Ok(u8::from(!status.starts_with('2')))
}

/// Lines `0000000042 xxxx...` so that a reader notices lost or repeated ones.
pub(crate) fn log(bytes_per_second: usize, line_bytes: usize) -> Outcome {
    let pad = "x".repeat(line_bytes.saturating_sub(12));
    let per_slice = (bytes_per_second as f64 * SLICE.as_secs_f64() / line_bytes as f64).ceil();
    let mut out = std::io::stdout().lock();
    let mut number = 0u64;
    let mut next = Instant::now();
    loop {
        for _ in 0..per_slice as u64 {
            writeln!(out, "{number:010} {pad}")?;
            number += 1;
        }
        out.flush()?;
        next += SLICE;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Passes bytes both ways; those from the target at no more than `bytes_per_second`.
pub(crate) fn throttle(listen: &str, target: &str, bytes_per_second: usize) -> Outcome {
    let listener = TcpListener::bind(listen)?;
    println!("proxying");
    for client in listener.incoming() {
        let (client, server) = (client?, TcpStream::connect(target)?);
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || pass(from, to, usize::MAX));
        thread::spawn(move || pass(server, client, bytes_per_second));
    }
    Ok(0)
}

fn pass(mut from: TcpStream, mut to: TcpStream, bytes_per_second: usize) {
    let slice = (bytes_per_second as f64 * SLICE.as_secs_f64()) as usize;
    let mut buffer = vec![0; slice.clamp(1, 64 << 10)];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
        if bytes_per_second != usize::MAX {
            thread::sleep(Duration::from_secs_f64(read as f64 / bytes_per_second as f64));
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
