//! The shadow detects other rules: it agrees with an equal scheduler and with no other.

use serde_json::{Value, json};

use super::*;
use crate::config;
use crate::cycle::tests::{at, decide, deliver_lists, object, without_second_look};
use crate::cycle::{BindingResult, Command, Scheduler};

/// Pods that come.
const PODS: usize = 120;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

/// A scheduler with this profile, and the shadow that follows it by the default one.
struct ShadowPair {
    other: Scheduler,
    shadow: Shadow,
    version: u64,
    now: u64,
}

fn nodes() -> Vec<WatchedObject> {
    let node = |at: usize| {
        let name = format!("n{at}");
        let prefer = json!([{"key": "soft", "effect": "PreferNoSchedule"}]);
        let taints = match at {
            2 => prefer,
            3 => json!([{"key": "hard", "effect": "NoSchedule"}]),
            _ => json!([]),
        };
        let image = json!([{"names": ["registry/big:1"], "sizeBytes": 900_000_000}]);
        WatchedObject::Node(object(json!({
            "metadata": {"name": name, "resourceVersion": "1",
                "labels": {"kubernetes.io/hostname": name, "zone": format!("z{}", at % 3),
                    "disk": if at < 4 { "ssd" } else { "hdd" }}},
            "spec": {"taints": taints, "unschedulable": at == 5},
            "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "40"},
                "images": if at == 1 { image } else { json!([]) }},
        })))
    };
    (0..8).map(node).collect()
}

/// Pods of all kinds, in turn.
fn pod(at: usize) -> Value {
    let cpu = ["100m", "250m", "700m"][at % 3];
    let mut spec = json!({"schedulerName": "default-scheduler", "containers": [{"name": "c",
        "image": "registry/app:1", "resources": {"requests": {"cpu": cpu, "memory": "200Mi"}}}]});
    let app = ["x", "y"][at % 2];
    let selector = json!({"matchLabels": {"app": app}});
    let ssd = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
    let term = json!({"topologyKey": "zone", "labelSelector": selector});
    match at % 8 {
        0 => {
            spec["affinity"] = json!({"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": ssd}]}})
        }
        1 => {
            spec["affinity"] = json!({"podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 80, "podAffinityTerm": term}]}})
        }
        2 => {
            spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}])
        }
        3 => spec["containers"][0]["image"] = "registry/big:1".into(),
        4 => spec["tolerations"] = json!([{"operator": "Exists"}]),
        5 => spec["nodeSelector"] = json!({"nowhere": "at-all"}),
        _ => {}
    }
    json!({"metadata": {"name": format!("p{at}"), "namespace": "default", "uid": format!("u{at}"),
        "labels": {"app": app}}, "spec": spec})
}

impl ShadowPair {
    fn new(plugins: &str) -> Self {
        let text = format!("{HEAD}profiles:\n- {plugins}\n");
        let profiles = config::profiles(&text).expect("a configuration");
        let mut other = Scheduler::new(profiles, without_second_look(), 7);
        deliver_lists(&mut other, &nodes());
        let followed = Followed { profile: Profile::default(), percentage: 100 };
        let mut shadow = Shadow::new(followed);
        for kind in crate::watch_event::KINDS {
            shadow.handle(at(0), WatchEvent::Begun(kind));
            let of = nodes().into_iter().filter(|thing| thing.kind() == kind);
            of.for_each(|thing| shadow.handle(at(0), WatchEvent::Listed(thing)));
            shadow.handle(at(0), WatchEvent::Complete(kind));
        }
        Self { other, shadow, version: 1, now: 0 }
    }

    /// Stores the object in the API server.
    fn set(&mut self, value: &mut Value) {
        self.version += 1;
        self.now += 11;
        value["metadata"]["resourceVersion"] = self.version.to_string().into();
        let told = || WatchEvent::Set(WatchedObject::Pod(object(value.clone())));
        self.other.handle(told(), at(self.now));
        self.shadow.handle(at(self.now), told());
        self.shadow.settle(at(self.now));
    }

    fn run(mut self) -> ComparisonReport {
        for index in 0..PODS {
            let mut value = pod(index);
            self.set(&mut value);
            for command in decide(&mut self.other, self.now) {
                match command {
                    Command::Bind { pod, node, .. } => {
                        value["spec"]["nodeName"] = (*node).into();
                        self.set(&mut value);
                        self.other.ended(&pod, &node, BindingResult::Bound, at(self.now));
                    }
                    Command::Status { condition: Some(condition), .. } => {
                        value["status"]["conditions"] = json!([condition]);
                        self.set(&mut value);
                    }
                    _ => {}
                }
            }
        }
        self.shadow.settle(at(self.now + 60));
        assert_eq!(self.shadow.waiting(), 0, "all was judged");
        self.shadow.report
    }
}

#[test]
fn identical_scheduler_agrees_on_every_decision() {
    let report = ShadowPair::new("schedulerName: default-scheduler").run();
    let refused = PODS / 8;
    let exact = |exact| report::DecisionCounts { exact, ..report::DecisionCounts::default() };
    assert_eq!(report.bindings, exact((PODS - refused) as u64), "{report:?}");
    assert_eq!(report.refusals, exact(refused as u64), "{report:?}");
}

#[test]
fn disabled_plugin_is_detected_and_named() {
    for (plugin, difference) in [
        ("NodeUnschedulable", "filter"),
        ("TaintToleration", "filter"),
        ("NodeAffinity", "filter"),
        ("NodeAffinity", "score"),
        ("InterPodAffinity", "score"),
        ("PodTopologySpread", "score"),
        ("ImageLocality", "score"),
        ("NodeResourcesFit", "score"),
    ] {
        let point = if difference == "filter" { "filter" } else { "score" };
        let without = format!("plugins: {{{point}: {{disabled: [{{name: {plugin}}}]}}}}");
        let report = ShadowPair::new(&without).run();
        let named = |key: &&String| key.to_lowercase().contains(difference) && key.contains(plugin);
        let found = report.by_plugin.keys().find(named);
        assert!(found.is_some(), "without {plugin}'s {difference}: {report:?}");
        assert!(report.bindings.other > 0, "{report:?}");
    }
}

#[test]
fn different_condition_message_is_detected() {
    let mut world = ShadowPair::new("schedulerName: default-scheduler");
    let mut value = pod(5);
    world.set(&mut value);
    value["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/8 nodes are available: 8 Too many pods."}]);
    world.set(&mut value);
    world.shadow.settle(at(world.now + 60));
    let report = &world.shadow.report;
    assert_eq!((report.refusals.other, report.refusals.all()), (1, 1), "{report:?}");
    assert_eq!(report.disagreements[0].difference, report::DecisionDifference::Sentence);
}
