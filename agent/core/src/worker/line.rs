//! Admitted pods that have not started: some wait for a name, some for victims to make room.
//!
//! Pure, part of `Pods`. Indexed by the pod waited for, so that the end of a pod costs only its own
//! waiters. A pod that is stopped before it holds its name stays here until it holds it or has
//! ended, so that a later pod of the name waits for it, too. Bounds: an entry per pod that waits or
//! is stopped like that, and per pod that one of them waits for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::worker::pods::FullName;
use pintle_api_types::ids::{Mono, PodUid};

/// A pod that begins when others have made room for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Blocked {
    /// The pods that have to end first.
    pub(super) others: Vec<PodUid>,
    /// After this they are no longer waited for.
    // k8s: pkg/kubelet/preemption/preemption.go evictPodsToFreeRequests: it goes on as well
    pub(super) until: Mono,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct StartQueue {
    waiting: BTreeMap<PodUid, FullName>,
    by_name: BTreeMap<FullName, BTreeSet<PodUid>>,
    blocked: BTreeMap<PodUid, Blocked>,
    by_other: BTreeMap<PodUid, BTreeSet<PodUid>>,
}

impl StartQueue {
    /// The pod waits for its name, or for room.
    pub(super) fn wait(&mut self, uid: &PodUid, name: FullName) {
        self.by_name.entry(name.clone()).or_default().insert(uid.clone());
        self.waiting.insert(uid.clone(), name);
    }

    /// It begins after others.
    pub(super) fn block(&mut self, uid: &PodUid, blocked: Blocked) {
        self.unblock(uid);
        for other in &blocked.others {
            self.by_other.entry(other.clone()).or_default().insert(uid.clone());
        }
        self.blocked.insert(uid.clone(), blocked);
    }

    /// The pod holds its name, or needs none any more.
    pub(super) fn leave(&mut self, uid: &PodUid) {
        if let Some(name) = self.waiting.remove(uid) {
            take_out(&mut self.by_name, &name, uid);
        }
        self.unblock(uid);
    }

    fn unblock(&mut self, uid: &PodUid) {
        for other in self.blocked.remove(uid).into_iter().flat_map(|blocked| blocked.others) {
            take_out(&mut self.by_other, &other, uid);
        }
    }

    /// Ends the waits that are over by now; returns the pods that waited.
    pub(super) fn give_up(&mut self, now: Mono) -> Vec<PodUid> {
        let over = self.blocked.iter().filter(|(_, blocked)| blocked.until <= now);
        let over: Vec<_> = over.map(|(uid, _)| uid.clone()).collect();
        over.iter().for_each(|uid| self.unblock(uid));
        over
    }

    /// The pods that a pod waits for.
    pub(super) fn blocked(&self, uid: &PodUid) -> Option<&Blocked> {
        self.blocked.get(uid)
    }

    /// When the first wait for others ends at the latest.
    pub(super) fn next_wake(&self) -> Option<Mono> {
        self.blocked.values().map(|blocked| blocked.until).min()
    }

    /// The pods that wait for a name, and those that wait for other pods to end; the omitted fields
    /// follow from these.
    pub(super) fn parts(&self) -> (&BTreeMap<PodUid, FullName>, &BTreeMap<PodUid, Blocked>) {
        (&self.waiting, &self.blocked)
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<PodUid> {
        self.waiting.keys().cloned().collect()
    }

    /// Those of this name.
    pub(super) fn of_name(&self, name: &FullName) -> Vec<PodUid> {
        self.by_name.get(name).into_iter().flatten().cloned().collect()
    }

    /// The pods that wait for this pod's end.
    pub(super) fn after(&self, other: &PodUid) -> Vec<PodUid> {
        self.by_other.get(other).into_iter().flatten().cloned().collect()
    }
}

fn take_out<K: Ord>(index: &mut BTreeMap<K, BTreeSet<PodUid>>, key: &K, uid: &PodUid) {
    let Some(uids) = index.get_mut(key) else { return };
    uids.remove(uid);
    if uids.is_empty() {
        index.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_pod_is_found_by_name_and_blocking_pod_until_it_leaves_the_queue() {
        let (mut line, [a, b, c]) = (StartQueue::default(), ["a", "b", "c"].map(PodUid::from));
        let name = |name: &str| ("ns".to_owned(), name.to_owned());
        line.wait(&a, name("x"));
        line.wait(&b, name("x"));
        let blocked = |until| Blocked { others: vec![c.clone()], until: Mono(until) };
        line.block(&a, blocked(5));
        line.block(&b, blocked(9));
        assert_eq!(line.of_name(&name("x")), [a.clone(), b.clone()]);
        assert_eq!(line.after(&c), [a.clone(), b.clone()]);
        assert_eq!(line.next_wake(), Some(Mono(5)));
        assert_eq!(line.give_up(Mono(4)), []);
        assert_eq!(line.give_up(Mono(5)), std::slice::from_ref(&a));
        assert_eq!(line.after(&c), std::slice::from_ref(&b), "it waits for its name alone now");
        assert_eq!(line.all(), [a.clone(), b.clone()]);
        line.leave(&a);
        line.leave(&b);
        assert!(line.waiting.is_empty() && line.by_name.is_empty());
        assert!(line.blocked.is_empty() && line.by_other.is_empty());
    }
}
