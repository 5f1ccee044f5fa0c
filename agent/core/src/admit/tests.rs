//! Each refusal by its reason and text, the victims of a critical pod, and properties of every
//! choice of victims.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use pintle_api_types::pod::resources::pod_requests;

/// A pod with its requests and uid.
struct MadePod {
    uid: PodUid,
    pod: Arc<Pod>,
    requests: Amounts,
}

impl MadePod {
    fn admitted(&self) -> Admitted<'_> {
        Admitted { uid: &self.uid, pod: &self.pod, requests: &self.requests }
    }
}

fn made(uid: &str, meta: Value, spec: Value) -> MadePod {
    let mut meta = meta;
    meta["uid"] = json!(uid);
    let pod: Pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod");
    MadePod { uid: PodUid::from(uid), requests: pod_requests(&pod), pod: Arc::new(pod) }
}

fn spec(more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c"}]});
    for (name, value) in more.as_object().expect("an object") {
        spec[name] = value.clone();
    }
    spec
}

fn asks(uid: &str, requests: Value) -> MadePod {
    let containers = json!([{"name": "c", "resources": {"requests": requests}}]);
    made(uid, json!({}), json!({"containers": containers}))
}

fn node() -> AdmissionNode {
    AdmissionNode {
        labels: [("zone", "a"), ("cores", "8")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        allocatable: Allocatable {
            cpu_millis: 2000,
            memory_bytes: 1 << 30,
            storage_bytes: 1 << 30,
            pods: 4,
            scalar: [("hugepages-2Mi".to_owned(), 4 << 20), ("vendor/gpu".to_owned(), 1)].into(),
        },
        ..AdmissionNode::roomy("localhost")
    }
}

fn refusal_of(
    node: &AdmissionNode,
    admitted: &[MadePod],
    pod: &MadePod,
) -> Option<(String, String)> {
    let others = TakenResources::of(admitted.iter().map(MadePod::admitted));
    let candidate = AdmissionCandidate { pod: &pod.pod, requests: &pod.requests };
    admit(node, &others.all(), &candidate).err().map(|refusal| (refusal.reason, refusal.message))
}

fn message(node: &AdmissionNode, admitted: &[MadePod], pod: &MadePod) -> String {
    let refusal = refusal_of(node, admitted, pod);
    refusal.map_or_else(|| "admitted".to_owned(), |(reason, why)| format!("{reason}: {why}"))
}

#[test]
fn pod_exceeding_node_resources_is_rejected_with_the_kubelets_message() {
    let others = [asks("o", json!({"cpu": "1860m", "memory": "512Mi", "vendor/gpu": "1"}))];
    let short = |resource: &str, requested: i64, used: i64, capacity: i64| {
        format!(
            "OutOf{resource}: Node didn't have enough resource: {resource}, requested: \
             {requested}, used: {used}, capacity: {capacity}"
        )
    };
    let mib = 1_i64 << 20;
    for (requests, want) in [
        (json!({"cpu": "200m"}), short("cpu", 200, 1860, 2000)),
        (json!({"memory": "513Mi"}), short("memory", 513 * mib, 512 * mib, 1024 * mib)),
        (
            json!({"ephemeral-storage": "2Gi"}),
            short("ephemeral-storage", 2048 * mib, 0, 1024 * mib),
        ),
        (json!({"hugepages-2Mi": "8Mi"}), short("hugepages-2Mi", 8 * mib, 0, 4 * mib)),
        (json!({"hugepages-1Gi": "1Gi"}), short("hugepages-1Gi", 1024 * mib, 0, 0)),
        (json!({"vendor/gpu": "1"}), short("vendor/gpu", 1, 1, 1)),
        // A resource of the cluster, not of this node.
        (json!({"vendor/license": "5"}), "admitted".to_owned()),
        (json!({"cpu": "140m", "memory": "512Mi"}), "admitted".to_owned()),
        (json!({"cpu": "200m", "memory": "2Gi"}), short("cpu", 200, 1860, 2000)),
    ] {
        assert_eq!(message(&node(), &others, &asks("p", requests.clone())), want, "{requests}");
    }
    let full: Vec<_> = ["a", "b", "c", "d"].map(|uid| asks(uid, json!({}))).into();
    let want = short("pods", 1, 4, 4);
    assert_eq!(message(&node(), &full, &asks("p", json!({}))), want);
}

#[test]
fn pod_level_requests_and_overhead_take_room() {
    let others = [asks("o", json!({"cpu": "1860m"}))];
    let resources = json!({"requests": {"cpu": "200m", "memory": "64Mi"}});
    let pod = made("p", json!({}), spec(json!({ "resources": resources })));
    let want = "OutOfcpu: Node didn't have enough resource: cpu, requested: 200, used: 1860, \
                capacity: 2000";
    assert_eq!(message(&node(), &others, &pod), want);
    let pod = made("p", json!({}), spec(json!({"overhead": {"cpu": "150m"}})));
    assert!(message(&node(), &others, &pod).starts_with("OutOfcpu"));
}

#[test]
fn pod_not_matching_node_affinity_or_name_is_rejected() {
    let expression = |key: &str, operator: &str, values: Value| {
        let term = json!([{"key": key, "operator": operator, "values": values}]);
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": term}]});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
        json!({"affinity": {"nodeAffinity": required}})
    };
    let fields = json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{},
            {"matchFields": [{"key": "metadata.name", "operator": "In",
                "values": ["localhost"]}]}]}}}});
    let affinity = "NodeAffinity: Predicate NodeAffinity failed: \
                    node(s) didn't match Pod's node affinity/selector";
    for (more, want) in [
        (json!({"nodeSelector": {"zone": "a"}}), "admitted"),
        (json!({"nodeSelector": {"zone": "b"}}), affinity),
        (expression("zone", "In", json!(["a", "b"])), "admitted"),
        (expression("zone", "NotIn", json!(["a"])), affinity),
        (expression("none", "NotIn", json!(["a"])), "admitted"),
        (expression("none", "Exists", json!(null)), affinity),
        (expression("none", "DoesNotExist", json!(null)), "admitted"),
        (expression("cores", "Gt", json!(["7"])), "admitted"),
        (expression("cores", "Lt", json!(["8"])), affinity),
        (fields, "admitted"),
        (
            json!({"nodeName": "other"}),
            "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        (json!({"nodeName": "localhost"}), "admitted"),
    ] {
        let pod = made("p", json!({}), spec(more.clone()));
        assert_eq!(message(&node(), &[], &pod), want, "{more}");
    }
}

#[test]
fn host_ports_are_held_by_protocol_and_address() {
    let with = |uid: &str, ports: Value| {
        made(uid, json!({}), json!({"containers": [{"name": "c", "ports": ports}]}))
    };
    let others = [with("o", json!([{"containerPort": 1, "hostPort": 80, "hostIP": "127.0.0.1"}]))];
    let taken = "NodePorts: Predicate NodePorts failed: \
                 node(s) didn't have free ports for the requested pod ports";
    for (port, want) in [
        (json!({"containerPort": 1, "hostPort": 80}), taken),
        (json!({"containerPort": 1, "hostPort": 80, "hostIP": "127.0.0.1"}), taken),
        (json!({"containerPort": 1, "hostPort": 80, "hostIP": "127.0.0.2"}), "admitted"),
        (json!({"containerPort": 1, "hostPort": 80, "protocol": "UDP"}), "admitted"),
        (json!({"containerPort": 80}), "admitted"),
    ] {
        assert_eq!(message(&node(), &others, &with("p", json!([port.clone()]))), want, "{port}");
    }
}

#[test]
fn a_device_of_a_plugin_that_cannot_register_is_never_given() {
    let mut node = node();
    node.allocatable.scalar =
        [("example.com/gpu".to_owned(), 0), ("example.com/by-hand".to_owned(), 1)].into();
    node.plugin_resources = vec!["example.com/gpu".to_owned()];
    let wants = |list: &str, resource: &str| {
        let main = json!([{"name": "c"}]);
        let one = json!({resource: "1"});
        let own = json!([{"name": "d", "resources": {"limits": one, "requests": one}}]);
        let mut of_pod = json!({"containers": main});
        of_pod[list] = own;
        made("u", json!({}), spec(of_pod))
    };
    let want = "Allocate failed due to no healthy devices present; cannot allocate unhealthy \
                devices example.com/gpu, which is unexpected";
    for list in ["containers", "initContainers"] {
        let refusal = refusal_of(&node, &[], &wants(list, "example.com/gpu"));
        let (reason, message) = refusal.expect("a refusal");
        assert_eq!((reason.as_str(), message.as_str()), ("UnexpectedAdmissionError", want));
    }
    assert_eq!(refusal_of(&node, &[], &wants("containers", "example.com/by-hand")), None);
}

#[test]
fn only_no_execute_taints_keep_pods_away_and_static_ones_come_anyway() {
    let taint = |effect: &str| {
        let taint = json!({"key": "k", "value": "v", "effect": effect});
        serde_json::from_value(taint).expect("a taint")
    };
    let tainted = |effect: &str| AdmissionNode { taints: vec![taint(effect)], ..node() };
    let pod =
        |tolerations: Value| made("p", json!({}), spec(json!({ "tolerations": tolerations })));
    let refused = "TaintToleration: Predicate TaintToleration failed: \
                   node(s) had taints that the pod didn't tolerate";
    assert_eq!(message(&tainted("NoSchedule"), &[], &pod(json!([]))), "admitted");
    for (tolerations, want) in [
        (json!([]), refused),
        (json!([{"operator": "Exists"}]), "admitted"),
        (json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), "admitted"),
        (json!([{"key": "k", "value": "v"}]), "admitted"),
        (json!([{"key": "k", "value": "w"}]), refused),
        (json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), refused),
    ] {
        let got = message(&tainted("NoExecute"), &[], &pod(tolerations.clone()));
        assert_eq!(got, want, "{tolerations}");
    }
    let meta = json!({"annotations": {"kubernetes.io/config.source": "file"}});
    assert_eq!(message(&tainted("NoExecute"), &[], &made("p", meta, spec(json!({})))), "admitted");
}

#[test]
fn runtime_features_are_taken_from_the_node_objects_status() {
    let strict = spec(json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}));
    let pod = made("p", json!({}), strict);
    let refusal = "SupplementalGroupsPolicyNotSupported: \
                   SupplementalGroupsPolicy=Strict is not supported in this node";
    let features = |told: bool| json!({"features": {"supplementalGroupsPolicy": told}});
    // (at the start, status of the object, admitted)
    for (before, status, want) in [
        (false, features(true), true),
        (true, features(false), false),
        (true, json!({}), false),
        (true, json!(null), true),
        (false, json!(null), false),
    ] {
        let object = json!({"metadata": {"name": "n"}, "status": status});
        let object = serde_json::from_value(object).expect("a node");
        let own = Features { supplemental_groups_policy: before, ..Features::default() };
        let node = AdmissionNode { features: own, ..node() }.with_object(&object);
        let got =
            message(&AdmissionNode { allocatable: self::node().allocatable, ..node }, &[], &pod);
        assert_eq!(got, if want { "admitted" } else { refusal }, "{before} {status}");
    }
}

#[test]
fn pod_requiring_unsupported_node_features_is_rejected() {
    let profile = |kind: &str| json!({"securityContext": {"appArmorProfile": {"type": kind}}});
    let plain = node();
    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    let sysctl = json!({"securityContext": {"sysctls": [{"name": "vm.x", "value": "1"}]}});
    let users = json!({"hostNetwork": true, "hostUsers": false});
    let levels = json!({"resources": {"requests": {"cpu": "1"}}});
    for (more, want) in [
        (json!({"os": {"name": "linux"}}), ""),
        (
            json!({"os": {"name": "windows"}}),
            "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            strict,
            "SupplementalGroupsPolicyNotSupported: \
             SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (sysctl, "SysctlForbidden: forbidden sysctl: \"vm.x\" not allowlisted"),
        (
            profile("RuntimeDefault"),
            "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
        (profile("Unconfined"), ""),
        (
            users,
            "PodFeatureUnsupported: Pod requires node features that are not available: \
             UserNamespacesHostNetworkSupport",
        ),
        (levels, "PodLevelResourcesNotSupported: PodLevelResources feature gate is disabled"),
    ] {
        let features = Features { declared: true, ..Features::default() };
        let node = AdmissionNode { features, ..plain.clone() };
        let got = message(&node, &[], &made("p", json!({}), spec(more.clone())));
        assert_eq!(got, if want.is_empty() { "admitted" } else { want }, "{more}");
    }
    let labels = json!({"labels": {"kubernetes.io/os": "windows"}});
    let refused = refusal_of(&plain, &[], &made("p", labels, spec(json!({}))));
    assert_eq!(refused.expect("refused").0, "PodOSSelectorNodeLabelDoesNotMatch");
}

#[test]
fn pressure_and_shutdown_turn_pods_away() {
    let pressed = |what: &[&str]| AdmissionNode {
        pressures: what.iter().map(|what| (*what).to_owned()).collect(),
        ..node()
    };
    let best_effort = made("p", json!({}), spec(json!({})));
    let burstable = asks("p", json!({"cpu": "1m"}));
    let critical = made("p", json!({}), spec(json!({"priority": 2_000_000_000})));
    let tolerant = json!([{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]);
    let tolerant = made("p", json!({}), spec(json!({ "tolerations": tolerant })));
    let memory = pressed(&["MemoryPressure"]);
    let refused = "Evicted: The node had condition: [MemoryPressure]. ";
    assert_eq!(message(&memory, &[], &best_effort), refused);
    for pod in [&burstable, &critical, &tolerant] {
        assert_eq!(message(&memory, &[], pod), "admitted");
    }
    let both = pressed(&["MemoryPressure", "DiskPressure"]);
    let refused = "Evicted: The node had condition: [MemoryPressure DiskPressure]. ";
    assert_eq!(message(&both, &[], &burstable), refused);
    assert_eq!(message(&both, &[], &critical), "admitted");
    let closing = AdmissionNode { shutting_down: true, ..node() };
    let refused = "NodeShutdown: Pod was rejected as the node is shutting down.";
    assert_eq!(message(&closing, &[], &critical), refused);
}

fn critical(requests: Value) -> MadePod {
    let containers = json!([{"name": "c", "resources": {"requests": requests}}]);
    made("x", json!({}), json!({"containers": containers, "priority": 2_000_001_000}))
}

fn guaranteed(uid: &str, cpu: &str) -> MadePod {
    let list = json!({"cpu": cpu, "memory": "1Mi"});
    let containers = json!([{"name": "c", "resources": {"requests": list, "limits": list}}]);
    made(uid, json!({}), json!({"containers": containers}))
}

fn victims_of(admitted: &[MadePod], pod: &MadePod) -> Vec<String> {
    let others = TakenResources::of(admitted.iter().map(MadePod::admitted));
    let candidate = AdmissionCandidate { pod: &pod.pod, requests: &pod.requests };
    let grant = admit(&node(), &others.all(), &candidate).expect("admitted");
    grant.victims.iter().map(ToString::to_string).collect()
}

#[test]
fn a_critical_pod_costs_as_few_and_as_low_pods_as_possible() {
    let all = || {
        [
            asks("b1", json!({"cpu": "500m"})),
            asks("b2", json!({"cpu": "900m"})),
            guaranteed("g", "600m"),
        ]
    };
    for (cpu, want) in [
        ("100m", vec!["b1"]),
        ("500m", vec!["b1"]),
        ("800m", vec!["b2"]),
        ("1200m", vec!["b2", "b1"]),
        ("1500m", vec!["b2", "g"]),
    ] {
        let mut want: Vec<_> = want.into_iter().map(str::to_owned).collect();
        let mut got = victims_of(&all(), &critical(json!({ "cpu": cpu })));
        want.sort();
        got.sort();
        assert_eq!(got, want, "{cpu}");
    }
    let full: Vec<_> = ["a", "b", "c", "d"].map(|uid| asks(uid, json!({}))).into();
    assert_eq!(victims_of(&full, &critical(json!({}))).len(), 1);
}

#[test]
fn critical_pods_are_not_preempted_and_the_missing_resource_is_reported() {
    let mut other = critical(json!({"cpu": "1900m"}));
    other.uid = PodUid::from("o");
    let pod = critical(json!({"cpu": "200m"}));
    let want = "UnexpectedAdmissionError: Unexpected error while attempting to recover from \
                admission failure: preemption: error finding a set of pods to preempt: no set of \
                running pods found to reclaim resources: [(res: cpu, q: 100), ]";
    assert_eq!(message(&node(), &[other], &pod), want);
    // No pod's end gives the node another label.
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "3"}}}]);
    let lost = json!({"containers": containers, "priority": 2_000_000_000,
        "nodeSelector": {"zone": "z"}});
    let refused = refusal_of(&node(), &[], &made("x", json!({}), lost)).expect("refused");
    assert_eq!(refused.0, "NodeAffinity");
}

proptest! {
    /// Victims free the missing resources, none of them is critical, and none is needless.
    #[test]
    fn victims_make_room_and_none_is_needless(
        cpus in prop::collection::vec((0_i64..900, any::<bool>()), 1..12), asked in 1_i64..2000,
    ) {
        let pods: Vec<_> = cpus.iter().enumerate().map(|(index, (cpu, safe))| {
            let uid = format!("p{index}");
            let mut pod = asks(&uid, json!({"cpu": format!("{cpu}m")}));
            Arc::make_mut(&mut pod.pod).spec.as_mut().expect("a spec").priority = safe.then_some(2_000_001_000);
            pod
        }).collect();
        let others = TakenResources::of(pods.iter().map(MadePod::admitted));
        let pod = critical(json!({"cpu": format!("{asked}m")}));
        let candidate = AdmissionCandidate { pod: &pod.pod, requests: &pod.requests };
        let roomy = AdmissionNode {
            allocatable: Allocatable { pods: 100, ..node().allocatable }, ..node()
        };
        if let Ok(grant) = admit(&roomy, &others.all(), &candidate) {
            let left = |without: &[PodUid]| -> i64 {
                let stay = pods.iter().zip(&cpus).filter(|(pod, _)| !without.contains(&pod.uid));
                2000 - stay.map(|(_, (cpu, _))| cpu).sum::<i64>()
            };
            prop_assert!(left(&grant.victims) >= asked);
            for victim in &grant.victims {
                let index: usize = victim.as_str()[1..].parse().expect("an index");
                prop_assert!(!cpus[index].1);
            }
            prop_assert_eq!(grant.victims.is_empty(), left(&[]) >= asked);
        }
    }
}
