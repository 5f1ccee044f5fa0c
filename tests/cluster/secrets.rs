//! A secret, and a pod that has it in a file.

use pintle_tests::cluster::NODE;
use pintle_tests::manifest::{With, container, pod};
use serde_json::{Value, json};

/// A secret with one key.
pub fn secret(value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "word"},
        "stringData": {"word": value},
    })
}

/// A pod that has the secret in a file.
pub fn reader(name: &str) -> Value {
    let mounts = json!([{"name": "s", "mountPath": "/s"}]);
    pod(name, &[container("c", &["/box", "pause"]).with("volumeMounts", mounts)])
        .with_spec("nodeName", json!(NODE))
        .with_spec("automountServiceAccountToken", json!(false))
        .with_spec("volumes", json!([{"name": "s", "secret": {"secretName": "word"}}]))
}
