//! Pods with ResourceClaims, from the missing claim to the binding.

use k8s_openapi::api::resource::v1::ResourceClaim;
use pintle_api_types::key::ObjectKey;
use serde_json::{Value, json};

use super::tests::{
    at, bound, condition, decide, deliver_lists, node, scheduler_with, with, without_second_look,
};
use super::*;
use crate::groups::{GroupGates, Groups};
use crate::plugins::dynamicresources::ready;
use crate::pod_fields::PodRef;
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

pub(super) fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).expect("an object of its kind"))
}

pub(super) fn class() -> WatchedObject {
    let selector = json!([{"cel": {"expression": "device.driver == 'd.example'"}}]);
    WatchedObject::DeviceClass(read(
        json!({"metadata": {"name": "gpu"}, "spec": {"selectors": selector}}),
    ))
}

/// The devices of a node.
pub(super) fn slice(node: &str, devices: &[&str]) -> WatchedObject {
    let devices: Vec<Value> = devices.iter().map(|name| json!({"name": name})).collect();
    WatchedObject::ResourceSlice(read(json!({
        "metadata": {"name": format!("slice-{node}")},
        "spec": {"driver": "d.example", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    })))
}

fn claim_value(name: &str, version: u32) -> Value {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "resourceVersion": version.to_string()},
        "spec": {"devices": {"requests": [request]}},
    })
}

pub(super) fn claim(name: &str) -> WatchedObject {
    WatchedObject::ResourceClaim(read(claim_value(name, 1)))
}

/// A claim with a device of a node, and these consumers.
pub(super) fn has(
    name: &str,
    version: u32,
    node: &str,
    device: &str,
    users: &[&str],
) -> WatchedObject {
    let mut value = claim_value(name, version);
    let result = json!({"driver": "d.example", "pool": node, "device": device, "request": "r"});
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let users: Vec<Value> =
        users.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
    value["status"] = json!({
        "allocation": {"devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}},
        "reservedFor": users,
    });
    WatchedObject::ResourceClaim(read(value))
}

/// A pod that uses a claim.
pub(super) fn user(name: &str, claim: &str) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": claim}]);
    })
}

/// The first reservation, with its number.
pub(super) fn reserves(commands: &[Command]) -> Option<(PodRef, u64, Vec<Reserve>)> {
    commands.iter().find_map(|command| match command {
        Command::ReserveDevices { pod, number, claims, .. } => {
            Some((pod.clone(), *number, claims.clone()))
        }
        _ => None,
    })
}

/// The claims of a reservation as the API would return them.
fn written(claims: &[Reserve], pod: &PodRef) -> Vec<ResourceClaim> {
    let one = |reserve: &Reserve| {
        let mut claim = (*reserve.claim).clone();
        let status = claim.status.get_or_insert_default();
        if let Some(allocation) = &reserve.allocation {
            status.allocation = Some(allocation.clone());
        }
        let user = json!({"resource": "pods", "name": pod.key.name(), "uid": &*pod.uid});
        let user = serde_json::from_value(user).expect("a user");
        status.reserved_for.get_or_insert_default().push(user);
        let version = claim.metadata.resource_version.take().unwrap_or_default();
        let version: u64 = version.parse().expect("a number");
        claim.metadata.resource_version = Some((version + 10).to_string());
        claim
    };
    claims.iter().map(one).collect()
}

pub(super) fn answer(
    scheduler: &mut Scheduler,
    (pod, number, claims): &(PodRef, u64, Vec<Reserve>),
    now: u64,
) -> Vec<Command> {
    let claims = written(claims, pod);
    let reserved =
        ReservationResult { pod: pod.clone(), number: *number, claims, error: None, made: None };
    scheduler.devices_reserved(reserved, at(now));
    scheduler.take_commands()
}

pub(super) fn devices_of(claims: &[Reserve]) -> Vec<String> {
    let results = claims.iter().filter_map(|reserve| reserve.allocation.as_ref()?.devices.as_ref());
    let results = results.flat_map(|devices| devices.results.iter().flatten());
    results.map(|result| format!("{}/{}", result.pool, result.device)).collect()
}

#[test]
fn pod_is_bound_to_the_node_that_has_its_device() {
    let things = vec![
        class(),
        node("a", "4"),
        node("b", "4"),
        slice("b", &["g0"]),
        claim("c"),
        user("p", "c"),
    ];
    let mut scheduler = scheduler_with(things);
    let commands = decide(&mut scheduler, 0);
    assert!(commands.iter().all(|command| bound(command).is_none()), "not before it is reserved");
    let asked = reserves(&commands).expect("it is reserved");
    assert_eq!(devices_of(&asked.2), ["b/g0"]);
    let commands = answer(&mut scheduler, &asked, 1);
    let (pod, node) = commands.iter().find_map(bound).expect("it is bound");
    assert_eq!((pod.key.as_str(), &*node), ("default/p", "b"));
    scheduler.ended(&pod, &node, BindingResult::Bound, at(1));
    // The device is allocated: no other pod gets it before it is released.
    let _ = scheduler.take_commands();
    scheduler.handle(WatchEvent::Set(claim("other")), at(2));
    scheduler.handle(WatchEvent::Set(user("q", "other")), at(2));
    let commands = decide(&mut scheduler, 2);
    let why = "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, \
        preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), why.to_owned())));
    let mut free = claim_value("c", 20);
    free["status"] = json!({});
    scheduler.handle(WatchEvent::Set(WatchedObject::ResourceClaim(read(free))), at(3));
    let commands = decide(&mut scheduler, 5);
    assert_eq!(devices_of(&reserves(&commands).expect("now it has one").2), ["b/g0"]);
}

#[test]
fn pod_is_gated_until_its_claim_exists() {
    let things = vec![class(), node("a", "4"), slice("a", &["g0"]), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    assert_eq!(decide(&mut scheduler, 0), []);
    assert_eq!(scheduler.count(QueuePlace::Gated), 1);
    scheduler.handle(WatchEvent::Set(claim("c")), at(1));
    assert!(reserves(&decide(&mut scheduler, 1)).is_some(), "it has come");
}

#[test]
fn a_claim_that_is_made_for_another_pod_is_none() {
    let from_template = |uid: &str| {
        with("p", "1", |pod| {
            pod["metadata"]["uid"] = json!(uid);
            pod["spec"]["resourceClaims"] =
                json!([{"name": "c", "resourceClaimTemplateName": "t"}]);
            pod["status"] = json!({"resourceClaimStatuses":
                [{"name": "c", "resourceClaimName": "made"}]});
        })
    };
    let made_for = |uid: &str, version| {
        let mut value = claim_value("made", version);
        value["metadata"]["uid"] = json!(format!("for-{uid}"));
        value["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
            "name": "p", "uid": uid, "controller": true}]);
        WatchedObject::ResourceClaim(read(value))
    };
    let things = vec![class(), node("a", "4"), slice("a", &["g0"])];
    let mut scheduler = scheduler_with(things);
    scheduler.handle(WatchEvent::Set(made_for("before", 1)), at(0));
    scheduler.handle(WatchEvent::Set(from_template("now")), at(0));
    assert_eq!((decide(&mut scheduler, 0), scheduler.count(QueuePlace::Gated)), (vec![], 1));
    scheduler.handle(WatchEvent::Set(made_for("now", 2)), at(1));
    assert!(reserves(&decide(&mut scheduler, 1)).is_some(), "it is its own");
}

#[test]
fn pod_with_an_allocated_claim_is_bound_to_the_node_of_the_claim() {
    let things = vec![
        class(),
        node("a", "4"),
        node("b", "4"),
        has("c", 1, "b", "g0", &["p", "other"]),
        user("p", "c"),
    ];
    let mut scheduler = scheduler_with(things);
    // The claim is reserved already: there is nothing to write, and the result follows at once.
    let commands = decide(&mut scheduler, 0);
    let asked = reserves(&commands).expect("asked for");
    assert_eq!(asked.2, []);
    let commands = answer(&mut scheduler, &asked, 0);
    assert_eq!(&*commands.iter().find_map(bound).expect("bound").1, "b");
}

#[test]
fn claim_used_by_no_other_pod_is_deallocated_if_its_node_is_unavailable() {
    let things = vec![class(), node("a", "4"), has("c", 1, "gone", "g0", &["p"]), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let commands = decide(&mut scheduler, 0);
    let gives = |command: &Command| match command {
        Command::GiveDevicesBack { claim, .. } => claim.metadata.name.clone(),
        _ => None,
    };
    assert_eq!(commands.iter().find_map(gives).as_deref(), Some("c"));
    let why = "0/1 nodes are available: 1 resourceclaim not available on the node. deallocation \
        of ResourceClaim completed, preemption: 0/1 nodes are available: 1 Preemption is not \
        helpful for scheduling.";
    assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), why.to_owned())));
}

#[test]
fn devices_are_free_again_after_a_failed_reservation_write() {
    let things = vec![class(), node("a", "4"), slice("a", &["g0"]), claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let (pod, number, _) = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    let error = Some("claim default/c got deleted in the meantime".to_owned());
    let reserved = ReservationResult { pod, number, claims: Vec::new(), error, made: None };
    scheduler.devices_reserved(reserved, at(1));
    let commands = scheduler.take_commands();
    let (reason, why) = condition(&commands).expect("a condition");
    assert_eq!(reason, "SchedulerError");
    assert!(why.ends_with("\"DynamicResources\": claim default/c got deleted in the meantime"));
    assert_eq!(scheduler.assumed(), 0);
    let again = reserves(&decide(&mut scheduler, 20)).expect("it is tried again");
    assert_eq!(devices_of(&again.2), ["a/g0"]);
}

/// Upstream's Unreserve drops the other pod's pending allocation, and may allocate one device to
/// two claims.
// k8s: dynamicresources.go Unreserve, dra_manager.go MaybeRemoveClaimPendingAllocation
#[test]
fn failed_binding_does_not_release_a_claim_reserved_by_then_for_another_pod() {
    let things = vec![class(), node("a", "9"), slice("a", &["g0"]), claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("it is reserved");
    let (pod, node) = answer(&mut scheduler, &asked, 1).iter().find_map(bound).expect("bound");
    // The claim loses its device before the result comes, and another pod uses it.
    let mut free = claim_value("c", 20);
    free["status"] = json!({});
    for thing in
        [WatchedObject::ResourceClaim(read(free)), claim("d"), user("q", "c"), user("r", "d")]
    {
        scheduler.handle(WatchEvent::Set(thing), at(2));
    }
    let (of, _, claims) = reserves(&decide(&mut scheduler, 2)).expect("it is reserved again");
    assert_eq!((&*of.uid, devices_of(&claims)), ("q", vec!["a/g0".to_owned()]));
    scheduler.ended(&pod, &node, BindingResult::Failed("no".to_owned()), at(3));
    assert_eq!(reserves(&decide(&mut scheduler, 60)), None, "the device is being given to c");
}

/// No other pod gets devices that are being written for a deleted pod.
#[test]
fn devices_of_a_deleted_pod_are_released_after_their_reservation_ended() {
    let things = vec![class(), node("a", "4"), slice("a", &["g0"]), claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    scheduler.handle(WatchEvent::Gone(user("p", "c")), at(1));
    scheduler.handle(WatchEvent::Set(claim("d")), at(1));
    scheduler.handle(WatchEvent::Set(user("q", "d")), at(1));
    assert!(reserves(&decide(&mut scheduler, 1)).is_none(), "it may still be given away");
    let commands = answer(&mut scheduler, &asked, 2);
    let released = |command: &Command| match command {
        Command::ReleaseDevices { pod, claims, .. } => Some((pod.uid.clone(), claims.len())),
        _ => None,
    };
    assert_eq!(commands.iter().find_map(released), Some(("p".into(), 1)));
    // The claim has the device now, for any pod.
    assert!(reserves(&decide(&mut scheduler, 3)).is_none(), "it was given away");
    scheduler.handle(WatchEvent::Gone(claim("c")), at(4));
    let key = ObjectKey::new("default", "c");
    scheduler.handle(WatchEvent::Lost(WatchedKind::ResourceClaim, key), at(4));
    assert!(reserves(&decide(&mut scheduler, 20)).is_some(), "it is free");
}

/// A device with binding conditions.
pub(super) fn conditional() -> WatchedObject {
    let mut offered = json!({
        "metadata": {"name": "s"},
        "spec": {"driver": "d.example", "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}},
    });
    offered["spec"]["devices"] = json!([{"name": "g0", "bindsToNode": true,
        "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}]);
    WatchedObject::ResourceSlice(read(offered))
}

/// The claim with that device, with this condition.
fn said(claim: &ResourceClaim, version: &str, kind: &str) -> ResourceClaim {
    let mut claim = claim.clone();
    claim.metadata.resource_version = Some(version.to_owned());
    let condition = json!({"type": kind, "status": "True", "reason": "R", "message": "m",
        "lastTransitionTime": "2024-01-01T00:00:00Z"});
    let devices = json!([{"driver": "d.example", "pool": "a", "device": "g0",
        "conditions": [condition]}]);
    let status = claim.status.get_or_insert_default();
    status.devices = serde_json::from_value(devices).expect("devices");
    claim
}

/// Results and durations of waits for conditions, for pods with one device.
pub(super) fn waits(scheduler: &mut Scheduler) -> Vec<(&'static str, u64)> {
    let one = |fact| match fact {
        Fact::Prepared { profile, status, took, devices } => {
            assert_eq!((profile, devices), (0, vec![("d.example".to_owned(), true)]));
            Some((status, took.as_secs()))
        }
        _ => None,
    };
    scheduler.take_facts().into_iter().filter_map(one).collect()
}

#[test]
fn a_pod_waits_until_its_devices_are_ready() {
    let things = vec![class(), node("a", "4"), conditional(), claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    let commands = answer(&mut scheduler, &asked, 1);
    assert!(commands.iter().all(|command| bound(command).is_none()), "not ready");
    let told = commands.iter().any(|command| match command {
        Command::RecordEvent(note) => note.reason == "BindingConditionsPending",
        _ => false,
    });
    assert!(told, "the pod gets an event");
    assert_eq!(waits(&mut scheduler), [], "it has not ended");
    let mut claim = written(&asked.2, &asked.0).remove(0);
    let ready = said(&claim, "30", "Ready");
    scheduler.handle(WatchEvent::Set(WatchedObject::ResourceClaim(Box::new(ready))), at(4));
    let commands = scheduler.take_commands();
    assert!(commands.iter().any(|command| bound(command).is_some()), "ready");
    assert_eq!(waits(&mut scheduler), [("success", 3)]);
    // A claim with a failed device.
    claim.metadata.resource_version = Some("11".to_owned());
    let broken = said(&claim, "31", "Broken");
    let failed = ready::readiness(&broken);
    let why = "device binding failed: claim=c, reason=R, message=\"m\"";
    assert_eq!(failed, ready::Readiness::Failed(why.to_owned()));
}

#[test]
fn failed_device_or_deleted_claim_ends_the_wait_with_an_error() {
    let broken: fn(&ResourceClaim) -> WatchEvent = |claim| {
        WatchEvent::Set(WatchedObject::ResourceClaim(Box::new(said(claim, "30", "Broken"))))
    };
    let gone: fn(&ResourceClaim) -> WatchEvent =
        |claim| WatchEvent::Gone(WatchedObject::ResourceClaim(Box::new(claim.clone())));
    for (change, status, why) in [
        (broken, "failure", "device binding failed: claim=c, reason=R, message=\"m\""),
        (gone, "error", "could not find ResourceClaim \"default/c\""),
    ] {
        let things = vec![class(), node("a", "4"), conditional(), claim("c"), user("p", "c")];
        let mut scheduler = scheduler_with(things);
        let asked = reserves(&decide(&mut scheduler, 0)).expect("asked for");
        let _ = answer(&mut scheduler, &asked, 1);
        let claim = written(&asked.2, &asked.0).remove(0);
        scheduler.handle(change(&claim), at(8));
        let (reason, text) = condition(&scheduler.take_commands()).expect("a condition");
        let want = format!("running PreBind plugin \"DynamicResources\": {why}");
        assert_eq!((&*reason, text), ("SchedulerError", want));
        assert_eq!(waits(&mut scheduler), [(status, 7)]);
    }
}

#[test]
fn devices_without_conditions_are_not_waited_for() {
    let things = vec![class(), node("a", "4"), slice("a", &["g0"]), claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    let commands = answer(&mut scheduler, &asked, 1);
    assert!(commands.iter().any(|command| bound(command).is_some()), "it is bound at once");
    assert_eq!(waits(&mut scheduler), []);
}

#[test]
fn devices_that_are_never_ready_are_given_up() {
    let things = vec![class(), node("a", "4"), conditional(), claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    let _ = answer(&mut scheduler, &asked, 1);
    assert_eq!(scheduler.next_due(false), Some(at(601)), "the time that they have");
    assert_eq!(scheduler.next_due(true), None, "no deadline while an extender is called");
    assert!(!scheduler.decide_next(at(601)));
    let commands = scheduler.take_commands();
    let (_, why) = condition(&commands).expect("a condition");
    assert!(why.contains("device binding timeout"), "{why}");
    assert_eq!(waits(&mut scheduler), [("timeout", 600)]);
    let is_released = |command: &Command| matches!(command, Command::ReleaseDevices { .. });
    assert!(commands.iter().any(is_released), "it uses them no longer");
}

#[test]
fn devices_that_a_claim_was_given_before_are_given_up_before() {
    let things = vec![class(), node("a", "4"), conditional(), claim("c"), user("p", "c")];
    // A timeout takes effect at upstream's next check, one every five seconds.
    for (given, until, why) in
        [(302, 1 + 300, "claim=c"), (700, 1, "claim=c"), (2, 1 + 600, "context deadline exceeded")]
    {
        let mut scheduler = scheduler_with(things.clone());
        let (pod, number, claims) = reserves(&decide(&mut scheduler, 0)).expect("asked for");
        let mut claims = written(&claims, &pod);
        let since = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(given);
        let allocation = claims[0].status.as_mut().and_then(|status| status.allocation.as_mut());
        allocation.expect("devices").allocation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(since));
        let reserved = ReservationResult { pod, number, claims, error: None, made: None };
        scheduler.devices_reserved(reserved, at(1));
        if until > 1 {
            assert_eq!(condition(&scheduler.take_commands()), None);
            assert_eq!(scheduler.next_due(false), Some(at(until)));
            scheduler.decide_next(at(until));
        }
        let (_, said) = condition(&scheduler.take_commands()).expect("a condition");
        assert!(said.ends_with(&format!("device binding timeout: {why}")), "{said}");
        assert_eq!(waits(&mut scheduler), [("timeout", until - 1)]);
    }
}

#[test]
fn a_claim_that_is_ready_does_not_end_the_wait_for_another() {
    let mut offered = json!({
        "metadata": {"name": "s"},
        "spec": {"driver": "d.example", "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}},
    });
    let device = |name| json!({"name": name, "bindsToNode": true, "bindingConditions": ["Ready"]});
    offered["spec"]["devices"] = json!([device("g0"), device("g1")]);
    let both = with("p", "1", |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "c"},
            {"name": "d", "resourceClaimName": "d"}]);
    });
    let slice = WatchedObject::ResourceSlice(read(offered));
    let mut scheduler =
        scheduler_with(vec![class(), node("a", "4"), slice, claim("c"), claim("d"), both]);
    let (pod, number, claims) = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    let first = devices_of(&claims[..1]).remove(0);
    let mut claims = written(&claims, &pod);
    let ready = json!([{"driver": "d.example", "pool": "a",
        "device": first.trim_start_matches("a/"),
        "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m",
            "lastTransitionTime": "2024-01-01T00:00:00Z"}]}]);
    for (claim, given) in claims.iter_mut().zip([3600, 2]) {
        let since = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(given);
        let status = claim.status.as_mut().expect("a status");
        status.allocation.as_mut().expect("devices").allocation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(since));
        if given > 60 {
            status.devices = serde_json::from_value(ready.clone()).expect("devices");
        }
    }
    let reserved = ReservationResult { pod, number, claims, error: None, made: None };
    scheduler.devices_reserved(reserved, at(1));
    assert_eq!(condition(&scheduler.take_commands()), None);
    assert_eq!(scheduler.next_due(false), Some(at(601)));
}

#[test]
fn devices_that_are_given_back_meanwhile_are_not_waited_for() {
    let offered = json!({
        "metadata": {"name": "s"},
        "spec": {"driver": "d.example", "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "g0", "bindingConditions": ["Ready"],
                "bindingFailureConditions": ["Broken"]}]},
    });
    let slice = WatchedObject::ResourceSlice(read(offered));
    let mut scheduler =
        scheduler_with(vec![class(), node("a", "4"), slice, claim("c"), user("p", "c")]);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    let _ = answer(&mut scheduler, &asked, 1);
    let mut given_back = written(&asked.2, &asked.0).remove(0);
    given_back.metadata.resource_version = Some("30".to_owned());
    given_back.status = None;
    scheduler.handle(WatchEvent::Set(WatchedObject::ResourceClaim(Box::new(given_back))), at(2));
    let (_, why) = condition(&scheduler.take_commands()).expect("a condition");
    assert!(why.ends_with("the devices of claim c were given back"), "{why}");
    scheduler.devices_released(&"p".into(), Vec::new(), at(3));
    let again = reserves(&decide(&mut scheduler, 20)).expect("it looks for others at once");
    assert_eq!(devices_of(&again.2), ["a/g0"]);
}

/// A class that offers an extended resource, and a pod that requests two of it.
fn offered() -> (WatchedObject, WatchedObject) {
    let class = WatchedObject::DeviceClass(read(json!({"metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": "x.example/gpu"}})));
    let pod = with("p", "1", |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"]["x.example/gpu"] = json!("2");
    });
    (class, pod)
}

#[test]
fn a_claim_is_made_where_no_device_plugin_offers_the_resource() {
    let (class, pod) = offered();
    let two = ["g0", "g1"];
    let things = vec![class, node("a", "4"), node("b", "4"), slice("b", &two), pod];
    let mut scheduler = scheduler_with(things);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("it is reserved");
    assert_eq!(devices_of(&asked.2), ["b/g0", "b/g1"]);
    let [reserve] = &asked.2[..] else { panic!("{:?}", asked.2) };
    assert_eq!(reserve.claim.metadata.generate_name.as_deref(), Some("p-extended-resources-"));
    assert_eq!(reserve.mappings[0].request_name, "container-0-request-1");
    // Created, but the pod's status was not written: the claim is deleted.
    let mut made = written(&[unversioned(reserve)], &asked.0).remove(0);
    made.metadata.name = Some("p-extended-resources-1".to_owned());
    made.metadata.uid = Some("made".to_owned());
    let error = Some("no answer".to_owned());
    let (pod, number) = (asked.0.clone(), asked.1);
    let reserved = ReservationResult { pod, number, claims: vec![made.clone()], error, made: None };
    scheduler.devices_reserved(reserved, at(1));
    let released = |command: &Command| match command {
        Command::ReleaseDevices { claims, .. } => claims[0].metadata.name.clone(),
        _ => None,
    };
    let commands = scheduler.take_commands();
    assert_eq!(commands.iter().find_map(released), made.metadata.name);
    // It still exists when the pod is retried.
    scheduler.devices_released(&asked.0.uid, Vec::new(), at(2));
    let commands = decide(&mut scheduler, 20);
    let (_, why) = condition(&commands).expect("a condition");
    assert!(why.contains("2 cannot schedule extended resource claim"), "{why}");
    assert!(why.contains("deletion of ResourceClaim completed"), "{why}");
    scheduler.handle(WatchEvent::Gone(WatchedObject::ResourceClaim(Box::new(made))), at(21));
    scheduler.gave_back(&asked.0.uid, true, Vec::new(), at(21));
    assert!(reserves(&decide(&mut scheduler, 40)).is_some(), "the claim is created again");
}

/// A claim with a version, so that the API can return the next.
fn unversioned(reserve: &Reserve) -> Reserve {
    let mut claim = (*reserve.claim).clone();
    claim.metadata.resource_version = Some("1".to_owned());
    Reserve { claim: Rc::new(claim), ..reserve.clone() }
}

#[test]
fn extended_resource_of_a_device_plugin_is_used_instead_of_dra_devices() {
    let (class, pod) = offered();
    let has = |name: &str, gpus: &str| {
        WatchedObject::Node(read(json!({"metadata": {"name": name}, "status": {"allocatable":
            {"cpu": "4", "memory": "8Gi", "pods": "10", "x.example/gpu": gpus}}})))
    };
    // The device plugin offers too few; DRA devices serve only nodes without its resource.
    let few = vec![class.clone(), has("a", "1"), slice("a", &["g0", "g1"]), pod.clone()];
    let commands = decide(&mut scheduler_with(few), 0);
    let (_, why) = condition(&commands).expect("a condition");
    assert!(why.contains("1 Insufficient x.example/gpu"), "{why}");
    let enough = vec![class, has("a", "2"), slice("a", &["g0", "g1"]), pod];
    let commands = decide(&mut scheduler_with(enough), 0);
    assert!(commands.iter().any(|command| bound(command).is_some()), "nothing has to be made");
}

#[test]
fn late_reservation_result_does_not_restore_a_deleted_claim() {
    let things = vec![class(), slice("n", &["g"]), node("n", "4"), claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let asked = reserves(&decide(&mut scheduler, 0)).expect("its claim is reserved");
    scheduler.handle(WatchEvent::Gone(claim("c")), at(1));
    answer(&mut scheduler, &asked, 2);
    assert!(scheduler.cache.devices.claim(&ObjectKey::new("default", "c")).is_none());
    // Its device is free for the next claim.
    scheduler.handle(WatchEvent::Set(claim("d")), at(3));
    scheduler.handle(WatchEvent::Set(user("q", "d")), at(3));
    let (_, _, claims) = reserves(&decide(&mut scheduler, 3)).expect("the device is free");
    assert_eq!(devices_of(&claims), ["n/g"]);
}

/// A scheduler that died reserved it: deciding the group does not revert that.
#[test]
fn pod_scheduled_with_its_group_keeps_an_existing_claim_reservation() {
    let group = json!({"metadata": {"name": "g", "namespace": "default", "uid": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}});
    let pod = with("p", "1", |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "c"}]);
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
    });
    let claim = has("c", 2, "n", "g0", &["p"]);
    let things = [node("n", "4"), class(), slice("n", &["g0"]), claim, pod];
    let gates = GroupGates { gangs: true, ..GroupGates::default() };
    let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    let mut scheduler = scheduler.with_groups(Groups::new(gates));
    scheduler.handle(WatchEvent::Complete(WatchedKind::PodGroup), at(0));
    scheduler.handle(WatchEvent::Set(WatchedObject::PodGroup(read(group))), at(0));
    deliver_lists(&mut scheduler, &things);
    let commands = decide(&mut scheduler, 0);
    let releases = |command: &Command| matches!(command, Command::ReleaseDevices { .. });
    assert!(!commands.iter().any(releases), "{commands:?}");
    let (of, _, claims) = reserves(&commands).expect("it goes on to be bound");
    assert_eq!((&*of.uid, claims.len()), ("p", 0), "all is reserved already");
}
