//! What the runtime says of containers' writable layers.
//!
//! Effects. Output: bytes and inodes by container id; `None` while the runtime does not tell them: it
//! asks the disk that may be the one in need. Bounds: one question at a time, which goes on for
//! `ASK_MAX`; nobody waits for it longer than `READ_MAX`, and an answer that came later is the next
//! one's if that asks within `FRESH_FOR`.
// k8s: pkg/kubelet/stats/cri_stats_provider.go listPodStatsPartiallyFromCRI

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pintle_cri::{Client, v1};
use pintle_daemon::tasks;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::files::Usage;

/// How long an answer is waited for.
const READ_MAX: Duration = Duration::from_secs(2);
/// How long the runtime may take.
// k8s: pkg/kubelet/apis/config/v1beta1/defaults.go RuntimeRequestTimeout
const ASK_MAX: Duration = Duration::from_secs(120);
/// How long an answer for which nobody waited is worth something.
const FRESH_FOR: Duration = Duration::from_secs(15);

/// Writable layers by container id.
pub(super) type Sizes = HashMap<String, Usage>;

/// What came of a question, and when.
type AnswerAt = (Option<Sizes>, Instant);

/// Asks for them.
#[derive(Debug)]
pub(super) struct Layers {
    runtime: Client,
    asked: Mutex<Option<JoinHandle<AnswerAt>>>,
}

impl Layers {
    pub(super) fn new(runtime: Client) -> Self {
        Self { runtime, asked: Mutex::default() }
    }

    /// What the runtime tells now, or told while nobody waited.
    pub(super) async fn read(&self) -> Option<Arc<Sizes>> {
        let mut asked = self.asked.lock().await;
        if asked.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(answer) = asked.take()
            && let Ok((Some(told), at)) = answer.await
            && at.elapsed() < FRESH_FOR
        {
            return Some(Arc::new(told));
        }
        let answer = asked.get_or_insert_with(|| {
            let runtime = self.runtime.clone();
            let ask = async move { (layers(&runtime, ASK_MAX).await, Instant::now()) };
            tasks::serve("writable layers", ask)
        });
        let (told, _) = tokio::time::timeout(READ_MAX, answer).await.ok()?.ok()?;
        *asked = None;
        told.map(Arc::new)
    }
}

/// The runtime's answer; `None` without one.
pub(super) async fn layers(runtime: &Client, wait: Duration) -> Option<Sizes> {
    let asked = runtime.list_container_stats(v1::ListContainerStatsRequest::default());
    let told = tokio::time::timeout(wait, asked).await.ok()?;
    let told = told.inspect_err(|error| tracing::debug!(%error, "no writable layers are known"));
    let layers = told.ok()?.stats.into_iter().filter_map(|stats| {
        let layer = stats.writable_layer?;
        let usage = Usage {
            bytes: layer.used_bytes.map_or(0, |value| value.value),
            inodes: layer.inodes_used.map_or(0, |value| value.value),
        };
        Some((stats.attributes?.id, usage))
    });
    Some(layers.collect())
}

#[cfg(test)]
mod tests {
    use pintle_cri::fake::FakeRuntime;
    use pintle_cri::{Code, Deadlines, Method};

    use super::*;

    #[tokio::test]
    async fn a_runtime_that_does_not_tell_layers_has_not_said_that_there_are_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        let layers = Layers::new(client);
        assert_eq!(layers.read().await.as_deref(), Some(&Sizes::new()));
        let down = runtime.on(Method::ListContainerStats).fail(Code::Internal, "not now");
        assert_eq!(layers.read().await, None);
        down.lift();
        let slow = Duration::from_millis(2500);
        let slow = runtime.on(Method::ListContainerStats).delay(slow);
        let began = Instant::now();
        assert_eq!(layers.read().await, None, "the question goes on");
        assert!(began.elapsed() < Duration::from_millis(2400), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
        slow.lift();
        let asked = runtime.calls_of(Method::ListContainerStats, "").len();
        assert!(layers.read().await.is_some(), "its answer is the next one's");
        assert_eq!(runtime.calls_of(Method::ListContainerStats, "").len(), asked);
    }
}
