//! The status writer: sends the requests of the status queue to the API server, and returns the
//! answers to the queue.
//!
//! Owner: the main thread; the driver and the intake call `take`, each request is a task of its
//! own. Input: statuses, copies, answers. Output: PATCH, DELETE, POST and GET of pods. A request
//! that takes longer than `REQUEST_MAX` once it is sent counts as failed. An answer that asks to
//! retry later goes to the status queue, which waits, and then sends the newest status. Decides
//! nothing: see `status_queue`.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::{HeaderMap, Request as HttpRequest, StatusCode};
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Status};
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::client::Body;
use kube::core::{PartialObjectMeta, Request as ApiRequest};
use pintle_agent_core::api_health::ApiHealth;
use pintle_agent_core::status_queue::{
    Ask, FullName, QueueInput, RequestResult, StatusQueue, StatusRequest,
};
use pintle_agent_core::timeline::{self, Recorder};
use pintle_agent_core::types::{PodUid, with_causes};
use pintle_agent_metrics::Metrics;
use pintle_api_types::pod;
use pintle_daemon::clock;
use pintle_daemon::tasks;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::sync::Notify;

/// Longest wait for an answer, from the moment at which the request's turn has come.
pub const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Least wait when the API server is busy and sends no `Retry-After`.
const BUSY: Duration = Duration::from_secs(1);
/// The longest that one "later" of the API server is obeyed.
const LATER_MAX: Duration = Duration::from_secs(600);
/// Longest answer.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Longest text of an answer that is no object of the API.
const WORDS_BYTES_MAX: usize = 512;

/// Writes statuses, deletions and mirror pods.
pub struct StatusWriter {
    client: Client,
    node_name: String,
    queue: RefCell<StatusQueue>,
    recorder: Recorder,
    api_health: ApiHealth,
    metrics: OnceCell<Arc<Metrics>>,
    /// The next wake-up may have changed.
    alarm: Notify,
    /// The queue has received an input.
    received: Notify,
}

impl StatusWriter {
    /// A writer with an empty status queue; its clock runs in a task of this thread. It records
    /// writes in `recorder` and failures in `api_health`.
    pub fn start(
        client: Client,
        node_name: &str,
        recorder: Recorder,
        api_health: ApiHealth,
    ) -> Rc<Self> {
        let writer = Rc::new(Self {
            client,
            node_name: node_name.to_owned(),
            queue: RefCell::default(),
            recorder,
            api_health,
            metrics: OnceCell::new(),
            alarm: Notify::new(),
            received: Notify::new(),
        });
        tasks::singleton("status writer", Rc::clone(&writer).tick());
        writer
    }

    /// From now on writes and copies from the API server are counted.
    pub fn count_in(&self, metrics: Arc<Metrics>) {
        let _ = self.metrics.set(metrics); // the first value stays
    }

    /// Passes the input to the status queue, and begins the requests that it returns.
    pub fn take(self: &Rc<Self>, input: QueueInput) {
        let clocks = clock::clocks();
        if let (QueueInput::Seen(copy), Some(metrics)) = (&input, self.metrics.get()) {
            metrics.shown(copy, clocks.wall);
        }
        let (requests, moved) = {
            let mut queue = self.queue.borrow_mut();
            let (before, was_out) = (queue.next_wake(), queue.is_outage());
            let requests = queue.handle(clocks, input);
            self.api_health.unwritten(queue.take_unwritten());
            for took in queue.take_written() {
                if let Some(metrics) = self.metrics.get() {
                    metrics.status_written(took);
                }
            }
            match (was_out, queue.is_outage()) {
                (false, true) => tracing::warn!("the API server takes no writes; they wait"),
                (true, false) => tracing::info!("the API server takes writes again"),
                _ => {}
            }
            (requests, queue.next_wake() != before)
        };
        if moved {
            self.alarm.notify_one();
        }
        self.received.notify_waiters();
        for request in requests {
            let writer = Rc::clone(self);
            tasks::spawn("status write", async move {
                let (ticket, begun) = (request.ticket, tokio::time::Instant::now());
                let write = StatusWrite::of(&request.ask);
                let answer = tasks::caught(writer.ask(request)).await.unwrap_or_else(|panic| {
                    tasks::counted("status write");
                    tracing::error!("a write to the API server: {panic}");
                    RequestResult::Unreachable(panic.to_string())
                });
                if let Some(write) = write {
                    write.record_result(&writer.recorder, &answer, begun.elapsed());
                }
                writer.take(QueueInput::Answered { ticket, answer });
            });
        }
    }

    /// Comes when nothing of these pods waits or is under way.
    pub async fn settled(&self, pods: &[PodUid]) {
        loop {
            let received = self.received.notified();
            if pods.iter().all(|uid| self.queue.borrow().is_settled(uid)) {
                return;
            }
            received.await;
        }
    }

    async fn tick(self: Rc<Self>) {
        loop {
            let at = self.queue.borrow().next_wake();
            let Some(at) = at else {
                self.alarm.notified().await;
                continue;
            };
            tokio::select! {
                () = self.alarm.notified() => {}
                () = tokio::time::sleep(at.since(clock::clocks().mono)) => self.take(QueueInput::Tick),
            }
        }
    }

    async fn ask(&self, StatusRequest { name, ask, .. }: StatusRequest) -> RequestResult {
        let result = match ask {
            Ask::Patch(body) => self.patch(&name, body).await,
            Ask::Delete(uid) => self.delete(&name, uid).await,
            Ask::Mirror(pod) => self.mirror(&pod).await,
            Ask::Refetch => {
                let pod = self.send::<Slim>(pods(&name).get(&name.1, &Default::default())).await;
                pod.map(|pod| RequestResult::Copy(Box::new(pod.into())))
            }
        };
        result.unwrap_or_else(|refusal| refusal)
    }

    // k8s: pkg/util/pod/pod.go PatchPodStatus
    async fn patch(&self, name: &FullName, body: Value) -> Result<RequestResult, RequestResult> {
        let (patch, params) = (Patch::Strategic(body), PatchParams::default());
        let request = pods(name).patch_subresource("status", &name.1, &params, &patch);
        let pod: Slim = self.send(request).await?;
        Ok(RequestResult::Copy(Box::new(pod.into())))
    }

    /// A conflict may be that of two writes, so the caller must read the object: it may be another
    /// one of that name, or still ours.
    async fn delete(&self, name: &FullName, uid: PodUid) -> Result<RequestResult, RequestResult> {
        let preconditions = Preconditions { uid: Some(uid.to_string()), resource_version: None };
        let params = DeleteParams::default().grace_period(0).preconditions(preconditions);
        match self.send::<IgnoredAny>(pods(name).delete(&name.1, &params)).await {
            Ok(_) | Err(RequestResult::Missing) => Ok(RequestResult::Deleted),
            Err(other) => Err(other),
        }
    }

    /// The node's own object owns the mirror pod; without one, or with one that is on its way
    /// out, there is none.
    // k8s: pkg/kubelet/pod/mirror_client.go CreateMirrorPod
    async fn mirror(&self, of: &Pod) -> Result<RequestResult, RequestResult> {
        let node =
            ApiRequest::new("/api/v1/nodes").get_metadata(&self.node_name, &Default::default());
        let node: PartialObjectMeta<Node> = self.send(node).await.map_err(no_node)?;
        if node.metadata.deletion_timestamp.is_some() {
            return Err(no_node(RequestResult::Missing));
        }
        let mirror = mirror_of(of, &self.node_name, node.metadata);
        let body = serde_json::to_vec(&mirror)
            .map_err(|error| RequestResult::Refused(error.to_string()))?;
        let name = (pod::namespace(of).to_owned(), pod::name(of).to_owned());
        let pod: Slim = self.send(pods(&name).create(&PostParams::default(), body)).await?;
        Ok(RequestResult::Copy(Box::new(pod.into())))
    }

    /// Sends a request. The client's time limit for the head begins when its turn has come; the
    /// body has as long again.
    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<HttpRequest<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, RequestResult> {
        let request = request.map_err(|error| RequestResult::Refused(error.to_string()))?;
        let answer = self.client.send(request.map(Body::from)).await;
        let answer = answer.map_err(|error| RequestResult::Unreachable(with_causes(&error)))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect();
        let body = match tokio::time::timeout(REQUEST_MAX, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => return Err(RequestResult::Unreachable(error.to_string())),
            Err(_) => {
                return Err(RequestResult::Unreachable(format!(
                    "no answer within {REQUEST_MAX:?}"
                )));
            }
        };
        if !head.status.is_success() {
            return Err(failed(head.status, &head.headers, &body));
        }
        serde_json::from_slice(&body).map_err(|error| RequestResult::Unreachable(error.to_string()))
    }
}

/// A write, for the timeline.
struct StatusWrite {
    uid: PodUid,
    /// The timeline's reasons for success and for failure.
    what: (&'static str, &'static str),
    text: String,
}

impl StatusWrite {
    fn of(ask: &Ask) -> Option<Self> {
        Some(match ask {
            Ask::Patch(body) => {
                let fields = body["status"].as_object().into_iter().flatten();
                let fields = fields.map(|(name, _)| name.as_str());
                let fields: Vec<_> = fields.filter(|name| !name.starts_with('$')).collect();
                Self {
                    uid: PodUid::from(body["metadata"]["uid"].as_str()?),
                    what: ("StatusWritten", "StatusNotWritten"),
                    text: fields.join(", "),
                }
            }
            Ask::Delete(uid) => Self {
                uid: uid.clone(),
                what: ("DeletionWritten", "DeletionNotWritten"),
                text: String::new(),
            },
            Ask::Mirror(pod) => Self {
                uid: pod::uid(pod),
                what: ("MirrorPodMade", "MirrorPodNotMade"),
                text: String::new(),
            },
            Ask::Refetch => return None,
        })
    }

    fn record_result(&self, recorder: &Recorder, answer: &RequestResult, took: Duration) {
        let words = match answer {
            RequestResult::Copy(_) | RequestResult::Deleted => {
                let comma = if self.text.is_empty() { "" } else { ", " };
                let text = format!("{}{comma}{}", timeline::took(took), self.text);
                return recorder.stage(&self.uid, self.what.0, None, &text);
            }
            RequestResult::Busy { why, .. }
            | RequestResult::Refused(why)
            | RequestResult::Unreachable(why) => why,
            RequestResult::Missing => "there is no such object",
            RequestResult::Conflict => "the object has changed meanwhile",
        };
        recorder.trouble(&self.uid, self.what.1, None, words);
    }
}

/// The used fields of an answer: neither the spec nor `managedFields`.
#[derive(Clone, Debug, Deserialize)]
struct Slim {
    metadata: ObjectMeta,
    status: Option<PodStatus>,
}

impl From<Slim> for Pod {
    fn from(object: Slim) -> Self {
        slim(object.metadata, object.status)
    }
}

fn slim(mut metadata: ObjectMeta, status: Option<PodStatus>) -> Pod {
    metadata.managed_fields = None;
    Pod { metadata, spec: None, status }
}

fn pods(name: &FullName) -> ApiRequest {
    ApiRequest::new(format!("/api/v1/namespaces/{}/pods", name.0))
}

/// A mirror pod without a node is no object that is gone: it is tried again.
fn no_node(answer: RequestResult) -> RequestResult {
    match answer {
        RequestResult::Missing => RequestResult::Refused("the node is not registered".to_owned()),
        other => other,
    }
}

fn mirror_of(of: &Pod, node_name: &str, node: ObjectMeta) -> Pod {
    let hash = pod::annotation(of, pod::ANNOTATION_HASH).unwrap_or_default().to_owned();
    let mut mirror = of.clone();
    let annotations = mirror.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::ANNOTATION_MIRROR.to_owned(), hash);
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node_name.to_owned(),
        uid: node.uid.unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror
}

/// Classifies an error answer.
fn failed(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> RequestResult {
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    let why = match status.message {
        Some(message) if !message.is_empty() => message,
        _ => String::from_utf8_lossy(&body[..body.len().min(WORDS_BYTES_MAX)]).trim().to_owned(),
    };
    match code.as_u16() {
        404 => RequestResult::Missing,
        409 => RequestResult::Conflict,
        429 | 500..=599 => {
            let retry_after = status.details.and_then(|details| details.retry_after_seconds);
            let retry_after = retry_after
                .map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs().into()));
            let retry_after =
                pintle_api::retry_after(code, headers).max(retry_after).unwrap_or_default();
            RequestResult::Busy { after: retry_after.clamp(BUSY, LATER_MAX), why }
        }
        _ => RequestResult::Refused(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderValue, RETRY_AFTER};

    #[test]
    fn retry_delay_is_that_of_the_header_or_the_status_body() {
        let busy = |code: u16, header: Option<&'static str>, body: &str| {
            let header = header.map(|value| (RETRY_AFTER, HeaderValue::from_static(value)));
            let code = StatusCode::from_u16(code).expect("a code");
            match failed(code, &header.into_iter().collect(), body.as_bytes()) {
                RequestResult::Busy { after, why } => (after.as_secs(), why),
                other => panic!("{other:?}"),
            }
        };
        let plain = "Too many requests, please try again later.\n";
        assert_eq!(busy(429, Some("25"), plain), (25, plain.trim().to_owned()));
        assert_eq!(busy(429, None, plain).0, BUSY.as_secs());
        let status = r#"{"kind":"Status","message":"wait","details":{"retryAfterSeconds":7}}"#;
        assert_eq!(busy(503, Some("3"), status), (7, "wait".to_owned()));
        assert_eq!(busy(500, Some("999999"), "").0, LATER_MAX.as_secs());
    }

    #[test]
    fn a_conflict_is_no_end_of_the_object() {
        let failed = |code| failed(code, &HeaderMap::new(), b"{}");
        assert_eq!(failed(StatusCode::CONFLICT), RequestResult::Conflict);
        assert_eq!(failed(StatusCode::NOT_FOUND), RequestResult::Missing);
        assert!(matches!(failed(StatusCode::FORBIDDEN), RequestResult::Refused(_)));
    }
}
