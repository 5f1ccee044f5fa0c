//! Volumes that need no API server, and the downward API.

use std::fs;
use std::os::unix::fs::symlink;

use pintle_testbed::TestNode;
use pintle_testbed::manifest::{With, condition, container, phase, pod, script, waiting_reason};
use serde_json::json;

use crate::support::{ended, explained, log, log_until, remove_all, shared, sharing};

#[test]
fn downward_api_provides_pod_fields_as_variables_and_files() {
    let node = TestNode::usual();
    let field = |name: &str, path: &str| {
        let from = json!({"fieldRef": {"fieldPath": path}});
        json!({"name": name, "valueFrom": from})
    };
    let c =
        script("c", "env; cat /down/labels; echo; cat /down/cpu; echo; echo end; exec /box pause")
            .with("resources", json!({"limits": {"cpu": "500m", "memory": "64Mi"}}))
            .with(
                "env",
                json!([
            field("NAME", "metadata.name"), field("NAMESPACE", "metadata.namespace"),
            field("IP", "status.podIP"), field("NODE", "spec.nodeName"),
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
            {"name": "GREETING", "value": "hello $(NAME)"}]),
            )
            .with("volumeMounts", json!([{"name": "down", "mountPath": "/down"}]));
    let mut manifest = pod("down", &[c]).with_spec(
        "volumes",
        json!([{"name": "down",
        "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu",
                "divisor": "1m"}}]}}]),
    );
    manifest["metadata"]["labels"] = json!({"app": "web"});
    node.put("down.json", &manifest);
    let it = node.pod_until("down", "is ready", |p| condition(p, "Ready"));
    let log = log_until(&node, "down", "c", "end\n");
    let ip = format!("IP={}", pintle_testbed::manifest::address(&it));
    for line in [
        "NAME=down-node",
        "NAMESPACE=default",
        &ip,
        "NODE=node",
        "MEMORY=67108864",
        "GREETING=hello down-node",
        "app=\"web\"",
        "500",
    ] {
        assert!(log.lines().any(|l| l == line), "{line} is missing:\n{log}");
    }
    remove_all(&node);
}

#[test]
fn disk_empty_dir_outlives_a_restart_and_memory_empty_dir_has_its_size_limit() {
    let node = TestNode::usual();
    let c = script(
        "c",
        "echo x >> /disk/count; wc -l < /disk/count; grep ' /memory ' /proc/mounts; \
            dd if=/dev/zero of=/memory/f bs=1M count=16 2>/dev/null; wc -c < /memory/f; \
            [ $(wc -l < /disk/count) -ge 2 ] && exec /box pause",
    )
    .with(
        "volumeMounts",
        json!([{"name": "disk", "mountPath": "/disk"},
            {"name": "memory", "mountPath": "/memory"}]),
    )
    .with("resources", json!({"limits": {"memory": "128Mi"}}));
    node.put(
        "empty.json",
        &pod("empty", &[c]).with_spec(
            "volumes",
            json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}]),
        ),
    );
    node.pod_until("empty", "is ready in its second life", |p| {
        condition(p, "Ready") && pintle_testbed::manifest::restarts(p, "c") == 1
    });
    let log = log(&node, "empty", "c");
    assert!(log.lines().any(|l| l == "2"), "the file is still there:\n{log}");
    assert!(log.contains("tmpfs /memory tmpfs"), "{log}");
    assert!(log.lines().any(|l| l == (8 << 20).to_string()), "no more than 8 MiB fit:\n{log}");
    remove_all(&node);
}

#[test]
fn host_path_is_checked_created_or_refused_by_its_type() {
    let node = TestNode::usual();
    let dir = node.dir().join("host");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("file"), "content\n").expect("written");
    let put = |name: &str, file: &str, kind: &str| {
        let c = container("c", &["/box", "pause"])
            .with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
        let volume = json!({"name": "v", "hostPath": {"path": dir.join(file), "type": kind}});
        node.put(&format!("{name}.json"), &pod(name, &[c]).with_spec("volumes", json!([volume])));
    };
    put("made-dir", "new/dir", "DirectoryOrCreate");
    put("made-file", "new-file", "FileOrCreate");
    put("file", "file", "File");
    put("unchecked", "file", "");
    put("no-dir", "file", "Directory");
    put("absent", "absent", "Directory");
    put("no-socket", "file", "Socket");
    for name in ["made-dir", "made-file", "file", "unchecked"] {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    assert!(dir.join("new/dir").is_dir() && dir.join("new-file").is_file());
    for name in ["no-dir", "absent", "no-socket"] {
        let answer = explained(&node, name, &["hostPath type check failed"]);
        assert_eq!(answer["reason"], "FailedMount", "{answer:#}");
        let it = node.pod(name).expect("it is there");
        assert_eq!(waiting_reason(&it, "c"), Some("ContainerCreating"), "{name}");
    }
    assert!(!dir.join("absent").exists());
    // What was missing comes: the pod starts by itself.
    fs::create_dir(dir.join("absent")).expect("made");
    node.pod_until("absent", "is ready", |p| condition(p, "Ready"));
    remove_all(&node);
    assert_eq!(fs::read_to_string(dir.join("file")).expect("it is there"), "content\n");
}

#[test]
fn a_sub_path_that_leaves_its_volume_is_refused() {
    let node = TestNode::usual();
    fs::write(node.dir().join("secret"), "secret").expect("written");
    let volume = shared(&node);
    symlink("..", volume.join("up")).expect("linked");
    symlink(node.dir(), volume.join("out")).expect("linked");
    fs::create_dir_all(volume.join("inside")).expect("made");
    fs::write(volume.join("inside/f"), "found\n").expect("written");
    symlink("inside", volume.join("in")).expect("linked");
    for (name, sub_path) in [("up", "up"), ("out", "out"), ("deep", "up/secret"), ("fine", "in")] {
        let c = script("c", "cat /sub/f; exec /box pause").with(
            "volumeMounts",
            json!([{"name": "shared", "mountPath": "/sub", "subPath": sub_path}]),
        );
        node.put(&format!("{name}.json"), &sharing(pod(name, &[c]), &node));
    }
    node.pod_until("fine", "is ready", |p| condition(p, "Ready"));
    log_until(&node, "fine", "c", "found");
    for name in ["up", "out", "deep"] {
        node.pod_until(name, "is refused", |p| {
            waiting_reason(p, "c") == Some("CreateContainerConfigError")
        });
        let it = node.pod(name).expect("it is there");
        assert!(ended(&it, "c").is_none() && phase(&it) == "Pending", "{name}");
    }
    remove_all(&node);
    assert_eq!(fs::read_to_string(node.dir().join("secret")).expect("it is there"), "secret");
}
