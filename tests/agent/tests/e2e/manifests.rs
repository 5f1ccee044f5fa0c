//! Manifests that change under running pods.

use anyhow::ensure;
use pintle_testbed::manifest::{With, condition, container, container_id, pod, restarts, script};
use pintle_testbed::{LONG, TestNode, until};
use serde_json::json;

use crate::support::{assert_order, lines, lines_until, log_until, remove_all, sharing};

#[test]
fn edits_errors_and_removal_of_a_manifest_affect_only_its_own_pod() {
    let node = TestNode::usual();
    let says = |word: &str| pod("web", &[script("c", &format!("echo {word}; exec /box pause"))]);
    node.put("bystander.json", &pod("bystander", &[container("c", &["/box", "pause"])]));
    node.put("web.json", &says("first"));
    let bystander = node.pod_until("bystander", "is ready", |p| condition(p, "Ready"));
    let first = node.pod_until("web", "is ready", |p| condition(p, "Ready"));
    log_until(&node, "web", "c", "first");

    node.put("web.json", &says("second"));
    let second = node.pod_until("web", "was replaced", |p| {
        p.metadata.uid != first.metadata.uid && condition(p, "Ready")
    });
    log_until(&node, "web", "c", "second");

    node.put_text("web.json", "{\"kind\": \"Pod\",\n \"spec\": {\"containers\": 7}");
    until(LONG, "the broken manifest is reported", || {
        let text = node.cli(&["pods", "-o", "json"])?;
        let told: serde_json::Value = serde_json::from_str(&text)?;
        let broken = told["brokenManifests"].to_string();
        ensure!(broken.contains("web.json"), "{told:#}");
        Ok(())
    });
    let still = node.pod("web").expect("a broken manifest removes nothing");
    assert_eq!(container_id(&still, "c"), container_id(&second, "c"));
    assert!(condition(&still, "Ready"));

    node.put("web.json", &says("second"));
    until(LONG, "nothing is broken any more", || {
        let text = node.cli(&["pods", "-o", "json"])?;
        ensure!(!text.contains("web.json"), "{text}");
        Ok(())
    });
    let fixed = node.pod("web").expect("it is there");
    assert_eq!(
        container_id(&fixed, "c"),
        container_id(&second, "c"),
        "the same text, the same pod"
    );

    node.remove("web.json");
    node.gone("web");
    let now = node.pod("bystander").expect("it is there");
    assert_eq!(container_id(&now, "c"), container_id(&bystander, "c"));
    assert_eq!(restarts(&now, "c"), 0);
    remove_all(&node);
}

#[test]
fn pod_recreated_under_its_name_starts_only_after_the_old_pod_has_ended() {
    let node = TestNode::usual();
    let slow = |name: &str, word: &str| {
        let text = format!(
            "echo {word} begins >> /shared/{name}; \
             trap 'sleep 1; echo {word} ends >> /shared/{name}; exit 0' TERM; \
             while :; do sleep 0.1; done"
        );
        let manifest =
            pod(name, &[script("c", &text)]).with_spec("terminationGracePeriodSeconds", json!(30));
        sharing(manifest, &node)
    };
    node.put("changed.json", &slow("changed", "old"));
    node.put("same.json", &slow("same", "it"));
    for name in ["changed", "same"] {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
        lines_until(&node, name, 1);
    }
    node.put("changed.json", &slow("changed", "new"));
    node.remove("same.json");
    until(LONG, "the removal is seen", || {
        let pod = node.pod("same");
        let is_going = pod.as_ref().map_or(true, |p| !condition(p, "Ready"));
        ensure!(is_going || lines(&node, "same").len() > 1, "it still runs");
        Ok(())
    });
    node.put("same.json", &slow("same", "it"));
    for (name, order) in [
        ("changed", ["old begins", "old ends", "new begins"]),
        ("same", ["it begins", "it ends", "it begins"]),
    ] {
        let lines = lines_until(&node, name, 3);
        assert_eq!(lines, order);
        assert_order(&lines, &order);
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    remove_all(&node);
}
