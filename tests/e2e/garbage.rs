//! Images that nobody uses leave a disk that is too full.

use std::collections::BTreeSet;

use anyhow::ensure;
use pintle_tests::manifest::{condition, container, pod};
use pintle_tests::{LONG, TestNode, until};
use xtask::image::set;

/// Names of the images that the runtime has.
fn images(node: &TestNode) -> anyhow::Result<BTreeSet<String>> {
    let listed = node.runtime_node().ctr(&["images", "list", "--quiet"])?;
    let names = listed.lines().filter(|name| name.starts_with("pintle.test/"));
    Ok(names.map(str::to_owned).collect())
}

#[test]
fn a_disk_that_is_too_full_loses_what_nobody_uses_and_keeps_what_somebody_does() {
    let mut node = TestNode::usual();
    node.put("user.json", &pod("user", &[container("c", &["/box", "pause"])]));
    node.pod_until("user", "is ready", |p| condition(p, "Ready"));
    let before = images(&node).expect("images");
    assert!(before.contains(set::BOX) && before.contains(set::BUSYBOX), "{before:?}");
    node.stop_agent();
    // Any disk is fuller than this, and no images make it less full.
    let flags = ["high-threshold=1", "low-threshold=0"].map(|flag| format!("--image-gc-{flag}"));
    let young = "--minimum-image-ttl-duration=1ms".to_owned();
    node.add_flags(flags.into_iter().chain([young]).collect());
    node.start_agent();
    let left = until(LONG, "an unused image is gone", || {
        let left = images(&node)?;
        ensure!(!left.contains(set::BUSYBOX), "{left:?}");
        Ok(left)
    });
    assert!(left.contains(set::BOX), "a container is made of it: {left:?}");
    let told = until(LONG, "the agent says that this was not enough", || {
        let log = node.agent_log();
        ensure!(log.contains("FreeDiskSpaceFailed"), "{log}");
        Ok(log)
    });
    let words = "Failed to free sufficient space by deleting unused images (freed ";
    assert!(told.contains(words), "{told}");
    let metrics = node.metrics().expect("metrics");
    let collected = "kubelet_image_garbage_collected_total{reason=\"space\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(collected));
    let count: usize = count.and_then(|count| count.parse().ok()).expect("counted");
    assert!(
        count >= 1 && count >= before.difference(&left).count(),
        "{count}: {before:?} {left:?}"
    );
    // Sandboxes are still made: their image is the runtime's own.
    node.put("next.json", &pod("next", &[container("c", &["/box", "pause"])]));
    node.pod_until("next", "is ready", |p| condition(p, "Ready"));
}
