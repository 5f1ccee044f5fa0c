//! Nodes with small disks that fill up: which pods are evicted, with which messages, and which
//! stay.
//!
//! Each scenario fills a disk in its own way, waits for what the node does, and gives everything
//! back. `eviction_beside.rs` runs some of them on a node of the kubelet as well and compares.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pintle_agent_host::pressure::node::pids;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::disks::{IMAGE_FS, NODE_FS, UNUSED};
use pintle_testbed::manifest::{container, last_end, script};
use pintle_testbed::{LONG, until};
use serde_json::json;

use crate::eviction::{is_evicted, message};
use crate::eviction_ground::{Ground, IMAGE_LEFT_MIB, INODES_LEFT, LASTS, NODE_LEFT_MIB};

/// Processes that the node may still start; more come and go with whatever else the machine does.
const PROCESSES_LEFT: u64 = 1500;
const BOMB_PROCESSES: u64 = 2500;
/// Grace period of the soft threshold.
const GRACE: Duration = Duration::from_secs(4);

impl Ground<'_> {
    /// One pod makes very many files, another one a few.
    pub fn inodes(&self) -> Vec<String> {
        let files = |count: u64| {
            let text = format!(
                "i=0; while [ $i -lt {count} ]; do : > /v/$i; i=$((i+1)); done; \
                 {LASTS}"
            );
            script("c", &text)
        };
        self.create("few", files(300), json!({}));
        self.ready("few");
        self.create("many", files(INODES_LEFT - 300), json!({}));
        let gone = self.evicted("many");
        let start = "The node was low on resource: inodes. Threshold quantity: 6k, available: ";
        assert!(message(&gone).starts_with(start), "{}", message(&gone));
        self.end(&["many", "few"], &["few"], "DiskPressure")
    }

    /// The log of one pod fills the disk; the other pod requests more than it uses.
    pub fn log_flood(&self) -> Vec<String> {
        let holds = "head -c 20971520 /dev/zero > /v/file; exec /box pause";
        self.create("holder", script("c", holds), json!({"ephemeral-storage": "32Mi"}));
        self.wrote("holder", 20 << 20);
        self.disks.leave(NODE_FS, NODE_LEFT_MIB + 15);
        self.create("flood", container("c", &["/box", "log", "4000000", "1000"]), json!({}));
        let gone = self.evicted("flood");
        let start = "The node was low on resource: ephemeral-storage. Threshold quantity: 60Mi, \
                     available: ";
        let end = ", request is 0, has larger consumption of ephemeral-storage. ";
        let told = message(&gone);
        assert!(told.starts_with(start) && told.ends_with(end), "{told}");
        assert!(told.contains("Container c was using "), "{told}");
        self.disks.lighten(NODE_FS);
        self.end(&["flood", "holder"], &["holder"], "DiskPressure")
    }

    /// A pod over its request is evicted before a larger pod within its request.
    pub fn over_its_request(&self) -> Vec<String> {
        let holds = |mib: u64| {
            let bytes = mib << 20;
            script("c", &format!("head -c {bytes} /dev/zero > /v/file; {LASTS}"))
        };
        self.create("asked", holds(40), json!({"ephemeral-storage": "64Mi"}));
        self.create("unasked", holds(20), json!({}));
        self.wrote("asked", 40 << 20);
        self.wrote("unasked", 20 << 20);
        self.disks.leave(NODE_FS, NODE_LEFT_MIB - 8);
        self.evicted("unasked");
        let seen = self.end(&["unasked", "asked"], &["asked"], "DiskPressure");
        self.disks.lighten(NODE_FS);
        seen
    }

    /// Unused images fill the runtime's disk: they are removed, and no pod is evicted.
    pub fn unused_images(&self) -> Vec<String> {
        let pods = self.test.pods().expect("pods").len();
        self.disks.leave(IMAGE_FS, IMAGE_LEFT_MIB - 20);
        until(LONG, "the unused images are gone", || {
            let left = self.disks.images()?;
            ensure!(!UNUSED.iter().any(|name| left.iter().any(|image| image == name)), "{left:?}");
            Ok(())
        });
        let seen = self.end(&[], &[], "DiskPressure");
        let left = self.test.pods().expect("pods");
        assert_eq!(left.iter().filter(|pod| is_evicted(pod)).count(), 0);
        assert_eq!(left.len(), pods);
        self.disks.lighten(IMAGE_FS);
        seen
    }

    /// A soft threshold is met for longer than its grace period: the victim gets the configured
    /// grace period, though its own is longer.
    pub fn soft(&self) -> Vec<String> {
        self.configure(json!({
            "evictionSoft": {"nodefs.available": format!("{}Mi", NODE_LEFT_MIB + 40)},
            "evictionSoftGracePeriod": {"nodefs.available": format!("{}s", GRACE.as_secs())},
            "evictionMaxPodGracePeriod": 20,
        }));
        let polite = "trap 'sleep 2; exit 3' TERM; head -c 52428800 /dev/zero > /v/file; \
                      while :; do sleep 0.1; done";
        self.create("polite", script("c", polite), json!({}));
        self.wrote("polite", 50 << 20);
        let begin = Instant::now();
        self.disks.leave(NODE_FS, NODE_LEFT_MIB + 10);
        let gone = self.evicted("polite");
        assert!(begin.elapsed() >= GRACE, "{:?}", begin.elapsed());
        assert_eq!(last_end(&gone, "c"), Some((3, "Error")), "it had its time");
        let seen = self.end(&["polite"], &[], "DiskPressure");
        self.disks.lighten(NODE_FS);
        seen
    }

    /// A pod starts processes without end.
    fn fork_bomb(&self) -> Vec<String> {
        let (most, used) = pids().expect("/proc shows both");
        let least = most - used - PROCESSES_LEFT;
        self.configure(json!({"evictionHard": {"pid.available": least.to_string()}}));
        let bomb = format!(
            "i=0; while [ $i -lt {BOMB_PROCESSES} ]; do sleep 3600 & i=$((i+1)); done; wait"
        );
        self.create("bomb", script("c", &bomb), json!({}));
        let gone = self.evicted("bomb");
        let start = "The node was low on resource: pids. Threshold quantity: ";
        assert!(message(&gone).starts_with(start), "{}", message(&gone));
        self.end(&["bomb"], &[], "PIDPressure")
    }
}

#[test]
fn disk_pressure_evicts_only_the_pod_with_most_inodes_or_over_its_request() {
    let test = TestCluster::take();
    test.empty_nodes();
    let ground = Ground::take(&test, NODE);
    ground.inodes();
    ground.over_its_request();
}

#[test]
fn unused_images_are_deleted_before_any_pod_is_evicted() {
    let test = TestCluster::take();
    test.empty_nodes();
    Ground::take(&test, NODE).unused_images();
}

#[test]
fn a_soft_threshold_gives_time_and_a_fork_bomb_ends() {
    let test = TestCluster::take();
    test.empty_nodes();
    let ground = Ground::take(&test, NODE);
    ground.soft();
    ground.fork_bomb();
}

#[test]
fn log_flood_evicts_only_the_pod_that_wrote_the_log() {
    let test = TestCluster::take();
    test.empty_nodes();
    Ground::take(&test, NODE).log_flood();
}
