//! Servers that no client should meet: each takes any number of connections and mistreats them.
//!
//! | kind | what a client gets |
//! |---|---|
//! | silent | nothing, for ever |
//! | drip | a status line, then one byte of a header every 100 ms |
//! | headers | a status line and headers without end |
//! | body | a good head and a body without end |
//! | redirect | a redirect to the same place, each time |

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::Outcome;

/// Between two bytes of an answer that drips.
const DRIP_PERIOD: Duration = Duration::from_millis(100);

/// Serves `KIND=PORT` pairs, each on all addresses.
pub(crate) fn run(options: &[&str]) -> Outcome {
    for option in options {
        let (kind, port) = option.split_once('=').ok_or("rude takes KIND=PORT")?;
        let answer: fn(TcpStream) -> std::io::Result<()> = match kind {
            "silent" => silent,
            "drip" => drip,
            "headers" => headers,
            "body" => body,
            "redirect" => redirect,
            _ => return Err("no such kind of rudeness".into()),
        };
        let listener = TcpListener::bind(format!("[::]:{port}"))?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A small stack: there may be hundreds of connections.
                let one = thread::Builder::new().stack_size(64 << 10);
                let _ = one.spawn(move || answer(stream)); // the client's end is no failure
            }
        });
    }
    println!("rude");
    crate::pause()
}

/// Reads incoming bytes, so that the client's end is noticed.
fn silent(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

fn drip(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nX: ")?;
    loop {
        stream.write_all(b"x")?;
        thread::sleep(DRIP_PERIOD);
    }
}

fn headers(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
    let header = format!("X-More: {}\r\n", "x".repeat(1000));
    loop {
        stream.write_all(header.as_bytes())?;
    }
}

fn body(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")?;
    let chunk = [b'x'; 16 << 10];
    loop {
        stream.write_all(&chunk)?;
    }
}

fn redirect(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = [0; 2048];
    let _ = stream.read(&mut head)?;
    let port = stream.local_addr()?.port();
    let answer = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{}:{port}/again\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n",
        host_of(&head)
    );
    stream.write_all(answer.as_bytes())
}

/// The requested host, so that the redirect leads back here.
fn host_of(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head);
    let host =
        text.lines().find_map(|l| l.to_lowercase().strip_prefix("host: ").map(str::to_owned));
    let host = host.unwrap_or_else(|| "localhost".to_owned());
    host.split(':').next().unwrap_or_default().to_owned()
}
