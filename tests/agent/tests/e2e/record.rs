//! The flight recorder on a real node. That what it recorded is decided again is checked at the end
//! of every test of this program.

use pintle_testbed::manifest::{With, condition, is_running, phase, pod, script};
use pintle_testbed::record::contents;
use pintle_testbed::{Options, TestNode};
use serde_json::json;

/// Stands in every field that users fill with secrets.
const SECRET: &str = "s3cr3t-of-the-test";

#[test]
fn no_secret_of_a_pod_is_in_the_record() {
    let mut node = TestNode::usual();
    let hook = json!({"postStart": {"exec": {"command": ["sh", "-c", format!(": {SECRET}")]}}});
    let probe = json!({"httpGet": {"path": "/", "port": 1, "scheme": "HTTP",
        "httpHeaders": [{"name": "Authorization", "value": SECRET}]}, "periodSeconds": 1});
    let main = script("main", &format!(": {SECRET}; exec sleep 3600"))
        .with("env", json!([{"name": "PASSWORD", "value": SECRET}]))
        .with("lifecycle", hook)
        .with("startupProbe", probe);
    let side = script("side", &format!(": {SECRET}; sleep 3600")).with("args", json!([SECRET]));
    let mut manifest = pod("keeper", &[main, side]);
    manifest["metadata"]["annotations"] = json!({"token": SECRET, "plain": "x"});
    node.put("keeper.json", &manifest);
    node.pod_until("keeper", "runs", |p| is_running(p, "main") || phase(p) == "Failed");
    node.put("after.json", &pod("after", &[script("main", "sleep 3600")]));
    node.pod_until("after", "is ready", |p| condition(p, "Ready"));
    node.stop_agent();
    let text = contents(&node.root());
    assert!(text.contains("keeper"), "the pod is in the record");
    assert!(text.contains("redacted:"), "its values are there as digests");
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn agent_works_and_records_without_io_uring_if_the_kernel_refuses_io_uring() {
    let node = TestNode::start(Options { ring: false, ..Options::default() });
    let manifest = pod("plain", &[script("main", "sleep 3600")]).with_spec(
        "volumes",
        json!([{"name": "v", "downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]),
    );
    node.put("plain.json", &manifest);
    node.pod_until("plain", "is ready", |p| condition(p, "Ready"));
    node.remove("plain.json");
    pintle_testbed::until(pintle_testbed::LONG, "nothing is left", || {
        anyhow::ensure!(node.leftovers().is_empty(), "something is");
        Ok(())
    });
    let log = node.agent_log();
    assert!(log.contains("refuses an io_uring"), "{log}");
}
