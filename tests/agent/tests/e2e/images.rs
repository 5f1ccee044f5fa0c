//! Pull policies against a registry with a password, and pulls that crawl.

use std::fs;

use pintle_testbed::manifest::{With, condition, container, is_running, pod, waiting_reason};
use pintle_testbed::registry::{ImageRegistry, PASSWORD, USER};
use pintle_testbed::{LONG, TestNode, until};
use serde_json::{Value, json};
use xtask::image::set;

use crate::support::{explain, explained, remove_all};

/// Writes the node's Docker configuration: what it may pull with.
fn log_in(node: &TestNode, registry: &str, password: &str) {
    let config = json!({"auths": {registry: {"username": USER, "password": password}}});
    fs::write(node.root().join("config.json"), config.to_string()).expect("written");
}

fn of_image(name: &str, image: &str, policy: &str) -> Value {
    let c = container("c", &["/box", "pause"])
        .with("image", json!(image))
        .with("imagePullPolicy", json!(policy));
    pod(name, &[c])
}

fn put(node: &TestNode, name: &str, image: &str, policy: &str) {
    node.put(&format!("{name}.json"), &of_image(name, image, policy));
}

/// The container waits because its image cannot be had.
fn refused(node: &TestNode, name: &str, reasons: &[&str]) {
    node.pod_until(name, "waits for its image", |p| {
        waiting_reason(p, "c").is_some_and(|r| reasons.contains(&r))
    });
}

const PULL_FAILED: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];

#[test]
fn images_are_pulled_by_policy_and_with_the_password_of_the_node() {
    let node = TestNode::usual();
    let registry = ImageRegistry::start(&node, 5000, true).expect("a registry");
    let app = registry.add("team/app", "1", 32 << 10).expect("an image");
    let other = registry.add("team/other", "1", 32 << 10).expect("an image");
    let digest = format!("127.0.0.1:5000/team/other@{}", other.digest());

    put(&node, "no-login", &app.reference, "IfNotPresent");
    refused(&node, "no-login", &PULL_FAILED);
    explained(&node, "no-login", &["team/app"]);
    log_in(&node, "127.0.0.1:5000", "wrong");
    put(&node, "bad-login", &other.reference, "Always");
    refused(&node, "bad-login", &PULL_FAILED);

    log_in(&node, "127.0.0.1:5000", PASSWORD);
    // Tried again by itself after its pause; a new pod need not wait for that.
    put(&node, "always", &app.reference, "Always");
    put(&node, "by-digest", &digest, "IfNotPresent");
    put(&node, "no-tag", "127.0.0.1:5000/team/app:2", "IfNotPresent");
    put(&node, "never", "127.0.0.1:5000/team/absent:1", "Never");
    put(&node, "bad-name", "127.0.0.1:5000/Team/App:1", "IfNotPresent");
    for name in ["always", "by-digest", "no-login", "bad-login"] {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    refused(&node, "no-tag", &PULL_FAILED);
    refused(&node, "never", &["ErrImageNeverPull"]);
    refused(&node, "bad-name", &["InvalidImageName"]);
    put(&node, "present", &app.reference, "Never");
    node.pod_until("present", "is ready", |p| condition(p, "Ready"));
    remove_all(&node);
}

#[test]
fn a_pod_whose_image_is_present_starts_while_another_pull_crawls() {
    let node = TestNode::usual();
    let registry = ImageRegistry::start(&node, 5000, false).expect("a registry");
    registry.add("slow", "1", 4 << 20).expect("an image");
    let slow = registry.slow_address(&node, 5001, 10 << 10).expect("a proxy");
    put(&node, "slow", &format!("{slow}/slow:1"), "IfNotPresent");
    until(LONG, "the pull is under way", || {
        let answer = explain(&node, "slow")?;
        let sentence = answer["sentence"].as_str().unwrap_or_default();
        anyhow::ensure!(sentence.to_lowercase().contains("pull"), "{answer:#}");
        Ok(())
    });
    for (name, policy) in [("fast", "IfNotPresent"), ("faster", "Never")] {
        put(&node, name, set::BOX, policy);
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    let slow = node.pod("slow").expect("it is there");
    assert!(!is_running(&slow, "c"), "nothing was proved: the slow pull was quicker");
    // Removing the pod gives the pull up.
    remove_all(&node);
}
