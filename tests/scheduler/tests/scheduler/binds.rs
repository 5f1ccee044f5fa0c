//! Our scheduler in place of kube-scheduler on a real API server.
//!
//! Pods of all kinds are created in waves; in between some are deleted, gates are removed, nodes
//! are cordoned and uncordoned. Our shadow follows it as it follows kube-scheduler: a process that
//! only watches must make the same decisions as the one that binds.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, ListParams};
use nix::sys::signal::Signal;
use pintle_api_types::quantity;
use serde_json::{Value, json};

use crate::shadow::{ShadowOutcome, is_bound, is_refused, name, pods, set_up, waves};
use crate::stand::SchedulerStand;

/// Two on one machine cannot share a port.
const NO_PORT: [&str; 1] = ["--secure-port=0"];

fn configuration() -> Value {
    json!({
        "leaderElection": {"leaderElect": true},
        "clientConnection": {"qps": 5000, "burst": 5000},
    })
}

#[test]
fn every_pod_that_fits_gets_a_node_and_no_node_is_given_away_twice() {
    let seed = std::env::var("PINTLE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("PINTLE_SEED={seed}");
    let (nodes, count) = (50, 400);
    let mut stand = SchedulerStand::without_scheduler("binds", &configuration());
    stand.with_client(async |client| set_up(&client, nodes, seed).await);
    stand.start_shadow();
    let serving = stand.serving();
    let ours = stand.start_ours(&serving.iter().map(String::as_str).collect::<Vec<_>>());
    let outcome = stand.with_client(async |client| waves(&client, nodes, count, seed).await);
    println!("{outcome:?}");
    let (all, all_nodes, events) = stand.with_client(async |client| look(&client).await);
    not_over_committed(&all, &all_nodes);
    let others = bound_once(&stand.audit());
    assert!(others.is_empty(), "{others:?}");
    check_that_no_pod_was_skipped(&stand, &all);
    told(&all, &events);
    let report = stand.end_shadow();
    println!("bindings {}, refusals {}", report["bindings"], report["refusals"]);
    decided_alike(&report, &stand);
    check_outcome(&outcome, &all);
    port(&stand, &outcome);
    assert!(ours.end(Signal::SIGTERM), "{}", stand.ours_log_end());
}

/// Two of our schedulers elect a leader, and one of the two is killed again and again.
#[test]
fn killed_schedulers_leave_no_feasible_pod_pending_and_bind_no_pod_twice() {
    let mut configuration = configuration();
    configuration["leaderElection"] = json!({"leaderElect": true, "leaseDuration": "3s",
        "renewDeadline": "2s", "retryPeriod": "500ms"});
    let seed = 3;
    let stand = SchedulerStand::without_scheduler("kills", &configuration);
    stand.with_client(async |client| set_up(&client, 30, seed).await);
    let ended = AtomicBool::new(false);
    let (outcome, kills) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill_again_and_again(&stand, &ended));
        let _ends = Sets(&ended);
        let outcome = stand.with_client(async |client| waves(&client, 30, 300, seed).await);
        ended.store(true, Ordering::SeqCst);
        (outcome, killer.join().expect("no panic"))
    });
    println!("{outcome:?}; {kills} kills");
    let (all, all_nodes, _) = stand.with_client(async |client| look(&client).await);
    not_over_committed(&all, &all_nodes);
    println!("{} bindings were refused", bound_once(&stand.audit()).len());
    stand.give_shadow_rights();
    check_that_no_pod_was_skipped(&stand, &all);
    check_outcome(&outcome, &all);
}

/// Sets the flag when it is dropped, also when the test fails.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Kills one of the two and starts it again; then the other, until all is over, but each once and
/// one of them twice at least. Returns the number of kills.
fn kill_again_and_again(stand: &SchedulerStand, ended: &AtomicBool) -> usize {
    let mut both = [stand.start_ours(&NO_PORT), stand.start_ours(&NO_PORT)];
    let mut kills = 0;
    while !ended.load(Ordering::SeqCst) || kills < 3 {
        // At arbitrary moments: their work takes milliseconds.
        std::thread::sleep(Duration::from_millis(1500 + 377 * (kills as u64 % 5)));
        let killed = std::mem::replace(&mut both[kills % 2], stand.start_ours(&NO_PORT));
        assert!(!killed.end(Signal::SIGKILL));
        kills += 1;
    }
    kills
}

/// Compares with a second process that only watches. Bindings are written in another order than
/// they are decided, many at once, so that on a busy machine it cannot find the state of each
/// decision; then scores differ a little. No chosen node may be one that a filter rejects, and no
/// refused pod may have a feasible node.
fn decided_alike(report: &Value, stand: &SchedulerStand) {
    let log = stand.ours_log_end();
    assert_eq!(report["refusals"]["other"], 0, "{report}\n{log}");
    let number = |what: &str| report["bindings"][what].as_u64().expect("a number");
    let all: u64 = ["exact", "nearby", "farthest", "other"].into_iter().map(number).sum();
    assert!(number("other") * 20 <= all && number("exact") * 2 > all, "{report}\n{log}");
    let others = report["disagreements"].as_array().expect("a list");
    let by_filter = others.iter().find(|other| other["difference"] != "score");
    assert!(by_filter.is_none(), "{by_filter:?}\n{log}");
}

/// The health paths need no authentication; the others need authorization.
fn port(stand: &SchedulerStand, outcome: &ShadowOutcome) {
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = stand.get(path, None);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{path}: {answer}");
    }
    let checks = stand.get("/readyz?verbose", None);
    for check in ["leaderElection", "shutdown", "sched-handler-sync"] {
        assert!(checks.contains(&format!("[+]{check} ok")), "{checks}");
    }
    let refused = stand.get("/metrics", None);
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let metrics = stand.get("/metrics", Some("admin"));
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|value| value.trim().parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{name} is not in {metrics}"))
    };
    let labels = "{result=\"scheduled\",profile=\"default-scheduler\"}";
    let bound = value(&format!("scheduler_schedule_attempts_total{labels}"));
    assert!(bound >= outcome.bound as f64, "{bound}: {outcome:?}");
    let refused = value("scheduler_pending_pods{queue=\"unschedulable\"}");
    assert!(refused > 0.0, "{metrics}");
    assert_eq!(value("leader_election_master_status{name=\"kube-scheduler\"}"), 1.0);
    let configuration = stand.get("/configz", Some("admin"));
    assert!(configuration.contains("\"leaseDuration\":\"15s\""), "{configuration}");
    assert!(stand.get("/flagz", Some("admin")).contains("secure-port=10259"));
    assert!(stand.get("/statusz", Some("admin")).contains("kube-scheduler"));
    let pod = outcome.a_refused.as_deref().expect("some pod fits nowhere");
    let asked = format!("/pintle/explain?pod={pod}");
    let answer = stand.get(&asked, Some("admin"));
    assert!(answer.contains(pod) && answer.contains("Rejected:"), "{answer}");
    assert!(stand.get(&asked, None).starts_with("HTTP/1.1 403"));
    let nobody = stand.get("/pintle/explain?pod=default/nobody", Some("admin"));
    assert!(nobody.starts_with("HTTP/1.1 404"), "{nobody}");
}

fn check_outcome(outcome: &ShadowOutcome, all: &[Pod]) {
    assert!(outcome.bound > 100, "{outcome:?}");
    assert!(outcome.refused > 0, "{outcome:?}");
    assert!(all.iter().any(is_bound));
}

async fn look(client: &kube::Client) -> Result<(Vec<Pod>, Vec<Node>, Vec<Event>)> {
    let everything = ListParams::default();
    let nodes = Api::<Node>::all(client.clone()).list(&everything).await?.items;
    let events = Api::<Event>::all(client.clone()).list(&everything).await?.items;
    Ok((pods(client).await?, nodes, events))
}

/// Checks that no node is over-committed.
fn not_over_committed(all: &[Pod], nodes: &[Node]) {
    let mut asked: HashMap<&str, BTreeMap<String, i64>> = HashMap::new();
    for pod in all.iter().filter(|pod| is_bound(pod)) {
        let spec = pod.spec.as_ref().expect("it has one");
        let of = asked.entry(spec.node_name.as_deref().expect("bound")).or_default();
        *of.entry("pods".to_owned()).or_default() += 1000;
        for container in &spec.containers {
            let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            for (name, amount) in quantity::read_list(requests).expect("quantities") {
                *of.entry(name).or_default() += amount.millis();
            }
        }
    }
    for node in nodes {
        let Some(asked) = asked.get(node.metadata.name.as_deref().unwrap_or_default()) else {
            continue;
        };
        let status = node.status.as_ref().expect("a status");
        let has = quantity::read_list(status.allocatable.as_ref()).expect("quantities");
        for (name, amount) in asked {
            let has = has.get(name).map_or(0, |amount| amount.millis());
            assert!(*amount <= has, "{:?}: {name}: {amount} of {has}", node.metadata.name);
        }
    }
}

/// No pod was bound a second time; bindings that were refused.
fn bound_once(audit: &str) -> Vec<String> {
    let mut bindings: BTreeMap<String, usize> = BTreeMap::new();
    let mut refused = Vec::new();
    for line in audit.lines().filter(|line| line.contains("\"binding\"")) {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let of = &entry["objectRef"];
        if entry["verb"] != "create" || of["subresource"] != "binding" {
            continue;
        }
        // Two of a name are two pods; a bound pod is never bound again.
        match entry["responseStatus"]["code"].as_u64() {
            Some(201) => {
                let pod = format!("{} {}", entry["requestURI"], of["uid"]);
                *bindings.entry(pod).or_default() += 1;
            }
            _ => refused.push(entry.to_string()),
        }
    }
    assert!(!bindings.is_empty(), "bindings are in the audit log");
    let twice: Vec<_> = bindings.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    refused
}

/// A scheduler that reads the cluster afresh finds no node for the pods that have none.
fn check_that_no_pod_was_skipped(stand: &SchedulerStand, all: &[Pod]) {
    for pod in all.iter().filter(|pod| is_refused(pod)) {
        let pod = format!("{}/{}", pod.metadata.namespace.as_deref().unwrap_or(""), name(pod));
        let answer = stand.ask(&["explain", &pod, "-o", "json"]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["feasible"], 0, "{pod} fits: {answer}\n{}", stand.ours_log_end());
    }
}

/// Every pod has an event with its outcome.
fn told(all: &[Pod], events: &[Event]) {
    let of = |pod: &Pod, reason: &str| {
        let is = |event: &&Event| {
            event.involved_object.uid == pod.metadata.uid && event.reason.as_deref() == Some(reason)
        };
        events.iter().filter(is).count()
    };
    for pod in all {
        let expected = match (is_bound(pod), is_refused(pod)) {
            (true, _) => "Scheduled",
            (_, true) => "FailedScheduling",
            _ => continue,
        };
        assert!(of(pod, expected) > 0, "{}: no event {expected}", name(pod));
    }
    let scheduled = events.iter().find(|event| event.reason.as_deref() == Some("Scheduled"));
    let scheduled = scheduled.expect("some pod was scheduled");
    assert_eq!(scheduled.action.as_deref(), Some("Binding"));
    assert_eq!(scheduled.reporting_component.as_deref(), Some("default-scheduler"));
    let of_lease = |event: &&Event| event.involved_object.kind.as_deref() == Some("Lease");
    let of_lease = events.iter().find(of_lease).expect("an event of the lease");
    let message = of_lease.message.as_deref().unwrap_or_default();
    assert!(message.ends_with(" became leader"), "{message}");
}
