//! Allocations, by the cases of upstream's allocator tests.
// k8s: structured/internal/allocatortesting/allocator_testing.go

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};
use pintle_cel::EvaluationLimits;
use pintle_sched_core::attempt_budget::AttemptBudget;
use serde_json::{Value, json};

use super::allocate::{AllocationFailure, DeviceOffers, allocate};
use super::offer::{AllocationNode, Offers, Slice};
use super::selectors::Selectors;
use super::usage::Usage;

#[path = "bounds_tests.rs"]
mod bounds;

/// A node of this name in the zone `a`.
struct Here(&'static str);

impl AllocationNode for Here {
    fn name(&self) -> &str {
        self.0
    }
    fn meets(&self, selector: &Rc<NodeSelector>) -> bool {
        let terms = selector.node_selector_terms.iter();
        let mut labels = terms.flat_map(|term| term.match_expressions.iter().flatten());
        labels.any(|one| one.values.iter().flatten().any(|value| value == "a"))
    }
}

pub(super) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

/// A slice of the driver `d`, one of `count` of the pool `pool`.
fn slice(name: &str, pool: &str, generation: i64, count: i64, mut more: Value) -> Value {
    more["driver"] = json!("d");
    more["pool"] = json!({"name": pool, "generation": generation, "resourceSliceCount": count});
    json!({"metadata": {"name": name}, "spec": more})
}

/// The only slice of a pool of the node `n`.
pub(super) fn own(pool: &str, devices: Value) -> Value {
    slice(pool, pool, 1, 1, json!({"nodeName": "n", "devices": devices}))
}

pub(super) fn claim(name: &str, devices: Value) -> ResourceClaim {
    read(json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"devices": devices}}))
}

/// A request of one class.
pub(super) fn exactly(name: &str, mut more: Value) -> Value {
    more["deviceClassName"] = json!("c");
    json!({"name": name, "exactly": more})
}

pub(super) fn wants(requests: Value) -> Vec<ResourceClaim> {
    vec![claim("claim", json!({ "requests": requests }))]
}

/// Allocates claims from slices, with the `taken` devices in use.
fn get(
    slices: Vec<Value>,
    taken: &[&str],
    claims: Vec<ResourceClaim>,
) -> Result<Vec<AllocationResult>, AllocationFailure> {
    let mut offers = Offers::default();
    slices.into_iter().for_each(|slice| _ = offers.set(Slice::read(&read(slice), false)));
    let mut usage = Usage::default();
    for (at, device) in taken.iter().enumerate() {
        let (pool, device) = device.split_once('/').expect("a pool and a device");
        usage.add(&read(json!({"devices": {"results": [{"request": at.to_string(), "driver": "d",
            "pool": pool, "device": device}]}})));
    }
    within(&offers, &usage, claims, &|| false)
}

pub(super) fn within(
    offers: &Offers,
    usage: &Usage,
    claims: Vec<ResourceClaim>,
    is_late: &dyn Fn() -> bool,
) -> Result<Vec<AllocationResult>, AllocationFailure> {
    selected(&Selectors::default(), offers, usage, claims, is_late)
}

pub(super) fn selected(
    selectors: &Selectors,
    offers: &Offers,
    usage: &Usage,
    claims: Vec<ResourceClaim>,
    is_late: &dyn Fn() -> bool,
) -> Result<Vec<AllocationResult>, AllocationFailure> {
    let budget = &AttemptBudget::unlimited();
    bounded(selectors, offers, usage, claims, EvaluationLimits { budget, is_late })
}

/// Allocates within limits.
fn bounded(
    selectors: &Selectors,
    offers: &Offers,
    usage: &Usage,
    claims: Vec<ResourceClaim>,
    EvaluationLimits { budget, is_late }: EvaluationLimits,
) -> Result<Vec<AllocationResult>, AllocationFailure> {
    let class = |name: &str, spec: Value| -> (String, Rc<DeviceClass>) {
        (name.into(), Rc::new(read(json!({"metadata": {"name": name}, "spec": spec}))))
    };
    let parameters = |n: i64| json!({"opaque": {"driver": "d", "parameters": {"n": n}}});
    let classes = BTreeMap::from([
        class("c", json!({})),
        class(
            "big",
            json!({"selectors": [{"cel": {"expression":
            "device.capacity['d'].memory.isGreaterThan(quantity('4Gi'))"}}]}),
        ),
        class("configured", json!({"config": [parameters(1), parameters(2)]})),
    ]);
    let world = DeviceOffers { offers, usage, classes: &classes, selectors, budget, is_late };
    let claims: Vec<_> = claims.into_iter().map(Rc::new).collect();
    allocate(world, &Here("n"), &claims, &mut || "share".to_owned())
}

/// Shortens results: request, pool and device, by claim.
pub(super) fn short(found: &Result<Vec<AllocationResult>, AllocationFailure>) -> String {
    let one = |allocation: &AllocationResult| {
        let devices = allocation.devices.as_ref().expect("devices");
        let all = devices.results.iter().flatten();
        let all = all.map(|r| format!("{}={}/{}", r.request, r.pool, r.device));
        all.collect::<Vec<_>>().join(" ")
    };
    match found {
        Ok(all) => all.iter().map(one).collect::<Vec<_>>().join("; "),
        Err(failure) => format!("{failure:?}"),
    }
}

fn abc() -> Value {
    json!([{"name": "a"}, {"name": "b"}, {"name": "c"}])
}

#[test]
fn devices_are_counted_and_never_allocated_twice() {
    let two = || wants(json!([exactly("r", json!({"count": 2}))]));
    let both = || {
        let one = |name| claim(name, json!({"requests": [exactly("r", json!({}))]}));
        vec![one("x"), one("y")]
    };
    for (taken, claims, want) in [
        (vec![], wants(json!([exactly("r", json!({}))])), "r=p/a"),
        (vec![], two(), "r=p/a r=p/b"),
        (vec!["p/a"], two(), "r=p/b r=p/c"),
        (vec!["p/a", "p/b"], two(), "Nothing"),
        (vec!["p/a"], both(), "r=p/b; r=p/c"),
        (vec!["p/a", "p/b"], both(), "Nothing"),
        (vec!["q/a", "p/x"], two(), "r=p/a r=p/b"),
        (vec![], wants(json!([exactly("r", json!({})), exactly("s", json!({}))])), "r=p/a s=p/b"),
        (vec!["p/b"], wants(json!([exactly("r", json!({"allocationMode": "All"}))])), "Nothing"),
        (
            vec![],
            wants(json!([exactly("r", json!({"allocationMode": "All"}))])),
            "r=p/a r=p/b r=p/c",
        ),
    ] {
        let found = get(vec![own("p", abc())], &taken, claims.clone());
        assert_eq!(short(&found), want, "{taken:?} {claims:?}");
    }
    let found =
        get(Vec::new(), &[], wants(json!([exactly("r", json!({"allocationMode": "All"}))])));
    assert_eq!(found, Err(AllocationFailure::Nothing), "all of none are not enough");
}

#[test]
fn classes_and_requests_select() {
    let memory = |size: &str| json!({"memory": {"value": size}});
    let devices = json!([
        {"name": "a", "capacity": memory("1Gi"), "attributes": {"kind": {"string": "x"}}},
        {"name": "b", "capacity": memory("8Gi"), "attributes": {"kind": {"string": "x"}}},
        {"name": "c", "capacity": memory("8Gi"), "attributes": {"kind": {"string": "y"}}},
    ]);
    let request = |class: &str, kind: &str| {
        let selector =
            json!({"cel": {"expression": format!("device.attributes['d'].kind == '{kind}'")}});
        json!([{"name": "r", "exactly": {"deviceClassName": class, "selectors": [selector]}}])
    };
    for (class, kind, want) in
        [("c", "x", "r=p/a"), ("big", "x", "r=p/b"), ("big", "y", "r=p/c"), ("c", "z", "Nothing")]
    {
        let found = get(vec![own("p", devices.clone())], &[], wants(request(class, kind)));
        assert_eq!(short(&found), want, "{class} {kind}");
    }
}

#[test]
fn errors_name_their_claim_request_or_class() {
    let selects = |text: &str| exactly("r", json!({"selectors": [{"cel": {"expression": text}}]}));
    for (requests, want) in [
        (
            json!([selects("device.attributes['d'].x == 1")]),
            "claim ns/claim: selector #0: CEL runtime error: no such key: x",
        ),
        (
            json!([selects("nothing")]),
            "claim ns/claim: selector #0: CEL compile error: compilation failed: ERROR: <input>: \
             undeclared reference to 'nothing' (in container '')",
        ),
        (
            json!([{"name": "r", "exactly": {"deviceClassName": "big"}}]),
            "class big: selector #0: CEL runtime error: no such key: memory",
        ),
        (
            json!([{"name": "r", "exactly": {"deviceClassName": "none"}}]),
            "claim ns/claim, request r: could not retrieve device class none: \
             deviceclass.resource.k8s.io \"none\" not found",
        ),
        (
            json!([exactly("r", json!({"selectors": [{}]}))]),
            "claim ns/claim, request r, selector #0: CEL expression empty (unsupported selector \
             type?)",
        ),
        (
            json!([exactly("r", json!({"allocationMode": "Some"}))]),
            "claim ns/claim, request r: unsupported count mode Some",
        ),
        (
            json!([exactly("r", json!({"count": 33}))]),
            "claim ns/claim: number of requested devices 33 exceeds the claim limit of 32",
        ),
    ] {
        let found = get(vec![own("p", abc())], &[], wants(requests));
        assert_eq!(found, Err(AllocationFailure::Error(want.to_owned())));
    }
    let claims = || {
        vec![claim(
            "claim",
            json!({"requests": [exactly("r", json!({}))],
        "constraints": [{}]}),
        )]
    };
    let want = "claim ns/claim, constraint #0: empty constraint (unsupported constraint type?)";
    assert_eq!(get(vec![], &[], claims()), Err(AllocationFailure::Error(want.to_owned())));
    let odd = json!([{"name": "a", "attributes": {"v": {"version": "1"}}}]);
    let found = get(vec![own("p", odd)], &[], wants(json!([selects("true")])));
    let want = "claim ns/claim: selector #0: CEL runtime error: attribute v: parse semantic \
        version: No Major.Minor.Patch elements found";
    assert_eq!(found, Err(AllocationFailure::Error(want.to_owned())));
}

#[test]
fn pools_that_change_are_left_alone() {
    let one = |name: &str, generation, count, device: &str| {
        let more = json!({"nodeName": "n", "devices": [{"name": device}]});
        slice(name, "p", generation, count, more)
    };
    let elsewhere = |generation, count| {
        slice("z", "p", generation, count, json!({"nodeName": "m", "devices": [{"name": "z"}]}))
    };
    let simple = || wants(json!([exactly("r", json!({}))]));
    let all = || wants(json!([exactly("r", json!({"allocationMode": "All"}))]));
    let updating = "Error(\"claim ns/claim, request r: asks for all devices, but resource pool \
        d/p is currently being updated\")";
    let invalid = "Error(\"claim ns/claim, request r: asks for all devices, but resource pool \
        d/p is currently invalid\")";
    let on_node = "OnNode(\"invalid resource pools were encountered\")";
    for (slices, claims, want) in [
        (vec![one("s", 1, 2, "a")], simple(), "Nothing"),
        (vec![one("s", 1, 2, "a")], all(), updating),
        (vec![one("s", 1, 2, "a"), one("t", 1, 2, "b")], all(), "r=p/a r=p/b"),
        (vec![one("t", 1, 2, "b"), one("s", 1, 2, "a")], all(), "r=p/a r=p/b"),
        (vec![one("s", 1, 1, "a"), one("t", 2, 1, "b")], all(), "r=p/b"),
        (vec![one("s", 1, 2, "a"), elsewhere(1, 2)], all(), "r=p/a"),
        (vec![one("s", 1, 1, "a"), elsewhere(2, 1)], simple(), "r=p/a"),
        (vec![one("s", 1, 2, "a"), elsewhere(2, 1)], simple(), "Nothing"),
        (vec![one("s", 1, 2, "a"), one("t", 1, 2, "a")], simple(), on_node),
        (vec![one("s", 1, 2, "a"), one("t", 1, 2, "a")], all(), invalid),
        (vec![one("s", 1, 2, "a"), one("t", 1, 2, "a"), own("q", abc())], simple(), "r=q/a"),
    ] {
        assert_eq!(short(&get(slices.clone(), &[], claims)), want, "{slices:?}");
    }
}

#[test]
fn devices_are_available_on_the_nodes_of_their_slices() {
    let zone = |zone: &str| {
        json!({"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "zone", "operator": "In", "values": [zone]}]}]})
    };
    let by_name = json!({"nodeSelectorTerms": [{"matchFields":
        [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]});
    let devices = |more: Value| {
        let mut spec = more;
        spec["devices"] = json!([{"name": "a"}]);
        spec
    };
    let per_device = |mut device: Value| {
        device["name"] = json!("a");
        json!({"perDeviceNodeSelection": true, "devices": [device]})
    };
    for (spec, want) in [
        (devices(json!({"nodeName": "n"})), Some(by_name.clone())),
        (devices(json!({"nodeName": "m"})), None),
        (devices(json!({"allNodes": true})), Some(Value::Null)),
        (devices(json!({"nodeSelector": zone("a")})), Some(zone("a"))),
        (devices(json!({"nodeSelector": zone("b")})), None),
        (devices(json!({"somethingNew": true})), None),
        (per_device(json!({"nodeName": "n"})), Some(by_name.clone())),
        (per_device(json!({"nodeName": "m"})), None),
        (per_device(json!({"allNodes": true})), Some(Value::Null)),
        (per_device(json!({"nodeSelector": zone("a")})), Some(zone("a"))),
        (per_device(json!({"nodeSelector": zone("b")})), None),
        (json!({"allNodes": true, "devices": [{"name": "a", "bindsToNode": true}]}), Some(by_name)),
    ] {
        let slices = vec![slice("s", "p", 1, 1, spec.clone())];
        let found = get(slices, &[], wants(json!([exactly("r", json!({}))]))).ok();
        let selector = found.map(|found| json!(found[0].node_selector));
        assert_eq!(selector, want, "{spec}");
    }
}

#[test]
fn selectors_of_nodes_are_added_up() {
    let zone =
        |key: &str| json!({"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]});
    let one = |pool: &str, terms: Value| {
        slice(
            pool,
            pool,
            1,
            1,
            json!({"devices": [{"name": "a"}],
        "nodeSelector": {"nodeSelectorTerms": terms}}),
        )
    };
    let three = || wants(json!([exactly("r", json!({"count": 3}))]));
    let slices = vec![
        one("p", json!([zone("x")])),
        one("q", json!([zone("y")])),
        one("r", json!([zone("x")])),
    ];
    let found = get(slices, &[], three()).expect("an allocation");
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "x", "operator": "In", "values": ["a"]},
        {"key": "y", "operator": "In", "values": ["a"]}]}]});
    assert_eq!(json!(found[0].node_selector), terms);
    let found = get(
        vec![one("p", json!([zone("x"), zone("y")]))],
        &[],
        wants(json!([exactly("r", json!({}))])),
    );
    let want =
        "create NodeSelector for claim claim: unsupported ResourceSlice.NodeSelector with 2 terms";
    assert_eq!(found, Err(AllocationFailure::Error(want.to_owned())));
}

#[test]
fn constraints_are_met_even_if_backtracking_is_needed() {
    let device = |name: &str, numa: i64, kind: &str| {
        let attributes = json!({"numa": {"int": numa}, "d/kind": {"string": kind}});
        json!({"name": name, "attributes": attributes})
    };
    let devices =
        json!([device("a", 0, "x"), device("b", 1, "x"), device("c", 1, "y"), {"name": "d"}]);
    let two = json!([exactly("r", json!({"count": 2}))]);
    let pair = json!([exactly("r", json!({})), exactly("s", json!({}))]);
    let all = json!([exactly("r", json!({"allocationMode": "All"}))]);
    let same = |name: &str| json!({"matchAttribute": name});
    let other = |name: &str| json!({"distinctAttribute": name});
    let refused = "Error(\"claim ns/claim, request r: cannot add device d/p/b because a claim \
        constraint would not be satisfied\")";
    for (requests, constraints, want) in [
        (&two, json!([same("d/numa")]), "r=p/b r=p/c"),
        (&pair, json!([same("d/numa")]), "r=p/b s=p/c"),
        (&pair, json!([same("d/kind")]), "r=p/a s=p/b"),
        (&pair, json!([same("d/numa"), same("d/kind")]), "Nothing"),
        (&pair, json!([{"matchAttribute": "d/numa", "requests": ["r"]}]), "r=p/a s=p/b"),
        (&pair, json!([other("d/kind")]), "r=p/a s=p/c"),
        (&pair, json!([other("d/numa"), same("d/kind")]), "r=p/a s=p/b"),
        (&pair, json!([other("d/numa"), other("d/kind")]), "r=p/a s=p/c"),
        (&two, json!([same("d/absent")]), "Nothing"),
        (&two, json!([same("e/numa")]), "Nothing"),
        (&all, json!([same("d/numa")]), refused),
    ] {
        let claims =
            vec![claim("claim", json!({"requests": requests, "constraints": constraints}))];
        let found = get(vec![own("p", devices.clone())], &[], claims);
        assert_eq!(short(&found), want, "{requests} {constraints}");
    }
}

#[test]
fn alternatives_are_tried_in_their_order() {
    let sub = |name: &str, count: i64, kind: &str| {
        let text = format!("device.attributes['d'].?kind.orValue('') == '{kind}'");
        json!({"name": name, "deviceClassName": "c", "count": count,
            "selectors": [{"cel": {"expression": text}}]})
    };
    let any = |name: &str, subs: Value| json!({"name": name, "firstAvailable": subs});
    let kind =
        |name: &str, kind: &str| json!({"name": name, "attributes": {"kind": {"string": kind}}});
    let devices = json!([kind("a", "x"), kind("b", "y"), kind("c", "y")]);
    for (requests, want) in [
        (json!([any("r", json!([sub("best", 1, "x"), sub("good", 2, "y")]))]), "r/best=p/a"),
        (
            json!([any("r", json!([sub("best", 2, "x"), sub("good", 2, "y")]))]),
            "r/good=p/b r/good=p/c",
        ),
        (json!([any("r", json!([sub("best", 2, "x"), sub("good", 3, "y")]))]), "Nothing"),
        (
            json!([
                any("r", json!([sub("best", 1, "y"), sub("good", 1, "x")])),
                exactly("s", json!({"count": 2}))
            ]),
            "r/best=p/b s=p/a s=p/c",
        ),
        // The first alternative leaves too little for the second request.
        (
            json!([
                any("r", json!([sub("best", 2, "y"), sub("good", 1, "x")])),
                any("s", json!([sub("only", 1, "y")]))
            ]),
            "r/good=p/a s/only=p/b",
        ),
        (json!([any("r", json!([sub("much", 40, "y"), sub("good", 1, "x")]))]), "r/good=p/a"),
    ] {
        let found = get(vec![own("p", devices.clone())], &[], wants(requests.clone()));
        assert_eq!(short(&found), want, "{requests}");
    }
}

#[test]
fn a_claim_has_at_most_so_many_devices() {
    let devices: Vec<Value> = (0..60).map(|n| json!({"name": format!("x{n:02}")})).collect();
    let sub =
        |name: &str, count: i64| json!({"name": name, "deviceClassName": "c", "count": count});
    let any = |name: &str, subs: Value| json!({"name": name, "firstAvailable": subs});
    let requests = json!([
        any("r", json!([sub("much", 20), sub("few", 2)])),
        any("s", json!([sub("much", 31), sub("few", 30)]))
    ]);
    let found = get(vec![own("p", json!(devices))], &[], wants(requests)).expect("devices");
    let results = found[0].devices.as_ref().and_then(|d| d.results.clone()).expect("results");
    let count = |name: &str| results.iter().filter(|r| r.request == name).count();
    assert_eq!((results.len(), count("r/few"), count("s/few")), (32, 2, 30));
}

#[test]
fn admin_access_to_used_devices_is_granted_and_consumes_none() {
    let admin = |name: &str, mode: Value| {
        let mut more = mode;
        more["adminAccess"] = json!(true);
        exactly(name, more)
    };
    for (requests, want) in [
        (json!([admin("r", json!({"allocationMode": "All"}))]), "r=p/a r=p/b r=p/c"),
        (json!([admin("r", json!({})), admin("s", json!({}))]), "r=p/a s=p/b"),
        (json!([admin("r", json!({"count": 4}))]), "Nothing"),
    ] {
        let found = get(vec![own("p", abc())], &["p/a", "p/b", "p/c"], wants(requests.clone()));
        assert_eq!(short(&found), want, "{requests}");
        let all = found.iter().flatten().flat_map(|a| a.devices.as_ref()?.results.clone());
        assert!(all.flatten().all(|r| r.admin_access == Some(true)));
    }
    let mut usage = Usage::default();
    let watched = json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "p",
        "device": "a", "adminAccess": true}]}});
    usage.add(&read(watched));
    let mut offers = Offers::default();
    offers.set(Slice::read(&read(own("p", abc())), false));
    let found = within(&offers, &usage, wants(json!([exactly("r", json!({}))])), &|| false);
    assert_eq!(short(&found), "r=p/a");
}

#[test]
fn tainted_device_is_allocated_only_if_its_taint_is_tolerated() {
    let tainted = |effect: &str| {
        json!([{"name": "a", "taints":
        [{"key": "k", "value": "v", "effect": effect}]}])
    };
    let tolerates = |toleration: Value| json!([exactly("r", json!({"tolerations": [toleration]}))]);
    for (effect, requests, is_good) in [
        ("NoSchedule", json!([exactly("r", json!({}))]), false),
        ("NoExecute", json!([exactly("r", json!({}))]), false),
        ("None", json!([exactly("r", json!({}))]), true),
        ("Future", json!([exactly("r", json!({}))]), true),
        ("NoSchedule", tolerates(json!({"operator": "Exists"})), true),
        ("NoSchedule", tolerates(json!({"operator": "Exists", "key": "k"})), true),
        ("NoSchedule", tolerates(json!({"operator": "Exists", "key": "l"})), false),
        ("NoSchedule", tolerates(json!({"key": "k", "value": "v"})), true),
        ("NoSchedule", tolerates(json!({"key": "k", "value": "w"})), false),
        ("NoSchedule", tolerates(json!({"operator": "Exists", "effect": "NoExecute"})), false),
        ("NoSchedule", tolerates(json!({"operator": "Odd", "key": "k", "value": "v"})), false),
    ] {
        let found = get(vec![own("p", tainted(effect))], &[], wants(requests.clone()));
        assert_eq!(found.is_ok(), is_good, "{effect} {requests}");
        if let Ok(found) = &found {
            let result =
                &found[0].devices.as_ref().and_then(|d| d.results.clone()).expect("one")[0];
            let asked = &requests[0]["exactly"]["tolerations"];
            assert_eq!(&json!(result.tolerations), asked, "tolerations are kept with the result");
        }
    }
}

#[test]
fn partitions_of_a_device_share_its_counters() {
    let part = |name: &str, memory: &str| {
        json!({"name": name, "consumesCounters":
        [{"counterSet": "gpu", "counters": {"memory": {"value": memory}}}]})
    };
    let counters = slice(
        "p-counters",
        "p",
        1,
        2,
        json!({"nodeName": "n", "sharedCounters":
        [{"name": "gpu", "counters": {"memory": {"value": "8Gi"}}}]}),
    );
    let parts = |devices: Value| {
        slice("p-devices", "p", 1, 2, json!({"nodeName": "n", "devices": devices}))
    };
    let devices = json!([part("whole", "8Gi"), part("half", "4Gi"), part("other-half", "4Gi")]);
    let request = |count: i64| wants(json!([exactly("r", json!({ "count": count }))]));
    for (taken, count, want) in [
        (vec![], 1, "r=p/whole"),
        (vec![], 2, "r=p/half r=p/other-half"),
        (vec![], 3, "Nothing"),
        (vec!["p/half"], 1, "r=p/other-half"),
        (vec!["p/half", "p/other-half"], 1, "Nothing"),
        (vec!["p/whole"], 1, "Nothing"),
    ] {
        let found = get(vec![counters.clone(), parts(devices.clone())], &taken, request(count));
        assert_eq!(short(&found), want, "{taken:?} {count}");
    }
    // A device that consumes an unknown counter set invalidates the whole pool.
    let odd = json!([{"name": "a", "consumesCounters": [{"counterSet": "other", "counters": {}}]}]);
    let found = get(vec![counters, parts(odd)], &[], request(1));
    assert_eq!(short(&found), "OnNode(\"invalid resource pools were encountered\")");
}

#[test]
fn several_may_have_some_of_a_device() {
    let device = json!([{"name": "a", "allowMultipleAllocations": true,
        "capacity": {"memory": {"value": "10Gi"}}}]);
    let some = |name: &str, amount: &str| {
        exactly(name, json!({"capacity": {"requests": {"memory": amount}}}))
    };
    let found = get(
        vec![own("p", device.clone())],
        &[],
        wants(json!([some("r", "4Gi"), some("s", "6Gi")])),
    );
    assert_eq!(short(&found), "r=p/a s=p/a");
    let found = found.expect("devices");
    let results = found[0].devices.as_ref().and_then(|d| d.results.clone()).expect("two");
    assert_eq!(results[1].share_id.as_deref(), Some("share"));
    assert_eq!(json!(results[1].consumed_capacity), json!({"memory": "6Gi"}));
    let found = get(
        vec![own("p", device.clone())],
        &[],
        wants(json!([some("r", "4Gi"), some("s", "7Gi")])),
    );
    assert_eq!(found, Err(AllocationFailure::Nothing));

    let (mut usage, mut offers) = (Usage::default(), Offers::default());
    offers.set(Slice::read(&read(own("p", device)), false));
    let used: AllocationResult =
        read(json!({"devices": {"results": [{"request": "r", "driver": "d",
        "pool": "p", "device": "a", "shareID": "1", "consumedCapacity": {"memory": "9Gi"}}]}}));
    usage.add(&used);
    let ask = |amount| wants(json!([some("r", amount)]));
    assert_eq!(short(&within(&offers, &usage, ask("2Gi"), &|| false)), "Nothing");
    assert_eq!(short(&within(&offers, &usage, ask("1Gi"), &|| false)), "r=p/a");
    usage.remove(&used);
    assert_eq!(short(&within(&offers, &usage, ask("10Gi"), &|| false)), "r=p/a");
}

#[test]
fn devices_that_are_not_ready_at_once_come_last() {
    let late = json!([{"name": "a", "bindingConditions": ["ready"],
        "bindingFailureConditions": ["broken"]}]);
    let slices = || vec![own("p", late.clone()), own("q", json!([{"name": "b"}]))];
    let one = || wants(json!([exactly("r", json!({}))]));
    assert_eq!(short(&get(slices(), &[], one())), "r=q/b");
    let found = get(slices(), &["q/b"], one()).expect("a device");
    let result = &found[0].devices.as_ref().and_then(|d| d.results.clone()).expect("one")[0];
    assert_eq!(result.binding_conditions, Some(vec!["ready".to_owned()]));
    assert_eq!(result.binding_failure_conditions, Some(vec!["broken".to_owned()]));
}

#[test]
fn class_and_claim_configuration_is_copied_into_the_allocation() {
    let opaque = |n: i64| json!({"driver": "d", "parameters": {"n": n}});
    let of = |name: &str, class: &str| json!({"name": name, "exactly": {"deviceClassName": class}});
    let any = json!({"name": "t", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]});
    let claims = vec![claim(
        "claim",
        json!({
        "requests": [of("r", "configured"), of("s", "configured"), any],
        "config": [{"opaque": opaque(3)}, {"opaque": opaque(4), "requests": ["s"]},
            {"opaque": opaque(5), "requests": ["t/x"]},
            {"opaque": opaque(6), "requests": ["t/y"]}]}),
    )];
    let found = get(vec![own("p", abc())], &[], claims).expect("devices");
    let config = found[0].devices.as_ref().map(|devices| json!(devices.config));
    assert_eq!(
        config,
        Some(json!([
            {"source": "FromClass", "requests": ["r", "s"], "opaque": opaque(1)},
            {"source": "FromClass", "requests": ["r", "s"], "opaque": opaque(2)},
            {"source": "FromClaim", "opaque": opaque(3)},
            {"source": "FromClaim", "requests": ["s"], "opaque": opaque(4)},
            {"source": "FromClaim", "requests": ["t/x"], "opaque": opaque(5)},
        ]))
    );
}

#[test]
fn a_search_that_takes_too_long_ends() {
    let odd = |n: usize| json!({"name": format!("x{n:02}"), "attributes": {"n": {"int": n}}});
    let mut offers = Offers::default();
    let devices: Vec<Value> = (0..40).map(odd).collect();
    offers.set(Slice::read(&read(own("p", json!(devices))), false));
    // All combinations of twenty of forty devices.
    let claims = vec![claim(
        "claim",
        json!({"requests": [exactly("r", json!({"count": 20})),
        exactly("s", json!({"selectors": [{"cel": {"expression": "false"}}]}))]}),
    )];
    let looks = std::cell::Cell::new(0);
    let is_late = || {
        looks.set(looks.get() + 1);
        looks.get() > 3
    };
    assert_eq!(within(&offers, &Usage::default(), claims, &is_late), Err(AllocationFailure::Late));
}
