//! Merge: from the full content of each source to the changes.
//!
//! Input: readings of the sources. Output: `SourceUpdate`s in an order in which they may be
//! applied: removals first, since a changed static pod is a removal and an addition of the same
//! name. Owner of the uids that were adopted. Bounds: as many pods as the sources deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{Problem, ProblemCause, Problems, SourceKind, SourceReading, SourceUpdate, static_pod};
use pintle_api_types::ids::{PodUid, UnixNanos};
use pintle_api_types::pod;

/// Annotations that this agent writes itself; they never make a pod different.
// k8s: pkg/kubelet/config/config.go localAnnotations
const LOCAL_ANNOTATIONS: [&str; 3] =
    [pod::ANNOTATION_SOURCE, pod::ANNOTATION_MIRROR, pod::ANNOTATION_SEEN];

/// Looks up a running pod that is this static pod under another agent's uid; see
/// `static_pod::adoptable`. The time is that of the manifest's last change.
pub type RunningUid<'a> = dyn Fn(&Pod, UnixNanos) -> Option<PodUid> + 'a;

/// The pods of all sources.
#[derive(Debug, Default)]
pub struct PodSources {
    expected: BTreeSet<SourceKind>,
    pods: BTreeMap<SourceKind, BTreeMap<String, SourcePod>>,
    /// Those that have delivered all their pods.
    complete: BTreeSet<SourceKind>,
    /// Pods that cannot be read, as of the last readings.
    unreadable: BTreeMap<SourceKind, BTreeSet<PodUid>>,
    problems: BTreeMap<SourceKind, Vec<Arc<Problem>>>,
    /// Those of all sources; another list only when they are others.
    all_problems: Problems,
    /// Uid that we would give a manifest, to the uid it was adopted with.
    adopted: BTreeMap<String, String>,
}

impl PodSources {
    /// Sources that are to deliver before the node counts as known.
    pub fn new(expected: impl IntoIterator<Item = SourceKind>) -> Self {
        Self { expected: expected.into_iter().collect(), ..Self::default() }
    }

    /// True once every source delivered. Before that nothing may be taken for an orphan. A folder
    /// counts as read also when one of its manifests could not be.
    // k8s: pkg/kubelet/config/file.go listConfig, extractFromDir
    pub fn all_ready(&self) -> bool {
        self.expected.is_subset(&self.complete)
    }

    /// Pods that cannot be read. They are no orphans, but their desired state is unknown.
    pub fn unreadable(&self) -> BTreeSet<PodUid> {
        self.unreadable.values().flatten().cloned().collect()
    }

    /// The broken manifests as of the last readings. The same list as long as nothing about them
    /// changes: there may be thousands, and a reading for each file that is touched.
    pub fn problems(&self) -> &Problems {
        &self.all_problems
    }

    /// Takes all pods that a source has now; returns the changes.
    // k8s: pkg/kubelet/config/config.go merge
    pub fn set(
        &mut self,
        kind: SourceKind,
        reading: SourceReading,
        now: UnixNanos,
        running_uid: &RunningUid,
    ) -> Vec<SourceUpdate> {
        let first = self.complete.insert(kind);
        let old = self.pods.remove(&kind).unwrap_or_default();
        let mut pods = BTreeMap::new();
        let mut names = BTreeSet::new();
        let (mut updates, mut adopted) = (Vec::new(), BTreeMap::new());
        let SourceReading { pods: mut read, mut problems, unreadable } = reading;
        let known = self.problems.remove(&kind).unwrap_or_default();
        let known_by_place = ByPlace::new(&known, place);
        // A reading with problems may repeat old pods, which is no news.
        let news = problems.is_empty();
        // Admission is first come, first served, also after a restart of the agent.
        // k8s: pkg/kubelet/kubelet.go HandlePodAdditions
        read.sort_by_key(|(pod, _)| pod.metadata.creation_timestamp.as_ref().map(|t| t.0));
        for (read, changed_at) in read {
            if !names.insert(pod::full_name(&read)) {
                let problem = Arc::new(duplicate(&read, kind));
                if news || !known_by_place.has(&problem.place, &problem) {
                    updates.push(SourceUpdate::Duplicate(read));
                }
                problems.push(problem);
                continue;
            }
            let own = read.metadata.uid.clone().unwrap_or_default();
            let mut uid = own.clone();
            if pod::is_static(&read) && !old.contains_key(&own) {
                let found = self.adopted(&own, &read, changed_at, running_uid);
                if let Some(found) = found {
                    adopted.insert(own, found.clone());
                    uid = found;
                }
            }
            let (taken, update) = take(old.get(&uid), read, &uid, kind, now);
            pods.insert(uid, taken);
            updates.extend(update);
        }
        let unread = unreadable.iter().filter_map(|uid| old.get_key_value(uid.as_str()));
        for (uid, kept) in unread {
            pods.entry(uid.clone()).or_insert_with(|| kept.clone());
        }
        self.unreadable.insert(kind, unreadable);
        let removed = old.iter().filter(|(uid, _)| !pods.contains_key(*uid));
        let mut all: Vec<_> =
            removed.map(|(_, gone)| SourceUpdate::Remove(Arc::clone(&gone.pod))).collect();
        all.append(&mut updates);
        let is_new = |problem: &&Arc<Problem>| !known_by_place.has(&problem.place, problem);
        let fresh = problems.iter().filter(is_new);
        all.extend(fresh.cloned().map(SourceUpdate::Broken));
        if first {
            all.push(SourceUpdate::Ready(kind));
        }
        self.pods.insert(kind, pods);
        let others = known != problems;
        self.problems.insert(kind, problems);
        if others {
            self.all_problems = Arc::new(self.problems.values().flatten().cloned().collect());
        }
        self.adopted.append(&mut adopted);
        self.adopted.retain(|_, uid| self.pods.values().any(|pods| pods.contains_key(uid)));
        all
    }

    /// Takes one pod of a source that has delivered all its pods before.
    pub fn change(&mut self, kind: SourceKind, pod: Pod, now: UnixNanos) -> Option<SourceUpdate> {
        self.readable(kind, &pod::uid(&pod));
        let pods = self.pods.entry(kind).or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let (taken, update) = take(pods.get(&uid), Arc::new(pod), &uid, kind, now);
        pods.insert(uid, taken);
        update
    }

    /// One pod of a source is gone.
    pub fn remove(&mut self, kind: SourceKind, uid: &PodUid) -> Option<SourceUpdate> {
        self.readable(kind, uid);
        let gone = self.pods.get_mut(&kind)?.remove(uid.as_str())?;
        Some(SourceUpdate::Remove(gone.pod))
    }

    /// The desired state of the pod is known again.
    fn readable(&mut self, kind: SourceKind, uid: &PodUid) {
        if let Some(unreadable) = self.unreadable.get_mut(&kind) {
            unreadable.remove(uid);
        }
    }

    /// The uid under which a static pod runs that is not wanted under our own uid yet.
    fn adopted(
        &self,
        own: &str,
        pod: &Pod,
        changed_at: UnixNanos,
        running_uid: &RunningUid,
    ) -> Option<String> {
        let taken = self.adopted.get(own).cloned();
        taken.or_else(|| running_uid(pod, changed_at).map(|uid| uid.to_string()))
    }
}

/// A pod of a source.
#[derive(Clone, Debug)]
struct SourcePod {
    /// The pod as last read, if the source may deliver the same object again.
    read: Option<Arc<Pod>>,
    /// As it is wanted: with our annotations, and under the uid under which it runs.
    pod: Arc<Pod>,
}

/// Known objects by their place: a reading is compared place by place, not all with all.
struct ByPlace<'a, T>(BTreeMap<&'a str, Vec<&'a T>>);

impl<'a, T: PartialEq> ByPlace<'a, T> {
    fn new(known: &'a [T], place: impl Fn(&'a T) -> &'a str) -> Self {
        let mut by_place: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for one in known {
            by_place.entry(place(one)).or_default().push(one);
        }
        Self(by_place)
    }

    fn has(&self, place: &str, one: &T) -> bool {
        self.0.get(place).is_some_and(|known| known.contains(&one))
    }
}

fn place(problem: &Arc<Problem>) -> &str {
    &problem.place
}

fn duplicate(pod: &Pod, kind: SourceKind) -> Problem {
    Problem {
        place: format!("{} from {kind}", pod::described(pod)),
        error: ProblemCause::Duplicate(pod::name(pod).to_owned()),
        keeps_previous: false,
    }
}

/// The record to keep of a pod that was read, and the change.
fn take(
    old: Option<&SourcePod>,
    read: Arc<Pod>,
    uid: &str,
    kind: SourceKind,
    now: UnixNanos,
) -> (SourcePod, Option<SourceUpdate>) {
    if let Some(old) = old
        && old.read.as_ref().is_some_and(|before| Arc::ptr_eq(before, &read))
    {
        return (old.clone(), None);
    }
    // The API server delivers each object once, so no second reference to it is kept.
    let again = (kind != SourceKind::Api).then(|| Arc::clone(&read));
    let mut new = Arc::unwrap_or_clone(read);
    if new.metadata.uid.as_deref().unwrap_or_default() != uid {
        static_pod::set_uid(&mut new, uid.to_owned());
    }
    let (pod, update) = merge_one(old.map(|old| &old.pod), new, kind, now);
    (SourcePod { read: again, pod }, update)
}

/// The pod to keep and its change.
// k8s: pkg/kubelet/config/config.go checkAndUpdatePod
fn merge_one(
    old: Option<&Arc<Pod>>,
    mut new: Pod,
    kind: SourceKind,
    now: UnixNanos,
) -> (Arc<Pod>, Option<SourceUpdate>) {
    let annotations = new.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::ANNOTATION_SOURCE.to_owned(), kind.as_str().to_owned());
    let Some(old) = old else {
        let seen = format!("{:.9}", now.to_timestamp());
        annotations.insert(pod::ANNOTATION_SEEN.to_owned(), seen);
        let new = Arc::new(new);
        return (Arc::clone(&new), Some(SourceUpdate::Add(new)));
    };
    let seen = pod::annotation(old, pod::ANNOTATION_SEEN).unwrap_or_default().to_owned();
    annotations.insert(pod::ANNOTATION_SEEN.to_owned(), seen);
    if same_meaning(old, &new) {
        if old.status == new.status || kind != SourceKind::Api {
            return (Arc::clone(old), None);
        }
        let new = Arc::new(new);
        return (Arc::clone(&new), Some(SourceUpdate::Reconcile(new)));
    }
    let deleted = pod::is_deleted(&new) && !pod::is_deleted(old);
    let new = Arc::new(new);
    let update = if deleted { SourceUpdate::Delete } else { SourceUpdate::Update };
    (Arc::clone(&new), Some(update(new)))
}

/// True when nothing differs that the agent acts on.
// k8s: pkg/kubelet/config/config.go podsDifferSemantically
fn same_meaning(old: &Pod, new: &Pod) -> bool {
    let (a, b) = (&old.metadata, &new.metadata);
    old.spec == new.spec
        && a.labels == b.labels
        && a.deletion_timestamp == b.deletion_timestamp
        && a.deletion_grace_period_seconds == b.deletion_grace_period_seconds
        && foreign_annotations(old) == foreign_annotations(new)
}

fn foreign_annotations(pod: &Pod) -> BTreeMap<&String, &String> {
    let all = pod.metadata.annotations.iter().flatten();
    all.filter(|(key, _)| !LOCAL_ANNOTATIONS.contains(&key.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// An item with a place that counts how often it is compared.
    struct ComparedItem<'a>(String, &'a Cell<usize>);

    impl PartialEq for ComparedItem<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn lookup_by_path_compares_only_the_entry_of_that_path() {
        let compared = Cell::new(0);
        let known: Vec<_> = (0..5000).map(|n| ComparedItem(format!("/m/{n}"), &compared)).collect();
        let by_place = ByPlace::new(&known, |one| one.0.as_str());
        assert!(known.iter().rev().all(|one| by_place.has(&one.0, one)));
        assert!(!by_place.has("/m/x", &known[0]));
        assert_eq!(compared.get(), known.len());
    }
}
