//! Explain: why an object is not where it should be, asked of a running manager or of the cluster.
//!
//! ```text
//!   /pintle/explain ─> deciding thread: KeyState ──┐
//!                                                  ├─> investigate ─> ObjectExplanation ─> text
//!   explain KIND/NAME ─> lists, a frame of its own ┘
//! ```
//! Input: a subject, what controllers say about its keys, clients. Output: an
//! [`ObjectExplanation`]. It sends reads alone. Owner: a task of its own, so that the deciding
//! thread never waits. Bounds:
//! `READS_MAX` reads of one dry sync; `LISTS_MAX` lists of a namespace at once.

mod arguments;
mod command;
mod lists;
#[cfg(test)]
mod tests;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::iter;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, NAMESPACES};
use pintle_api_types::request::{Answer, ApiError, Request};
use pintle_controllers_core::frame::{DrySync, KeyState};
use pintle_controllers_loops::explain::{
    self, Evidence, ExplainedKind, KeyReport, LeaseState, ObjectExplanation, Remaining,
};
use serde_json::Value;

use crate::discovery::DiscoveredGroups;

pub(crate) use command::run;

/// Reads of one dry sync, batch by batch.
const READS_MAX: usize = 200;
/// Lists of one namespace at once.
const LISTS_MAX: usize = 16;

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainError {
    /// There is no such object.
    #[error("there is no {kind} {key}")]
    NotFound { kind: &'static str, key: ObjectKey },
    /// The API server refuses a read.
    #[error("cannot read {what}: {source}")]
    Read {
        what: String,
        #[source]
        source: ApiError,
    },
}

/// The object that is explained.
pub(crate) struct Investigation {
    /// The kind.
    pub(crate) subject: &'static ExplainedKind,
    /// The object.
    pub(crate) key: ObjectKey,
    /// The controllers' states of its keys.
    pub(crate) states: Vec<KeyState>,
    /// The lease of the managers, where no manager answers.
    pub(crate) lease: Option<LeaseState>,
    /// Objects in the queue of the garbage collector, where it runs.
    pub(crate) collector_queue: Option<usize>,
}

/// Reads what is missing, and explains.
///
/// # Errors
/// When there is no such object, or it cannot be read.
pub(crate) async fn investigate(
    investigation: Investigation,
    client: &kube::Client,
    client_of: impl Fn(&str) -> kube::Client,
    discovery: &DiscoveredGroups,
) -> Result<ObjectExplanation, ExplainError> {
    let Investigation { subject, key, states, lease, collector_queue } = investigation;
    let mut evidence = read_evidence(client, subject, &key).await?;
    (evidence.lease, evidence.collector_queue) = (lease, collector_queue);
    if subject.kind == NAMESPACES {
        read_content(client, key.name(), discovery, &mut evidence).await;
    }
    let reports = states.into_iter().map(|state| report(state, &client_of));
    let reports = join_all(reports).await;
    Ok(explain::explain(subject, &key, &evidence, &reports))
}

/// Runs the next sync of a key up to its first write; its reads are answered by the API server.
async fn report(state: KeyState, client_of: &impl Fn(&str) -> kube::Client) -> KeyReport {
    let findings = match state.dry {
        Some(dry) => run_dry(dry, &client_of(state.controller)).await,
        None => Default::default(),
    };
    KeyReport { controller: state.controller, waits: state.waits, findings }
}

async fn run_dry(
    mut dry: Box<dyn DrySync>,
    client: &kube::Client,
) -> pintle_controllers_core::frame::Findings {
    let mut sent = 0;
    loop {
        let reads = dry.advance();
        sent += reads.len();
        if reads.is_empty() || sent > READS_MAX {
            return dry.findings().clone();
        }
        let answers = reads.iter().map(|read| pintle_api::send(client, read));
        let answers: Vec<Answer> = join_all(answers).await;
        dry.answer(answers);
    }
}

async fn read_evidence(
    client: &kube::Client,
    subject: &ExplainedKind,
    key: &ObjectKey,
) -> Result<Evidence, ExplainError> {
    let found = list(client, &explain::object(subject, key)).await?;
    let not_found = || ExplainError::NotFound { kind: subject.kind.kind, key: key.clone() };
    let object = found["items"][0].clone();
    if object.is_null() {
        return Err(not_found());
    }
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let (children, pods) = explain::dependents(subject, key, &object);
    let children = owned(client, children, &[&uid]).await?;
    let sets: Vec<_> = children.iter().filter_map(|set| set["metadata"]["uid"].as_str()).collect();
    let owners = if subject.kind == DEPLOYMENTS { sets } else { vec![uid.as_str()] };
    let pods = owned(client, pods, &owners).await?;
    Ok(Evidence { object: Some(object), children, pods, ..Evidence::default() })
}

async fn owned(
    client: &kube::Client,
    request: Option<Request>,
    owners: &[&str],
) -> Result<Vec<Value>, ExplainError> {
    match request {
        Some(request) => Ok(explain::owned_by(&list(client, &request).await?, owners)),
        None => Ok(Vec::new()),
    }
}

async fn list(client: &kube::Client, request: &Request) -> Result<Value, ExplainError> {
    pintle_api::send(client, request).await.map_err(|source| {
        let what = match request {
            Request::List { kind, .. } => format!("{kind:?}"),
            Request::Get { path } => path.split('?').next().unwrap_or_default().to_owned(),
            _ => "an object".to_owned(),
        };
        ExplainError::Read { what, source }
    })
}

/// Reads the contents of a namespace, and the API groups that do not answer.
async fn read_content(
    client: &kube::Client,
    namespace: &str,
    discovery: &DiscoveredGroups,
    evidence: &mut Evidence,
) {
    let kinds = discovery.preferred(&["list", "delete"]).map(|found| found.kind);
    let kinds: Vec<_> = kinds.filter(|kind| kind.is_namespaced).collect();
    let lists = iter(kinds).map(async |kind| {
        let request = Request::List {
            kind,
            namespace: namespace.to_owned(),
            labels: String::new(),
            only_metadata: true,
        };
        match pintle_api::send(client, &request).await {
            Ok(list) => Remaining::of_list(kind, &list),
            // A kind that no longer exists has no objects.
            Err(error) if error.is_not_found() => Remaining::default(),
            Err(error) => Remaining {
                kind: format!("{kind:?}"),
                failure: Some(error.message),
                ..Remaining::default()
            },
        }
    });
    evidence.remaining = lists.buffered(LISTS_MAX).collect().await;
    let failures = discovery.failures().map(|(group, error)| (group, error.to_owned()));
    evidence.failed_groups = failures.collect();
}
