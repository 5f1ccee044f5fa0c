//! The effects of a hung or broken job on its own pod and on other pods.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use proptest::prelude::*;

use super::queue::{JobId, JobQueue, WAITING_PER_OWNER_MAX};
use super::*;

fn uid(name: &str) -> PodUid {
    PodUid::from(name)
}

/// Holds jobs up until it is opened.
#[derive(Clone, Default)]
struct JobGate(Arc<(Mutex<bool>, Condvar)>);

impl JobGate {
    fn pass(&self) {
        let (open, changed) = &*self.0;
        let open = open.lock().expect("a gate");
        drop(changed.wait_while(open, |open| !*open).expect("a gate"));
    }

    fn open(&self) {
        let (open, changed) = &*self.0;
        *open.lock().expect("a gate") = true;
        changed.notify_all();
    }
}

/// Orders a job that hangs at the gate and waits until it runs or is sure to wait.
async fn hang(pool: &Pool, place: JobPlace, gate: &JobGate) {
    let (pool, gate) = (pool.clone(), gate.clone());
    let (begun, seen) = oneshot::channel();
    let job = move || {
        let _ = begun.send(());
        gate.pass();
    };
    tokio::task::spawn(async move { pool.run(place, job).await });
    let _ = tokio::time::timeout(Duration::from_millis(200), seen).await;
}

#[tokio::test(flavor = "current_thread")]
async fn pods_with_hung_files_block_only_their_own_jobs() {
    let (pool, gate) = (Pool::default(), JobGate::default());
    // As many as there are threads without spare ones, and a second change of each.
    for pod in 0..Class::Pod.limits().threads {
        for _ in 0..2 {
            hang(&pool, JobPlace::change(&uid(&format!("hung{pod}"))), &gate).await;
        }
    }
    let before = pool.counts(Class::Pod);
    assert_eq!((before.running, before.waiting), (4, 4), "one change of each pod runs");
    let other = pool.run(JobPlace::change(&uid("healthy")), || 7).await;
    assert_eq!(other, Ok(7), "a spare thread takes it");
    assert!(pool.counts(Class::Pod).slow >= 1);
    let other_class = pool.run(JobPlace::own("ledger"), || 8).await;
    assert_eq!(other_class, Ok(8));
    gate.open();
}

#[tokio::test(flavor = "current_thread")]
async fn threads_stay_bounded_under_any_number_of_hung_pods() {
    let (pool, gate) = (Pool::with(|_| ThreadLimits { threads: 2, spare: 3 }), JobGate::default());
    for pod in 0..40 {
        let place = JobPlace::look(&uid(&format!("hung{pod}"))).within(Duration::from_secs(60));
        let (pool, gate) = (pool.clone(), gate.clone());
        tokio::task::spawn(async move { pool.run(place, move || gate.pass()).await });
    }
    // Until all spare threads are taken; each wave of slow jobs frees the next.
    while pool.counts(Class::Pod).running < 5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let late = pool.run(JobPlace::look(&uid("late")).within(SLOW_AFTER * 2), || ()).await;
    assert!(matches!(late, Err(Blocked::TimedOut(_))), "{late:?}");
    assert_eq!(pool.threads(Class::Pod), 5);
    assert_eq!(pool.given_up(), 1);
    gate.open();
}

#[tokio::test(flavor = "current_thread")]
async fn change_waits_for_a_timed_out_change_of_the_same_pod() {
    let (pool, gate) = (Pool::default(), JobGate::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    let (held, first) = (gate.clone(), Arc::clone(&order));
    let mount = move || {
        held.pass();
        first.lock().expect("a list").push("mounted");
    };
    let place = JobPlace::foreign(&uid("a")).within(Duration::from_millis(50));
    let given_up = pool.run(place, mount).await;
    assert!(matches!(given_up, Err(Blocked::TimedOut(_))), "{given_up:?}");
    // Another class, the same pod: its files have one writer.
    let second = Arc::clone(&order);
    let removal = pool.run(JobPlace::removal(&uid("a")), move || {
        second.lock().expect("a list").push("removed");
    });
    tokio::pin!(removal);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut removal).await;
    assert!(early.is_err(), "it waits");
    let looked = pool.run(JobPlace::look(&uid("a")), || 1).await;
    assert_eq!(looked, Ok(1), "a read does not");
    gate.open();
    removal.await.expect("removed");
    assert_eq!(*order.lock().expect("a list"), ["mounted", "removed"]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_panic_is_an_answer_and_takes_no_thread_along() {
    let pool = Pool::with(|_| ThreadLimits { threads: 1, spare: 0 });
    for _ in 0..3 {
        let done = pool.run(JobPlace::own("ledger"), || panic!("a broken file")).await;
        assert_eq!(done, Err::<(), _>(Blocked::Panicked));
    }
    assert_eq!(pool.run(JobPlace::own("ledger"), || 1).await, Ok(1));
    // The answer comes a moment before the place is given back.
    while pool.counts(Class::Own) != ClassCounts::default() {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.threads(Class::Own), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn dropped_caller_cancels_its_waiting_job() {
    let (pool, gate) = (Pool::default(), JobGate::default());
    hang(&pool, JobPlace::change(&uid("a")), &gate).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let second =
        pool.run(JobPlace::change(&uid("a")), move || count.fetch_add(1, Ordering::SeqCst));
    let waited = tokio::time::timeout(Duration::from_millis(50), second).await;
    assert!(waited.is_err());
    assert_eq!(pool.counts(Class::Pod).waiting, 0);
    gate.open();
    pool.run(JobPlace::change(&uid("a")), || ()).await.expect("its turn comes");
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[test]
fn an_owner_cannot_fill_the_queue() {
    let mut queue = JobQueue::new(Class::limits);
    let greedy = JobPlace::change(&uid("greedy"));
    for _ in 0..WAITING_PER_OWNER_MAX {
        queue.push(&greedy, ()).expect("room");
    }
    assert_eq!(queue.push(&greedy, ()), Err(()));
    queue.push(&JobPlace::change(&uid("other")), ()).expect("room");
}

#[test]
fn owners_take_turns() {
    let mut queue = JobQueue::new(|_| ThreadLimits { threads: 1, spare: 0 });
    for (owner, jobs) in [("many", 3), ("few", 1), ("two", 2)] {
        for _ in 0..jobs {
            queue.push(&JobPlace::change(&uid(owner)), owner).expect("room");
        }
    }
    let now = Instant::now();
    let mut ran = Vec::new();
    while let Some((id, owner)) = queue.begin(Class::Pod, now) {
        ran.push(owner);
        queue.ended(Class::Pod, id);
    }
    assert_eq!(ran, ["many", "few", "two", "many", "two", "many"]);
}

#[test]
fn a_spare_thread_is_for_owners_that_hold_none_up() {
    let mut queue = JobQueue::new(|_| ThreadLimits { threads: 1, spare: 1 });
    let now = Instant::now();
    queue.push(&JobPlace::change(&uid("slow")), ()).expect("room");
    queue.begin(Class::Pod, now).expect("begins");
    queue.push(&JobPlace::look(&uid("slow")), ()).expect("room");
    let later = now + SLOW_AFTER;
    assert!(!queue.could_begin(Class::Pod, later), "its own second job");
    queue.push(&JobPlace::look(&uid("other")), ()).expect("room");
    assert!(!queue.could_begin(Class::Pod, now), "not slow yet");
    assert!(queue.could_begin(Class::Pod, later));
}

proptest! {
    /// In any order of new, ended and withdrawn jobs shares hold and every job is accounted for.
    #[test]
    fn shares_hold_in_any_order(steps in proptest::collection::vec((0_u8..4, 0_usize..5, any::<bool>()), 1..200)) {
        let mut queue = JobQueue::new(|_| ThreadLimits { threads: 3, spare: 2 });
        let mut now = Instant::now();
        let mut waiting: Vec<(JobPlace, JobId)> = Vec::new();
        let mut running: Vec<(JobId, JobPlace)> = Vec::new();
        for (step, pod, looks) in steps {
            let pod = uid(&format!("p{pod}"));
            let place = if looks { JobPlace::look(&pod) } else { JobPlace::change(&pod) };
            match step {
                0 => if let Ok(id) = queue.push(&place, place.clone()) {
                    waiting.push((place, id));
                },
                1 => {
                    let could = queue.could_begin(Class::Pod, now);
                    let begun = queue.begin(Class::Pod, now);
                    prop_assert_eq!(could, begun.is_some());
                    if let Some((id, place)) = begun {
                        prop_assert!(running.iter().all(|(_, other)| *other != place));
                        waiting.retain(|(_, of)| *of != id);
                        running.push((id, place));
                    }
                }
                2 => if let Some((id, _)) = running.pop() {
                    queue.ended(Class::Pod, id);
                } else if let Some((place, id)) = waiting.pop() {
                    prop_assert_eq!(queue.withdraw(&place, id), Some(place));
                },
                _ => now += SLOW_AFTER / 2,
            }
            let counts = queue.counts(Class::Pod, now);
            prop_assert_eq!(counts.waiting, waiting.len());
            prop_assert_eq!(counts.running, running.len());
            prop_assert!(counts.running <= 5);
        }
    }
}
