//! Builders for the tests of probes: a pod, and a record of it as the runtime has it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::observed::{
    AppliedSettings, Evidence, ObservedContainer, ObservedPod, ObservedSandbox, RunState,
};
use pintle_api_types::ids::{ContainerId, PodUid, UnixNanos};
use pintle_api_types::pod::defaults;

/// A pod with defaults applied.
pub fn pod(spec: Value, status: Value) -> Arc<Pod> {
    let value = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "uid-1"},
                       "spec": spec, "status": status});
    let mut pod: Pod = serde_json::from_value(value).expect("the test's pod parses");
    defaults::apply(&mut pod);
    Arc::new(pod)
}

/// A record in which all containers of the pod run in one sandbox at 127.0.0.1, with the ids
/// id-1, id-2, …
pub fn observed(pod: &Pod, started_at: i64) -> ObservedPod {
    let mut record = ObservedPod::empty(PodUid::from("uid-1"), "shop", "web");
    record.sandboxes.push(ObservedSandbox {
        id: "sandbox".into(),
        ready: true,
        attempt: 0,
        created_at: UnixNanos(1),
        ips: vec![[127, 0, 0, 1].into()],
        host_network: false,
        labels: Default::default(),
        annotations: Default::default(),
        runtime_handler: String::new(),
    });
    let containers = pintle_api_types::pod::containers::all(pintle_api_types::pod::spec(pod));
    for (index, (_, container)) in containers.enumerate() {
        let id = ContainerId::from(format!("id-{}", index + 1));
        record.containers.push(container_named(id, &container.name, started_at));
    }
    record
}

/// One running container.
pub fn container_named(id: ContainerId, name: &str, started_at: i64) -> ObservedContainer {
    ObservedContainer {
        id,
        name: name.to_owned(),
        sandbox_id: "sandbox".into(),
        state: RunState::Running,
        restart_count: 0,
        hash: None,
        created_at: UnixNanos(1),
        started_at: UnixNanos(started_at),
        finished_at: UnixNanos::NEVER,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: String::new(),
        image_id: String::new(),
        log_path: String::new(),
        annotations: Default::default(),
        mounts: Vec::new(),
        applied: AppliedSettings::default(),
        evidence: Evidence::default(),
    }
}
