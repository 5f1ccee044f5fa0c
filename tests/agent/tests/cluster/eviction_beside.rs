//! Evictions on a kubelet's node and on one of ours: the same victims with the same messages.
//!
//! Each scenario runs on one node after the other. It compares phase, reason, message, conditions
//! and container states of its pods, their events, the node's events, and the images that are left.
//! Amounts are replaced by placeholders.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::manifest::{With, script};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::eviction::{little_memory, message};
use crate::eviction_ground::{Ground, LASTS};

/// The kubelet may remove a container for its disk before it has read how it ended
/// (docs/COMPAT.md).
const FORGOTTEN: &str = "ended Some((137, \"ContainerStatusUnknown\"))";
/// Events of a node when the pressure begins and when it ends.
const DISK: [&str; 2] = ["NodeHasDiskPressure", "NodeHasNoDiskPressure"];
const MEMORY: [&str; 2] = ["NodeHasInsufficientMemory", "NodeHasSufficientMemory"];
/// Events of the node about its actions against the pressure.
const DONE: [&str; 4] =
    ["EvictionThresholdMet", "FreeDiskSpaceFailed", "ImageGCFailed", "InvalidDiskCapacity"];

/// One way to make a node short.
struct Scenario {
    name: &'static str,
    run: fn(&Ground<'_>) -> Vec<String>,
    /// Events of the node that it causes.
    told: &'static [&'static str],
}

const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "inodes", run: |ground| ground.inodes(), told: &DISK },
    Scenario { name: "over its request", run: |ground| ground.over_its_request(), told: &DISK },
    Scenario { name: "limits", run: |ground| ground.limits(), told: &[] },
    Scenario { name: "images", run: |ground| ground.images(), told: &DISK },
    Scenario { name: "memory", run: |ground| ground.memory(), told: &MEMORY },
];

/// Slow scenarios: grace periods, and resources that fill up slowly.
const SLOW: [Scenario; 2] = [
    Scenario { name: "a flood of logs", run: |ground| ground.log_flood(), told: &DISK },
    Scenario { name: "a soft threshold", run: |ground| ground.soft(), told: &DISK },
];

impl Scenario {
    /// The statuses and events of its pods, and the events of the node.
    fn seen(&self, ground: &Ground<'_>) -> Vec<String> {
        let begin = Instant::now();
        let before = ground.told_of_node().expect("events");
        let mut seen = (self.run)(ground);
        let all_told = format!("all of {:?} is reported for {}", self.told, ground.node);
        let new = until(LONG, &all_told, || {
            let mut now = ground.told_of_node()?;
            now.retain(|line, count| before.get(line).is_none_or(|known| known < count));
            let is_told = |reason: &&str| now.keys().any(|line| line.contains(&**reason));
            ensure!(self.told.iter().all(is_told), "{now:#?}");
            Ok(now)
        });
        seen.extend(new.into_keys());
        let (name, node) = (self.name, ground.node);
        eprintln!("    {name} on {node} took {:.1} s", begin.elapsed().as_secs_f64());
        seen
    }
}

impl Ground<'_> {
    /// Events of the node about pressure, with their counts.
    fn told_of_node(&self) -> Result<BTreeMap<String, i64>> {
        let of = format!("involvedObject.kind=Node,involvedObject.name={}", self.node);
        let args = ["get", "events", "-A", "--field-selector", &of, "-o", "json"];
        let events: Value = serde_json::from_str(&self.test.kubectl(&args)?)?;
        let mut told = BTreeMap::new();
        for event in events["items"].as_array().context("a list")? {
            let text = |field: &str| event[field].as_str().unwrap_or_default();
            let reason = text("reason");
            if [DISK.as_slice(), &MEMORY, &DONE].concat().contains(&reason) {
                let words = self.normal(&text("message").replace(self.node, "NODE"));
                let line = format!("node: {} {reason} {words}", text("type"));
                *told.entry(line).or_default() += event["count"].as_i64().unwrap_or(1);
            }
        }
        Ok(told)
    }

    /// Pods that use more of a disk than they, their container or their volume may.
    fn limits(&self) -> Vec<String> {
        let write = |to: &str| script("c", &format!("head -c 8388608 /dev/zero > {to}; {LASTS}"));
        let limited =
            |to: &str| write(to).with("resources", json!({"limits": {"ephemeral-storage": "4Mi"}}));
        self.create_with("volume", write("/v/file"), json!({"sizeLimit": "4Mi"}));
        self.create_with("layer", limited("/tmp/file"), json!({}));
        self.create_with("sum", limited("/v/file"), json!({}));
        self.create_with("within", write("/v/file"), json!({"sizeLimit": "40Mi"}));
        let pods = ["volume", "layer", "sum"];
        for name in pods {
            let gone = self.evicted(name);
            assert!(message(&gone).contains("limit"), "{name}: {}", message(&gone));
        }
        self.end(&["volume", "layer", "sum", "within"], &["within"], "DiskPressure")
    }

    /// Images fill a disk: the unused ones are removed.
    fn images(&self) -> Vec<String> {
        let mut seen = self.unused_images();
        let left = self.disks.images().expect("a list");
        seen.extend(left.iter().map(|name| format!("left: {name}")));
        seen
    }

    /// One pod takes much more memory than its request, among others that keep within theirs. It
    /// does so in two steps: the kubelet ranks pods by figures some seconds old, which must show
    /// the largest pod when the threshold is met.
    fn memory(&self) -> Vec<String> {
        self.configure(little_memory(self.test));
        let holds = |mib: u64, then: &str| {
            script("c", &format!("/box hog {mib} & {then} {LASTS}"))
                .with("resources", json!({"requests": {"memory": "80Mi"}}))
        };
        self.create_with("modest", holds(40, ""), json!({}));
        self.create_with("steady", holds(20, ""), json!({}));
        let more = "until [ -e /v/more ]; do sleep 0.1; done; /box hog 200 &";
        self.create_with("hog", holds(220, more), json!({}));
        for name in ["modest", "steady"] {
            self.ready(name);
        }
        let hog = self.ready("hog");
        self.until_told_to_hold("hog", 220 << 20);
        fs::write(self.volume(&hog).join("more"), "").expect("the volume can be written");
        let gone = self.evicted("hog");
        let start = "The node was low on resource: memory. Threshold quantity: 400Mi, available: ";
        assert!(message(&gone).starts_with(start), "{}", message(&gone));
        self.end(&["hog", "modest", "steady"], &["modest", "steady"], "MemoryPressure")
    }

    /// Waits until the node's agent reports that the pod's working set is at least so large.
    fn until_told_to_hold(&self, name: &str, bytes: u64) {
        let path = format!("/api/v1/nodes/{}/proxy/stats/summary", self.node);
        let name = self.name(name);
        until(LONG, "the agent knows what the pod takes", || {
            let told: Value = serde_json::from_str(&self.test.kubectl(&["get", "--raw", &path])?)?;
            let pods = told["pods"].as_array().context("a list")?;
            let pod = pods.iter().find(|pod| pod["podRef"]["name"] == name.as_str());
            let held = pod.and_then(|pod| pod["memory"]["workingSetBytes"].as_u64());
            ensure!(held >= Some(bytes), "{held:?} of {bytes} bytes");
            Ok(())
        });
    }
}

#[test]
#[ignore = "takes minutes: the kubelet looks at its disks rarely"]
fn the_kubelet_ends_the_same_pods_in_the_same_words() {
    ends_alike(&SCENARIOS);
}

#[test]
#[ignore = "takes minutes: the kubelet looks at its disks rarely"]
fn slow_scenarios_evict_the_same_pods_as_the_kubelet() {
    ends_alike(&SLOW);
}

fn ends_alike(scenarios: &[Scenario]) {
    let test = TestCluster::beside_the_kubelet();
    test.empty_nodes();
    let of_node = |node: &String| -> Vec<_> {
        let ground = Ground::take(&test, node);
        scenarios.iter().map(|scenario| scenario.seen(&ground)).collect()
    };
    let [ours, theirs] = [0, 1].map(|index| of_node(&test.cluster().nodes()[index]));
    let differing = |(scenario, (ours, theirs)): (&Scenario, (&Vec<String>, &Vec<String>))| {
        let name = scenario.name;
        let mut pairs = ours.iter().zip(theirs).filter(|(_, theirs)| !theirs.ends_with(FORGOTTEN));
        let is_same = ours.len() == theirs.len() && pairs.all(|(ours, theirs)| ours == theirs);
        (!is_same).then(|| format!("{name}, ours and the kubelet's: {ours:#?} {theirs:#?}"))
    };
    let all: Vec<_> =
        scenarios.iter().zip(ours.iter().zip(&theirs)).filter_map(differing).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}
