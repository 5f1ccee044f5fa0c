//! Indices that replace a search among all pods at every input: the next pod to wake, the owner of
//! a container, the touched pods.
//!
//! Pure. Kept up to date by `Pods::with`, which makes every change of a worker. A search touches
//! the memory of each worker, which on a node of 500 pods costs more than the input itself. Bounds:
//! an entry per worker, per container and sandbox, and per pod touched since the last question.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::observed::ObservedPod;
use pintle_api_types::ids::{ContainerId, Mono, PodUid, Version};

/// The indices over all workers.
#[derive(Debug, Default)]
pub(crate) struct Index {
    wakes: BTreeSet<(Mono, PodUid)>,
    owners: HashMap<ContainerId, PodUid>,
    /// The containers of each pod in `owners`.
    owned: BTreeMap<PodUid, Vec<ContainerId>>,
    touched: BTreeSet<PodUid>,
}

/// The values of a worker in the indices.
pub(super) type Indexed = (Option<Mono>, Version);

impl Index {
    /// A worker was changed: its values before and now.
    pub(crate) fn changed(
        &mut self,
        uid: &PodUid,
        before: Indexed,
        after: Indexed,
        pod: &ObservedPod,
    ) {
        self.touch(uid);
        self.wakes_at(uid, before.0, after.0);
        if before.1 != after.1 {
            let sandboxes = pod.sandboxes.iter().map(|s| ContainerId::from(s.id.as_str()));
            self.owns(uid, pod.containers.iter().map(|c| c.id.clone()).chain(sandboxes).collect());
        }
    }

    /// Removes a worker with these values.
    pub(crate) fn gone(&mut self, uid: &PodUid, before: Indexed) {
        self.touch(uid);
        self.wakes_at(uid, before.0, None);
        self.owns(uid, Vec::new());
    }

    /// A pod that others see may look different now.
    pub(crate) fn touch(&mut self, uid: &PodUid) {
        if !self.touched.contains(uid) {
            self.touched.insert(uid.clone());
        }
    }

    /// The pods touched since the last question.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<PodUid> {
        std::mem::take(&mut self.touched)
    }

    /// When a worker next has to wake.
    pub(crate) fn next_wake(&self) -> Option<Mono> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// The workers that are due to wake, by uid.
    pub(crate) fn due(&self, now: Mono) -> BTreeSet<PodUid> {
        let due = self.wakes.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, uid)| uid.clone()).collect()
    }

    /// The pod of this container or sandbox.
    pub(crate) fn owner(&self, id: &ContainerId) -> Option<&PodUid> {
        self.owners.get(id)
    }

    /// Containers that two pods have had, and their owner: the owner depends on which of the two
    /// was read last, so an index rebuilt from all workers would differ.
    pub(super) fn contested(&self) -> Vec<(ContainerId, Option<PodUid>)> {
        let ids = self.owned.iter().flat_map(|(uid, ids)| ids.iter().map(move |id| (id, uid)));
        let anew: BTreeMap<_, _> = ids.collect();
        let differs = anew.into_iter().filter(|(id, uid)| self.owner(id) != Some(uid));
        differs.map(|(id, _)| (id.clone(), self.owner(id).cloned())).collect()
    }

    /// Has these as they were.
    pub(super) fn contest(&mut self, contested: Vec<(ContainerId, Option<PodUid>)>) {
        for (id, owner) in contested {
            match owner {
                Some(owner) => drop(self.owners.insert(id, owner)),
                None => drop(self.owners.remove(&id)),
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn owners(&self) -> impl Iterator<Item = (&ContainerId, &PodUid)> {
        self.owners.iter()
    }

    fn wakes_at(&mut self, uid: &PodUid, before: Option<Mono>, after: Option<Mono>) {
        if before == after {
            return;
        }
        if let Some(at) = before {
            self.wakes.remove(&(at, uid.clone()));
        }
        if let Some(at) = after {
            self.wakes.insert((at, uid.clone()));
        }
    }

    fn owns(&mut self, uid: &PodUid, ids: Vec<ContainerId>) {
        for id in self.owned.remove(uid).into_iter().flatten() {
            if self.owners.get(&id) == Some(uid) {
                self.owners.remove(&id);
            }
        }
        if !ids.is_empty() {
            self.owners.extend(ids.iter().map(|id| (id.clone(), uid.clone())));
            self.owned.insert(uid.clone(), ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::testing;

    fn pod(containers: &[&str]) -> ObservedPod {
        let mut pod = ObservedPod::empty(PodUid::from("u"), "ns", "u");
        pod.sandboxes.push(testing::sandbox());
        pod.containers = containers.iter().map(|id| testing::container("c", id)).collect();
        pod
    }

    #[test]
    fn container_is_indexed_from_the_first_to_the_last_read_of_its_pod_that_shows_it() {
        let (mut index, uid) = (Index::default(), PodUid::from("u"));
        let owned = |index: &Index, id: &str| index.owner(&id.into()) == Some(&PodUid::from("u"));
        let at = |version| (None, Version(version));
        index.changed(&uid, at(0), at(1), &pod(&["a", "b"]));
        assert!(owned(&index, "a") && owned(&index, "b") && owned(&index, "s"));
        index.changed(&uid, at(1), at(2), &pod(&["b", "c"]));
        assert!(!owned(&index, "a") && owned(&index, "b") && owned(&index, "c"));
        // Nothing was read in between.
        index.changed(&uid, at(2), at(2), &pod(&[]));
        assert!(owned(&index, "c"));
        index.gone(&uid, at(2));
        assert_eq!(index.owners().count(), 0);
        assert_eq!(index.take_touched().len(), 1);
        assert!(index.take_touched().is_empty());
    }

    #[test]
    fn rebuilt_index_keeps_the_owners_of_contested_containers() {
        let (read, at) = (|version| (None, Version(version)), Version(0));
        let made = |order: &[(&str, &[&str])]| {
            let mut index = Index::default();
            for (version, (uid, containers)) in (1..).zip(order) {
                let before = (None, at);
                index.changed(&(*uid).into(), before, read(version), &pod(containers));
            }
            index
        };
        for order in [
            &[("v", &["a", "b"][..]), ("u", &["a"])][..],
            &[("u", &["a"]), ("v", &["a"]), ("v", &["b"])],
        ] {
            let old = made(order);
            let mut new = Index::default();
            for (uid, ids) in &old.owned {
                new.owns(uid, ids.clone());
            }
            assert_ne!(new.owners, old.owners, "{order:?}");
            new.contest(old.contested());
            assert_eq!(new.owners, old.owners, "{order:?}");
        }
        assert_eq!(made(&[("u", &["a"]), ("v", &["b"])]).contested(), [], "the later one has it");
    }
}
