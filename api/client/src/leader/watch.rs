//! A watch of the lease for a standby, so that a release is seen when it happens.
//!
//! Input: the lease's name. Output: when its holder gave it up or it was deleted. Effects: one
//! watch. Where the watch is refused it is not repeated, and attempts alone find a release. Bounds:
//! a watch that ends or fails is opened again at the next attempt, not before.

use futures_util::StreamExt as _;
use futures_util::TryStreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, WatchEvent, WatchParams};

/// A watch of one lease.
pub(super) struct LeaseWatch {
    api: Api<Lease>,
    name: String,
    state: State,
}

enum State {
    /// The next attempt to wait opens a watch.
    Closed,
    /// A watch is open, or being opened.
    Open(BoxStream<'static, kube::Result<WatchEvent<Lease>>>),
    /// The lease may not be watched.
    Refused,
}

/// The meaning of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchOutcome {
    /// No process holds the lease.
    Released,
    /// A process holds it.
    Held,
    /// The watch is of no use any more.
    Broken,
    /// The lease may not be watched.
    Refused,
}

impl LeaseWatch {
    /// Nothing is asked yet.
    pub(super) fn new(api: Api<Lease>, name: &str) -> Self {
        Self { api, name: name.to_owned(), state: State::Closed }
    }

    /// Waits until the lease has no holder. May be dropped and called again: the watch stays open. It
    /// waits for ever when the watch breaks or is refused.
    pub(super) async fn wait_for_release(&mut self) {
        if matches!(self.state, State::Closed) {
            self.state = State::Open(self.open());
        }
        while let State::Open(events) = &mut self.state {
            match seen(events.next().await) {
                WatchOutcome::Released => return,
                WatchOutcome::Held => {}
                WatchOutcome::Broken => {
                    self.state = State::Closed;
                    break;
                }
                WatchOutcome::Refused => {
                    tracing::info!(
                        lease = self.name,
                        "the lease may not be watched: it is read every few seconds instead"
                    );
                    self.state = State::Refused;
                }
            }
        }
        std::future::pending().await
    }

    /// Events of the lease from its present state on.
    fn open(&self) -> BoxStream<'static, kube::Result<WatchEvent<Lease>>> {
        let api = self.api.clone();
        let params = WatchParams::default().fields(&format!("metadata.name={}", self.name));
        // From "0" on the server begins with the lease as it is.
        let opened = async move { api.watch(&params, "0").await };
        futures_util::stream::once(opened).try_flatten().boxed()
    }
}

fn seen(event: Option<kube::Result<WatchEvent<Lease>>>) -> WatchOutcome {
    match event {
        Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease))) => {
            match super::term::holder(&lease) {
                Some(_) => WatchOutcome::Held,
                None => WatchOutcome::Released,
            }
        }
        Some(Ok(WatchEvent::Deleted(_))) => WatchOutcome::Released,
        Some(Ok(WatchEvent::Bookmark(_))) => WatchOutcome::Held,
        Some(Err(kube::Error::Api(status))) if [401, 403, 404, 405].contains(&status.code) => {
            WatchOutcome::Refused
        }
        Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => WatchOutcome::Broken,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, holder: &str) -> Option<kube::Result<WatchEvent<Lease>>> {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "a"}, "spec": {"holderIdentity": holder}});
        let event = json!({"type": kind, "object": lease});
        Some(Ok(serde_json::from_value(event).expect("an event")))
    }

    #[test]
    fn lease_without_a_holder_is_a_release() {
        for (kind, holder, expected) in [
            ("ADDED", "host_1", WatchOutcome::Held),
            ("MODIFIED", "host_1", WatchOutcome::Held),
            ("MODIFIED", "", WatchOutcome::Released),
            ("DELETED", "host_1", WatchOutcome::Released),
        ] {
            assert_eq!(seen(event(kind, holder)), expected, "{kind} {holder}");
        }
        assert_eq!(seen(None), WatchOutcome::Broken);
    }
}
