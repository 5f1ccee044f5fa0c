//! A socket with limits on reading.
//!
//! Effects. Two bounds. An unknown client may send `unknown_bytes` in all, TLS included, before one
//! of its requests is allowed or an open answer has ended: that is more than any honest request
//! head and ends every flood of frames. After `TURN_BYTES` in a row any client yields to the
//! thread's other tasks, so that a client that sends without pause gets no more than a share of the
//! thread.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Connection;

/// Bytes that are read before other tasks have their turn.
const TURN_BYTES: usize = 8 * 1024;

/// A metered socket.
pub struct Metered<S> {
    inner: S,
    connection: Arc<Connection>,
    unknown_bytes: usize,
    read: usize,
    in_a_row: usize,
}

impl<S> Metered<S> {
    /// Meters `inner`; `unknown_bytes` may be read before its client is known.
    pub fn new(inner: S, connection: Arc<Connection>, unknown_bytes: usize) -> Self {
        Self { inner, connection, unknown_bytes, read: 0, in_a_row: 0 }
    }

    fn is_over_budget(&mut self) -> bool {
        if self.read <= self.unknown_bytes || self.connection.is_free.load(Ordering::Relaxed) {
            return false;
        }
        if self.connection.is_renewed.swap(false, Ordering::Relaxed) {
            self.read = 0;
        }
        self.read > self.unknown_bytes
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_over_budget() {
            let why = "an unknown client sent too much";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::QuotaExceeded, why)));
        }
        if self.in_a_row >= TURN_BYTES {
            self.in_a_row = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        self.read = self.read.saturating_add(read);
        self.in_a_row = if polled.is_pending() { 0 } else { self.in_a_row + read };
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.connection.wrote(written);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(written)) = polled {
            self.connection.wrote(written);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
