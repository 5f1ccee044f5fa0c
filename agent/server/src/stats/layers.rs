//! Usage of containers' writable layers, from the runtime.
//!
//! Effects. Output: bytes and inodes by container id, and the time of the question: they do not
//! cover containers that were created later. `None` while the runtime does not answer: it asks the
//! disk, which may be the one under pressure. Bounds: one question at a time, shared by all
//! callers; it runs for `ASK_MAX`, while each caller has its own timeout. An answer that took
//! longer than `READ_MAX` is reused within `FRESH_FOR`, because eviction ranking did not wait for
//! it.
// k8s: pkg/kubelet/stats/cri_stats_provider.go listPodStatsPartiallyFromCRI

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pintle_agent_core::types::UnixNanos;
use pintle_agent_runtime::observed::all_containers;
use pintle_cri::{Client, Error, v1};
use pintle_daemon::{clock, tasks};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::files::FileUsage;

/// Longest wait for an answer in eviction ranking.
pub(super) const READ_MAX: Duration = Duration::from_secs(2);
/// Timeout of the runtime.
// k8s: pkg/kubelet/apis/config/v1beta1/defaults.go RuntimeRequestTimeout
pub(super) const ASK_MAX: Duration = Duration::from_secs(120);
/// How long a late answer is reused.
const FRESH_FOR: Duration = Duration::from_secs(15);

/// Writable layers by container id.
pub(super) type Sizes = HashMap<String, FileUsage>;

/// The runtime's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LayerSizes {
    pub(super) sizes: Sizes,
    /// Time of the question.
    pub(super) asked_at: UnixNanos,
}

/// Asks for them.
#[derive(Debug, Default)]
pub(super) struct Layers {
    last: Mutex<Option<Arc<LayerQuery>>>,
}

/// The answer to a question, and when it came.
type AnswerAt = (Option<Arc<LayerSizes>>, Instant);

/// The question in flight, or the last one.
#[derive(Debug)]
struct LayerQuery {
    /// Closed without an answer when the task panicked.
    answer: watch::Receiver<Option<AnswerAt>>,
    began: Instant,
    task: AbortHandle,
}

impl Layers {
    /// The runtime's current answer, or a recent one if the runtime is slow.
    pub(super) async fn read(&self, runtime: &Client, wait: Duration) -> Option<Arc<LayerSizes>> {
        let question = self.question(runtime);
        let mut answer = question.answer.clone();
        let answered = tokio::time::timeout(wait, answer.wait_for(Option::is_some)).await.ok()?;
        answered.ok()?.as_ref().and_then(|(sizes, _)| sizes.clone())
    }

    fn question(&self, runtime: &Client) -> Arc<LayerQuery> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.is_of_use()) {
            return Arc::clone(last);
        }
        let question = Arc::new(LayerQuery::ask(runtime.clone()));
        *last = Some(Arc::clone(&question));
        question
    }
}

impl LayerQuery {
    fn ask(runtime: Client) -> Self {
        let (sender, answer) = watch::channel(None);
        let ask = async move {
            let asked_at = clock::now();
            let sizes = layers(&runtime).await;
            let layers = sizes.map(|sizes| Arc::new(LayerSizes { sizes, asked_at }));
            sender.send_replace(Some((layers, Instant::now())));
        };
        let task = tasks::serve("writable layers", ask).abort_handle();
        Self { answer, began: Instant::now(), task }
    }

    fn is_of_use(&self) -> bool {
        match &*self.answer.borrow() {
            None => self.answer.has_changed().is_ok(),
            Some((sizes, at)) => {
                let is_late = at.duration_since(self.began) > READ_MAX;
                sizes.is_some() && is_late && at.elapsed() < FRESH_FOR
            }
        }
    }
}

impl Drop for LayerQuery {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The runtime's answer; `None` without one.
async fn layers(runtime: &Client) -> Option<Sizes> {
    let all = tokio::time::timeout(ASK_MAX, stats(runtime)).await.ok()?;
    let all = all.inspect_err(|error| tracing::debug!(%error, "no writable layers are known"));
    let layers = all.ok()?.into_iter().filter_map(|stats| {
        let layer = stats.writable_layer?;
        let usage = FileUsage {
            bytes: layer.used_bytes.map_or(0, |value| value.value),
            inodes: layer.inodes_used.map_or(0, |value| value.value),
        };
        Some((stats.attributes?.id, usage))
    });
    Some(layers.collect())
}

/// Figures of all containers; one by one where their labels and annotations are too long for an
/// answer.
async fn stats(runtime: &Client) -> Result<Vec<v1::ContainerStats>, Error> {
    let ask = async |filter| {
        let request = v1::ListContainerStatsRequest { filter };
        runtime.list_container_stats(request).await.map(|answer| answer.stats)
    };
    match ask(None).await {
        Err(error) if error.is_too_long() => {}
        answer => return answer,
    }
    let mut all = Vec::new();
    for container in all_containers(runtime).await? {
        let filter = v1::ContainerStatsFilter { id: container.id, ..Default::default() };
        all.extend(ask(Some(filter)).await?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use pintle_cri::fake::{FakeRuntime, PanicsOnce};
    use pintle_cri::{Code, Deadlines, Method};

    use super::*;

    const METHOD: Method = Method::ListContainerStats;

    async fn fake(dir: &tempfile::TempDir) -> (FakeRuntime, Client) {
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        (runtime, client)
    }

    fn calls(runtime: &FakeRuntime) -> usize {
        runtime.calls_of(METHOD, "").len()
    }

    #[tokio::test]
    async fn runtime_without_layer_sizes_is_distinguished_from_a_failed_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (runtime, client) = fake(&dir).await;
        let layers = Layers::default();
        let read = async || layers.read(&client, READ_MAX).await.map(|told| told.sizes.clone());
        assert_eq!(read().await, Some(Sizes::new()));
        let down = runtime.on(METHOD).fail(Code::Internal, "not now");
        assert_eq!(read().await, None);
        down.lift();
        assert_eq!(read().await, Some(Sizes::new()));
    }

    #[tokio::test]
    async fn where_all_are_too_long_for_an_answer_each_container_is_asked_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let (runtime, client) = fake(&dir).await;
        let image = Some(v1::ImageSpec { image: runtime.add_image("i"), ..Default::default() });
        for name in ["a", "b", "c"] {
            let name = name.to_owned();
            let metadata = v1::PodSandboxMetadata { name: name.clone(), ..Default::default() };
            let sandbox =
                Some(v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() });
            let request =
                v1::RunPodSandboxRequest { config: sandbox.clone(), ..Default::default() };
            let pod_sandbox_id =
                client.run_pod_sandbox(request).await.expect("a sandbox").pod_sandbox_id;
            let config = Some(v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata { name, attempt: 0 }),
                image: image.clone(),
                annotations: [("note".to_owned(), "x".repeat(6 << 20))].into(),
                ..Default::default()
            });
            let request =
                v1::CreateContainerRequest { pod_sandbox_id, config, sandbox_config: sandbox };
            let container_id = client.create_container(request).await.expect("made").container_id;
            let start = v1::StartContainerRequest { container_id };
            client.start_container(start).await.expect("started");
        }
        assert_eq!(stats(&client).await.expect("each layer is measured").len(), 3);
    }

    #[tokio::test]
    async fn callers_of_a_slow_runtime_share_a_single_read_and_keep_their_own_timeouts() {
        let dir = tempfile::tempdir().expect("a folder");
        let (runtime, client) = fake(&dir).await;
        let slow = runtime.on(METHOD).delay(READ_MAX - Duration::from_millis(500));
        let layers = Layers::default();
        let (began, short) = (clock::now(), Duration::from_millis(100));
        let brief = async {
            for _ in 0..3 {
                assert_eq!(layers.read(&client, short).await, None, "the question goes on");
            }
            clock::now().since(began)
        };
        let (patient, brief) = tokio::join!(layers.read(&client, READ_MAX), brief);
        assert!(patient.is_some_and(|told| told.asked_at >= began));
        assert!(brief < Duration::from_millis(1200), "{brief:?}");
        assert_eq!(calls(&runtime), 1);

        slow.lift();
        let slow = runtime.on(METHOD).delay(READ_MAX + Duration::from_millis(200));
        assert_eq!(layers.read(&client, short).await, None, "it is another question");
        assert!(layers.read(&client, READ_MAX * 2).await.is_some());
        slow.lift();
        assert!(
            layers.read(&client, short).await.is_some(),
            "a caller with a short deadline gets it"
        );
        assert_eq!(calls(&runtime), 2);
    }

    #[tokio::test]
    async fn panic_in_a_layer_read_fails_only_that_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (_runtime, client) = fake(&dir).await;
        let client = client.with_observer(Arc::new(PanicsOnce::default()));
        let layers = Layers::default();
        assert_eq!(layers.read(&client, READ_MAX).await, None);
        assert!(layers.read(&client, READ_MAX).await.is_some());
    }
}
