//! The flight recorder's records of pods of the API server.

use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, container, pod};
use pintle_testbed::record::contents;
use serde_json::json;

/// Stands in every field of the API that users fill with secrets.
const MARK: &str = "s3cr3t-of-the-cluster";

#[test]
fn no_secret_and_no_config_map_is_in_the_record() {
    let test = TestCluster::take();
    test.empty_nodes();
    for (kind, field) in [("Secret", "stringData"), ("ConfigMap", "data")] {
        test.apply(&json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "marked"},
            field: {"word": format!("{MARK}-{kind}")}}));
    }
    let env = json!([
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "marked", "key": "word"}}},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "marked", "key": "word"}}},
        {"name": "PLAIN", "value": format!("{MARK}-plain")},
    ]);
    let from = json!([{"secretRef": {"name": "marked"}}, {"configMapRef": {"name": "marked"}}]);
    let mounts = json!([{"name": "s", "mountPath": "/s"}, {"name": "m", "mountPath": "/m"},
        {"name": "all", "mountPath": "/all"}]);
    let main = container("c", &["/box", "pause"])
        .with("env", env)
        .with("envFrom", from)
        .with("volumeMounts", mounts);
    let mut manifest = pod("recorded", &[main]).with_spec("nodeName", json!(NODE)).with_spec(
        "volumes",
        json!([
            {"name": "s", "secret": {"secretName": "marked"}},
            {"name": "m", "configMap": {"name": "marked"}},
            {"name": "all", "projected": {"sources": [
                {"secret": {"name": "marked"}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}},
        ]),
    );
    manifest["metadata"]["annotations"] = json!({"marked": format!("{MARK}-annotation")});
    test.apply(&manifest);
    let ready = test.pod_until("recorded", "is ready", |p| condition(p, "Ready"));
    let file = test.volume(&ready, "projected", "all").join("token");
    let token = std::fs::read_to_string(file).expect("a token");
    let signature = token.rsplit('.').next().expect("three parts");
    // What changes while it runs comes by another way.
    test.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "marked"},
        "stringData": {"word": format!("{MARK}-again")}}));
    let _ = test.kubectl(&["delete", "pod", "recorded", "--grace-period=1"]).expect("deleted");
    test.pod_gone("recorded");
    // An agent that begins writes down all that it knows, and what came before is on the disk.
    test.restart_agent();
    let text = contents(&test.on_node("/var/lib/kubelet"));
    assert!(text.contains("recorded") && text.contains("redacted:"), "the pod is in the record");
    assert!(!text.contains(MARK), "a marked value is in the record");
    assert!(signature.len() > 40 && !text.contains(signature), "the token is in the record");
}
