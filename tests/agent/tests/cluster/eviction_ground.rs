//! A node that is made short of something, and what is seen of it: of the kubelet or of ours.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::disks::{NODE_INODES, SmallDisks};
use pintle_testbed::manifest::{With, condition, container, last_end, pod, restarts};
use pintle_testbed::{LONG, until};
use regex::Regex;
use serde_json::{Value, json};
use xtask::cluster::node::agent_process;

use crate::eviction::{is_evicted, message, under};

/// The eviction threshold of each disk.
pub const NODE_LEFT_MIB: u64 = 60;
pub const IMAGE_LEFT_MIB: u64 = 100;
pub const INODES_LEFT: u64 = NODE_INODES / 2;
/// Runs until SIGTERM, and then fails: the kubelet drops the reason of a pod that it ends and that
/// succeeds (docs/COMPAT.md).
pub const LASTS: &str = "trap 'exit 3' TERM; while :; do sleep 0.1; done";
/// A pod that is there before everything else and must never notice.
pub const BYSTANDER: &str = "bystander";

/// A node that is made short of something.
pub struct Ground<'a> {
    pub test: &'a TestCluster,
    pub node: &'a str,
    pub disks: SmallDisks<'a>,
}

impl<'a> Ground<'a> {
    /// On small disks, with a bystander.
    pub fn take(test: &'a TestCluster, node: &'a str) -> Self {
        let disks = SmallDisks::mount(test, node);
        disks.add_unused_images().expect("imported");
        let ground = Self { test, node, disks };
        ground.configure(json!({}));
        ground.create(BYSTANDER, container("c", &["/box", "pause"]), json!({}));
        ground.ready(BYSTANDER);
        ground
    }

    /// Starts the agent with what is short when, and these fields.
    pub fn configure(&self, more: Value) {
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

    pub fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.node)
    }

    /// A pod of one container with a volume of the node's disk at `/v`.
    pub fn create(&self, name: &str, of: Value, requests: Value) {
        let of = of.with("resources", json!({"requests": requests}));
        self.create_with(name, of, json!({}));
    }

    /// The same with the container's own resources, and a volume of this kind.
    pub fn create_with(&self, name: &str, of: Value, empty_dir: Value) {
        let of = of.with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
        let manifest = pod(&self.name(name), &[of])
            .with_spec(
                "terminationGracePeriodSeconds",
                json!(if name == "polite" { 30 } else { 1 }),
            )
            .with_spec("nodeName", json!(self.node))
            .with_spec("automountServiceAccountToken", json!(false))
            .with_spec("volumes", json!([{"name": "v", "emptyDir": empty_dir}]));
        self.test.apply(&manifest);
    }

    pub fn ready(&self, name: &str) -> Pod {
        self.test.pod_until(&self.name(name), "is ready", |p| condition(p, "Ready"))
    }

    pub fn evicted(&self, name: &str) -> Pod {
        self.test.pod_until(&self.name(name), "is evicted", is_evicted)
    }

    /// The folder of the pod's volume.
    pub fn volume(&self, pod: &Pod) -> PathBuf {
        let uid = pod.metadata.uid.as_deref().expect("a pod of the API server has a uid");
        let root = self.test.cluster().node_root(self.node).expect("the node's machine runs");
        root.join(format!("var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/v"))
    }

    /// Waits until the pod's volume holds a file of this many bytes.
    pub fn wrote(&self, name: &str, bytes: u64) {
        let file = self.volume(&self.ready(name)).join("file");
        until(LONG, "the volume holds what the pod writes", || {
            let held = fs::metadata(&file)?.len();
            ensure!(held == bytes, "{held} of {bytes} bytes");
            Ok(())
        });
    }

    pub fn node_until(&self, what: &str, check: impl Fn(&Node) -> bool) {
        until(LONG, &format!("node {} {what}", self.node), || {
            let text = self.test.kubectl(&["get", "node", self.node, "-o", "json"])?;
            let node: Node = serde_json::from_str(&text)?;
            ensure!(check(&node), "{:#?}", node.status.and_then(|status| status.conditions));
            Ok(())
        });
    }

    /// Ends the scenario: checks that the pods of `stay` stayed, removes its pods, waits until the
    /// node is well again. Returns the statuses and events of the pods.
    pub fn end(&self, pods: &[&str], stay: &[&str], pressure: &str) -> Vec<String> {
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
    pub fn seen(&self, name: &str) -> Vec<String> {
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

    pub fn events(&self, name: &str) -> Result<Vec<String>> {
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

    pub fn normal(&self, text: &str) -> String {
        let text = text.replace(&format!("-{}", self.node), "");
        let amount = Regex::new(r"\b\d+(\.\d+)?(m?s|[KMG]i|k|M)?\b").expect("an expression");
        amount.replace_all(&text, "N").into_owned()
    }
}
