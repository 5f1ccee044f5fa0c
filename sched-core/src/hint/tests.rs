//! Queueing hints: a table for each plugin.

use serde_json::{Value, json};

use super::*;
use crate::Profile;
use crate::snapshot::objects::OWN_KEYS;

/// A cluster in which one pod was rejected.
struct HintStage {
    cluster: Cluster,
    pod: Rejected,
}

fn api_pod(name: &str, more: &Value) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    });
    for (at, value) in more.as_object().expect("fields") {
        match at.as_str() {
            "labels" => pod["metadata"]["labels"] = value.clone(),
            "ports" => pod["spec"]["containers"][0]["ports"] = value.clone(),
            "requests" => pod["spec"]["containers"][0]["resources"]["requests"] = value.clone(),
            _ => pod["spec"][at] = value.clone(),
        }
    }
    serde_json::from_value(pod).expect("a pod")
}

fn stage(more: Value) -> HintStage {
    stage_of(Profile::default(), more)
}

fn stage_of(profile: Profile, more: Value) -> HintStage {
    let mut cluster = Cluster::new(profile);
    let pod = api_pod("me", &more);
    let spec = cluster.read_pod(&pod).expect("it can be read");
    let program = cluster.compile(&pod).expect("it compiles");
    let pod = cluster.rejected(&spec, &program).expect("it can be read");
    HintStage { cluster, pod }
}

fn gone(pod: Rc<PodFacts>) -> HintEvent {
    HintEvent::PodGone(pod, "n".into())
}

impl HintStage {
    fn node(&mut self, more: Value) -> Rc<NodeSpec> {
        let mut node = json!({
            "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n", "zone": "a"}},
            "spec": {},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "10"}},
        });
        for (at, value) in more.as_object().expect("fields") {
            match at.as_str() {
                "labels" => node["metadata"]["labels"] = value.clone(),
                "allocatable" | "images" | "declaredFeatures" => {
                    node["status"][at] = value.clone();
                }
                _ => node["spec"][at] = value.clone(),
            }
        }
        let node = serde_json::from_value(node).expect("a node");
        Rc::new(self.cluster.read_node(&node).expect("it can be read"))
    }

    fn facts(&mut self, name: &str, more: Value) -> Rc<PodFacts> {
        let spec = self.cluster.read_pod(&api_pod(name, &more)).expect("it can be read");
        Rc::new(self.cluster.facts(&spec))
    }

    fn helps(&self, event: &HintEvent, rejector: Plugin) -> bool {
        let helps = self.cluster.helps(event, &self.pod, rejector);
        assert!(!helps || event.may_help(rejector), "{event:?} helps {rejector:?}");
        helps
    }

    /// Does a node help when it is added, when it changes, and when it is deleted?
    fn node_helps(&mut self, from: Value, to: Value, rejector: Plugin) -> [bool; 3] {
        let (old, new) = (self.node(from), self.node(to));
        let comes = HintEvent::Node { old: None, new: Some(Rc::clone(&new)) };
        let changes = HintEvent::Node { old: Some(old), new: Some(Rc::clone(&new)) };
        let goes = HintEvent::Node { old: Some(new), new: None };
        [comes, changes, goes].map(|event| self.helps(&event, rejector))
    }
}

#[test]
fn node_event_helps_a_pod_only_if_the_node_could_now_accept_it() {
    let tainted = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    let selects = json!({"nodeSelector": {"disk": "ssd"}});
    let ssd = json!({"labels": {"disk": "ssd"}});
    let small = json!({"allocatable": {"cpu": "500m", "pods": "10"}});
    let large = json!({"allocatable": {"cpu": "4", "pods": "10"}});
    let none = json!({});
    for (what, pod, from, to, by, expected) in [
        ("a name", &none, &none, &none, Plugin::NodeName, [true, false, false]),
        ("ports", &none, &none, &none, Plugin::NodePorts, [true, false, false]),
        (
            "opened",
            &none,
            &json!({"unschedulable": true}),
            &none,
            Plugin::NodeUnschedulable,
            [true, true, false],
        ),
        (
            "closed",
            &none,
            &none,
            &json!({"unschedulable": true}),
            Plugin::NodeUnschedulable,
            [false, false, false],
        ),
        ("untainted", &none, &tainted, &none, Plugin::TaintToleration, [true, true, false]),
        ("tainted", &none, &none, &tainted, Plugin::TaintToleration, [false, false, false]),
        ("still free", &none, &none, &none, Plugin::TaintToleration, [true, false, false]),
        ("labelled", &selects, &none, &ssd, Plugin::NodeAffinity, [true, true, false]),
        ("as before", &selects, &ssd, &ssd, Plugin::NodeAffinity, [true, false, false]),
        ("unlabelled", &selects, &ssd, &none, Plugin::NodeAffinity, [false, false, false]),
        ("larger", &none, &none, &large, Plugin::NodeResourcesFit, [true, true, false]),
        ("no larger", &none, &large, &none, Plugin::NodeResourcesFit, [true, false, false]),
        ("too small", &none, &none, &small, Plugin::NodeResourcesFit, [false, false, false]),
        ("volumes", &none, &none, &large, Plugin::VolumeBinding, [true, false, false]),
        ("volumes", &none, &none, &ssd, Plugin::VolumeBinding, [true, true, false]),
        ("zones", &none, &tainted, &none, Plugin::VolumeZone, [true, false, false]),
        ("zones", &none, &none, &ssd, Plugin::VolumeZone, [true, true, false]),
        ("disks", &none, &none, &ssd, Plugin::VolumeRestrictions, [true, false, false]),
        ("limits", &none, &none, &large, Plugin::NodeVolumeLimits, [true, false, false]),
        ("devices", &none, &none, &large, Plugin::DynamicResources, [true, true, false]),
        ("devices", &none, &none, &ssd, Plugin::DynamicResources, [true, true, false]),
        ("devices", &none, &tainted, &none, Plugin::DynamicResources, [true, false, false]),
    ] {
        let mut stage = stage(pod.clone());
        assert_eq!(stage.node_helps(from.clone(), to.clone(), by), expected, "{what}");
    }
}

#[test]
fn taint_value_that_satisfies_a_numeric_toleration_helps_the_pod() {
    let pod = json!({"tolerations": [{"key": "k", "operator": "Lt", "value": "10"}]});
    let taint =
        |value: &str| json!({"taints": [{"key": "k", "value": value, "effect": "NoSchedule"}]});
    for (compares, expected) in [(true, [true, true, false]), (false, [false; 3])] {
        let profile = Profile { compares_tolerations: compares, ..Profile::default() };
        let mut stage = stage_of(profile, pod.clone());
        let by = Plugin::TaintToleration;
        assert_eq!(stage.node_helps(taint("10"), taint("9"), by), expected);
    }
}

fn spreads() -> Value {
    json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}}}]})
}

#[test]
fn domain_added_removed_or_moved_helps_pods_with_spread_constraints() {
    let by = Plugin::PodTopologySpread;
    let (a, b) = (json!({"labels": {"zone": "a"}}), json!({"labels": {"zone": "b"}}));
    let nowhere = json!({"labels": {"other": "a"}});
    let mut stage = stage(spreads());
    assert_eq!(stage.node_helps(a.clone(), b, by), [true; 3]);
    assert_eq!(stage.node_helps(a.clone(), a.clone(), by), [true, false, true]);
    assert_eq!(stage.node_helps(a, nowhere.clone(), by), [false, true, false]);
    assert_eq!(stage.node_helps(nowhere.clone(), nowhere, by), [false; 3]);
}

#[test]
fn cordoned_node_update_helps_spreading_pods_only_if_its_taints_change() {
    let by = Plugin::PodTopologySpread;
    let cordoned = json!({"unschedulable": true});
    let changed = json!({"unschedulable": true, "allocatable": {"cpu": "4", "pods": "10"}});
    let tainted = json!({"unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]});
    let mut stage = stage(spreads());
    assert_eq!(stage.node_helps(cordoned.clone(), changed, by), [true, false, true]);
    assert_eq!(stage.node_helps(tainted, cordoned.clone(), by), [true, true, true]);
    assert_eq!(stage.node_helps(cordoned, json!({}), by), [true, false, true]);
}

#[test]
fn node_update_that_can_help_a_pod_has_the_upstream_event_label() {
    let tainted = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    let images = json!({"images": [{"names": ["i"], "sizeBytes": 1}]});
    let (none, cordoned) = (json!({}), json!({"unschedulable": true}));
    let large = json!({"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "10"}});
    let more_pods = json!({"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "11"}});
    let declares = json!({"declaredFeatures": ["f"]});
    let labelled = json!({"labels": {"disk": "ssd"}, "declaredFeatures": ["f"]});
    for (from, to, expected) in [
        (&none, &large, Some("NodeUpdateNodeAllocatable")),
        (&none, &more_pods, Some("NodeUpdateNodeAllocatable")),
        (&none, &labelled, Some("NodeUpdateNodeLabel")),
        (&none, &tainted, Some("NodeUpdateNodeTaint")),
        (&cordoned, &none, Some("NodeUpdateNodeTaint")),
        (&none, &cordoned, None),
        (&none, &declares, Some("NodeUpdateNodeDeclaredFeature")),
        (&none, &images, None),
        (&images, &none, None),
    ] {
        let mut stage = stage(json!({}));
        let (old, new) = (stage.node(from.clone()), stage.node(to.clone()));
        let event = HintEvent::of_node(Some(old), Some(new));
        assert_eq!(event.map(|event| event.label()), expected, "{from} {to}");
    }
}

#[test]
fn pod_event_helps_pods_with_spread_constraints_that_count_the_pod() {
    let by = Plugin::PodTopologySpread;
    let mut stage = stage(spreads());
    let counted = stage.facts("x", json!({}));
    let other = stage.facts("y", json!({}));
    for (pod, expected) in [(&counted, true), (&other, false)] {
        assert_eq!(stage.helps(&HintEvent::PodAdded(Rc::clone(pod)), by), expected);
        assert_eq!(stage.helps(&gone(Rc::clone(pod)), by), expected);
        let same = HintEvent::PodChanged(Rc::clone(pod), Rc::clone(pod));
        assert!(!stage.helps(&same, by));
    }
    assert!(stage.helps(&HintEvent::PodChanged(counted, other), by));
}

fn term(kind: &str, app: &str) -> Value {
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}]}}})
}

#[test]
fn added_pods_help_affinity_and_deleted_pods_help_anti_affinity() {
    let by = Plugin::InterPodAffinity;
    let mut attracted = stage(term("podAffinity", "x"));
    let x = attracted.facts("x", json!({}));
    assert!(attracted.helps(&HintEvent::PodAdded(Rc::clone(&x)), by));
    assert!(!attracted.helps(&gone(x), by));
    let mut repelled = stage(term("podAntiAffinity", "x"));
    let (x, y) = (repelled.facts("x", json!({})), repelled.facts("y", json!({})));
    assert!(!repelled.helps(&HintEvent::PodAdded(Rc::clone(&x)), by));
    assert!(repelled.helps(&gone(Rc::clone(&x)), by));
    assert!(!repelled.helps(&gone(Rc::clone(&y)), by));
    assert!(repelled.helps(&HintEvent::PodChanged(x, y), by));
}

#[test]
fn deleting_a_pod_with_matching_anti_affinity_helps_the_repelled_pod() {
    let by = Plugin::InterPodAffinity;
    let mut stage = stage(json!({}));
    let repels = stage.facts("r", term("podAntiAffinity", "me"));
    let others = stage.facts("o", term("podAntiAffinity", "somebody"));
    assert!(stage.helps(&gone(repels), by));
    assert!(!stage.helps(&gone(others), by));
}

#[test]
fn deleting_a_pod_that_repels_a_label_unique_to_one_pod_helps_that_pod() {
    for key in OWN_KEYS {
        let mut stage = stage(json!({"labels": {key: "0", "app": "me"}}));
        // No selector used the label when the pod was rejected.
        let repels = |selector: Value| {
            json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                [{"topologyKey": "zone", "labelSelector": selector}]}}})
        };
        for (value, expected) in [("0", true), ("1", false)] {
            let selector = json!({"matchLabels": {key: value, "app": "me"}});
            let repels = stage.facts("r", repels(selector));
            assert_eq!(stage.helps(&gone(repels), Plugin::InterPodAffinity), expected, "{key}");
        }
        let any = json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
        let repels = stage.facts("r", repels(any));
        assert!(stage.helps(&gone(repels), Plugin::InterPodAffinity), "{key}");
    }
}

#[test]
fn deleting_the_last_matching_pod_helps_a_pod_that_meets_its_own_affinity() {
    let by = Plugin::InterPodAffinity;
    let mut stage = stage(term("podAffinity", "me"));
    let alike = stage.facts("alike", json!({"labels": {"app": "me"}}));
    assert!(stage.helps(&gone(alike), by));
}

#[test]
fn resources_and_ports_are_freed_by_deleted_or_shrunk_pods() {
    let port = json!({"ports": [{"containerPort": 80, "hostPort": 80}]});
    let other_port = json!({"ports": [{"containerPort": 81, "hostPort": 81}]});
    let mut stage = stage(port.clone());
    let taken = stage.facts("taken", port);
    let other = stage.facts("other", other_port);
    assert!(stage.helps(&gone(taken), Plugin::NodePorts));
    assert!(!stage.helps(&gone(Rc::clone(&other)), Plugin::NodePorts));
    assert!(stage.helps(&gone(Rc::clone(&other)), Plugin::NodeResourcesFit));
    let smaller = stage.facts("other", json!({"requests": {"cpu": "500m"}}));
    let shrinks = HintEvent::PodChanged(Rc::clone(&other), Rc::clone(&smaller));
    assert!(stage.helps(&shrinks, Plugin::NodeResourcesFit));
    assert!(!stage.helps(&HintEvent::PodChanged(smaller, other), Plugin::NodeResourcesFit));
}

#[test]
fn a_change_of_a_pod_on_a_node_has_upstreams_name() {
    let mut stage = stage(spreads());
    let pod = stage.facts("x", json!({}));
    let labelled = stage.facts("y", json!({}));
    let smaller = stage.facts("x", json!({"requests": {"cpu": "500m"}}));
    let other_port = json!({"ports": [{"containerPort": 81, "hostPort": 81}]});
    let other = stage.facts("x", other_port);
    for (new, expected) in [
        (labelled, "AssignedPodUpdatePodLabel"),
        (smaller, "AssignedPodUpdatePodScaleDown"),
        (other, "AssignedPodUpdate"),
    ] {
        assert_eq!(HintEvent::PodChanged(Rc::clone(&pod), new).label(), expected);
    }
}

#[test]
fn ended_nomination_concerns_only_pods_of_equal_or_lower_priority() {
    let mut stage = stage(json!({}));
    let pod = stage.facts("x", json!({}));
    let kept = gone(Rc::new((*pod).clone().kept_for(5)));
    assert_eq!([4, 5, 6].map(|priority| kept.concerns(priority)), [true, true, false]);
    assert!(gone(pod).concerns(6), "it was on a node");
}

#[test]
fn own_update_of_a_pod_helps_only_the_plugins_concerned() {
    let stage = stage(json!({}));
    let gates = Changes { gates: true, ..Changes::default() };
    let own = HintEvent::Own(stage.pod.key, gates);
    assert!(stage.helps(&own, Plugin::SchedulingGates));
    assert!(!stage.helps(&own, Plugin::TaintToleration));
    for by in [Plugin::NodeDeclaredFeatures, Plugin::NodeAffinity] {
        assert!(!stage.helps(&HintEvent::Own(stage.pod.key, Changes::default()), by), "{by:?}");
    }
    let labels = Changes { labels: true, ..Changes::default() };
    assert!(stage.helps(&HintEvent::Own(stage.pod.key, labels), Plugin::InterPodAffinity));
    assert!(!stage.helps(&HintEvent::Own(Str(u32::MAX), gates), Plugin::SchedulingGates));
    let volumes = HintEvent::Other(&[Plugin::VolumeBinding], "PersistentVolumeAdd");
    assert!(stage.helps(&volumes, Plugin::VolumeBinding));
    assert!(!stage.helps(&volumes, Plugin::NodePorts));
}

#[test]
fn free_room_of_a_node_excludes_pods_expected_there() {
    let requests = json!({"cpu": "1", "example.com/gpu": "1"});
    let mut stage = stage(json!({"requests": requests}));
    let node = stage.node(json!({"allocatable":
        {"cpu": "3", "memory": "1Gi", "pods": "3", "example.com/gpu": "2"}}));
    stage.cluster.place_node(&node);
    let mut read = |name: &str, requests: Value| {
        let pod = api_pod(name, &json!({"requests": requests}));
        stage.cluster.read_pod(&pod).expect("it can be read")
    };
    let (gpu, cpu, tiny) = (
        read("gpu", json!({"example.com/gpu": "1"})),
        read("cpu", json!({"cpu": "2"})),
        read("tiny", json!({})),
    );
    let has_room =
        |expected: &[&PodSpec]| stage.cluster.has_room(&stage.pod, "n", expected.iter().copied());
    assert!(has_room(&[]) && has_room(&[&gpu]) && has_room(&[&cpu]) && has_room(&[&cpu, &gpu]));
    assert!(!has_room(&[&gpu, &gpu]), "both of the node's devices");
    assert!(!has_room(&[&cpu, &cpu]), "four processors of three");
    assert!(!has_room(&[&tiny, &tiny, &tiny]), "three pods of three");
    assert!(stage.cluster.has_room(&stage.pod, "unknown", [].into_iter()));
    assert!(!stage.cluster.is_placed("gpu"));
}
