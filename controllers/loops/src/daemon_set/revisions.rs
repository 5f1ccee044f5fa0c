//! The revisions of a DaemonSet's template.
//!
//! Input: the set and the revisions of its namespace. Output: the current revision, the others, and
//! requests that adopt, label, create, renumber and delete revisions.
//! A revision is current when the bytes of its data are those of the set. The newest one also when
//! it restores the same set once defaults are set: a release of Kubernetes that prints templates in
//! another way gets no new revision.
// k8s: pkg/controller/daemon/update.go constructHistory

use std::collections::BTreeSet;
use std::rc::Rc;

use pintle_api_types::kind::{CONTROLLER_REVISIONS, DAEMON_SETS, PODS};
use pintle_api_types::request::{PatchForm, Request, Target};
use pintle_api_types::strategic::{self, Schema};
use pintle_controllers_core::common::claim::Claim;
use pintle_controllers_core::common::history::{self, History, Revision};
use pintle_controllers_core::common::owner::controller_reference;
use pintle_controllers_core::common::status::{StatusRetry, replace_status};
use pintle_controllers_core::common::template_defaults::with_defaults;
use pintle_controllers_core::frame::{Retry, SyncError, Transcript, TranscriptStop};
use pintle_controllers_core::golang::hash::pod_template_hash;
use pintle_controllers_core::golang::json::daemon_set_revision_data;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{DaemonSet, Pod};
use serde_json::{Value, json};

use super::template::HASH_LABEL;

/// Old revisions that are kept when the set does not say how many.
const HISTORY_LIMIT_DEFAULT: i32 = 10;

/// The revisions of a set.
pub(super) struct DaemonHistory {
    /// That of the template as it is.
    pub(super) current: Revision,
    /// Those of earlier templates.
    pub(super) old: Vec<Revision>,
}

impl DaemonHistory {
    /// The hash of the current revision, which its pods carry.
    pub(super) fn hash(&self) -> &str {
        label_of(&self.current)
    }
}

/// Finds, creates and repairs the revisions of a set.
pub(super) struct Historian<'a> {
    /// The set.
    pub(super) set: &'a DaemonSet,
    /// The whole set.
    pub(super) whole: &'a Value,
}

fn label_of(revision: &Revision) -> &str {
    revision.metadata.labels.get(HASH_LABEL).map_or("", |label| label.as_str())
}

impl Historian<'_> {
    fn history(&self) -> History<'_> {
        History { owner_kind: DAEMON_SETS, owner: &self.set.metadata }
    }

    /// Finds the revisions; `claim_pods` gives the pods of the set, if they are to be labeled.
    ///
    /// # Errors
    /// When the API server refuses something.
    pub(super) fn construct(
        &self,
        revisions: &[Revision],
        claim_pods: impl FnOnce(&mut Transcript) -> Result<Vec<Rc<KeptObject<Pod>>>, TranscriptStop>,
        transcript: &mut Transcript,
    ) -> Result<DaemonHistory, TranscriptStop> {
        let data = daemon_set_revision_data(self.whole);
        let mut old = Vec::new();
        let mut current = Vec::new();
        for revision in self.claim(revisions, transcript)? {
            let revision = self.with_label(revision, transcript)?;
            match history::is_same_data(&revision.data(), &data) {
                true => current.push(revision),
                false => old.push(revision),
            }
        }
        if current.is_empty() {
            let newest = (0..old.len()).max_by_key(|at| old[*at].revision);
            if let Some(at) = newest.filter(|at| self.restores(&old[*at], &data)) {
                current.push(old.remove(at));
            }
        }
        let number = old.iter().map(|one| one.revision).max().unwrap_or(0) + 1;
        if current.is_empty() {
            transcript.because("no revision has the template of the set");
            let current = self.create(&data, number, transcript)?;
            return Ok(DaemonHistory { current, old });
        }
        let current = self.merge(current, claim_pods, transcript)?;
        if current.revision < number {
            let mut body = current.value();
            body["revision"] = number.into();
            transcript.send(replace(&current, body))??;
        }
        Ok(DaemonHistory { current, old })
    }

    // k8s: update.go controlledHistories
    fn claim(
        &self,
        revisions: &[Revision],
        transcript: &mut Transcript,
    ) -> Result<Vec<Revision>, TranscriptStop> {
        let claim = Claim {
            owner_kind: DAEMON_SETS,
            owner: &self.set.metadata,
            kind: CONTROLLER_REVISIONS,
            finalizers: &[],
        };
        let selector = &self.set.spec.selector;
        claim.claim(revisions, |one| selector.matches(&one.metadata.labels), transcript)
    }

    /// Labels a revision of an early release with its name.
    fn with_label(
        &self,
        revision: Revision,
        transcript: &mut Transcript,
    ) -> Result<Revision, TranscriptStop> {
        if revision.metadata.labels.get(HASH_LABEL).is_some() {
            return Ok(revision);
        }
        let mut body = revision.value();
        body["metadata"]["labels"][HASH_LABEL] = (&*revision.metadata.name).into();
        history::decode(&transcript.send(replace(&revision, body))??)
    }

    /// The set is what the revision restores, once defaults are set.
    fn restores(&self, revision: &Revision, data: &str) -> bool {
        let restored = || {
            let patch = serde_json::from_str(&revision.data()).ok()?;
            let schema = Schema::of_kind(&DAEMON_SETS.api_version(), DAEMON_SETS.kind)?;
            let mut set = strategic::apply(self.whole, &patch, schema).ok()?;
            set["spec"]["template"] = with_defaults(set["spec"]["template"].take())?;
            Some(daemon_set_revision_data(&set))
        };
        restored().is_some_and(|restored| history::is_same_data(&restored, data))
    }

    /// Keeps the newest of several revisions of one template, and labels pods with its hash.
    // k8s: update.go dedupCurHistories
    fn merge(
        &self,
        mut current: Vec<Revision>,
        claim_pods: impl FnOnce(&mut Transcript) -> Result<Vec<Rc<KeptObject<Pod>>>, TranscriptStop>,
        transcript: &mut Transcript,
    ) -> Result<Revision, TranscriptStop> {
        let newest = (0..current.len()).max_by_key(|at| current[*at].revision);
        let kept = current.remove(newest.expect("there is one"));
        if current.is_empty() {
            return Ok(kept);
        }
        let hash = label_of(&kept);
        for pod in claim_pods(transcript)? {
            let known = pod.metadata.labels.get(HASH_LABEL);
            if known.is_none_or(|known| &**known != hash) {
                let body = json!({"metadata": {"labels": {HASH_LABEL: hash}}});
                let target = Target::object(PODS, pod.metadata.key());
                transcript.send(Request::Patch { target, form: PatchForm::Merge, body })??;
            }
        }
        for double in &current {
            self.history().delete(double, transcript)?;
        }
        Ok(kept)
    }

    // k8s: update.go snapshot
    fn create(
        &self,
        data: &str,
        number: i64,
        transcript: &mut Transcript,
    ) -> Result<Revision, TranscriptStop> {
        let meta = &self.set.metadata;
        let template = &self.whole["spec"]["template"];
        let hash = pod_template_hash(template, self.set.status.collision_count);
        let name = format!("{}-{hash}", meta.name);
        let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        labels.insert(HASH_LABEL.to_owned(), hash.into());
        let mut metadata = json!({
            "name": name,
            "namespace": meta.namespace.as_str(),
            "labels": labels,
            "ownerReferences": [controller_reference(DAEMON_SETS, meta)],
        });
        let annotations = &self.whole["metadata"]["annotations"];
        if annotations.as_object().is_some_and(|some| !some.is_empty()) {
            metadata["annotations"] = annotations.clone();
        }
        let body = json!({
            "apiVersion": CONTROLLER_REVISIONS.api_version(),
            "kind": CONTROLLER_REVISIONS.kind,
            "metadata": metadata,
            "data": serde_json::from_str::<Value>(data).expect("the data was printed as JSON"),
            "revision": number,
        });
        let request = Request::Create {
            kind: CONTROLLER_REVISIONS,
            namespace: meta.namespace.as_str().to_owned(),
            below: None,
            body,
        };
        match transcript.send(request)? {
            Ok(created) => history::decode(&created),
            Err(error) if error.is_already_exists() => {
                let existing = transcript.send(self.history().read(&name))??;
                let existing = history::decode(&existing)?;
                if history::is_same_data(&existing.data(), data) {
                    return Ok(existing);
                }
                self.raise_collision_count(transcript)?;
                Err(TranscriptStop::Failed(SyncError {
                    message: error.message,
                    retry: Retry::Quietly,
                }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Another revision has the name: the next sync takes another one.
    fn raise_collision_count(&self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let target = Target::object(DAEMON_SETS, self.set.metadata.key());
        let fresh = transcript.send(Request::Read { target, only_metadata: false })??;
        let known = self.set.status.collision_count;
        let found = fresh["status"]["collisionCount"].as_i64();
        if found != known.map(i64::from) {
            let number =
                |it: Option<i64>| it.map_or_else(|| "none".to_owned(), |it| it.to_string());
            let (known, found) = (number(known.map(i64::from)), number(found));
            let name = &self.set.metadata.name;
            return Err(TranscriptStop::failed(format!(
                "found a stale collision count ({known}, expected {found}) of DaemonSet \
                 \"{name}\" while processing; will retry until it is updated"
            )));
        }
        let raised = found.unwrap_or(0) + 1;
        transcript.because(format!("the name of the revision is taken; collision count {raised}"));
        let edit = |status: &mut Value| status["collisionCount"] = raised.into();
        replace_status(DAEMON_SETS, fresh, StatusRetry::Conflicts(0), edit, transcript)?;
        Ok(())
    }

    /// Deletes the oldest revisions that no pod has until as many are left as the set says.
    ///
    /// # Errors
    /// When the API server refuses it.
    // k8s: update.go cleanupHistory
    pub(super) fn clean_up(
        &self,
        mut old: Vec<Revision>,
        pods: &[Rc<KeptObject<Pod>>],
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let limit = self.set.spec.revision_history_limit.unwrap_or(HISTORY_LIMIT_DEFAULT);
        let excess = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        let label = |pod: &Rc<KeptObject<Pod>>| pod.metadata.labels.get(HASH_LABEL).cloned();
        let live: BTreeSet<_> = pods.iter().filter_map(label).collect();
        old.sort_by_key(|one| one.revision);
        let unused = old.iter().filter(|one| {
            let hash = label_of(one);
            hash.is_empty() || !live.contains(hash)
        });
        for revision in unused.take(excess) {
            let name = &revision.metadata.name;
            transcript.because(format!("revision {name} is older than the {limit} that are kept"));
            self.history().delete(revision, transcript)?;
        }
        Ok(())
    }
}

fn replace(revision: &Revision, body: Value) -> Request {
    let target = Target::object(CONTROLLER_REVISIONS, revision.metadata.key());
    Request::Replace { target, body }
}
