//! Credentials of images: plugins that provide them, and which pods may use a present image.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use pintle_testbed::manifest::{With, condition, container, pod, waiting_reason};
use pintle_testbed::registry::{ImageRegistry, PASSWORD, USER};
use pintle_testbed::{LONG, Options, TestNode, until};
use serde_json::{Value, json};
use xtask::image::set;

use crate::support::remove_all;

const API: &str = "credentialprovider.kubelet.k8s.io/v1";

/// The node's plugins: `fails` says nothing, `wrong` has another password, `right` the good one.
fn plugins(node: &TestNode) -> Vec<String> {
    let (bin, config) = (node.dir().join("plugins-bin"), node.dir().join("plugins.d"));
    for dir in [&bin, &config] {
        fs::create_dir_all(dir).expect("made");
    }
    let answer = |password: &str| {
        json!({"kind": "CredentialProviderResponse", "apiVersion": API,
            "cacheKeyType": "Registry", "cacheDuration": "1h",
            "auth": {"127.0.0.1:5000": {"username": USER, "password": password}}})
    };
    let asked = node.dir().join("asked");
    for (name, says) in [
        ("fails", "echo 'no network' >&2; exit 1".to_owned()),
        ("wrong", format!("echo '{}'", answer("wrong"))),
        ("right", format!("cat >> {}; echo '{}'", asked.display(), answer(PASSWORD))),
    ] {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{says}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        let provider = json!({"name": name, "apiVersion": API, "defaultCacheDuration": "0s",
            "matchImages": ["127.*.0.1:5000/team"]});
        let file = json!({"kind": "CredentialProviderConfig",
            "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]});
        fs::write(config.join(format!("{name}.yaml")), file.to_string()).expect("written");
    }
    vec![
        format!("--image-credential-provider-config={}", config.display()),
        format!("--image-credential-provider-bin-dir={}", bin.display()),
    ]
}

fn put(node: &TestNode, name: &str, image: &str) {
    let c = container("c", &["/box", "pause"])
        .with("image", json!(image))
        .with("imagePullPolicy", json!("Always"));
    node.put(&format!("{name}.json"), &pod(name, &[c]));
}

fn metric(node: &TestNode, line: &str) {
    until(LONG, &format!("the metrics have {line}"), || {
        let answer = node.get(10255, "/metrics")?;
        let found = answer.body.lines().any(|told| told.starts_with(line));
        anyhow::ensure!(found, "{}", answer.body);
        Ok(())
    });
}

#[test]
fn credential_plugin_provides_the_password_only_for_images_that_match() {
    let mut node = TestNode::start(Options { agent: false, ..Options::default() });
    let flags = plugins(&node);
    node.add_flags(flags);
    node.start_agent();
    let registry = ImageRegistry::start(&node, 5000, true).expect("a registry");
    let app = registry.add("team/app", "1", 32 << 10).expect("an image");
    let twin = registry.add("team/twin", "1", 32 << 10).expect("an image");
    let other = registry.add("other", "1", 32 << 10).expect("an image");
    put(&node, "app", &app.reference);
    node.pod_until("app", "is ready", |p| condition(p, "Ready"));
    put(&node, "twin", &twin.reference);
    node.pod_until("twin", "is ready", |p| condition(p, "Ready"));
    put(&node, "other", &other.reference);
    node.pod_until("other", "waits for its image", |p| {
        matches!(waiting_reason(p, "c"), Some("ErrImagePull" | "ImagePullBackOff"))
    });
    // What it said for the first image is good for its registry.
    let asked = fs::read_to_string(node.dir().join("asked")).expect("it was asked");
    let asked: Value = serde_json::from_str(&asked).expect("asked once");
    let want = json!({"kind": "CredentialProviderRequest", "apiVersion": API,
        "image": "127.0.0.1:5000/team/app"});
    assert_eq!(asked, want);
    metric(&node, "kubelet_credential_provider_plugin_duration_count{plugin_name=\"right\"} 1");
    metric(&node, "kubelet_credential_provider_plugin_errors_total{plugin_name=\"fails\"} 2");
    metric(&node, "kubelet_credential_provider_config_info{hash=\"sha256:");
    let log = fs::read_to_string(node.dir().join("agent.log")).expect("a log");
    assert!(log.contains("no network") && !log.contains(PASSWORD), "{log}");
    remove_all(&node);
}

#[test]
fn a_configuration_that_is_wrong_ends_the_agent_with_a_sentence() {
    let mut node = TestNode::start(Options { agent: false, ..Options::default() });
    let flags = plugins(&node);
    fs::remove_file(node.dir().join("plugins-bin/wrong")).expect("removed");
    node.add_flags(flags);
    node.spawn_agent().expect("it starts");
    let status = node.wait_agent();
    assert!(!status.success());
    let log = node.agent_log();
    assert!(log.contains("--image-credential-provider-bin-dir: plugin binary executable"), "{log}");
    assert!(log.contains("/plugins-bin/wrong did not exist"), "{log}");
}

#[test]
fn image_without_a_pull_record_is_refused_under_always_verify() {
    let config = json!({"imagePullCredentialsVerificationPolicy": "AlwaysVerify"});
    let mut node = TestNode::start(Options { config, ..Options::default() });
    let registry = ImageRegistry::start(&node, 5000, true).expect("a registry");
    let app = registry.add("team/app", "1", 32 << 10).expect("an image");
    let never = |name: &str, image: &str| {
        let c = container("c", &["/box", "pause"])
            .with("image", json!(image))
            .with("imagePullPolicy", json!("Never"));
        node.put(&format!("{name}.json"), &pod(name, &[c]));
    };
    never("preloaded", set::BOX);
    node.pod_until("preloaded", "may not use the image", |p| {
        waiting_reason(p, "c") == Some("ErrImageNeverPull")
    });
    let login = json!({"auths": {"127.0.0.1:5000": {"username": USER, "password": PASSWORD}}});
    let file = node.root().join("config.json");
    fs::write(&file, login.to_string()).expect("written");
    put(&node, "pulls", &app.reference);
    node.pod_until("pulls", "is ready", |p| condition(p, "Ready"));
    fs::remove_file(&file).expect("removed");
    // With the node's own password: for all of its pods from now on, also after a crash.
    let records = node.root().join("image_manager/pulled");
    let records: Vec<_> = fs::read_dir(records).expect("a folder").flatten().collect();
    let record = fs::read(records[0].path()).expect("a record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    let known = &record["credentialMapping"]["127.0.0.1:5000/team/app"];
    assert_eq!((records.len(), known), (1, &json!({"nodePodsAccessible": true})), "{record}");
    let intents = node.root().join("image_manager/pulling");
    assert_eq!(fs::read_dir(intents).expect("a folder").count(), 0);
    node.kill_agent();
    node.start_agent();
    let c = container("c", &["/box", "pause"])
        .with("image", json!(app.reference))
        .with("imagePullPolicy", json!("Never"));
    node.put("later.json", &pod("later", &[c]));
    node.pod_until("later", "is ready", |p| condition(p, "Ready"));
    metric(
        &node,
        "kubelet_imagemanager_image_mustpull_checks_total{result=\"credentialRecordFound\"}",
    );
    remove_all(&node);
}
