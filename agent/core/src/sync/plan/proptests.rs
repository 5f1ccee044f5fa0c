//! Properties of every plan, for any pod and any record of the runtime.
//!
//! Worlds are drawn wider than they occur: several ready sandboxes, attempts of any state in any
//! sandbox, probes that fail. Cases of single worlds are in `tests`, as a table.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{container, pod, record, sandbox};
use super::*;
use pintle_api_types::ids::UnixNanos;

/// A pod, its record and its probe results.
#[derive(Debug)]
struct PlannedPod {
    pod: Pod,
    observed: ObservedPod,
    probes: BTreeMap<ContainerId, ProbeVerdicts>,
    restart_all: bool,
}

impl PlannedPod {
    fn plan(&self) -> SyncPlan {
        let (pod, observed, probes) = (&self.pod, &self.observed, &self.probes);
        let (backoff, ends, now) = (&CrashLoop::default(), &BTreeMap::new(), Mono(0));
        let (restart_all, pauses) = (self.restart_all, &Pauses::new());
        let actuated = &PodResources::default();
        plan(&PlanInput {
            ends_kept: 1,
            pod,
            observed,
            probes,
            backoff,
            ends,
            pauses,
            actuated,
            restart_all,
            now,
        })
    }

    fn spec(&self) -> &PodSpec {
        pintle_api_types::pod::spec(&self.pod)
    }

    fn init(&self) -> &[Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }

    /// The newest attempt, if it belongs to the newest sandbox or may still run.
    fn current(&self, name: &str) -> Option<&ObservedContainer> {
        let newest = &self.observed.newest_sandbox()?.id;
        self.observed
            .latest(name)
            .filter(|c| c.sandbox_id == *newest || c.state != RunState::Exited)
    }
}

fn any_state() -> impl Strategy<Value = RunState> {
    use RunState::{Created, Exited, Running, Unknown};
    prop::sample::select(vec![Created, Running, Running, Exited, Exited, Exited, Unknown])
}

/// Restart policy, restart rule, definition changed, probes.
type Traits = (Option<&'static str>, bool, bool, (Option<bool>, Option<bool>));

fn any_traits() -> impl Strategy<Value = Traits> {
    let policy = prop::sample::select(vec![None, None, Some("Always"), Some("Never")]);
    let verdict = || prop::sample::select(vec![None, None, Some(true), Some(false)]);
    (policy, any::<bool>(), prop::bool::weighted(0.1), (verdict(), verdict()))
}

fn spec_of(name: &str, (policy, rule, _, (liveness, startup)): Traits) -> Value {
    let mut container = json!({"name": name, "image": "i"});
    let sidecar = name.starts_with('i') && policy == Some("Always");
    if sidecar || (policy.is_some() && !name.starts_with('i')) {
        container["restartPolicy"] = json!(policy);
    }
    if rule && !sidecar {
        container["restartPolicy"] = json!(policy.unwrap_or("Never"));
        container["restartPolicyRules"] = json!([{"action": "RestartAllContainers",
            "exitCodes": {"operator": "In", "values": [2]}}]);
    }
    let exec = json!({"exec": {"command": ["x"]}});
    if liveness.is_some() {
        container["livenessProbe"] = exec.clone();
    }
    if startup.is_some() {
        container["startupProbe"] = exec;
    }
    container
}

/// Attempts of one container: state, exit code, sandbox.
type Attempts = Vec<(RunState, i32, u32)>;

fn any_attempts() -> impl Strategy<Value = Attempts> {
    prop::collection::vec((any_state(), 0..3_i32, 0..3_u32), 0..3)
}

fn any_list(name: &'static str, size: std::ops::Range<usize>) -> AnyList {
    let one = (any_traits(), any_attempts());
    prop::collection::vec(one, size)
        .prop_map(move |all| {
            let named = all.into_iter().enumerate();
            named.map(|(i, (traits, attempts))| (format!("{name}{i}"), traits, attempts)).collect()
        })
        .boxed()
}

type AnyList = BoxedStrategy<Vec<(String, Traits, Attempts)>>;

fn any_world() -> impl Strategy<Value = PlannedPod> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let sandboxes = prop::collection::vec(prop::bool::weighted(0.7), 0..3);
    (policy, sandboxes, any_list("i", 0..4), any_list("m", 1..4), prop::bool::weighted(0.2))
        .prop_map(|(policy, ready, init, mains, restart_all)| {
            let specs = |list: &[(String, Traits, Attempts)]| -> Vec<Value> {
                list.iter().map(|(name, traits, _)| spec_of(name, *traits)).collect()
            };
            let pod = pod(json!({"restartPolicy": policy,
                "initContainers": specs(&init), "containers": specs(&mains)}));
            let newest = u32::try_from(ready.len()).expect("few");
            let sandboxes = (0..newest).rev().zip(&ready).map(|(at, ready)| sandbox(*ready, at));
            let mut containers = Vec::new();
            let mut probes = BTreeMap::new();
            for (name, (_, _, changed, (liveness, startup)), attempts) in init.iter().chain(&mains)
            {
                for (back, (state, code, sandbox)) in attempts.iter().enumerate() {
                    let restarts = u32::try_from(attempts.len() - 1 - back).expect("few");
                    let mut built = container(name, *state, *code, restarts);
                    built.sandbox_id = SandboxId::from(format!("s{sandbox}"));
                    built.hash = changed.then_some(1);
                    let verdicts = ProbeVerdicts { liveness: *liveness, startup: *startup };
                    probes.insert(built.id.clone(), verdicts);
                    containers.push(built);
                }
            }
            let observed = record(sandboxes.collect(), containers);
            PlannedPod { pod, observed, probes, restart_all }
        })
}

/// The part of the pod that runs as planned: everything is healthy.
fn running_world() -> impl Strategy<Value = PlannedPod> {
    any_world().prop_map(|mut world| {
        world.restart_all = false;
        world.probes.clear();
        let mut containers = Vec::new();
        let spec = world.spec().clone();
        for (kind, wanted) in pintle_api_types::pod::containers::all(&spec) {
            let state = match kind {
                ContainerKind::Init => RunState::Exited,
                _ => RunState::Running,
            };
            containers.push(container(&wanted.name, state, 0, 0));
        }
        world.observed = record(vec![sandbox(true, 0)], containers);
        for built in &world.observed.containers {
            let healthy = ProbeVerdicts { liveness: Some(true), startup: Some(true) };
            world.probes.insert(built.id.clone(), healthy);
        }
        world
    })
}

/// True when the container is gone, or was stopped, by an action before `index`.
fn stopped_before(actions: &[Action], index: usize, id: &ContainerId) -> bool {
    actions[..index].iter().any(|action| match action {
        Action::KillPod { .. } => true,
        Action::KillContainer { id: killed, .. } => killed == id,
        _ => false,
    })
}

fn position(actions: &[Action], what: impl Fn(&Action) -> bool) -> Option<usize> {
    actions.iter().position(what)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_container_is_started_while_its_newest_attempt_may_run(world in any_world()) {
        let actions = world.plan().actions;
        for (index, action) in actions.iter().enumerate() {
            let Action::StartContainer { name, .. } = action else { continue };
            let Some(latest) = world.observed.latest(name) else { continue };
            match latest.state {
                RunState::Running | RunState::Unknown => {
                    prop_assert!(stopped_before(&actions, index, &latest.id), "{actions:?}");
                }
                RunState::Created => {
                    let removed = |a: &Action| {
                        matches!(a, Action::RemoveContainer { id, .. } if *id == latest.id)
                    };
                    let new_sandbox = |a: &Action| matches!(a, Action::CreateSandbox { .. });
                    prop_assert!(
                        actions[..index].iter().any(|a| removed(a) || new_sandbox(a))
                            || world.current(name).is_none(),
                        "{actions:?}"
                    );
                }
                RunState::Exited => {}
            }
        }
    }

    #[test]
    fn killed_pod_starts_no_container_without_a_new_sandbox(world in any_world()) {
        let actions = world.plan().actions;
        let killed = position(&actions, |a| matches!(a, Action::KillPod { .. }));
        let created = position(&actions, |a| matches!(a, Action::CreateSandbox { .. }));
        let started = position(&actions, |a| matches!(a, Action::StartContainer { .. }));
        if let (Some(killed), Some(started)) = (killed, started) {
            prop_assert!(created.is_some_and(|at| killed < at && at < started), "{actions:?}");
        }
        let newest = world.observed.newest_sandbox();
        for action in &actions {
            let Action::StartContainer { sandbox, .. } = action else { continue };
            match sandbox {
                None => prop_assert!(created.is_some_and(|at| Some(at) < started), "{actions:?}"),
                Some(id) => prop_assert!(newest.is_some_and(|s| s.ready && s.id == *id)),
            }
        }
    }

    #[test]
    fn init_containers_start_one_at_a_time_in_their_order(world in any_world()) {
        let actions = world.plan().actions;
        let starts = |kind| {
            let of = move |a: &&Action| matches!(a, Action::StartContainer { kind: k, .. } if *k == kind);
            actions.iter().filter(of).count()
        };
        let init = starts(ContainerKind::Init);
        prop_assert!(init <= 1, "{actions:?}");
        prop_assert!(init == 0 || starts(ContainerKind::Main) == 0, "{actions:?}");
        let anew = actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. }));
        let main_alive = world.spec().containers.iter().any(|c| {
            let latest = world.observed.latest(&c.name);
            latest.is_some_and(|c| matches!(c.state, RunState::Created | RunState::Running))
        });
        for action in &actions {
            let Action::StartContainer { name, .. } = action else { continue };
            let Some(index) = world.init().iter().position(|c| c.name == *name) else { continue };
            if anew {
                prop_assert_eq!(index, 0, "a new sandbox begins with the first");
                continue;
            }
            let passed = main_alive
                || world.init()[index..].iter().any(|c| world.current(&c.name).is_some());
            let Some(before) = index.checked_sub(1).filter(|_| !passed) else { continue };
            let before = world.current(&world.init()[before].name);
            let done = before.is_some_and(|c| match c.state {
                RunState::Running => true,
                RunState::Exited => c.exit_code == 0,
                _ => false,
            });
            prop_assert!(done, "{name} too early: {actions:?}");
        }
    }

    #[test]
    fn healthy_pod_gets_an_empty_plan(world in running_world()) {
        prop_assert_eq!(world.plan(), SyncPlan::default());
    }

    #[test]
    fn actions_name_existing_containers_and_start_each_container_once(world in any_world()) {
        let actions = world.plan().actions;
        let mut started = BTreeSet::new();
        for (index, action) in actions.iter().enumerate() {
            match action {
                Action::KillContainer { id, name, .. } | Action::RemoveContainer { id, name, .. } => {
                    let known = world.observed.containers.iter().find(|c| c.id == *id);
                    prop_assert_eq!(known.map(|c| &c.name), Some(name));
                    let runs = known.is_some_and(|c| c.state == RunState::Running);
                    let removes = matches!(action, Action::RemoveContainer { .. });
                    prop_assert!(
                        !(runs && removes) || stopped_before(&actions, index, id),
                        "removed while it runs: {actions:?}"
                    );
                }
                Action::StartContainer { name, kind, .. } => {
                    let wanted = pintle_api_types::pod::containers::find(world.spec(), name);
                    prop_assert_eq!(wanted.map(|(kind, _)| kind), Some(*kind));
                    prop_assert!(started.insert(name.clone()), "{actions:?}");
                }
                Action::CreateSandbox { attempt, .. } => {
                    let newest = world.observed.newest_sandbox();
                    prop_assert!(newest.is_none_or(|s| *attempt > s.attempt));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn deleted_pod_starts_no_sandbox_and_no_container(mut world in any_world()) {
        world.pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(UnixNanos(1).to_timestamp()));
        let starts = |a: &Action| {
            matches!(a, Action::StartContainer { .. } | Action::CreateSandbox { .. })
        };
        prop_assert!(!world.plan().actions.iter().any(starts));
    }

    #[test]
    fn restart_of_all_containers_starts_none_before_every_container_is_removed(mut world in any_world()) {
        world.restart_all = true;
        let actions = world.plan().actions;
        if world.observed.containers.is_empty() {
            let resets = |a: &Action| matches!(a, Action::RemoveContainer { .. });
            prop_assert!(!actions.iter().any(resets));
        } else {
            let removed = actions.iter().filter(|a| matches!(a, Action::RemoveContainer { .. }));
            prop_assert_eq!(removed.count(), world.observed.containers.len());
            prop_assert!(!actions.iter().any(|a| a.verb() == "StartContainer"));
        }
    }
}
