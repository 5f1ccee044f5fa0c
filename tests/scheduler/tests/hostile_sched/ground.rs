//! The cluster with the scheduler under attack, its quiet state, and its limits.
//!
//! A real API server with nodes that exist in it alone, each with a few devices, and our scheduler
//! with leader election and its HTTPS port. Before the first attack several bystanders are bound;
//! the slowest but the first is the baseline of later ones. A thread watches the scheduler's
//! memory.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Resource;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pintle_testbed::wait::{LONG, patience, until};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::stand::{Ours, SchedulerStand};

/// Namespaces of attackers and bystanders.
pub const ATTACKER: &str = "attacker";
pub const BYSTANDER: &str = "bystander";
/// A storage class with `WaitForFirstConsumer`.
pub const LATE_CLASS: &str = "late";
/// Nodes, and devices of each.
pub const NODES: usize = 40;
const DEVICES: usize = 16;
/// Address of the extender in the attacks that use one, and the resource that it manages.
pub const EXTENDER: &str = "127.0.0.1:8199";
pub const EXTENDED: &str = "extended.example/r";
/// Feature gates that pod groups need in the API server and the scheduler.
const GATES: &str = "GenericWorkload=true,GangScheduling=true,\
                     TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true";
/// Factor and extra time of a bystander compared with the quiet cluster: the test host has two
/// cores for the API server, its store, the attacker and the scheduler. The development build has
/// more: beside eight pods of 10,000 terms a bystander took 2.3 s with it and 1.0 s with the release
/// build; with other stages of a whole run beside it 6.7 s.
const LIMIT_FACTOR: u32 = 3;
const LIMIT_FLOOR: Duration = Duration::from_secs(2);
const LIMIT_FLOOR_UNOPTIMIZED: Duration = Duration::from_secs(8);
/// Extra memory of the scheduler: the API server lets a user store a few megabytes of pods without
/// a quota, and the scheduler has to cache them.
const MEMORY_FLOOR_KIB: u64 = 192 << 10;
/// Bystanders on the quiet cluster.
const QUIET: usize = 6;
/// How often memory is read.
const WATCH_PERIOD: Duration = Duration::from_millis(50);
/// Objects that are created or deleted at once.
const AT_ONCE: usize = 32;

/// A cluster under attack.
pub struct AttackedCluster {
    watch: MemorySampler,
    ours: Ours,
    pub stand: Arc<SchedulerStand>,
    quiet: Duration,
    quiet_kib: u64,
    holder: String,
    bystanders: usize,
}

/// Processes of the scheduler that ended by themselves.
#[derive(Debug, Default)]
pub struct Ended(usize);

impl std::ops::Add for Ended {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl pintle_testbed::attacks::AttackTarget for AttackedCluster {
    type Tally = Ended;
    const OVERALL: &'static str = "all::the_scheduler_never_ended";

    fn prepare() -> Self {
        let extender = json!({
            "urlPrefix": format!("http://{EXTENDER}"), "filterVerb": "filter",
            "prioritizeVerb": "prioritize", "weight": 1, "nodeCacheCapable": true,
            "httpTimeout": "5s", "managedResources": [{"name": EXTENDED, "ignoredByScheduler": true}],
        });
        let configuration = json!({
            "leaderElection": {"leaderElect": true},
            "clientConnection": {"qps": 5000, "burst": 5000},
            "extenders": [extender],
        });
        let gates = format!("--feature-gates={GATES}");
        let flags = [&*gates, "--runtime-config=scheduling.k8s.io/v1alpha2=true"];
        let stand = Arc::new(SchedulerStand::with_api_server("hostile", &configuration, &flags));
        stand.with_client(async |client| set_up(&client).await);
        let serving = stand.serving();
        let serving = serving.iter().map(String::as_str).chain([&*gates]);
        let ours = stand.start_ours(&serving.collect::<Vec<_>>());
        let watch = MemorySampler::start(ours.pid());
        let (quiet, quiet_kib, holder) = Default::default();
        let mut ground = Self { watch, ours, stand, quiet, quiet_kib, holder, bystanders: 0 };
        ground.live(LONG);
        ground.quiet = (0..QUIET).map(|_| ground.live(LONG)).max().expect("bystanders");
        ground.holder = ground.lease_holder();
        ground.quiet_kib = ground.watch.most();
        eprintln!("    quiet: {:?}, {} KiB", ground.quiet, ground.quiet_kib);
        ground
    }

    fn recover(&mut self) {
        self.bystander("after it");
        self.stand.with_client(async |client| clean(&client).await);
        let kib = self.watch.most();
        eprintln!("    at most {kib} KiB");
        let most = self.quiet_kib + MEMORY_FLOOR_KIB;
        assert!(kib <= most, "{kib} KiB where {} were quiet", self.quiet_kib);
        self.watch.forget();
        assert!(self.ours.runs(), "the scheduler ended: {}", self.stand.ours_log_end());
        assert_eq!(self.lease_holder(), self.holder, "the lease has another holder");
        self.assert_healthy();
    }

    fn show_log(&self) {
        eprintln!("end of the scheduler's log:\n{}", self.stand.ours_log_end());
    }

    fn tally(&self) -> Ended {
        Ended(usize::from(!self.ours.runs()))
    }

    fn check(tally: &Ended) -> Result<()> {
        ensure!(tally.0 == 0, "the scheduler ended {} times", tally.0);
        Ok(())
    }
}

impl AttackedCluster {
    /// Creates the attacker's objects of one kind, many at once.
    pub fn create<K>(&self, objects: Vec<Value>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + serde::Serialize
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        self.stand.with_client(async |client| {
            create_all(&Api::<K>::namespaced(client, ATTACKER), objects).await
        });
    }

    /// Creates objects that belong to no namespace.
    pub fn create_global<K>(&self, objects: Vec<Value>)
    where
        K: Resource<DynamicType = ()> + serde::Serialize + DeserializeOwned + Clone,
        K: std::fmt::Debug,
    {
        self.stand.with_client(async |client| create_all(&Api::<K>::all(client), objects).await);
    }

    /// Binds bystanders, one after another, each within its limit.
    pub fn bystander(&mut self, when: &str) {
        let is_given = std::env::var_os("PINTLE_SCHEDULER").is_some();
        let floor = if is_given { LIMIT_FLOOR } else { LIMIT_FLOOR_UNOPTIMIZED };
        let limit = (self.quiet * LIMIT_FACTOR + floor) * patience();
        for _ in 0..3 {
            let took = self.live(limit);
            eprintln!("    a bystander {when} took {took:.2?}");
            assert!(took <= limit, "{when}: a bystander took {took:.2?} instead of {limit:.2?}");
        }
    }

    /// Waits until each of these pods of the attacker has a node or a sentence why it has none.
    pub fn are_answered(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| until(LONG, name, || self.answer_of(name))).collect()
    }

    fn answer_of(&self, name: &str) -> Result<String> {
        let pod = self.stand.with_client(async |client| {
            Ok(Api::<Pod>::namespaced(client, ATTACKER).get(name).await?)
        });
        if let Some(node) = pod.spec.and_then(|spec| spec.node_name) {
            return Ok(format!("bound to {node}"));
        }
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|c| c.type_ == "PodScheduled");
        let message = condition.and_then(|condition| condition.message);
        message.filter(|text| !text.is_empty()).context("neither a node nor a sentence")
    }

    /// Binds one bystander; returns the duration.
    fn live(&mut self, longest: Duration) -> Duration {
        self.bystanders += 1;
        let name = format!("b{}", self.bystanders);
        let took = self.stand.with_client(async |client| {
            let pods = Api::<Pod>::namespaced(client, BYSTANDER);
            let object = serde_json::from_value(pod(&name, json!({})))?;
            let begin = Instant::now();
            pods.create(&PostParams::default(), &object).await?;
            let mut is_bound = false;
            while !is_bound && begin.elapsed() <= longest {
                tokio::time::sleep(Duration::from_millis(10)).await;
                let now = pods.get(&name).await?;
                is_bound = now.spec.is_some_and(|spec| spec.node_name.is_some());
            }
            let took = begin.elapsed();
            pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
            Ok(is_bound.then_some(took))
        });
        let log = || self.stand.ours_log_end();
        took.unwrap_or_else(|| panic!("{name} not bound within {longest:?}\n{}", log()))
    }

    fn lease_holder(&self) -> String {
        let lease = self.stand.with_client(async |client| {
            Ok(Api::<Lease>::namespaced(client, "kube-system").get("kube-scheduler").await?)
        });
        lease.spec.and_then(|spec| spec.holder_identity).expect("a leader")
    }

    /// Asserts that the port reports a healthy scheduler.
    pub fn assert_healthy(&self) {
        for path in ["/livez", "/readyz", "/healthz"] {
            let answer = self.stand.get(path, None);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
    }
}

/// A pod with these fields of its spec beside the usual ones.
pub fn pod(name: &str, spec: Value) -> Value {
    let requests = json!({"cpu": "10m", "memory": "1Mi"});
    let container = json!({"name": "c", "image": "i", "resources": {"requests": requests}});
    let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [container]}});
    let fields = pod["spec"].as_object_mut().expect("an object");
    fields.extend(spec.as_object().expect("fields are an object").clone());
    pod
}

async fn set_up(client: &kube::Client) -> Result<()> {
    for name in [ATTACKER, BYSTANDER] {
        let namespace = json!({"metadata": {"name": name}});
        create_all(&Api::<Namespace>::all(client.clone()), vec![namespace]).await?;
        let account = json!({"metadata": {"name": "default"}});
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), name);
        create_all(&accounts, vec![account]).await?;
    }
    let class = json!({"metadata": {"name": "gpu"}, "spec": {}});
    create_all(&Api::<DeviceClass>::all(client.clone()), vec![class]).await?;
    let class = json!({"metadata": {"name": LATE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    create_all(&Api::<StorageClass>::all(client.clone()), vec![class]).await?;
    for at in 0..NODES {
        add_node(client, &format!("n{at}")).await?;
    }
    Ok(())
}

async fn add_node(client: &kube::Client, name: &str) -> Result<()> {
    let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110"});
    let labels = json!({"kubernetes.io/hostname": name, "zone": name});
    let node = json!({"metadata": {"name": name, "labels": labels},
        "status": {"allocatable": room, "capacity": room}});
    let nodes = Api::<Node>::all(client.clone());
    create_all(&nodes, vec![node]).await?;
    let change = Patch::Merge(json!({"spec": {"taints": []}}));
    nodes.patch(name, &PatchParams::default(), &change).await?;
    let device = |at: usize| {
        json!({"name": format!("d{at}"), "attributes": {"number": {"int": at},
            "model": {"string": "a100"}, "only": {"bool": at == 0}}})
    };
    let devices: Vec<Value> = (0..DEVICES).map(device).collect();
    let slice = json!({"metadata": {"name": name}, "spec": {"driver": "d.example",
        "nodeName": name, "devices": devices,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}});
    create_all(&Api::<ResourceSlice>::all(client.clone()), vec![slice]).await
}

/// Creates all, some at once.
async fn create_all<K>(api: &Api<K>, objects: Vec<Value>) -> Result<()>
where
    K: Resource<DynamicType = ()> + serde::Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    for some in objects.chunks(AT_ONCE) {
        let one = async |object: &Value| -> Result<()> {
            let object: K = serde_json::from_value(object.clone())?;
            let created = api.create(&PostParams::default(), &object).await;
            created.map(drop).with_context(|| object.meta().name.clone().unwrap_or_default())
        };
        futures_util::future::try_join_all(some.iter().map(one)).await?;
    }
    Ok(())
}

/// Removes all objects of attackers.
async fn clean(client: &kube::Client) -> Result<()> {
    delete_all(&Api::<Pod>::namespaced(client.clone(), ATTACKER), |_| true).await?;
    delete_all(&Api::<ResourceClaim>::namespaced(client.clone(), ATTACKER), |_| true).await?;
    delete_all(&Api::<PodDisruptionBudget>::namespaced(client.clone(), ATTACKER), |_| true).await?;
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), ATTACKER);
    delete_all(&claims, |_| true).await?;
    delete_all(&Api::<PodGroup>::namespaced(client.clone(), ATTACKER), |_| true).await?;
    delete_all(&Api::<PersistentVolume>::all(client.clone()), |_| true).await?;
    let is_own = |name: &str| name.starts_with(ATTACKER);
    delete_all(&Api::<PriorityClass>::all(client.clone()), is_own).await?;
    delete_all(&Api::<Node>::all(client.clone()), is_own).await
}

/// Deletes the objects that `fits` accepts, and their finalizers: no controllers run.
async fn delete_all<K>(api: &Api<K>, fits: impl Fn(&str) -> bool) -> Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let all = api.list_metadata(&ListParams::default()).await?;
    let all: Vec<(String, bool)> = all
        .items
        .into_iter()
        .map(|o| (o.metadata.name.unwrap_or_default(), o.metadata.finalizers.is_some()))
        .filter(|(name, _)| fits(name))
        .collect();
    for some in all.chunks(AT_ONCE) {
        let one = async |(name, has_finalizers): &(String, bool)| -> Result<()> {
            let deleted = api.delete(name, &DeleteParams::default().grace_period(0)).await;
            deleted.map(drop).or_else(ignore_not_found)?;
            if *has_finalizers {
                let change = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let patched = api.patch_metadata(name, &PatchParams::default(), &change).await;
                patched.map(drop).or_else(ignore_not_found)?;
            }
            Ok(())
        };
        futures_util::future::try_join_all(some.iter().map(one)).await?;
    }
    Ok(())
}

/// An object that is not there needs no deletion.
fn ignore_not_found(error: kube::Error) -> kube::Result<()> {
    match error {
        kube::Error::Api(status) if status.code == 404 => Ok(()),
        other => Err(other),
    }
}

/// Reads the scheduler's memory all the time and keeps the most that it saw.
struct MemorySampler {
    most: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemorySampler {
    fn start(pid: u32) -> Self {
        let (most, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let seen = (Arc::clone(&most), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            let (most, is_over) = seen;
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(resident_kib(pid), Ordering::Relaxed);
                thread::sleep(WATCH_PERIOD);
            }
        });
        Self { most, is_over, thread: Some(thread) }
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    fn forget(&self) {
        self.most.store(0, Ordering::Relaxed);
    }
}

impl Drop for MemorySampler {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn resident_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
