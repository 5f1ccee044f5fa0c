//! From readings of the sources to inputs of the workers.
//!
//! Owner: one task. The first thing it does is to look at what runs already, so that a static pod
//! that another agent started is continued under its uid. Then every reading is merged with the
//! last one and the differences go to the workers. Broken manifests are said once in the log and
//! kept in a list for `explain`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::StreamMap;
use tokio_stream::wrappers::ReceiverStream;

use crate::desired::DesiredPods;
use crate::observed::{ObservedPod, Reader};
use crate::pod;
use crate::source::{Reading, SourceKind, SourceUpdate, Sources, static_pod};
use crate::status::timeline::{self, Recorder};
use crate::worker::Input;

/// Merges readings and feeds the workers.
pub struct Intake {
    reader: Reader,
    recorder: Recorder,
    inputs: mpsc::Sender<Input>,
    broken: Arc<ArcSwap<Vec<String>>>,
    readings: StreamMap<SourceKind, ReceiverStream<Reading>>,
    desired: DesiredPods,
}

impl Intake {
    /// An intake without sources.
    pub fn new(
        reader: Reader,
        recorder: Recorder,
        inputs: mpsc::Sender<Input>,
        broken: Arc<ArcSwap<Vec<String>>>,
    ) -> Self {
        let (readings, desired) = (StreamMap::new(), DesiredPods::default());
        Self { reader, recorder, inputs, broken, readings, desired }
    }

    /// Adds a source.
    pub fn listen(&mut self, kind: SourceKind, readings: mpsc::Receiver<Reading>) {
        self.readings.insert(kind, ReceiverStream::new(readings));
    }

    /// Until every source is gone.
    pub async fn run(mut self, kinds: Vec<SourceKind>) {
        let running = self.running().await;
        let adopt = |pod: &_, changed_at| {
            let name = (pod::namespace(pod).to_owned(), pod::name(pod).to_owned());
            let same = running.get(&name)?;
            static_pod::adoptable(pod, changed_at, same)
        };
        let mut sources = Sources::new(kinds);
        let mut said_ready = sources.all_ready();
        if said_ready && self.inputs.send(Input::SourcesReady).await.is_err() {
            return;
        }
        while let Some((kind, reading)) = self.readings.next().await {
            let updates = sources.set(kind, reading, timeline::now(), &adopt);
            for update in &updates {
                if self.feed(update).await.is_err() {
                    return;
                }
            }
            let broken = sources.problems().map(ToString::to_string).collect();
            self.broken.store(Arc::new(broken));
            // A manifest that never could be read may be that of a pod that runs.
            if !said_ready && sources.may_reap_static() {
                said_ready = true;
                if self.inputs.send(Input::SourcesReady).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Pods that the runtime has, by namespace and name.
    async fn running(&self) -> BTreeMap<(String, String), ObservedPod> {
        let mut running = BTreeMap::new();
        for listed in self.reader.list().await.unwrap_or_default() {
            let names = (listed.namespace.as_str(), listed.name.as_str());
            if let Ok(pod) = self.reader.read(&listed.uid, names).await
                && pod.any_running()
            {
                running.insert((listed.namespace, listed.name), pod);
            }
        }
        running
    }

    async fn feed(&mut self, update: &SourceUpdate) -> Result<(), mpsc::error::SendError<Input>> {
        let uid = self.desired.apply(update);
        let input = match (update, uid) {
            (SourceUpdate::Broken(problem), _) => {
                let kept = match problem.keeps_previous {
                    true => "; its pod goes on as it was before",
                    false => "",
                };
                tracing::warn!("broken manifest: {problem}{kept}");
                return Ok(());
            }
            (SourceUpdate::Remove(pod), Some(uid)) => {
                self.recorder.stage(&uid, "Removed", None, pod::name(pod));
                self.desired.forget(&uid);
                Input::Removed { uid }
            }
            (
                SourceUpdate::Add(pod) | SourceUpdate::Update(pod) | SourceUpdate::Delete(pod),
                Some(uid),
            ) => {
                self.recorder.stage(&uid, "Seen", None, &pod::described(pod));
                Input::Desired { uid, pod: Arc::clone(pod) }
            }
            _ => return Ok(()),
        };
        self.inputs.send(input).await
    }
}
