//! Every interleaving of reservations and publications, explored by loom.
//!
//! Run with: RUSTFLAGS="--cfg loom" cargo test -p pintle-sched-core --release --test loom
//!     --target-dir target/loom
//! The models use the crate's own claim, cell and combiner around a state small enough to exhaust.
#![cfg(loom)]
#![allow(missing_docs)]

use loom::sync::Arc;
use loom::thread;
use pintle_sched_core::shared::{Claim, Combiner, PLACEMENT, Published, REACHING};

/// A row with room for one pod, as a view shows it.
#[derive(Clone, Default)]
struct Row {
    used: u32,
    version: u64,
}

const ROOM: u32 = 1;

struct Model {
    view: Published<Row>,
    claim: Claim,
    writer: Combiner<Row, ()>,
}

impl Model {
    fn new() -> Self {
        Self {
            view: Published::new(Row::default()),
            claim: Claim::default(),
            writer: Combiner::new(Row::default()),
        }
    }

    fn apply(row: &mut Row, (): ()) {
        row.used += 1;
        row.version += 1;
    }

    /// One decision on the current view; whether a pod was placed.
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
        let used = model.writer.inspect(|row| row.used);
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
        // Somebody else's pod appears on the row.
        let outside = |row: &mut Row| {
            row.used += 1;
            row.version += 1;
            model.claim.invalidate(1);
            model.view.publish(row.clone());
        };
        model.writer.with(outside, Model::apply, |row| model.view.publish(row.clone()));
        let placed = decider.join().expect("decider");
        let again = u32::from(model.decide());
        let used = model.writer.inspect(|row| row.used);
        assert_eq!(used, 1 + placed + again);
        assert_eq!(again, 0, "the row was full and the view showed it");
    });
}

/// Two rows of one domain: pods of kind 0 refuse company of kind 1 in the domain.
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
        let found = writer.inspect(|d| d.clone());
        assert!(found.lonely == 0 || found.plain == 0, "both were placed");
        assert_eq!(found.lonely + found.plain, 1, "one of them always wins");
    });
}
