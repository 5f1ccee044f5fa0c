//! Properties of every status, whatever came before it.
//!
//! A history is one pod with several worlds in a row, each derived from the status before it: the
//! record may change at will, the clock and the pod's life only go on.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use proptest::prelude::*;
use serde_json::json;

use super::testing::{DerivedPod, SECOND, container, exited, sandbox};
use super::{Lifecycle, PodVerdict, WaitingReason, is_terminal};
use crate::observed::{KernelExit, ObservedContainer, ObservedPod, RunState};
use pintle_api_types::ids::UnixNanos;

/// A pod's containers as a record has them, newest first: the runtime gives each attempt's name
/// once, and its creation times increase.
fn any_containers() -> impl Strategy<Value = Vec<ObservedContainer>> {
    prop::collection::vec(any_container(), 0..6).prop_map(|mut containers| {
        let key = |c: &ObservedContainer| (Reverse(c.restart_count), c.name.clone());
        containers.sort_by_key(key);
        containers.dedup_by_key(|c| key(c));
        for (container, made) in containers.iter_mut().rev().zip(900..) {
            container.created_at = UnixNanos(made * SECOND);
        }
        containers
    })
}

/// One moment: record, clock's advance in seconds, true if the pod's life goes on, its verdict.
#[derive(Clone, Debug)]
struct Moment {
    observed: Option<(Vec<bool>, Vec<ObservedContainer>)>,
    seconds: i64,
    ends: bool,
    verdict: bool,
    waits: bool,
}

fn any_container() -> impl Strategy<Value = ObservedContainer> {
    use RunState::{Created, Exited, Running, Unknown};
    let state = prop::sample::select(vec![Created, Running, Running, Exited, Exited, Unknown]);
    ("[abis]", 1..5_u32, state, 0..3_i32, any::<bool>()).prop_map(
        |(name, attempt, state, code, lost)| {
            let mut built = exited(&name, &format!("{name}{attempt}"), code);
            if state != Exited {
                built =
                    ObservedContainer { state, ..container(&name, &format!("{name}{attempt}")) };
            }
            built.restart_count = attempt - 1;
            built.evidence.exit = lost.then_some(KernelExit { code: 7, at: UnixNanos(SECOND) });
            built
        },
    )
}

fn any_moment() -> impl Strategy<Value = Moment> {
    let observed = (prop::collection::vec(any::<bool>(), 0..3), any_containers());
    let flag = || prop::bool::weighted(0.2);
    (prop::option::weighted(0.9, observed), 0..100_i64, flag(), prop::bool::weighted(0.05), flag())
        .prop_map(|(observed, seconds, ends, verdict, waits)| Moment {
            observed,
            seconds,
            ends,
            verdict,
            waits,
        })
}

fn any_pod() -> impl Strategy<Value = DerivedPod> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    (policy, any::<[bool; 4]>()).prop_map(|(policy, [init, sidecar, rule, is_static])| {
        let mut inits = Vec::new();
        if init {
            inits.push(json!({"name": "i", "image": "i"}));
        }
        if sidecar {
            inits.push(json!({"name": "s", "image": "i", "restartPolicy": "Always"}));
        }
        let mut a = json!({"name": "a", "image": "i"});
        if rule {
            a["restartPolicy"] = json!("Never");
            a["restartPolicyRules"] = json!([{"action": "RestartAllContainers",
                "exitCodes": {"operator": "In", "values": [2]}}]);
        }
        let source = if is_static { "file" } else { "api" };
        DerivedPod::new(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                "annotations": {"kubernetes.io/config.source": source}},
            "spec": {"restartPolicy": policy, "initContainers": inits,
                "containers": [a, {"name": "b", "image": "i"}]}
        }))
    })
}

impl DerivedPod {
    fn pass(&mut self, moment: &Moment) -> PodStatus {
        self.now = UnixNanos(self.now.0 + moment.seconds * SECOND);
        self.lifecycle = match (moment.ends, self.lifecycle) {
            (false, same) => same,
            (true, Lifecycle::Syncing) => Lifecycle::Terminating,
            (true, _) => Lifecycle::Terminated,
        };
        if moment.verdict && self.lifecycle > Lifecycle::Syncing {
            let (phase, reason) = ("Failed".into(), "Evicted".into());
            self.verdict.get_or_insert(PodVerdict { phase, reason, message: "why".into() });
        }
        self.waiting.clear();
        if moment.waits {
            let why = WaitingReason { reason: "CrashLoopBackOff".into(), message: "wait".into() };
            self.waiting.insert("a".into(), why);
        }
        self.observed = moment.observed.as_ref().map(|(ready, containers)| {
            let mut observed = ObservedPod::empty("u".into(), "ns", "p");
            observed.sandboxes = ready
                .iter()
                .map(|ready| {
                    let mut built = sandbox();
                    built.ready = *ready;
                    built
                })
                .collect();
            observed.containers.clone_from(containers);
            observed
        });
        self.derive()
    }
}

/// True when a container of that status is no longer in the runtime.
fn vanished(before: &PodStatus, world: &DerivedPod) -> bool {
    let init = before.init_container_statuses.iter().flatten();
    let mut known = init.chain(before.container_statuses.iter().flatten());
    let there = |name: &str| world.observed.as_ref().is_some_and(|o| o.latest(name).is_some());
    known.any(|status| status.container_id.is_some() && !there(&status.name))
}

fn restarting(status: &PodStatus) -> bool {
    super::is_restarting(status)
}

fn find<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn status_derivation_is_idempotent(
        mut world in any_pod(), moments in prop::collection::vec(any_moment(), 1..6)
    ) {
        for moment in &moments {
            let before = world.previous.clone().unwrap_or_default();
            let mut status = world.pass(moment);
            let told = vanished(&before, &world) || (restarting(&before) && !restarting(&status));
            if told || world.lifecycle == Lifecycle::Terminated {
                // The end of a removed container is reported once, before the next start; the
                // derived statuses of a finished pod's containers count from the next derivation.
                status = world.derive();
            }
            world.now = UnixNanos(world.now.0 + SECOND);
            prop_assert_eq!(world.derive(), status);
        }
    }

    #[test]
    fn a_terminal_phase_stays_and_counts_only_grow(
        mut world in any_pod(), moments in prop::collection::vec(any_moment(), 2..8)
    ) {
        let mut last = world.pass(&moments[0]);
        for moment in &moments[1..] {
            let next = world.pass(moment);
            if is_terminal(last.phase.as_deref()) {
                prop_assert_eq!(&next.phase, &last.phase);
                prop_assert!(!restarting(&next));
            }
            for old in last.container_statuses.iter().flatten() {
                let new = next.container_statuses.iter().flatten().find(|new| new.name == old.name);
                prop_assert!(new.is_some_and(|new| new.restart_count >= old.restart_count));
            }
            last = next;
        }
    }

    #[test]
    fn times_never_move_back(
        mut world in any_pod(), moments in prop::collection::vec(any_moment(), 2..8)
    ) {
        let mut last = world.pass(&moments[0]);
        for moment in &moments[1..] {
            let next = world.pass(moment);
            prop_assert_eq!(&next.start_time, &last.start_time);
            for old in last.conditions.iter().flatten() {
                let Some(new) = find(&next, &old.type_) else { continue };
                prop_assert!(new.last_transition_time >= old.last_transition_time);
                if new.status == old.status {
                    prop_assert_eq!(&new.last_transition_time, &old.last_transition_time);
                }
            }
            last = next;
        }
    }
}
