//! The state machine: tables for each rule, properties for all of them together.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn container(value: Value) -> Container {
    serde_json::from_value(value).expect("the test's container parses")
}

fn new(container: &Container, beginning: Beginning) -> (ContainerProbes, Vec<ProbeChange>) {
    ContainerProbes::new(container, beginning, Duration::ZERO, |_, _| {
        (Duration::ZERO, ResultRun::default())
    })
}

/// The machine of a container that is seen at `seen`, of a pod that began at zero.
fn seen_at(container: &Container, age: Duration, seen: Duration) -> ContainerProbes {
    let beginning = Beginning { age, ..Beginning::default() };
    ContainerProbes::new(container, beginning, seen, |_, _| (Duration::ZERO, ResultRun::default()))
        .0
}

fn all() -> Container {
    let probe = |failures: u32| json!({"tcpSocket": {"port": 1}, "failureThreshold": failures});
    container(json!({"name": "c", "startupProbe": probe(2), "readinessProbe": probe(1),
                     "livenessProbe": probe(2)}))
}

fn one(kind: &str, successes: u32, failures: u32) -> Container {
    container(json!({"name": "c", kind: {"tcpSocket": {"port": 1},
        "successThreshold": successes, "failureThreshold": failures, "periodSeconds": 1}}))
}

/// Runs one attempt of a probe that is due.
fn run(
    machine: &mut ContainerProbes,
    kind: ProbeKind,
    outcome: ProbeOutcome,
) -> Option<ProbeChange> {
    let at = machine.due(kind).expect("the probe is due");
    assert!(machine.begin(kind, at));
    machine.end(kind, at, outcome)
}

fn change(kind: ProbeKind, healthy: bool) -> Option<ProbeChange> {
    Some(ProbeChange { kind, healthy })
}

use ProbeKind::{Liveness, Readiness, Startup};
use ProbeOutcome::{Failure, Success, Unknown};

#[test]
fn nonsense_numbers_never_make_a_probe_run_without_end() {
    let probe: Probe = serde_json::from_value(json!({"periodSeconds": -5, "timeoutSeconds": 0,
        "initialDelaySeconds": -1, "failureThreshold": -3, "successThreshold": 0}))
    .expect("it parses");
    let settings = Settings::of(&probe);
    assert_eq!((settings.period, settings.timeout), (SECOND, SECOND));
    assert_eq!(settings.initial_delay, Duration::ZERO);
    assert_eq!((settings.failure_threshold, settings.success_threshold), (1, 1));
}

#[test]
fn liveness_and_startup_run_first_at_the_next_tick_of_their_pods_clock() {
    let probe = json!({"tcpSocket": {"port": 1}, "periodSeconds": 10});
    let container = container(json!({"name": "c", "livenessProbe": probe, "startupProbe": probe}));
    let alone: Container = Container { startup_probe: None, ..container.clone() };
    for (seen_ms, first) in [(0, 0), (1, 10), (1500, 10), (9999, 10), (10_000, 10), (10_001, 20)] {
        let seen = Duration::from_millis(seen_ms);
        let machine = seen_at(&container, Duration::ZERO, seen);
        assert_eq!(machine.due(Startup), Some(SECOND * first), "{seen_ms}");
        assert_eq!(seen_at(&alone, Duration::ZERO, seen).due(Liveness), Some(SECOND * first));
    }
}

/// As upstream's worker does it: the ticker began with the pod, 1.5 s before the container ran.
#[test]
fn container_that_never_comes_up_gets_its_full_failure_threshold() {
    for kind in [Startup, Liveness] {
        let name = if kind == Startup { "startupProbe" } else { "livenessProbe" };
        let probe = json!({"tcpSocket": {"port": 1}, "periodSeconds": 10, "failureThreshold": 3});
        let container = container(json!({"name": "c", name: probe}));
        let mut machine = seen_at(&container, Duration::ZERO, SECOND * 3 / 2);
        assert_eq!(run(&mut machine, kind, Failure), None);
        assert_eq!(run(&mut machine, kind, Failure), None);
        assert_eq!(machine.due(kind), Some(SECOND * 30));
        assert_eq!(run(&mut machine, kind, Failure), change(kind, false));
    }
}

#[test]
fn no_attempt_is_made_within_the_initial_delay_that_began_with_the_container() {
    let probe = json!({"tcpSocket": {"port": 1}, "initialDelaySeconds": 25, "periodSeconds": 10});
    let container =
        container(json!({"name": "c", "livenessProbe": probe, "readinessProbe": probe}));
    for (age, liveness, readiness) in [(0, 30, 27), (7, 20, 20), (8, 20, 19), (300, 10, 2)] {
        let machine = seen_at(&container, SECOND * age, SECOND * 2);
        assert_eq!(machine.due(Liveness), Some(SECOND * liveness), "{age}");
        assert_eq!(machine.due(Readiness), Some(SECOND * readiness), "{age}");
    }
}

#[test]
fn new_container_reports_no_probe_change() {
    let (machine, changes) = new(&all(), Beginning::default());
    assert_eq!(changes, []);
    assert!(machine.due(Startup).is_some());
    assert_eq!((machine.due(Readiness), machine.due(Liveness)), (None, None));
}

#[test]
fn container_of_an_earlier_agent_run_keeps_its_started_and_ready_state() {
    let beginning = Beginning { age: SECOND * 900, started: true, ready: true };
    let (mut machine, changes) = new(&all(), beginning);
    assert_eq!(Some(changes[0]), change(Startup, true));
    assert_eq!(Some(changes[1]), change(Readiness, true));
    assert_eq!(changes.len(), 2);
    assert_eq!(machine.due(Startup), None);
    assert_eq!(run(&mut machine, Readiness, Success), None, "it was known already");
    assert_eq!(run(&mut machine, Readiness, Failure), change(Readiness, false));
    assert_eq!(run(&mut machine, Liveness, Success), None);
}

#[test]
fn unstarted_container_is_not_ready_even_if_it_was_ready_before() {
    let beginning = Beginning { age: SECOND * 20, started: false, ready: true };
    assert_eq!(new(&all(), beginning).1, []);
}

#[test]
fn liveness_and_readiness_wait_for_the_start_and_readiness_then_begins_at_once() {
    let (mut machine, _) = new(&all(), Beginning::default());
    assert_eq!(run(&mut machine, Startup, Failure), None);
    assert_eq!((machine.due(Readiness), machine.due(Liveness)), (None, None));
    let at = machine.due(Startup).expect("it is tried again");
    assert!(machine.begin(Startup, at));
    let end = at + SECOND;
    assert_eq!(machine.end(Startup, end, Success), change(Startup, true));
    assert_eq!(
        (machine.due(Readiness), machine.due(Liveness)),
        (Some(end), Some(at + SECOND * 10))
    );
    assert_eq!(machine.due(Startup), None, "a decided startup probe is over");
}

#[test]
fn failed_startup_probe_stops_and_blocks_the_other_probes() {
    let (mut machine, _) = new(&all(), Beginning::default());
    assert_eq!(run(&mut machine, Startup, Failure), None);
    assert_eq!(run(&mut machine, Startup, Failure), change(Startup, false));
    assert!(KINDS.iter().all(|kind| machine.due(*kind).is_none()));
}

#[test]
fn failed_liveness_probe_stops_and_readiness_continues() {
    let started = Beginning { started: true, ..Beginning::default() };
    let (mut machine, _) = new(&all(), started);
    assert_eq!(run(&mut machine, Liveness, Failure), None);
    assert_eq!(run(&mut machine, Liveness, Failure), change(Liveness, false));
    assert_eq!(machine.due(Liveness), None);
    assert_eq!(run(&mut machine, Readiness, Success), change(Readiness, true));
}

#[test]
fn only_readiness_probes_run_in_a_terminating_pod() {
    let (mut machine, _) = new(&all(), Beginning::default());
    let startup_at = machine.due(Startup).expect("due");
    assert!(machine.begin(Startup, startup_at));
    assert_eq!(machine.terminate(SECOND), [ProbeChange { kind: Startup, healthy: true }]);
    assert_eq!(machine.end(Startup, SECOND, Failure), None, "too late to matter");
    assert_eq!((machine.due(Startup), machine.due(Liveness)), (None, None));
    assert_eq!(run(&mut machine, Readiness, Success), change(Readiness, true));
    assert_eq!(machine.terminate(SECOND * 2), [], "reported once");
}

#[test]
fn a_failed_liveness_probe_is_quiet_again_while_the_pod_ends() {
    let (mut machine, _) = new(&one("livenessProbe", 1, 1), Beginning::default());
    assert_eq!(run(&mut machine, Liveness, Failure), change(Liveness, false));
    assert_eq!(machine.terminate(SECOND), [ProbeChange { kind: Liveness, healthy: true }]);
}

#[test]
fn an_unknown_outcome_neither_counts_nor_interrupts_a_row() {
    let (mut machine, _) = new(&one("livenessProbe", 1, 2), Beginning::default());
    for outcome in [Unknown, Failure, Unknown, Unknown] {
        assert_eq!(run(&mut machine, Liveness, outcome), None);
    }
    assert_eq!(run(&mut machine, Liveness, Failure), change(Liveness, false));
}

#[test]
fn the_next_attempt_is_due_at_the_next_tick_or_at_once_when_that_is_over() {
    for (began_ms, ended_ms, next_ms, then_ms) in [
        (0, 10, 1000, 2000),
        (0, 999, 1000, 2000),
        (0, 1000, 1000, 2000),
        (0, 2500, 2500, 3000), // two ticks went by: one is made up for, and the clock goes on
        (700, 710, 1000, 2000),
    ] {
        let ms = Duration::from_millis;
        let (mut machine, _) = new(&one("readinessProbe", 1, 1), Beginning::default());
        assert!(machine.begin(Readiness, ms(began_ms)));
        assert_eq!(machine.due(Readiness), None, "one attempt at a time");
        assert!(!machine.begin(Readiness, ms(began_ms)));
        machine.end(Readiness, ms(ended_ms), Success);
        assert_eq!(machine.due(Readiness), Some(ms(next_ms)));
        assert!(machine.begin(Readiness, ms(next_ms)));
        machine.end(Readiness, ms(next_ms), Success);
        assert_eq!(machine.due(Readiness), Some(ms(then_ms)));
    }
}

#[test]
fn failing_readiness_probe_runs_at_once_when_its_pod_changes() {
    let ms = Duration::from_millis;
    let (mut machine, _) = new(&one("readinessProbe", 1, 1), Beginning::default());
    run(&mut machine, Readiness, Failure);
    machine.trigger(ms(300));
    assert_eq!(machine.due(Readiness), Some(ms(300)));
    assert!(machine.begin(Readiness, ms(300)));
    machine.trigger(ms(350));
    machine.end(Readiness, ms(400), Failure);
    assert_eq!(machine.due(Readiness), Some(ms(400)), "what came meanwhile counts, too");
    assert!(machine.begin(Readiness, ms(400)));
    machine.end(Readiness, ms(450), Success);
    assert_eq!(machine.due(Readiness), Some(ms(1400)), "the period began again");
    machine.trigger(ms(500));
    assert_eq!(machine.due(Readiness), Some(ms(1400)), "it is ready already");
}

#[test]
fn a_change_of_the_pod_ends_no_initial_delay_and_moves_neither_liveness_nor_startup() {
    let probe = json!({"tcpSocket": {"port": 1}, "initialDelaySeconds": 5});
    let (mut machine, _) =
        new(&container(json!({"name": "c", "readinessProbe": probe})), Beginning::default());
    machine.trigger(SECOND);
    assert_eq!(machine.due(Readiness), Some(SECOND * 5));
    let (mut machine, _) = new(&all(), Beginning::default());
    run(&mut machine, Startup, Failure);
    machine.trigger(SECOND);
    assert_eq!(machine.due(Startup), Some(SECOND * 10));
    assert_eq!(machine.due(Readiness), None);
}

/// Upstream's worker outlives its containers, and so do its counts.
#[test]
fn the_next_attempt_of_a_container_counts_on() {
    let counted = |container: &Container, history: &[ProbeOutcome]| {
        let (mut machine, _) = new(container, Beginning::default());
        for outcome in history {
            let _ = run(&mut machine, KIND, *outcome);
        }
        let runs: Vec<_> = machine.runs().collect();
        let worker = |kind, _: &Settings| {
            let run = runs.iter().find(|(of, _)| *of == kind).expect("it has that probe").1;
            (Duration::ZERO, run)
        };
        ContainerProbes::new(container, Beginning::default(), Duration::ZERO, worker).0
    };
    const KIND: ProbeKind = Liveness;
    let liveness = one("livenessProbe", 1, 3);
    let mut next = counted(&liveness, &[Failure, Failure]);
    assert_eq!(run(&mut next, Liveness, Failure), change(Liveness, false));
    let mut next = counted(&liveness, &[Failure, Failure, Failure]);
    assert_eq!(run(&mut next, Liveness, Failure), None, "what was decided begins from nothing");
}

#[test]
fn no_number_that_fits_a_pod_overflows_or_makes_a_probe_run_without_end() {
    let numbers = [i32::MIN, -1, 0, 1, 2, i32::MAX];
    for (period, threshold, timeout) in
        numbers.iter().flat_map(|p| numbers.iter().map(move |t| (*p, *t, *p)))
    {
        let probe = json!({"tcpSocket": {"port": 1}, "periodSeconds": period,
            "failureThreshold": threshold, "successThreshold": threshold,
            "timeoutSeconds": timeout, "initialDelaySeconds": threshold});
        let spec = container(json!({"name": "c", "livenessProbe": probe, "startupProbe": probe}));
        for now in [Duration::ZERO, SECOND * u32::MAX, Duration::MAX] {
            let (mut machine, _) =
                ContainerProbes::new(&spec, Beginning::default(), now, |_, _| {
                    (now, ResultRun::default())
                });
            for outcome in [Failure, Success, Success] {
                let Some(at) = machine.due(Startup) else { break };
                assert!(machine.begin(Startup, at));
                machine.end(Startup, at, outcome);
                let next = machine.due(Startup);
                let waits = next.is_none_or(|n| n >= at.saturating_add(SECOND));
                assert!(waits, "{period} {threshold} {now:?}: {next:?} after {at:?}");
            }
        }
        let settings = Settings::of(spec.liveness_probe.as_ref().expect("it has one"));
        assert!(settings.timeout >= SECOND && settings.timeout <= TIMEOUT_MAX);
    }
}

fn outcomes() -> impl Strategy<Value = Vec<ProbeOutcome>> {
    proptest::collection::vec(prop_oneof![Just(Success), Just(Failure), Just(Unknown)], 0..60)
}

/// The result after each outcome, computed from the whole history each time.
fn expected(history: &[ProbeOutcome], successes: u32, failures: u32, initial: bool) -> bool {
    let known: Vec<_> = history.iter().filter(|o| **o != Unknown).collect();
    let mut result = initial;
    for end in 1..=known.len() {
        let latest = known[end - 1];
        let needed = if *latest == Success { successes } else { failures } as usize;
        if end >= needed && known[end - needed..end].iter().all(|o| *o == latest) {
            result = *latest == Success;
        }
    }
    result
}

proptest! {
    #[test]
    fn readiness_follows_the_last_results_that_reached_a_threshold(
        history in outcomes(), successes in 1_u32..4, failures in 1_u32..4,
    ) {
        let spec = one("readinessProbe", successes, failures);
        let (mut machine, _) = new(&spec, Beginning::default());
        let mut told = false;
        for end in 0..history.len() {
            if let Some(change) = run(&mut machine, Readiness, history[end]) {
                prop_assert_ne!(change.healthy, told, "reported only when it changes");
                told = change.healthy;
            }
            prop_assert_eq!(told, expected(&history[..=end], successes, failures, false));
        }
    }

    #[test]
    fn liveness_fails_at_the_failure_threshold_and_never_runs_again(
        history in outcomes(), failures in 1_u32..4,
    ) {
        let (mut machine, _) = new(&one("livenessProbe", 1, failures), Beginning::default());
        for end in 0..history.len() {
            let changed = run(&mut machine, Liveness, history[end]);
            let alive = expected(&history[..=end], 1, failures, true);
            prop_assert_eq!(changed.is_some(), !alive);
            prop_assert_eq!(machine.due(Liveness).is_some(), alive);
            if !alive {
                break;
            }
        }
    }

    #[test]
    fn probes_obey_gates_and_periods_and_never_report_a_change_twice(
        steps in proptest::collection::vec((0_usize..3, 0_u8..3, 0_u32..25, 0_u8..20), 0..80),
        started: bool, ready: bool, age in 0_u32..100,
    ) {
        let beginning = Beginning { age: SECOND * age, started, ready };
        let (mut machine, changes) = new(&all(), beginning);
        let mut told = [None, Some(false), Some(true)];
        let mut began: [Option<Duration>; 3] = [None; 3];
        let mut now = Duration::ZERO;
        let mut over = false;
        let mut note = |changes: &[ProbeChange]| {
            for change in changes {
                let slot = &mut told[KINDS.iter().position(|k| *k == change.kind).expect("one of them")];
                assert_ne!(*slot, Some(change.healthy), "reported twice: {change:?}");
                *slot = Some(change.healthy);
            }
            told[0]
        };
        let mut startup = note(&changes);
        for (index, outcome, wait, end) in steps {
            now += SECOND * wait;
            let kind = KINDS[index];
            let outcome = [Success, Failure, Unknown][usize::from(outcome)];
            if let Some(at) = machine.due(kind).filter(|at| *at <= now) {
                if let Some(before) = began[index] {
                    prop_assert!(at > before, "a tick lies between attempts");
                }
                if kind != Readiness {
                    prop_assert_eq!(at.as_secs() % 10, 0, "only ticks of the pod's clock count");
                }
                prop_assert!(machine.begin(kind, now));
                began[index] = Some(now);
                startup = note(&machine.end(kind, now, outcome).into_iter().collect::<Vec<_>>());
            }
            if end == 0 {
                over = true;
                startup = note(&machine.terminate(now));
            }
            let waits = startup != Some(true);
            for kind in [Readiness, Liveness] {
                prop_assert!(!(waits && machine.due(kind).is_some()), "{kind:?} before the start");
            }
            prop_assert!(!(over && machine.due(Liveness).or(machine.due(Startup)).is_some()));
        }
    }
}
