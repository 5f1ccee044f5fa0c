//! The process with an API server in memory.

use pintle_memory_http::{HttpServer, SharedServer};
use pintle_scheduler_core::config::ProcessSettings;
use pintle_scheduler_core::watch_event::KINDS;
use serde_json::json;

use super::*;
use crate::daemon::{SchedulerAction, parse};

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// An API server without objects but what every cluster has.
fn server() -> HttpServer {
    HttpServer::start(SharedServer::new(1)).expect("a port and a thread")
}

/// Waits until the server has had so many of these requests.
async fn until(server: &HttpServer, what: &str, times: usize) {
    let began = Instant::now();
    while server.count(what) < times {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:?}", server.requests());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Settings of a scheduler without a port.
fn settings(args: &[&str]) -> Settings {
    let args: Vec<String> =
        ["--secure-port=0"].iter().chain(args).map(ToString::to_string).collect();
    match parse(&args, &Registry::default()).expect("good arguments") {
        SchedulerAction::Run(settings) => *settings,
        SchedulerAction::Print(text) => panic!("{text}"),
    }
}

/// Starts a scheduler of this server; returns it with its state.
fn begin(
    server: &HttpServer,
    args: &[&str],
) -> (impl Future<Output = Result<()>> + use<>, Arc<State>) {
    let access = Access::anonymous("test".as_ref(), &server.url()).expect("an address");
    let settings = settings(args);
    let (state, questions) = State::new(&settings);
    let state = Arc::new(state);
    let plugins = OfOthers { plugins: vec![None], handle: Handle::default() };
    let running = RunningScheduler::new(&access, &settings, &state, questions, plugins);
    let lead = lead(&access, &settings, &state).expect("good timings");
    (work(running.expect("good settings"), lead, Ending::never()), state)
}

#[test]
fn server_given_without_kubeconfig_is_accessed_anonymously() {
    let process = ProcessSettings { kubeconfig: None, ..ProcessSettings::default() };
    let access = access(&process, Some("127.0.0.1:8080")).expect("no credentials are needed");
    assert_eq!(access.server.to_string(), "http://127.0.0.1:8080/");
    assert!(!access.has_identity());
}

#[tokio::test]
async fn scheduler_without_list_rights_does_not_acquire_the_lease() {
    let server = server();
    server.refuse("GET", SLICES, 403, "no");
    let tasks = tokio::task::LocalSet::new();
    let test = tasks.run_until(async move {
        let (work, _) = begin(&server, &[]);
        let looks = async {
            // Everything is synced except the slices, whose list was rejected again.
            until(&server, "watch=true", KINDS.len() - 1).await;
            until(&server, SLICES, 2).await;
            assert_eq!(server.count(LEASES), 0, "{:?}", server.requests());
            server.refuse_nothing();
            until(&server, &format!("POST {LEASES}"), 1).await;
        };
        tokio::select! {
            ended = work => panic!("it ended: {ended:?}"),
            () = looks => {}
        }
    });
    test.await;
}

#[tokio::test]
async fn cluster_is_read_again_after_a_panic_that_tore_the_cache_and_good_pods_are_bound() {
    let server = server();
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    server.put("/api/v1/nodes/n", json!({"status": {"allocatable": room}}));
    for name in ["bad", "good"] {
        let priority = i32::from(name == "bad");
        let spec = json!({"schedulerName": "default-scheduler", "priority": priority,
            "containers": [{"name": "c", "image": "i"}]});
        server.put(&format!("/api/v1/namespaces/d/pods/{name}"), json!({"spec": spec}));
    }
    let tasks = tokio::task::LocalSet::new();
    let test = tasks.run_until(async move {
        let (work, state) = begin(&server, &["--leader-elect=false"]);
        pintle_scheduler_core::fault::arm("permit", 0);
        let looks = async {
            until(&server, "POST /api/v1/namespaces/d/pods/good/binding", 1).await;
            assert!(!pintle_scheduler_core::fault::disarm(), "it panicked");
            assert_eq!(server.count("POST /api/v1/namespaces/d/pods/bad/binding"), 0);
            let requests = server.requests();
            let lists = requests.iter().filter(|line| *line == "GET /api/v1/nodes?").count();
            assert_eq!(lists, 2, "{requests:?}");
            assert!(state.metrics.text().contains("pintle_scheduler_cache_rebuilds_total 1"));
            // The pod that panicked stays pending, and is bound as well.
            until(&server, "POST /api/v1/namespaces/d/pods/bad/binding", 1).await;
        };
        tokio::select! {
            ended = work => panic!("it ended: {ended:?}"),
            () = looks => {}
        }
    });
    test.await;
}
