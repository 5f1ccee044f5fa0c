//! A node that needs its page cache: with `--pintle-psi-eviction` a pod is evicted when processes
//! wait for memory, though the cache alone would be no reason.

use std::path::Path;

use anyhow::{Context as _, ensure};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::late::{Late, Parts, reads_for_ever};
use pintle_testbed::manifest::{With, condition, container, restarts, script};
use pintle_testbed::{LONG, until};
use serde_json::json;

use crate::eviction::{bound, is_evicted, little_memory, message};
use crate::eviction_cache::{SIGNAL, pressure};
use crate::explain::ask;

/// The file that is read again and again: a little larger than the pods' memory without `OWN_MIB`,
/// so that dropped pages are read again soon, and the kernel counts the wait for them.
const FILE_MIB: u64 = 560;
/// A part is read three times before the next, so that it counts as used.
const PARTS: Parts = Parts { mib: FILE_MIB, part_mib: 64, times: 3 };
/// The reader's own memory; with the cache counted as available, the threshold is not met.
const OWN_MIB: u64 = 280;

#[test]
#[ignore = "what computes beside it hides the stall"]
fn only_the_pod_that_causes_memory_stall_is_evicted_by_the_psi_rule() {
    let test = TestCluster::take();
    test.empty_nodes();
    test.configure_agent_with(&little_memory(&test), &["--pintle-psi-eviction"]);
    let dir = tempfile::tempdir().expect("a folder");
    let in_node = |program: &str| test.cluster().node_command(NODE, Path::new(program));
    let late = Late::mount(in_node, dir.path(), &[("zeros", FILE_MIB)]);
    let holds = container("c", &["/box", "hog", "20"])
        .with("resources", json!({"requests": {"memory": "100Mi"}}));
    test.apply(&bound("modest", &[holds]));
    test.pod_until("modest", "is ready", |p| condition(p, "Ready"));

    let reads = reads_for_ever("zeros", PARTS, "");
    let mounts = json!([{"name": "file", "mountPath": "/file"}]);
    let volumes = json!([{"name": "file", "hostPath": {"path": dir.path()}}]);
    let containers = [
        script("reads", &reads).with("volumeMounts", mounts),
        container("holds", &["/box", "hog", &OWN_MIB.to_string()]),
    ];
    test.apply(&bound("reader", &containers).with_spec("volumes", volumes));
    test.pod_until("reader", "is ready", |p| condition(p, "Ready"));
    late.slow();

    let mut most = 0.0_f64;
    let gone = until(LONG * 3, "the reader is evicted", || {
        let of = pressure(&test)?;
        most = most.max(of["stall"]["percent"].as_f64().context("the kernel counts stall")?);
        let pod = test.pod("reader")?.context("it is there")?;
        ensure!(is_evicted(&pod), "stall {most} %, {of:#}");
        Ok(pod)
    });
    eprintln!("    it went at a stall of {most} %");
    assert!(message(&gone).starts_with("The node was low on resource: memory. "), "{gone:?}");
    assert!(!format!("{:?}", gone.status).contains("OOMKilled"), "{:?}", gone.status);
    // The stall decided, and page cache counted for it.
    let said = ask(&test, &["explain", "reader"]).expect("explained");
    assert!(said.contains(SIGNAL) && said.contains("%, 10.00% or more: "), "{said}");
    let modest = test.pod_until("modest", "is ready", |p| condition(p, "Ready"));
    assert_eq!(restarts(&modest, "c"), 0);
}
