//! The status queue against an API server that is a few lines long.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::{
    Ask, GATHER, GATHER_CHANGING, GATHER_GOING, QueueInput, REPEAT, RequestResult, StatusQueue,
    StatusRequest, gather_among,
};
use crate::worker::WorkerStage;
use pintle_api_types::ids::{Mono, Now, PodUid, UnixNanos};

/// The initial wall clock; far from the agent's own.
const WALL: UnixNanos = UnixNanos(1_700_000_000_000_000_000);

/// An status queue with its clock.
struct QueueWithClock {
    queue: StatusQueue,
    now: Now,
    version: u64,
}

impl QueueWithClock {
    fn new() -> Self {
        Self { queue: StatusQueue::default(), now: Now { wall: WALL, mono: Mono(1) }, version: 0 }
    }

    fn give(&mut self, input: QueueInput) -> Vec<StatusRequest> {
        self.queue.handle(self.now, input)
    }

    /// Time passes.
    fn after(&mut self, by: Duration) -> Vec<StatusRequest> {
        self.now = self.now.plus(by);
        self.give(QueueInput::Tick)
    }

    /// A copy of this object as the API server has it now.
    fn copy(&mut self, mut object: Value) -> Arc<Pod> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        Arc::new(pod(object))
    }

    fn seen(&mut self, object: Value) -> Vec<StatusRequest> {
        let copy = self.copy(object);
        self.give(QueueInput::Seen(copy))
    }

    /// The API server took the request and has this object now.
    fn took(&mut self, request: &StatusRequest, object: Value) -> Vec<StatusRequest> {
        let copy = Box::new((*self.copy(object)).clone());
        self.answer(request, RequestResult::Copy(copy))
    }

    fn answer(&mut self, request: &StatusRequest, answer: RequestResult) -> Vec<StatusRequest> {
        self.give(QueueInput::Answered { ticket: request.ticket, answer })
    }
}

fn pod(object: Value) -> Pod {
    serde_json::from_value(object).expect("a pod")
}

fn api(uid: &str, status: Value) -> Value {
    json!({"metadata": {"uid": uid, "name": "web", "namespace": "ns"}, "status": status})
}

fn deleted(uid: &str, status: Value) -> Value {
    let mut object = api(uid, status);
    object["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:27:13Z");
    object
}

fn ready(ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status}]})
}

fn derived(object: &Value, status: Value, stage: WorkerStage) -> QueueInput {
    let status: PodStatus = serde_json::from_value(status).expect("a status");
    QueueInput::Derived { pod: Arc::new(pod(object.clone())), status: Arc::new(status), stage }
}

fn only(requests: Vec<StatusRequest>) -> StatusRequest {
    let [request] = <[StatusRequest; 1]>::try_from(requests).expect("one request");
    request
}

fn static_pod(uid: &str) -> Value {
    json!({"metadata": {"uid": uid, "name": "web", "namespace": "ns", "annotations": {
        "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid}}})
}

fn mirror(uid: &str, of: &str, status: Value) -> Value {
    let mut object = api(uid, status);
    object["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": of});
    object
}

const NO: RequestResult = RequestResult::Missing;

#[test]
fn status_with_a_waiting_client_is_sent_at_once_and_other_changes_are_batched() {
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Pending"}));
    assert_eq!(world.seen(object.clone()), []);
    let waits = derived(&object, json!({"phase": "Pending", "hostIP": "h"}), WorkerStage::Syncing);
    assert_eq!(world.give(waits), []);
    assert_eq!(world.queue.next_wake(), Some(world.now.mono.plus(GATHER_CHANGING.0)));
    let request = only(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    assert_eq!(request.name, ("ns".into(), "web".into()));
    let Ask::Patch(body) = &request.ask else { panic!("{request:?}") };
    assert_eq!(body["metadata"], json!({"uid": "1"}));
    assert_eq!(body["status"], ready(true));
    assert_eq!(world.took(&request, api("1", ready(true))), []);
    assert!(world.queue.is_settled(&"1".into()));
    // A change without a waiting client is sent after its delay.
    let mut slow = ready(true);
    slow["hostIP"] = json!("10.0.0.1");
    assert_eq!(world.give(derived(&object, slow, WorkerStage::Syncing)), []);
    assert!(matches!(only(world.after(GATHER)).ask, Ask::Patch(_)));
}

#[test]
fn status_of_a_pod_that_ended_by_itself_is_sent_before_its_teardown() {
    let ended = |name: &str| {
        json!({"name": name, "containerID": name, "state": {"terminated": {
        "exitCode": 1, "containerID": name}}})
    };
    let runs = |name: &str| json!({"name": name, "containerID": name, "state": {"running": {}}});
    let status = |all: Value| json!({"phase": "Running", "containerStatuses": all});
    // Deleted or not, statuses that run, statuses that have ended since: true if that is sent at
    // once.
    let table = [
        (false, json!([ended("a"), ended("b")]), true),
        (false, json!([ended("a"), runs("b")]), false),
        (true, json!([ended("a"), ended("b")]), false),
    ];
    for (is_deleted, now, at_once) in table {
        let mut world = QueueWithClock::new();
        let before = status(json!([runs("a"), runs("b")]));
        let object = if is_deleted { deleted("1", before) } else { api("1", before) };
        world.seen(object.clone());
        let asked = world.give(derived(&object, status(now.clone()), WorkerStage::Terminating));
        assert_eq!(asked.len(), usize::from(at_once), "{now}");
        assert_eq!(world.after(GATHER_CHANGING.0).len(), usize::from(!at_once), "{now}");
    }
}

#[test]
fn status_changes_of_a_starting_pod_are_batched() {
    let waits = |reason: &str| json!({"name": "a", "state": {"waiting": {"reason": reason}}});
    let runs = json!({"name": "a", "state": {"running": {}}});
    let status = |container: &Value| json!({"phase": "Pending", "containerStatuses": [container]});
    let creating = waits("ContainerCreating");
    let table = [
        (&creating, GATHER_CHANGING.0),
        (&waits("PodInitializing"), GATHER_CHANGING.0),
        (&waits("ErrImagePull"), GATHER),
        (&runs, GATHER),
    ];
    for (container, gathers) in table {
        let mut world = QueueWithClock::new();
        let object = api("1", json!({"phase": "Pending"}));
        world.seen(object.clone());
        assert_eq!(world.give(derived(&object, status(container), WorkerStage::Syncing)), []);
        assert_eq!(world.queue.next_wake(), Some(world.now.mono.plus(gathers)), "{container}");
    }
    // A pod that runs before that time is reported once, and no later than any other.
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Pending"}));
    world.seen(object.clone());
    assert_eq!(world.give(derived(&object, status(&creating), WorkerStage::Syncing)), []);
    assert_eq!(world.after(GATHER), []);
    assert_eq!(world.give(derived(&object, status(&runs), WorkerStage::Syncing)).len(), 1);
}

#[test]
fn batch_delay_grows_with_the_number_of_changing_pods() {
    for (others, millis) in [(0, 1000), (5, 1000), (10, 2000), (49, 9800), (50, 10_000)] {
        assert_eq!(gather_among(others), Duration::from_millis(millis), "{others}");
    }
    assert_eq!(gather_among(usize::MAX), GATHER_CHANGING.1);
}

#[test]
fn one_request_per_pod_is_in_flight_and_only_the_latest_status_follows() {
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Pending"}));
    world.seen(object.clone());
    let first = only(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.give(derived(&object, ready(false), WorkerStage::Syncing)), []);
    assert_eq!(world.give(derived(&object, ready(true), WorkerStage::Syncing)), []);
    assert_eq!(world.took(&first, api("1", ready(true))), [], "nothing is left to say");
    assert_eq!(world.give(derived(&object, ready(false), WorkerStage::Syncing)).len(), 1);
}

#[test]
fn stale_watch_copy_does_not_hide_a_written_status() {
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Pending"}));
    world.seen(object.clone());
    let old = world.copy(object.clone());
    let write = only(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.took(&write, api("1", ready(true))), []);
    assert_eq!(world.give(QueueInput::Seen(old)), [], "the watch is behind");
    // A newer copy that differs was changed by another writer: it is put right.
    assert!(matches!(only(world.seen(api("1", ready(false)))).ask, Ask::Patch(_)));
}

#[test]
fn the_final_status_is_written_before_the_deletion_is_completed() {
    let mut world = QueueWithClock::new();
    let object = deleted("1", ready(true));
    world.seen(object.clone());
    let over = json!({"phase": "Failed"});
    let write = only(world.give(derived(&object, over.clone(), WorkerStage::Terminated)));
    assert!(matches!(write.ask, Ask::Patch(_)));
    assert_eq!(world.took(&write, deleted("1", over.clone())), [], "volumes are still there");
    let delete = only(world.give(derived(&object, over.clone(), WorkerStage::Finished)));
    assert_eq!(delete.ask, Ask::Delete("1".into()));
    assert_eq!(world.answer(&delete, RequestResult::Deleted), []);
    assert_eq!(world.seen(deleted("1", over.clone())), [], "it is asked for once");
    let gone = world.copy(deleted("1", over));
    assert_eq!(world.give(QueueInput::Unseen(gone)), []);
    assert_eq!(world.give(QueueInput::Gone("1".into())), []);
    assert!(world.queue.entries.is_empty());
}

#[test]
fn a_pod_that_is_over_and_not_deleted_stays() {
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Succeeded"}));
    world.seen(object.clone());
    let over = derived(&object, json!({"phase": "Succeeded"}), WorkerStage::Finished);
    assert_eq!(world.give(over), []);
    let deletion = world.seen(deleted("1", json!({"phase": "Succeeded"})));
    assert_eq!(only(deletion).ask, Ask::Delete("1".into()));
}

#[test]
fn a_deletion_without_grace_is_left_to_the_api_server_for_a_while() {
    let mut world = QueueWithClock::new();
    let over = json!({"phase": "Succeeded"});
    let object = api("1", over.clone());
    world.seen(object.clone());
    world.give(derived(&object, over.clone(), WorkerStage::Finished));
    let mut going = deleted("1", over);
    going["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    assert_eq!(world.seen(going), []);
    assert_eq!(only(world.after(GATHER_GOING)).ask, Ask::Delete("1".into()));
}

#[test]
fn an_outage_delays_and_its_end_wakes_every_pod() {
    let mut world = QueueWithClock::new();
    let (a, b) = (api("1", json!({"phase": "Pending"})), api("2", json!({"phase": "Pending"})));
    world.seen(a.clone());
    world.seen(b.clone());
    let first = only(world.give(derived(&a, ready(true), WorkerStage::Syncing)));
    let second = only(world.give(derived(&b, ready(true), WorkerStage::Syncing)));
    let out = || RequestResult::Unreachable("no route".into());
    assert_eq!(world.answer(&first, out()), []);
    assert!(world.queue.is_outage());
    assert_eq!(world.answer(&second, out()), []);
    let mut requests = Vec::new();
    for _ in 0..20 {
        requests = world.after(Duration::from_secs(10));
        for request in &requests {
            world.answer(request, out());
        }
    }
    assert_eq!(requests.len(), 2, "both are still tried");
    let wake = world.queue.next_wake().expect("a retry");
    assert!(wake <= world.now.mono.plus(Duration::from_secs(10)));
    let again = world.after(Duration::from_secs(10));
    let rest = world.answer(&again[1], out());
    assert_eq!(rest, []);
    assert_eq!(world.took(&again[0], api("1", ready(true))).len(), 1, "the other follows at once");
    assert!(!world.queue.is_outage());
}

#[test]
fn unwritten_statuses_are_reported_per_changed_pod_with_wall_clock_time() {
    let mut world = QueueWithClock::new();
    let mut requests = Vec::new();
    for uid in ["1", "2", "3"] {
        let object = api(uid, json!({"phase": "Pending"}));
        world.seen(object.clone());
        requests.extend(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    }
    assert!(world.queue.take_unwritten().is_empty());
    world.after(Duration::from_secs(5));
    let since = world.now.wall;
    for request in &requests {
        world.answer(request, RequestResult::Refused("no".into()));
    }
    let told = world.queue.take_unwritten();
    let all = told.values().map(|unwritten| unwritten.as_ref().expect("unwritten"));
    assert!(all.clone().all(|it| (it.what, it.trouble.since) == ("its status", since)), "{told:?}");
    assert_eq!(all.count(), 3);
    let again = world.after(Duration::from_secs(1));
    world.took(&again[1], api("2", ready(true)));
    let told = world.queue.take_unwritten();
    assert_eq!(told, [(PodUid::from("2"), None)].into(), "nothing of the others");
    world.give(QueueInput::Gone("3".into()));
    assert_eq!(world.queue.take_unwritten(), [(PodUid::from("3"), None)].into());
}

#[test]
fn removed_static_pod_is_dropped_from_every_name_it_had() {
    let mut world = QueueWithClock::new();
    let mut other = static_pod("1");
    other["metadata"]["name"] = json!("other");
    for object in [&static_pod("1"), &other, &static_pod("2")] {
        world.give(derived(object, ready(true), WorkerStage::Syncing));
    }
    world.give(QueueInput::Gone("1".into()));
    let left: Vec<_> = world.queue.entries.values().map(|entry| entry.uids().count()).collect();
    assert_eq!(left, [0, 1], "one waits for its request only, the other has a pod");
    assert_eq!(world.queue.mirrors.len(), 1);
}

#[test]
fn a_pod_that_the_api_server_refuses_holds_up_no_other() {
    let mut world = QueueWithClock::new();
    let (a, b) = (api("1", json!({"phase": "Pending"})), api("2", json!({"phase": "Pending"})));
    world.seen(a.clone());
    world.seen(b.clone());
    let bad = only(world.give(derived(&a, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.answer(&bad, RequestResult::Refused("invalid".into())), []);
    let good = only(world.give(derived(&b, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.took(&good, api("2", ready(true))), []);
    let busy = RequestResult::Busy { after: Duration::from_secs(30), why: "later".into() };
    let again = only(world.after(Duration::from_secs(1)));
    assert_eq!(world.answer(&again, busy), []);
    assert_eq!(world.after(Duration::from_secs(29)), []);
    assert_eq!(world.after(Duration::from_secs(1)).len(), 1);
}

#[test]
fn conflict_is_resolved_by_a_refetch() {
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Pending"}));
    world.seen(object.clone());
    let write = only(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.answer(&write, RequestResult::Conflict), []);
    let look = only(world.after(Duration::from_secs(1)));
    assert_eq!(look.ask, Ask::Refetch);
    // Another pod has the name: nothing is written to it.
    assert_eq!(world.took(&look, api("2", json!({"phase": "Pending"}))), []);
    assert_eq!(world.after(Duration::from_secs(60)), []);
    assert!(world.queue.is_settled(&"1".into()));
}

#[test]
fn status_of_a_missing_pod_is_not_written_until_the_pod_is_observed_again() {
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Pending"}));
    world.seen(object.clone());
    let write = only(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.answer(&write, NO), []);
    assert_eq!(world.after(Duration::from_secs(60)), []);
    assert_eq!(world.seen(object).len(), 1);
}

#[test]
fn a_write_without_effect_is_not_repeated_at_once_and_holds_no_deletion_up() {
    let mut world = QueueWithClock::new();
    let pending = json!({"phase": "Failed"});
    let object = api("1", pending.clone());
    world.seen(object.clone());
    let ours = json!({"phase": "Failed", "hostIP": "h"});
    world.give(derived(&object, ours, WorkerStage::Finished));
    let write = only(world.after(GATHER));
    assert_eq!(world.took(&write, api("1", pending.clone())), []);
    assert_eq!(world.after(REPEAT / 2), []);
    assert_eq!(only(world.seen(deleted("1", pending))).ask, Ask::Delete("1".into()));
}

#[test]
fn static_pod_gets_a_mirror_pod_that_receives_its_status() {
    let mut world = QueueWithClock::new();
    let web = static_pod("h1");
    world.give(QueueInput::Wanted(Arc::new(pod(web.clone()))));
    let request = only(world.give(derived(&web, ready(true), WorkerStage::Syncing)));
    assert!(matches!(&request.ask, Ask::Mirror(of) if of.metadata.uid.as_deref() == Some("h1")));
    let write = only(world.took(&request, mirror("m1", "h1", json!({"phase": "Pending"}))));
    let Ask::Patch(body) = &write.ask else { panic!("{write:?}") };
    assert_eq!(body["metadata"]["uid"], "m1");
    assert_eq!(world.took(&write, mirror("m1", "h1", ready(true))), []);
    // The mirror pod is deleted by another client: it is removed and created again.
    let mut dying = mirror("m1", "h1", ready(true));
    dying["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:27:13Z");
    let delete = only(world.seen(dying));
    assert_eq!(delete.ask, Ask::Delete("m1".into()));
    assert!(matches!(only(world.answer(&delete, RequestResult::Deleted)).ask, Ask::Mirror(_)));
}

#[test]
fn a_changed_manifest_replaces_the_mirror_once_the_new_pod_lives() {
    let mut world = QueueWithClock::new();
    let (old, new) = (static_pod("h1"), static_pod("h2"));
    world.seen(mirror("m1", "h1", ready(true)));
    world.give(derived(&old, ready(true), WorkerStage::Syncing));
    world.give(QueueInput::Wanted(Arc::new(pod(new.clone()))));
    assert_eq!(world.give(derived(&old, ready(true), WorkerStage::Terminating)), []);
    let last = only(world.give(derived(&old, ready(false), WorkerStage::Finished)));
    assert!(matches!(last.ask, Ask::Patch(_)), "its end is written");
    world.took(&last, mirror("m1", "h1", ready(false)));
    let delete = only(world.give(derived(&new, json!({"phase": "Pending"}), WorkerStage::Syncing)));
    assert_eq!(delete.ask, Ask::Delete("m1".into()));
    let create = only(world.answer(&delete, RequestResult::Deleted));
    assert!(matches!(&create.ask, Ask::Mirror(of) if of.metadata.uid.as_deref() == Some("h2")));
    assert_eq!(world.give(QueueInput::Gone("h1".into())), []);
}

#[test]
fn mirror_pod_that_outlives_its_deletion_is_deleted_again() {
    let mut world = QueueWithClock::new();
    world.seen(mirror("m1", "h1", ready(true)));
    let new = static_pod("h2");
    let delete = only(world.give(derived(&new, json!({"phase": "Pending"}), WorkerStage::Syncing)));
    assert_eq!(delete.ask, Ask::Delete("m1".into()));
    let create = only(world.answer(&delete, RequestResult::Deleted));
    assert!(matches!(create.ask, Ask::Mirror(_)));
    assert_eq!(world.answer(&create, RequestResult::Conflict), []);
    let look = only(world.after(Duration::from_secs(1)));
    assert_eq!(look.ask, Ask::Refetch);
    let again = only(world.took(&look, mirror("m1", "h1", ready(true))));
    assert_eq!(again.ask, Ask::Delete("m1".into()));
    assert!(matches!(only(world.answer(&again, RequestResult::Deleted)).ask, Ask::Mirror(_)));
}

#[test]
fn mirror_pod_without_a_static_pod_is_deleted_after_all_sources_are_ready() {
    let mut world = QueueWithClock::new();
    assert_eq!(world.seen(mirror("m1", "h1", ready(true))), []);
    world.give(QueueInput::Wanted(Arc::new(pod(static_pod("h1")))));
    assert_eq!(world.give(QueueInput::SourcesReady), [], "its static pod is known");
    assert_eq!(only(world.give(QueueInput::Gone("h1".into()))).ask, Ask::Delete("m1".into()));
}

#[test]
fn foreign_pod_under_the_name_of_a_mirror_pod_is_never_patched_or_deleted() {
    let mut world = QueueWithClock::new();
    let web = static_pod("h1");
    let create = only(world.give(derived(&web, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.answer(&create, RequestResult::Conflict), []);
    let look = only(world.after(Duration::from_secs(1)));
    assert_eq!(look.ask, Ask::Refetch);
    assert_eq!(world.took(&look, api("9", json!({"phase": "Running"}))), []);
    for _ in 0..10 {
        for request in world.after(Duration::from_secs(10)) {
            assert!(!matches!(request.ask, Ask::Delete(_) | Ask::Patch(_)), "{request:?}");
            world.answer(&request, RequestResult::Conflict);
        }
    }
}

#[test]
fn a_mirror_that_cannot_be_made_is_tried_with_patience() {
    let mut world = QueueWithClock::new();
    let mut request =
        only(world.give(derived(&static_pod("h1"), ready(true), WorkerStage::Syncing)));
    let mut asked = 0;
    let end = world.now.mono.plus(Duration::from_secs(60));
    while world.now.mono < end {
        assert_eq!(world.answer(&request, NO), []);
        let wake = world.queue.next_wake().expect("another attempt");
        request = only(world.after(wake.since(world.now.mono)));
        asked += 1;
    }
    assert!((5..20).contains(&asked), "{asked} attempts in a minute");
}

#[test]
fn pod_address_is_written_at_once_and_other_changes_are_batched() {
    let waits = json!({"name": "a", "state": {"waiting": {"reason": "ContainerCreating"}}});
    let status = |ip: Option<&str>, told: bool| {
        let ready = if told { "True" } else { "False" };
        json!({"phase": "Pending", "containerStatuses": [waits], "podIP": ip,
            "conditions": [{"type": "PodReadyToStartContainers", "status": ready}]})
    };
    // The API server's status, ours, the stage; true if it is sent at once.
    let table = [
        (status(None, false), status(Some("10.0.0.1"), true), WorkerStage::Syncing, true),
        (
            status(Some("10.0.0.1"), true),
            status(Some("10.0.0.2"), true),
            WorkerStage::Syncing,
            true,
        ),
        (
            status(Some("10.0.0.1"), true),
            status(Some("10.0.0.1"), true),
            WorkerStage::Syncing,
            false,
        ),
        (
            status(Some("10.0.0.1"), true),
            status(Some("10.0.0.1"), false),
            WorkerStage::Syncing,
            false,
        ),
        (status(None, false), status(Some("10.0.0.1"), true), WorkerStage::Terminating, false),
    ];
    for (theirs, ours, stage, at_once) in table {
        let mut world = QueueWithClock::new();
        let going = stage == WorkerStage::Terminating;
        let object = if going { deleted("1", theirs) } else { api("1", theirs) };
        world.seen(object.clone());
        let asked = world.give(derived(&object, ours.clone(), stage));
        assert_eq!(asked.len(), usize::from(at_once), "{ours} {stage:?}");
    }
}

#[test]
fn start_of_a_sidecar_is_written_before_the_next_container_changes() {
    let side = |started: bool| json!({"name": "s", "containerID": "1", "started": started});
    let init = json!({"name": "i", "containerID": "2", "started": false});
    let status = |all: Value| json!({"phase": "Pending", "initContainerStatuses": all});
    // The API server's status, ours, stage; true if it is written at once.
    let table = [
        (status(json!([])), status(json!([side(true)])), WorkerStage::Syncing, true),
        (status(json!([side(false)])), status(json!([side(true)])), WorkerStage::Syncing, true),
        (
            status(json!([side(true)])),
            status(json!([side(true), init])),
            WorkerStage::Syncing,
            false,
        ),
        (status(json!([side(true)])), status(json!([side(false)])), WorkerStage::Syncing, false),
        (status(json!([])), status(json!([side(true)])), WorkerStage::Terminating, false),
    ];
    for (theirs, ours, stage, at_once) in table {
        let mut world = QueueWithClock::new();
        let is_stopped = stage == WorkerStage::Terminating;
        let object = if is_stopped { deleted("1", theirs) } else { api("1", theirs) };
        world.seen(object.clone());
        let asked = world.give(derived(&object, ours.clone(), stage));
        assert_eq!(asked.len(), usize::from(at_once), "{ours} {stage:?}");
    }
}

#[test]
fn a_list_of_a_restored_store_is_asked_about_and_believed() {
    let mut world = QueueWithClock::new();
    let object = api("1", json!({"phase": "Pending"}));
    world.seen(object.clone());
    world.version = 900;
    let write = only(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    assert_eq!(world.took(&write, api("1", ready(true))), []);
    // The store is restored: the list shows the pod as it was.
    world.version = 400;
    let copy = world.copy(api("1", json!({"phase": "Pending"})));
    let look = only(world.give(QueueInput::Listed(copy)));
    assert_eq!(look.ask, Ask::Refetch);
    let again = only(world.took(&look, api("1", json!({"phase": "Pending"}))));
    assert!(matches!(again.ask, Ask::Patch(_)), "it is written again: {again:?}");
    assert_eq!(world.took(&again, api("1", ready(true))), []);
    // From now on its versions count: a deletion is seen.
    let mut going = deleted("1", ready(true));
    going["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    world.seen(going.clone());
    let over = json!({"phase": "Failed"});
    let last = only(world.give(derived(&going, over.clone(), WorkerStage::Finished)));
    let delete = only(world.took(&last, {
        going["status"] = over;
        going.clone()
    }));
    assert_eq!(delete.ask, Ask::Delete("1".into()));
    assert_eq!(world.answer(&delete, RequestResult::Deleted), []);
    // And once more: the pod is there again.
    world.version = 410;
    let copy = world.copy(going.clone());
    let look = only(world.give(QueueInput::Listed(copy)));
    assert_eq!(only(world.took(&look, going)).ask, Ask::Delete("1".into()));
}

#[test]
fn response_with_an_older_resource_version_is_accepted() {
    let mut world = QueueWithClock::new();
    world.version = 900;
    let object = api("1", json!({"phase": "Pending"}));
    world.seen(object.clone());
    let write = only(world.give(derived(&object, ready(true), WorkerStage::Syncing)));
    world.version = 400;
    assert_eq!(world.took(&write, api("1", ready(true))), []);
    assert!(matches!(only(world.seen(api("1", ready(false)))).ask, Ask::Patch(_)));
}

#[test]
fn a_deletion_that_meets_a_conflict_is_asked_for_again() {
    let mut world = QueueWithClock::new();
    let over = json!({"phase": "Failed"});
    let object = deleted("1", over.clone());
    world.seen(object.clone());
    let delete = only(world.give(derived(&object, over, WorkerStage::Finished)));
    assert_eq!(delete.ask, Ask::Delete("1".into()));
    assert_eq!(world.answer(&delete, RequestResult::Conflict), []);
    let look = only(world.after(Duration::from_secs(1)));
    assert_eq!(look.ask, Ask::Refetch);
    let again = only(world.took(&look, object));
    assert_eq!(again.ask, Ask::Delete("1".into()), "it is still there");
    // Another pod of that name is nothing to delete.
    assert_eq!(world.answer(&again, RequestResult::Conflict), []);
    let look = only(world.after(Duration::from_secs(1)));
    assert_eq!(world.took(&look, api("2", json!({"phase": "Pending"}))), []);
    assert_eq!(world.after(Duration::from_secs(60)), []);
}
