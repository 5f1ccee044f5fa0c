//! What tests of the whole core share: its settings, and a pod of one container.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::admit;
use crate::types::NodeFacts;
use crate::worker::Settings;
use crate::worker::backoff::Curve;

/// A roomy node that looks at its pods this often, and lists them all once an hour.
pub(super) fn settings(sync_period: Duration) -> Settings {
    Settings {
        sync_period,
        relist_period: Duration::from_secs(3600),
        crash_loop: Curve::default(),
        node: NodeFacts::default(),
        admission: Arc::new(admit::Node::roomy("n")),
    }
}

/// The pod `u` with the container `c`, these labels, and one more field of the spec.
pub(super) fn pod(labels: &Value, (field, value): (&str, Value)) -> Pod {
    let meta = json!({"uid": "u", "name": "u", "namespace": "ns", "labels": labels});
    let spec = json!({"containers": [{"name": "c", "image": "i"}], field: value});
    let mut pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod");
    crate::pod::defaults::apply(&mut pod);
    pod
}
