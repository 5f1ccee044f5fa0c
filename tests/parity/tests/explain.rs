//! Answers of `explain` when the runtime or the API server fails: the whole agent between fakes
//! that refuse, hang and forget. Needs root, as volumes are mounted.

use anyhow::ensure;
use pintle_cri::Method;
use pintle_parity::stand::{Stand, StandSetup};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use tonic::Code;

/// Waits until the pod is explained so: its reason, parts of its sentence and of its remedy.
fn told(stand: &Stand, pod: &str, reason: &str, sentence: &[&str], remedy: &str) {
    until(LONG, &format!("{pod} is explained by {reason}"), || {
        let answer = stand.ask(&format!("/explain?pod={pod}"))?;
        let said = answer["sentence"].as_str().unwrap_or_default();
        let advice = answer["remedy"].as_str().unwrap_or_default();
        let all = sentence.iter().all(|part| said.contains(part)) && advice.contains(remedy);
        ensure!(answer["reason"] == reason && all, "{answer:#}");
        Ok(())
    });
}

fn put(stand: &Stand, name: &str, over: Value) {
    let container = json!({"name": "c", "image": "box", "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log"});
    let mut pod = json!({
        "metadata": {"generation": 1},
        "spec": {"nodeName": stand.node(), "terminationGracePeriodSeconds": 30,
            "enableServiceLinks": false, "containers": [container]},
        "status": {"phase": "Pending"},
    });
    for (field, value) in over.as_object().into_iter().flatten() {
        pod["spec"]["containers"][0][field] = value.clone();
    }
    stand.api.put(&path(name), pod);
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/ns/pods/{name}")
}

fn running(stand: &Stand, name: &str) {
    until(LONG, &format!("{name} runs"), || {
        let pod = stand.api.get(&path(name)).unwrap_or_default();
        ensure!(pod["status"]["phase"] == "Running", "{pod}");
        Ok(())
    });
}

#[test]
fn explain_quotes_the_errors_of_the_api_server_and_the_registry() {
    let Some(stand) = Stand::start(&StandSetup::default()) else { return };
    stand.runtime.add_image("box");

    // The API server refuses a status.
    stand.api.refuse("PATCH", "/pods/unheard/", 403, "forbidden: policy x wants no statuses");
    put(&stand, "unheard", json!({}));
    let words =
        ["Runs and is ready, but", "has not taken its status", "policy x wants no statuses"];
    told(&stand, "unheard", "NotWritten", &words, "something refuses the node");
    stand.api.refuse_nothing();
    told(&stand, "unheard", "Running", &["Runs and is ready."], "");
    let timeline = stand.ask("/timeline?pod=unheard").expect("a timeline").to_string();
    for what in ["StatusNotWritten", "StatusWritten", "policy x wants no statuses"] {
        assert!(timeline.contains(what), "{what}: {timeline}");
    }

    // A registry refuses the credentials.
    let refused = "unexpected status from HEAD request: 401 Unauthorized";
    stand.runtime.on(Method::PullImage).matching("private").fail(Code::Unknown, refused);
    put(&stand, "locked", json!({"image": "private"}));
    told(&stand, "locked", "ImagePullBackOff", &[refused, "tried again"], "imagePullSecrets");

    // StopContainer hangs; the next pod of that name runs all the same.
    put(&stand, "frozen", json!({}));
    running(&stand, "frozen");
    let hang = stand.runtime.on(Method::StopContainer).matching("ns/frozen").hang();
    stand.api.remove(&path("frozen"));
    put(&stand, "frozen", json!({}));
    let uid = |pod: Option<Value>| pod.map(|pod| pod["metadata"]["uid"].to_string());
    let second = uid(stand.api.get(&path("frozen"))).expect("a uid").replace('"', "");
    told(&stand, &second, "Running", &["Runs and is ready."], "");
    hang.lift();

    // The API server refuses to delete an object.
    stand.api.refuse("DELETE", "/pods/unheard", 500, "the store is full");
    stand.api.delete(&path("unheard"));
    let full = ["has not taken its deletion", "the store is full"];
    told(&stand, "unheard", "NotWritten", &full, "tried again by itself");
}

#[test]
fn failed_node_registration_is_reported_with_its_reason_until_resolved() {
    let words = "nodes is forbidden: no";
    let refused = vec![("POST", "/nodes", words), ("GET", "/nodes/node", words)];
    let Some(stand) = Stand::start(&StandSetup { refused, ..StandSetup::default() }) else {
        return;
    };
    until(LONG, "the refusal is reported", || {
        let pods = stand.ask("/pods")?;
        let told = pods["apiServer"].to_string();
        let sentence = "this node is not registered, for";
        ensure!(told.contains(sentence) && told.contains(": nodes is forbidden: no ("), "{pods:#}");
        Ok(())
    });
    stand.api.refuse_nothing();
    until(LONG, "it is over", || {
        let pods = stand.ask("/pods")?;
        ensure!(pods["apiServer"] == json!([]), "{pods:#}");
        Ok(())
    });
}
