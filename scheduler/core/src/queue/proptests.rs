//! Random operations: no pod is lost or in two places, and the order is kept.

use proptest::prelude::*;

use super::tests::{Fake, Helps, TestPod, pod};
use super::*;

const PLUGINS: [Plugin; 3] =
    [Plugin::NodeResourcesFit, Plugin::TaintToleration, Plugin::SchedulingGates];

#[derive(Clone, Debug)]
enum QueueOperation {
    Add(u8, i32, bool),
    Update(u8, bool),
    Remove(u8),
    Pop,
    PopWithoutExtenders,
    MarkBinding(u8),
    Done(u8),
    AddUnschedulable(u8, Option<usize>),
    MoveAll(usize),
    Release(u8, bool),
    Flush,
    Wait(u16),
}

fn operation() -> impl Strategy<Value = QueueOperation> {
    let uid = 0_u8..8;
    prop_oneof![
        3 => (uid.clone(), -2..3, any::<bool>()).prop_map(|(u, p, g)| QueueOperation::Add(u, p, g)),
        1 => (uid.clone(), any::<bool>()).prop_map(|(u, g)| QueueOperation::Update(u, g)),
        1 => uid.clone().prop_map(QueueOperation::Remove),
        5 => Just(QueueOperation::Pop),
        2 => Just(QueueOperation::PopWithoutExtenders),
        2 => uid.clone().prop_map(QueueOperation::MarkBinding),
        1 => uid.clone().prop_map(QueueOperation::Done),
        3 => (uid, proptest::option::of(0..3_usize))
            .prop_map(|(u, p)| QueueOperation::AddUnschedulable(u, p)),
        3 => (0..3_usize).prop_map(QueueOperation::MoveAll),
        2 => (0_u8..8, any::<bool>()).prop_map(|(u, now)| QueueOperation::Release(u, now)),
        1 => Just(QueueOperation::Flush),
        2 => (0..4000_u16).prop_map(QueueOperation::Wait),
    ]
}

/// Every pod is in the heap of its place, and in no other.
fn check(queue: &Queue<TestPod, Helps>) {
    let heaps = [
        queue
            .active
            .iter()
            .chain(&queue.behind)
            .chain(queue.tenants.deferred())
            .map(|(_, uid)| uid)
            .collect::<Vec<_>>(),
        queue.backoff.iter().map(|(_, _, uid)| uid).collect(),
        queue.error_backoff.iter().map(|(_, _, uid)| uid).collect(),
        queue.parked.iter().map(|(_, uid)| uid).collect(),
        queue.flying.iter().map(|(_, uid)| uid).collect(),
    ];
    let all: Vec<&Uid> = heaps.iter().flatten().copied().collect();
    let distinct: std::collections::HashSet<&Uid> = all.iter().copied().collect();
    let waiting = queue.pods.len() - queue.count(QueuePlace::Binding);
    assert_eq!((all.len(), distinct.len()), (waiting, waiting), "{queue:?}");
    let places = [
        (QueuePlace::Active, 0),
        (QueuePlace::Backoff, 1),
        (QueuePlace::ErrorBackoff, 2),
        (QueuePlace::Unschedulable, 3),
        (QueuePlace::Gated, 3),
        (QueuePlace::InFlight, 4),
    ];
    for (place, heap) in places {
        let of = queue.pods.iter().filter(|(_, waiting)| waiting.place == place);
        of.for_each(|(uid, _)| assert!(heaps[heap].contains(&uid), "{uid} {place:?}"));
    }
    assert!(!queue.flying.is_empty() || queue.events.is_empty(), "{queue:?}");
    assert_eq!(queue.stays.len(), queue.count(QueuePlace::Unschedulable), "{queue:?}");
    let parked = queue
        .pods
        .values()
        .filter(|w| matches!(w.place, QueuePlace::Unschedulable | QueuePlace::Gated));
    let mut awaited = BTreeMap::new();
    for by in parked.flat_map(|w| {
        let all: Vec<_> = w.rejectors.iter().chain(&w.pending).map(|by| Some(*by)).collect();
        if all.is_empty() { vec![None] } else { all }
    }) {
        *awaited.entry(by).or_insert(0) += 1;
    }
    assert_eq!(queue.awaited, awaited, "{queue:?}");
}

fn run(queue: &mut Queue<TestPod, Helps>, operation: &QueueOperation, now: &mut Duration) {
    match operation {
        QueueOperation::Add(uid, priority, gated) => {
            queue.add(&uid.to_string(), pod(*priority, *gated), *now);
        }
        QueueOperation::Update(uid, gated) => {
            let Some(known) = queue.get(&uid.to_string()) else { return };
            let priority = known.pod.priority();
            let event = vec![Plugin::SchedulingGates];
            queue.update(&Fake, &uid.to_string(), pod(priority, *gated), event, *now);
        }
        QueueOperation::Remove(uid) => queue.remove(&uid.to_string()),
        QueueOperation::Pop => {
            let first = queue.active.iter().chain(&queue.behind).map(|(turn, _)| turn.0).min();
            let popped = queue.pop(*now);
            assert_eq!(popped.is_some(), first.is_some() || queue.last_popped_backed_off(&popped));
            if let (Some(first), Some((_, pod))) = (first, popped) {
                assert_eq!(pod.rank(), first);
                let rest = queue.pods.values().filter(|w| w.place == QueuePlace::Active);
                rest.for_each(|other| assert!(other.pod.rank() >= first));
            }
        }
        QueueOperation::PopWithoutExtenders => {
            let apart =
                |w: &&WaitingPod<TestPod>| w.place == QueuePlace::Active && !w.pod.consults();
            let first = queue.pods.values().filter(apart).map(|w| w.pod.rank()).min();
            let popped = queue.pop_without_extenders(*now);
            assert_eq!(popped.map(|(_, pod)| pod.rank()), first);
        }
        QueueOperation::MarkBinding(uid) => queue.mark_binding(&uid.to_string()),
        QueueOperation::Done(uid) => queue.done(&uid.to_string()),
        QueueOperation::AddUnschedulable(uid, by) => {
            let by = by.map(|at| PLUGINS[at]).into_iter().collect();
            queue.add_unschedulable(&Fake, &uid.to_string(), by, Rejectors::new(), *now);
        }
        QueueOperation::MoveAll(at) => {
            queue.move_all_to_active_or_backoff(&Fake, &vec![PLUGINS[*at]], *now)
        }
        QueueOperation::Release(uid, at_once) => queue.release(&uid.to_string(), *at_once, *now),
        QueueOperation::Flush => queue.flush(*now),
        QueueOperation::Wait(millis) => *now += Duration::from_millis((*millis).into()),
    }
}

/// The number of pods that wait for the time, and how many of these are unschedulable.
fn time_bound(queue: &Queue<TestPod, Helps>) -> (usize, usize) {
    let longest = queue.count(QueuePlace::Unschedulable);
    (queue.backoff.len() + queue.error_backoff.len() + longest, longest)
}

impl Queue<TestPod, Helps> {
    /// Returns true if the popped pod was popped before, so that it can have been in backoff.
    fn last_popped_backed_off(&self, popped: &Option<(Uid, Rc<TestPod>)>) -> bool {
        popped.as_ref().is_some_and(|(uid, _)| self.pods[uid].attempts > 1)
    }
}

proptest! {
    #[test]
    fn no_pod_is_lost_and_every_ungated_pod_is_popped(
        operations in proptest::collection::vec(operation(), 1..120)
    ) {
        let mut queue = Queue::new(Settings::default());
        let mut now = Duration::from_secs(1);
        for operation in &operations {
            let known = queue.pods.len();
            run(&mut queue, operation, &mut now);
            check(&queue);
            let may_go = matches!(operation,
                QueueOperation::Remove(_) | QueueOperation::Done(_)
                    | QueueOperation::AddUnschedulable(..));
            prop_assert!(may_go || queue.pods.len() >= known, "{operation:?}");
        }
        // Pods in flight come back; then every pod that is not gated is popped without any event.
        let away = |w: &WaitingPod<TestPod>| matches!(w.place, QueuePlace::InFlight | QueuePlace::Binding);
        let flying = queue.pods.iter().filter(|(_, waiting)| away(waiting));
        let flying: Vec<Uid> = flying.map(|(uid, _)| uid.clone()).collect();
        for uid in flying {
            queue.add_unschedulable(&Fake, &uid, [PLUGINS[0]].into(), Rejectors::new(), now);
        }
        while let Some(due) = queue.next_flush() {
            prop_assert!(due > Duration::ZERO);
            let before = time_bound(&queue);
            queue.flush(due);
            check(&queue);
            let message = "it was due and nothing came of it";
            prop_assert!(time_bound(&queue) < before, "{message}: {queue:?}");
        }
        let gated = queue.count(QueuePlace::Gated);
        let turns = std::iter::from_fn(|| queue.pop(now)).count();
        prop_assert_eq!(turns + gated, queue.pods.len());
    }
}
