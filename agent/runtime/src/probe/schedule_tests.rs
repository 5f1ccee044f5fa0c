//! The schedule: orders, due times, bounds, attempts that end late.

use pintle_agent_core::types::SandboxId;
use serde_json::{Value, json};

use super::super::testing_pods as testing;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Long after the agent began, so that nothing is spread.
const WALL: UnixNanos = UnixNanos(1_000_000_000_000_000);

fn spec(count: usize) -> Value {
    let probe = json!({"tcpSocket": {"port": 1}, "periodSeconds": 10, "failureThreshold": 1});
    let containers: Vec<_> = (0..count)
        .map(|n| json!({"name": format!("c{n}"), "readinessProbe": probe, "livenessProbe": probe}))
        .collect();
    json!({"containers": containers})
}

struct ScheduleWorld {
    schedule: ProbeSchedule,
    pod: Arc<Pod>,
    observed: ObservedPod,
    pod_ip: &'static str,
}

impl ScheduleWorld {
    fn new(spec: Value) -> Self {
        Self::with_places(spec, 100)
    }

    fn with_places(spec: Value, places: usize) -> Self {
        let pod = testing::pod(spec, json!({}));
        let observed = testing::observed(&pod, WALL.0);
        Self {
            schedule: ProbeSchedule::new(UnixNanos(1), places),
            pod,
            observed,
            pod_ip: "10.0.0.1",
        }
    }

    fn order(&mut self, now: Duration, terminating: bool) {
        let uid = self.observed.uid.clone();
        self.order_as(uid, now, terminating);
    }

    /// The same pod under another uid.
    fn order_as(&mut self, uid: PodUid, now: Duration, terminating: bool) {
        let order = ProbeOrder {
            uid,
            pod: Arc::clone(&self.pod),
            observed: Arc::new(self.observed.clone()),
            pod_ip: Some(self.pod_ip.to_owned()),
            terminating,
        };
        self.schedule.order(&order, now, WALL);
    }

    fn due(&mut self, now: Duration) -> Vec<ProbeAttempt> {
        std::iter::from_fn(|| self.schedule.take_due(now)).collect()
    }

    fn results(&mut self) -> Vec<(String, ProbeKind, bool)> {
        std::iter::from_fn(|| self.schedule.take_result())
            .map(|input| match input {
                PodsInput::Probed { container, probe, healthy, .. } => {
                    (container.to_string(), probe, healthy)
                }
                other => panic!("no result: {other:?}"),
            })
            .collect()
    }
}

#[test]
fn each_probe_runs_once_a_period_and_only_one_attempt_at_a_time() {
    let mut world = ScheduleWorld::new(spec(3));
    world.order(Duration::ZERO, false);
    let first = world.due(Duration::ZERO);
    assert_eq!(first.len(), 6);
    assert_eq!(world.due(SECOND * 60).len(), 0, "all are under way");
    for attempt in &first {
        world.schedule.ended(&attempt.key, SECOND, ProbeOutcome::Success);
    }
    assert_eq!(world.schedule.next_due(), Some(SECOND * 10));
    assert_eq!(world.due(SECOND * 9).len(), 0);
    assert_eq!(world.due(SECOND * 10).len(), 6);
}

#[test]
fn attempts_beyond_the_bound_wait_and_none_is_lost() {
    let mut world = ScheduleWorld::with_places(spec(5), 3);
    world.order(Duration::ZERO, false);
    let mut seen = Vec::new();
    loop {
        let batch = world.due(SECOND);
        assert!(batch.len() <= 3);
        for attempt in batch.iter() {
            world.order(SECOND, false);
            world.schedule.ended(&attempt.key, SECOND, ProbeOutcome::Success);
            seen.push((attempt.key.id.clone(), attempt.key.kind));
        }
        if batch.is_empty() {
            break;
        }
    }
    let attempts = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), attempts), (10, 10));
    assert!(!world.schedule.is_waiting());
}

#[test]
fn pod_with_hanging_probes_yields_a_slot_to_another_pod_at_once() {
    let mut world = ScheduleWorld::with_places(spec(136), 256);
    world.order(Duration::ZERO, false);
    let hanging = world.due(Duration::ZERO);
    assert_eq!((hanging.len(), world.schedule.is_waiting()), (256, true));
    let other = PodUid::from("other");
    world.pod = testing::pod(spec(1), json!({}));
    world.observed = testing::observed(&world.pod, WALL.0);
    world.order_as(other.clone(), SECOND, false);
    assert_eq!(world.due(SECOND).len(), 0);
    assert_eq!(world.schedule.make_room(SECOND), 1);
    // The task that was aborted ends.
    world.schedule.ended(&hanging[0].key, SECOND, ProbeOutcome::Unknown);
    let begun = world.due(SECOND);
    assert_eq!(begun.len(), 1);
    assert_eq!(begun[0].key.uid, other);
    assert_eq!(world.schedule.attempts(), 256);
}

#[test]
fn attempts_use_the_pod_ip_current_at_their_start() {
    let mut world = ScheduleWorld::new(spec(1));
    world.order(Duration::ZERO, false);
    let first = world.due(Duration::ZERO);
    world.pod_ip = "10.0.0.2";
    world.order(SECOND, false);
    for attempt in &first {
        assert_eq!(attempt.target.host.as_deref(), Some("10.0.0.1"));
        world.schedule.ended(&attempt.key, SECOND, ProbeOutcome::Success);
    }
    let second = world.due(SECOND * 10);
    assert_eq!(second.len(), 2);
    assert!(second.iter().all(|attempt| attempt.target.host.as_deref() == Some("10.0.0.2")));
}

#[test]
fn result_change_of_one_container_probes_unready_containers_of_its_pod_at_once() {
    let mut world = ScheduleWorld::new(spec(2));
    world.order(Duration::ZERO, false);
    let all = world.due(Duration::ZERO);
    let readiness: Vec<_> =
        all.iter().filter(|attempt| attempt.key.kind == ProbeKind::Readiness).collect();
    world.schedule.ended(&readiness[0].key, Duration::ZERO, ProbeOutcome::Failure);
    assert_eq!(world.due(SECOND).len(), 0);
    world.schedule.ended(&readiness[1].key, SECOND, ProbeOutcome::Success);
    let again = world.due(SECOND);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].key.id, readiness[0].key.id);
}

#[test]
fn repeated_probe_order_changes_neither_results_nor_schedule() {
    let mut world = ScheduleWorld::new(spec(1));
    world.order(Duration::ZERO, false);
    let attempts = world.due(Duration::ZERO);
    for attempt in &attempts {
        world.schedule.ended(&attempt.key, Duration::ZERO, ProbeOutcome::Success);
    }
    assert_eq!(world.results(), [("id-1".to_owned(), ProbeKind::Readiness, true)]);
    for _ in 0..1000 {
        world.order(SECOND, false);
    }
    assert_eq!(world.results(), []);
    assert_eq!(world.due(SECOND).len(), 0);
    assert!(world.schedule.heap.len() < 200, "entries that no longer hold are dropped");
    assert_eq!(world.due(SECOND * 10).len(), 2);
}

#[test]
fn restarted_container_starts_with_fresh_probes_and_ignores_old_results() {
    let mut world = ScheduleWorld::new(spec(1));
    world.order(Duration::ZERO, false);
    let old = world.due(Duration::ZERO);
    world.observed.containers[0] = testing::container_named("id-2".into(), "c0", WALL.0);
    world.order(SECOND, false);
    for attempt in &old {
        world.schedule.ended(&attempt.key, SECOND, ProbeOutcome::Failure);
    }
    assert_eq!(world.results(), []);
    // Readiness at once, liveness at the next tick.
    let mut new = world.due(SECOND);
    assert_eq!(new.len(), 1);
    new.extend(world.due(SECOND * 10));
    let new: Vec<_> = new.iter().map(|a| (a.key.id.as_str(), a.key.kind)).collect();
    assert_eq!(new, [("id-2", ProbeKind::Readiness), ("id-2", ProbeKind::Liveness)]);
}

#[test]
fn result_of_an_abandoned_attempt_is_not_credited_to_its_successor() {
    let mut world = ScheduleWorld::new(spec(1));
    world.order(Duration::ZERO, false);
    let old = world.due(Duration::ZERO);
    let uid = world.observed.uid.clone();
    world.schedule.forget(&uid);
    world.order(SECOND, false);
    let new = world.due(SECOND);
    assert_eq!((old.len(), new.len()), (2, 2));
    for attempt in &old {
        world.schedule.ended(&attempt.key, SECOND, ProbeOutcome::Failure);
    }
    assert_eq!(world.results(), []);
    assert_eq!(world.schedule.attempts(), 2);
}

#[test]
fn a_container_that_does_not_run_any_more_is_not_probed() {
    let mut world = ScheduleWorld::new(spec(2));
    world.order(Duration::ZERO, false);
    world.observed.containers[0].state = RunState::Exited;
    world.order(Duration::ZERO, false);
    let due = world.due(SECOND);
    assert!(due.iter().all(|attempt| attempt.key.id.as_str() == "id-2"), "{due:?}");
    world.observed.containers[1].state = RunState::Exited;
    world.order(Duration::ZERO, false);
    assert_eq!(world.schedule.next_due(), None);
    assert_eq!(world.due(SECOND * 100).len(), 0);
    let uid = world.observed.uid.clone();
    world.schedule.forget(&uid);
    assert!(world.schedule.pods.is_empty());
}

#[test]
fn while_the_pod_ends_only_readiness_is_due() {
    let mut world = ScheduleWorld::new(spec(1));
    world.order(Duration::ZERO, true);
    let due = world.due(SECOND);
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].key.kind, ProbeKind::Readiness);
}

#[test]
fn init_containers_have_no_probes_but_sidecars_do() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let mut world = ScheduleWorld::new(json!({
        "initContainers": [
            {"name": "i", "readinessProbe": probe},
            {"name": "s", "restartPolicy": "Always", "readinessProbe": probe}],
        "containers": [{"name": "c"}]}));
    world.order(Duration::ZERO, false);
    let due = world.due(SECOND);
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].target.container.name, "s");
}

#[test]
fn container_from_before_an_agent_restart_is_reported_started_and_ready() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let mut world = ScheduleWorld::new(json!({
        "initContainers": [{"name": "s", "restartPolicy": "Always", "startupProbe": probe}],
        "containers": [{"name": "c", "startupProbe": probe, "readinessProbe": probe}]}));
    for container in &mut world.observed.containers {
        container.started_at = UnixNanos(1);
    }
    world.observed.sandboxes[0].id = SandboxId::from("sandbox");
    world.schedule = ProbeSchedule::new(WALL, 9);
    world.order(Duration::ZERO, false);
    let mut results = world.results();
    results.sort_unstable();
    let expected = [
        ("id-1".to_owned(), ProbeKind::Startup, true),
        ("id-2".to_owned(), ProbeKind::Readiness, true),
        ("id-2".to_owned(), ProbeKind::Startup, true),
    ];
    assert_eq!(results, expected);
}

#[test]
fn first_attempts_are_spread_over_a_period_only_during_the_agents_first_period() {
    let period = SECOND * 10;
    let uid = |n: u32| PodUid::from(format!("uid-{n}"));
    let of = |n, age| spread((&uid(n), "c", ProbeKind::Liveness), period, age);
    let delays: Vec<_> = (0..400).map(|n| of(n, SECOND)).collect();
    assert!(delays.iter().all(|delay| *delay < period));
    let early = delays.iter().filter(|delay| **delay < period / 2).count();
    assert!((120..280).contains(&early), "{early} of 400 in the first half");
    assert_eq!(delays[7], of(7, SECOND), "the same each time");
    assert_eq!(of(7, period), Duration::ZERO);
}
