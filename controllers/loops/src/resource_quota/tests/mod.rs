//! Counts of quotas against tables of objects.
// k8s: pkg/controller/resourcequota/resource_quota_controller_test.go
// k8s: pkg/quota/v1/evaluator/core/*_test.go

use std::collections::BTreeMap;

use pintle_api_types::kind::{CONFIG_MAPS, JOBS, SECRETS};
use pintle_controllers_core::frame::{Driven, drive};
use pintle_controllers_core::tables::{Decoded, DiscoveredKind, DiscoveredKinds, WatchEvent};
use serde_json::Value;

use super::*;
use crate::testing::{applied, at, set};

mod wakes;

type Texts = BTreeMap<String, String>;

fn object(kind: Kind, name: &str, mut object: Value) -> WatchEvent {
    object["metadata"]["name"] = name.into();
    object["metadata"]["uid"] = name.into();
    if kind.is_namespaced {
        object["metadata"]["namespace"] = "n".into();
    }
    if object["metadata"]["resourceVersion"].is_null() {
        object["metadata"]["resourceVersion"] = "1".into();
    }
    set(Decoded::typed(kind, &object.to_string()))
}

fn quota(spec: Value, status: Value) -> WatchEvent {
    object(RESOURCE_QUOTAS, "q", json!({"spec": spec, "status": status}))
}

fn pod(name: &str, spec: Value, status: Value) -> WatchEvent {
    object(PODS, name, json!({"spec": spec, "status": status}))
}

fn container(requests: Value, limits: Value) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]})
}

fn found(kind: Kind) -> DiscoveredKind {
    let verbs = ["create", "list", "watch", "delete"].map(Symbol::of).to_vec();
    DiscoveredKind { kind, verbs, is_preferred: true }
}

/// The kinds of these tests are discovered; all but those named are listed.
struct QuotaWorld {
    tables: Tables,
    controller: ResourceQuotas,
}

impl QuotaWorld {
    fn new(unlisted: &[Kind], events: Vec<WatchEvent>) -> Self {
        let controller = ResourceQuotas::new(1, Duration::from_secs(300), true);
        let mut world = Self { tables: applied(Vec::new()), controller };
        let kinds = [CONFIG_MAPS, SECRETS, JOBS];
        let discovery =
            DiscoveredKinds { kinds: kinds.map(found).to_vec(), ..DiscoveredKinds::default() };
        world.apply(WatchEvent::Discovered(discovery));
        for kind in world.controller.kinds().into_iter().chain(kinds) {
            if !unlisted.contains(&kind) {
                world.apply(WatchEvent::ListComplete(kind));
            }
        }
        for event in events {
            world.apply(event);
        }
        world
    }

    /// Returns how many quotas are counted again, and how many are raised.
    fn apply(&mut self, event: WatchEvent) -> [usize; 2] {
        let mut wakes = Wakes::default();
        for change in self.tables.apply(event) {
            self.controller.handle_change(&change, &self.tables, at(0), &mut wakes);
        }
        let count = |is_raise| wakes.waits().filter(|(key, _)| key.is_raise == is_raise).count();
        [count(false), count(true)]
    }

    fn sync(&mut self, seconds: u64) -> Driven<()> {
        self.sync_key(&QuotaKey::whole(ObjectKey::new("n", "q")), seconds)
    }

    fn raise(&mut self) -> Driven<()> {
        self.sync_key(&QuotaKey::raise(ObjectKey::new("n", "q")), 0)
    }

    fn sync_key(&mut self, key: &QuotaKey, seconds: u64) -> Driven<()> {
        let snapshot = self.controller.snapshot(key, &self.tables, at(0)).expect("the quota");
        drive::<ResourceQuotas>(&snapshot, at(seconds).wall, |_| Ok(Value::Null))
    }
}

fn texts(value: &Value) -> Texts {
    serde_json::from_value(value.clone()).expect("texts")
}

/// The status that a quota without a status gets.
fn used(hard: Value, events: Vec<WatchEvent>) -> Texts {
    used_of(json!({ "hard": hard }), events)
}

fn used_of(spec: Value, mut events: Vec<WatchEvent>) -> Texts {
    events.push(quota(spec, json!({})));
    let driven = QuotaWorld::new(&[], events).sync(0);
    let [Request::Replace { target, body }] = &*driven.requests else {
        panic!("{:?}", driven.requests)
    };
    assert_eq!(target.sub, "status");
    assert_eq!(body["status"]["hard"], body["spec"]["hard"]);
    texts(&body["status"]["used"])
}

fn expect(expected: Value) -> Texts {
    texts(&expected)
}

#[test]
fn unfinished_pods_are_charged_with_their_requests_and_limits() {
    let hard = json!({"cpu": "3", "requests.memory": "100Gi", "limits.cpu": "9", "pods": "5",
        "count/pods": "9", "requests.example.com/gpu": "4", "requests.hugepages-2Mi": "1Gi"});
    let requests = json!({"cpu": "500m", "memory": "50Gi", "example.com/gpu": "1",
        "hugepages-2Mi": "64Mi"});
    let spec = container(requests, json!({"cpu": "1", "memory": "60Gi"}));
    let events = vec![
        pod("a", spec.clone(), json!({"phase": "Running"})),
        pod("b", spec.clone(), json!({"phase": "Pending"})),
        pod("c", spec, json!({"phase": "Failed"})),
    ];
    let expected = json!({"cpu": "1", "requests.memory": "100Gi", "limits.cpu": "2", "pods": "2",
        "count/pods": "3", "requests.example.com/gpu": "2", "requests.hugepages-2Mi": "128Mi"});
    assert_eq!(used(hard, events), expect(expected));
}

#[test]
fn pod_past_its_grace_period_is_not_charged_and_the_quota_is_recounted_then() {
    let spec = container(json!({"cpu": "1"}), json!({}));
    let deleted = object(
        PODS,
        "a",
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z",
            "deletionGracePeriodSeconds": 30}, "spec": spec}),
    );
    let mut world =
        QuotaWorld::new(&[], vec![deleted, quota(json!({"hard": {"pods": "5"}}), json!({}))]);
    let pods = |driven: &Driven<()>| match driven.requests.first() {
        Some(Request::Replace { body, .. }) => body["status"]["used"]["pods"].clone(),
        other => panic!("{other:?}"),
    };
    let early = world.sync(20);
    assert_eq!(pods(&early), "1");
    assert_eq!(early.outcome.expect("no failure").again, Some(Duration::from_secs(41)));
    let late = world.sync(61);
    assert_eq!(pods(&late), "0");
    assert_eq!(late.outcome.expect("no failure").again, Some(Duration::from_secs(300)));
}

#[test]
fn scopes_select_pods() {
    let requests = || container(json!({"cpu": "1"}), json!({}));
    let mut with_deadline = requests();
    with_deadline["activeDeadlineSeconds"] = 5.into();
    let mut with_class = requests();
    with_class["priorityClassName"] = "high".into();
    let mut crossing = json!({"containers": [{"name": "c"}]});
    crossing["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"topologyKey": "z", "namespaces": ["m"]}]);
    let selector = |scope: &str, operator: &str, values: &[&str]| {
        json!({"scopeSelector": {"matchExpressions":
            [{"scopeName": scope, "operator": operator, "values": values}]}})
    };
    for (spec, expected) in [
        (json!({}), "4"),
        (json!({"scopes": ["Terminating"]}), "1"),
        (json!({"scopes": ["NotTerminating"]}), "3"),
        (json!({"scopes": ["BestEffort"]}), "1"),
        (json!({"scopes": ["NotBestEffort"]}), "3"),
        (json!({"scopes": ["NotBestEffort", "NotTerminating"]}), "2"),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), "1"),
        (json!({"scopes": ["PriorityClass"]}), "1"),
        (selector("PriorityClass", "In", &["high", "x"]), "1"),
        (selector("PriorityClass", "In", &["low"]), "0"),
        (selector("PriorityClass", "NotIn", &["high"]), "3"),
        (selector("PriorityClass", "Exists", &[]), "1"),
        (selector("PriorityClass", "DoesNotExist", &[]), "3"),
        (json!({"scopes": ["VolumeAttributesClass"]}), "0"),
    ] {
        let events = vec![
            pod("a", requests(), json!({})),
            pod("b", with_deadline.clone(), json!({})),
            pod("c", with_class.clone(), json!({})),
            pod("d", crossing.clone(), json!({})),
        ];
        let mut whole = spec.clone();
        whole["hard"] = json!({"pods": "10"});
        assert_eq!(used_of(whole, events), expect(json!({"pods": expected})), "{spec}");
    }
}

#[test]
fn services_are_charged_with_their_node_ports() {
    let hard = json!({"services": "9", "services.nodeports": "9", "services.loadbalancers": "9",
        "count/services": "9"});
    let service = |name: &str, spec: Value| object(SERVICES, name, json!({ "spec": spec }));
    let ports = json!([{"port": 1, "nodePort": 30001}, {"port": 2}]);
    let events = vec![
        service("a", json!({"type": "ClusterIP", "ports": ports})),
        service("b", json!({"type": "NodePort", "ports": ports})),
        service("c", json!({"type": "LoadBalancer", "ports": ports})),
        service(
            "d",
            json!({"type": "LoadBalancer", "ports": ports,
            "allocateLoadBalancerNodePorts": false}),
        ),
    ];
    let expected = json!({"services": "4", "services.nodeports": "5",
        "services.loadbalancers": "2", "count/services": "4"});
    assert_eq!(used(hard, events), expect(expected));
}

#[test]
fn claims_are_charged_by_storage_class_and_allocated_storage() {
    let hard = json!({"persistentvolumeclaims": "9", "requests.storage": "99Gi",
        "gold.storageclass.storage.k8s.io/requests.storage": "9Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "9",
        "count/persistentvolumeclaims": "9"});
    let claim = |name: &str, spec: Value, status: Value| {
        object(PERSISTENT_VOLUME_CLAIMS, name, json!({"spec": spec, "status": status}))
    };
    let storage = |text: &str| json!({"requests": {"storage": text}});
    let gold = |text: &str| json!({"storageClassName": "gold", "resources": storage(text)});
    let events = vec![
        claim("a", json!({"resources": storage("10Gi")}), json!({})),
        claim("b", gold("1Gi"), json!({})),
        claim("c", gold("1Gi"), json!({"allocatedResources": {"storage": "3Gi"}})),
    ];
    let expected = json!({"persistentvolumeclaims": "3", "requests.storage": "14Gi",
        "gold.storageclass.storage.k8s.io/requests.storage": "4Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "2",
        "count/persistentvolumeclaims": "3"});
    assert_eq!(used(hard, events), expect(expected));
    let part = vec![claim("a", json!({"resources": storage("500m")}), json!({}))];
    assert_eq!(
        used(json!({"requests.storage": "1"}), part),
        expect(json!({"requests.storage": "1"}))
    );
}

#[test]
fn scope_of_volume_attributes_selects_claims() {
    let claim = |name: &str, spec: Value, status: Value| {
        object(PERSISTENT_VOLUME_CLAIMS, name, json!({"spec": spec, "status": status}))
    };
    for (operator, values, expected) in
        [("In", json!(["fast"]), "1"), ("Exists", json!([]), "2"), ("DoesNotExist", json!([]), "1")]
    {
        let events = vec![
            claim("a", json!({"volumeAttributesClassName": "fast"}), json!({})),
            claim("b", json!({}), json!({"currentVolumeAttributesClassName": "slow"})),
            claim("c", json!({}), json!({})),
        ];
        let spec = json!({"hard": {"persistentvolumeclaims": "9"}, "scopeSelector":
            {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": operator,
                "values": values}]}});
        assert_eq!(used_of(spec, events), expect(json!({"persistentvolumeclaims": expected})));
    }
}

#[test]
fn objects_of_other_kinds_are_counted_under_both_names() {
    let hard = json!({"configmaps": "9", "count/configmaps": "9", "count/jobs.batch": "9",
        "secrets": "9", "resourcequotas": "9", "example.com/unknown": "1"});
    let metadata = |kind: Kind, name: &str| {
        let text = json!({"metadata": {"name": name, "namespace": "n", "uid": name}}).to_string();
        set(Decoded::typed(kind, &text))
    };
    let mut events =
        vec![metadata(CONFIG_MAPS, "a"), metadata(CONFIG_MAPS, "b"), metadata(JOBS, "c")];
    let expected = json!({"configmaps": "2", "count/configmaps": "2", "count/jobs.batch": "1",
        "secrets": "0", "resourcequotas": "1"});
    events.push(WatchEvent::ListComplete(SECRETS));
    assert_eq!(used(hard.clone(), events), expect(expected));
    // Scopes select none of these.
    let spec = json!({"hard": {"configmaps": "9"}, "scopes": ["NotTerminating"]});
    let scoped = used_of(spec, vec![metadata(CONFIG_MAPS, "a")]);
    assert_eq!(scoped, expect(json!({"configmaps": "0"})));
}

// k8s: pkg/quota/v1/evaluator/core/resource_claims_test.go TestResourceClaimEvaluatorUsage
#[test]
fn devices_are_counted_by_class_and_not_twice_with_their_pod() {
    let class = object(
        DEVICE_CLASSES,
        "gpu",
        json!({"spec":
        {"extendedResourceName": "example.com/gpu"}}),
    );
    let exact = |mode: &str, count: i64| {
        let request = json!({"deviceClassName": "gpu", "allocationMode": mode, "count": count});
        json!({ "exactly": request })
    };
    let first = json!({"firstAvailable": [
        {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
        {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 5}]});
    let claim = |name: &str, metadata: Value, requests: Value| {
        object(
            RESOURCE_CLAIMS,
            name,
            json!({"metadata": metadata,
            "spec": {"devices": {"requests": requests}}}),
        )
    };
    let own = json!({"annotations": {ANNOTATION: "true"}, "ownerReferences":
        [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]});
    let spec = container(json!({"example.com/gpu": "3"}), json!({}));
    let events = vec![
        class,
        claim("a", json!({}), json!([exact("ExactCount", 1), exact("All", 0)])),
        claim("b", json!({}), json!([first])),
        claim("c", own, json!([exact("ExactCount", 3)])),
        pod("p", spec, json!({})),
    ];
    let hard = json!({"gpu.deviceclass.resource.k8s.io/devices": "99",
        "requests.example.com/gpu": "99", "count/resourceclaims.resource.k8s.io": "9",
        "requests.deviceclass.resource.kubernetes.io/gpu": "99"});
    let expected = json!({"gpu.deviceclass.resource.k8s.io/devices": "41",
        // 38 of the first two claims, 3 of the pod, none of the pod's claim.
        "requests.example.com/gpu": "41", "count/resourceclaims.resource.k8s.io": "3",
        "requests.deviceclass.resource.kubernetes.io/gpu": "41"});
    assert_eq!(used(hard, events), expect(expected));
}

const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
