//! A node whose page cache is needed: with `--pintle-psi-eviction` somebody goes once its processes wait
//! for memory, though the cache alone would be no reason.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pintle_tests::cluster::{NODE, TestCluster};
use pintle_tests::manifest::{With, condition, container, restarts, script};
use pintle_tests::{LONG, until};
use serde_json::json;
use xtask::disk::{Fault, Faulty, Operation, mount_fuse};
use xtask::shell;

use crate::eviction::{bound, is_evicted, little_memory, message};
use crate::eviction_cache::{SIGNAL, pressure};
use crate::explain::ask;

/// What is read again and again: a little more than is left beside `OWN_MIB` of what all pods have, so
/// that the kernel sees what it dropped come back soon, and counts who waits for it.
const FILE_MIB: u64 = 560;
/// What is read three times before the next, so that it counts as used.
const PART_MIB: u64 = 64;
/// What the reader has of its own; with the cache counted as left, the threshold is not met.
const OWN_MIB: u64 = 280;
/// How long the disk takes for 128 KiB: whoever misses what it had cached waits for that.
const READ: Duration = Duration::from_millis(4);

/// A disk of the node that caches what it reads, and has a file of zeros.
struct Late<'a> {
    test: &'a TestCluster,
    at: PathBuf,
    disk: Option<Faulty>,
}

impl<'a> Late<'a> {
    fn mount(test: &'a TestCluster, at: &Path) -> Self {
        let disk = Faulty::mount_by(at, |device: &File, options| {
            let mount = test.cluster().node_command(NODE, Path::new("mount")).expect("a node");
            mount_fuse(mount, device, options, at);
        });
        disk.let_cache();
        let late = Self { test, at: at.to_owned(), disk: Some(disk) };
        let size = format!("{FILE_MIB}M");
        Self::on_node(test, "truncate", &["-s", &size], &at.join("zeros")).expect("a file");
        late
    }

    fn on_node(
        test: &TestCluster,
        program: &str,
        arguments: &[&str],
        at: &Path,
    ) -> anyhow::Result<String> {
        let mut command = test.cluster().node_command(NODE, Path::new(program))?;
        shell::capture(command.args(arguments).arg(at))
    }
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        // Whoever waits for it gets an error now.
        drop(self.disk.take());
        let _ = Self::on_node(self.test, "umount", &["-l"], &self.at);
    }
}

#[test]
#[ignore = "what computes beside it hides the stall"]
fn who_has_the_node_wait_for_memory_goes_where_stall_decides() {
    let test = TestCluster::take();
    test.empty_nodes();
    test.configure_agent_with(&little_memory(&test), &["--pintle-psi-eviction"]);
    let dir = tempfile::tempdir().expect("a folder");
    let late = Late::mount(&test, dir.path());
    let holds = container("c", &["/box", "hog", "20"])
        .with("resources", json!({"requests": {"memory": "100Mi"}}));
    test.apply(&bound("modest", &[holds]));
    test.pod_until("modest", "is ready", |p| condition(p, "Ready"));

    let part = format!(
        "dd if=/file/zeros of=/dev/null bs=1M skip=$at count={PART_MIB} 2>/dev/null || exit 7"
    );
    let reads = format!(
        "while :; do at=0; while [ $at -lt {FILE_MIB} ]; do \
         for again in 1 2 3; do {part}; done; at=$((at + {PART_MIB})); done; done"
    );
    let mounts = json!([{"name": "file", "mountPath": "/file"}]);
    let volumes = json!([{"name": "file", "hostPath": {"path": dir.path()}}]);
    let containers = [
        script("reads", &reads).with("volumeMounts", mounts),
        container("holds", &["/box", "hog", &OWN_MIB.to_string()]),
    ];
    test.apply(&bound("reader", &containers).with_spec("volumes", volumes));
    test.pod_until("reader", "is ready", |p| condition(p, "Ready"));
    let disk = late.disk.as_ref().expect("until it is dropped");
    disk.set(Operation::Read, Fault::Slow(READ));

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
