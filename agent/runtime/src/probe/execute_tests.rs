//! The prober as a whole: orders in, results out, nothing left under way.

use std::sync::Arc;

use pintle_agent_core::worker::ProbeKind;
use pintle_cri::Method;
use pintle_cri::fake::ExecAnswer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use super::super::testing::ProbedRuntime;
use super::*;

/// Far beyond anything a test waits for; only there so that a broken one ends.
const PATIENCE: Duration = Duration::from_secs(60);

struct ProbeWorld {
    prober: Rc<Prober>,
    results: mpsc::Receiver<PodsInput>,
    recorder: Recorder,
}

impl ProbeWorld {
    fn start(runtime: &ProbedRuntime) -> Self {
        let (send, results) = mpsc::channel(64);
        let tools = runtime.tools();
        let recorder = tools.recorder.clone();
        // An agent that is older than every period spreads nothing.
        let began = UnixNanos(1);
        let metrics = Arc::new(Metrics::new("n"));
        let prober = Prober::start(tools.client, recorder.clone(), send, began, metrics);
        Self { prober, results, recorder }
    }

    fn order(&self, runtime: &ProbedRuntime, container: &Value, terminating: bool) {
        let (pod, mut observed) = runtime.pod(container);
        observed.containers[0].started_at = clock::now();
        let uid = observed.uid.clone();
        let observed = Arc::new(observed);
        let pod_ip = Some("127.0.0.1".to_owned());
        self.prober.order(Command::Probe { uid, pod, observed, pod_ip, terminating });
    }

    async fn result(&mut self) -> (ProbeKind, bool) {
        let input = tokio::time::timeout(PATIENCE, self.results.recv()).await;
        match input.expect("a result comes").expect("the prober lives") {
            PodsInput::Probed { probe, healthy, .. } => (probe, healthy),
            other => panic!("no result: {other:?}"),
        }
    }
}

#[tokio::test]
async fn startup_then_readiness_then_failures_are_each_reported_once() {
    let work = async {
        let runtime = ProbedRuntime::start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let probe = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
        let mut world = ProbeWorld::start(&runtime);
        let container =
            json!({"startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe});
        world.order(&runtime, &container, false);
        assert_eq!(world.result().await, (ProbeKind::Startup, true));
        assert_eq!(world.result().await, (ProbeKind::Readiness, true));
        // The server stops: readiness and liveness fail after three attempts in a row.
        drop(listener);
        let mut failed = [world.result().await, world.result().await];
        failed.sort_unstable();
        assert_eq!(failed, [(ProbeKind::Liveness, false), (ProbeKind::Readiness, false)]);
        let events = world.recorder.entries(&"uid-1".into());
        let of = |kind: &str| {
            let text = format!("{kind} probe failed: dial tcp ");
            events.iter().filter(|e| e.text.starts_with(&text)).map(|e| e.count).sum::<u32>()
        };
        assert_eq!(of("Liveness"), 3);
        // Its probe runs once more at once when the pod changes.
        assert!((3..=5).contains(&of("Readiness")), "{events:?}");
    };
    LocalSet::new().run_until(work).await;
}

#[tokio::test]
async fn forgetting_a_pod_cancels_its_exec_commands_in_the_runtime() {
    let work = async {
        let runtime = ProbedRuntime::start().await;
        runtime.fake.script_exec("", "sleep", ExecAnswer::takes(PATIENCE));
        let world = ProbeWorld::start(&runtime);
        let probe = json!({"exec": {"command": ["sleep", "60"]}, "timeoutSeconds": 60});
        world.order(&runtime, &json!({"livenessProbe": probe}), false);
        let called = runtime.fake.called(Method::ExecSync, "", 1);
        tokio::time::timeout(PATIENCE, called).await.expect("the command runs");
        world.prober.forget(&"uid-1".into());
        let cancelled = async {
            while runtime.fake.calls_of(Method::ExecSync, "")[0].ended.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, cancelled).await.expect("the command is ended");
        let idle = async {
            while world.prober.schedule.borrow().attempts() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, idle).await.expect("its place is free");
        assert_eq!(world.prober.schedule.borrow_mut().next_due(), None);
    };
    LocalSet::new().run_until(work).await;
}

#[tokio::test]
async fn terminating_pod_cancels_its_liveness_probe_without_a_result() {
    let work = async {
        let runtime = ProbedRuntime::start().await;
        runtime.fake.script_exec("", "sleep", ExecAnswer::takes(PATIENCE));
        let mut world = ProbeWorld::start(&runtime);
        let hangs = json!({"exec": {"command": ["sleep", "60"]}, "timeoutSeconds": 60});
        let ready = json!({"exec": {"command": ["true"]}});
        let container = json!({"livenessProbe": hangs, "readinessProbe": ready});
        world.order(&runtime, &container, false);
        let called = runtime.fake.called(Method::ExecSync, "", 2);
        tokio::time::timeout(PATIENCE, called).await.expect("both commands run");
        world.order(&runtime, &container, true);
        assert_eq!(world.result().await, (ProbeKind::Readiness, true));
        let idle = async {
            while world.prober.schedule.borrow().attempts() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, idle).await.expect("nothing is left under way");
        assert!(world.results.try_recv().is_err());
    };
    LocalSet::new().run_until(work).await;
}

/// Places of this many pods' attempts under way.
async fn until_under_way(prober: &Prober, attempts: usize) {
    let reached = async {
        while prober.schedule.borrow().attempts() != attempts {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("that many are under way");
}

#[tokio::test]
async fn panicked_attempt_frees_its_slot_and_the_probe_continues() {
    let work = async {
        let runtime = ProbedRuntime::start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let mut world = ProbeWorld::start(&runtime);
        let probe = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
        // The attempt is taken before the prober's task sees it, and panics.
        world.order(&runtime, &json!({"readinessProbe": probe}), false);
        let attempt = world.prober.schedule.borrow_mut().take_due(world.prober.now());
        let key = attempt.expect("it is due").key;
        let slot = AttemptSlot { prober: Rc::clone(&world.prober), key, outcome: None };
        let ended = tokio::task::spawn_local(slot.fill(async { panic!("as a test wants it") }));
        assert!(ended.await.expect_err("it panicked").is_panic());
        assert_eq!(world.prober.schedule.borrow().attempts(), 0);
        assert_eq!(world.result().await, (ProbeKind::Readiness, true), "the next one counts");
    };
    LocalSet::new().run_until(work).await;
}

/// 136 containers with two probes each that never get an answer, with the longest time limit. The
/// wait of another pod's probe is not measured, only that it runs while they hang.
#[tokio::test]
async fn probes_that_never_end_hold_up_no_other_pods() {
    let work = async {
        let runtime = ProbedRuntime::start().await;
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let silent = silent.local_addr().map(|a| (a.port(), silent)).expect("it has an address");
        let hangs = json!({"httpGet": {"port": silent.0}, "timeoutSeconds": i32::MAX,
                           "periodSeconds": 1});
        let containers: Vec<_> = (0..136)
            .map(|n| {
                json!({"name": format!("c{n}"), "readinessProbe": hangs,
                            "livenessProbe": hangs})
            })
            .collect();
        let pod = super::super::testing::pod(json!({"containers": containers}), json!({}));
        let observed = super::super::testing::observed(&pod, clock::now().0);
        let mut world = ProbeWorld::start(&runtime);
        world.prober.schedule.replace(ProbeSchedule::new(UnixNanos(1), 64));
        let (uid, observed) = (PodUid::from("tenant"), Arc::new(observed));
        let pod_ip = Some("127.0.0.1".to_owned());
        let order = Command::Probe { uid, pod, observed, pod_ip, terminating: false };
        world.prober.order(order);
        until_under_way(&world.prober, 64).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let probe = json!({"tcpSocket": {"port": port}});
        world.order(&runtime, &json!({"readinessProbe": probe, "startupProbe": probe}), false);
        assert_eq!(world.result().await, (ProbeKind::Startup, true));
        assert_eq!(world.result().await, (ProbeKind::Readiness, true));
        assert!(world.prober.metrics.limit_hits("probe attempts") > 0);
        assert_eq!(world.recorder.entries(&PodUid::from("tenant")), [], "no event is recorded");
        drop(silent);
    };
    LocalSet::new().run_until(work).await;
}

#[test]
fn due_times_are_rounded_up_to_the_next_50_ms_step() {
    let ms = Duration::from_millis;
    for (at, begins) in [(0, 0), (1, 50), (49, 50), (50, 50), (51, 100), (1049, 1050)] {
        assert_eq!(together(ms(at)), ms(begins), "{at}");
    }
    assert_eq!(together(ms(50) + Duration::from_nanos(1)), ms(100));
    assert_eq!(together(Duration::MAX), Duration::MAX);
}
