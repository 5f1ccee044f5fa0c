//! Each kind of probe for each purpose, failing and recovering.

use std::net::SocketAddr;

use anyhow::ensure;
use pintle_testbed::manifest::{
    With, address, condition, container, is_running, pod, restarts, script, status_of,
};
use pintle_testbed::{LONG, TestNode, until};
use serde_json::{Value, json};
use xtask::node::process;

use crate::support::{lines_until, remove_all, shared, sharing};

const KINDS: [&str; 4] = ["exec", "http", "tcp", "grpc"];

/// A probe of this kind each second; one failure counts.
fn probe(kind: &str) -> Value {
    let mut probe = json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 5});
    let (field, how) = match kind {
        "exec" => ("exec", json!({"command": ["/box", "get", "127.0.0.1:8080/"]})),
        "http" => ("httpGet", json!({"port": 8080, "path": "/"})),
        "tcp" => ("tcpSocket", json!({"port": 8081})),
        _ => ("grpc", json!({"port": 8082})),
    };
    probe[field] = how;
    probe
}

fn server() -> Value {
    container("c", &["/box", "serve", "http=8080", "tcp=8081", "grpc=8082"])
}

/// Asks the pod's server to be healthy, unhealthy or to hang.
fn switch(node: &TestNode, name: &str, to: &str) {
    let it = node.pod(name).expect("the pod is there");
    let at = SocketAddr::from((address(&it), 8080));
    let path = format!("/set/{to}");
    until(LONG, "the server answers", || {
        let answer = node.get_from(at, &path)?;
        ensure!(answer.body == "set", "{answer:?}");
        Ok(())
    });
}

#[test]
fn readiness_follows_probes_of_every_kind_down_and_up_again() {
    let node = TestNode::usual();
    for kind in KINDS {
        let c = server().with("readinessProbe", probe(kind));
        node.put(&format!("{kind}.json"), &pod(kind, &[c]));
    }
    let slow = server().with("readinessProbe", probe("http").with("timeoutSeconds", json!(1)));
    node.put("slow.json", &pod("slow", &[slow]));
    let names = || KINDS.into_iter().map(|k| (k, "unhealthy")).chain([("slow", "hang")]);
    for (name, _) in names() {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    for (name, trouble) in names() {
        switch(&node, name, trouble);
    }
    for (name, _) in names() {
        let it = node.pod_until(name, "is not ready", |p| !condition(p, "Ready"));
        assert!(is_running(&it, "c"));
        switch(&node, name, "healthy");
    }
    for (name, _) in names() {
        let it = node.pod_until(name, "is ready again", |p| condition(p, "Ready"));
        assert_eq!(restarts(&it, "c"), 0, "{name}: readiness never restarts");
    }
    remove_all(&node);
}

#[test]
fn a_failing_liveness_probe_of_every_kind_restarts_the_container() {
    let node = TestNode::usual();
    for kind in KINDS {
        let c = server().with("livenessProbe", probe(kind).with("failureThreshold", json!(2)));
        let c = c.with("readinessProbe", probe("http"));
        node.put(&format!("{kind}.json"), &pod(kind, &[c]));
    }
    for kind in KINDS {
        let it = node.pod_until(kind, "is ready", |p| condition(p, "Ready"));
        assert_eq!(restarts(&it, "c"), 0, "{kind}");
        switch(&node, kind, "unhealthy");
    }
    for kind in KINDS {
        let it = node.pod_until(kind, "was restarted and is ready again", |p| {
            restarts(p, "c") == 1 && condition(p, "Ready")
        });
        assert!(is_running(&it, "c"), "{kind}");
    }
    remove_all(&node);
}

#[test]
fn startup_probe_of_every_kind_delays_liveness_and_restarts_an_unstarted_container() {
    let node = TestNode::usual();
    for kind in KINDS {
        // Nothing listens in the first instance; in the second one the server comes late, and
        // liveness, were it asked meanwhile, would end it at its first failure.
        let text = format!(
            "if [ -e /shared/{kind} ]; then \
             exec /box serve delay=1500 http=8080 tcp=8081 grpc=8082; \
             else touch /shared/{kind}; exec /box pause; fi"
        );
        let c = script("c", &text)
            .with("startupProbe", probe(kind).with("failureThreshold", json!(10)))
            .with("livenessProbe", probe(kind));
        node.put(&format!("{kind}.json"), &sharing(pod(kind, &[c]), &node));
    }
    for kind in KINDS {
        let it = node.pod_until(kind, "has started", |p| {
            status_of(p, "c").is_some_and(|c| c.started == Some(true)) && condition(p, "Ready")
        });
        assert_eq!(restarts(&it, "c"), 1, "{kind}");
    }
    remove_all(&node);
}

#[test]
fn exec_probes_that_hang_leave_no_process_behind() {
    let node = TestNode::usual();
    // A number that no other test sleeps for finds the processes.
    let forever = "86417";
    let text =
        format!("[ -e /shared/stop ] || {{ echo x >> /shared/asked; exec sleep {forever}; }}");
    for name in ["a", "b", "c"] {
        let probe = json!({"exec": {"command": ["sh", "-c", text]}, "periodSeconds": 1,
            "timeoutSeconds": 1, "failureThreshold": 1});
        let c = container("main", &["/box", "pause"]).with("readinessProbe", probe);
        node.put(&format!("{name}.json"), &sharing(pod(name, &[c]), &node));
    }
    lines_until(&node, "asked", 12);
    assert!(!condition(&node.pod("a").expect("it is there"), "Ready"));
    std::fs::write(shared(&node).join("stop"), "").expect("written");
    for name in ["a", "b", "c"] {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    let cgroup = node.runtime_node().cgroup("");
    until(LONG, "no probe's process is left", || {
        let sleeping = |pid: &i32| {
            let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let args = process::arguments(*pid);
            group.contains(&cgroup) && args.iter().any(|a| a == forever)
        };
        let left: Vec<i32> = process::all().into_iter().filter(sleeping).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
    remove_all(&node);
}
