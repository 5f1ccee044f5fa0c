//! Privileges of containers, and namespaces that containers of a pod share.

use pintle_testbed::TestNode;
use pintle_testbed::manifest::{With, condition, container, pod, script, waiting_reason};
use serde_json::json;

use crate::support::{explained, log_until, remove_all};

#[test]
fn run_as_non_root_refuses_root_and_read_only_root_filesystem_is_applied() {
    let node = TestNode::usual();
    let with = |name: &str, text: &str, context: serde_json::Value| {
        let c = script("c", text).with("securityContext", context);
        node.put(&format!("{name}.json"), &pod(name, &[c]));
    };
    with("root", "exec /box pause", json!({"runAsNonRoot": true}));
    with(
        "user",
        "id -u; id -g; exec /box pause",
        json!({"runAsNonRoot": true, "runAsUser": 1234,
        "runAsGroup": 2345}),
    );
    with(
        "frozen",
        "touch /x && echo written || echo refused; exec /box pause",
        json!({"readOnlyRootFilesystem": true}),
    );
    with(
        "dropped",
        "grep CapEff /proc/self/status; exec /box pause",
        json!({"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": false}),
    );
    for name in ["user", "frozen", "dropped"] {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    log_until(&node, "user", "c", "1234\n2345\n");
    log_until(&node, "frozen", "c", "refused");
    log_until(&node, "dropped", "c", "CapEff:\t0000000000000000");
    node.pod_until("root", "is refused", |p| {
        waiting_reason(p, "c") == Some("CreateContainerConfigError")
    });
    explained(&node, "root", &["runAsNonRoot"]);
    remove_all(&node);
}

#[test]
fn containers_see_each_others_processes_only_with_share_process_namespace() {
    let node = TestNode::usual();
    let containers = || {
        [
            container("server", &["/box", "sleep", "54321"]),
            script(
                "looker",
                "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; echo end; exec /box pause",
            ),
        ]
    };
    node.put(
        "shared.json",
        &pod("shared", &containers()).with_spec("shareProcessNamespace", json!(true)),
    );
    node.put("apart.json", &pod("apart", &containers()));
    for (name, sees) in [("shared", true), ("apart", false)] {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
        let log = log_until(&node, name, "looker", "end\n");
        assert_eq!(log.contains("54321"), sees, "{name}: {log}");
    }
    remove_all(&node);
}
