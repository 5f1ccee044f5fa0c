//! Parts of the process.

use super::*;
use crate::options::{ManagerAction, parse};

fn options(args: &[&str]) -> Options {
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    match parse(&args).expect("nothing is wrong") {
        ManagerAction::Run(options) => *options,
        ManagerAction::Print(text) => panic!("it prints {text}"),
    }
}

#[test]
fn metrics_have_upstreams_names() {
    let (state, _questions) = State::new(&options(&[]));
    state.metrics.set_leading("kube-controller-manager", true);
    state.metrics.set_running("job-controller", true);
    let text = state.metrics.text();
    for line in [
        "leader_election_master_status{name=\"kube-controller-manager\"} 1",
        "running_managed_controllers{manager=\"kube-controller-manager\",name=\"job-controller\"} 1",
        "kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"} 1",
    ] {
        assert!(text.contains(line), "{line}");
    }
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
}

#[test]
fn controller_has_a_health_check_while_it_runs() {
    let (state, _questions) = State::new(&options(&[]));
    let state = Arc::new(state);
    let pages = state::pages(&state, &options(&[]));
    let health = |path: &str| {
        let query = pintle_daemon::serve::query::Query::parse("verbose");
        let answer = pages.checks.iter().find_map(|checks| checks.answer(path, &query));
        answer.map(|answer| (answer.status, String::from_utf8_lossy(&answer.body).into_owned()))
    };
    let page = "[+]leaderElection ok\n[+]deciding-thread ok\nhealthz check passed\n";
    assert_eq!(health("/healthz"), Some((200, page.to_owned())));
    assert_eq!(health("/healthz/job-controller"), None);
    state.loops.mark_healthy("job-controller");
    assert_eq!(health("/healthz/job-controller"), Some((200, "ok".to_owned())));
    state.loops.mark_failed("job-controller", "stuck".to_owned());
    assert_eq!(health("/healthz").map(|page| page.0), Some(500));
    state.loops.mark_ended("job-controller");
    assert_eq!(health("/healthz").map(|page| page.0), Some(200));
}

#[test]
fn process_that_ends_is_not_ready() {
    let (state, _questions) = State::new(&options(&["--leader-elect=false"]));
    let state = Arc::new(state);
    let pages = state::pages(&state, &options(&["--leader-elect=false"]));
    let status = |path: &str| {
        let query = pintle_daemon::serve::query::Query::parse("");
        pages.checks.iter().find_map(|checks| checks.answer(path, &query)).map(|page| page.status)
    };
    assert_eq!((status("/readyz"), status("/livez")), (Some(200), Some(200)));
    state.mark_ending();
    assert_eq!((status("/readyz"), status("/livez")), (Some(500), Some(200)));
}

#[test]
fn queues_have_upstreams_metrics() {
    use pintle_controllers_core::frame::{ControllerStats, NamedStats, QueueStats};
    let (state, _questions) = State::new(&options(&[]));
    let queues = QueueMetrics::register(&state.metrics);
    let queue = QueueStats { depth: 3, adds: 7, retries: 2, ..QueueStats::default() };
    let stats = ControllerStats { queue, failed: 4, ..ControllerStats::default() };
    queues.update(&[NamedStats { name: "ttl-controller", stats }]);
    let text = state.metrics.text();
    for line in [
        "workqueue_depth{name=\"ttlcontroller\"} 3",
        "workqueue_adds_total{name=\"ttlcontroller\"} 7",
        "workqueue_retries_total{name=\"ttlcontroller\"} 2",
        "pintle_controller_sync_failures_total{controller=\"ttl-controller\"} 4",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

/// k#126114: how many objects wait for the garbage collector shows in upstream's metric.
#[test]
fn queue_of_the_garbage_collector_has_upstreams_metric() {
    let (state, _questions) = State::new(&options(&[]));
    let mut stats = pintle_controllers_core::frame::ControllerStats::default();
    stats.queue.depth = 180_000;
    let queue =
        pintle_controllers_core::frame::NamedStats { name: "garbage-collector-controller", stats };
    QueueMetrics::register(&state.metrics).update(&[queue]);
    let line = "workqueue_depth{name=\"garbage_collector_attempt_to_delete\"} 180000";
    assert!(state.metrics.text().contains(line), "{}", state.metrics.text());
}
