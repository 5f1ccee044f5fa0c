//! Secrets in files: an update reaches every pod that has one.

use std::fs;

use anyhow::ensure;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, container, pod};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

/// Pods of the node, just below the number that it takes.
const PODS: usize = 100;
/// A hundred pods start one after the other on two cores.
const ALL: std::time::Duration = std::time::Duration::from_secs(600);

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

#[test]
fn an_update_of_a_secret_reaches_a_hundred_pods() {
    let test = TestCluster::take();
    test.empty_nodes();
    test.apply(&secret("old"));
    let names: Vec<String> = (0..PODS).map(|n| format!("reader{n}")).collect();
    let items: Vec<Value> = names.iter().map(|name| reader(name)).collect();
    test.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}));
    let pods = until(ALL, "every pod is ready", || {
        let pods = test.pods()?;
        let ready = pods.iter().filter(|p| condition(p, "Ready")).count();
        ensure!(ready == PODS, "{ready} of {PODS}");
        Ok(pods)
    });
    let files: Vec<_> =
        pods.iter().map(|pod| test.volume(pod, "secret", "s").join("word")).collect();
    let with = |value: &str| {
        let has = |file: &&std::path::PathBuf| fs::read(file).is_ok_and(|v| v == value.as_bytes());
        files.iter().filter(has).count()
    };
    assert_eq!(with("old"), PODS);

    test.apply(&secret("new"));
    until(LONG, "every file is new", || {
        ensure!(with("new") == PODS, "{} of {PODS}", with("new"));
        Ok(())
    });
    test.kubectl(&["delete", "pods", "--all", "--wait=false"]).expect("deleted");
    until(ALL, "nothing is left", || {
        let left = test.leftovers(NODE)?;
        ensure!(left.is_empty(), "{} pods", left.pod_dirs.len());
        Ok(())
    });
}
