//! The agent ends, is killed, comes back: its pods do not notice.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::manifest::{
    With, address, condition, container, container_id, pod, restarts, script, status_of,
};
use pintle_testbed::{LONG, Options, TestNode, until};
use serde_json::json;

use crate::support::{
    clean_of_what_the_runtime_knows, kill, lines, push, remove_all, shared, sharing,
};

#[test]
fn sigterm_leaves_pods_running_and_the_next_agent_finds_them_ready() {
    let mut node = TestNode::usual();
    let probe = json!({"httpGet": {"port": 8080}, "periodSeconds": 1});
    let web = container("c", &["/box", "serve", "http=8080"]).with("readinessProbe", probe);
    node.put("web.json", &pod("web", &[web]));
    let sidecar = container("side", &["/box", "pause"]).with("restartPolicy", json!("Always"));
    let manifest = pod("inits", &[container("c", &["/box", "pause"])])
        .with_spec("initContainers", json!([sidecar, container("once", &["/box", "exit", "0"])]));
    node.put("inits.json", &manifest);
    let once = container("c", &["/box", "exit", "0"]);
    node.put("done.json", &pod("done", &[once]).with_spec("restartPolicy", json!("Never")));
    let of = |p: &Pod| (p.metadata.uid.clone(), container_id(p, "c"));
    let web = node.pod_until("web", "is ready", |p| condition(p, "Ready"));
    let inits = node.pod_until("inits", "is ready", |p| condition(p, "Ready"));
    let side = container_id(&inits, "side");
    let is_done = |p: &Pod| pintle_testbed::manifest::phase(p) == "Succeeded";
    let done = node.pod_until("done", "has succeeded", is_done);

    // What began less than 10 s before the agent counts as new, as with the kubelet.
    until(LONG, "the pods are old enough", || {
        let started = status_of(&web, "c").and_then(|c| c.state.as_ref()?.running.as_ref());
        let started = started.and_then(|r| r.started_at.as_ref()).expect("it runs").0;
        let age = SystemTime::now().duration_since(started.into())?;
        ensure!(age > Duration::from_secs(12), "{age:?}");
        Ok(())
    });
    for _ in 0..3 {
        let (status, _) = node.stop_agent();
        assert!(status.success(), "{status}");
        let answer = node.get_from(SocketAddr::from((address(&web), 8080)), "/");
        assert_eq!(answer.expect("it still serves").body, "healthy");
        node.start_agent();
        // From the first moment at which a pod is shown with its status, it is Ready.
        for (name, before) in [("web", &web), ("inits", &inits)] {
            let now = node.pod_until(name, "is known", |p| {
                p.status.as_ref().is_some_and(|s| s.container_statuses.is_some())
            });
            assert!(condition(&now, "Ready"), "{name}: {:#?}", now.status);
            assert_eq!(of(&now), of(before), "{name}");
            assert_eq!(restarts(&now, "c"), 0, "{name}");
        }
        let now = node.pod("inits").expect("it is there");
        assert_eq!(container_id(&now, "side"), side);
        let now = node.pod_until("done", "is still done", is_done);
        assert_eq!(of(&now), of(&done), "a pod that has ended is not run again");
    }
    // Without an agent a container exits and a manifest is removed: the next agent handles both.
    node.stop_agent();
    kill(&node, &web, "c");
    node.remove("inits.json");
    node.start_agent();
    node.pod_until("web", "was restarted", |p| restarts(p, "c") == 1 && condition(p, "Ready"));
    node.gone("inits");
    remove_all(&node);
}

/// A pod with every kind of volume that needs no API; writes into all of them.
fn with_volumes(node: &TestNode, number: usize) -> serde_json::Value {
    let write = script(
        "c",
        "echo x > /disk/f; echo x > /memory/f; cat /down/name >> /shared/names; exec /box pause",
    )
    .with(
        "volumeMounts",
        json!([
            {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
            {"name": "down", "mountPath": "/down"},
            {"name": "disk", "mountPath": "/sub", "subPath": "a/b"}]),
    );
    let down = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let manifest = pod(&format!("v{number}"), &[write]).with_spec(
        "volumes",
        json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
        {"name": "down", "downwardAPI": {"items": down}}]),
    );
    sharing(manifest, node)
}

/// All files below a folder, with what is in them.
fn files(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.push((path.to_string_lossy().into_owned(), text));
        }
    }
    found.sort();
    found
}

/// The round of kills that waits for a pod with volumes, however slow the host is.
const VOLUMES_AT: usize = 50;

#[test]
fn agent_killed_100_times_during_volume_changes_loses_no_data_and_leaves_nothing() {
    let mut node = TestNode::start(Options { agent: false, ..Options::default() });
    let precious = node.dir().join("precious");
    fs::create_dir_all(precious.join("deep/er")).expect("made");
    for file in ["a", "deep/b", "deep/er/c"] {
        fs::write(precious.join(file), file).expect("written");
    }
    let before = files(&precious);
    // One pod stays, keeps its own data and holds the precious folder.
    let stays = script(
        "c",
        "[ -e /own/data ] || echo kept > /own/data; echo begun >> /shared/stays; exec /box pause",
    )
    .with(
        "volumeMounts",
        json!([{"name": "own", "mountPath": "/own"},
            {"name": "precious", "mountPath": "/precious"}]),
    );
    let mut stays = pod("stays", &[stays]);
    push(&mut stays["spec"]["volumes"], json!({"name": "own", "emptyDir": {}}));
    push(
        &mut stays["spec"]["volumes"],
        json!({"name": "precious", "hostPath": {"path": precious}}),
    );
    node.put("stays.json", &sharing(stays, &node));
    node.start_agent();
    let stays = node.pod_until("stays", "is ready", |p| condition(p, "Ready"));

    for round in 0..100usize {
        let name = format!("v{}.json", round % 3);
        if node.manifests().join(&name).exists() {
            node.remove(&name);
        } else {
            let mut manifest = with_volumes(&node, round % 3);
            let volume = json!({"name": "precious", "hostPath": {"path": precious}});
            push(&mut manifest["spec"]["volumes"], volume);
            let mount = json!({"name": "precious", "mountPath": "/precious"});
            push(&mut manifest["spec"]["containers"][0]["volumeMounts"], mount);
            node.put(&name, &manifest);
        }
        if round == VOLUMES_AT {
            until(LONG, "a pod has got as far as its volumes", || {
                ensure!(!lines(&node, "names").is_empty(), "none has");
                Ok(())
            });
        } else if round % 5 != 0 {
            until(LONG, "the agent knows its pods", || node.pod("stays"));
        }
        // The crash comes at another instruction each time; that is the point of this pause.
        thread::sleep(Duration::from_millis((round as u64 * 37) % 307));
        node.kill_agent();
        node.spawn_agent().expect("the agent starts");
    }
    let now = node.pod_until("stays", "is ready", |p| condition(p, "Ready"));
    assert_eq!(container_id(&now, "c"), container_id(&stays, "c"));
    assert_eq!(restarts(&now, "c"), 0);
    assert_eq!(lines(&node, "stays"), ["begun"]);
    let uid = now.metadata.uid.as_deref().expect("a uid");
    let own = node.root().join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/own/data");
    assert_eq!(fs::read_to_string(own).expect("it is there"), "kept\n");
    for number in 0..3 {
        let file = format!("v{number}.json");
        if node.manifests().join(&file).exists() {
            node.pod_until(&format!("v{number}"), "is ready", |p| condition(p, "Ready"));
        }
    }
    for entry in fs::read_dir(node.manifests()).expect("readable").flatten() {
        fs::remove_file(entry.path()).expect("removed");
    }
    clean_of_what_the_runtime_knows(&node);
    assert_eq!(files(&precious), before, "not a byte of a volume's data");
    assert!(shared(&node).join("stays").exists());
}

#[test]
fn every_container_of_many_killed_at_once_is_seen() {
    const PODS: usize = 100;
    const KILLED: usize = 30;
    let node = TestNode::usual();
    for i in 0..PODS {
        let name = format!("p{i}");
        node.put(&format!("{name}.json"), &pod(&name, &[container("c", &["/box", "pause"])]));
    }
    let ready = |count: usize, check: &dyn Fn(&Pod) -> bool| {
        // A hundred sandboxes are more than one wait's worth on a busy host.
        until(LONG * 4, &format!("{count} pods are ready"), || {
            let pods = node.pods()?;
            let good = pods.iter().filter(|p| condition(p, "Ready") && check(p)).count();
            ensure!(good == count, "{good} of {}", pods.len());
            Ok(pods)
        })
    };
    let before = ready(PODS, &|_| true);
    let victims: Vec<_> = before.iter().take(KILLED).collect();
    let pids: Vec<i32> = victims
        .iter()
        .map(|p| node.container_pid(&container_id(p, "c")).expect("it runs"))
        .collect();
    for pid in pids {
        xtask::node::process::signal(pid, nix::sys::signal::Signal::SIGKILL);
    }
    let names: Vec<_> = victims.iter().map(|p| p.metadata.name.clone()).collect();
    let after = ready(PODS, &|p| restarts(p, "c") == i32::from(names.contains(&p.metadata.name)));
    for it in after.iter().filter(|p| names.contains(&p.metadata.name)) {
        assert_eq!(pintle_testbed::manifest::last_end(it, "c"), Some((137, "Error")));
    }
    for entry in fs::read_dir(node.manifests()).expect("readable").flatten() {
        fs::remove_file(entry.path()).expect("removed");
    }
    until(LONG * 4, "nothing of the pods is left", || {
        let left = node.leftovers();
        ensure!(left.is_empty(), "{} shims, {} folders", left.shims.len(), left.pod_dirs.len());
        Ok(())
    });
}
