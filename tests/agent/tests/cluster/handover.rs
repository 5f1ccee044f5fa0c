//! The node handed from the kubelet to our agent and back, with pods of many kinds on it.
//!
//! What runs is left alone: same containers, restarts, addresses, conditions with their times. What
//! was in the middle of something is brought to its end by the next agent. A static pod keeps its
//! containers when the kubelet began it or its manifest names a uid; one that our agent began is
//! recreated by the kubelet, which computes another uid for it.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::cluster::swap::{End, Swap, ours};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, phase, pod, restarts, script, waiting_reason};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::cluster::Agent;

use crate::handover_kinds::{Facts, MOVING, Moving, STEADY, SharedFolder, facts};

/// A static pod, and one whose manifest has a uid.
const STATIC: &str = "static";
const PINNED: &str = "pinned";
const UID: &str = "5d3a1c3e-7b52-4a80-9c65-0f3a7a0d4b11";
/// A pod in a crash loop, and one with an image that no registry has.
const CRASHES: &str = "crashes";
const NO_IMAGE: &str = "no-image";

struct Ground<'a> {
    test: &'a TestCluster,
    shared: SharedFolder,
    swap: Swap<'a>,
}

impl<'a> Ground<'a> {
    /// A node with the first agent and a pod of each kind.
    fn start(test: &'a TestCluster, first: &Agent) -> Self {
        test.empty_nodes();
        let swap = Swap::new(test);
        if *first != ours() {
            swap.to(first, End::Stopped);
        }
        let ground = Self { test, shared: SharedFolder::new(), swap };
        for kind in STEADY {
            test.apply(&kind.manifest(&ground.shared));
        }
        let crash = ground.shared.script("c", "sleep 0.2; exit 1");
        test.apply(&ground.shared.pod(CRASHES, crash));
        let elsewhere = script("c", "true").with("image", json!("registry.invalid/none:1"));
        let elsewhere = elsewhere.with("imagePullPolicy", json!("IfNotPresent"));
        test.apply(&ground.shared.pod(NO_IMAGE, elsewhere));
        ground.put_static(STATIC, &json!({}));
        ground.put_static(PINNED, &json!(UID));
        for kind in STEADY {
            test.pod_until(kind.name, "is where it stays", |pod| kind.is_there(pod));
        }
        ground.resize();
        for name in [STATIC, PINNED] {
            ground.ready_static(name);
        }
        test.pod_until(CRASHES, "has crashed", |pod| restarts(pod, "c") >= 2);
        test.pod_until(NO_IMAGE, "waits", |pod| waiting_reason(pod, "c").is_some());
        ground
    }

    fn put_static(&self, name: &str, uid: &Value) {
        let runs = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
        let mut manifest = pod(name, &[script("c", runs)]);
        if uid.is_string() {
            manifest["metadata"]["uid"] = uid.clone();
        }
        let dir = self.test.cluster().layout().node(NODE);
        let part = dir.join("static.part");
        fs::write(&part, manifest.to_string()).expect("written");
        fs::rename(&part, dir.join("manifests").join(format!("{name}.json"))).expect("put");
    }

    fn ready_static(&self, name: &str) -> Pod {
        let name = format!("{name}-{NODE}");
        self.test.pod_until(&name, "is ready", |pod| condition(pod, "Ready"))
    }

    /// Resizes a pod in place, so that the next agent has to know what was allocated.
    fn resize(&self) {
        let resources = json!({"cpu": "80m", "memory": "64Mi"});
        let resources = json!({"requests": resources, "limits": resources});
        let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        let patch = patch.to_string();
        let args = ["patch", "pod", "resized", "--subresource=resize", "--patch", &patch];
        self.test.kubectl(&args).expect("patched");
        self.test.pod_until("resized", "is resized", |pod| {
            facts(pod).resources.matches("64Mi").count() >= 3
        });
    }

    /// The facts of the pods that must stay.
    fn steady(&self) -> Result<BTreeMap<String, Facts>> {
        let pods = self.test.pods()?;
        let names: Vec<_> = STEADY.iter().map(|kind| kind.name).collect();
        let named = pods.iter().filter_map(|pod| {
            let name = pod.metadata.name.clone()?;
            names.contains(&&*name).then(|| (name, facts(pod)))
        });
        Ok(named.collect())
    }

    fn static_facts(&self, name: &str) -> Facts {
        facts(&self.ready_static(name))
    }

    /// Hands the node over, with a pod in the middle of each of its stages.
    fn hand_to(&self, agent: &Agent, number: usize, keeps_static: bool) {
        for kind in MOVING {
            self.test.apply(&kind.manifest(&self.shared, number));
        }
        self.until_under_way(number);
        let mut before = self.steady().expect("a list");
        let [of_static, of_pinned] = [STATIC, PINNED].map(|name| self.static_facts(name));
        let crashes = self.restarts_of(CRASHES);
        self.swap.to(agent, End::Stopped);
        self.shared.go(number);
        self.check_moved(number);
        // A new pod is synced after all others: when its status is written, the next agent has
        // synced each of them.
        let name = format!("new-{number}");
        self.test.apply(&self.shared.pod(&name, self.shared.script("c", "sleep 3600")));
        self.test.pod_until(&name, "is ready", |pod| condition(pod, "Ready"));
        self.test.heard_of();
        let mut after = self.steady().expect("a list");
        if *agent == Agent::Kubelet {
            [&mut before, &mut after].into_iter().for_each(forget_addresses_of_ended);
        }
        let changed = before.iter().filter(|(name, was)| after.get(*name) != Some(was));
        let changed: Vec<_> = changed.map(|(name, was)| (name, was, after.get(name))).collect();
        assert!(changed.is_empty(), "hand-over {number}: before and after: {changed:#?}");
        assert_eq!(self.static_facts(PINNED).containers, of_pinned.containers, "{number}");
        if keeps_static {
            assert_eq!(self.static_facts(STATIC).containers, of_static.containers, "{number}");
        }
        assert!(self.restarts_of(CRASHES) >= crashes, "{number}: restarts are counted on");
        let waits =
            self.test.pod_until(NO_IMAGE, "waits", |pod| waiting_reason(pod, "c").is_some());
        assert_eq!(phase(&waits), "Pending");
        self.check_runtime();
    }

    /// Waits until each pod is in the middle of what it is to be in the middle of.
    fn until_under_way(&self, number: usize) {
        let began = |file: String| {
            until(LONG, &format!("{file} is there"), || {
                ensure!(self.shared.lines(&file) > 0, "no line");
                Ok(())
            });
        };
        for kind in MOVING {
            let container = if kind == Moving::Init { "i" } else { "c" };
            began(format!("{}.{container}", kind.name(number)));
        }
        let ending = Moving::End.name(number);
        self.test.pod_until(&ending, "is ready", |pod| condition(pod, "Ready"));
        self.test.kubectl(&["delete", "pod", &ending, "--wait=false"]).expect("deleted");
        began(format!("term-{number}"));
    }

    /// What was under way comes to its end, with each container started once.
    fn check_moved(&self, number: usize) {
        for kind in MOVING {
            let name = kind.name(number);
            if kind == Moving::End {
                self.test.pod_gone(&name);
                continue;
            }
            self.test.pod_until(&name, "is ready", |pod| condition(pod, "Ready"));
            for container in if kind == Moving::Init { &["i", "c"][..] } else { &["c"] } {
                let starts = self.shared.lines(&format!("{name}.{container}"));
                assert_eq!(starts, 1, "starts of {container} in {name}");
            }
        }
    }

    fn restarts_of(&self, name: &str) -> i32 {
        restarts(&self.test.pod(name).expect("answered").expect("there"), "c")
    }

    /// Fails if two containers of one pod and name run.
    fn check_runtime(&self) {
        let running = self.swap.running();
        let mut names = BTreeMap::<_, usize>::new();
        for held in &running {
            *names.entry((&held.pod, &held.name)).or_default() += 1;
        }
        let twice: Vec<_> = names.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "{twice:?} of {running:#?}");
    }

    /// No agent killed a pod that stays, and each of its containers began once.
    fn check_end(&self) {
        let events = self.test.kubectl(&["get", "events", "-o", "json"]).expect("a list");
        let events: Value = serde_json::from_str(&events).expect("JSON");
        let is_kill = |event: &&Value| {
            let name = event["involvedObject"]["name"].as_str().unwrap_or_default();
            event["reason"] == "Killing" && STEADY.iter().any(|kind| kind.name == name)
        };
        let kills: Vec<_> =
            events["items"].as_array().expect("a list").iter().filter(is_kill).collect();
        assert!(kills.is_empty(), "{kills:#?}");
        let is_scripted = |name: &&str| *name != "http-probed";
        for name in STEADY.iter().map(|kind| kind.name).filter(is_scripted) {
            assert_eq!(self.shared.lines(&format!("{name}.c")), 1, "starts of {name}");
        }
        let dir = self.test.cluster().layout().node(NODE).join("manifests");
        for name in [STATIC, PINNED] {
            fs::remove_file(dir.join(format!("{name}.json"))).expect("removed");
        }
        self.test.kubectl(&["delete", "pods", "--all", "--wait=false"]).expect("deleted");
        until(LONG, "nothing of the pods is left", || {
            let mut left = self.test.leftovers(NODE)?;
            // Shims that containerd leaves running when a caller ends are not the agent's.
            left.shims.clear();
            left.is_empty().then_some(()).with_context(|| format!("{left:#?}"))
        });
    }
}

/// A kubelet keeps the addresses of pods that have ended in its memory alone.
// k8s: pkg/kubelet/pleg/generic.go getPodIPs
fn forget_addresses_of_ended(all: &mut BTreeMap<String, Facts>) {
    let has_ended = |facts: &&mut Facts| matches!(&*facts.phase, "Succeeded" | "Failed");
    all.values_mut().filter(has_ended).for_each(|facts| facts.addresses.clear());
}

#[test]
#[ignore = "minutes: three agents one after the other"]
fn takeover_from_the_kubelet_and_back_leaves_every_pod_as_it_is() {
    let test = TestCluster::take();
    let ground = Ground::start(&test, &Agent::Kubelet);
    ground.hand_to(&ours(), 1, true);
    ground.hand_to(&Agent::Kubelet, 2, true);
    ground.hand_to(&ours(), 3, true);
    ground.check_end();
}

#[test]
#[ignore = "minutes: three agents one after the other"]
fn handback_to_the_kubelet_and_again_recreates_only_static_pods_without_a_uid() {
    let test = TestCluster::take();
    let ground = Ground::start(&test, &ours());
    ground.hand_to(&Agent::Kubelet, 1, false);
    ground.hand_to(&ours(), 2, true);
    ground.hand_to(&Agent::Kubelet, 3, true);
    ground.check_end();
}
