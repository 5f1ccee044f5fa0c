//! Several deciders at once: an epoch-published view to read, reservations by compare-and-swap.
//!
//! Input: a `Cluster` to share; a pod, its program and the row a decider chose. Output: a
//! reservation, or a conflict. Owner: `Shared`; the cluster inside is touched only by whoever
//! applies reservations. Bounds: one 64-bit claim a row and one for the whole; as many pending
//! reservations as there are deciders.
//!
//! A view shows how often each row changed. A decider swaps the row's claim from that number to
//! the next; whoever decided on an older state of the row loses the swap and decides again. The
//! winner hands its reservation over, and whoever finds the applier's seat free applies all that
//! wait and publishes once. Between two swaps on a row its change was applied and published, so
//! that no row is ever filled on the strength of a state it no longer has.
//! Pods that reach across rows (affinity, hard spread, anti-affinity of others) need more: the
//! claim of the whole counts all placements and, apart, those that reach across. A reaching pod
//! needs that nothing at all was placed since its view; any other that no reaching pod was.
//! Readers never wait. A lost swap costs one retry; handing over holds a lock for one push.

use std::collections::VecDeque;

use crate::sync::{Arc, ArcCell, AtomicU64, Mutex, MutexGuard, Ordering};

/// A number that only the holder of its current value may raise.
#[derive(Debug)]
pub struct Claim(AtomicU64);

impl Default for Claim {
    fn default() -> Self {
        Self::at(0)
    }
}

impl Claim {
    /// A claim at a number.
    #[must_use]
    pub fn at(number: u64) -> Self {
        Self(AtomicU64::new(number))
    }

    /// Raises it by one if it still is `seen`.
    pub fn take(&self, seen: u64) -> bool {
        self.swap(seen, seen + 1)
    }

    /// Lowers it by one: what was claimed is not going to happen.
    pub fn give_back(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Raises it whatever it is: older views of the thing become worthless.
    pub fn invalidate(&self, by: u64) {
        self.0.fetch_add(by, Ordering::AcqRel);
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        // No data is read under the claim; the order of swaps on one claim is all that matters.
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// One placement in the claim of the whole.
pub const PLACEMENT: u64 = 1;
/// One placement that reaches across rows, counted in the upper half beside `PLACEMENT`.
pub const REACHING: u64 = 1 << 32;

impl Claim {
    /// Counts a placement decided when the whole was `seen`; false when it may contradict another.
    pub fn take_whole(&self, seen: u64, reaching: bool) -> bool {
        if reaching {
            return self.swap(seen, seen + PLACEMENT + REACHING);
        }
        loop {
            let now = self.current();
            if now / REACHING != seen / REACHING {
                return false;
            }
            if self.swap(now, now + PLACEMENT) {
                return true;
            }
        }
    }
}

/// State with a published copy: what readers load is replaced as a whole.
#[derive(Debug)]
pub struct Published<V>(ArcCell<V>);

impl<V> Published<V> {
    /// Publishes the first epoch.
    pub fn new(view: V) -> Self {
        Self(ArcCell::new(Arc::new(view)))
    }

    /// The current epoch.
    pub fn load(&self) -> Arc<V> {
        self.0.load()
    }

    /// Replaces the epoch; readers keep the one they hold.
    pub fn publish(&self, view: V) {
        self.0.store(Arc::new(view));
    }
}

/// Work handed to whoever holds the seat: a queue, a state, one applier at a time.
#[derive(Debug)]
pub struct Combiner<S, R> {
    waiting: Mutex<VecDeque<R>>,
    seat: Mutex<S>,
}

impl<S, R> Combiner<S, R> {
    /// A combiner around a state.
    pub fn new(state: S) -> Self {
        Self { waiting: Mutex::new(VecDeque::new()), seat: Mutex::new(state) }
    }

    /// Hands `item` over, and applies everything that waits unless somebody else is doing so.
    /// `finish` runs once after each batch, before the seat is left.
    pub fn hand_over(&self, item: R, apply: impl Fn(&mut S, R), finish: impl Fn(&mut S)) {
        self.queue().push_back(item);
        self.drain(apply, finish);
    }

    /// Runs `with` on the state, waiting for the seat, and then applies what came meanwhile: whoever
    /// found the seat taken relies on it.
    pub fn with<T>(
        &self,
        with: impl FnOnce(&mut S) -> T,
        apply: impl Fn(&mut S, R),
        finish: impl Fn(&mut S),
    ) -> T {
        let result = with(&mut self.seat.lock().expect("an applier does not panic"));
        self.drain(apply, finish);
        result
    }

    /// Looks at the state, waiting for the seat.
    pub fn inspect<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&self.seat.lock().expect("an applier does not panic"))
    }

    fn drain(&self, apply: impl Fn(&mut S, R), finish: impl Fn(&mut S)) {
        while !self.queue().is_empty() {
            // Whoever sits there looks at the queue once more after standing up.
            let Ok(mut state) = self.seat.try_lock() else { return };
            let batch = std::mem::take(&mut *self.queue());
            if !batch.is_empty() {
                batch.into_iter().for_each(|item| apply(&mut state, item));
                finish(&mut state);
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<R>> {
        self.waiting.lock().expect("a push does not panic")
    }
}

#[cfg(not(loom))]
pub use of_cluster::{Conflict, Shared};

#[cfg(not(loom))]
mod of_cluster {
    use super::{Claim, Combiner, PLACEMENT, Published, REACHING};
    use crate::filter::interpod;
    use crate::intern::Str;
    use crate::program::Program;
    use crate::snapshot::chunk::CHUNK_ROWS;
    use crate::snapshot::counters::TermKind;
    use crate::snapshot::objects::PodSpec;
    use crate::snapshot::{Cluster, View};
    use crate::sync::Arc;

    /// A pod reserved on a node.
    #[derive(Debug)]
    struct Reservation {
        pod: Arc<PodSpec>,
        node: Str,
        reaching: bool,
    }

    /// Why a reservation failed; nothing has happened then.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    pub enum Conflict {
        /// The row changed since the view was published.
        #[error("the node has changed")]
        Row,
        /// A pod was placed elsewhere that this one may contradict.
        #[error("a placement elsewhere may contradict this one")]
        Whole,
    }

    /// Chunks of rows beyond those there are, for nodes that join while the cluster is shared.
    const SPARE_CHUNKS: usize = 8;

    /// A cluster shared by several deciders.
    #[derive(Debug)]
    pub struct Shared {
        view: Published<View>,
        rows: Vec<Claim>,
        whole: Claim,
        writer: Combiner<Cluster, Reservation>,
    }

    impl Shared {
        /// Shares a cluster.
        #[must_use]
        pub fn new(cluster: Cluster) -> Self {
            let view = cluster.publish();
            let rows = (view.chunks.len() + SPARE_CHUNKS) * CHUNK_ROWS;
            let version = |row| {
                let there = (row as usize) < view.chunks.len() * CHUNK_ROWS;
                Claim::at(if there { view.version(row) } else { 0 })
            };
            Self {
                rows: (0..rows as u32).map(version).collect(),
                whole: Claim::at(view.whole),
                view: Published::new(view),
                writer: Combiner::new(cluster),
            }
        }

        /// The current epoch.
        #[must_use]
        pub fn view(&self) -> Arc<View> {
            self.view.load()
        }

        /// Reserves `row`, chosen on `view`, for a pod that `Cluster::read_pod` read.
        ///
        /// # Errors
        /// When the row, or what the pod depends on, no longer is as the view shows it.
        pub fn reserve(
            &self,
            view: &View,
            program: &Program,
            pod: &Arc<PodSpec>,
            row: u32,
        ) -> Result<(), Conflict> {
            let claim = &self.rows[row as usize];
            if !claim.take(view.version(row)) {
                return Err(Conflict::Row);
            }
            let reaching = reaches_across(view, program, pod);
            if !self.whole.take_whole(view.whole, reaching) {
                claim.give_back();
                return Err(Conflict::Whole);
            }
            let node = view.names[row as usize];
            let item = Reservation { pod: Arc::clone(pod), node, reaching };
            self.writer.hand_over(item, apply, |cluster| self.view.publish(cluster.publish()));
            Ok(())
        }

        /// Changes the cluster by other deltas than reservations, and publishes the result. Whoever
        /// decided before loses: what the API says is true, whatever a decider saw.
        ///
        /// # Panics
        /// When more nodes joined than there are spare rows.
        pub fn with_cluster<T>(&self, with: impl FnOnce(&mut Cluster) -> T) -> T {
            let finish = |cluster: &mut Cluster| self.view.publish(cluster.publish());
            let change = |cluster: &mut Cluster| {
                let before = cluster.publish();
                let result = with(cluster);
                let view = &cluster.view;
                let capacity = self.rows.len();
                assert!(view.chunks.len() * CHUNK_ROWS <= capacity, "share the cluster anew");
                for row in 0..view.rows as u32 {
                    let old = before.chunks.get(row as usize / CHUNK_ROWS);
                    let old = old.map_or(0, |c| c.version[row as usize % CHUNK_ROWS]);
                    let by = view.version(row) - u64::from(old);
                    if by != 0 {
                        self.rows[row as usize].invalidate(by);
                    }
                }
                if before.epoch != view.epoch {
                    self.whole.invalidate(PLACEMENT + REACHING);
                    cluster.view.whole += PLACEMENT + REACHING;
                }
                self.view.publish(cluster.publish());
                result
            };
            self.writer.with(change, apply, finish)
        }
    }

    fn apply(cluster: &mut Cluster, r: Reservation) {
        cluster.place_on(&r.pod, r.node, true);
        cluster.view.whole += PLACEMENT + if r.reaching { REACHING } else { 0 };
    }

    /// Whether a placement depends on other rows than its own, or restricts them.
    fn reaches_across(view: &View, program: &Program, pod: &PodSpec) -> bool {
        program.affinity.is_some()
            || !program.anti.is_empty()
            || !program.spread_hard.is_empty()
            || pod.terms.iter().any(|t| t.kind == TermKind::RequiredAnti)
            || interpod::forbidding(view, program).next().is_some()
    }
}
