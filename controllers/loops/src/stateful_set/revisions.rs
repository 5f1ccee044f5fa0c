//! The revisions of a StatefulSet's template: which one its pods are updated to, and from which.
//!
//! Input: the set and its sorted revisions. Output: the current and the update revision, and
//! requests that create, renumber and delete revisions. A revision matches by the bytes of its
//! data. The newest one also matches when the set that it restores, with defaults, equals the
//! current set. So a release of Kubernetes that prints templates differently restarts no pods.
// k8s: pkg/controller/statefulset/stateful_set_control.go getStatefulSetRevisions

use std::collections::BTreeSet;
use std::rc::Rc;

use pintle_api_types::kind::STATEFUL_SETS;
use pintle_api_types::strategic::{self, Schema};
use pintle_controllers_core::common::history::{self, History, NewRevision, Revision};
use pintle_controllers_core::common::template_defaults::with_defaults;
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::golang::json::stateful_set_revision_data;
use pintle_controllers_core::kinds::{Pod, StatefulSet};
use serde_json::Value;

use super::identity::{RevisionTemplate, Templates, revision_of};

/// Old revisions that are kept when the set does not say how many.
const HISTORY_LIMIT_DEFAULT: i32 = 10;

/// The revisions that pods are created from.
#[derive(Clone, Debug)]
pub(super) struct LiveRevisions {
    /// The revision before the rollout.
    pub(super) current: Revision,
    /// The revision that is rolled out.
    pub(super) update: Revision,
    /// How often the name of a new revision was taken.
    pub(super) collision_count: i32,
}

/// The history of a set.
pub(super) fn history_of(set: &StatefulSet) -> History<'_> {
    History { owner_kind: STATEFUL_SETS, owner: &set.metadata }
}

impl LiveRevisions {
    /// Finds the revisions among the sorted ones of the set; creates or renumbers the update
    /// revision when the template has changed.
    ///
    /// # Errors
    /// When the API server refuses that.
    pub(super) fn find(
        set: &StatefulSet,
        whole: &Value,
        revisions: &[Revision],
        transcript: &mut Transcript,
    ) -> Result<Self, TranscriptStop> {
        let mut collision_count = set.status.collision_count.unwrap_or(0);
        let data = stateful_set_revision_data(whole);
        let number = history::next_number(revisions);
        let equal = revisions.iter().rfind(|one| history::is_same_data(&one.data(), &data));
        let newest = revisions.last();
        let is_newest = |one: &Revision| {
            newest.is_some_and(|newest| history::is_same_data(&newest.data(), &one.data()))
        };
        let update = match (equal, newest) {
            (Some(equal), Some(newest)) if is_newest(equal) => Rc::clone(newest),
            (Some(equal), _) => {
                let name = &equal.metadata.name;
                transcript.because(format!("the template is that of revision {name} again"));
                history_of(set).renumber(equal, number, transcript)?
            }
            (None, Some(newest)) if restores(newest, whole, &data) => Rc::clone(newest),
            (None, _) => {
                transcript.because("no revision has the template of the set");
                let new = NewRevision {
                    labels: whole["spec"]["template"]["metadata"]["labels"].clone(),
                    annotations: whole["metadata"]["annotations"].clone(),
                    data,
                    number,
                };
                history_of(set).create(&new, &mut collision_count, transcript)?
            }
        };
        let status = &set.status.current_revision;
        let current = revisions.iter().find(|one| *one.metadata.name == **status);
        let current = current.map_or_else(|| Rc::clone(&update), Rc::clone);
        Ok(Self { current, update, collision_count })
    }

    /// The templates of both revisions.
    ///
    /// # Errors
    /// When the data of a revision is no patch of the set.
    pub(super) fn templates(&self, whole: &Value) -> Result<Templates, TranscriptStop> {
        let restored = |revision: &Revision| {
            let name = revision.metadata.name.to_string();
            let template = restore(revision, whole).ok_or_else(|| {
                TranscriptStop::failed(format!("the data of ControllerRevision {name} is no patch"))
            })?;
            Ok::<_, TranscriptStop>(RevisionTemplate { revision: name, template })
        };
        Ok(Templates { current: restored(&self.current)?, update: restored(&self.update)? })
    }
}

/// The template of the set with a revision's patch applied.
// k8s: stateful_set_utils.go ApplyRevision
fn restore(revision: &Revision, whole: &Value) -> Option<Value> {
    let patch = serde_json::from_str::<Value>(&revision.data()).ok().filter(Value::is_object)?;
    let schema = Schema::of_kind(&STATEFUL_SETS.api_version(), STATEFUL_SETS.kind)?;
    let mut set = strategic::apply(whole, &patch, schema).ok()?;
    Some(set["spec"]["template"].take())
}

/// The set is what the revision restores, once defaults are set.
// k8s: stateful_set_control.go setMatchesLatestExistingRevision
fn restores(revision: &Revision, whole: &Value, data: &str) -> bool {
    let Some(template) = restore(revision, whole).and_then(with_defaults) else { return false };
    let mut set = whole.clone();
    set["spec"]["template"] = template;
    history::is_same_data(&stateful_set_revision_data(&set), data)
}

/// Makes the set the controller of its orphaned revisions.
///
/// # Errors
/// When the set is deleted or terminating, or the API server refuses it.
// k8s: pkg/controller/statefulset/stateful_set.go adoptOrphanRevisions
pub(super) fn adopt(
    set: &StatefulSet,
    revisions: &[Revision],
    check_owner: impl FnOnce(&mut Transcript) -> Result<(), TranscriptStop>,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let is_orphan = |one: &&Revision| one.metadata.controller().is_none();
    let mut orphans = revisions.iter().filter(is_orphan).peekable();
    if orphans.peek().is_some() {
        check_owner(transcript)?;
    }
    orphans.try_for_each(|orphan| history_of(set).adopt(orphan, transcript))
}

/// Deletes the oldest revisions that no pod needs until as many are left as the set says.
///
/// # Errors
/// When the API server refuses it.
// k8s: stateful_set_control.go truncateHistory
pub(super) fn truncate(
    set: &StatefulSet,
    pods: &[impl std::ops::Deref<Target: std::ops::Deref<Target = Pod>>],
    revisions: &[Revision],
    live: Option<&LiveRevisions>,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let mut names: BTreeSet<&str> = pods.iter().map(|pod| revision_of(pod)).collect();
    for revision in live.iter().flat_map(|live| [&live.current, &live.update]) {
        names.insert(&revision.metadata.name);
    }
    let is_old = |one: &&Revision| !names.contains(&*one.metadata.name);
    let old: Vec<_> = revisions.iter().filter(is_old).collect();
    let limit = set.spec.revision_history_limit.unwrap_or(HISTORY_LIMIT_DEFAULT);
    let Ok(limit) = usize::try_from(limit) else { return Ok(()) };
    for revision in &old[..old.len().saturating_sub(limit)] {
        let name = &revision.metadata.name;
        transcript.because(format!("revision {name} is older than the {limit} that are kept"));
        history_of(set).delete(revision, transcript)?;
    }
    Ok(())
}
