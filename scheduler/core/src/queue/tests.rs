//! Tables: which pod is popped next, and which events requeue a pod.

use super::*;

/// Hints of a fake event: it helps pods that one of the plugins it lists rejected.
#[derive(Debug)]
pub(super) struct Fake;

/// A fake event: it helps pods that these plugins rejected.
pub(super) type Helps = Vec<Plugin>;

/// A pending pod.
#[derive(Debug)]
pub(super) struct TestPod {
    priority: i32,
    gated: bool,
    namespace: &'static str,
    consults: bool,
}

impl QueueCandidate for TestPod {
    fn priority(&self) -> i32 {
        self.priority
    }

    fn gate(&self) -> Option<Plugin> {
        self.gated.then_some(Plugin::SchedulingGates)
    }

    fn namespace(&self) -> &str {
        self.namespace
    }

    fn consults(&self) -> bool {
        self.consults
    }
}

impl Hints for Fake {
    type Pod = TestPod;
    type Event = Helps;

    fn label(&self, _: &Helps) -> &'static str {
        "NodeAdd"
    }

    fn may_help(&self, event: &Helps, rejector: Plugin) -> bool {
        event.contains(&rejector)
    }

    fn helps(&self, event: &Helps, _: &TestPod, rejector: Plugin) -> bool {
        event.contains(&rejector)
    }
}

pub(super) fn pod(priority: i32, gated: bool) -> Rc<TestPod> {
    Rc::new(TestPod { priority, gated, namespace: "", consults: priority % 2 != 0 })
}

/// A pod of a namespace.
pub(super) fn pod_of(namespace: &'static str, priority: i32) -> Rc<TestPod> {
    Rc::new(TestPod { priority, gated: false, namespace, consults: false })
}

const FIT: Plugin = Plugin::NodeResourcesFit;
const TAINTS: Plugin = Plugin::TaintToleration;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn queue() -> Queue<TestPod, Helps> {
    Queue::new(Settings::default())
}

fn popped(queue: &mut Queue<TestPod, Helps>, now: Duration) -> Option<String> {
    queue.pop(now).map(|(uid, _)| uid.to_string())
}

fn place(queue: &Queue<TestPod, Helps>, uid: &str) -> QueuePlace {
    queue.get(uid).expect("it waits").place
}

/// A queue with a pod that this plugin rejected at ten seconds.
fn rejected(by: Plugin) -> Queue<TestPod, Helps> {
    let mut queue = queue();
    reject(&mut queue, by);
    queue
}

fn reject(queue: &mut Queue<TestPod, Helps>, by: Plugin) {
    queue.add("p", pod(0, false), at(0));
    assert_eq!(popped(queue, at(10)).as_deref(), Some("p"));
    queue.add_unschedulable(&Fake, "p", [by].into(), Rejectors::new(), at(10));
}

#[test]
fn highest_priority_is_popped_first_then_the_longest_waiting_pod() {
    let mut queue = queue();
    for (uid, priority, since) in [("late", 5, 3), ("low", -1, 0), ("early", 5, 2), ("top", 9, 4)] {
        queue.add(uid, pod(priority, false), at(since));
    }
    // Adding a pod again changes nothing.
    queue.add("low", pod(100, false), at(9));
    let order: Vec<_> = std::iter::from_fn(|| popped(&mut queue, at(10))).collect();
    assert_eq!(order, ["top", "early", "late", "low"]);
    assert_eq!(queue.count(QueuePlace::InFlight), 4);
}

#[test]
fn the_wait_for_the_first_turn_counts() {
    let mut queue = queue();
    queue.add("p", pod(0, false), at(3));
    queue.add("gated", pod(0, true), at(3));
    assert_eq!(queue.get("gated").expect("it waits").first_attempt, None);
    queue.update(&Fake, "gated", pod(0, false), vec![Plugin::SchedulingGates], at(7));
    assert_eq!(popped(&mut queue, at(40)).as_deref(), Some("p"));
    let first = |uid| queue.get(uid).expect("it is known").first_attempt;
    assert_eq!((first("p"), first("gated")), (Some(at(3)), Some(at(7))));
}

#[test]
fn pod_with_zero_stay_limit_waits_for_the_unschedulable_flush() {
    let mut queue = Queue::new(Settings { stay_max: Duration::ZERO, ..Settings::default() });
    reject(&mut queue, FIT);
    queue.flush(at(40));
    assert_eq!(place(&queue, "p"), QueuePlace::Unschedulable);
    let due = queue.next_flush().expect("it waits for the time");
    assert_eq!(due, at(40) + Duration::from_millis(1));
    queue.flush(due);
    assert_eq!(place(&queue, "p"), QueuePlace::Active);
}

#[test]
fn rejected_pod_waits_for_an_event_that_may_help() {
    let mut queue = rejected(FIT);
    assert_eq!(place(&queue, "p"), QueuePlace::Unschedulable);
    queue.move_all_to_active_or_backoff(&Fake, &vec![TAINTS], at(11));
    assert_eq!(place(&queue, "p"), QueuePlace::Unschedulable);
    // The backoff is one second; until then the pod waits, unless no pod is active.
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(11));
    assert_eq!(place(&queue, "p"), QueuePlace::Backoff);
    queue.add("other", pod(-5, false), at(11));
    assert_eq!(popped(&mut queue, at(11)).as_deref(), Some("other"));
    assert_eq!(popped(&mut queue, at(11)).as_deref(), Some("p"));
    assert_eq!(queue.get("p").expect("in flight").attempts, 2);

    let mut queue = rejected(FIT);
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(13));
    assert_eq!(place(&queue, "p"), QueuePlace::Active, "its backoff is over");
}

#[test]
fn a_backoff_ends_with_its_window() {
    let mut queue = rejected(FIT);
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(10));
    assert_eq!(queue.next_flush(), Some(at(12)));
    queue.flush(Duration::from_millis(11_999));
    assert_eq!(place(&queue, "p"), QueuePlace::Backoff);
    queue.flush(at(12));
    assert_eq!(place(&queue, "p"), QueuePlace::Active);
    assert_eq!(queue.next_flush(), None);
}

#[test]
fn events_during_the_attempt_of_a_pod_are_not_missed() {
    let mut queue = queue();
    queue.add("p", pod(0, false), at(0));
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(0));
    assert_eq!(queue.in_flight_event_count(), 0, "no pod is in flight");
    popped(&mut queue, at(1));
    queue.move_all_to_active_or_backoff(&Fake, &vec![TAINTS], at(1));
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(1));
    assert_eq!(queue.in_flight_event_count(), 2);
    queue.add("q", pod(0, false), at(1));
    popped(&mut queue, at(1));
    // The event helps the pod that was popped before it, and not the pod that was popped after it.
    queue.add_unschedulable(&Fake, "q", [FIT].into(), Rejectors::new(), at(2));
    assert_eq!(place(&queue, "q"), QueuePlace::Unschedulable);
    assert_eq!(queue.in_flight_event_count(), 2, "the other one is to see them");
    queue.add_unschedulable(&Fake, "p", [FIT].into(), Rejectors::new(), at(2));
    assert_eq!(place(&queue, "p"), QueuePlace::Backoff);
    assert_eq!(queue.in_flight_event_count(), 0);
}

#[test]
fn update_of_a_pod_during_its_attempt_is_not_missed() {
    let mut queue = queue();
    queue.add("p", pod(0, false), at(0));
    popped(&mut queue, at(1));
    queue.update(&Fake, "p", pod(0, false), vec![FIT], at(1));
    queue.add_unschedulable(&Fake, "p", [FIT].into(), Rejectors::new(), at(1));
    assert_eq!(place(&queue, "p"), QueuePlace::Backoff);
}

#[test]
fn pod_pending_on_a_plugin_skips_backoff_when_the_event_arrives() {
    let mut queue = queue();
    queue.add("p", pod(0, false), at(0));
    popped(&mut queue, at(1));
    queue.add_unschedulable(&Fake, "p", [FIT].into(), [TAINTS].into(), at(1));
    queue.move_all_to_active_or_backoff(&Fake, &vec![TAINTS], at(1));
    assert_eq!(place(&queue, "p"), QueuePlace::Active);
}

#[test]
fn pod_released_at_once_skips_its_backoff() {
    let mut queue = rejected(FIT);
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(10));
    queue.release("p", false, at(10));
    assert_eq!(place(&queue, "p"), QueuePlace::Backoff);
    queue.release("p", true, at(10));
    assert_eq!(place(&queue, "p"), QueuePlace::Active);
    assert_eq!(popped(&mut queue, at(10)).as_deref(), Some("p"));
    queue.add_unschedulable(&Fake, "p", Rejectors::new(), Rejectors::new(), at(10));
    assert_eq!(place(&queue, "p"), QueuePlace::ErrorBackoff);
    queue.release("p", true, at(10));
    assert_eq!(place(&queue, "p"), QueuePlace::Active);
}

#[test]
fn pod_released_during_its_attempt_is_retried() {
    let mut queue = rejected(FIT);
    queue.release("p", true, at(10));
    for (is_wanted, expected) in [(true, QueuePlace::Backoff), (false, QueuePlace::Unschedulable)] {
        assert_eq!(popped(&mut queue, at(10)).as_deref(), Some("p"));
        queue.release("p", is_wanted, at(10));
        assert_eq!(place(&queue, "p"), QueuePlace::InFlight);
        queue.add_unschedulable(&Fake, "p", [FIT].into(), Rejectors::new(), at(10));
        assert_eq!(place(&queue, "p"), expected);
    }
    queue.activate_after_backoff("p", at(10));
    assert_eq!(place(&queue, "p"), QueuePlace::Backoff);
    assert_eq!(popped(&mut queue, at(30)).as_deref(), Some("p"));
    queue.activate_after_backoff("p", at(30));
    queue.add_unschedulable(&Fake, "p", [FIT].into(), Rejectors::new(), at(30));
    assert_eq!(place(&queue, "p"), QueuePlace::Backoff);
}

#[test]
fn pod_with_an_error_waits_out_a_growing_backoff_and_is_retried() {
    let mut queue = queue();
    queue.add("p", pod(0, false), at(0));
    for (now, waits) in [(10, 1), (20, 2), (30, 4)] {
        assert_eq!(popped(&mut queue, at(now)).as_deref(), Some("p"));
        queue.add_unschedulable(&Fake, "p", Rejectors::new(), Rejectors::new(), at(now));
        assert_eq!(place(&queue, "p"), QueuePlace::ErrorBackoff);
        assert_eq!(popped(&mut queue, at(now)), None, "it waits though nothing else is to be done");
        assert_eq!(queue.next_flush(), Some(at(now + waits + 1)));
        queue.flush(at(now + waits + 1));
    }
    // A rejection ends a series of errors.
    popped(&mut queue, at(50));
    queue.add_unschedulable(&Fake, "p", [FIT].into(), Rejectors::new(), at(50));
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(50));
    assert_eq!(queue.next_flush(), Some(at(52)));
}

#[test]
fn gated_pod_is_not_popped_until_its_gates_are_removed() {
    let mut queue = queue();
    queue.add("p", pod(0, true), at(0));
    assert_eq!((place(&queue, "p"), popped(&mut queue, at(1))), (QueuePlace::Gated, None));
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(1));
    queue.update(&Fake, "p", pod(0, true), vec![Plugin::SchedulingGates], at(1));
    assert_eq!(place(&queue, "p"), QueuePlace::Gated, "one of two gates is gone");
    queue.flush(at(10_000));
    assert_eq!(place(&queue, "p"), QueuePlace::Gated, "no time opens a gate");
    queue.update(&Fake, "p", pod(0, false), vec![Plugin::SchedulingGates], at(2));
    assert_eq!(popped(&mut queue, at(2)).as_deref(), Some("p"));
}

#[test]
fn pod_unschedulable_for_too_long_is_flushed_without_an_event() {
    let mut queue = rejected(FIT);
    queue.flush(at(310));
    assert_eq!(place(&queue, "p"), QueuePlace::Unschedulable);
    let due = queue.next_flush().expect("a time");
    queue.flush(due);
    assert_eq!(place(&queue, "p"), QueuePlace::Active);
    assert!(queue.get("p").expect("it waits").flushed);
    popped(&mut queue, due);
    queue.add_unschedulable(&Fake, "p", [FIT].into(), Rejectors::new(), due);
    assert!(!queue.get("p").expect("it waits").flushed);
}

#[test]
fn removed_pod_does_not_return_to_the_queue() {
    let mut queue = queue();
    for uid in ["waits", "flies", "bound"] {
        queue.add(uid, pod(0, false), at(0));
    }
    queue.remove("waits");
    queue.remove("unknown");
    assert!(queue.get("waits").is_none());
    assert_eq!(popped(&mut queue, at(1)).as_deref(), Some("flies"));
    assert_eq!(popped(&mut queue, at(1)).as_deref(), Some("bound"));
    queue.remove("flies");
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(1));
    queue.add_unschedulable(&Fake, "flies", [FIT].into(), Rejectors::new(), at(1));
    queue.done("bound");
    assert!(queue.get("flies").is_none() && queue.get("bound").is_none());
    assert_eq!((queue.in_flight_event_count(), popped(&mut queue, at(100))), (0, None));
}

#[test]
fn moves_are_counted_under_upstream_names_and_rejections_by_plugin() {
    let mut queue = rejected(FIT);
    assert_eq!(queue.rejected()[&(FIT, 0)], 1);
    queue.move_all_to_active_or_backoff(&Fake, &vec![FIT], at(11));
    queue.flush(at(13));
    assert_eq!(queue.rejected()[&(FIT, 0)], 1, "until it is decided again");
    popped(&mut queue, at(13)).expect("it waits");
    assert_eq!(queue.rejected()[&(FIT, 0)], 0);
    queue.add_unschedulable(&Fake, "p", [TAINTS].into(), Rejectors::new(), at(13));
    queue.flush(at(1000));
    let moved: Vec<(Moved, u64)> = queue.take_moved().into_iter().collect();
    let expected = [
        (("active", "BackoffComplete"), 1),
        (("active", "UnschedulablePodAdd"), 1),
        (("active", "UnschedulableTimeout"), 1),
        (("backoff", "NodeAdd"), 1),
        (("unschedulable", "ScheduleAttemptFailure"), 2),
    ];
    assert_eq!(moved, expected);
    assert_eq!(queue.take_moved().len(), 0);
    queue.add("gated", pod(0, true), at(1000));
    let moved: Vec<(Moved, u64)> = queue.take_moved().into_iter().collect();
    assert_eq!(moved, [(("unschedulable", "UnschedulablePodAdd"), 1)]);
    assert_eq!(queue.rejected()[&(Plugin::SchedulingGates, 0)], 1);
}
