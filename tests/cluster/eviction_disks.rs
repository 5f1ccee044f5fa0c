//! Nodes whose disks are small and fill up: who has to go, in which words, and who stays.
//!
//! Each scenario fills a disk in its own way, waits for what the node does, and gives everything
//! back. The same scenarios run on a node of the kubelet as well, where what both did is compared.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_agent_host::pressure::node::pids;
use pintle_tests::cluster::{NODE, TestCluster};
use pintle_tests::disks::{IMAGE_FS, NODE_FS, NODE_INODES, SmallDisks, UNUSED};
use pintle_tests::manifest::{With, condition, container, last_end, pod, restarts, script};
use pintle_tests::{LONG, until};
use regex::Regex;
use serde_json::{Value, json};
use xtask::cluster::node::agent_process;

use crate::eviction::{is_evicted, message, under};

/// What has to be left of each disk.
const NODE_LEFT_MIB: u64 = 60;
const IMAGE_LEFT_MIB: u64 = 100;
const INODES_LEFT: u64 = NODE_INODES / 2;
/// Processes that the node may still start; more come and go with whatever else the machine does.
const PROCESSES_LEFT: u64 = 1500;
const BOMB_PROCESSES: u64 = 2500;
/// How long a disk has to be short where a pod is given time.
const GRACE: Duration = Duration::from_secs(4);
/// Runs until it is told to end, and not with success then: the kubelet forgets why it ended those
/// that do (docs/COMPAT.md).
const LASTS: &str = "trap 'exit 3' TERM; while :; do sleep 0.1; done";
/// A pod that is there before everything else and must never notice.
const BYSTANDER: &str = "bystander";

/// A node that is made short of something.
struct Ground<'a> {
    test: &'a TestCluster,
    node: &'a str,
    disks: SmallDisks<'a>,
}

impl<'a> Ground<'a> {
    /// On small disks, with a bystander.
    fn take(test: &'a TestCluster, node: &'a str) -> Self {
        let disks = SmallDisks::mount(test, node);
        disks.add_unused_images().expect("imported");
        let ground = Self { test, node, disks };
        ground.configure(json!({}));
        ground.create(BYSTANDER, container("c", &["/box", "pause"]), json!({}));
        ground.ready(BYSTANDER);
        ground
    }

    /// Starts the agent with what is short when, and these fields.
    fn configure(&self, more: Value) {
        let mut fields = json!({
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": format!("{NODE_LEFT_MIB}Mi"),
                "nodefs.inodesFree": INODES_LEFT.to_string(),
                "imagefs.available": format!("{IMAGE_LEFT_MIB}Mi"),
            },
            "evictionPressureTransitionPeriod": "5s",
            "volumeStatsAggPeriod": "1s",
            "imageMinimumGCAge": "1ms",
            // What is written to a log stays, however much it is.
            "containerLogMaxSize": "400Mi",
        });
        let more = more.as_object().expect("an object").clone();
        fields.as_object_mut().expect("an object").extend(more);
        if self.node == NODE {
            return self.test.configure_agent(&fields);
        }
        let (cluster, agent) = (self.test.cluster(), agent_process(self.node));
        cluster.configure_agent(self.node, &fields).expect("written");
        cluster.kill(&agent).expect("the agent dies");
        cluster.start(&agent).expect("the agent starts");
    }

    fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.node)
    }

    /// A pod of one container with a volume of the node's disk at `/v`.
    fn create(&self, name: &str, of: Value, requests: Value) {
        let of = of
            .with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]))
            .with("resources", json!({"requests": requests}));
        let manifest = pod(&self.name(name), &[of])
            .with_spec(
                "terminationGracePeriodSeconds",
                json!(if name == "polite" { 30 } else { 1 }),
            )
            .with_spec("nodeName", json!(self.node))
            .with_spec("automountServiceAccountToken", json!(false))
            .with_spec("volumes", json!([{"name": "v", "emptyDir": {}}]));
        self.test.apply(&manifest);
    }

    fn ready(&self, name: &str) -> Pod {
        self.test.pod_until(&self.name(name), "is ready", |p| condition(p, "Ready"))
    }

    fn evicted(&self, name: &str) -> Pod {
        self.test.pod_until(&self.name(name), "is evicted", is_evicted)
    }

    /// Waits until the pod's volume holds a file of this many bytes.
    fn wrote(&self, name: &str, bytes: u64) {
        let pod = self.ready(name);
        let uid = pod.metadata.uid.expect("a pod of the API server has a uid");
        let root = self.test.cluster().node_root(self.node).expect("the node's machine runs");
        let file = format!("var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/v/file");
        until(LONG, "the volume holds what the pod writes", || {
            let held = fs::metadata(root.join(&file))?.len();
            ensure!(held == bytes, "{held} of {bytes} bytes");
            Ok(())
        });
    }

    fn node_until(&self, what: &str, check: impl Fn(&Node) -> bool) {
        until(LONG, &format!("node {} {what}", self.node), || {
            let text = self.test.kubectl(&["get", "node", self.node, "-o", "json"])?;
            let node: Node = serde_json::from_str(&text)?;
            ensure!(check(&node), "{:#?}", node.status.and_then(|status| status.conditions));
            Ok(())
        });
    }

    /// The scenario is over: who was meant to stay stayed, its pods go, the node is well again.
    /// Returns what was seen of the pods and told of them.
    fn end(&self, pods: &[&str], stay: &[&str], pressure: &str) -> Vec<String> {
        self.node_until("is well", |node| !under(node, pressure));
        for name in stay.iter().chain(&[BYSTANDER]) {
            let pod = self.ready(name);
            assert_eq!(restarts(&pod, "c"), 0, "{name}");
        }
        let seen = pods.iter().flat_map(|name| self.seen(name)).collect();
        for name in pods {
            let name = self.name(name);
            self.test.kubectl(&["delete", "pod", &name, "--grace-period=1"]).expect("it goes");
        }
        seen
    }

    /// Status and events of a pod; what depends on the moment is a placeholder.
    fn seen(&self, name: &str) -> Vec<String> {
        let pod = self.test.pod(&self.name(name)).expect("asked").expect("the pod is there");
        let status = pod.status.clone().unwrap_or_default();
        let mut lines = vec![format!("{name}: {:?} {:?}", status.phase, status.reason)];
        lines.push(format!("{name}: {}", self.normal(message(&pod))));
        for c in status.conditions.iter().flatten() {
            let message = self.normal(c.message.as_deref().unwrap_or_default());
            lines.push(format!("{name}: {}={} {:?} {message}", c.type_, c.status, c.reason));
        }
        lines.push(format!("{name}: ended {:?}", last_end(&pod, "c")));
        lines.extend(self.events(name).expect("events").iter().map(|e| format!("{name}: {e}")));
        lines
    }

    fn events(&self, name: &str) -> Result<Vec<String>> {
        let of = format!("involvedObject.name={}", self.name(name));
        let args = ["get", "events", "--field-selector", &of, "-o", "json"];
        let events: Value = serde_json::from_str(&self.test.kubectl(&args)?)?;
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let events = events["items"].as_array().context("a list")?;
        let told = events.iter().map(|e| {
            let notes = self.normal(&e["metadata"]["annotations"].to_string());
            let words = self.normal(&text(&e["message"]));
            let line = format!("{} {} {words} {notes}", text(&e["type"]), text(&e["reason"]));
            (text(&e["metadata"]["name"]), line)
        });
        Ok(told.collect::<BTreeMap<_, _>>().into_values().collect())
    }

    fn normal(&self, text: &str) -> String {
        let text = text.replace(&format!("-{}", self.node), "");
        let amount = Regex::new(r"\b\d+(\.\d+)?(m?s|[KMG]i|k|M)?\b").expect("an expression");
        amount.replace_all(&text, "N").into_owned()
    }

    /// Somebody makes very many files, somebody else a few.
    fn inodes(&self) -> Vec<String> {
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

    /// Somebody's log fills the disk; somebody else has asked for more than it uses.
    fn log_flood(&self) -> Vec<String> {
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

    /// Who uses more than it asked for goes before who uses more, of what it asked for.
    fn over_its_request(&self) -> Vec<String> {
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

    /// Images that nobody uses fill the runtime's disk: they go, and no pod does.
    fn unused_images(&self) -> Vec<String> {
        let pods = self.test.pods().expect("pods").len();
        self.disks.leave(IMAGE_FS, IMAGE_LEFT_MIB - 20);
        until(LONG, "what nobody uses is gone", || {
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

    /// A disk is short for longer than it may be: who goes is given time, though less than it wants.
    fn soft(&self) -> Vec<String> {
        self.configure(json!({
            "evictionSoft": {"nodefs.available": format!("{}Mi", NODE_LEFT_MIB + 40)},
            "evictionSoftGracePeriod": {"nodefs.available": format!("{}s", GRACE.as_secs())},
            "evictionMaxPodGracePeriod": 20,
        }));
        let polite = "trap 'sleep 2; exit 0' TERM; head -c 52428800 /dev/zero > /v/file; \
                      while :; do sleep 0.1; done";
        self.create("polite", script("c", polite), json!({}));
        self.wrote("polite", 50 << 20);
        let begin = Instant::now();
        self.disks.leave(NODE_FS, NODE_LEFT_MIB + 10);
        let gone = self.evicted("polite");
        assert!(begin.elapsed() >= GRACE, "{:?}", begin.elapsed());
        assert_eq!(last_end(&gone, "c"), Some((0, "Completed")), "it had its time");
        let seen = self.end(&["polite"], &[], "DiskPressure");
        self.disks.lighten(NODE_FS);
        seen
    }

    /// Somebody starts processes without end.
    fn fork_bomb(&self) -> Vec<String> {
        let (most, used) = pids().expect("/proc tells");
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
fn disks_that_fill_up_cost_those_who_fill_them_and_nobody_else() {
    let test = TestCluster::take();
    test.empty_nodes();
    let ground = Ground::take(&test, NODE);
    for (name, scenario) in SCENARIOS {
        let begin = Instant::now();
        scenario(&ground);
        eprintln!("    {name} took {:.1} s", begin.elapsed().as_secs_f64());
    }
}

#[test]
fn images_that_nobody_uses_go_before_any_pod() {
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

type Scenario = fn(&Ground<'_>) -> Vec<String>;

const SCENARIOS: [(&str, Scenario); 2] = [
    ("inodes", |ground| ground.inodes()),
    ("over its request", |ground| ground.over_its_request()),
];
/// The kubelet may remove a container for its disk before it has read how it ended
/// (docs/COMPAT.md).
const FORGOTTEN: &str = "ended Some((137, \"ContainerStatusUnknown\"))";

#[test]
fn a_flood_of_logs_costs_only_who_wrote_it() {
    let test = TestCluster::take();
    test.empty_nodes();
    Ground::take(&test, NODE).log_flood();
}

#[test]
#[ignore = "takes minutes: the kubelet looks at its disks rarely"]
fn the_kubelet_ends_the_same_pods_in_the_same_words() {
    let test = TestCluster::beside_the_kubelet();
    test.empty_nodes();
    let mut seen = test.cluster().nodes().iter().map(|node| {
        let ground = Ground::take(&test, node);
        let of = |(name, scenario): (&'static str, Scenario)| {
            let begin = Instant::now();
            let seen = scenario(&ground);
            eprintln!("    {name} on {node} took {:.1} s", begin.elapsed().as_secs_f64());
            (name, seen)
        };
        SCENARIOS.into_iter().map(of).collect::<Vec<_>>()
    });
    let (ours, theirs) = (seen.next().expect("ours"), seen.next().expect("the kubelet's"));
    for ((name, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        let pairs = ours.iter().zip(theirs).filter(|(_, theirs)| !theirs.ends_with(FORGOTTEN));
        let differing: Vec<_> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
        assert!(differing.is_empty(), "{name}, ours and the kubelet's: {differing:#?}");
        assert_eq!(ours.len(), theirs.len(), "{name}: {ours:#?} {theirs:#?}");
    }
}
