//! Turns the deliveries of the sources into inputs of the workers.
//!
//! Owner: one task. It first reads the running pods, so that a static pod that another agent
//! started is continued under its uid; it retries until the runtime has listed it, because the pods
//! of manifests that came under our uids instead would be taken for orphans and stopped. Then every
//! delivery is merged with the last one and the differences go to the workers, and the API server's
//! copy of each pod to the status writer. Mirror pods go to the writer only and never run. Broken
//! manifests are logged once, and their list is there for `explain`, which makes the text.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::status::writer::StatusWriter;
use pintle_agent_core::admit;
use pintle_agent_core::admit::Features;
use pintle_agent_core::desired::DesiredPods;
use pintle_agent_core::intake::{change, duplicate_text, input_of, lacking, report, shown};
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::source::{
    Delivery, PodSources, Problem, SourceKind, SourceReading, SourceUpdate, static_pod,
};
use pintle_agent_core::status_queue;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::worker::PodsInput;
use pintle_agent_runtime::observed::PodReader;
use pintle_api_types::pod;
use pintle_daemon::clock;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt, StreamMap};

/// Wait before the running pods are listed again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The deliveries of a source.
type Deliveries = Pin<Box<dyn Stream<Item = Delivery>>>;

/// Merges the deliveries of the sources and feeds the workers.
pub(crate) struct Intake {
    reader: PodReader,
    recorder: Recorder,
    inputs: mpsc::Sender<PodsInput>,
    broken: Arc<ArcSwap<Vec<Arc<Problem>>>>,
    deliveries: StreamMap<SourceKind, Deliveries>,
    desired: DesiredPods,
    writer: Option<Rc<StatusWriter>>,
    features: Features,
}

impl Intake {
    /// An intake without sources.
    pub(crate) fn new(
        reader: PodReader,
        recorder: Recorder,
        inputs: mpsc::Sender<PodsInput>,
        broken: Arc<ArcSwap<Vec<Arc<Problem>>>>,
    ) -> Self {
        Self {
            reader,
            recorder,
            inputs,
            broken,
            deliveries: StreamMap::new(),
            desired: DesiredPods::default(),
            writer: None,
            features: Features::default(),
        }
    }

    /// Sets the node's features, which a changed pod may need.
    pub(crate) fn on_a_node_with(self, features: Features) -> Self {
        Self { features, ..self }
    }

    /// Adds a source.
    pub(crate) fn listen<D: Into<Delivery> + 'static>(
        &mut self,
        kind: SourceKind,
        deliveries: mpsc::Receiver<D>,
    ) {
        let deliveries = ReceiverStream::new(deliveries).map(Into::into);
        self.deliveries.insert(kind, Box::pin(deliveries));
    }

    /// Sends the API server's objects to this writer.
    pub(crate) fn report_to(&mut self, writer: Rc<StatusWriter>) {
        self.writer = Some(writer);
    }

    /// Until every source is gone.
    pub(crate) async fn run(mut self, kinds: Vec<SourceKind>) {
        let running = self.running().await;
        let adopt = |pod: &_, changed_at| {
            let name = (pod::namespace(pod).to_owned(), pod::name(pod).to_owned());
            let same = running.get(&name)?;
            static_pod::adoptable(pod, changed_at, same)
        };
        let mut sources = PodSources::new(kinds);
        let mut unreadable = BTreeSet::new();
        let mut said_ready = sources.all_ready();
        if said_ready && self.ready().await.is_err() {
            return;
        }
        while let Some((kind, delivery)) = self.deliveries.next().await {
            let now = clock::now();
            let listed = match &delivery {
                Delivery::All(reading) if kind == SourceKind::Api => listed(reading),
                _ => Vec::new(),
            };
            let updates = match delivery {
                Delivery::All(reading) => sources.set(kind, reading, now, &adopt),
                Delivery::Changed(pod) => Vec::from_iter(sources.change(kind, *pod, now)),
                Delivery::Gone(pod) => Vec::from_iter(sources.remove(kind, &pod::uid(&pod))),
            };
            for update in &updates {
                if self.feed(kind, update).await.is_err() {
                    return;
                }
            }
            for copy in listed {
                self.queue_status(status_queue::QueueInput::Listed(copy));
            }
            if kind != SourceKind::Api {
                self.broken.store(Arc::clone(sources.problems()));
            }
            let now_unreadable = sources.unreadable();
            if now_unreadable != unreadable {
                unreadable = now_unreadable;
                if self.inputs.send(PodsInput::Unreadable(unreadable.clone())).await.is_err() {
                    return;
                }
            }
            if !said_ready && sources.all_ready() {
                said_ready = true;
                if self.ready().await.is_err() {
                    return;
                }
            }
        }
    }

    async fn ready(&self) -> Result<(), mpsc::error::SendError<PodsInput>> {
        self.queue_status(status_queue::QueueInput::SourcesReady);
        self.inputs.send(PodsInput::SourcesReady).await
    }

    fn queue_status(&self, input: status_queue::QueueInput) {
        if let Some(writer) = &self.writer {
            writer.take(input);
        }
    }

    /// Pods of the runtime, by namespace and name, once it lists them all.
    async fn running(&self) -> BTreeMap<(String, String), ObservedPod> {
        let mut said = false;
        loop {
            match self.look().await {
                Ok(running) => {
                    if said {
                        tracing::info!("the runtime has told which pods run already");
                    }
                    return running;
                }
                Err(error) if !std::mem::replace(&mut said, true) => tracing::warn!(
                    %error,
                    "no pod is started before the runtime has told which ones run already"
                ),
                Err(error) => tracing::debug!(%error, "pods that run already"),
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn look(&self) -> Result<BTreeMap<(String, String), ObservedPod>, pintle_cri::Error> {
        let mut running = BTreeMap::new();
        for listed in self.reader.list().await? {
            let names = (listed.namespace.as_str(), listed.name.as_str());
            let pod = match self.reader.read(&listed.uid, names).await {
                // It will not get shorter, and must not hold up other pods.
                Err(error) if error.is_too_long() => {
                    let (namespace, name) = names;
                    tracing::warn!(namespace, name, %error, "a pod of the runtime cannot be read");
                    continue;
                }
                answer => answer?,
            };
            if pod.any_running() {
                running.insert((listed.namespace, listed.name), pod);
            }
        }
        Ok(running)
    }

    async fn feed(
        &mut self,
        kind: SourceKind,
        update: &SourceUpdate,
    ) -> Result<(), mpsc::error::SendError<PodsInput>> {
        if let SourceUpdate::Broken(problem) = update {
            let kept = match problem.keeps_previous {
                true => "; its pod goes on as it was before",
                false => "",
            };
            tracing::warn!("broken manifest: {problem}{kept}");
            // There may be thousands, and logging a line for each would block other tasks of the
            // thread.
            tokio::task::coop::consume_budget().await;
        }
        if let SourceUpdate::Duplicate(pod) = update {
            self.recorder.emit_warning(pod, "FailedValidation", &duplicate_text(kind, pod));
        }
        let Some(pod) = update.pod() else { return Ok(()) };
        self.queue_status(report(kind, update, pod));
        let Some(input) = input_of(kind, update, pod) else { return Ok(()) };
        let lacking = lacking(&self.desired, self.features, update);
        let Some(uid) = self.desired.apply(update) else { return Ok(()) };
        self.recorder.register(pod);
        if let Some(text) = lacking {
            self.recorder.event(&uid, true, admit::LACKING, &text, None);
        }
        match update {
            SourceUpdate::Remove(_) => {
                self.recorder.stage(&uid, "Removed", None, pod::name(pod));
                self.desired.forget(&uid);
            }
            SourceUpdate::Reconcile(_) => {}
            _ => self.recorder.stage(&uid, change(update), None, &shown(kind, pod)),
        }
        self.inputs.send(input).await
    }
}

/// Every object of a complete list, without the fields that are read only upon a change.
fn listed(reading: &SourceReading) -> Vec<Arc<Pod>> {
    let metadata = |pod: &Pod| Pod { metadata: pod.metadata.clone(), ..Pod::default() };
    reading.pods.iter().map(|(pod, _)| Arc::new(metadata(pod))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::labels;
    use pintle_cri::fake::FakeRuntime;
    use pintle_cri::{Client, Code, Deadlines, Method, v1};

    /// A static pod that another agent started runs, and the runtime fails at first.
    #[tokio::test]
    async fn running_pods_are_listed_again_until_the_runtime_responds() {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        let uid = "4af1cdbcca19c224c1ba02493adc56a0";
        let labels = BTreeMap::from(
            [(labels::POD_UID, uid), (labels::POD_NAME, "etcd"), (labels::POD_NAMESPACE, "ns")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let metadata = v1::PodSandboxMetadata {
            name: "etcd".to_owned(),
            namespace: "ns".to_owned(),
            uid: uid.to_owned(),
            attempt: 0,
        };
        let config = v1::PodSandboxConfig {
            metadata: Some(metadata),
            labels: labels.clone(),
            ..Default::default()
        };
        let config = Some(config);
        let request = v1::RunPodSandboxRequest { config: config.clone(), ..Default::default() };
        let pod_sandbox_id =
            client.run_pod_sandbox(request).await.expect("a sandbox").pod_sandbox_id;
        let image = Some(v1::ImageSpec { image: "etcd".to_owned(), ..Default::default() });
        let pull = v1::PullImageRequest { image: image.clone(), ..Default::default() };
        client.pull_image(pull).await.expect("an image");
        let name = "c".to_owned();
        let metadata = Some(v1::ContainerMetadata { name, attempt: 0 });
        let container = v1::ContainerConfig { metadata, image, labels, ..Default::default() };
        let create = v1::CreateContainerRequest {
            pod_sandbox_id,
            config: Some(container),
            sandbox_config: config,
        };
        let container_id = client.create_container(create).await.expect("a container").container_id;
        client.start_container(v1::StartContainerRequest { container_id }).await.expect("started");
        runtime.clear_calls();
        runtime.on(Method::ListPodSandbox).times(1).fail(Code::Unavailable, "it restarts");
        runtime.on(Method::PodSandboxStatus).times(2).fail(Code::Unavailable, "it restarts");
        let (inputs, _queue) = mpsc::channel(1);
        let (reader, recorder) = (PodReader::new(client), Recorder::default());
        let intake = Intake::new(reader, recorder, inputs, Arc::default());
        let running = intake.running().await;
        let found = running.get(&("ns".to_owned(), "etcd".to_owned())).expect("it runs");
        assert_eq!(found.uid.as_str(), uid);
        assert!(runtime.calls_of(Method::ListPodSandbox, "").len() >= 3);
    }

    #[tokio::test]
    async fn a_pod_that_is_too_long_to_be_read_holds_up_no_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        for uid in ["long", "short"] {
            let names =
                [(labels::POD_UID, uid), (labels::POD_NAME, uid), (labels::POD_NAMESPACE, "ns")];
            let metadata = v1::PodSandboxMetadata {
                name: uid.to_owned(),
                namespace: "ns".to_owned(),
                uid: uid.to_owned(),
                attempt: 0,
            };
            let config = Some(v1::PodSandboxConfig {
                metadata: Some(metadata),
                labels: names.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
                ..Default::default()
            });
            let request = v1::RunPodSandboxRequest { config, ..Default::default() };
            client.run_pod_sandbox(request).await.expect("a sandbox");
        }
        let fault = runtime.on(Method::PodSandboxStatus).matching("long");
        let _lift = fault.fail(Code::ResourceExhausted, "larger than max");
        let (inputs, _queue) = mpsc::channel(1);
        let intake =
            Intake::new(PodReader::new(client), Recorder::default(), inputs, Arc::default());
        let told = tokio::time::timeout(std::time::Duration::from_secs(30), intake.running());
        assert!(told.await.expect("the runtime answers").is_empty(), "no container runs");
        assert!(!runtime.calls_of(Method::PodSandboxStatus, "short").is_empty());
    }
}
