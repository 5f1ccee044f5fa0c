//! Invariants after every request of a controller, and at the end.

use std::collections::BTreeMap;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{JOBS, Kind, NAMESPACES, NODES, PODS};
use pintle_api_types::request::{Answer, Request};
use pintle_memory_api::Server;
use serde_json::Value;

use crate::manager::ManagerRequest;

/// Counters of a Job that must never go down.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct JobCounts {
    succeeded: u64,
    failed: u64,
}

#[derive(Default)]
pub(crate) struct Checks {
    jobs: BTreeMap<String, JobCounts>,
    /// More than one manager acts: it may create too much for a moment.
    pub(crate) is_split: bool,
}

impl Checks {
    /// After a controller's request.
    pub(crate) fn after(
        &mut self,
        call: &ManagerRequest,
        answer: &Answer,
        before: Option<&Server>,
        server: &Server,
    ) {
        if let Err(error) = answer {
            let is_denied = error.is_forbidden() && !error.is_namespace_terminating();
            assert!(!is_denied, "{} has no right to: {error}", call.controller);
            return;
        }
        match &call.request {
            Request::Create { kind, body, .. } if *kind == PODS => {
                self.check_pod_count(call, body, server);
            }
            Request::Delete { target, .. } => {
                if let Some(before) = before {
                    check_collected(target.kind, &target.key, before);
                }
            }
            _ => {}
        }
        self.check_jobs(server);
    }

    /// A pod was created: there must not be more of its owner's than some version of the owner
    /// wanted that the controller may have decided by.
    fn check_pod_count(&self, call: &ManagerRequest, pod: &Value, server: &Server) {
        if self.is_split {
            return;
        }
        let owner = &pod["metadata"]["ownerReferences"][0];
        let Some(kind) = kind_of(owner).filter(|kind| kind.group == "apps") else { return };
        let uid = &owner["uid"];
        let namespace = server.objects(NAMESPACES, "").map(|(key, _)| key.name());
        let _ = namespace;
        let is_own = |pod: &Value| {
            let is_active = pod["metadata"]["deletionTimestamp"].is_null()
                && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            is_active && pod["metadata"]["ownerReferences"][0]["uid"] == *uid
        };
        let active = server.objects(PODS, "").filter(|(_, pod)| is_own(pod)).count();
        let known = call.known.get(&kind).copied().unwrap_or(0);
        let key = owner["name"].as_str().unwrap_or_default();
        let wanted = wanted_since(kind, key, known, server);
        let slack =
            usize::from(kind.plural == "daemonsets") * 2 * server.objects(NODES, "").count();
        assert!(
            active <= wanted.max(slack),
            "{} made pod {active} of {key}, which wants {wanted}",
            call.controller
        );
    }

    fn check_jobs(&mut self, server: &Server) {
        for (key, job) in server.objects(JOBS, "") {
            let count = |field: &str| job["status"][field].as_u64().unwrap_or(0);
            let now = JobCounts { succeeded: count("succeeded"), failed: count("failed") };
            let uid = job["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let known = self.jobs.entry(uid).or_default();
            let is_down = now.succeeded < known.succeeded || now.failed < known.failed;
            assert!(!is_down, "counts of Job {key} went from {known:?} to {now:?}");
            *known = now;
        }
    }
}

/// Versions of the owner before the one known at the request that the sync may have begun with: a
/// sync continues with its snapshot while its pods are created in batches.
const EARLIER: usize = 4;

/// The most replicas that a version of the owner wanted since its sync began.
fn wanted_since(kind: Kind, name: &str, known: u64, server: &Server) -> usize {
    let replicas = |object: &Value| {
        let replicas = object["spec"]["replicas"].as_u64().unwrap_or(1);
        usize::try_from(replicas).unwrap_or(usize::MAX)
    };
    let events = server.events_since(kind, 0).expect("nothing is compacted");
    let events: Vec<_> = events.iter().filter(|event| event.key.name() == name).collect();
    let known = events.partition_point(|event| event.version <= known);
    let since = &events[known.saturating_sub(EARLIER)..];
    since.iter().map(|event| replicas(&event.object)).max().unwrap_or(0)
}

/// The collector deleted an object: none of its owners may be alive.
fn check_collected(kind: Kind, key: &ObjectKey, before: &Server) {
    let Some(object) = before.object(kind, key) else { return };
    if object["metadata"]["deletionTimestamp"].is_string() {
        return;
    }
    for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
        let Some(owner_kind) = kind_of(owner) else { continue };
        let namespace = if owner_kind.is_namespaced { key.namespace() } else { "" };
        let name = owner["name"].as_str().unwrap_or_default();
        let Some(found) = before.object(owner_kind, &ObjectKey::new(namespace, name)) else {
            continue;
        };
        let is_alive = found["metadata"]["uid"] == owner["uid"]
            && found["metadata"]["deletionTimestamp"].is_null();
        assert!(!is_alive, "the collector deleted {kind:?} {key}, whose owner {name} is alive");
    }
}

fn kind_of(owner: &Value) -> Option<Kind> {
    let api_version = owner["apiVersion"].as_str()?;
    let name = owner["kind"].as_str()?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Kind::all_known().find(|kind| (kind.group, kind.version, kind.kind) == (group, version, name))
}

/// Checks that the users' wanted state is reached; called when nothing moves any more.
pub(crate) fn check_end(server: &Server) {
    for kind in crate::users::WORKLOADS {
        for (key, object) in server.objects(*kind, "") {
            check_workload(*kind, key, object, server);
        }
    }
}

fn check_workload(kind: Kind, key: &ObjectKey, object: &Value, server: &Server) {
    let is_deleting = object["metadata"]["deletionTimestamp"].is_string();
    assert!(!is_deleting, "{kind:?} {key} is still being deleted");
    let (spec, status) = (&object["spec"], &object["status"]);
    if kind == JOBS {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let is =
            |wanted: &str| conditions.iter().any(|c| c["type"] == wanted && c["status"] == "True");
        let waits = spec["suspend"] == true || spec["parallelism"] == 0;
        assert!(is("Complete") || is("Failed") || waits, "Job {key} has no end: {object:#}");
        let uid = &object["metadata"]["uid"];
        let finished = is("Complete") || is("Failed");
        for (pod, value) in server.objects(PODS, "") {
            let is_own = value["metadata"]["ownerReferences"][0]["uid"] == *uid;
            let is_held = !value["metadata"]["finalizers"].is_null();
            assert!(!(is_own && finished && is_held), "pod {pod} of Job {key} keeps its finalizer");
        }
        return;
    }
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let nodes = u64::try_from(server.objects(NODES, "").count()).expect("few nodes");
    let (wanted, fields) = match kind.plural {
        "daemonsets" => {
            (nodes, ["desiredNumberScheduled", "numberReady", "updatedNumberScheduled"])
        }
        _ => (number(&spec["replicas"]), ["replicas", "readyReplicas", "availableReplicas"]),
    };
    for field in fields {
        let found = number(&status[field]);
        assert_eq!(found, wanted, "{field} of {kind:?} {key}: {object:#}");
    }
    assert_eq!(status["observedGeneration"], object["metadata"]["generation"], "{kind:?} {key}");
}
