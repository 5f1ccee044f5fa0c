//! A cluster shared by several deciders.
//!
//! Input: decisions on published views, and deltas from outside. Output: reservations, each on a
//! row and a whole that are still as in its view. Owner: the daemon; deciders hold references.
//! Bounds: a claim of eight bytes a row, in `SEGMENTS` parts that are made when a row first needs
//! one and never move; a delta touches the claims of the rows it changed.

use std::sync::OnceLock;

use super::epochs::Epochs;
use super::{Claim, Combiner, PLACEMENT, Published, REACHING};
use crate::chunk::CHUNK_ROWS;
use crate::columns::counters::TermKind;
use crate::filter::interpod;
use crate::intern::Str;
use crate::program::Program;
use crate::snapshot::objects::PodSpec;
use crate::snapshot::replica::PodChange;
use crate::snapshot::{Cluster, View};
use crate::sync::Arc;

/// A pod reserved on a node.
#[derive(Debug)]
struct Reservation {
    pod: Arc<PodSpec>,
    node: Str,
    reaching: bool,
}

/// Reason why a reservation failed; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// The row changed since the view was published.
    #[error("the node has changed")]
    Row,
    /// A pod was placed elsewhere that this one may contradict.
    #[error("a placement elsewhere may contradict this one")]
    Whole,
}

/// Parts of the claims: each is twice as long as the one before, together more than 2^32 rows.
const SEGMENTS: usize = 24;

/// Claims by row, for any number of rows.
#[derive(Debug)]
struct RowClaims {
    segments: [OnceLock<Box<[Claim]>>; SEGMENTS],
}

impl RowClaims {
    /// Claims of a view's rows.
    fn of(view: &View) -> Self {
        let claims = Self { segments: std::array::from_fn(|_| OnceLock::new()) };
        for row in 0..view.rows as u32 {
            claims.of_row(row).invalidate(view.version(row));
        }
        claims
    }

    /// Returns the claim of a row; created at zero, where the versions of a new row begin.
    fn of_row(&self, row: u32) -> &Claim {
        let chunk = row as usize / CHUNK_ROWS + 1;
        let segment = chunk.ilog2() as usize;
        let first = ((1 << segment) - 1) * CHUNK_ROWS;
        let claims = self.segments[segment]
            .get_or_init(|| (0..CHUNK_ROWS << segment).map(|_| Claim::default()).collect());
        &claims[row as usize - first]
    }
}

/// The state behind the write lock.
#[derive(Debug)]
struct WriterState {
    cluster: Cluster,
    epochs: Epochs,
}

/// A cluster shared by several deciders.
#[derive(Debug)]
pub struct SharedCluster {
    view: Published<View>,
    rows: RowClaims,
    whole: Claim,
    writer: Combiner<WriterState, Reservation>,
}

impl SharedCluster {
    /// Shares a cluster.
    #[must_use]
    pub fn new(mut cluster: Cluster) -> Self {
        let view = Arc::new(cluster.publish());
        let epochs = Epochs::of(&mut cluster, Arc::clone(&view));
        Self {
            rows: RowClaims::of(&view),
            whole: Claim::at(view.whole),
            view: Published::of(view),
            writer: Combiner::new(WriterState { cluster, epochs }),
        }
    }

    /// The current epoch.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load()
    }

    /// Reserves `row`, chosen on `view`, for a pod parsed by `Cluster::read_pod`.
    ///
    /// # Errors
    /// The row, or a dependency of the pod, has changed since the view.
    pub fn reserve(
        &self,
        view: &View,
        program: &Program,
        pod: &Arc<PodSpec>,
        row: u32,
    ) -> Result<(), Conflict> {
        let claim = self.rows.of_row(row);
        if !claim.take(view.version(row)) {
            return Err(Conflict::Row);
        }
        // A stale program does not know all dependencies of the pod.
        let reaching = reaches_across(view, program, pod);
        if !view.is_current(program) || !self.whole.take_whole(view.whole, reaching) {
            claim.undo_take();
            return Err(Conflict::Whole);
        }
        let node = view.names[row as usize];
        let item = Reservation { pod: Arc::clone(pod), node, reaching };
        self.writer.hand_over(item, apply, |writer| self.publish(writer));
        Ok(())
    }

    /// Changes the cluster by other deltas than reservations, and publishes the result. Deciders
    /// with an older view lose, because the API server's state is authoritative.
    pub fn with_cluster<T>(&self, with: impl FnOnce(&mut Cluster) -> T) -> T {
        let finish = |writer: &mut WriterState| self.publish(writer);
        let change = |writer: &mut WriterState| {
            let cluster = &mut writer.cluster;
            let before = cluster.view.epoch;
            let result = with(cluster);
            // One entry for each change, as a version counts one for each change.
            for change in cluster.log.iter().flatten() {
                if let PodChange::Numbers(row, _) = change {
                    self.rows.of_row(*row).invalidate(1);
                }
            }
            if before != cluster.view.epoch {
                self.whole.invalidate(PLACEMENT + REACHING);
                cluster.view.whole += PLACEMENT + REACHING;
            }
            self.publish(writer);
            result
        };
        self.writer.with(change, apply, finish)
    }

    fn publish(&self, writer: &mut WriterState) {
        writer.epochs.publish(&mut writer.cluster, &self.view);
    }
}

fn apply(writer: &mut WriterState, r: Reservation) {
    let cluster = &mut writer.cluster;
    cluster.place_on(&r.pod, r.node, true);
    cluster.view.whole += PLACEMENT + if r.reaching { REACHING } else { 0 };
}

/// Returns true if a placement depends on other rows than its own, or restricts them.
fn reaches_across(view: &View, program: &Program, pod: &PodSpec) -> bool {
    program.pods.required.is_some()
        || !program.pods.anti.is_empty()
        || !program.spread.hard.is_empty()
        || pod.terms.iter().any(|t| t.kind == TermKind::RequiredAnti)
        || interpod::forbidding(view, program).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::{bound, node, pod};
    use crate::{Profile, Scratch, decide};

    #[test]
    fn a_shared_cluster_grows_without_limit() {
        let mut cluster = Cluster::new(Profile::default());
        let room = cluster.set_node(&node("first")).expect("node");
        let program = cluster.compile(&pod("p")).expect("pod");
        let spec = Arc::new(cluster.read_pod(&pod("p")).expect("pod"));
        let shared = SharedCluster::new(cluster);
        // Far beyond the first chunk, in one delta.
        shared.with_cluster(|c| (0..9_000).for_each(|at| _ = c.set_node(&node(&format!("n{at}")))));
        let view = shared.view();
        assert_eq!(view.node_count(), 9_001);
        assert_eq!(decide(&view, &program, &mut Scratch::default()).feasible, 9_001);
        assert_eq!(shared.reserve(&view, &program, &spec, 8_999), Ok(()));
        assert_eq!(shared.reserve(&view, &program, &spec, 8_999), Err(Conflict::Row));
        assert!(room == 0 && shared.view().version(8_999) > view.version(8_999));
    }

    #[test]
    fn delta_invalidates_reservations_on_changed_rows_and_a_confirmation_none() {
        let mut cluster = Cluster::new(Profile::default());
        for name in ["a", "b"] {
            cluster.set_node(&node(name)).expect("node");
        }
        let program = cluster.compile(&pod("p")).expect("pod");
        let read = |c: &mut Cluster, name: &str| Arc::new(c.read_pod(&pod(name)).expect("pod"));
        let (p, q) = (read(&mut cluster, "p"), read(&mut cluster, "q"));
        let shared = SharedCluster::new(cluster);
        shared.reserve(&shared.view(), &program, &p, 0).expect("no other decider");
        let view = shared.view();
        shared.with_cluster(|c| c.set_pod(&bound("p", "a")).expect("the same pod"));
        assert_eq!(shared.view().epoch(), view.epoch(), "a confirmation is no change");
        assert_eq!(
            shared.reserve(&view, &program, &q, 0),
            Ok(()),
            "nor does it fail another reservation"
        );
        let view = shared.view();
        shared.with_cluster(|c| c.set_pod(&bound("r", "b")).expect("another pod"));
        assert_eq!(shared.reserve(&view, &program, &q, 1), Err(Conflict::Row));
    }
}
