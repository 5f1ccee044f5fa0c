//! The watches under way: which kinds are followed, and for how long after discovery lost one.
//!
//! Input: the kinds that controllers read, and discovery. Output: watches, and kinds whose watch
//! has ended. A kind that discovery has no more is followed for `DRAIN` yet: its objects were
//! deleted before it, and the watch may be slower than discovery. Bounds: two watches a kind, with
//! and without content.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pintle_api_types::kind::Kind;
use pintle_controllers_core::frame::Frame;
use pintle_controllers_core::tables::{DiscoveredKinds, WatchEvent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::discovery::DiscoveryHandle;
use crate::follow::{KindSource, follow_kind};

/// How long the deletions of objects of an undiscovered kind may arrive: the period in which
/// upstream's collector notices that the kind is gone.
// k8s: cmd/kube-controller-manager/app/core.go garbageCollectorController.Run, syncPeriod
const DRAIN: Duration = Duration::from_secs(30);

/// The watches under way, by kind.
pub(crate) struct KindWatches {
    client: kube::Client,
    told: mpsc::Sender<WatchEvent>,
    discovery: DiscoveryHandle,
    typed: BTreeMap<Kind, JoinHandle<()>>,
    metadata: BTreeMap<Kind, JoinHandle<()>>,
    undiscovered: Undiscovered,
}

/// Kinds that discovery has no more, with the time when their watch ends.
#[derive(Debug, Default)]
struct Undiscovered(BTreeMap<Kind, Instant>);

impl KindWatches {
    pub(crate) fn new(
        client: kube::Client,
        discovery: DiscoveryHandle,
        told: mpsc::Sender<WatchEvent>,
    ) -> Self {
        Self {
            client,
            told,
            discovery,
            typed: BTreeMap::new(),
            metadata: BTreeMap::new(),
            undiscovered: Undiscovered::default(),
        }
    }

    pub(crate) fn follow(&mut self, kinds: &[Kind], only_metadata: bool) {
        for kind in kinds {
            let source = KindSource { kind: *kind, only_metadata, fields: kind.fields };
            let watch = follow_kind(self.client.clone(), &source, &self.told, &self.discovery);
            let watch = tokio::task::spawn_local(watch);
            let of = if only_metadata { &mut self.metadata } else { &mut self.typed };
            of.insert(*kind, watch);
        }
    }

    /// Follows the metadata of each kind that is not followed otherwise, if some controller wants
    /// it.
    pub(crate) fn follow_discovered(&mut self, frame: &Frame, discovered: &DiscoveredKinds) {
        if !frame.reads_all_metadata() {
            return;
        }
        let kinds = discovered.preferred(&["list", "watch"]).map(|found| found.kind);
        let is_new =
            |kind: &Kind| !self.typed.contains_key(kind) && !self.metadata.contains_key(kind);
        let new: Vec<_> = kinds.filter(is_new).filter(|kind| kind.plural != "events").collect();
        self.follow(&new, true);
    }

    /// Notes which followed kinds discovery has no more; a kind of an unreadable group stays.
    pub(crate) fn mark_undiscovered(&mut self, discovered: &DiscoveredKinds, now: Instant) {
        self.undiscovered.mark(self.metadata.keys(), discovered, now);
    }

    /// Ends the watches that have nothing to report any more, and returns their kinds.
    pub(crate) fn end_undiscovered(&mut self, now: Instant) -> Vec<Kind> {
        let over = self.undiscovered.take_over(now);
        for watch in over.iter().filter_map(|kind| self.metadata.remove(kind)) {
            watch.abort();
        }
        over
    }
}

impl Undiscovered {
    fn mark<'a>(
        &mut self,
        followed: impl Iterator<Item = &'a Kind>,
        discovered: &DiscoveredKinds,
        now: Instant,
    ) {
        for kind in followed {
            if is_served(kind, discovered) {
                self.0.remove(kind);
            } else if has_other_version(kind, discovered) {
                // Its objects were not deleted, and the other watch shows them.
                self.0.insert(*kind, now);
            } else {
                self.0.entry(*kind).or_insert(now + DRAIN);
            }
        }
    }

    fn take_over(&mut self, now: Instant) -> Vec<Kind> {
        let mut over = Vec::new();
        self.0.retain(|kind, end| {
            let is_over = *end <= now;
            if is_over {
                over.push(*kind);
            }
            !is_over
        });
        over
    }
}

fn is_served(kind: &Kind, discovered: &DiscoveredKinds) -> bool {
    let group = kind.api_version();
    let mut failed = discovered.failed_groups.keys();
    discovered.kinds.iter().any(|found| found.kind == *kind)
        || failed.any(|failed| *failed == group || failed.starts_with('*'))
}

fn has_other_version(kind: &Kind, discovered: &DiscoveredKinds) -> bool {
    let is_same = |other: &Kind| (other.group, other.plural) == (kind.group, kind.plural);
    discovered.kinds.iter().any(|found| is_same(&found.kind))
}

impl Drop for KindWatches {
    fn drop(&mut self) {
        self.typed.values().chain(self.metadata.values()).for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use pintle_controllers_core::tables::DiscoveredKind;

    use super::*;

    fn kind(version: &str) -> Kind {
        Kind::interned("example.com", version, "things", "Thing", true)
    }

    fn discovered(kinds: &[Kind]) -> DiscoveredKinds {
        let found = kinds.iter().map(|kind| DiscoveredKind {
            kind: *kind,
            verbs: Vec::new(),
            is_preferred: true,
        });
        DiscoveredKinds { kinds: found.collect(), ..DiscoveredKinds::default() }
    }

    #[test]
    fn undiscovered_kind_is_watched_until_drained_unless_back_or_in_another_version() {
        let start = Instant::now();
        let late = start + DRAIN;
        let early = late - Duration::from_millis(1);
        let (v1, v2) = (kind("v1"), kind("v2"));
        let table = [
            ("it stays away", vec![vec![], vec![]], vec![], vec![v1]),
            ("it is back", vec![vec![], vec![v1]], vec![], vec![]),
            ("another version", vec![vec![v2]], vec![v1], vec![]),
            ("another version, later", vec![vec![], vec![v2]], vec![v1], vec![]),
            ("it was never away", vec![vec![v1, v2]], vec![], vec![]),
        ];
        for (name, readings, over_early, over_late) in table {
            let mut undiscovered = Undiscovered::default();
            for kinds in readings {
                undiscovered.mark([v1].iter(), &discovered(&kinds), start);
            }
            assert_eq!(undiscovered.take_over(early), over_early, "{name}, early");
            assert_eq!(undiscovered.take_over(late), over_late, "{name}, late");
            assert_eq!(undiscovered.take_over(late), [], "{name}, again");
        }
    }

    #[test]
    fn kind_of_a_group_that_cannot_be_read_stays() {
        let start = Instant::now();
        for failed in ["example.com/v1", "*"] {
            let failed_groups = [(failed.to_owned(), "no answer".to_owned())];
            let discovered = DiscoveredKinds {
                failed_groups: failed_groups.into(),
                ..DiscoveredKinds::default()
            };
            let mut undiscovered = Undiscovered::default();
            undiscovered.mark([kind("v1")].iter(), &discovered, start);
            assert_eq!(undiscovered.take_over(start + DRAIN), [], "{failed}");
        }
    }
}
