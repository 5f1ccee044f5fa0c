//! Syncs of namespaces against a small cluster of closures.
// k8s: pkg/controller/namespace/deletion/namespaced_resources_deleter_test.go

use std::collections::BTreeMap;

use pintle_api_types::kind::{CONFIG_MAPS, DEPLOYMENTS, NODES, PODS, SERVICES};
use pintle_api_types::request::Answer;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Driven, drive};
use pintle_controllers_core::tables::{Decoded, DiscoveredKind, WatchEvent};

use super::*;
use crate::testing::{applied, at, set};

const ALL: &[&str] = &["get", "list", "watch", "delete", "deletecollection", "create"];

fn found(kind: Kind, verbs: &[&str]) -> DiscoveredKind {
    let verbs = verbs.iter().map(|verb| Symbol::of(verb)).collect();
    DiscoveredKind { kind, verbs, is_preferred: true }
}

fn snapshot() -> TerminatingNamespace {
    let kinds = vec![
        found(PODS, ALL),
        found(SERVICES, &["list", "delete"]),
        found(DEPLOYMENTS, ALL),
        found(NODES, ALL),
    ];
    let discovery = DiscoveredKinds { kinds, ..DiscoveredKinds::default() };
    let (key, discovery) = (ObjectKey::new("", "n"), Rc::new(discovery));
    TerminatingNamespace { key, discovery, is_discovered: true, early: Vec::new() }
}

fn namespace(phase: &str, finalizers: &[&str]) -> Value {
    json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"finalizers": finalizers}, "status": {"phase": phase}})
}

/// A cluster: its namespace, what lists find after deletions, and errors by kind.
#[derive(Default)]
struct NamespaceCluster {
    namespace: Value,
    lists: BTreeMap<Kind, Value>,
    errors: BTreeMap<Kind, ApiError>,
    conflicts: usize,
}

impl NamespaceCluster {
    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Read { .. } => Ok(self.namespace.clone()),
            Request::Replace { .. } if self.conflicts > 0 => {
                self.conflicts -= 1;
                Err(ApiError { code: 409, reason: "Conflict".into(), ..ApiError::default() })
            }
            Request::Replace { target, body } => {
                if target.sub == "status" {
                    self.namespace["status"] = body["status"].clone();
                } else {
                    self.namespace["spec"] = body["spec"].clone();
                }
                Ok(self.namespace.clone())
            }
            Request::List { kind, .. } => match self.errors.get(kind) {
                Some(error) => Err(error.clone()),
                None => {
                    let items = self.lists.get(kind).cloned().unwrap_or(json!([]));
                    Ok(json!({"items": items}))
                }
            },
            Request::DeleteCollection { kind, .. } => {
                self.errors.get(kind).map_or(Ok(Value::Null), |error| Err(error.clone()))
            }
            Request::Delete { .. } => Ok(Value::Null),
            other => panic!("{other:?}"),
        }
    }

    fn condition(&self, kind: &str) -> (String, String, String) {
        let conditions = self.namespace["status"]["conditions"].as_array().expect("conditions");
        let found = conditions.iter().find(|condition| condition["type"] == kind);
        let text = |field: &str| {
            found.expect("the condition")[field].as_str().unwrap_or_default().to_owned()
        };
        (text("status"), text("reason"), text("message"))
    }
}

fn terminating() -> NamespaceCluster {
    NamespaceCluster {
        namespace: namespace("Terminating", &["kubernetes"]),
        ..NamespaceCluster::default()
    }
}

fn synced(
    cluster: &mut NamespaceCluster,
    snapshot: &TerminatingNamespace,
    seconds: u64,
) -> Driven<()> {
    drive::<Namespaces>(snapshot, at(seconds).wall, |request| cluster.answer(request))
}

fn failure(driven: Driven<()>) -> String {
    driven.outcome.expect_err("a failure").message
}

#[test]
fn empty_namespace_is_marked_emptied_and_finalized() {
    let mut cluster = terminating();
    cluster.namespace = namespace("Active", &["kubernetes", "other"]);
    let driven = synced(&mut cluster, &snapshot(), 10);
    assert!(driven.outcome.expect("no failure").again.is_none());
    let text: Vec<_> = driven.requests.iter().map(describe).collect();
    assert_eq!(
        text,
        [
            "read",
            "replace status",
            "list pods",
            "clear pods",
            "list pods",
            "clear deployments.apps",
            "list services",
            "list services",
            "list deployments.apps",
            "replace status",
            "replace finalize",
        ]
    );
    assert_eq!(cluster.namespace["spec"]["finalizers"], json!(["other"]));
    assert_eq!(cluster.namespace["status"]["phase"], "Terminating");
    let (status, reason, _) = cluster.condition("NamespaceContentRemaining");
    assert_eq!((&*status, &*reason), ("False", "ContentRemoved"));
}

fn describe(request: &Request) -> String {
    match request {
        Request::Read { .. } => "read".into(),
        Request::Replace { target, .. } => format!("replace {}", target.sub),
        Request::List { kind, .. } => format!("list {kind:?}"),
        Request::DeleteCollection { kind, .. } => format!("clear {kind:?}"),
        Request::Delete { target, .. } => format!("delete {}", target.key),
        other => format!("{other:?}"),
    }
}

#[test]
fn namespace_that_is_active_or_finalized_is_left_alone() {
    let mut active = namespace("Active", &["kubernetes"]);
    active["metadata"].as_object_mut().expect("metadata").remove("deletionTimestamp");
    for namespace in [active, namespace("Terminating", &[])] {
        let mut cluster = NamespaceCluster { namespace, ..NamespaceCluster::default() };
        assert_eq!(synced(&mut cluster, &snapshot(), 10).requests.len(), 1);
    }
}

#[test]
fn conflict_is_retried_upon_the_newest_state() {
    let mut cluster = terminating();
    cluster.namespace = namespace("Active", &["kubernetes"]);
    cluster.conflicts = 1;
    let driven = synced(&mut cluster, &snapshot(), 10);
    assert!(driven.outcome.is_ok());
    let texts: Vec<_> = driven.requests[..4].iter().map(describe).collect();
    assert_eq!(texts, ["read", "replace status", "read", "replace status"]);
    assert_eq!(cluster.namespace["spec"]["finalizers"], json!([]));
}

#[test]
fn pods_are_deleted_before_other_kinds_and_absent_from_the_content_condition() {
    let mut cluster = terminating();
    let pod = json!({"metadata": {"name": "p", "finalizers": ["a/b"]},
        "spec": {"terminationGracePeriodSeconds": 30}});
    cluster.lists.insert(PODS, json!([pod]));
    let driven = synced(&mut cluster, &snapshot(), 10);
    let again = driven.outcome.expect("no failure").again;
    assert_eq!(again, Some(Duration::from_secs(16)));
    assert!(!driven.requests.iter().any(|request| describe(request).contains("services")));
    assert_eq!(cluster.condition("NamespaceContentRemaining").0, "False");
    assert_eq!(cluster.condition("NamespaceFinalizersRemaining").0, "False");
    assert!(driven.reasons.iter().any(|reason| reason.contains("pods. has 1 resource")));
}

#[test]
fn remaining_objects_and_finalizers_are_counted() {
    let mut cluster = terminating();
    let deployment = json!({"metadata": {"name": "d", "finalizers": ["x", "y"]}});
    cluster.lists.insert(DEPLOYMENTS, json!([deployment, deployment]));
    let driven = synced(&mut cluster, &snapshot(), 10);
    assert_eq!(driven.outcome.expect("no failure").again, Some(Duration::from_secs(8)));
    let (status, reason, message) = cluster.condition("NamespaceContentRemaining");
    assert_eq!((&*status, &*reason), ("True", "SomeResourcesRemain"));
    assert_eq!(message, "Some resources are remaining: deployments.apps has 2 resource instances");
    let (_, reason, message) = cluster.condition("NamespaceFinalizersRemaining");
    assert_eq!(reason, "SomeFinalizersRemain");
    assert_eq!(
        message,
        "Some content in the namespace has finalizers remaining: x in 2 resource instances, y in \
         2 resource instances"
    );
}

#[test]
fn objects_that_remain_without_a_reason_are_a_failure() {
    let mut cluster = terminating();
    cluster.lists.insert(SERVICES, json!([{"metadata": {"name": "s"}}]));
    let driven = synced(&mut cluster, &snapshot(), 10);
    assert!(driven.requests.iter().any(|request| describe(request) == "delete n/s"));
    let expected = "unexpected items still remain in namespace: n for gvr: /v1, Resource=services";
    assert_eq!(failure(driven), expected);
    let (_, reason, message) = cluster.condition("NamespaceDeletionContentFailure");
    assert_eq!(reason, "ContentDeletionFailed");
    assert_eq!(message, format!("Failed to delete all resource types, 1 remaining: {expected}"));
}

#[test]
fn unreachable_group_keeps_the_namespace_but_other_content_is_deleted() {
    let mut cluster = terminating();
    let mut snapshot = snapshot();
    let discovery = Rc::get_mut(&mut snapshot.discovery).expect("alone");
    discovery.failed_groups.insert("metrics.k8s.io/v1beta1".into(), "down".into());
    let driven = synced(&mut cluster, &snapshot, 10);
    assert!(driven.requests.iter().any(|request| describe(request) == "clear deployments.apps"));
    assert!(!driven.requests.iter().any(|request| describe(request).contains("finalize")));
    let expected =
        "unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: down";
    assert_eq!(failure(driven), expected);
    let (status, reason, message) = cluster.condition("NamespaceDeletionDiscoveryFailure");
    assert_eq!((&*status, &*reason), ("True", "DiscoveryFailed"));
    assert_eq!(message, format!("Discovery failed for some groups, 1 failing: {expected}"));
}

// k8s: namespaced_resources_deleter_test.go TestDeleteEncounters404
#[test]
fn kind_that_returns_404_counts_as_empty() {
    let mut cluster = terminating();
    let gone = ApiError { code: 404, reason: "NotFound".into(), ..ApiError::default() };
    cluster.errors.insert(DEPLOYMENTS, gone);
    let driven = synced(&mut cluster, &snapshot(), 10);
    assert!(driven.outcome.is_ok());
    let texts = driven.requests.iter().map(describe);
    let texts: Vec<_> = texts.filter(|text| text.contains("deployments")).collect();
    let list = "list deployments.apps";
    assert_eq!(texts, ["clear deployments.apps", list, list]);
    assert_eq!(cluster.namespace["spec"]["finalizers"], json!([]));
}

#[test]
fn error_of_a_kind_does_not_stop_other_kinds_and_keeps_the_finalizer() {
    let mut cluster = terminating();
    let error = ApiError { code: 500, message: "webhook".into(), ..ApiError::default() };
    cluster.errors.insert(DEPLOYMENTS, error);
    let driven = synced(&mut cluster, &snapshot(), 10);
    assert!(driven.requests.iter().any(|request| describe(request) == "list services"));
    assert_eq!(failure(driven), "webhook");
    assert_eq!(cluster.namespace["spec"]["finalizers"], json!(["kubernetes"]));
}

// k8s: status_condition_utils_test.go TestUpdateConditions
#[test]
fn condition_keeps_its_transition_time_while_its_status_is_unchanged() {
    let mut cluster = terminating();
    cluster.conflicts = 0;
    cluster.lists.insert(DEPLOYMENTS, json!([{"metadata": {"finalizers": ["x"]}}]));
    synced(&mut cluster, &snapshot(), 10);
    cluster.lists.insert(DEPLOYMENTS, json!([{"metadata": {"finalizers": ["y"]}}]));
    let driven = synced(&mut cluster, &snapshot(), 20);
    let replaced = driven.requests.iter().filter(|r| describe(r) == "replace status").count();
    assert_eq!(replaced, 1);
    let conditions = cluster.namespace["status"]["conditions"].as_array().expect("conditions");
    for condition in conditions {
        assert_eq!(condition["lastTransitionTime"], "2026-01-01T00:00:10Z");
    }
    let driven = synced(&mut cluster, &snapshot(), 30);
    assert!(!driven.requests.iter().any(|request| describe(request) == "replace status"));
}

fn wakes(controller: &mut Namespaces, change: &Change, tables: &Tables, seconds: u64) -> usize {
    let mut wakes = Wakes::default();
    controller.handle_change(change, tables, at(seconds), &mut wakes);
    wakes.waits().count()
}

#[test]
fn deletion_of_the_last_object_of_a_kind_wakes_its_terminating_namespace() {
    let mut tables = applied(Vec::new());
    let mut controller = Namespaces::new(1, true);
    let namespace = namespace("Terminating", &["kubernetes"]).to_string();
    let config_map = |name: &str| {
        let text = json!({"metadata": {"name": name, "namespace": "n"}}).to_string();
        Decoded::only_metadata(CONFIG_MAPS, &text)
    };
    let mut woken = Vec::new();
    let events = [
        set(Decoded::typed(NAMESPACES, &namespace)),
        set(config_map("a")),
        set(config_map("b")),
        WatchEvent::Deleted(config_map("a").expect("metadata")),
        WatchEvent::Deleted(config_map("b").expect("metadata")),
    ];
    for event in events {
        for change in tables.apply(event) {
            woken.push(wakes(&mut controller, &change, &tables, 1));
        }
    }
    assert_eq!(woken, [1, 0, 0, 0, 1]);
    assert_eq!(wakes(&mut controller, &Change::Discovered, &tables, 1), 1);
}

#[test]
fn namespace_is_not_finalized_with_discovery_older_than_its_deletion() {
    let discovered = |seconds| {
        let (kinds, read_at) = (vec![found(PODS, ALL)], Some(at(seconds).instant));
        WatchEvent::Discovered(DiscoveredKinds { kinds, read_at, ..DiscoveredKinds::default() })
    };
    let mut tables = applied(vec![discovered(1)]);
    let mut controller = Namespaces::new(1, false);
    let text = namespace("Terminating", &["kubernetes"]).to_string();
    let changes = tables.apply(set(Decoded::typed(NAMESPACES, &text)));
    assert_eq!(wakes(&mut controller, &changes[0], &tables, 2), 1);
    let (key, after_grace) = (ObjectKey::new("", "n"), at(9));
    let old = controller.snapshot(&key, &tables, after_grace).expect("it is there");
    assert!(failure(synced(&mut terminating(), &old, 9)).contains("since its deletion"));
    assert_eq!(tables.apply(discovered(2)).len(), 0, "the same kinds");
    let new = controller.snapshot(&key, &tables, after_grace).expect("it is there");
    let mut cluster = terminating();
    assert!(synced(&mut cluster, &new, 9).outcome.is_ok());
    assert_eq!(cluster.namespace["spec"]["finalizers"], json!([]));
}

#[test]
fn kind_with_many_objects_is_deleted_before_the_grace_is_over_unless_there_are_pods() {
    let early = || TerminatingNamespace { early: vec![DEPLOYMENTS], ..snapshot() };
    let mut cluster = terminating();
    let driven = synced(&mut cluster, &early(), 1);
    let text: Vec<_> = driven.requests.iter().map(describe).collect();
    assert_eq!(text, ["read", "list pods", "clear deployments.apps"]);
    cluster.lists.insert(PODS, json!([{"metadata": {"name": "p"}}]));
    let driven = synced(&mut cluster, &early(), 1);
    let text: Vec<_> = driven.requests.iter().map(describe).collect();
    assert_eq!(text, ["read", "list pods"]);
}

#[test]
fn namespace_with_many_objects_is_synced_at_once_and_again_after_the_grace() {
    let of = |kind, name: &str| {
        let text = json!({"metadata": {"name": name, "namespace": "n"}}).to_string();
        Decoded::only_metadata(kind, &text)
    };
    for (maps, pods, expected) in [(99, 0, 1), (100, 0, 2), (100, 1, 1)] {
        let discovery =
            DiscoveredKinds { kinds: vec![found(CONFIG_MAPS, ALL)], ..DiscoveredKinds::default() };
        let mut tables = applied(vec![WatchEvent::Discovered(discovery)]);
        for at in 0..maps {
            tables.apply(set(of(CONFIG_MAPS, &format!("m{at}"))));
        }
        tables.apply(WatchEvent::ListComplete(CONFIG_MAPS));
        for _ in 0..pods {
            let pod = json!({"metadata": {"name": "p", "namespace": "n"}}).to_string();
            tables.apply(set(Decoded::typed(PODS, &pod)));
        }
        let mut controller = Namespaces::new(1, true);
        let text = namespace("Terminating", &["kubernetes"]).to_string();
        let changes = tables.apply(set(Decoded::typed(NAMESPACES, &text)));
        assert_eq!(wakes(&mut controller, &changes[0], &tables, 1), expected, "{maps} {pods}");
        let key = ObjectKey::new("", "n");
        let is_early = |seconds, controller: &mut Namespaces| {
            let snapshot = controller.snapshot(&key, &tables, at(seconds)).expect("a namespace");
            !snapshot.early.is_empty()
        };
        assert_eq!(is_early(2, &mut controller), expected == 2);
        assert!(!is_early(6, &mut controller), "the grace is over");
    }
}
