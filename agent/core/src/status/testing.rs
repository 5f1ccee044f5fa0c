//! Builders for the tests of status: a pod from JSON, containers and sandboxes with sane values.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::Value;

use super::{DeriveInput, Lifecycle, PodVerdict, ProbeView, WaitingReason};
use crate::observed::{
    AppliedSettings, Evidence, ObservedContainer, ObservedPod, ObservedSandbox, RunState,
};
use crate::resize::{PodResources, ResizeConditions};
use crate::types::NodeFacts;
use pintle_api_types::ids::UnixNanos;

/// A second in nanoseconds.
pub const SECOND: i64 = 1_000_000_000;

/// All that `DeriveInput` borrows.
#[derive(Debug)]
#[allow(missing_docs)] // the fields are those of `DeriveInput`
pub struct DerivedPod {
    pub pod: Pod,
    pub observed: Option<ObservedPod>,
    pub previous: Option<PodStatus>,
    pub lifecycle: Lifecycle,
    pub waiting: BTreeMap<String, WaitingReason>,
    pub probes: ProbeView,
    pub verdict: Option<PodVerdict>,
    pub resize: ResizeConditions,
    pub actuated: PodResources,
    pub node: NodeFacts,
    pub now: UnixNanos,
}

impl DerivedPod {
    /// A world with that pod and nothing in the runtime.
    pub fn new(pod: Value) -> Self {
        let node = NodeFacts {
            name: "n".into(),
            runtime_name: "containerd".into(),
            host_ips: vec!["192.0.2.2".parse().expect("an address")],
            ..NodeFacts::default()
        };
        Self {
            pod: serde_json::from_value(pod).expect("a pod"),
            observed: None,
            previous: None,
            lifecycle: Lifecycle::Syncing,
            waiting: BTreeMap::new(),
            probes: ProbeView::default(),
            verdict: None,
            resize: ResizeConditions::default(),
            actuated: PodResources::default(),
            node,
            now: UnixNanos(1000 * SECOND),
        }
    }

    /// Adds a ready sandbox and these containers, newest first.
    pub fn with(mut self, containers: Vec<ObservedContainer>) -> Self {
        let mut observed = ObservedPod::empty("u".into(), "ns", "p");
        observed.sandboxes.push(sandbox());
        observed.containers = containers;
        self.observed = Some(observed);
        self
    }

    /// The status, kept as the previous one of the next call.
    pub fn derive(&mut self) -> PodStatus {
        let status = super::derive(&self.input());
        self.previous = Some(status.clone());
        status
    }

    /// The input in its current state.
    pub fn input(&self) -> DeriveInput<'_> {
        DeriveInput {
            pod: &self.pod,
            observed: self.observed.as_ref(),
            previous: self.previous.as_ref(),
            lifecycle: self.lifecycle,
            waiting: &self.waiting,
            probes: &self.probes,
            verdict: self.verdict.as_ref(),
            resize: &self.resize,
            actuated: &self.actuated,
            node: &self.node,
            now: self.now,
        }
    }
}

/// A running container.
pub fn container(name: &str, id: &str) -> ObservedContainer {
    ObservedContainer {
        id: id.into(),
        name: name.to_owned(),
        sandbox_id: "s".into(),
        state: RunState::Running,
        restart_count: 0,
        hash: None,
        created_at: UnixNanos(900 * SECOND),
        started_at: UnixNanos(901 * SECOND),
        finished_at: UnixNanos::NEVER,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: "busybox".into(),
        image_id: "sha256:1".into(),
        log_path: String::new(),
        annotations: BTreeMap::new(),
        mounts: Vec::new(),
        applied: AppliedSettings::default(),
        evidence: Evidence::default(),
    }
}

/// A container that ended.
pub fn exited(name: &str, id: &str, code: i32) -> ObservedContainer {
    ObservedContainer {
        state: RunState::Exited,
        exit_code: code,
        reason: if code == 0 { "Completed".into() } else { "Error".into() },
        finished_at: UnixNanos(950 * SECOND),
        ..container(name, id)
    }
}

/// A ready sandbox with an address.
pub fn sandbox() -> ObservedSandbox {
    ObservedSandbox {
        id: "s".into(),
        ready: true,
        attempt: 0,
        created_at: UnixNanos(899 * SECOND),
        ips: vec!["10.0.0.7".parse().expect("an address")],
        host_network: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        runtime_handler: String::new(),
    }
}
