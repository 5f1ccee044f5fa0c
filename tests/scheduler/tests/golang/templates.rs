//! Hashes, revision bytes and equality of pod templates.

use pintle_controllers_core::golang::{equal, hash, json as golang_json};
use serde_json::{Value, json};

use super::{check, compare};

fn question(seed: u64) -> Value {
    json!({"kind": "template", "seed": seed})
}

fn differences(answer: &Value, into: &mut Vec<String>) -> u64 {
    let template = &answer["template"];
    let text = |field: &str| answer[field].as_str().expect("a text").to_owned();
    let count = answer["collisionCount"].as_i64().expect("a count");
    let count = i32::try_from(count).expect("a count has 32 bits");
    compare("hash", &hash::pod_template_hash(template, None), &text("hash"), into);
    let collided = hash::pod_template_hash(template, Some(count));
    compare("hash after a collision", &collided, &text("collisionHash"), into);
    let typed = golang_json::typed_json("core/v1.PodTemplateSpec", template);
    compare("JSON", &typed, &text("typed"), into);
    let set = json!({"spec": {"template": template}});
    let data = golang_json::daemon_set_revision_data(&set);
    compare("DaemonSet's revision", &data, &text("daemonSet"), into);
    let data = golang_json::stateful_set_revision_data(&set);
    compare("StatefulSet's revision", &data, &text("statefulSet"), into);
    let revision = hash::controller_revision_hash(text("statefulSet").as_bytes(), None);
    compare("revision's hash", &revision, &text("revisionHash"), into);
    let probed = hash::controller_revision_hash(text("statefulSet").as_bytes(), Some(count));
    compare("revision's hash after a collision", &probed, &text("probedHash"), into);
    let other = &answer["other"];
    let is_equal = equal::are_templates_equal_but_hash(template, other);
    compare("equal but for the hash", &Some(is_equal), &answer["equal"].as_bool(), into);
    let is_equal = equal::are_objects_equal("core/v1.PodTemplateSpec", template, other);
    compare("equal", &Some(is_equal), &answer["equalHashed"].as_bool(), into);
    if !into.is_empty() {
        into.push(format!("template {template}\nother {other}"));
    }
    9
}

#[test]
fn templates_have_the_hashes_and_bytes_that_upstreams_controllers_make() {
    let (mut equal, mut all) = (0, 0);
    let compared = check(question, |answer, into| {
        equal += u64::from(answer["equal"] == true);
        all += 1;
        differences(answer, into)
    });
    println!("{equal} of {all} pairs of templates are equal");
    assert_eq!(compared, all * 9);
    assert!(equal * 4 > all && equal * 4 < all * 3, "{equal} of {all} pairs are equal");
}
