//! The node's own object: what happens to it and what the agent makes of that.

use pintle_testbed::cluster::{NODE, TestCluster, is_ready};
use pintle_testbed::manifest::{With, condition, container_id, pod, restarts, script};
use serde_json::json;

#[test]
fn deleted_node_is_registered_again_at_agent_start_and_its_pods_keep_running() {
    let test = TestCluster::take();
    let manifest = pod("stays", &[script("c", "sleep 1000")]).with_spec("nodeName", json!(NODE));
    test.apply(&manifest);
    let before = test.pod_until("stays", "is ready", |p| condition(p, "Ready"));
    let old = test.node_until("is ready", is_ready);

    test.kubectl(&["delete", "node", NODE]).expect("deleted");
    // The deletion is respected: like the kubelet, the agent registers only when it starts.
    test.restart_agent();
    test.node_until("is there again and ready", |node| {
        node.metadata.uid != old.metadata.uid && is_ready(node)
    });

    let after = test.pod_until("stays", "is ready", |p| condition(p, "Ready"));
    assert_eq!(container_id(&after, "c"), container_id(&before, "c"));
    assert_eq!(restarts(&after, "c"), 0);
}
