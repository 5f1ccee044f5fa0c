//! Node-allocatable devices: amounts, containers that they count for, and fit on the node.
// k8s: dynamicresources/nodeallocatabledynamicresources_test.go

use std::rc::Rc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use pintle_sched_core::filter::status::Code;
use pintle_sched_core::{Cluster, Profile};
use serde_json::{Value, json};

use super::allocatable::{NodeShare, Sharer, Unfit, on_node, with_devices};
use super::offer::{Offers, Slice};
use super::tests::{claim, own, read};

/// Devices of the pool `p` on the node `n`.
fn offers(devices: Value) -> Offers {
    let mut offers = Offers::default();
    offers.set(Slice::read(&read(own("p", devices)), false));
    offers
}

fn pod(spec: Value) -> Pod {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "main", "resources": {"claims": [{"name": "c"}]}}]);
    }
    read(json!({"metadata": {"name": "pod", "namespace": "ns", "uid": "pod"}, "spec": spec}))
}

/// An allocation of some devices of the pool, with their consumed capacity.
fn given(devices: &[(&str, Value)]) -> AllocationResult {
    let one = |(device, consumed): &(&str, Value)| {
        let mut one = json!({"request": "r", "driver": "d", "pool": "p", "device": device});
        if !consumed.is_null() {
            one["consumedCapacity"] = consumed.clone();
        }
        one
    };
    let results: Vec<Value> = devices.iter().map(one).collect();
    read(json!({"devices": {"results": results}}))
}

type Claims<'a> = &'a [(&'a str, &'a str, AllocationResult)];

/// Computes the share of a pod with claims of these names; the pod knows them by names of its own.
fn share(pod: &Pod, claims: Claims, offers: &Offers) -> Result<Option<NodeShare>, Unfit> {
    let claims: Vec<(String, Rc<ResourceClaim>, &AllocationResult)> = claims
        .iter()
        .map(|(named, name, has)| ((*named).to_owned(), Rc::new(claim(name, json!({}))), has))
        .collect();
    let cluster = Cluster::new(Profile::default());
    let names = claims.iter().map(|(named, claim, _)| (named, claim));
    let sharer = Sharer::new(pod, names, &[], offers, &cluster);
    let gets: Vec<_> = claims.iter().map(|(_, claim, has)| (claim, *has)).collect();
    sharer.share(&gets, offers, "n")
}

/// Shortens a result: the statuses, nothing, or the error.
fn short(found: &Result<Option<NodeShare>, Unfit>) -> Value {
    match found {
        Ok(share) => json!(share.as_ref().map(|share| &share.statuses)),
        Err(Unfit::Here(why)) => json!({ "here": why }),
        Err(Unfit::Anywhere(why)) => json!({ "anywhere": why }),
    }
}

#[test]
fn device_consumes_its_capacity_times_its_multiplier() {
    let none = || Value::Null;
    for (mapping, consumed, want) in [
        (json!({"cpu": {"allocationMultiplier": "2"}}), none(), json!({"cpu": "2"})),
        (json!({"cpu": {"allocationMultiplier": "1500m"}}), none(), json!({"cpu": "1500m"})),
        (json!({"memory": {"allocationMultiplier": "2048Mi"}}), none(), json!({"memory": "2Gi"})),
        // The API server would have made it one.
        (json!({"cpu": {}}), none(), json!({"cpu": "0"})),
        (
            json!({"cpu": {"capacityKey": "", "allocationMultiplier": "3"}}),
            none(),
            json!({"cpu": "3"}),
        ),
        (json!({"memory": {"capacityKey": "m"}}), json!({"m": "4Gi"}), json!({"memory": "4Gi"})),
        (
            json!({"memory": {"capacityKey": "m", "allocationMultiplier": "1.5"}}),
            json!({"m": "4Gi"}),
            json!({"memory": "6Gi"}),
        ),
        (
            json!({"cpu": {"capacityKey": "cores", "allocationMultiplier": "500m"}}),
            json!({"cores": "3"}),
            json!({"cpu": "1500m"}),
        ),
        (
            json!({"cpu": {"capacityKey": "cores", "allocationMultiplier": "2"},
                "memory": {"allocationMultiplier": "1Gi"}, "hugepages-2Mi": {"capacityKey": "none"}}),
            json!({"cores": "3"}),
            json!({"cpu": "6", "memory": "1Gi"}),
        ),
        // If one is a power of two and the other a power of ten, the first decides the format.
        (
            json!({"memory": {"capacityKey": "m", "allocationMultiplier": "2Ki"}}),
            json!({"m": "3M"}),
            json!({"memory": "6144M"}),
        ),
        // Fractions of the finest unit are rounded up to it.
        (
            json!({"cpu": {"capacityKey": "m", "allocationMultiplier": "1m"}}),
            json!({"m": "1n"}),
            json!({"cpu": "1n"}),
        ),
    ] {
        let offers = offers(json!([{"name": "a", "nodeAllocatableResourceMappings": mapping}]));
        let found = share(&pod(json!({})), &[("c", "x", given(&[("a", consumed)]))], &offers);
        let statuses =
            json!([{"resourceClaimName": "x", "containers": ["main"], "resources": want}]);
        assert_eq!(short(&found), statuses, "{mapping}");
    }
}

#[test]
fn unconsumed_capacity_takes_no_resource_and_missing_consumption_is_an_error() {
    let mapping = json!({"cpu": {"capacityKey": "cores"}});
    let offers = offers(json!([{"name": "a", "nodeAllocatableResourceMappings": mapping},
        {"name": "b"}]));
    let get = |devices: &[(&str, Value)]| {
        short(&share(&pod(json!({})), &[("c", "x", given(devices))], &offers))
    };
    assert_eq!(get(&[("a", json!({"other": "1"}))]), json!([]));
    assert_eq!(get(&[("b", Value::Null)]), Value::Null);
    let why = "claim ns/x, device a: ConsumedCapacity is nil, but Capacity key 'cores' is set in \
        NodeAllocatableResourceMappings for resource cpu";
    assert_eq!(get(&[("b", Value::Null), ("a", Value::Null)]), json!({ "anywhere": why }));
    // A device that no slice lists any more takes nothing, unless another device of the claim takes
    // something.
    assert_eq!(get(&[("gone", Value::Null)]), Value::Null);
    let why = "claim ns/x, device gone: device gone not found in pool p";
    let both = get(&[("a", json!({"cores": "1"})), ("gone", Value::Null)]);
    assert_eq!(both, json!({ "anywhere": why }));
}

#[test]
fn devices_of_a_claim_add_up_and_the_newest_state_of_a_pool_counts() {
    let takes = |cpu: &str| json!({"cpu": {"allocationMultiplier": cpu}});
    let mut offers = offers(json!([
        {"name": "a", "nodeAllocatableResourceMappings": takes("2")},
        {"name": "b", "nodeAllocatableResourceMappings": takes("500m")}]));
    let mut old = own("p", json!([{"name": "a", "nodeAllocatableResourceMappings": takes("9")}]));
    old["metadata"]["name"] = json!("z");
    old["spec"]["pool"]["generation"] = json!(0);
    offers.set(Slice::read(&read(old), false));
    let both = given(&[("a", Value::Null), ("b", Value::Null)]);
    let found = share(&pod(json!({})), &[("c", "x", both)], &offers);
    assert_eq!(short(&found)[0]["resources"], json!({"cpu": "2500m"}));
}

#[test]
fn each_claim_lists_its_containers_in_order() {
    let takes = json!({"cpu": {"allocationMultiplier": "1"}});
    let offers = offers(json!([{"name": "a", "nodeAllocatableResourceMappings": takes}]));
    let uses = |name: &str, claims: &[(&str, &str)]| {
        let one = |(name, request): &(&str, &str)| match *request {
            "" => json!({ "name": name }),
            request => json!({"name": name, "request": request}),
        };
        let claims: Vec<Value> = claims.iter().map(one).collect();
        json!({"name": name, "resources": {"claims": claims}})
    };
    let pod = pod(json!({
        "containers": [uses("main", &[("own", "r0"), ("own", "r1")]), uses("rest", &[])],
        "initContainers": [uses("before", &[("second", ""), ("own", "")])],
    }));
    let has = || given(&[("a", Value::Null)]);
    let found = share(&pod, &[("second", "z", has()), ("own", "b", has())], &offers);
    let resources = json!({"cpu": "1"});
    assert_eq!(
        short(&found),
        json!([
            {"resourceClaimName": "b", "containers": ["before", "main", "main"],
                "resources": resources},
            {"resourceClaimName": "z", "containers": ["before"], "resources": resources},
        ])
    );
    // An allocation counts once even if the pod has two names for the claim.
    let twice = share(&pod, &[("own", "b", has()), ("own", "b", has())], &offers);
    assert_eq!(short(&twice).as_array().map(Vec::len), Some(1));
    let idle = share(&pod, &[("own", "b", has()), ("third", "y", has())], &offers);
    let why =
        "claim y: node-allocatable resource claim not referenced by any container within the pod";
    assert_eq!(short(&idle), json!({ "here": why }));
}

#[test]
fn pod_level_request_must_cover_containers_and_devices() {
    let takes =
        json!({"cpu": {"allocationMultiplier": "2"}, "memory": {"allocationMultiplier": "1Gi"}});
    let offers = offers(json!([{"name": "a", "nodeAllocatableResourceMappings": takes}]));
    let get = |of_pod: Value, overhead: Value| {
        let resources = json!({"requests": {"cpu": "1"}, "claims": [{"name": "c"}]});
        let mut spec = json!({"containers": [{"name": "main", "resources": resources}]});
        if !of_pod.is_null() {
            spec["resources"] = json!({ "requests": of_pod });
        }
        spec["overhead"] = overhead;
        share(&pod(spec), &[("c", "x", given(&[("a", Value::Null)]))], &offers)
    };
    let why = |resource: &str| {
        let rest =
            "is insufficient to cover the aggregated container and node-allocatable DRA requests";
        json!({"here": format!("pod level request for {resource} {rest}")})
    };
    for (of_pod, overhead, want) in [
        (Value::Null, Value::Null, None),
        (json!({"cpu": "3", "memory": "1Gi"}), Value::Null, None),
        (json!({"cpu": "3"}), json!({"cpu": "5", "memory": "1Gi"}), None),
        (json!({"cpu": "2999m"}), Value::Null, Some("cpu")),
        (json!({"cpu": "4", "memory": "1023Mi"}), json!({"memory": "2Gi"}), Some("memory")),
        (json!({"cpu": "1", "memory": "1"}), Value::Null, Some("cpu")),
        // Resources without a level of their own.
        (json!({"ephemeral-storage": "1"}), Value::Null, None),
    ] {
        let found = get(of_pod.clone(), overhead.clone());
        match want {
            Some(resource) => assert_eq!(short(&found), why(resource), "{of_pod} {overhead}"),
            None => assert!(matches!(found, Ok(Some(_))), "{of_pod} {overhead}: {found:?}"),
        }
    }
}

/// A cluster of one node with these resources and a pod that uses some of them.
fn cluster(has: Value, used: Value) -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    let node: Node = read(json!({"metadata": {"name": "n"}, "status": {"allocatable": has}}));
    cluster.set_node(&node).expect("a node");
    let other: Pod = read(json!({"metadata": {"name": "other", "namespace": "ns", "uid": "other"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": used}}]}}));
    let other = cluster.read_pod(&other).expect("a pod");
    cluster.place_spec(&other, "n", false);
    cluster
}

/// Amounts that devices take, amounts the node has, reasons, status code, and the reasons left once
/// the other pod is removed.
type Lack<'a> = (Value, Value, &'a [&'a str], Code, &'a [&'a str]);

#[test]
fn lacking_resources_are_reported_and_unresolvable_above_node_capacity() {
    let soft = Code::Unschedulable;
    let hard = Code::UnschedulableAndUnresolvable;
    let cases: Vec<Lack> = vec![
        (json!({"cpu": "2"}), json!({"cpu": "4"}), &[], soft, &[]),
        (json!({"cpu": "3"}), json!({"cpu": "4"}), &["Insufficient cpu"], soft, &[]),
        (
            json!({"cpu": "5"}),
            json!({"cpu": "4"}),
            &["Insufficient cpu"],
            hard,
            &["Insufficient cpu"],
        ),
        (
            json!({"cpu": "3", "memory": "2Gi"}),
            json!({"cpu": "4", "memory": "1Gi"}),
            &["Insufficient cpu", "Insufficient memory"],
            hard,
            &["Insufficient memory"],
        ),
        (
            json!({"ephemeral-storage": "2"}),
            json!({"ephemeral-storage": "2"}),
            &["Insufficient ephemeral-storage"],
            soft,
            &[],
        ),
        (
            json!({"hugepages-2Mi": "6Mi"}),
            json!({"hugepages-2Mi": "8Mi"}),
            &["Insufficient hugepages-2Mi"],
            soft,
            &[],
        ),
        (
            json!({"hugepages-1Gi": "1Gi"}),
            json!({"hugepages-2Mi": "8Mi"}),
            &["Insufficient hugepages-1Gi"],
            hard,
            &["Insufficient hugepages-1Gi"],
        ),
        // A resource that devices cannot take from a node is ignored.
        (json!({"example.com/card": "2"}), json!({"example.com/card": "1"}), &[], soft, &[]),
    ];
    let used = json!({"cpu": "2", "ephemeral-storage": "1", "hugepages-2Mi": "4Mi"});
    for (takes, has, lacks, code, without) in cases {
        let (name, amount) =
            ("nodeAllocatableResourceMappings", |(name, amount): (&String, &Value)| {
                (name.clone(), json!({ "allocationMultiplier": amount }))
            });
        let mapping: serde_json::Map<_, _> =
            takes.as_object().into_iter().flatten().map(amount).collect();
        let offers = offers(json!([{"name": "a", name: mapping}]));
        let cluster = cluster(has.clone(), used.clone());
        let claim = Rc::new(claim("x", json!({})));
        let named = "c".to_owned();
        let names = std::iter::once((&named, &claim));
        let sharer = Sharer::new(&pod(json!({})), names, &[], &offers, &cluster);
        let devices = given(&[("a", Value::Null)]);
        let share = sharer.share(&[(&claim, &devices)], &offers, "n");
        let share = share.expect("it can be had").expect("it takes something");
        let status = sharer.lack(&share, cluster.view(), 0);
        let said = status.as_ref().map_or(&[][..], |status| &status.reasons);
        assert_eq!(said, lacks, "{takes} of {has}");
        assert!(status.is_none_or(|status| status.code == code), "{takes} of {has}");
        let gone: Vec<_> = cluster.pods().on_node(0).collect();
        let status = sharer.lack_without(&share, &cluster, 0, &gone);
        let said = status.as_ref().map_or(&[][..], |status| &status.reasons);
        assert_eq!(said, without, "{takes} of {has} once the other one has gone");
    }
}

#[test]
fn status_devices_are_added_to_counted_requests_but_not_to_own_requests() {
    let mut cluster = Cluster::new(Profile::default());
    let mut value = json!({"metadata": {"name": "pod", "namespace": "ns", "uid": "pod"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m"}}}]}});
    let bare: Pod = read(value.clone());
    value["status"] = json!({"nodeAllocatableResourceClaimStatuses": [
        {"resourceClaimName": "x", "resources": {"cpu": "2", "hugepages-2Mi": "2Mi"}},
        {"resourceClaimName": "y", "resources": {"memory": "1Gi"}}]});
    let told: Pod = read(value);
    let spec = Rc::new(cluster.read_pod(&told).expect("a pod"));
    assert_eq!(spec.requests.plain.cpu_milli, 1500, "the requests of the spec alone");
    let counted = with_devices(&told, Rc::clone(&spec));
    let plain = &counted.requests.plain;
    assert_eq!((plain.cpu_milli, plain.mem_bytes), (3500, 1 << 30));
    assert_eq!(plain.scalars, [("hugepages-2Mi".to_owned(), 2 << 20)]);
    // A container without a memory request counts with the default, whatever its devices take.
    let nonzero = (counted.requests.nonzero_cpu_milli, counted.requests.nonzero_mem_bytes);
    assert_eq!(nonzero, (3500, (1 << 30) + (200 << 20)));
    assert_eq!((counted.requests.own().cpu_milli, counted.requests.own().mem_bytes), (1500, 0));
    assert_eq!(counted.requests.score, spec.requests.score);
    // The new allocation replaces what the pod's status says.
    assert!(Rc::ptr_eq(&with_devices(&bare, Rc::clone(&spec)), &spec));
    assert!(Rc::ptr_eq(&on_node(&bare, &spec, &[]), &spec));
    assert_eq!(on_node(&told, &counted, &[]).requests, spec.requests);
    let statuses = pintle_sched_core::requests::node_claims(&told);
    assert_eq!(on_node(&bare, &spec, statuses).requests, counted.requests);
    assert!(Rc::ptr_eq(&on_node(&told, &counted, statuses), &counted));
}
