//! A static pod whose manifest is removed and put back before the pod has ended, as users do to
//! restart one: its events from then on.

use std::fs;

use anyhow::{Result, ensure};
use pintle_cri::Method;
use pintle_parity::stand::{Stand, StandSetup};
use pintle_testbed::{LONG, until};
use serde_json::json;

const NAME: &str = "web-node";

/// Its Started event has this count.
fn started(stand: &Stand, times: u64) -> Result<()> {
    let events = stand.api.events("ns", NAME);
    let starts = events.iter().filter(|event| event["reason"] == "Started");
    let told: u64 = starts.map(|event| event["count"].as_u64().unwrap_or(1)).sum();
    ensure!(told == times, "{events:#?}");
    Ok(())
}

/// The agent saw its manifest arrive so often.
fn seen(stand: &Stand, times: usize) -> Result<()> {
    let timeline = stand.ask(&format!("/timeline?pod=ns/{NAME}"))?;
    let entries = timeline["entries"].as_array().into_iter().flatten();
    let count = entries.filter(|entry| entry["what"] == "Seen").count();
    ensure!(count == times, "{timeline:#}");
    Ok(())
}

#[test]
fn static_pod_restored_during_its_termination_emits_its_events_again() {
    let manifests = tempfile::tempdir().expect("a folder");
    let config = json!({"staticPodPath": manifests.path(), "fileCheckFrequency": "1s"});
    let Some(stand) = Stand::start(&StandSetup { config, ..StandSetup::default() }) else { return };
    stand.api.put("/api/v1/namespaces/ns", json!({}));
    stand.runtime.add_image("box");
    let file = manifests.path().join("web.json");
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": "box", "imagePullPolicy": "Never"}]}});
    fs::write(&file, pod.to_string()).expect("written");
    until(LONG, "it starts", || started(&stand, 1));

    let hang = stand.runtime.on(Method::StopContainer).hang();
    fs::remove_file(&file).expect("removed");
    until(LONG, "it is being stopped", || {
        ensure!(!stand.runtime.calls_of(Method::StopContainer, "").is_empty());
        Ok(())
    });
    fs::write(&file, pod.to_string()).expect("written");
    until(LONG, "it is seen again", || seen(&stand, 2));
    hang.lift();
    until(LONG, "it starts again", || started(&stand, 2));
}
