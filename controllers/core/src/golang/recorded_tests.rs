//! Hashes that real controllers of 1.36 put into names, read from public clusters and recordings.

use serde_json::{Value, json};

use super::hash::{controller_revision_hash, pod_template_hash};
use super::json::stateful_set_revision_data;

fn recorded() -> Value {
    serde_json::from_str(include_str!("recorded.json")).expect("the recording is JSON")
}

#[test]
fn template_hashes_match_recorded_deployments() {
    let recorded = recorded();
    let all = recorded["pod_template_hashes"].as_array().expect("a list");
    for each in all {
        let hash = pod_template_hash(&each["template"], None);
        assert_eq!(each["hash"], hash, "{}", each["of"]);
    }
    let names: Vec<_> = all.iter().filter_map(|each| each["hash"].as_str()).collect();
    assert_eq!(names[..4], ["7f8fbb96d", "6c5f67b5f7", "66b9cb6d4d", "589f44dc88"]);
    assert_eq!(names.len(), 10);
}

#[test]
fn recorded_revision_of_a_stateful_set_is_made_again() {
    let revision = &recorded()["stateful_set_revision"];
    let data = stateful_set_revision_data(&json!({"spec": {"template": revision["template"]}}));
    assert_eq!(serde_json::from_str::<Value>(&data).ok(), Some(revision["data"].clone()));
    // k8s: pkg/controller/statefulset/stateful_set_control.go getStatefulSetRevisions: a collision
    // count that the status does not have is zero, not nil.
    assert_eq!(revision["hash"], controller_revision_hash(data.as_bytes(), Some(0)));
    assert_ne!(revision["hash"], controller_revision_hash(data.as_bytes(), None));
}
