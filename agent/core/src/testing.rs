//! Builders for the tests of the server: views of pods from JSON.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::Value;

use crate::observed::ObservedPod;
use crate::view::{PodView, Snapshot};
use crate::worker::WorkerStage;

/// A pod with its status as an API object has them, without any record in the runtime.
pub fn view(object: Value) -> PodView {
    let pod: Pod = serde_json::from_value(object).expect("a pod");
    let status: PodStatus = pod.status.clone().unwrap_or_default();
    let (name, namespace) =
        (pintle_api_types::pod::name(&pod), pintle_api_types::pod::namespace(&pod));
    let observed = ObservedPod::empty(pintle_api_types::pod::uid(&pod), namespace, name);
    PodView {
        status: Arc::new(status),
        observed: Arc::new(observed),
        stage: WorkerStage::Syncing,
        removed: false,
        doing: Vec::new(),
        failure: None,
        wake_at: None,
        ends_with: None,
        evicted: None,
        pod: Arc::new(pod),
    }
}

/// A snapshot of these pods.
pub fn snapshot_of(views: Vec<PodView>) -> Snapshot {
    let by_uid = |view: PodView| (pintle_api_types::pod::uid(&view.pod), view);
    Snapshot {
        pods: views.into_iter().map(by_uid).collect(),
        orphans: Vec::new(),
        unreadable: BTreeSet::new(),
        sources_ready: true,
    }
}
