//! The runtime's own container events as hints.
//!
//! Owner: one task for the life of the agent. The first subscriber receives buffered history, and a
//! stream may break at any time: neither matters, because an event only names the pod to read, and
//! once a stream is open again everything is listed. A runtime without the call is remembered by
//! the client and called again only after it restarted.
// k8s: pkg/kubelet/pleg/evented.go (as a hint source only)

use std::sync::Arc;
use std::time::Duration;

use pintle_agent_core::labels;
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::worker::{Hint, PodsInput};
use pintle_agent_metrics::Metrics;
use pintle_cri::{Client, v1};
use pintle_daemon::clock;
use tokio::sync::mpsc;

use super::or_open;

/// First and longest wait before the stream is opened again.
const REOPEN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Wait before a runtime without events is tried again; it may have been upgraded.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Forwards events as hints until the receiver is gone.
pub async fn run(client: Client, inputs: mpsc::Sender<PodsInput>, metrics: Arc<Metrics>) {
    let (mut wait, mut first) = (REOPEN.0, true);
    loop {
        match client.get_container_events(v1::GetEventsRequest {}) {
            Ok(mut stream) => {
                metrics.event_stream(true);
                let mut gap = !std::mem::take(&mut first);
                loop {
                    let item = or_open(gap, stream.next()).await;
                    if gap && !matches!(item, Some(None | Some(Err(_)))) {
                        gap = false;
                        if inputs.send(PodsInput::Lost).await.is_err() {
                            return;
                        }
                    }
                    let event = match item {
                        Some(Some(Ok(event))) => event,
                        Some(_) => break,
                        None => continue,
                    };
                    metrics.event_came(clock::now().since(UnixNanos(event.created_at)));
                    wait = REOPEN.0;
                    // The agent reads the results of its own actions afterwards.
                    let own = [
                        v1::ContainerEventType::ContainerCreatedEvent,
                        v1::ContainerEventType::ContainerStartedEvent,
                    ];
                    let Some(uid) =
                        pod_of(&event).filter(|_| !own.contains(&event.container_event_type()))
                    else {
                        continue;
                    };
                    if inputs.send(PodsInput::Hint { uid, hint: Hint::Changed }).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) if error.is_unimplemented() => wait = ASK_AGAIN,
            Err(error) => {
                metrics.event_stream(false);
                tracing::debug!(%error, "container events");
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(REOPEN.1.max(wait));
    }
}

fn pod_of(event: &v1::ContainerEventResponse) -> Option<PodUid> {
    labels::pod_uid(&event.pod_sandbox_status.as_ref()?.labels)
}
