//! Pods that come, work, end and go while a test breaks something, and what must be true of them
//! when it has stopped.
//!
//! Each container writes a line for each of its starts into a folder of the host, so that a second
//! start is seen whatever the agent says about it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use pintle_tests::cluster::containers::Held;
use pintle_tests::cluster::{NODE, TestCluster};
use pintle_tests::manifest::{
    With, condition, container_id, last_end, phase, pod, restarts, script, status_of,
};
use pintle_tests::rng::Rng;
use pintle_tests::{LONG, until};
use serde_json::{Value, json};
use xtask::node::Leftovers;

/// Most pods at once.
const PODS_MAX: usize = 12;

/// What a pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Runs until it is deleted.
    Stays,
    /// Ends well, after an init container.
    Ends,
    /// Ends with 7.
    Fails,
    /// Ends with 1 first, and well after a restart.
    Recovers,
}

const KINDS: [Kind; 4] = [Kind::Stays, Kind::Ends, Kind::Fails, Kind::Recovers];
/// Names are used again: a new pod may meet the old one of its name.
const NAMES: u64 = 16;

/// The pods of a test.
pub struct Work<'a> {
    test: &'a TestCluster,
    rng: Rng,
    starts: tempfile::TempDir,
    /// Those that were not deleted.
    pods: BTreeMap<String, Kind>,
    /// The agent may go away in the middle of a start.
    is_agent_killed: bool,
}

impl<'a> Work<'a> {
    /// No pods yet. The seed decides everything that `step` does.
    pub fn new(test: &'a TestCluster, seed: u64) -> Self {
        eprintln!("seed {seed}: PINTLE_SEED={seed} repeats it");
        let starts = tempfile::tempdir().expect("a folder that the node sees too");
        Self { test, rng: Rng::new(seed), starts, pods: BTreeMap::new(), is_agent_killed: false }
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
    pub fn create(&mut self, name: &str, kind: Kind) {
        assert!(is_own(name), "{name}");
        self.test.create(&self.manifest(name, kind)).expect("created");
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
                // The old one of this name may still be on its way out.
                if self.test.create(&self.manifest(&name, kind)).is_ok() {
                    self.pods.insert(name, kind);
                }
            }
        }
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if names.len() > 2 && self.rng.chance(60) {
            let name = self.rng.pick(&names).clone();
            self.delete(&name);
        }
    }

    fn manifest(&self, name: &str, kind: Kind) -> Value {
        let text = match kind {
            Kind::Stays => "trap 'exit 0' TERM; while :; do sleep 0.1; done",
            Kind::Ends => "sleep 0.3",
            Kind::Fails => "sleep 0.2; exit 7",
            Kind::Recovers => "[ $(wc -l < /starts/$UID.c) -gt 1 ]",
        };
        let write = |container: &str, text: &str| {
            let uid = json!([{"name": "UID",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]);
            script(container, &format!("echo started >> /starts/$UID.{container}; {text}"))
                .with("env", uid)
                .with("volumeMounts", json!([{"name": "starts", "mountPath": "/starts"}]))
        };
        let policy = match kind {
            Kind::Stays => "Always",
            Kind::Ends | Kind::Fails => "Never",
            Kind::Recovers => "OnFailure",
        };
        let manifest = pod(name, &[write("c", text)])
            .with_spec("nodeName", json!(NODE))
            .with_spec("restartPolicy", json!(policy))
            .with_spec("automountServiceAccountToken", json!(false))
            .with_spec(
                "volumes",
                json!([{"name": "starts", "hostPath": {"path": self.starts.path()}}]),
            );
        match kind {
            Kind::Ends => manifest.with_spec("initContainers", json!([write("i", "true")])),
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
        let pods: Vec<&Pod> = all.iter().filter(|p| is_own(&name_of(p))).collect();
        for pod in &pods {
            let name = name_of(pod);
            let Some(kind) = self.pods.get(&name) else { bail!("{name} is still there") };
            let is_good = self.check_pod(pod, *kind, &held);
            is_good.map_err(|e| e.context(format!("{name} {kind:?}: {:#?}", pod.status)))?;
        }
        ensure!(pods.len() == self.pods.len(), "{} pods of {}", pods.len(), self.pods.len());
        let is_known = |uid: &str| pods.iter().any(|p| p.metadata.uid.as_deref() == Some(uid));
        let strange = held.iter().find(|h| is_own(&h.pod) && !is_known(&h.uid));
        ensure!(strange.is_none(), "a container without a pod: {strange:?}");
        Ok(())
    }

    fn check_pod(&self, pod: &Pod, kind: Kind, held: &[Held]) -> Result<()> {
        ensure!(pod.metadata.deletion_timestamp.is_none(), "it is being deleted");
        let (wanted_phase, end, starts) = match kind {
            Kind::Stays => ("Running", None, 1),
            Kind::Ends => ("Succeeded", Some((0, "Completed")), 1),
            Kind::Fails => ("Failed", Some((7, "Error")), 1),
            Kind::Recovers => ("Succeeded", Some((0, "Completed")), 2),
        };
        if self.is_agent_killed && was_given_up(pod) {
            return Ok(());
        }
        ensure!(phase(pod) == wanted_phase, "phase");
        ensure!(last_end(pod, "c") == end, "last end");
        let more = restarts(pod, "c") - (starts - 1);
        ensure!(more == 0 || (more > 0 && self.is_agent_killed), "restarts");
        ensure!(kind != Kind::Stays || condition(pod, "Ready"), "not ready");
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for (container, starts) in [("c", starts), ("i", 1)] {
            let is_there = container == "c" || kind == Kind::Ends;
            let lines = fs::read_to_string(self.file(uid, container)).unwrap_or_default();
            let found = i32::try_from(lines.lines().count())?;
            ensure!(found == if is_there { starts } else { 0 }, "{container}: {found} starts");
        }
        let running: Vec<_> = held.iter().filter(|h| h.uid == uid && h.runs).collect();
        ensure!(running.len() == usize::from(kind == Kind::Stays), "{running:?}");
        let mut attempts: Vec<_> = held.iter().filter(|h| h.uid == uid).collect();
        let all = attempts.len();
        attempts.dedup_by_key(|h| (&h.name, h.attempt));
        ensure!(attempts.len() == all, "two containers of one attempt: {attempts:?}");
        Ok(())
    }

    fn file(&self, uid: &str, container: &str) -> PathBuf {
        self.starts.path().join(format!("{uid}.{container}"))
    }

    /// Deletes every pod of the namespace and waits until nothing is left on the node.
    pub fn finish(self) {
        self.finish_but(|_| {});
    }

    /// The same, without what `forgive` takes out.
    pub fn finish_but(self, forgive: impl Fn(&mut Leftovers)) {
        self.test.kubectl(&["delete", "pods", "--all", "--wait=false"]).expect("deleted");
        until(LONG, "nothing of the pods is left", || {
            let mut left = self.test.leftovers()?;
            forgive(&mut left);
            if left.is_empty() { Ok(()) } else { bail!("{left:#?}") }
        });
    }
}

/// Whether the runtime gave a start up because its caller went away, when something may have run.
fn was_given_up(pod: &Pod) -> bool {
    let ended = |name: &str| {
        let status = status_of(pod, name)?;
        let states = [status.state.as_ref(), status.last_state.as_ref()];
        states.into_iter().flatten().find_map(|s| s.terminated.clone()?.message)
    };
    let is_it = |text: String| text.starts_with("failed to start containerd task");
    ["i", "c"].into_iter().any(|name| ended(name).is_some_and(is_it))
}

/// Whether the pod of this name is of a [`Work`]: other pods are not its business.
fn is_own(name: &str) -> bool {
    name.strip_prefix('w').is_some_and(|n| n.parse::<u64>().is_ok())
}

/// A pod that has nothing to do with what is broken: it must never notice.
pub struct Bystander {
    name: &'static str,
    id: String,
}

impl Bystander {
    /// Starts it and waits until it is ready.
    pub fn start(test: &TestCluster, name: &'static str) -> Self {
        let manifest = pod(name, &[script("c", "trap 'exit 0' TERM; while :; do sleep 0.2; done")])
            .with_spec("nodeName", json!(NODE));
        test.apply(&manifest);
        let pod = test.pod_until(name, "is ready", |p| condition(p, "Ready"));
        Self { name, id: container_id(&pod, "c") }
    }

    /// Fails unless it runs as it did, and is called ready.
    pub fn check(&self, test: &TestCluster) {
        let running = test.running().expect("a list");
        assert!(running.contains(&self.id), "{} was stopped", self.name);
        let pod = test.pod_until(self.name, "is ready", |p| condition(p, "Ready"));
        assert_eq!((container_id(&pod, "c"), restarts(&pod, "c")), (self.id.clone(), 0));
    }
}

/// `PINTLE_SEED`, or one of this run.
pub fn seed() -> u64 {
    let given = std::env::var("PINTLE_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_millis() as u64 % 1_000_000)
    })
}
