//! Pods that come, work, end and go while a test breaks something, and what must be true of them
//! when it has stopped.
//!
//! Each container writes a line for each of its starts into a folder of the host, so that a second
//! start is seen whatever the agent says about it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::rng::Rng;
use pintle_testbed::cluster::containers::Held;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{
    With, condition, container_id, last_end, phase, pod, restarts, script, status_of,
};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::node::Leftovers;

/// Most pods at once, without those of the deployment.
const PODS_MAX: usize = 12;
/// The deployment, if there is one.
const FLEET: &str = "fleet";
/// Its greatest size.
const FLEET_MAX: u64 = 6;

/// The behaviour of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodKind {
    /// Runs until it is deleted.
    Stays,
    /// Ends well, after an init container.
    Ends,
    /// Ends with 7.
    Fails,
    /// Ends with 1 first, and well after a restart.
    Recovers,
}

const KINDS: [PodKind; 4] = [PodKind::Stays, PodKind::Ends, PodKind::Fails, PodKind::Recovers];
/// Names are used again: a new pod may meet the old one of its name.
const NAMES: u64 = 16;

/// The pods of a test.
pub struct Work<'a> {
    test: &'a TestCluster,
    rng: Rng,
    starts: tempfile::TempDir,
    /// Those that were not deleted.
    pods: BTreeMap<String, PodKind>,
    /// How many pods the deployment shall have; there is none otherwise.
    fleet: Option<u64>,
    /// The agent may go away in the middle of a start.
    is_agent_killed: bool,
}

impl<'a> Work<'a> {
    /// No pods yet. The seed decides everything that `step` does.
    pub fn new(test: &'a TestCluster, seed: u64) -> Self {
        eprintln!("seed {seed}: PINTLE_SEED={seed} repeats it");
        let starts = tempfile::tempdir().expect("a folder that the node sees too");
        let (rng, pods) = (Rng::new(seed), BTreeMap::new());
        Self { test, rng, starts, pods, fleet: None, is_agent_killed: false }
    }

    /// Has a deployment, too, which grows, shrinks and replaces its pods. The scheduler spreads
    /// these over the nodes.
    #[must_use]
    pub fn with_deployment(mut self) -> Self {
        let labels = json!({"app": FLEET});
        let spec = self.manifest(FLEET, PodKind::Stays)["spec"].take();
        let pod = json!({"metadata": {"labels": labels}, "spec": spec});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": FLEET},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": pod}});
        self.test.create(&deployment).expect("created");
        self.fleet = Some(2);
        self
    }

    /// Says that the agent is killed now and then. An attempt that it left behind before anything
    /// ran counts among the restarts, as with the kubelet, though not among the starts; one that
    /// the runtime gave up in the very moment of the start is over, as with the kubelet.
    #[must_use]
    pub fn with_kills(mut self) -> Self {
        self.is_agent_killed = true;
        self
    }

    /// Chance, for the test itself.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Creates a pod, called `w` and a number, and waits for nothing.
    pub fn create(&mut self, name: &str, kind: PodKind) {
        assert!(is_own(name), "{name}");
        self.test
            .create(&self.manifest(name, kind).with_spec("nodeName", json!(NODE)))
            .expect("created");
        self.pods.insert(name.to_owned(), kind);
    }

    /// Deletes a pod and waits for nothing.
    pub fn delete(&mut self, name: &str) {
        self.test.kubectl(&["delete", "pod", name, "--wait=false"]).expect("deleted");
        self.pods.remove(name);
    }

    /// Creates some pods and deletes some.
    pub fn step(&mut self) {
        for _ in 0..self.rng.range(1, 4) {
            let name = format!("w{}", self.rng.range(0, NAMES));
            let kind = *self.rng.pick(&KINDS);
            if self.pods.len() < PODS_MAX && !self.pods.contains_key(&name) {
                let node = self.rng.pick(self.test.cluster().nodes());
                let manifest = self.manifest(&name, kind).with_spec("nodeName", json!(node));
                // The old one of this name may still be on its way out.
                if self.test.create(&manifest).is_ok() {
                    self.pods.insert(name, kind);
                }
            }
        }
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if names.len() > 2 && self.rng.chance(60) {
            let name = self.rng.pick(&names).clone();
            self.delete(&name);
        }
        if self.fleet.is_some() {
            self.step_fleet();
        }
    }

    fn step_fleet(&mut self) {
        let fleet = format!("deployment/{FLEET}");
        if self.rng.chance(40) {
            let size = self.rng.range(0, FLEET_MAX + 1);
            let replicas = format!("--replicas={size}");
            self.test.kubectl(&["scale", &fleet, &replicas]).expect("scaled");
            self.fleet = Some(size);
        } else if self.rng.chance(25) {
            // As `kubectl rollout restart`, which refuses to do it twice within a second.
            let round = self.rng.range(0, u64::from(u32::MAX)).to_string();
            let template = json!({"metadata": {"annotations": {"pintle.test/round": round}}});
            let patch = json!({"spec": {"template": template}}).to_string();
            self.test.kubectl(&["patch", &fleet, "--patch", &patch]).expect("replaced");
        }
    }

    fn manifest(&self, name: &str, kind: PodKind) -> Value {
        let text = match kind {
            PodKind::Stays => "trap 'exit 0' TERM; while :; do sleep 0.1; done",
            PodKind::Ends => "sleep 0.3",
            PodKind::Fails => "sleep 0.2; exit 7",
            PodKind::Recovers => "[ $(wc -l < /starts/$UID.c) -gt 1 ]",
        };
        let write = |container: &str, text: &str| {
            let uid = json!([{"name": "UID",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]);
            script(container, &format!("echo started >> /starts/$UID.{container}; {text}"))
                .with("env", uid)
                .with("volumeMounts", json!([{"name": "starts", "mountPath": "/starts"}]))
        };
        let policy = match kind {
            PodKind::Stays => "Always",
            PodKind::Ends | PodKind::Fails => "Never",
            PodKind::Recovers => "OnFailure",
        };
        let manifest = pod(name, &[write("c", text)])
            .with_spec("restartPolicy", json!(policy))
            .with_spec("automountServiceAccountToken", json!(false))
            .with_spec(
                "volumes",
                json!([{"name": "starts", "hostPath": {"path": self.starts.path()}}]),
            );
        match kind {
            PodKind::Ends => manifest.with_spec("initContainers", json!([write("i", "true")])),
            _ => manifest,
        }
    }

    /// Waits until every pod is what its kind says, and every other one is gone.
    pub fn settle(&self) {
        until(LONG, "every pod is as it has to be", || self.check());
    }

    fn check(&self) -> Result<()> {
        let all = self.test.pods()?;
        let held = self.test.containers()?;
        let name_of = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
        let is_meant = |name: &str| is_own(name) || is_of_fleet(name);
        let pods: Vec<&Pod> = all.iter().filter(|p| is_meant(&name_of(p))).collect();
        for pod in &pods {
            let name = name_of(pod);
            let kind = match is_of_fleet(&name) {
                true => PodKind::Stays,
                false => *self.pods.get(&name).with_context(|| format!("{name} is still there"))?,
            };
            let is_good = self.check_pod(pod, kind, &held);
            is_good.map_err(|e| e.context(format!("{name} {kind:?}: {:#?}", pod.status)))?;
        }
        let fleet = pods.iter().filter(|pod| is_of_fleet(&name_of(pod))).count();
        let wanted = (self.pods.len(), usize::try_from(self.fleet.unwrap_or(0))?);
        let found = (pods.len() - fleet, fleet);
        ensure!(found == wanted, "{found:?} pods of {wanted:?}");
        let is_known = |uid: &str| pods.iter().any(|p| p.metadata.uid.as_deref() == Some(uid));
        let strange = held.iter().find(|h| is_meant(&h.pod) && !is_known(&h.uid));
        ensure!(strange.is_none(), "a container without a pod: {strange:?}");
        Ok(())
    }

    fn check_pod(&self, pod: &Pod, kind: PodKind, held: &[Held]) -> Result<()> {
        ensure!(pod.metadata.deletion_timestamp.is_none(), "it is being deleted");
        let (wanted_phase, end, starts) = match kind {
            PodKind::Stays => ("Running", None, 1),
            PodKind::Ends => ("Succeeded", Some((0, "Completed")), 1),
            PodKind::Fails => ("Failed", Some((7, "Error")), 1),
            PodKind::Recovers => ("Succeeded", Some((0, "Completed")), 2),
        };
        check_runtime(pod, kind, held)?;
        let is_given_up = self.is_agent_killed && was_given_up(pod);
        ensure!(phase(pod) == wanted_phase || (is_given_up && kind != PodKind::Stays), "phase");
        ensure!(kind != PodKind::Stays || condition(pod, "Ready"), "not ready");
        if is_given_up {
            return Ok(());
        }
        ensure!(last_end(pod, "c") == end, "last end");
        let more = restarts(pod, "c") - (starts - 1);
        ensure!(more == 0 || (more > 0 && self.is_agent_killed), "restarts");
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for (container, starts) in [("c", starts), ("i", 1)] {
            let is_there = container == "c" || kind == PodKind::Ends;
            let lines = fs::read_to_string(self.file(uid, container)).unwrap_or_default();
            let found = i32::try_from(lines.lines().count())?;
            ensure!(found == if is_there { starts } else { 0 }, "{container}: {found} starts");
        }
        Ok(())
    }

    fn file(&self, uid: &str, container: &str) -> PathBuf {
        self.starts.path().join(format!("{uid}.{container}"))
    }

    /// Deletes every pod of the namespace and waits until nothing is left on the nodes.
    pub fn finish(self) {
        self.finish_but(|_| {});
    }

    /// The same, without what `forgive` takes out.
    pub fn finish_but(self, forgive: impl Fn(&mut Leftovers)) {
        let delete = ["delete", "deployments,pods", "--all", "--wait=false"];
        self.test.kubectl(&delete).expect("deleted");
        for node in self.test.cluster().nodes() {
            until(LONG, &format!("nothing of the pods is left on {node}"), || {
                let mut left = self.test.leftovers(node)?;
                forgive(&mut left);
                if left.is_empty() { Ok(()) } else { bail!("{left:#?}") }
            });
        }
    }
}

/// Fails unless the runtimes have of the pod what the API server says: on its node alone, no
/// container twice, and running the very one that the status names, or none.
fn check_runtime(pod: &Pod, kind: PodKind, held: &[Held]) -> Result<()> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let mut own: Vec<_> = held.iter().filter(|h| h.uid == uid).collect();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    ensure!(own.iter().all(|h| Some(h.node.as_str()) == node), "not on {node:?} alone: {own:?}");
    let running: Vec<&str> = own.iter().filter(|h| h.runs).map(|h| h.id.as_str()).collect();
    let named = status_of(pod, "c").and_then(|status| status.container_id.as_deref());
    let named = named.map(|id| id.trim_start_matches("containerd://"));
    let wanted: Vec<&str> = named.filter(|_| kind == PodKind::Stays).into_iter().collect();
    ensure!(running == wanted, "{running:?} run instead of {wanted:?}");
    let all = own.len();
    own.dedup_by_key(|h| (&h.name, h.attempt));
    ensure!(own.len() == all, "two containers of one attempt: {own:?}");
    Ok(())
}

/// Returns whether the runtime gave a start up because its caller went away, when something may
/// have run.
fn was_given_up(pod: &Pod) -> bool {
    let ended = |name: &str| {
        let status = status_of(pod, name)?;
        let states = [status.state.as_ref(), status.last_state.as_ref()];
        states.into_iter().flatten().find_map(|s| s.terminated.clone()?.message)
    };
    let is_it = |text: String| text.starts_with("failed to start containerd task");
    ["i", "c"].into_iter().any(|name| ended(name).is_some_and(is_it))
}

/// Returns whether the pod of this name is of a [`Work`]: other pods are not its business.
fn is_own(name: &str) -> bool {
    name.strip_prefix('w').is_some_and(|n| n.parse::<u64>().is_ok())
}

/// Returns whether the pod of this name is of the deployment.
fn is_of_fleet(name: &str) -> bool {
    name.strip_prefix(FLEET).is_some_and(|rest| rest.starts_with('-'))
}

/// A pod that has nothing to do with what is broken: it must never notice.
pub struct Bystander {
    name: String,
    id: String,
}

impl Bystander {
    /// Starts it and waits until it is ready.
    pub fn start(test: &TestCluster, name: &str) -> Self {
        Self::start_on(test, name, NODE)
    }

    /// The same on a certain node.
    pub fn start_on(test: &TestCluster, name: &str, node: &str) -> Self {
        let manifest = pod(name, &[script("c", "trap 'exit 0' TERM; while :; do sleep 0.2; done")])
            .with_spec("nodeName", json!(node));
        test.apply(&manifest);
        let pod = test.pod_until(name, "is ready", |p| condition(p, "Ready"));
        Self { name: name.to_owned(), id: container_id(&pod, "c") }
    }

    /// Fails unless it runs as it did, and is called ready.
    pub fn check(&self, test: &TestCluster) {
        let held = test.containers().expect("a list");
        let is_running = held.iter().any(|h| h.id == self.id && h.runs);
        assert!(is_running, "{} was stopped", self.name);
        let pod = test.pod_until(&self.name, "is ready", |p| condition(p, "Ready"));
        assert_eq!((container_id(&pod, "c"), restarts(&pod, "c")), (self.id.clone(), 0));
    }
}

/// `PINTLE_SEED`, if it is set.
pub fn given_seed() -> Option<u64> {
    std::env::var("PINTLE_SEED").ok()?.parse().ok()
}

/// `PINTLE_SEED`, or one of this run.
pub fn seed() -> u64 {
    given_seed().unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_millis() as u64 % 1_000_000)
    })
}
