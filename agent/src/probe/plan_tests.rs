//! The state machine: tables for each rule, properties for all of them together.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn container(value: Value) -> Container {
    serde_json::from_value(value).expect("the test's container parses")
}

fn new(container: &Container, beginning: Beginning) -> (Machine, Vec<Change>) {
    Machine::new(container, beginning, Duration::ZERO, |_, _| Duration::ZERO)
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
fn run(machine: &mut Machine, kind: ProbeKind, outcome: Outcome) -> Option<Change> {
    let at = machine.due(kind).expect("the probe is due");
    assert!(machine.begin(kind, at));
    machine.end(kind, at, outcome)
}

fn change(kind: ProbeKind, healthy: bool) -> Option<Change> {
    Some(Change { kind, healthy })
}

use Outcome::{Failure, Success, Unknown};
use ProbeKind::{Liveness, Readiness, Startup};

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
fn the_first_attempt_waits_for_the_rest_of_the_initial_delay() {
    let probe = json!({"tcpSocket": {"port": 1}, "initialDelaySeconds": 30});
    let container = container(json!({"name": "c", "livenessProbe": probe}));
    for (age, first) in [(0, 30), (10, 20), (30, 0), (300, 0)] {
        let beginning = Beginning { age: SECOND * age, ..Beginning::default() };
        let (machine, changes) = new(&container, beginning);
        assert_eq!(machine.due(Liveness), Some(SECOND * first), "{age}");
        assert_eq!(changes, []);
    }
}

#[test]
fn a_new_container_is_told_nothing_of() {
    let (machine, changes) = new(&all(), Beginning::default());
    assert_eq!(changes, []);
    assert!(machine.due(Startup).is_some());
    assert_eq!((machine.due(Readiness), machine.due(Liveness)), (None, None));
}

#[test]
fn a_container_of_an_earlier_run_of_the_agent_keeps_what_it_had() {
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
fn a_container_that_has_not_started_is_not_ready_whatever_it_was() {
    let beginning = Beginning { age: SECOND * 20, started: false, ready: true };
    assert_eq!(new(&all(), beginning).1, []);
}

#[test]
fn liveness_and_readiness_wait_for_the_start_and_then_begin_at_once() {
    let (mut machine, _) = new(&all(), Beginning::default());
    assert_eq!(run(&mut machine, Startup, Failure), None);
    assert_eq!((machine.due(Readiness), machine.due(Liveness)), (None, None));
    let at = machine.due(Startup).expect("it is tried again");
    assert_eq!(run(&mut machine, Startup, Success), change(Startup, true));
    assert_eq!((machine.due(Readiness), machine.due(Liveness)), (Some(at), Some(at)));
    assert_eq!(machine.due(Startup), None, "a decided startup probe is over");
}

#[test]
fn a_failed_startup_probe_is_over_and_keeps_the_others_waiting() {
    let (mut machine, _) = new(&all(), Beginning::default());
    assert_eq!(run(&mut machine, Startup, Failure), None);
    assert_eq!(run(&mut machine, Startup, Failure), change(Startup, false));
    assert!(KINDS.iter().all(|kind| machine.due(*kind).is_none()));
}

#[test]
fn a_failed_liveness_probe_is_over_and_readiness_goes_on() {
    let started = Beginning { started: true, ..Beginning::default() };
    let (mut machine, _) = new(&all(), started);
    assert_eq!(run(&mut machine, Liveness, Failure), None);
    assert_eq!(run(&mut machine, Liveness, Failure), change(Liveness, false));
    assert_eq!(machine.due(Liveness), None);
    assert_eq!(run(&mut machine, Readiness, Success), change(Readiness, true));
}

#[test]
fn while_the_pod_ends_only_readiness_goes_on() {
    let (mut machine, _) = new(&all(), Beginning::default());
    let startup_at = machine.due(Startup).expect("due");
    assert!(machine.begin(Startup, startup_at));
    assert_eq!(machine.terminate(SECOND), [Change { kind: Startup, healthy: true }]);
    assert_eq!(machine.end(Startup, SECOND, Failure), None, "too late to matter");
    assert_eq!((machine.due(Startup), machine.due(Liveness)), (None, None));
    assert_eq!(run(&mut machine, Readiness, Success), change(Readiness, true));
    assert_eq!(machine.terminate(SECOND * 2), [], "told once");
}

#[test]
fn a_failed_liveness_probe_is_quiet_again_while_the_pod_ends() {
    let (mut machine, _) = new(&one("livenessProbe", 1, 1), Beginning::default());
    assert_eq!(run(&mut machine, Liveness, Failure), change(Liveness, false));
    assert_eq!(machine.terminate(SECOND), [Change { kind: Liveness, healthy: true }]);
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
fn the_next_attempt_is_due_a_period_after_this_one_began_or_at_once_when_that_is_over() {
    for (ended_ms, next_ms) in [(10, 1000), (999, 1000), (2500, 2500)] {
        let (mut machine, _) = new(&one("readinessProbe", 1, 1), Beginning::default());
        assert!(machine.begin(Readiness, Duration::ZERO));
        assert_eq!(machine.due(Readiness), None, "one attempt at a time");
        assert!(!machine.begin(Readiness, Duration::ZERO));
        machine.end(Readiness, Duration::from_millis(ended_ms), Success);
        assert_eq!(machine.due(Readiness), Some(Duration::from_millis(next_ms)));
    }
}

fn outcomes() -> impl Strategy<Value = Vec<Outcome>> {
    proptest::collection::vec(prop_oneof![Just(Success), Just(Failure), Just(Unknown)], 0..60)
}

/// The result after each outcome, computed from the whole history each time.
fn expected(history: &[Outcome], (successes, failures): (u32, u32), initial: bool) -> bool {
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
    fn readiness_is_what_the_last_full_row_said(
        history in outcomes(), successes in 1_u32..4, failures in 1_u32..4,
    ) {
        let spec = one("readinessProbe", successes, failures);
        let (mut machine, _) = new(&spec, Beginning::default());
        let mut told = false;
        for end in 0..history.len() {
            if let Some(change) = run(&mut machine, Readiness, history[end]) {
                prop_assert_ne!(change.healthy, told, "told only when it changes");
                told = change.healthy;
            }
            prop_assert_eq!(told, expected(&history[..=end], (successes, failures), false));
        }
    }

    #[test]
    fn liveness_fails_with_its_first_full_row_of_failures_and_never_runs_again(
        history in outcomes(), failures in 1_u32..4,
    ) {
        let (mut machine, _) = new(&one("livenessProbe", 1, failures), Beginning::default());
        for end in 0..history.len() {
            let changed = run(&mut machine, Liveness, history[end]);
            let alive = expected(&history[..=end], (1, failures), true);
            prop_assert_eq!(changed.is_some(), !alive);
            prop_assert_eq!(machine.due(Liveness).is_some(), alive);
            if !alive {
                break;
            }
        }
    }

    #[test]
    fn in_any_run_gates_hold_periods_are_kept_and_nothing_is_told_twice(
        steps in proptest::collection::vec((0_usize..3, 0_u8..3, 0_u32..25, 0_u8..20), 0..80),
        started: bool, ready: bool, age in 0_u32..100,
    ) {
        let beginning = Beginning { age: SECOND * age, started, ready };
        let (mut machine, changes) = new(&all(), beginning);
        let mut told = [None, Some(false), Some(true)];
        let mut began: [Option<Duration>; 3] = [None; 3];
        let mut now = Duration::ZERO;
        let mut over = false;
        let mut note = |changes: &[Change]| {
            for change in changes {
                let slot = &mut told[KINDS.iter().position(|k| *k == change.kind).expect("one of them")];
                assert_ne!(*slot, Some(change.healthy), "told twice: {change:?}");
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
                    prop_assert!(at >= before + SECOND * 10, "a period lies between attempts");
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
