//! The status writer: sends what the outbox asks for to the API server, and tells it the answers.
//!
//! Owner: the main thread; the driver and the intake call `take`, each request is a task of its
//! own. Input: statuses, copies, answers. Output: PATCH, DELETE, POST and GET of pods. A request
//! that takes longer than `REQUEST_MAX` counts as failed. Decides nothing: see `outbox`.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request as HttpRequest;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request as ApiRequest;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use super::link::Link;
use super::outbox::{Answer, Ask, FullName, Input, Outbox, Request};
use super::timeline::{self, Recorder};
use crate::clock;
use crate::metrics::Metrics;
use crate::pod;
use crate::tasks;
use crate::types::{Now, PodUid, UnixNanos};

/// Longest wait for an answer.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Least wait when the API server says that it is busy and not for how long.
const BUSY: Duration = Duration::from_secs(1);

/// Writes statuses, deletions and mirror pods.
pub struct Writer {
    client: Client,
    node_name: String,
    outbox: RefCell<Outbox>,
    recorder: Recorder,
    link: Link,
    metrics: OnceCell<Arc<Metrics>>,
    /// The next wake-up may have changed.
    alarm: Notify,
}

impl Writer {
    /// A writer with an empty outbox; its clock runs in a task of this thread.
    /// What it does is told to `recorder`, what does not work to `link`.
    pub fn start(client: Client, node_name: &str, recorder: Recorder, link: Link) -> Rc<Self> {
        let writer = Rc::new(Self {
            client,
            node_name: node_name.to_owned(),
            outbox: RefCell::default(),
            recorder,
            link,
            metrics: OnceCell::new(),
            alarm: Notify::new(),
        });
        tasks::singleton("status writer", Rc::clone(&writer).tick());
        writer
    }

    /// From now on writes and what the API server shows are counted.
    pub fn count_in(&self, metrics: Arc<Metrics>) {
        let _ = self.metrics.set(metrics); // the first to be told stays
    }

    /// Tells the outbox, and begins what it asks for.
    pub fn take(self: &Rc<Self>, input: Input) {
        let clocks = clock::clocks();
        if let (Input::Seen(copy), Some(metrics)) = (&input, self.metrics.get()) {
            metrics.shown(copy, clocks.wall);
        }
        let now = steady(clocks);
        let (requests, moved) = {
            let mut outbox = self.outbox.borrow_mut();
            let (before, was_out) = (outbox.next_wake(), outbox.is_outage());
            let answered = matches!(input, Input::Answered { .. } | Input::Gone(_));
            let requests = outbox.handle(now, input);
            if answered {
                self.link.unwritten(outbox.unwritten());
            }
            for took in outbox.take_written() {
                if let Some(metrics) = self.metrics.get() {
                    metrics.status_written(took);
                }
            }
            match (was_out, outbox.is_outage()) {
                (false, true) => tracing::warn!("the API server takes no writes; they wait"),
                (true, false) => tracing::info!("the API server takes writes again"),
                _ => {}
            }
            (requests, outbox.next_wake() != before)
        };
        if moved {
            self.alarm.notify_one();
        }
        for request in requests {
            let writer = Rc::clone(self);
            tasks::spawn("status write", async move {
                let (ticket, begun) = (request.ticket, tokio::time::Instant::now());
                let told = Written::of(&request.ask);
                let answer = tasks::caught(writer.ask(request)).await.unwrap_or_else(|panic| {
                    tasks::counted("status write");
                    tracing::error!("a write to the API server: {panic}");
                    Answer::Unreachable(panic.to_string())
                });
                if let Some(told) = told {
                    told.tell(&writer.recorder, &answer, begun.elapsed());
                }
                writer.take(Input::Answered { ticket, answer });
            });
        }
    }

    async fn tick(self: Rc<Self>) {
        loop {
            let at = self.outbox.borrow().next_wake();
            let Some(at) = at else {
                self.alarm.notified().await;
                continue;
            };
            tokio::select! {
                () = self.alarm.notified() => {}
                () = tokio::time::sleep(at.since(steady(clock::clocks()))) => self.take(Input::Tick),
            }
        }
    }

    async fn ask(&self, Request { name, ask, .. }: Request) -> Answer {
        let asked = async {
            match ask {
                Ask::Patch(body) => self.patch(&name, body).await,
                Ask::Delete(uid) => self.delete(&name, uid).await,
                Ask::Mirror(pod) => self.mirror(&pod).await,
                Ask::Look => self.send(pods(&name).get(&name.1, &Default::default())).await,
            }
        };
        match tokio::time::timeout(REQUEST_MAX, asked).await {
            Ok(answer) => answer,
            Err(_) => Answer::Unreachable(format!("no answer within {REQUEST_MAX:?}")),
        }
    }

    // k8s: pkg/util/pod/pod.go PatchPodStatus
    async fn patch(&self, name: &FullName, body: Value) -> Answer {
        let (patch, params) = (Patch::Strategic(body), PatchParams::default());
        self.send(pods(name).patch_subresource("status", &name.1, &params, &patch)).await
    }

    async fn send(
        &self,
        request: Result<HttpRequest<Vec<u8>>, kube::core::request::Error>,
    ) -> Answer {
        let request = match request {
            Ok(request) => request,
            Err(error) => return Answer::Refused(error.to_string()),
        };
        match self.client.request::<Slim>(request).await {
            Ok(slim) => Answer::Copy(Box::new(slim.into())),
            Err(error) => failed(&error),
        }
    }

    async fn delete(&self, name: &FullName, uid: PodUid) -> Answer {
        let preconditions = Preconditions { uid: Some(uid.to_string()), resource_version: None };
        let params = DeleteParams::default().grace_period(0).preconditions(preconditions);
        let pods = Api::<Pod>::namespaced(self.client.clone(), &name.0);
        match pods.delete(&name.1, &params).await {
            Ok(_) => Answer::Deleted,
            Err(error) => match failed(&error) {
                // Gone already, or another one of that name: either way ours is no more.
                Answer::Missing | Answer::Conflict => Answer::Deleted,
                other => other,
            },
        }
    }

    /// The node's own object owns the mirror pod; without one, or with one that is on its way
    /// out, there is none.
    // k8s: pkg/kubelet/pod/mirror_client.go CreateMirrorPod
    async fn mirror(&self, of: &Pod) -> Answer {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = match nodes.get_metadata(&self.node_name).await {
            Ok(node) => node.metadata,
            Err(error) => return no_node(failed(&error)),
        };
        if node.deletion_timestamp.is_some() {
            return no_node(Answer::Missing);
        }
        let mirror = mirror_of(of, &self.node_name, node);
        let pods = Api::<Pod>::namespaced(self.client.clone(), pod::namespace(of));
        match pods.create(&PostParams::default(), &mirror).await {
            Ok(created) => Answer::Copy(Box::new(slim(created.metadata, created.status))),
            Err(error) => failed(&error),
        }
    }
}

/// The outbox waits and measures and stamps nothing: it is given the monotonic clock, which nobody
/// sets, in the type of its times.
fn steady(now: Now) -> UnixNanos {
    UnixNanos(now.mono.0)
}

/// A write as the timeline tells it.
struct Written {
    uid: PodUid,
    /// What is there when it succeeds, and what when it fails.
    what: (&'static str, &'static str),
    text: String,
}

impl Written {
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
            Ask::Look => return None,
        })
    }

    fn tell(&self, recorder: &Recorder, answer: &Answer, took: Duration) {
        let words = match answer {
            Answer::Copy(_) | Answer::Deleted => {
                let comma = if self.text.is_empty() { "" } else { ", " };
                let text = format!("{}{comma}{}", timeline::took(took), self.text);
                return recorder.stage(&self.uid, self.what.0, None, &text);
            }
            Answer::Busy { why, .. } | Answer::Refused(why) | Answer::Unreachable(why) => why,
            Answer::Missing => "there is no such object",
            Answer::Conflict => "the object has changed meanwhile",
        };
        recorder.trouble(&self.uid, self.what.1, None, words);
    }
}

/// What an answer is read for: neither the spec nor who wrote which field.
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
fn no_node(answer: Answer) -> Answer {
    match answer {
        Answer::Missing => Answer::Refused("the node is not registered".to_owned()),
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

fn failed(error: &kube::Error) -> Answer {
    let kube::Error::Api(status) = error else {
        return Answer::Unreachable(error.to_string());
    };
    let why = status.message.clone();
    let details = status.details.as_ref();
    let asked = details.map_or(0, |details| details.retry_after_seconds);
    match status.code {
        404 => Answer::Missing,
        409 => Answer::Conflict,
        429 | 500..=599 => {
            let after = Duration::from_secs(u64::from(asked)).max(BUSY);
            Answer::Busy { after, why }
        }
        _ => Answer::Refused(why),
    }
}
