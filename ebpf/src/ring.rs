//! Reads the kernel's ring of events on the caller's own runtime.
//!
//! Input: the `events` ring of bpf/pods.bpf.c. Output: decoded events, appended to the caller's
//! vector in the kernel's order. Owner: load.rs opens it. Bounds: at most [`BATCH_MAX`] events a
//! call, so that a storm of events shares the thread with everything else on it; what waits stays
//! in the ring, and what does not fit into the ring is counted by the kernel. No thread: the ring's
//! descriptor is polled by tokio.

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::decode::{KernelEvent, decode};

/// Events handed over at once at most.
pub const BATCH_MAX: usize = 256;

pub(crate) struct Ring {
    fd: AsyncFd<RingBuf<MapData>>,
    malformed: u64,
}

impl Ring {
    /// Must be called on a tokio runtime with I/O enabled.
    pub(crate) fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        // JUSTIFICATION: tokio's only way to poll a descriptor of ours.
        // SAFETY: the ring owns its map's descriptor and is neither replaced nor closed while it is
        // registered.
        #[allow(unsafe_code)]
        let fd = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE)? };
        Ok(Self { fd, malformed: 0 })
    }

    /// Records that were no events; not zero only if program and agent differ.
    pub(crate) fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Waits for an event, then appends all available ones. Cancel-safe: events are taken only
    /// after the last await.
    pub(crate) async fn next_batch(&mut self, out: &mut Vec<KernelEvent>) -> io::Result<()> {
        let full = out.len() + BATCH_MAX;
        let before = out.len();
        while out.len() == before {
            let mut ready = self.fd.readable_mut().await?;
            while out.len() < full {
                let Some(record) = ready.get_inner_mut().next() else {
                    // Readiness that came in meanwhile survives: tokio clears only what we have
                    // seen.
                    ready.clear_ready();
                    break;
                };
                match decode(&record) {
                    Ok(event) => out.push(event),
                    Err(error) => {
                        if self.malformed == 0 {
                            tracing::warn!(%error, "ignored; further ones are only counted");
                        }
                        self.malformed += 1;
                    }
                }
            }
        }
        Ok(())
    }
}
