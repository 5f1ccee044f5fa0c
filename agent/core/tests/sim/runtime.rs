//! The simulated runtime: sandboxes and containers with containerd's rules.
//!
//! A record's true state changes at once; a read lags behind an exit, as containerd finishes its
//! own clean-up first. Names are reserved: a second sandbox or container of the same name and
//! attempt is refused until the first is removed. Stamps are of the wall clock, as in containerd;
//! the world's own time is monotonic.

use std::collections::BTreeMap;

use pintle_agent_core::observed::{
    AppliedSettings, Evidence, ObservedContainer, ObservedPod, ObservedSandbox, RunState,
    digest_code,
};
use pintle_agent_core::types::{ContainerId, Mono, Now, PodUid, SandboxId, UnixNanos};
use pintle_agent_core::worker::ListedPod;

#[derive(Clone, Debug)]
pub struct Sandbox {
    pub uid: PodUid,
    pub pod: String,
    pub attempt: u32,
    pub ready: bool,
    pub created: UnixNanos,
}

/// The runtime's parameters for a container when it was created.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    pub hash: u32,
    pub cpu_millis: i64,
}

#[derive(Clone, Debug)]
pub struct Container {
    pub uid: PodUid,
    pub pod: String,
    pub name: String,
    pub sandbox: String,
    pub attempt: u32,
    pub state: RunState,
    pub created: UnixNanos,
    pub started: UnixNanos,
    pub finished: UnixNanos,
    pub started_at: Mono,
    pub finished_at: Mono,
    pub code: i32,
    /// From when on a read shows the exit.
    pub shown: Mono,
    pub made: Making,
}

#[derive(Clone, Debug, Default)]
pub struct Runtime {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    next: u64,
}

impl Runtime {
    pub fn run_sandbox(
        &mut self,
        uid: &PodUid,
        pod: &str,
        attempt: u32,
        now: Now,
    ) -> Result<String, String> {
        let taken = |s: &Sandbox| s.uid == *uid && s.attempt == attempt;
        if self.sandboxes.values().any(taken) {
            return Err("name is reserved".to_owned());
        }
        self.next += 1;
        let id = format!("s{}", self.next);
        let (uid, pod) = (uid.clone(), pod.to_owned());
        let sandbox = Sandbox { uid, pod, attempt, ready: true, created: now.wall };
        self.sandboxes.insert(id.clone(), sandbox);
        Ok(id)
    }

    pub fn create(
        &mut self,
        sandbox: &str,
        name: &str,
        attempt: u32,
        made: Making,
        now: Now,
    ) -> Result<String, String> {
        let Some(home) = self.sandboxes.get(sandbox).filter(|s| s.ready) else {
            return Err("sandbox is not running".to_owned());
        };
        let (uid, pod) = (home.uid.clone(), home.pod.clone());
        let taken = |c: &Container| c.uid == uid && c.name == name && c.attempt == attempt;
        if self.containers.values().any(taken) {
            return Err("name is reserved".to_owned());
        }
        self.next += 1;
        let id = format!("k{}", self.next);
        let container = Container {
            uid,
            pod,
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            attempt,
            state: RunState::Created,
            created: now.wall,
            started: UnixNanos::NEVER,
            finished: UnixNanos::NEVER,
            started_at: now.mono,
            finished_at: Mono::PAST,
            code: 0,
            shown: Mono::PAST,
            made,
        };
        self.containers.insert(id.clone(), container);
        Ok(id)
    }

    pub fn start(&mut self, id: &str, now: Now) -> Result<(), String> {
        let ready = self.containers.get(id).and_then(|c| self.sandboxes.get(&c.sandbox));
        if !ready.is_some_and(|s| s.ready) {
            return Err("sandbox is not running".to_owned());
        }
        let container = self.containers.get_mut(id).ok_or("no such container")?;
        if container.state != RunState::Created {
            return Err("container is not in created state".to_owned());
        }
        container.state = RunState::Running;
        (container.started, container.started_at) = (now.wall, now.mono);
        Ok(())
    }

    /// The container's process ended. False when it had ended before.
    pub fn exit(&mut self, id: &str, code: i32, now: Now, shown: Mono) -> bool {
        let Some(container) = self.containers.get_mut(id) else { return false };
        if container.state != RunState::Running {
            return false;
        }
        container.state = RunState::Exited;
        (container.code, container.shown) = (code, shown);
        (container.finished, container.finished_at) = (now.wall, now.mono);
        true
    }

    /// The last attempt of a container.
    pub fn latest(&self, uid: &PodUid, name: &str) -> Option<&Container> {
        let of = |c: &&Container| c.uid == *uid && c.name == name;
        self.containers.values().filter(of).max_by_key(|c| c.attempt)
    }

    pub fn remove_container(&mut self, id: &str) -> Option<Container> {
        self.containers.remove(id)
    }

    /// One pod as a read at `now` shows it.
    pub fn read(&self, uid: &PodUid, pod: &str, now: Mono) -> ObservedPod {
        let mut record = ObservedPod::empty(uid.clone(), "sim", pod);
        for (id, sandbox) in self.sandboxes.iter().filter(|(_, s)| s.uid == *uid) {
            record.sandboxes.push(ObservedSandbox {
                id: SandboxId::from(id.as_str()),
                ready: sandbox.ready,
                attempt: sandbox.attempt,
                created_at: sandbox.created,
                ips: vec!["10.0.0.1".parse().expect("an address")],
                host_network: false,
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
                runtime_handler: String::new(),
            });
        }
        for (id, container) in self.containers.iter().filter(|(_, c)| c.uid == *uid) {
            record.containers.push(observed(id, container, now));
        }
        record.sort();
        record
    }

    /// All pods as a list at `now` shows them.
    pub fn list(&self, now: Mono) -> Vec<ListedPod> {
        let mut pods: BTreeMap<PodUid, ListedPod> = BTreeMap::new();
        let mut note = |uid: &PodUid, pod: &str, id: &str, state: u8| {
            let listed = pods.entry(uid.clone()).or_insert_with(|| ListedPod {
                uid: uid.clone(),
                namespace: "sim".to_owned(),
                name: pod.to_owned(),
                digest: Vec::new(),
            });
            listed.digest.push((id.to_owned(), state));
        };
        for (id, s) in &self.sandboxes {
            note(&s.uid, &s.pod, id, u8::from(!s.ready));
        }
        for (id, c) in &self.containers {
            note(&c.uid, &c.pod, id, digest_code(shown_state(c, now)));
        }
        let mut listed: Vec<_> = pods.into_values().collect();
        listed.iter_mut().for_each(|pod| pod.digest.sort_unstable());
        listed
    }
}

fn shown_state(container: &Container, now: Mono) -> RunState {
    let hidden = container.state == RunState::Exited && now < container.shown;
    if hidden { RunState::Running } else { container.state }
}

fn observed(id: &str, container: &Container, now: Mono) -> ObservedContainer {
    let state = shown_state(container, now);
    let over = state == RunState::Exited;
    ObservedContainer {
        id: ContainerId::from(id),
        name: container.name.clone(),
        sandbox_id: SandboxId::from(container.sandbox.as_str()),
        state,
        restart_count: container.attempt,
        hash: Some(container.made.hash),
        created_at: container.created,
        started_at: container.started,
        finished_at: if over { container.finished } else { UnixNanos::NEVER },
        exit_code: if over { container.code } else { 0 },
        reason: match (over, container.code) {
            (false, _) => String::new(),
            (true, 0) => "Completed".to_owned(),
            (true, _) => "Error".to_owned(),
        },
        message: String::new(),
        image: "image:1".to_owned(),
        image_id: "sha256:1".to_owned(),
        log_path: String::new(),
        annotations: BTreeMap::new(),
        mounts: Vec::new(),
        applied: AppliedSettings::default(),
        evidence: Evidence::default(),
    }
}
