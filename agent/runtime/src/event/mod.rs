//! Hints: reasons to read a pod, from the kernel, from CRI, from containerd.
//!
//! Every source turns its events into `PodsInput::Hint` and nothing else; state always comes from a
//! CRI read. A source may be missing, late, or wrong without harm: the slow relist is behind all of
//! them. `kernel` owns the eBPF source, `cri` the runtime's event stream, `containerd` its task
//! events.

pub mod containerd;
pub mod cri;
pub mod kernel;
mod oom_pace;

use std::time::Duration;

/// A reopened stream without an event counts as open after this time: runtimes answer nothing
/// before the first event.
const OPEN_AFTER: Duration = Duration::from_secs(1);

/// The next item of a stream; with `gap`, `None` once it counts as open. `next` is cancel safe.
async fn or_open<T>(gap: bool, next: impl Future<Output = T>) -> Option<T> {
    match gap {
        true => tokio::time::timeout(OPEN_AFTER, next).await.ok(),
        false => Some(next.await),
    }
}
