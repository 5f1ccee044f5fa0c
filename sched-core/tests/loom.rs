//! Every interleaving of reservations and publications, explored by loom.
//!
//! Run with: RUSTFLAGS="--cfg loom" cargo test -p pintle-sched-core --release --test loom
//!     --target-dir target/loom
//! The models use the crate's own claim, cell and combiner around a state small enough to exhaust,
//! and at the end the shared cluster itself with one node.
#![cfg(loom)]
#![allow(missing_docs)]

use std::sync::Arc as StdArc;

use k8s_openapi::api::core::v1::Pod;
use loom::sync::Arc;
use loom::thread;
use pintle_sched_core::program::Program;
use pintle_sched_core::shared::{Claim, Combiner, PLACEMENT, Published, REACHING, SharedCluster};
use pintle_sched_core::snapshot::objects::PodSpec;
use pintle_sched_core::{Cluster, Profile, Scratch, decide};
use serde_json::{from_value, json};

/// A row with room for one pod, as a view shows it.
#[derive(Clone, Default)]
struct LoomRow {
    used: u32,
    version: u64,
}

const ROOM: u32 = 1;

struct Model {
    view: Published<LoomRow>,
    claim: Claim,
    writer: Combiner<LoomRow, ()>,
}

impl Model {
    fn new() -> Self {
        Self {
            view: Published::new(LoomRow::default()),
            claim: Claim::default(),
            writer: Combiner::new(LoomRow::default()),
        }
    }

    fn apply(row: &mut LoomRow, (): ()) {
        row.used += 1;
        row.version += 1;
    }

    /// Returns the applied placements, including the queue.
    fn used(&self) -> u32 {
        self.writer.inspect(|row| row.used, Self::apply, |row| self.view.publish(row.clone()))
    }

    /// Makes one decision on the current view; returns true if a pod was placed.
    fn decide(&self) -> bool {
        let view = self.view.load();
        if view.used >= ROOM || !self.claim.take(view.version) {
            return false;
        }
        self.writer.hand_over((), Self::apply, |row| self.view.publish(row.clone()));
        true
    }
}

#[test]
fn a_row_is_never_over_committed_and_every_reservation_is_applied() {
    loom::model(|| {
        let model = Arc::new(Model::new());
        let deciders: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                // A lost swap costs a retry on a newer view.
                thread::spawn(move || u32::from(model.decide()) + u32::from(model.decide()))
            })
            .collect();
        let placed: u32 = deciders.into_iter().map(|d| d.join().expect("decider")).sum();
        let used = model.used();
        assert!(used <= ROOM, "over-committed");
        assert_eq!(used, placed, "a reservation was lost");
        assert_eq!(model.view.load().used, used, "the last epoch was not published");
    });
}

#[test]
fn a_delta_from_outside_makes_older_decisions_lose() {
    loom::model(|| {
        let model = Arc::new(Model::new());
        let decider = {
            let model = Arc::clone(&model);
            thread::spawn(move || u32::from(model.decide()))
        };
        // A pod of another scheduler appears on the row.
        let outside = |row: &mut LoomRow| {
            row.used += 1;
            row.version += 1;
            model.claim.invalidate(1);
            model.view.publish(row.clone());
        };
        model.writer.with(outside, Model::apply, |row| model.view.publish(row.clone()));
        let placed = decider.join().expect("decider");
        let again = u32::from(model.decide());
        let used = model.used();
        assert_eq!(used, 1 + placed + again);
        assert_eq!(again, 0, "the row was full and the view showed it");
    });
}

/// Two rows of one domain: pods of kind 0 repel pods of kind 1 in the domain.
#[derive(Clone, Default)]
struct Domain {
    lonely: u32,
    plain: u32,
    whole: u64,
}

#[test]
fn a_pod_that_reaches_across_rows_meets_no_contradiction() {
    loom::model(|| {
        let view = Arc::new(Published::new(Domain::default()));
        let whole = Arc::new(Claim::default());
        let writer = Arc::new(Combiner::<Domain, bool>::new(Domain::default()));
        let place = |reaching: bool| {
            let (view, whole, writer) =
                (Arc::clone(&view), Arc::clone(&whole), Arc::clone(&writer));
            thread::spawn(move || {
                let seen = view.load();
                let allowed = if reaching { seen.plain == 0 } else { seen.lonely == 0 };
                if !allowed || !whole.take_whole(seen.whole, reaching) {
                    return;
                }
                writer.hand_over(
                    reaching,
                    |d, reaching| {
                        d.lonely += u32::from(reaching);
                        d.plain += u32::from(!reaching);
                        d.whole += PLACEMENT + if reaching { REACHING } else { 0 };
                    },
                    |d| view.publish(d.clone()),
                );
            })
        };
        let deciders = [place(true), place(false)];
        deciders.into_iter().for_each(|d| d.join().expect("decider"));
        let found = writer.inspect(|d| d.clone(), |_, _| unreachable!("all was applied"), |_| ());
        assert!(found.lonely == 0 || found.plain == 0, "both were placed");
        assert_eq!(found.lonely + found.plain, 1, "one of them always wins");
    });
}

/// The shared cluster itself: one node with room for one pod, and pods to place.
fn one_node() -> (Cluster, Vec<Work>) {
    let mut cluster = Cluster::new(Profile::default());
    let node = json!({"metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "1"}}});
    cluster.set_node(&from_value(node).expect("node")).expect("node");
    let mut read = |name: &str| {
        let pod: Pod = from_value(pod(name)).expect("pod");
        (cluster.compile(&pod).expect("pod"), StdArc::new(cluster.read_pod(&pod).expect("pod")))
    };
    let work = ["p", "q"].map(&mut read).into();
    (cluster, work)
}

fn pod(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "uid": name, "namespace": "d"}, "spec": {"containers": [{"name": "c"}]}})
}

type Work = (StdArc<Program>, StdArc<PodSpec>);

/// Places a pod if the current view has room; returns true on success.
fn place(shared: &SharedCluster, (program, spec): &Work) -> bool {
    let view = shared.view();
    let row = decide(&view, program, &mut Scratch::default()).first;
    row.is_some_and(|row| shared.reserve(&view, program, spec, row).is_ok())
}

/// Stack of a deciding thread, in words: a cluster does not fit on the stack of loom's threads.
const STACK: usize = 1 << 18;

fn deciding<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().stack_size(STACK).spawn(f).expect("a thread of the model")
}

/// A model with that stack for its first thread as well.
fn modelled(f: impl Fn() + Sync + Send + 'static) {
    let f = StdArc::new(f);
    loom::model(move || {
        let f = StdArc::clone(&f);
        deciding(move || f()).join().expect("the model's end");
    });
}

#[test]
fn shared_cluster_is_never_overcommitted_and_publishes_its_last_epoch() {
    let (cluster, work) = one_node();
    modelled(move || {
        let shared = Arc::new(SharedCluster::new(cluster.clone()));
        let deciders: Vec<_> = work
            .iter()
            .cloned()
            .map(|work| {
                let shared = Arc::clone(&shared);
                deciding(move || u64::from(place(&shared, &work)))
            })
            .collect();
        let placed: u64 = deciders.into_iter().map(|d| d.join().expect("decider")).sum();
        assert_eq!(placed, 1, "one of them always wins");
        let epoch = shared.view().epoch();
        shared.with_cluster(|cluster| {
            assert_eq!(cluster.pods().len(), 1);
            assert_eq!(cluster.view().epoch(), epoch, "the last epoch was not published");
        });
    });
}

#[test]
fn a_delta_into_the_shared_cluster_makes_older_decisions_lose() {
    let (cluster, work) = one_node();
    modelled(move || {
        let shared = Arc::new(SharedCluster::new(cluster.clone()));
        let decider = {
            let (shared, work) = (Arc::clone(&shared), work[0].clone());
            deciding(move || u64::from(place(&shared, &work)))
        };
        let mut outside = pod("outside");
        outside["spec"]["nodeName"] = json!("n");
        let outside: Pod = from_value(outside).expect("pod");
        shared.with_cluster(|cluster| cluster.set_pod(&outside).map(|_| ())).expect("pod");
        let placed = decider.join().expect("decider");
        assert!(!place(&shared, &work[1]), "the node is full and the view shows it");
        let pods = shared.with_cluster(|cluster| cluster.pods().len());
        assert_eq!(pods as u64, 1 + placed);
    });
}
