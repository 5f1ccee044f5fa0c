//! Syncs on a runtime in memory: node facts in new containers after the node has changed, and removals
//! after starts.

use std::path::Path;

use futures_util::FutureExt as _;
use pintle_agent_core::cgroup::formulas::LimitPolicy;
use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::request::dns::NodeDns;
use pintle_agent_core::request::security::SecurityPolicy;
use pintle_agent_core::request::{Gates, SwapPolicy};
use pintle_agent_core::storage::selinux::LabelSettings;
use pintle_agent_core::types::{ContainerKind, RuntimeHandler};
use pintle_agent_metrics::Metrics;
use pintle_api_types::rate::Rate;
use pintle_cri::fake::FakeRuntime;
use pintle_cri::{Deadlines, Method};
use pintle_ebpf::{Hierarchy, Options, Programs};
use serde_json::{Value, json};

use super::*;
use crate::image::NodeKeys;
use crate::image::credentials::NodeCredentials;
use crate::image::provider::{Providers, Settings};
use crate::image::puller::{PullLimits, Puller};
use crate::storage;
use pintle_agent_plugins::{Drivers, Refresher};

fn node(root: &Path) -> NodeContext {
    NodeContext {
        facts: NodeFacts::default(),
        root_dir: root.to_owned(),
        pod_logs_dir: root.join("logs").to_string_lossy().into_owned(),
        dns: NodeDns::default(),
        cgroup: CgroupSetup::default(),
        limits: LimitPolicy {
            enforce_cpu_quota: false,
            cpu_period_us: 100_000,
            pids_max: -1,
            hugepage_sizes: Vec::new(),
            memory_qos: None,
        },
        swap: SwapPolicy::default(),
        security: SecurityPolicy::default(),
        single_process_oom_kill: None,
        selinux: false,
        gates: Gates::default(),
    }
}

fn executor(root: &Path, client: &Client, inputs: mpsc::Sender<PodsInput>) -> Executor {
    let (recorder, metrics) = (Recorder::default(), Arc::new(Metrics::new("n")));
    let limits = PullLimits { parallel: None, rate: Rate { per_second: 0.0, burst: 0 } };
    let providers = Providers::new(&Settings::default(), Box::new(Objects::none()), &metrics);
    let keys = NodeKeys { files: NodeCredentials::new(root), providers };
    let puller = Puller::new(client.clone(), limits, None);
    let hooks = Hooks::new(client.clone(), recorder.clone());
    let mut options = Options::new(Hierarchy::V2);
    (options.programs, options.pidfd) = (Programs::NONE, false);
    let node = node(root);
    Executor {
        client: client.clone(),
        reader: PodReader::new(client.clone()),
        images: Images::new(client.clone(), recorder.clone(), keys, puller, Arc::clone(&metrics)),
        objects: Objects::none(),
        volumes: Volumes::start(storage::StorageParts {
            root: root.to_owned(),
            node_name: "n".into(),
            drivers: Drivers::none(),
            objects: Objects::none(),
            recorder: recorder.clone(),
            metrics: Arc::clone(&metrics),
            node: None,
            events: None,
            attaches_by_controller: false,
            refresher: Refresher::none(),
            labels: LabelSettings::default(),
            resync: Duration::from_secs(60),
        }),
        killer: Killer::new(client.clone(), hooks.clone(), recorder.clone()),
        hooks,
        recorder,
        node_events: Rc::new(|_| ()),
        users: IdUsers::open(root, None, 110).expect("ids"),
        facts: node.facts.clone().into(),
        node,
        cgroups: None,
        metrics,
        tracker: Tracker::start(&options, inputs),
        settings: ExecutorSettings { project_quotas: false, resolv_conf: None },
        turns: SyncTurns::new(1, 1),
        class_limits: ClassLimits::default(),
        containerd: None,
        foreign: ForeignState::default(),
    }
}

/// Syncs that are not optimized need more than a test's thread has.
const STACK_BYTES: usize = 64 << 20;

/// A scene with an executor that has the facts of an empty node.
fn run(
    test: impl AsyncFnOnce(FakeRuntime, Executor, mpsc::Receiver<PodsInput>, mpsc::Sender<PodsInput>)
    + Send
    + 'static,
) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), async {
            let dir = tempfile::tempdir().expect("a folder");
            let fake = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
            fake.add_image("app:1");
            let client = Client::connect(&fake.endpoint(), Deadlines::default()).expect("a path");
            let (back, queue) = mpsc::channel(64);
            let executor = executor(dir.path(), &client, back.clone());
            test(fake, executor, queue, back).await;
        });
    });
    thread.expect("a thread").join().expect("the test ends well");
}

/// Brings the pod up, as this attempt; returns the last action's outcome.
async fn bring_up(
    executor: &Executor,
    mut spec: Value,
    attempt: u32,
    queue: &mut mpsc::Receiver<PodsInput>,
    back: &mpsc::Sender<PodsInput>,
) -> Result<(), Failure> {
    spec["enableServiceLinks"] = json!(true);
    let meta = json!({"name": "p", "namespace": "ns", "uid": "u"});
    let pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod");
    let order = SyncOrder {
        uid: PodUid::from("u"),
        ticket: 1,
        pod: Some(Arc::new(pod)),
        observed: Arc::new(ObservedPod::empty(PodUid::from("u"), "ns", "p")),
        actions: vec![
            Action::Prepare,
            Action::CreateSandbox { attempt, replaces: None },
            Action::StartContainer {
                name: "c".to_owned(),
                kind: ContainerKind::Main,
                restart_count: Some(0),
                sandbox: None,
            },
        ],
    };
    executor.run(order, Cancel::default(), back).await;
    let mut last = Ok(());
    while let Ok(input) = queue.try_recv() {
        if let PodsInput::Progress { outcome, .. } = input {
            last = outcome;
        }
    }
    last
}

#[test]
fn containers_get_the_current_node_addresses_in_their_environment() {
    run(async |fake, executor, mut queue, back| {
        let of =
            |field: &str| json!({"name": field, "valueFrom": {"fieldRef": {"fieldPath": field}}});
        let env = [of("status.hostIP"), of("status.hostIPs"), of("status.podIPs")];
        let spec = json!({"hostNetwork": true, "containers": [
            {"name": "c", "image": "app:1", "imagePullPolicy": "Never", "env": env}]});
        let refused = bring_up(&executor, spec.clone(), 0, &mut queue, &back).await;
        let refused = refused.expect_err("no address");
        assert_eq!(refused.message, "host IP unknown; known addresses: []");
        let ips = ["192.0.2.7", "2001:db8::7"].map(|ip| ip.parse().expect("an address"));
        executor.know_node(&NodeFacts { host_ips: ips.to_vec(), ..NodeFacts::default() });
        bring_up(&executor, spec, 1, &mut queue, &back).await.expect("started");
        let calls = fake.calls_of(Method::CreateContainer, "ns/p/c");
        let request: v1::CreateContainerRequest = calls[0].request().expect("a request");
        let envs = request.config.expect("a configuration").envs;
        let value = |name: &str| {
            let found = envs.iter().find(|env| env.key == name);
            found.map(|env| String::from_utf8_lossy(&env.value).into_owned()).unwrap_or_default()
        };
        assert_eq!(value("status.hostIP"), "192.0.2.7");
        assert_eq!(value("status.hostIPs"), "192.0.2.7,2001:db8::7");
        assert_eq!(value("status.podIPs"), "192.0.2.7,2001:db8::7");
    });
}

#[test]
fn features_of_a_replacement_runtime_are_used_for_the_next_start() {
    run(async |fake, executor, mut queue, back| {
        let spec = json!({"hostUsers": false, "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "image": "app:1", "imagePullPolicy": "Never",
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true,
                    "recursiveReadOnly": "IfPossible"}]}]});
        let refused = bring_up(&executor, spec.clone(), 0, &mut queue, &back).await;
        let refused = refused.expect_err("unable");
        assert!(refused.message.contains("user namespaces"), "{}", refused.message);
        let able = RuntimeHandler {
            name: String::new(),
            recursive_read_only: true,
            user_namespaces: true,
        };
        let mut facts = NodeFacts::default();
        facts.take_runtime(vec![able], true);
        executor.know_node(&facts);
        bring_up(&executor, spec, 1, &mut queue, &back).await.expect("started");
        let calls = fake.calls_of(Method::CreateContainer, "ns/p/c");
        let request: v1::CreateContainerRequest = calls[0].request().expect("a request");
        assert!(request.config.expect("a configuration").mounts[0].recursive_read_only);
    });
}

#[test]
fn removal_of_a_pod_comes_after_a_start_that_began_while_it_waited_for_its_turn() {
    run(async |_fake, executor, _queue, back| {
        let held = executor.turns.cleanups.take(CallFor::Begun).await;
        let order = SyncOrder {
            uid: PodUid::from("u"),
            ticket: 1,
            pod: None,
            observed: Arc::new(ObservedPod::empty(PodUid::from("u"), "ns", "p")),
            actions: vec![Action::Cleanup],
        };
        let removal = executor.run(order, Cancel::default(), &back);
        tokio::pin!(removal);
        assert!(removal.as_mut().now_or_never().is_none(), "another one has the turn");
        let start = executor.turns.under_way.join();
        drop(held);
        let done = RefCell::new(Vec::new());
        let removed = async {
            removal.await;
            done.borrow_mut().push("removed");
        };
        let started = async {
            // As many calls as a start makes, and more.
            for _ in 0..20 {
                executor.client.ready().await;
            }
            done.borrow_mut().push("started");
            drop(start);
        };
        tokio::join!(removed, started);
        assert_eq!(done.into_inner(), ["started", "removed"]);
    });
}
