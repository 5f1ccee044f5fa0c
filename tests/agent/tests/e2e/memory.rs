//! Containers that the OOM killer killed, and containers that were merely killed.

use pintle_testbed::TestNode;
use pintle_testbed::manifest::{With, condition, container, last_end, pod, restarts};
use pintle_testbed::node::Options;
use serde_json::json;

use crate::support::{ended_before, explained, kill, log_until, remove_all};

#[test]
fn oom_kill_of_a_child_oom_kill_of_a_container_and_plain_kill_are_distinguished() {
    // On cgroup v2 the kernel would end the whole container with the child.
    let config = json!({"singleProcessOOMKill": true});
    let node = TestNode::start(Options { config, ..Options::default() });
    let limited = |command: &[&str]| {
        container("hog", command).with("resources", json!({"limits": {"memory": "48Mi"}}))
    };
    node.put("init.json", &pod("init", &[limited(&["/box", "hog", "200"])]));
    node.put("child.json", &pod("child", &[limited(&["/box", "hog", "200", "child"])]));
    node.put("plain.json", &pod("plain", &[limited(&["/box", "pause"])]));

    let init = node.pod_until("init", "was OOM killed", |p| last_end(p, "hog").is_some());
    assert_eq!(last_end(&init, "hog"), Some((137, "OOMKilled")));
    explained(&node, "init", &["memory ran out", "48Mi"]);

    log_until(&node, "child", "hog", "child ended");
    explained(&node, "child", &["OOM killer took", "hog"]);
    let child = node.pod_until("child", "is still ready", |p| condition(p, "Ready"));
    assert_eq!(restarts(&child, "hog"), 0, "its first process lives");

    let plain = node.pod_until("plain", "is ready", |p| condition(p, "Ready"));
    kill(&node, &plain, "hog");
    let plain = node.pod_until("plain", "was restarted", |p| restarts(p, "hog") == 1);
    let end = ended_before(&plain, "hog").expect("the first instance is remembered");
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("Error")));
    assert!(!end.message.as_deref().unwrap_or_default().contains("OOM"), "{end:?}");

    // After an OOM kill of its child the message of a killed container names the child as well.
    kill(&node, &child, "hog");
    let child = node.pod_until("child", "was restarted", |p| restarts(p, "hog") >= 1);
    let end = ended_before(&child, "hog").expect("the first instance is remembered");
    assert_eq!(end.exit_code, 137);
    let message = end.message.as_deref().unwrap_or_default();
    assert!(message.contains("not its first process"), "{end:?}");
    remove_all(&node);
}
