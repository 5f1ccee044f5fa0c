//! A unix socket that wakes its thread for incoming bytes, and for room to write only while there
//! is none.
//!
//! Tokio's own stream is woken for both. A peer that reads makes room, so that each request woke
//! the thread twice for nothing: once for its head, once for its message. Here a write is simply
//! tried; when the kernel takes nothing, a second descriptor of the socket is watched until it
//! does. Owner: one connection. Bounds: two descriptors.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Watched for incoming bytes.
    input: AsyncFd<UnixStream>,
    /// The same socket, watched for room while a write waits.
    output: Option<AsyncFd<UnixStream>>,
}

impl Socket {
    /// Takes a socket over. Needs a tokio runtime with I/O.
    pub(crate) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let input = watch(stream.into_std()?, Interest::READABLE)?;
        Ok(Self { input, output: None })
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        send: impl Fn(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let Some(output) = &self.output else {
            let sent = send(self.input.get_ref());
            if !matches!(&sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return Poll::Ready(sent);
            }
            let same = self.input.get_ref().try_clone()?;
            self.output = Some(watch(same, Interest::WRITABLE)?);
            return self.poll_send(context, send);
        };
        loop {
            let mut room = ready!(output.poll_write_ready(context))?;
            if let Ok(sent) = room.try_io(|output| send(output.get_ref())) {
                self.output = None;
                return Poll::Ready(sent);
            }
        }
    }
}

#[allow(deprecated, reason = "its successor is unsafe; a stream owns its one descriptor")]
fn watch(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(stream, interest)
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut arrival = ready!(self.input.poll_read_ready(context))?;
            let room = buffer.initialize_unfilled();
            let wanted = room.len();
            if let Ok(came) = arrival.try_io(|input| input.get_ref().read(room)) {
                let came = came?;
                if came > 0 && came < wanted {
                    // It is drained: later bytes are an arrival of their own.
                    arrival.clear_ready();
                }
                buffer.advance(came);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |mut socket| socket.write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |mut socket| socket.write_vectored(pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.input.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (Socket, tokio::net::UnixStream) {
        let (ours, theirs) = tokio::net::UnixStream::pair().expect("a pair of sockets");
        (Socket::new(ours).expect("it can be watched"), theirs)
    }

    /// More than a socket holds.
    const MUCH: usize = 4 << 20;

    #[tokio::test]
    async fn all_bytes_arrive_both_ways_however_much_at_once() {
        let (mut ours, mut theirs) = pair();
        let bytes: Vec<u8> = (0..MUCH).map(|at| (at % 251) as u8).collect();
        let mut back = vec![0; MUCH];
        let echo = async {
            let mut all = vec![0; MUCH];
            theirs.read_exact(&mut all).await.expect("they read");
            theirs.write_all(&all).await.expect("they write");
        };
        let ask = async {
            ours.write_all(&bytes).await.expect("we write");
            ours.read_exact(&mut back).await.expect("we read");
        };
        tokio::join!(echo, ask);
        assert!(back == bytes);
        assert!(ours.output.is_none(), "no write waits for room");
    }

    #[tokio::test]
    async fn room_is_watched_for_only_while_there_is_none() {
        let (mut ours, mut theirs) = pair();
        ours.write_all(b"little").await.expect("it fits");
        assert!(ours.output.is_none());
        let bytes = vec![7; MUCH];
        let mut sent = 0;
        let is_full = poll_fn(|context| {
            loop {
                match Pin::new(&mut ours).poll_write(context, &bytes[sent..]) {
                    Poll::Ready(now) => sent += now.expect("they are there"),
                    Poll::Pending => return Poll::Ready(()),
                }
            }
        });
        is_full.await;
        assert!(ours.output.is_some());
        let mut all = vec![0; 6 + sent];
        theirs.read_exact(&mut all).await.expect("what was taken arrives");
        ours.write_all(b"more").await.expect("there is room again");
        assert!(ours.output.is_none());
    }

    #[tokio::test]
    async fn an_end_is_seen_on_either_side() {
        let (mut ours, mut theirs) = pair();
        ours.shutdown().await.expect("we end");
        assert_eq!(theirs.read(&mut [0; 8]).await.expect("they see it"), 0);
        theirs.write_all(b"bye").await.expect("the other way is open");
        drop(theirs);
        let mut last = Vec::new();
        ours.read_to_end(&mut last).await.expect("we see theirs");
        assert_eq!(last, b"bye");
        ours.write_all(b"late").await.expect_err("the peer is gone");
    }
}
