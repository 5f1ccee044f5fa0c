//! Namespaces: removes the content of a namespace that is being deleted, then its finalizer.
//!
//! Reads namespaces, discovery, and the metadata of every kind, which only wakes it early. Writes:
//! deletions of everything in the namespace, its status and its finalizers. All decisions are made
//! upon live reads.
// k8s: pkg/controller/namespace/namespace_controller.go
// k8s: pkg/controller/namespace/deletion/namespaced_resources_deleter.go

mod conditions;
mod content;
mod early;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, NAMESPACES};
use pintle_api_types::rate::Rate;
use pintle_api_types::request::{ApiError, Request, Target};
use pintle_controllers_core::frame::{
    Controller, KeyBackoff, Now, Retry, SyncError, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::tables::{Change, DiscoveredKinds, Tables};
use serde_json::{Value, json};

/// Wait before the content of a namespace is deleted: API servers and etcd members that lag behind
/// still accept objects into it.
// k8s: pkg/controller/namespace/namespace_controller.go namespaceDeletionGracePeriod
const GRACE: Duration = Duration::from_secs(5);
/// Wait after the last known object of a kind is deleted: more kinds may follow at once.
const SETTLE: Duration = Duration::from_millis(50);
/// The finalizer of this controller.
const FINALIZER: &str = "kubernetes";

/// The controller.
#[derive(Debug)]
pub struct Namespaces {
    /// `--concurrent-namespace-syncs`.
    pub workers: usize,
    /// The metadata of every kind is followed, so that the end of a kind's objects wakes a sync.
    pub follows_content: bool,
    /// Namespaces that are being deleted, and when their grace is over.
    terminating: BTreeMap<ObjectKey, Instant>,
}

impl Namespaces {
    /// A controller with as many workers.
    pub fn new(workers: usize, follows_content: bool) -> Self {
        Self { workers, follows_content, terminating: BTreeMap::new() }
    }

    fn note_namespace(
        &mut self,
        change: &Change,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        let Some(meta) = change.new_meta() else {
            if let Some(meta) = change.old_meta() {
                self.terminating.remove(&meta.key());
            }
            return;
        };
        if meta.is_deleting() {
            let key = meta.key();
            if let Entry::Vacant(entry) = self.terminating.entry(key.clone()) {
                entry.insert(now.instant + GRACE);
                if !early::large_kinds(&meta.name, tables).is_empty() {
                    wake.now(key.clone());
                }
            }
            wake.after(key, GRACE);
        }
    }

    /// The last object of a kind left a namespace.
    fn note_content(&self, change: &Change, now: Now, wake: &mut Wakes<ObjectKey>) {
        let Some(meta) = change.old_meta() else { return };
        let key = ObjectKey::new("", &meta.namespace);
        if let Some(begins_at) = self.terminating.get(&key) {
            let wait = begins_at.saturating_duration_since(now.instant).max(SETTLE);
            wake.after(key, wait);
        }
    }
}

/// A namespace and the kinds that may have objects in it.
#[derive(Debug)]
pub struct TerminatingNamespace {
    key: ObjectKey,
    discovery: Rc<DiscoveredKinds>,
    /// Discovery was read after the deletion was seen. A kind that was defined shortly before it
    /// may be missing otherwise, and its objects would outlive the namespace.
    is_discovered: bool,
    /// Kinds that are deleted now; everything is deleted when it is empty.
    early: Vec<Kind>,
}

impl Controller for Namespaces {
    type Key = ObjectKey;
    type Snapshot = TerminatingNamespace;
    type Note = ();

    const NAME: &'static str = "namespace-controller";
    // k8s: pkg/controller/namespace/namespace_controller.go nsControllerRateLimiter
    const BACKOFF: KeyBackoff = KeyBackoff {
        first: Duration::from_millis(5),
        longest: Duration::from_secs(60),
        all: Some(Rate { per_second: 10.0, burst: 100 }),
    };

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![NAMESPACES]
    }

    fn reads_all_metadata(&self) -> bool {
        self.follows_content
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        match (change, change.kind()) {
            (Change::Namespace(_), _) => self.note_namespace(change, tables, now, wake),
            // A group that was dead may be alive.
            (Change::Discovered, _) => {
                for (key, begins_at) in &self.terminating {
                    wake.after(key.clone(), begins_at.saturating_duration_since(now.instant));
                }
            }
            (_, Some(kind)) if change.new_meta().is_none() && !self.terminating.is_empty() => {
                let namespace = change.old_meta().map(|meta| meta.namespace.clone());
                if namespace.is_some_and(|namespace| !tables.has_objects(kind, &namespace)) {
                    self.note_content(change, now, wake);
                }
            }
            _ => {}
        }
    }

    fn snapshot(
        &mut self,
        key: &ObjectKey,
        tables: &Tables,
        now: Now,
    ) -> Option<TerminatingNamespace> {
        tables.namespaces.get(key)?;
        let over = self.terminating.get(key);
        let is_early = over.is_some_and(|over| now.instant < *over);
        let is_discovered = over.is_none_or(|over| tables.discovery.covers(*over - GRACE));
        let early = if is_early { early::large_kinds(key.name(), tables) } else { Vec::new() };
        let discovery = Rc::clone(&tables.discovery);
        Some(TerminatingNamespace { key: key.clone(), discovery, is_discovered, early })
    }

    // k8s: deletion/namespaced_resources_deleter.go Delete
    fn sync(
        snapshot: &TerminatingNamespace,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        if snapshot.discovery.kinds.is_empty() {
            let message = "the kinds of the API server are not discovered yet".to_owned();
            return Err(TranscriptStop::Failed(SyncError { message, retry: Retry::Quietly }));
        }
        let Some(namespace) = read(&snapshot.key, transcript)? else {
            return Ok(SyncOutcome::done());
        };
        if !is_deleting(&namespace) {
            return Ok(SyncOutcome::done());
        }
        if !snapshot.early.is_empty() {
            return early::delete_large(&snapshot.early, snapshot.key.name(), transcript);
        }
        let marked = retry_on_conflict(namespace, &snapshot.key, transcript, |namespace| {
            let is_marked = namespace["status"]["phase"] == "Terminating";
            (is_deleting(namespace) && !is_marked).then(|| mark_terminating(namespace))
        })?;
        let Some(namespace) = marked else { return Ok(SyncOutcome::done()) };
        let finalizers = namespace["spec"]["finalizers"].as_array();
        if !is_deleting(&namespace) || finalizers.is_none_or(Vec::is_empty) {
            return Ok(SyncOutcome::done());
        }
        if !snapshot.is_discovered {
            let message = "the kinds of the API server were not read since its deletion".to_owned();
            return Err(TranscriptStop::Failed(SyncError { message, retry: Retry::Quietly }));
        }
        let (estimate, namespace) = content::delete_all(namespace, snapshot, transcript)?;
        if estimate > 0 {
            transcript.because(format!("looks again in {} s", estimate / 2 + 1));
            let wait = u64::try_from(estimate / 2 + 1).unwrap_or(1);
            return Ok(SyncOutcome::after(Duration::from_secs(wait)));
        }
        transcript.because("all content is gone; the finalizer is removed");
        retry_on_conflict(namespace, &snapshot.key, transcript, |namespace| {
            Some(finalize(namespace))
        })?;
        Ok(SyncOutcome::done())
    }
}

fn read(key: &ObjectKey, transcript: &mut Transcript) -> Result<Option<Value>, TranscriptStop> {
    let target = Target::object(NAMESPACES, key.clone());
    match transcript.send(Request::Read { target, only_metadata: false })? {
        Ok(namespace) => Ok(Some(namespace)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_deleting(namespace: &Value) -> bool {
    namespace["metadata"]["deletionTimestamp"].is_string()
}

/// Sends a replacement of the namespace, again upon its newest state after a conflict. Returns the
/// newest state; `None` when the namespace no longer exists.
// k8s: deletion/namespaced_resources_deleter.go retryOnConflictError
fn retry_on_conflict(
    namespace: Value,
    key: &ObjectKey,
    transcript: &mut Transcript,
    request: impl Fn(&Value) -> Option<Request>,
) -> Result<Option<Value>, TranscriptStop> {
    let mut latest = namespace;
    loop {
        let Some(request) = request(&latest) else { return Ok(Some(latest)) };
        match transcript.send(request)? {
            Ok(namespace) => return Ok(Some(namespace)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) if !error.is_conflict() => return Err(error.into()),
            Err(_) => {}
        }
        let Some(fresh) = read(key, transcript)? else { return Ok(None) };
        if fresh["metadata"]["uid"] != latest["metadata"]["uid"] {
            return Err(TranscriptStop::failed("namespace uid has changed across retries"));
        }
        latest = fresh;
    }
}

fn target(namespace: &Value, sub: &'static str) -> Target {
    let name = namespace["metadata"]["name"].as_str().unwrap_or_default();
    Target { kind: NAMESPACES, key: ObjectKey::new("", name), sub }
}

fn mark_terminating(namespace: &Value) -> Request {
    let mut body = namespace.clone();
    body["status"]["phase"] = "Terminating".into();
    Request::Replace { target: target(namespace, "status"), body }
}

// k8s: deletion/namespaced_resources_deleter.go finalizeNamespace
fn finalize(namespace: &Value) -> Request {
    let mut spec = namespace["spec"].clone();
    let finalizers = spec["finalizers"].as_array().into_iter().flatten();
    let mut finalizers: Vec<_> =
        finalizers.filter_map(Value::as_str).filter(|name| *name != FINALIZER).collect();
    finalizers.sort_unstable();
    finalizers.dedup();
    spec["finalizers"] = json!(finalizers);
    let body = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": namespace["metadata"], "spec": spec});
    Request::Replace { target: target(namespace, "finalize"), body }
}

/// The operation does not exist for the kind.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go IsMethodNotSupported
fn is_unsupported(error: &ApiError) -> bool {
    error.reason == "MethodNotAllowed" || error.code == 405 || error.is_not_found()
}
