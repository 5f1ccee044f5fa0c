//! Bindings: each is sent once; if the answer is lost, the pod is read to learn the result.
//!
//! Input: pods with nodes. Output: a result for each. Owner: one thread. Bounds: a limit of
//! concurrent requests; a waiting binding is a small struct, not a task.
// k8s: pkg/scheduler/framework/plugins/defaultbinder/default_binder.go Bind

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::core::Status;
use pintle_scheduler_core::cycle::command::BindingResult;
use pintle_scheduler_core::framework::Attempt;
use pintle_scheduler_core::pod_fields::PodRef;
use serde::Serialize;

use super::extender::{self, Caller};
use super::status::StatusLane;
use super::{BindEnd, BoundBy, EndedWork, Owed, path_of, post};

/// Longest wait for one answer, the wait for the request's turn included.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// Pauses between reads of a pod: the first, and the longest. Each is twice the one before.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Reads of a pod that the API server refuses, until the binding counts as failed.
const REFUSED_MAX: u32 = 10;
/// Status code of a conflict, also returned if etcd did not answer in time, or if the same binding
/// was made before.
// k8s: pkg/registry/core/pod/storage/storage.go assignPod
const CONFLICT: u16 = 409;
const TOO_MANY_REQUESTS: u16 = 429;

/// Body of the request.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BindingBody<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: BindingMeta<'a>,
    target: BindTarget<'a>,
}

#[derive(Serialize)]
struct BindingMeta<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
struct BindTarget<'a> {
    kind: &'static str,
    name: &'a str,
}

/// A binding to be made.
pub(super) struct BindJob {
    pub(super) pod: PodRef,
    pub(super) node: Rc<str>,
    /// The extender that makes it, if one does.
    pub(super) binder: Option<Rc<Caller>>,
    pub(super) attempt: Option<Rc<Attempt>>,
    pub(super) owed: Owed,
}

/// Makes bindings, with a limit of concurrent requests.
pub(super) struct BindLane {
    client: kube::Client,
    status: Rc<StatusLane>,
    free: Cell<usize>,
    waiting: RefCell<VecDeque<BindJob>>,
    is_closed: Cell<bool>,
}

impl BindLane {
    pub(super) fn new(client: kube::Client, at_once: usize, status: Rc<StatusLane>) -> Self {
        Self {
            client,
            status,
            free: Cell::new(at_once),
            waiting: RefCell::default(),
            is_closed: Cell::new(false),
        }
    }

    /// Stops starting bindings; those in the queue have failed.
    pub(super) fn close(&self) {
        self.is_closed.set(true);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
    }

    /// Takes a binding, within a `LocalSet`. A waiting status of the pod is dropped, because
    /// written after the binding it would overwrite a newer state.
    pub(super) fn put(lane: &Rc<Self>, job: BindJob) {
        let prepares = job.attempt.as_ref().is_some_and(|attempt| attempt.prepares_binding());
        // While plugins prepare the binding, the waiting status (nomination) is still written.
        let last_word = if prepares { None } else { lane.status.forget(&job.pod.uid) };
        if !prepares && last_word.is_none() {
            return Self::queue(lane, job);
        }
        // PreBind may take long, so that it needs no permit.
        let lane = Rc::clone(lane);
        tokio::task::spawn_local(async move {
            let prepared = match &job.attempt {
                Some(attempt) => attempt.pre_bind(&job.node).await,
                None => Ok(()),
            };
            if let Err(error) = prepared {
                let ended = BindingResult::Failed(error.to_string());
                return job.ends(ended, BoundBy::Nobody, Duration::ZERO);
            }
            if let Some(ended) = last_word.or_else(|| lane.status.forget(&job.pod.uid)) {
                ended.notified().await;
            }
            Self::queue(&lane, job);
        });
    }

    fn queue(lane: &Rc<Self>, job: BindJob) {
        // A binding after `close` fails: dropping the job reports that.
        if !lane.is_closed.get() {
            lane.waiting.borrow_mut().push_back(job);
            Self::begin(lane);
        }
    }

    /// Starts bindings as far as permits are free.
    fn begin(lane: &Rc<Self>) {
        while lane.free.get() > 0 {
            let Some(job) = lane.waiting.borrow_mut().pop_front() else { return };
            lane.free.set(lane.free.get() - 1);
            let (turn, client) = (BindPermit(Rc::clone(lane)), lane.client.clone());
            tokio::task::spawn_local(async move {
                let _turn = turn;
                let began = Instant::now();
                let (ended, by) = job.make(client).await;
                job.ends(ended, by, began.elapsed());
            });
        }
    }
}

/// Permit for one binding; dropping it starts the next one in the queue.
struct BindPermit(Rc<BindLane>);

impl Drop for BindPermit {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        // Without a runtime, as at shutdown, nothing can be started.
        if !self.0.is_closed.get() && tokio::runtime::Handle::try_current().is_ok() {
            BindLane::begin(&self.0);
        }
    }
}

impl BindJob {
    /// Makes the binding. Returns its result, and what made it.
    // k8s: pkg/scheduler/schedule_one.go bind, extendersBinding
    async fn make(&self, client: kube::Client) -> (BindingResult, BoundBy) {
        if let Some(binder) = &self.binder {
            match extender::bind(binder, &self.pod, &self.node).await {
                BindingResult::Failed(error) if binder.is_ignorable() => {
                    let pod = self.pod.key.as_str();
                    tracing::warn!(error, pod, "the extender that binds is left out");
                }
                ended => return (ended, BoundBy::Extender),
            }
        }
        let own = match &self.attempt {
            Some(attempt) => attempt.bind(&self.node).await,
            None => None,
        };
        match own {
            Some(Ok(())) => (BindingResult::Bound, BoundBy::Plugin),
            Some(Err(error)) => (BindingResult::Failed(error.to_string()), BoundBy::Plugin),
            None => (bind(client, &self.pod, &self.node).await, BoundBy::Default),
        }
    }

    fn ends(self, ended: BindingResult, by: BoundBy, took: Duration) {
        let Self { pod, node, owed, .. } = self;
        owed.pay(EndedWork::Bind(BindEnd { pod, node, ended, took, by }));
    }
}

async fn bind(client: kube::Client, pod: &PodRef, node: &str) -> BindingResult {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let binding = BindingBody {
        kind: "Binding",
        api_version: "v1",
        metadata: BindingMeta { name, namespace, uid: &pod.uid },
        target: BindTarget { kind: "Node", name: node },
    };
    let path = path_of(&pod.key) + "/binding";
    let sent = tokio::time::timeout(ANSWER_MAX, post(&client, &path, &binding)).await;
    let pods = Api::<Pod>::namespaced(client, namespace);
    match sent {
        Ok(Ok(_)) => BindingResult::Bound,
        // The API server has decided. After a server error the pod may be bound all the same.
        Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != CONFLICT => {
            failed(&status.message)
        }
        Ok(Err(kube::Error::Api(status))) => ask(&pods, pod, node, status.message, ASK_AGAIN).await,
        Ok(Err(error)) => ask(&pods, pod, node, error.to_string(), ASK_AGAIN).await,
        Err(_) => ask(&pods, pod, node, "no answer in time".to_owned(), ASK_AGAIN).await,
    }
}

/// Reads the pod to learn its node, because a lost answer may mean either result. Until a read
/// succeeds the pod stays assumed: releasing its resources could overcommit the node.
async fn ask(
    pods: &Api<Pod>,
    pod: &PodRef,
    node: &str,
    error: String,
    (mut pause, longest): (Duration, Duration),
) -> BindingResult {
    let mut refused = 0;
    let refuses = |status: &Status| status.code < 500 && status.code != TOO_MANY_REQUESTS;
    loop {
        match tokio::time::timeout(ANSWER_MAX, pods.get_opt(pod.key.name())).await {
            Ok(Ok(Some(found))) => {
                let is_it = found.metadata.uid.as_deref() == Some(&*pod.uid);
                let at = found.spec.and_then(|spec| spec.node_name).unwrap_or_default();
                return if is_it && at == node { BindingResult::Bound } else { failed(&error) };
            }
            Ok(Ok(None)) => return failed(&error),
            Ok(Err(kube::Error::Api(status))) if refuses(&status) => {
                refused += 1;
                if refused >= REFUSED_MAX {
                    return failed(&error);
                }
            }
            Ok(Err(_)) | Err(_) => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

fn failed(error: &str) -> BindingResult {
    BindingResult::Failed(format!("running Bind plugin \"DefaultBinder\": {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::client::Body;
    use pintle_api_types::key::ObjectKey;
    use pintle_scheduler_core::extender::Extender;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;

    /// An API server that accepts every binding.
    fn takes_all() -> kube::Client {
        let answer = |_: hyper::Request<Body>| async {
            let body = Body::from(b"{}".to_vec());
            Ok::<_, std::convert::Infallible>(hyper::Response::new(body))
        };
        kube::Client::new(tower::service_fn(answer), "default")
    }

    fn pod() -> PodRef {
        PodRef { key: ObjectKey::new("ns", "p"), uid: "u".into() }
    }

    /// An API server that answers bindings with the first answer, and then each read with the next.
    fn says(mut answers: Vec<(u16, Value)>) -> kube::Client {
        answers.reverse();
        let answers = Arc::new(Mutex::new(answers));
        let answer = move |_: hyper::Request<Body>| {
            let next = answers.lock().expect("no panic").pop();
            async move {
                let (code, body) = next.ok_or("one question too many")?;
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, tower::BoxError>(hyper::Response::builder().status(code).body(body)?)
            }
        };
        kube::Client::new(tower::service_fn(answer), "default")
    }

    fn refusal(code: u16) -> (u16, Value) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "etcdserver: request timed out", "reason": "Conflict", "code": code});
        (code, status)
    }

    fn on_node(node: &str) -> (u16, Value) {
        (
            200,
            json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": node,
            "containers": []}}),
        )
    }

    #[tokio::test]
    async fn conflict_on_binding_is_resolved_by_reading_the_pod() {
        let error = failed("etcdserver: request timed out");
        for (node, want) in [("n", BindingResult::Bound), ("other", error.clone()), ("", error)] {
            let client = says(vec![refusal(409), on_node(node)]);
            assert_eq!(bind(client, &pod(), "n").await, want, "on {node:?}");
        }
        let decided = bind(says(vec![refusal(422)]), &pod(), "n").await;
        assert!(matches!(decided, BindingResult::Failed(_)), "{decided:?}");
    }

    #[tokio::test]
    async fn unknown_binding_result_is_queried_until_the_api_server_answers() {
        let pauses = (Duration::from_millis(1), Duration::from_millis(2));
        let ask = async |answers| {
            let pods = Api::<Pod>::namespaced(says(answers), "ns");
            ask(&pods, &pod(), "n", "lost".to_owned(), pauses).await
        };
        for code in [429, 503] {
            let mut answers = vec![refusal(code); 40];
            answers.push(on_node("n"));
            assert_eq!(ask(answers).await, BindingResult::Bound, "after {code}");
        }
        assert_eq!(ask(vec![refusal(403); 10]).await, failed("lost"), "it will never be said");
    }

    #[tokio::test]
    async fn failing_bind_extender_is_skipped_only_if_ignorable() {
        let refused = BindingResult::Failed(String::new());
        let ways =
            [(true, BindingResult::Bound, BoundBy::Default), (false, refused, BoundBy::Extender)];
        for (ignorable, ended, by) in ways {
            // Nothing listens on that port.
            let extender = Extender {
                url_prefix: "http://127.0.0.1:9/".to_owned(),
                bind_verb: "bind".to_owned(),
                ignorable,
                ..Extender::default()
            };
            let (ends, _ended) = mpsc::unbounded_channel();
            let job = BindJob {
                pod: pod(),
                node: "n".into(),
                binder: Some(Rc::new(Caller::new(extender).expect("an extender"))),
                attempt: None,
                owed: Owed { ends, end: None, under_way: None },
            };
            let (how, who) = job.make(takes_all()).await;
            assert_eq!(std::mem::discriminant(&how), std::mem::discriminant(&ended), "{how:?}");
            assert_eq!(who, by);
        }
    }
}
