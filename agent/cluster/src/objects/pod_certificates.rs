//! Certificates of pods from PodCertificateRequests, for volumes that show them.
//!
//! ```text
//!   key ─> request ─> watch of it ─> issued ─> shown ─> (beginRefreshAt, spread) ─> key ...
//!                                 └─> denied, failed: for good
//! ```
//! Each certificate has a task of its own, begun when the pod's volume asks first and ended with
//! the pod. The old certificate is shown until the new one is there. Keys live in memory and in the
//! pod's volume only; after a restart of the agent there is a new one, as with the kubelet.
//!
//! Effects, but for `outcome`. Owner: `Objects`. Bounds: one request at a time for each projection.
//! Keys are made for ECDSAP256, ECDSAP384 and ED25519.
// k8s: pkg/kubelet/podcertificate/podcertificatemanager.go

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::{Rc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::volume::payload::{CertificateRequest, Credentials};
use pintle_agent_core::worker::PodsInput;
use pintle_api::TenantShare;
use pintle_api::informer::{self, FirstList, FollowSpec, ObjectSink};
use pintle_api_types::jitter as pace;
use pintle_api_types::object::UnreadableObject;
use pintle_api_types::pruned_object;
use pintle_daemon::clock;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::accounts::AccountError;
use super::object::ObjectFields;
use super::pod_key::{self, PodKeyError};
use super::trust_bundles::clean_pem;
use super::wire::{self, RetryPace};
use super::{Objects, ObjectsCore};
use crate::node::own::OwnNode;
use crate::objects::Accounts as _;

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// Renewals of many pods are spread over this.
// k8s: pkg/kubelet/podcertificate/podcertificatemanager.go jitterDuration
const SPREAD_MAX: Duration = Duration::from_secs(5 * 60);
/// From one certificate to the request for the next. Where the clocks of node and signer differ by
/// more than a certificate's life, each is due as soon as it is there.
// k8s: pkg/kubelet/podcertificate/podcertificatemanager.go Run
const RENEW_AFTER: Duration = Duration::from_secs(60);
/// Delay after which a renewal is reported as overdue.
// k8s: pkg/kubelet/podcertificate/podcertificatemanager.go refreshOverdueDuration
const OVERDUE_AFTER: Duration = Duration::from_secs(10 * 60);
/// Longest sleep; a changed wall clock is noticed after it at the latest.
const SLEEP_MAX: Duration = Duration::from_secs(60);
const PENDING: &str = "credential bundle is not issued yet";
const REQUESTS: &str = "podcertificaterequests";
const GROUP: &str = "/apis/certificates.k8s.io/v1beta1";

#[derive(PartialEq, Deserialize)]
struct RequestWire {
    metadata: ObjectFields,
    #[serde(default)]
    status: PodCertificateStatus,
}

pruned_object!(RequestWire);

#[derive(Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodCertificateStatus {
    conditions: Option<Vec<ConditionWire>>,
    certificate_chain: String,
    begin_refresh_at: Option<jiff::Timestamp>,
    not_after: Option<jiff::Timestamp>,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(default)]
struct ConditionWire {
    #[serde(rename = "type")]
    type_: String,
    reason: String,
    message: String,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CertificateOutcome {
    Issued {
        chain: String,
        refresh_at: UnixNanos,
        ends_at: UnixNanos,
    },
    /// `Denied` or `Failed`, with reason and message.
    Refused {
        kind: &'static str,
        reason: String,
        message: String,
    },
}

/// The end of a request, if it has one.
fn outcome(status: &PodCertificateStatus) -> Option<CertificateOutcome> {
    let nanos = |time: Option<jiff::Timestamp>| {
        let nanos = time.map_or(i128::from(i64::MAX), jiff::Timestamp::as_nanosecond);
        UnixNanos(i64::try_from(nanos).unwrap_or(i64::MAX))
    };
    status.conditions.iter().flatten().find_map(|condition| {
        let refused = |kind| CertificateOutcome::Refused {
            kind,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        };
        match condition.type_.as_str() {
            "Denied" => Some(refused("Denied")),
            "Failed" => Some(refused("Failed")),
            "Issued" => Some(CertificateOutcome::Issued {
                chain: clean_pem(&status.certificate_chain),
                refresh_at: nanos(status.begin_refresh_at),
                ends_at: nanos(status.not_after),
            }),
            _ => None,
        }
    })
}

/// When the next certificate is asked for; `part` of the spread is this one's.
fn renew_at(refresh_at: UnixNanos, now: UnixNanos, part: f64) -> UnixNanos {
    refresh_at.plus(SPREAD_MAX.mul_f64(part)).max(now.plus(RENEW_AFTER))
}

/// Reason why a request is not created.
#[derive(Debug, thiserror::Error)]
enum CertificateCreateError {
    #[error("while fetching service account: {0}")]
    Account(AccountError),
    #[error("while getting node object from local cache: not known yet")]
    NoNode,
    #[error("while generating keypair: {0}")]
    Key(PodKeyError),
    #[error("while creating on API: {0}")]
    Api(String),
}

/// Identifies a projection: pod, volume, source.
type Key = (PodUid, String, usize);
type Shown = Rc<RefCell<Result<Credentials, String>>>;

struct Projection {
    shown: Shown,
    task: JoinHandle<()>,
}

impl Drop for Projection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Handles of a projection's task.
#[derive(Clone)]
struct Desk {
    client: Client,
    inputs: mpsc::Sender<PodsInput>,
    recorder: Recorder,
    node: watch::Receiver<OwnNode>,
}

/// The certificates of all pods.
pub(super) struct PodCertificates {
    desk: Desk,
    all: RefCell<BTreeMap<Key, Projection>>,
}

impl PodCertificates {
    pub(super) fn new(
        client: Client,
        inputs: mpsc::Sender<PodsInput>,
        recorder: Recorder,
        node: watch::Receiver<OwnNode>,
    ) -> Self {
        Self { desk: Desk { client, inputs, recorder, node }, all: RefCell::default() }
    }

    /// The certificate that a volume shows; a change is sent to the pod's worker.
    pub(super) fn get(
        &self,
        objects: &Objects,
        uid: &PodUid,
        pod: &Pod,
        request: &CertificateRequest,
    ) -> Result<Credentials, String> {
        let key = (uid.clone(), request.volume.clone(), request.source);
        let mut all = self.all.borrow_mut();
        let projection = all.entry(key).or_insert_with(|| {
            let shown: Shown = Rc::new(RefCell::new(Err(PENDING.to_owned())));
            let keeper = Keeper {
                desk: self.desk.clone(),
                objects: objects.0.as_ref().map(Rc::downgrade).unwrap_or_default(),
                uid: uid.clone(),
                pod: pod.clone(),
                request: request.clone(),
                shown: Rc::clone(&shown),
            };
            Projection { shown, task: pintle_daemon::tasks::spawn("pod certificate", keeper.run()) }
        });
        projection.shown.borrow().clone()
    }

    /// Forgets a pod.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.all.borrow_mut().retain(|(of, ..), _| of != uid);
    }
}

/// Keeps one certificate fresh.
struct Keeper {
    desk: Desk,
    objects: Weak<ObjectsCore>,
    uid: PodUid,
    pod: Pod,
    request: CertificateRequest,
    shown: Shown,
}

impl Keeper {
    async fn run(self) {
        let mut times = None;
        loop {
            let issued = tokio::select! {
                issued = self.issue() => issued,
                never = self.complain(times) => match never {},
            };
            let EndedRequest { key, name, outcome } = issued;
            let (refresh_at, ends_at) = match outcome {
                CertificateOutcome::Issued { chain, refresh_at, ends_at } => {
                    self.show(Ok(Credentials { key, chain })).await;
                    (refresh_at, ends_at)
                }
                CertificateOutcome::Refused { kind, reason, message } => {
                    let (verb, was) = match kind {
                        "Denied" => ("denied", "was denied"),
                        _ => ("failed", "failed"),
                    };
                    let namespace = pintle_api_types::pod::namespace(&self.pod);
                    let text = format!(
                        "PodCertificateRequest {namespace}/{name} {was}, reason={reason:?}, \
                         message={message:?}"
                    );
                    self.desk.recorder.event(&self.uid, true, kind, &text, None);
                    let text = format!(
                        "PodCertificateRequest was permanently {verb}: reason={reason:?} \
                         message={message:?}"
                    );
                    self.show(Err(text)).await;
                    return;
                }
            };
            times = Some((refresh_at, ends_at));
            sleep_until(renew_at(refresh_at, clock::now(), pace::random())).await;
        }
    }

    async fn show(&self, shown: Result<Credentials, String>) {
        *self.shown.borrow_mut() = shown;
        let uid = self.uid.clone();
        // Without a driver the queue has no receiver.
        let _ = self.desk.inputs.send(PodsInput::Content { uid, files: true }).await;
    }

    /// Emits events about an overdue renewal and about the certificate's expiry.
    async fn complain(&self, times: Option<(UnixNanos, UnixNanos)>) -> Infallible {
        if let Some((refresh_at, ends_at)) = times {
            let event = |reason: &str, text: &str| {
                self.desk.recorder.event(&self.uid, true, reason, text, None);
            };
            sleep_until(refresh_at.plus(OVERDUE_AFTER)).await;
            event("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
            sleep_until(ends_at).await;
            event("CertificateExpired", "PodCertificate expired");
        }
        std::future::pending().await
    }

    /// A key and how its request ended.
    async fn issue(&self) -> EndedRequest {
        let mut pace = RetryPace::new(RETRY.0, RETRY.1);
        loop {
            let error = match self.create().await {
                Ok((key, name)) => match self.ended(&name).await {
                    Some(outcome) => return EndedRequest { key, name, outcome },
                    None => format!("{name} was deleted"),
                },
                Err(error) => error.to_string(),
            };
            tracing::warn!(pod = %self.uid, error, "no certificate for a pod yet");
            if let Err(shown) = &mut *self.shown.borrow_mut() {
                *shown = format!("{PENDING}: {error}");
            }
            pace.wait().await;
        }
    }

    /// Makes a key and a request for it; its PEM and the request's name.
    // k8s: pkg/kubelet/podcertificate/podcertificatemanager.go createPodCertificateRequest
    async fn create(&self) -> Result<(String, String), CertificateCreateError> {
        let (namespace, name) =
            (pintle_api_types::pod::namespace(&self.pod), pintle_api_types::pod::name(&self.pod));
        let account = pintle_api_types::pod::spec(&self.pod).service_account_name.as_deref();
        let account = account.unwrap_or_default();
        let objects = Objects(self.objects.upgrade());
        let found = objects.account(namespace, account).await;
        let found = found.map_err(CertificateCreateError::Account)?;
        let node = self.desk.node.borrow().object().cloned();
        let node = node.ok_or(CertificateCreateError::NoNode)?;
        let key = pod_key::make(&self.request.key_type).map_err(CertificateCreateError::Key)?;
        let body = json!({
            "apiVersion": "certificates.k8s.io/v1beta1",
            "kind": "PodCertificateRequest",
            "metadata": {
                "namespace": namespace,
                "generateName": "req-",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name,
                    "uid": self.uid.as_str()}],
            },
            "spec": {
                "signerName": self.request.signer,
                "podName": name,
                "podUID": self.uid.as_str(),
                "serviceAccountName": account,
                "serviceAccountUID": found.uid,
                "nodeName": node.metadata.name,
                "nodeUID": node.metadata.uid,
                "maxExpirationSeconds": self.request.expiration_seconds_max,
                "stubPKCS10Request": k8s_openapi::ByteString(key.request),
                "unverifiedUserAnnotations": self.request.annotations,
            },
        });
        let path = format!("{GROUP}/namespaces/{namespace}/{REQUESTS}");
        let made: Result<RequestWire, _> =
            wire::create(&self.desk.client, &self.share(), &path, body.to_string().into_bytes())
                .await;
        let made = made.map_err(|error| CertificateCreateError::Api(error.to_string()))?;
        Ok((key.pem, made.metadata.name))
    }

    fn share(&self) -> TenantShare {
        TenantShare::of(self.uid.as_str())
    }

    /// The end of a request; `None` when it was deleted.
    async fn ended(&self, name: &str) -> Option<CertificateOutcome> {
        let node = self.desk.node.borrow().object().and_then(|node| node.metadata.name.clone());
        let namespace = pintle_api_types::pod::namespace(&self.pod);
        let path = format!("{GROUP}/namespaces/{namespace}/{REQUESTS}");
        let mut spec = FollowSpec::new(REQUESTS, &path);
        let node = node.unwrap_or_default();
        spec.source.field_selector = format!("spec.nodeName={node},metadata.name={name}");
        spec.first_list = FirstList::Newest;
        (spec.retry, spec.quiet) = (RETRY, true);
        let (ended, end) = oneshot::channel();
        let sink = RequestSink { ended: Some(ended), there: false, share: self.share() };
        tokio::select! {
            () = informer::follow(self.desk.client.clone(), spec, sink) => None,
            end = end => end.ok().flatten(),
        }
    }
}

/// A request that ended.
struct EndedRequest {
    /// The key as PEM.
    key: String,
    /// The request's name.
    name: String,
    outcome: CertificateOutcome,
}

/// Waits for the end of a request.
struct RequestSink {
    ended: Option<oneshot::Sender<Option<CertificateOutcome>>>,
    /// The list has it.
    there: bool,
    share: TenantShare,
}

impl RequestSink {
    fn seen(&mut self, request: &RequestWire) {
        if let Some(outcome) = outcome(&request.status) {
            self.end(Some(outcome));
        }
    }

    fn end(&mut self, how: Option<CertificateOutcome>) {
        if let Some(ended) = self.ended.take() {
            // Its pod may be gone.
            let _ = ended.send(how);
        }
    }
}

impl ObjectSink<RequestWire> for RequestSink {
    fn begin(&mut self) {
        self.there = false;
    }

    fn listed(&mut self, request: RequestWire) {
        self.there = true;
        self.seen(&request);
    }

    fn listed_unreadable(&mut self, _: Option<UnreadableObject>) {
        self.there = true;
    }

    async fn complete(&mut self) {
        if !self.there {
            self.end(None);
        }
    }

    async fn applied(&mut self, request: RequestWire) {
        self.seen(&request);
    }

    async fn deleted(&mut self, _: RequestWire) {
        self.end(None);
    }

    async fn deleted_unreadable(&mut self, _: UnreadableObject) {
        self.end(None);
    }

    fn share(&self) -> TenantShare {
        self.share.clone()
    }
}

async fn sleep_until(at: UnixNanos) {
    loop {
        let left = at.since(clock::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SLEEP_MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_when_it_is_issued_denied_or_failed() {
        let of =
            |status: serde_json::Value| outcome(&serde_json::from_value(status).expect("a status"));
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({"conditions": null})), None);
        assert_eq!(of(json!({"conditions": [{"type": "Else"}]})), None);
        for kind in ["Denied", "Failed"] {
            let condition = json!({"type": kind, "reason": "R", "message": "m"});
            let want =
                CertificateOutcome::Refused { kind, reason: "R".into(), message: "m".into() };
            assert_eq!(of(json!({"conditions": [condition]})), Some(want));
        }
        let chain = "junk\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\nmore\n";
        let issued = of(json!({
            "conditions": [{"type": "Issued", "status": "True"}],
            "certificateChain": chain,
            "beginRefreshAt": "1970-01-01T00:00:02Z",
            "notAfter": "1970-01-01T00:00:03Z",
        }));
        let want = CertificateOutcome::Issued {
            chain: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
            refresh_at: UnixNanos(2_000_000_000),
            ends_at: UnixNanos(3_000_000_000),
        };
        assert_eq!(issued, Some(want));
    }

    #[test]
    fn certificate_is_renewed_at_its_refresh_time_but_a_minute_from_now_at_the_earliest() {
        let second = |seconds: i64| UnixNanos(seconds * 1_000_000_000);
        for (refresh_at, now, part, want) in [
            (10_000, 1_000, 0.0, 10_000),
            (10_000, 1_000, 0.5, 10_150),
            // The node's clock is ahead: every new certificate is old already.
            (10_000, 20_000, 0.5, 20_060),
            (10_000, 9_990, 0.0, 10_050),
        ] {
            assert_eq!(renew_at(second(refresh_at), second(now), part), second(want));
        }
    }
}
