//! Status of pods about their scheduling: one write a pod at a time, the latest wins.
//!
//! Namespaces take turns, so that a tenant with ten thousand pending pods delays no other tenant's
//! status by more than one write. Bounds: one status that waits a pod.
// k8s: pkg/scheduler/schedule_one.go updatePod, pkg/scheduler/util/utils.go PatchPodStatus

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use hyper::Method;
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pintle_api_types::fair::FairQueue;
use pintle_api_types::object::key_of;
use pintle_api_types::request::PatchForm;
use pintle_daemon::tasks;
use pintle_scheduler_core::kept::KeptPod;
use pintle_scheduler_core::lean::LeanPod;
use pintle_scheduler_core::pod_fields::PodRef;
use pintle_scheduler_core::uid::Uid;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::path_of;

/// Number of tries of a write, and the first pause.
const TRIES_MAX: u32 = 4;
const TRY_AGAIN: Duration = Duration::from_millis(10);

type Namespace = Rc<str>;

/// A status to be written.
struct QueuedStatus {
    pod: Rc<KeptPod>,
    namespace: Namespace,
    condition: Option<PodCondition>,
    nominated: Option<String>,
}

/// Statuses that wait.
pub(super) struct StatusLane {
    client: kube::Client,
    waiting: RefCell<HashMap<Uid, QueuedStatus>>,
    order: RefCell<FairQueue<Namespace, Uid>>,
    /// Pods with a status write in flight, and a notification for a binding that must wait until
    /// that write has ended.
    busy: RefCell<HashMap<Uid, Option<Rc<Notify>>>>,
    wake: Notify,
}

impl StatusLane {
    pub(super) fn new(client: kube::Client) -> Self {
        Self {
            client,
            waiting: RefCell::default(),
            order: RefCell::default(),
            busy: RefCell::default(),
            wake: Notify::new(),
        }
    }

    /// Enqueues a status; a waiting status of the same pod is replaced.
    pub(super) fn put(
        &self,
        pod: Rc<KeptPod>,
        condition: Option<PodCondition>,
        nominated: Option<String>,
    ) {
        let uid: Uid = pod.uid().unwrap_or_default().into();
        let mut waiting = self.waiting.borrow_mut();
        let status = match waiting.remove(&uid) {
            Some(old) => QueuedStatus {
                pod,
                namespace: old.namespace,
                condition: condition.or(old.condition),
                nominated: nominated.or(old.nominated),
            },
            None => {
                // The pod was decided just now, so that it is still stored as an object.
                let namespace: Namespace = key_of(&*pod.whole()).namespace().into();
                self.order.borrow_mut().push(Rc::clone(&namespace), uid.clone());
                QueuedStatus { pod, namespace, condition, nominated }
            }
        };
        waiting.insert(uid, status);
        self.wake.notify_one();
    }

    /// Drops the waiting status of a pod. A write in flight may still succeed: the returned
    /// notification fires once it has ended.
    pub(super) fn forget(&self, uid: &str) -> Option<Rc<Notify>> {
        if let Some(status) = self.waiting.borrow_mut().remove(uid) {
            self.order.borrow_mut().remove(&status.namespace, |waiting| &**waiting == uid);
        }
        let mut busy = self.busy.borrow_mut();
        let ended = busy.get_mut(uid)?.get_or_insert_default();
        Some(Rc::clone(ended))
    }

    /// Writes waiting statuses, forever.
    pub(super) async fn run(&self) {
        loop {
            let Some((uid, status)) = self.take() else {
                self.wake.notified().await;
                continue;
            };
            let written = tasks::caught(self.write(&uid, &status)).await;
            let awaited = self.busy.borrow_mut().remove(&uid).flatten();
            if let Some(ended) = &awaited {
                ended.notify_one();
            }
            let is_late = awaited.is_some();
            let written = written.unwrap_or_else(|panic| {
                tasks::counted("status");
                tracing::error!(%panic, pod = &*uid, "the pod's status was not written");
                Ok(())
            });
            if let Err(error) = written {
                let gone = matches!(&error, kube::Error::Api(s) if [404, 409].contains(&s.code));
                let pod = key_of(&*status.pod.whole());
                if gone || is_late {
                    // A bound pod needs no nomination.
                    tracing::debug!(%error, pod = pod.as_str(), "a status came too late");
                } else {
                    tracing::warn!(%error, pod = pod.as_str(), "the pod's status was not written");
                }
            }
            if !self.order.borrow().is_empty() {
                self.wake.notify_one();
            }
        }
    }

    /// Returns the first status of the next namespace, for a pod with no write in flight.
    fn take(&self) -> Option<(Uid, QueuedStatus)> {
        let mut order = self.order.borrow_mut();
        let mut busy = self.busy.borrow_mut();
        let (_, uid) =
            order.pop_where(|_, uids| uids.iter().position(|uid| !busy.contains_key(uid)))?;
        let status = self.waiting.borrow_mut().remove(&uid)?;
        busy.insert(uid.clone(), None);
        Some((uid, status))
    }

    async fn write(&self, uid: &Uid, status: &QueuedStatus) -> kube::Result<()> {
        let pod = status.pod.whole();
        let patch = patch(&pod, status.condition.as_ref(), status.nominated.as_deref());
        let is_wanted = || self.busy.borrow().get(uid).is_none_or(Option::is_none);
        let path = path_of(&key_of(&*pod)) + "/status";
        send_while(&self.client, &path, &patch, is_wanted).await
    }
}

/// Patches a status, with retries.
pub(super) async fn send(client: &kube::Client, path: &str, patch: &Value) -> kube::Result<()> {
    send_while(client, path, patch, || true).await
}

/// Like `send`, as long as the write is wanted.
async fn send_while(
    client: &kube::Client,
    path: &str,
    patch: &Value,
    is_wanted: impl Fn() -> bool,
) -> kube::Result<()> {
    let (mut pause, merge) = (TRY_AGAIN, PatchForm::Strategic.content_type());
    for tried in 1.. {
        match super::send(client, Method::PATCH, path, merge, patch).await {
            Ok(()) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => {
                return Err(kube::Error::Api(status));
            }
            Err(error) if tried == TRIES_MAX || !is_wanted() => return Err(error),
            Err(error) => {
                tokio::time::sleep(pause).await;
                if !is_wanted() {
                    return Err(error);
                }
            }
        }
        pause *= 5;
    }
    Ok(())
}

/// Builds the patch of a status, as upstream's merge of two statuses does.
fn patch(pod: &Pod, condition: Option<&PodCondition>, nominated: Option<&str>) -> Value {
    let mut status = Map::new();
    if let Some(condition) = condition {
        let all = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let changed = timed(all, condition);
        let mut order: Vec<&str> = all.iter().map(|c| c.type_.as_str()).collect();
        if !order.contains(&condition.type_.as_str()) {
            order.push(&condition.type_);
        }
        let order: Vec<Value> = order.into_iter().map(|of| json!({"type": of})).collect();
        status.insert("$setElementOrder/conditions".to_owned(), order.into());
        status.insert("conditions".to_owned(), json!([changed]));
    }
    if let Some(node) = nominated {
        let node = if node.is_empty() { Value::Null } else { node.into() };
        status.insert("nominatedNodeName".to_owned(), node);
    }
    // A pod with the same name and another uid is another pod.
    match &pod.metadata.uid {
        Some(uid) => json!({"metadata": {"uid": uid}, "status": status}),
        None => json!({ "status": status }),
    }
}

/// Returns the condition with the time of its last transition.
fn timed(all: &[PodCondition], condition: &PodCondition) -> Value {
    let old = all.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status);
    let since = old.and_then(|c| c.last_transition_time.clone());
    let mut condition = condition.clone();
    condition.last_transition_time = Some(since.unwrap_or_else(|| since_second(Timestamp::now())));
    let mut value = serde_json::to_value(condition).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("lastProbeTime".to_owned(), Value::Null);
    }
    value
}

/// Truncates the time to whole seconds, so that it is never in the future.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/time.go MarshalJSON
pub(super) fn since_second(time: Timestamp) -> Time {
    Time(
        time.round(TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Trunc))
            .unwrap_or(time),
    )
}

/// Writes the DisruptionTarget condition into a victim's status.
// k8s: pkg/scheduler/framework/preemption/executor.go PreemptPod
pub(super) async fn disrupt(
    client: &kube::Client,
    victim: &PodRef,
    message: &str,
) -> kube::Result<()> {
    let request = hyper::Request::get(path_of(&victim.key)).body(Vec::new());
    let LeanPod(pod) = client.request(request.map_err(kube::Error::HttpError)?).await?;
    if pod.metadata.uid.as_deref() != Some(&*victim.uid) {
        return Ok(());
    }
    let condition = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("PreemptionByScheduler".to_owned()),
        message: Some(message.to_owned()),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    };
    send(client, &(path_of(&victim.key) + "/status"), &patch(&pod, Some(&condition), None)).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pintle_sched_core::{Cluster, Profile};

    use super::*;

    fn pod(status: Value) -> Pod {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": []}, "status": status});
        serde_json::from_value(pod).expect("a pod")
    }

    /// A status write is in flight when the pod gets a node: the binding waits until the write has
    /// ended, so that it cannot come after it, and the write is not retried.
    #[tokio::test]
    async fn binding_waits_for_the_status_write_in_flight() {
        let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
        let answer = move |_: hyper::Request<kube::client::Body>| {
            let (go_on, goes_on) = tokio::sync::oneshot::channel::<()>();
            asked.send(go_on).expect("the test listens");
            async move {
                goes_on.await.expect("the test goes on");
                let mut answer = hyper::Response::new(kube::client::Body::from(b"{}".to_vec()));
                *answer.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
                Ok::<_, std::convert::Infallible>(answer)
            }
        };
        let client = kube::Client::new(tower::service_fn(answer), "default");
        let lane = Rc::new(StatusLane::new(client));
        let mut scheduler = pintle_scheduler_core::testing::scheduler_with(vec![
            pintle_scheduler_core::testing::pod("p", "1"),
        ]);
        while scheduler.decide_next(Duration::ZERO) {}
        let status = scheduler.take_commands().into_iter().find_map(|command| match command {
            pintle_scheduler_core::cycle::Command::Status { pod, condition, nominated } => {
                Some((pod, condition, nominated))
            }
            _ => None,
        });
        let (kept, condition, nominated) = status.expect("there is no node");
        let runs = Rc::clone(&lane);
        let local = tokio::task::LocalSet::new();
        local.spawn_local(async move { runs.run().await });
        local
            .run_until(async {
                lane.put(Rc::clone(&kept), condition, nominated);
                assert!(lane.forget("another").is_none());
                let go_on = asks.recv().await.expect("it is written");
                let ended = lane.forget("p").expect("it is being written");
                assert!(tokio::time::timeout(TRY_AGAIN, ended.notified()).await.is_err());
                go_on.send(()).expect("the server waits");
                ended.notified().await;
                assert!(asks.try_recv().is_err(), "the condition is not written again");
                assert!(lane.forget("p").is_none());
            })
            .await;
    }

    /// The tenant with most pods alternates with the others.
    #[tokio::test]
    async fn tenant_with_many_pods_delays_the_status_of_another_tenant_by_one_write() {
        let answer = |_: hyper::Request<kube::client::Body>| async {
            let answer = hyper::Response::new(kube::client::Body::empty());
            Ok::<_, std::convert::Infallible>(answer)
        };
        let lane = StatusLane::new(kube::Client::new(tower::service_fn(answer), "default"));
        let shelf = pintle_scheduler_core::kept::Shelf::default();
        let put = |namespace: &str, name: &str| {
            let pod = json!({"metadata": {"namespace": namespace, "name": name, "uid": name},
                "spec": {"containers": []}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let spec = Cluster::new(Profile::default()).read_pod(&pod).expect("it can be read");
            lane.put(shelf.keep(pod, Rc::new(spec), Arc::default()), None, None);
        };
        for number in 0..1000 {
            put("crowd", &format!("p{number}"));
        }
        put("quiet", "q0");
        put("quiet", "q1");
        put("crowd", "p0"); // again: it keeps its place
        let taken: Vec<_> =
            std::iter::from_fn(|| lane.take()).map(|(uid, _)| uid.to_string()).collect();
        assert_eq!(taken[..5], ["p0", "q0", "p1", "q1", "p2"]);
        assert_eq!(taken.len(), 1002);
        put("crowd", "p7");
        put("quiet", "q2");
        assert!(lane.forget("p7").is_some(), "one of it is being written");
        assert_eq!(lane.take().map(|(uid, _)| uid.to_string()).as_deref(), Some("q2"));
        assert!(lane.take().is_none());
    }

    fn refused() -> PodCondition {
        let condition = json!({"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "m", "observedGeneration": 1});
        serde_json::from_value(condition).expect("a condition")
    }

    #[test]
    fn a_condition_is_added_with_the_time_of_now() {
        let patch = patch(&pod(json!({})), Some(&refused()), None);
        let status = &patch["status"];
        assert_eq!(status["$setElementOrder/conditions"], json!([{"type": "PodScheduled"}]));
        let condition = &status["conditions"][0];
        assert_eq!(condition["reason"], "Unschedulable");
        assert_eq!(condition["lastProbeTime"], Value::Null);
        assert!(condition["lastTransitionTime"].is_string(), "{condition}");
        assert_eq!(status.get("nominatedNodeName"), None);
    }

    #[test]
    fn condition_with_only_a_new_message_keeps_its_time_and_position() {
        let since = "2020-01-01T00:00:00Z";
        let old = json!({"conditions": [
            {"type": "Other", "status": "True"},
            {"type": "PodScheduled", "status": "False", "lastTransitionTime": since}]});
        let patch = patch(&pod(old), Some(&refused()), Some("node"));
        let order = json!([{"type": "Other"}, {"type": "PodScheduled"}]);
        assert_eq!(patch["status"]["$setElementOrder/conditions"], order);
        assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], since);
        assert_eq!(patch["status"]["nominatedNodeName"], "node");
    }

    #[test]
    fn a_condition_is_never_since_a_time_to_come() {
        let second: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        for millis in [0, 400, 600, 999] {
            let time = second + Duration::from_millis(millis);
            assert_eq!(since_second(time), Time(second), "{millis} ms later");
        }
    }

    #[test]
    fn a_nomination_is_taken_back_by_null() {
        let patch = patch(&pod(json!({})), None, Some(""));
        assert_eq!(patch, json!({"status": {"nominatedNodeName": null}}));
    }
}
