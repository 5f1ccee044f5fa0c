//! Tables: pod and record in, actions out. `shown` writes a plan the way a person would.

use serde_json::{Value, json};

use super::*;
use crate::observed::{AppliedSettings, Evidence, KernelExit, ObservedSandbox, TaskExit};
use pintle_api_types::ids::PodUid;
use pintle_api_types::ids::UnixNanos;

pub(super) fn pod(spec: Value) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec
    }))
    .expect("a pod");
    pintle_api_types::pod::defaults::apply(&mut pod);
    pod
}

pub(super) fn sandbox(ready: bool, attempt: u32) -> ObservedSandbox {
    ObservedSandbox {
        id: SandboxId::from(format!("s{attempt}")),
        ready,
        attempt,
        created_at: UnixNanos(i64::from(attempt) + 1),
        ips: vec!["10.0.0.1".parse().expect("an address")],
        host_network: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        runtime_handler: String::new(),
    }
}

pub(super) fn container(
    name: &str,
    state: RunState,
    exit_code: i32,
    restarts: u32,
) -> ObservedContainer {
    ObservedContainer {
        id: ContainerId::from(format!("{name}{restarts}")),
        name: name.to_owned(),
        sandbox_id: SandboxId::from("s0"),
        state,
        restart_count: restarts,
        hash: None,
        created_at: UnixNanos(i64::from(restarts) + 1),
        started_at: UnixNanos(i64::from(restarts) + 1),
        finished_at: UnixNanos(i64::from(restarts) + 1),
        exit_code,
        reason: String::new(),
        message: String::new(),
        image: String::new(),
        image_id: String::new(),
        log_path: String::new(),
        annotations: BTreeMap::new(),
        mounts: Vec::new(),
        applied: AppliedSettings::default(),
        evidence: Evidence::default(),
    }
}

pub(super) fn record(
    sandboxes: Vec<ObservedSandbox>,
    containers: Vec<ObservedContainer>,
) -> ObservedPod {
    ObservedPod { sandboxes, containers, ..ObservedPod::empty(PodUid::from("u"), "ns", "p") }
}

fn shown(plan: &SyncPlan) -> String {
    let one = |action: &Action| match action {
        Action::CreateSandbox { attempt, .. } => format!("sandbox {attempt}"),
        Action::StartContainer { name, restart_count, .. } => match restart_count {
            Some(count) => format!("start {name} {count}"),
            None => format!("start {name}"),
        },
        Action::KillContainer { id, .. } => format!("kill {id}"),
        Action::RemoveContainer { id, .. } => format!("remove {id}"),
        other => other.verb().to_lowercase(),
    };
    let mut words: Vec<_> = plan.actions.iter().map(one).collect();
    words.extend(plan.held.iter().map(|held| format!("held {}", held.name)));
    words.join(", ")
}

fn decide(pod: &Pod, observed: &ObservedPod) -> String {
    let probes = BTreeMap::new();
    decide_with(pod, observed, &probes, &CrashLoop::default())
}

/// When dead containers ended.
fn ends(observed: &ObservedPod) -> BTreeMap<ContainerId, Mono> {
    let dead = observed.containers.iter().filter(|c| c.state == RunState::Exited);
    dead.map(|c| (c.id.clone(), Mono(-1))).collect()
}

fn decide_with(
    pod: &Pod,
    observed: &ObservedPod,
    probes: &BTreeMap<ContainerId, ProbeVerdicts>,
    backoff: &CrashLoop,
) -> String {
    let restart_all = restart::restart_all_requested(pintle_api_types::pod::spec(pod), observed);
    let (ends, now) = (&ends(observed), Mono(0));
    let (actuated, pauses) = (&PodResources::of(pod), &Pauses::new());
    shown(&plan(&PlanInput {
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
    }))
}

use RunState::{Created, Exited, Running, Unknown};

#[test]
fn a_new_pod_gets_a_sandbox_and_all_its_main_containers_in_order() {
    let pod = pod(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
    let nothing = record(vec![], vec![]);
    assert_eq!(decide(&pod, &nothing), "prepare, sandbox 0, start a, start b");
}

#[test]
fn init_containers_run_one_after_the_other_before_main_containers() {
    let pod = pod(json!({"initContainers": [{"name": "i1"}, {"name": "i2"}],
        "containers": [{"name": "a"}]}));
    let steps = [
        (vec![], "prepare, start i1"),
        (vec![container("i1", Running, 0, 0)], ""),
        (vec![container("i1", Exited, 0, 0)], "prepare, start i2"),
        (vec![container("i1", Exited, 1, 0)], "prepare, start i1 1"),
        (vec![container("i2", Exited, 0, 0), container("i1", Exited, 0, 0)], "prepare, start a"),
        // The record of the first one was removed: it is not run again.
        (vec![container("i2", Running, 0, 0)], ""),
        (vec![container("a", Running, 0, 0)], ""),
    ];
    assert_eq!(decide(&pod, &record(vec![], vec![])), "prepare, sandbox 0, start i1");
    for (containers, want) in steps {
        let observed = record(vec![sandbox(true, 0)], containers);
        assert_eq!(decide(&pod, &observed), want, "{:?}", observed.containers);
    }
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let pod = pod(json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}],
        "containers": [{"name": "a"}]}));
    let observed = record(vec![sandbox(true, 0)], vec![container("i", Exited, 1, 0)]);
    assert_eq!(decide(&pod, &observed), "killpod");
    let mut oom = container("i", Exited, 0, 0);
    oom.reason = "OOMKilled".to_owned();
    assert_eq!(decide(&pod, &record(vec![sandbox(true, 0)], vec![oom])), "killpod");
}

#[test]
fn a_sidecar_lets_the_next_container_start_once_its_startup_probe_succeeded() {
    let pod = pod(json!({"initContainers": [{"name": "s", "restartPolicy": "Always",
        "startupProbe": {"exec": {"command": ["x"]}}}], "containers": [{"name": "a"}]}));
    let observed = record(vec![sandbox(true, 0)], vec![container("s", Running, 0, 0)]);
    let verdict = |startup| {
        let id = ContainerId::from("s0");
        BTreeMap::from([(id, ProbeVerdicts { startup, liveness: None })])
    };
    let table = [
        (None, ""),
        (Some(true), "prepare, start a"),
        (Some(false), "prepare, kill s0, start s 1"),
    ];
    for (startup, want) in table {
        let got = decide_with(&pod, &observed, &verdict(startup), &CrashLoop::default());
        assert_eq!(got, want, "{startup:?}");
    }
}

#[test]
fn a_sidecar_is_restarted_while_main_containers_run_and_dies_with_them() {
    let pod = pod(json!({"restartPolicy": "Never",
        "initContainers": [{"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "a"}]}));
    let both = |s, a| record(vec![sandbox(true, 0)], vec![a, s]);
    let a = |state| container("a", state, 0, 0);
    assert_eq!(decide(&pod, &both(container("s", Exited, 1, 0), a(Running))), "prepare, start s 1");
    assert_eq!(decide(&pod, &both(container("s", Running, 0, 0), a(Exited))), "killpod");
}

#[test]
fn restart_policy_decides_about_an_ended_container() {
    let table = [
        ("Always", 0, "prepare, start a 1"),
        ("Always", 3, "prepare, start a 1"),
        ("OnFailure", 0, "killpod"),
        ("OnFailure", 3, "prepare, start a 1"),
        ("Never", 0, "killpod"),
        ("Never", 3, "killpod"),
    ];
    for (policy, code, want) in table {
        let pod = pod(json!({"restartPolicy": policy, "containers": [{"name": "a"}]}));
        let observed = record(vec![sandbox(true, 0)], vec![container("a", Exited, code, 0)]);
        assert_eq!(decide(&pod, &observed), want, "{policy} {code}");
    }
}

#[test]
fn a_containers_own_policy_and_rules_come_before_the_pods() {
    let own = json!({"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]});
    let pod = pod(json!({"restartPolicy": "Always", "containers": [own]}));
    let ended = |code| record(vec![sandbox(true, 0)], vec![container("a", Exited, code, 0)]);
    assert_eq!(decide(&pod, &ended(42)), "prepare, start a 1");
    assert_eq!(decide(&pod, &ended(1)), "killpod");
}

#[test]
fn restart_of_all_containers_removes_the_triggering_container_last() {
    let rule = json!([{"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [9]}}]);
    let pod = pod(json!({"initContainers": [{"name": "i"}], "containers": [
        {"name": "a", "restartPolicy": "Never", "restartPolicyRules": rule}, {"name": "b"}]}));
    let observed = record(
        vec![sandbox(true, 0)],
        vec![
            container("b", Running, 0, 0),
            container("a", Exited, 9, 0),
            container("i", Exited, 0, 0),
        ],
    );
    assert_eq!(decide(&pod, &observed), "kill b0, remove b0, remove i0, remove a0");
}

#[test]
fn a_dead_sandbox_is_replaced_and_the_pod_initialised_again() {
    let pod = pod(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}));
    let containers = vec![container("a", Exited, 137, 0), container("i", Exited, 0, 0)];
    let observed = record(vec![sandbox(false, 0)], containers);
    assert_eq!(decide(&pod, &observed), "remove i0, prepare, sandbox 1, start i 1");
}

#[test]
fn an_init_container_of_an_earlier_sandbox_is_run_again() {
    let pod = pod(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}));
    // Its removal failed when the sandbox was replaced.
    let old = container("i", Exited, 0, 0);
    let observed = record(vec![sandbox(true, 1), sandbox(false, 0)], vec![old]);
    assert_eq!(decide(&pod, &observed), "prepare, start i 1");
}

#[test]
fn a_main_container_that_never_started_in_an_earlier_sandbox_skips_no_init_container() {
    let pod = pod(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}));
    let old = container("a", Created, 0, 0);
    let observed = record(vec![sandbox(true, 1), sandbox(false, 0)], vec![old]);
    assert_eq!(decide(&pod, &observed), "prepare, start i");
}

#[test]
fn a_dead_sandbox_of_a_pod_that_never_restarts_stays_dead() {
    let pod = pod(json!({"restartPolicy": "Never", "containers": [{"name": "a"}]}));
    let observed = record(vec![sandbox(false, 0)], vec![container("a", Exited, 1, 0)]);
    assert_eq!(decide(&pod, &observed), "");
}

#[test]
fn two_ready_sandboxes_are_both_stopped_before_a_third_is_made() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let two = record(vec![sandbox(true, 1), sandbox(true, 0)], vec![container("a", Running, 0, 0)]);
    assert_eq!(decide(&pod, &two), "killpod, prepare, sandbox 2, start a 1");
}

#[test]
fn a_sandbox_without_an_address_is_replaced_unless_it_uses_the_nodes_network() {
    let without = |host| {
        let ips = Vec::new();
        ObservedSandbox { ips, host_network: host, ..sandbox(true, 0) }
    };
    let on_pod_network = pod(json!({"containers": [{"name": "a"}]}));
    let got = decide(&on_pod_network, &record(vec![without(false)], vec![]));
    assert_eq!(got, "killpod, prepare, sandbox 1, start a");
    let on_host = pod(json!({"hostNetwork": true, "containers": [{"name": "a"}]}));
    assert_eq!(decide(&on_host, &record(vec![without(true)], vec![])), "prepare, start a");
}

#[test]
fn a_container_whose_start_may_still_be_under_way_is_removed_first() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let observed = record(vec![sandbox(true, 0)], vec![container("a", Created, 0, 0)]);
    assert_eq!(decide(&pod, &observed), "prepare, remove a0, start a 1");
}

#[test]
fn a_container_of_unknown_state_is_killed_before_its_successor_starts() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let observed = record(vec![sandbox(true, 0)], vec![container("a", Unknown, 0, 0)]);
    assert_eq!(decide(&pod, &observed), "prepare, kill a0, start a 1");
}

#[test]
fn changed_definition_restarts_the_container_even_under_policy_never() {
    let pod = pod(json!({"restartPolicy": "Never",
        "containers": [{"name": "a", "image": "new"}]}));
    let mut running = container("a", Running, 0, 0);
    running.hash = Some(1);
    let observed = record(vec![sandbox(true, 0)], vec![running]);
    assert_eq!(decide(&pod, &observed), "prepare, kill a0, start a 1");
}

#[test]
fn container_reported_as_exited_is_not_killed_for_a_failed_probe() {
    let failed = ProbeVerdicts { liveness: Some(false), startup: Some(false) };
    for (policy, told, want) in [
        ("Always", true, ""),
        ("OnFailure", true, ""),
        ("Never", true, ""),
        ("OnFailure", false, "prepare, kill i0, kill a0, start i 1, start a 1"),
    ] {
        let probe = json!({"exec": {"command": ["x"]}});
        let pod = pod(json!({"restartPolicy": policy,
            "initContainers": [{"name": "i", "restartPolicy": "Always", "startupProbe": probe}],
            "containers": [{"name": "a", "livenessProbe": probe}]}));
        let [mut a, mut i] = ["a", "i"].map(|name| container(name, Running, 0, 0));
        let at = UnixNanos(2);
        let probes = [&a, &i].map(|c| (c.id.clone(), failed)).into_iter().collect();
        for ended in [&mut a, &mut i] {
            ended.evidence.exit = Some(KernelExit { code: 0, at });
            let words = told.then(String::new);
            ended.evidence.told = Some(TaskExit { code: 0, at, words, no_oom_kill: false });
        }
        let observed = record(vec![sandbox(true, 0)], vec![a, i]);
        let decided = decide_with(&pod, &observed, &probes, &CrashLoop::default());
        assert_eq!(decided, want, "{policy} {told}");
    }
}

#[test]
fn a_container_in_back_off_is_held_and_keeps_the_pod_alive() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let observed = record(vec![sandbox(true, 0)], vec![container("a", Exited, 1, 1)]);
    let mut backoff = CrashLoop::default();
    backoff.started(key(&pintle_api_types::pod::spec(&pod).containers[0]), Mono(0), Mono(0));
    let got = decide_with(&pod, &observed, &BTreeMap::new(), &backoff);
    assert_eq!(got, "held a");
}

#[test]
fn only_the_newest_dead_attempt_of_a_container_is_kept() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let attempts = vec![
        container("a", Running, 0, 3),
        container("a", Exited, 1, 2),
        container("a", Exited, 1, 1),
        container("a", Exited, 1, 0),
    ];
    let observed = record(vec![sandbox(true, 0)], attempts);
    assert_eq!(decide(&pod, &observed), "remove a1, remove a0");
}

#[test]
fn resize_precedes_container_starts_and_leaves_other_containers_running() {
    let own = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let spec = |cpu: &str| {
        json!({"initContainers": [{"name": "s", "restartPolicy": "Always", "resources": own(cpu)}],
            "containers": [{"name": "a", "resources": own(cpu)}, {"name": "b"},
                {"name": "r", "resources": own(cpu),
                    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}]})
    };
    let (old, new) = (pod(spec("1")), pod(spec("2")));
    let running = ["s", "a", "b", "r"].map(|name| container(name, Running, 0, 0));
    let observed = record(vec![sandbox(true, 0)], running.into());
    let (probes, backoff, ends) = (BTreeMap::new(), CrashLoop::default(), BTreeMap::new());
    let of = |pod: &Pod, actuated: &PodResources| {
        let (probes, backoff, observed, now) = (&probes, &backoff, &observed, Mono(0));
        let (ends, restart_all, pauses) = (&ends, false, &Pauses::new());
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
    };
    assert!(of(&old, &PodResources::of(&old)).is_empty());
    let plan = of(&new, &PodResources::of(&old));
    assert_eq!(shown(&plan), "prepare, kill r0, resizepod, start r 1");
    let resize = plan.actions.iter().find_map(|action| match action {
        Action::ResizePod(resize) => Some(resize),
        _ => None,
    });
    let resize = resize.expect("a resize");
    let names: Vec<_> = resize.updates.iter().map(|update| update.name.as_str()).collect();
    assert_eq!((names, resize.pod_changes), (vec!["s", "a"], true));
    // A sidecar that restarts for it starts after the pod has grown.
    let side = |cpu: &str| {
        json!({"initContainers": [{"name": "s", "restartPolicy": "Always", "resources": own(cpu),
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}],
            "containers": [{"name": "a"}]})
    };
    let plan = of(&pod(side("2")), &PodResources::of(&pod(side("1"))));
    assert_eq!(shown(&plan), "prepare, kill s0, resizepod, start s 1");
    // Their numbers in force are unknown: an update is harmless, a restart is not.
    assert_eq!(shown(&of(&new, &PodResources::default())), "resizepod");
}
