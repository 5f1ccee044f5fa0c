//! Features that a release of containerd offers are used; a pod that asks for a missing one is
//! refused with a reason.
//!
//! Image volumes, recursive read-only mounts, user namespaces and container events. A release
//! reports the second and third for each handler; whether it mounts images follows from its
//! version. The newest release is always covered, any other by `PINTLE_CONTAINERD`.

use std::path::Path;

use anyhow::{Context, ensure};
use pintle_cri::v1::{RuntimeHandlerFeatures, StatusRequest};
use pintle_testbed::manifest::{With, condition, pod, script, status_of};
use pintle_testbed::{LONG, Options, RawCri, TestNode, until};
use serde_json::{Value, json};
use xtask::image::set;
use xtask::runtime::Version;
use xtask::shell::capture;

use crate::support::{explained, log, log_until, remove_all};

/// Events that the agent received, by the histogram of how long they took.
const EVENTS: &str = "kubelet_evented_pleg_connection_latency_seconds_count";

/// The features of the runtime's default handler.
fn offered(node: &TestNode) -> RuntimeHandlerFeatures {
    let cri = RawCri::connect(node).expect("connected");
    let status = cri.block(cri.client.status(StatusRequest { verbose: false })).expect("a status");
    let mut handlers = status.runtime_handlers.into_iter();
    let default = handlers.find(|handler| handler.name.is_empty());
    default.and_then(|handler| handler.features).unwrap_or_default()
}

/// Starts a pod of one script with this volume at `/v`.
fn mount(node: &TestNode, name: &str, text: &str, options: Value, source: Value) {
    let mut mount = json!({"name": "v", "mountPath": "/v"});
    let options = options.as_object().expect("fields of a mount").clone();
    mount.as_object_mut().expect("an object").extend(options);
    let container = script("c", text).with("volumeMounts", json!([mount]));
    let volume = source.with("name", json!("v"));
    let manifest = pod(name, &[container]).with_spec("volumes", json!([volume]));
    node.put(&format!("{name}.json"), &manifest);
}

/// A folder of the host with another file system mounted below it.
fn nested(node: &TestNode) -> Value {
    let dir = node.dir().join("outer");
    std::fs::create_dir_all(dir.join("inner")).expect("made");
    let mut cmd = node.runtime_node().command(Path::new("mount"));
    cmd.args(["-t", "tmpfs", "tmpfs"]).arg(dir.join("inner"));
    capture(&mut cmd).expect("mounted in the node's namespace");
    json!({"hostPath": {"path": dir}})
}

fn start_all(node: &TestNode) {
    let users = script("c", "cat /proc/self/uid_map; echo end; exec /box pause");
    let users = pod("users", &[users]).with_spec("hostUsers", json!(false));
    node.put("users.json", &users);
    let write = "touch /v/inner/f 2>/dev/null && echo written || echo refused; exec /box pause";
    let sealed = |mode: &str| json!({"readOnly": true, "recursiveReadOnly": mode});
    mount(node, "sealed", write, sealed("Enabled"), nested(node));
    mount(
        node,
        "try-sealed",
        write,
        sealed("IfPossible"),
        json!({"hostPath": {
        "path": node.dir().join("outer")}}),
    );
    let image = json!({"image": {"reference": set::BOX, "pullPolicy": "Never"}});
    mount(node, "image", "ls /v; echo end; exec /box pause", json!({}), image);
}

fn features_are_used_where_the_runtime_offers_them(version: Version) {
    let node = TestNode::start(Options { version, ..Options::default() });
    let offered = offered(&node);
    let is_new = version != Version::V1_7;
    let name = version.name();
    assert_eq!(offered.recursive_read_only_mounts, is_new, "containerd {name}");
    assert_eq!(offered.user_namespaces, is_new, "containerd {name}");
    start_all(&node);
    let ready = |name: &str| node.pod_until(name, "is ready", |p| condition(p, "Ready"));

    let tried = ready("try-sealed");
    log_until(&node, "try-sealed", "c", if is_new { "refused" } else { "written" });
    if !is_new {
        explained(&node, "users", &["runtime does not support user namespaces"]);
        explained(&node, "sealed", &["not supported by the runtime"]);
        // It does not know of images as mounts, and has this error with the kubelet as well.
        explained(&node, "image", &["failed to mkdir"]);
        remove_all(&node);
        return;
    }
    ready("users");
    log_until(&node, "users", "c", "end");
    let map = log(&node, "users", "c");
    let ids: Vec<&str> = map.split_whitespace().take(3).collect();
    assert!(matches!(ids[..], ["0", first, "65536"] if first != "0"), "{map}");
    ready("sealed");
    log_until(&node, "sealed", "c", "refused");
    let mounts = status_of(&tried, "c").and_then(|status| status.volume_mounts.clone());
    let told = mounts.iter().flatten().find(|mount| mount.name == "v");
    let told = told.and_then(|mount| mount.recursive_read_only.as_deref());
    assert_eq!(told, Some("Enabled"), "{mounts:?}");
    ready("image");
    log_until(&node, "image", "c", "box");
    until(LONG, "events of containers arrive", || {
        let metrics = node.metrics()?;
        let line = metrics.lines().find(|line| line.starts_with(EVENTS)).context("no metric")?;
        ensure!(!line.ends_with(" 0"), "{line}");
        Ok(())
    });
    remove_all(&node);
}

#[test]
fn features_of_the_usual_containerd_are_used() {
    features_are_used_where_the_runtime_offers_them(Version::usual().expect("a release"));
}

#[test]
fn features_of_containerd_2_4_are_used() {
    features_are_used_where_the_runtime_offers_them(Version::V2_4);
}

#[test]
fn features_that_containerd_1_7_lacks_are_refused_with_a_reason() {
    features_are_used_where_the_runtime_offers_them(Version::V1_7);
}
