//! Executes the core's commands in the simulated world, as the real driver and executor would:
//! one sync a pod, one call after the other, each with a delay and a chance to fail before it had
//! an effect or after.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::status_queue;
use pintle_agent_core::sync::plan::{Action, KillReason};
use pintle_agent_core::sync::stop_order::{self, ContainerStop};
use pintle_agent_core::types::{Mono, PodUid};
use pintle_agent_core::worker::{Command, Failure, PodsInput};
use pintle_api_types::pod::{containers, hash};

use crate::faults::Fault;
use crate::runtime::Making;
use crate::world::{Event, MS, S, World};

/// First and longest wait after a failed pull, as for the agent's own images.
const PULL_BACK_OFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// A sync under way.
pub struct SyncRun {
    uid: PodUid,
    pod: Option<Arc<Pod>>,
    observed: Arc<ObservedPod>,
    actions: Vec<Action>,
    index: usize,
    step: ActionProgress,
    cancelled: bool,
    sandbox: Option<String>,
}

/// The progress of the current action.
enum ActionProgress {
    Begin,
    /// Containers being stopped, with the ones that already received the stop.
    Stopping {
        stops: Vec<ContainerStop>,
        asked: Vec<bool>,
    },
    /// The container was created.
    Created(String),
    /// It was started and its hook runs.
    Hooked(String),
}

impl World {
    pub fn execute(&mut self, command: Command) {
        let run = self.run;
        match command {
            Command::Read { uid, stamp, after } => {
                let agent = self.agent.as_ref().expect("it asked");
                let pod = agent.worker(&uid).map(|w| w.observed().name.clone());
                let pod = pod.unwrap_or_default();
                self.reads.asked(&uid);
                let delay = after.as_nanos() as u64 + self.rng.range(MS / 20, 2 * MS);
                self.at(delay, Event::TakeRead { run, uid, pod, stamp });
            }
            Command::List { stamp } => {
                let delay = self.rng.range(MS / 10, 10 * MS);
                self.at(delay, Event::TakeList { run, stamp });
            }
            Command::Run { uid, ticket, pod, observed, actions } => {
                let (index, step, cancelled) = (0, ActionProgress::Begin, false);
                let sync =
                    SyncRun { uid, pod, observed, actions, index, step, cancelled, sandbox: None };
                self.syncs.insert(ticket, sync);
                self.at(MS / 100, Event::SyncRun { run, ticket });
            }
            Command::Cancel { ticket, .. } => {
                if let Some(sync) = self.syncs.get_mut(&ticket) {
                    sync.cancelled = true;
                    self.at(MS / 100, Event::SyncRun { run, ticket });
                }
            }
            Command::Publish { uid, status, pod, stage } => {
                self.check.published(&uid, &pod, &status);
                let reason = status.reason.as_deref().unwrap_or_default();
                let wrong = reason.starts_with("OutOf")
                    || reason == "NodeAffinity" && !self.node.unread
                    || reason == "NodePorts";
                assert!(!wrong, "{uid} is refused although it has its place here: {reason}");
                self.mail(status_queue::QueueInput::Derived { pod, status, stage });
            }
            Command::Gone { uid } => {
                self.check.gone(&uid);
                self.reads.forget(&uid);
                self.mail(status_queue::QueueInput::Gone(uid.clone()));
                self.failures.retain(|(of, _), _| *of != uid);
                self.pulls.retain(|(of, _), _| *of != uid);
                self.probing.remove(&uid);
            }
            Command::Probe { uid, observed, terminating, .. } => {
                self.probe(&uid, &observed, terminating);
            }
            Command::FetchNode { ticket } => self.fetch_node(ticket),
            Command::Shutdown(record) => self.shutdown_goes_on(record),
            Command::Measure { ticket, pods, .. } => self.measure(ticket, &pods),
            Command::Pressure(pressure) => self.pressure_is(pressure),
            Command::Evicted { uid, .. } => self.told_to_go(&uid),
            Command::Event { .. }
            | Command::Count(_)
            | Command::Reclaim { .. }
            | Command::NodeEvent(_) => {}
        }
    }

    /// The agent is dead: calls under way may still have their effect, nothing follows them.
    pub fn orphan_calls(&mut self) {
        for (_, sync) in std::mem::take(&mut self.syncs) {
            let Some(action) = sync.actions.get(sync.index) else { continue };
            match (action, &sync.step) {
                (Action::CreateSandbox { attempt, .. }, _) if self.rng.chance(50) => {
                    let (name, now) = (sync.observed.name.clone(), self.clocks());
                    let _ = self.runtime.run_sandbox(&sync.uid, &name, *attempt, now);
                }
                (Action::StartContainer { .. }, ActionProgress::Created(id))
                    if self.rng.chance(50) && self.runtime.start(id, self.clocks()).is_ok() =>
                {
                    self.started(&id.clone());
                }
                _ => {}
            }
        }
    }

    pub fn step_sync(&mut self, run: u64, ticket: u64) {
        if run != self.run {
            return;
        }
        let Some(mut sync) = self.syncs.remove(&ticket) else { return };
        let Some(action) = sync.actions.get(sync.index).cloned() else {
            self.at(MS / 100, Event::ToAgent(run, PodsInput::SyncDone { uid: sync.uid, ticket }));
            return;
        };
        let outcome = self.act(&mut sync, &action);
        let Some(outcome) = outcome else {
            // Still under way.
            self.syncs.insert(ticket, sync);
            let delay = self.rng.range(MS, 60 * MS);
            self.at(delay, Event::SyncRun { run, ticket });
            return;
        };
        let failed = outcome.is_err();
        if failed {
            self.stats.failed_calls += 1;
        }
        let (uid, index) = (sync.uid.clone(), sync.index);
        let progress = PodsInput::Progress { uid, ticket, index, outcome };
        self.at(MS / 100, Event::ToAgent(run, progress));
        sync.step = ActionProgress::Begin;
        sync.index = if failed && action.aborts_sync() { usize::MAX } else { sync.index + 1 };
        self.syncs.insert(ticket, sync);
        let delay = self.rng.range(MS / 10, 100 * MS);
        self.at(delay, Event::SyncRun { run, ticket });
    }

    /// One step of an action; `None` while it is under way.
    fn act(&mut self, sync: &mut SyncRun, action: &Action) -> Option<Result<(), Failure>> {
        let ending = matches!(action, Action::Teardown | Action::Cleanup);
        if sync.cancelled && !ending {
            return Some(Err(Failure::cancelled()));
        }
        if self.trouble(Fault::Calls, 4) {
            return Some(Err(Failure::new("Unavailable", "before any effect")));
        }
        let late = self.trouble(Fault::Calls, 3);
        let done = self.effect(sync, action)?;
        match late && done.is_ok() {
            true => Some(Err(Failure::new("Unavailable", "the reply was lost"))),
            false => Some(done),
        }
    }

    fn effect(&mut self, sync: &mut SyncRun, action: &Action) -> Option<Result<(), Failure>> {
        let refused = |text: String| Err(Failure::new("Refused", text));
        match action {
            Action::Prepare => {
                let from_s = self.check.known[&sync.uid].volumes_from_s;
                if self.now < Mono::default().plus(Duration::from_secs(from_s)) {
                    return Some(Err(Failure::new("FailedMount", "the server does not answer")));
                }
                self.prepared.insert(sync.uid.clone());
            }
            Action::Refresh => {
                let there = self.prepared.contains(&sync.uid);
                assert!(there, "volumes of {} are written before they are there", sync.uid);
                if self.trouble(Fault::Volumes, 30) {
                    return Some(Err(Failure::new("FailedMount", "no space left")));
                }
            }
            Action::CreateSandbox { attempt, .. } => {
                let (name, now) = (sync.observed.name.clone(), self.clocks());
                match self.runtime.run_sandbox(&sync.uid, &name, *attempt, now) {
                    Ok(id) => sync.sandbox = Some(id),
                    Err(text) => return Some(refused(text)),
                }
            }
            Action::StartContainer { name, restart_count, .. } => {
                return self.start(sync, name, *restart_count);
            }
            Action::KillPod { grace_seconds } => {
                if let ActionProgress::Begin = sync.step {
                    let pod = sync.pod.as_deref();
                    let stops = stop_order::stop_pod(pod, &sync.observed, *grace_seconds);
                    let asked = vec![false; stops.len()];
                    sync.step = ActionProgress::Stopping { stops, asked };
                }
                if !self.stopping(sync) {
                    return None;
                }
                for sandbox in &sync.observed.sandboxes.clone() {
                    self.stop_sandbox(sandbox.id.as_str());
                }
            }
            Action::KillContainer { id, reason, .. } => {
                let container = sync.observed.containers.iter().find(|c| c.id == *id).cloned();
                if let (ActionProgress::Begin, Some(container)) = (&sync.step, container) {
                    let grace = (*reason == KillReason::RestartAll).then_some(0);
                    let pod = sync.pod.as_deref();
                    let stop = stop_order::stop_container(pod, &container, *reason, grace);
                    sync.step = ActionProgress::Stopping { stops: vec![stop], asked: vec![false] };
                }
                if !self.stopping(sync) {
                    return None;
                }
            }
            Action::ResizePod(resize) => {
                for update in &resize.updates {
                    let container = self.runtime.containers.get_mut(update.id.as_str());
                    let Some(container) = container else {
                        return Some(refused("no such container".to_owned()));
                    };
                    container.made.cpu_millis = update.to.cpu_request;
                }
            }
            Action::RemoveContainer { id, .. } => self.remove(id.as_str()),
            Action::RemoveSandbox { id } => {
                self.stop_sandbox(id.as_str());
                self.runtime.sandboxes.remove(id.as_str());
            }
            Action::Teardown => {
                let alive = self.runtime.containers.values();
                let mut alive = alive.filter(|c| c.uid == sync.uid);
                let running = alive.any(|c| c.state == RunState::Running);
                assert!(!running, "volumes of {} are taken away while it runs", sync.uid);
                if self.trouble(Fault::Volumes, 30) {
                    return Some(Err(Failure::new("FailedUnmount", "busy")));
                }
                self.prepared.remove(&sync.uid);
            }
            Action::Cleanup => {
                for container in &sync.observed.containers.clone() {
                    self.remove(container.id.as_str());
                }
                for sandbox in &sync.observed.sandboxes.clone() {
                    self.stop_sandbox(sandbox.id.as_str());
                    self.runtime.sandboxes.remove(sandbox.id.as_str());
                }
            }
        }
        Some(Ok(()))
    }

    /// Forced removal: a running container is killed.
    fn remove(&mut self, id: &str) {
        if self.runtime.containers.get(id).is_some_and(|c| c.state == RunState::Running) {
            self.exit(id, 137, false);
        }
        self.runtime.remove_container(id);
    }

    /// Fails with the reason why the image is missing, and with the wait before the next pull.
    fn pull(&mut self, uid: &PodUid, name: &str) -> Result<(), Failure> {
        let from_s = self.check.known[uid].get(name).image_from_s;
        let key = (uid.clone(), name.to_owned());
        if self.now >= Mono::default().plus(Duration::from_secs(from_s)) {
            return Ok(());
        }
        let before = self.pulls.get(&key).copied();
        let left = before.and_then(|(at, wait)| wait.checked_sub(self.now.since(at)));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            let mut failure = Failure::new("ImagePullBackOff", "Back-off pulling image");
            failure.retry_after = Some(left);
            return Err(failure);
        }
        let wait = before.map_or(PULL_BACK_OFF.0, |(_, wait)| (wait * 2).min(PULL_BACK_OFF.1));
        self.pulls.insert(key, (self.now, wait));
        let mut failure = Failure::new("ErrImagePull", "no such image");
        failure.retry_after = Some(wait.min(Duration::from_secs(1)));
        Err(failure)
    }

    fn start(
        &mut self,
        sync: &mut SyncRun,
        name: &str,
        restart_count: Option<u32>,
    ) -> Option<Result<(), Failure>> {
        let refused = |text: String| Some(Err(Failure::new("Refused", text)));
        match &sync.step {
            ActionProgress::Created(id) => {
                let id = id.clone();
                if let Err(text) = self.runtime.start(&id, self.clocks()) {
                    return refused(text);
                }
                self.started(&id);
                if self.check.known[&sync.uid].get(name).hook {
                    sync.step = ActionProgress::Hooked(id);
                    return None;
                }
                return Some(Ok(()));
            }
            ActionProgress::Hooked(id) => {
                let id = id.clone();
                if self.trouble(Fault::Hooks, 30) {
                    self.exit(&id, 137, false);
                    return Some(Err(Failure::new("PostStartHookError", "it said no")));
                }
                return Some(Ok(()));
            }
            _ => {}
        }
        self.check.start_asked(&sync.uid, name);
        if let Err(failure) = self.pull(&sync.uid.clone(), name) {
            return Some(Err(failure));
        }
        let newest = sync.observed.newest_sandbox().map(|s| s.id.as_str().to_owned());
        let Some(sandbox) = sync.sandbox.clone().or(newest) else {
            return refused("no sandbox".to_owned());
        };
        // As from the log files: one more than any attempt there ever was.
        let attempts = self.runtime.containers.values();
        let attempts = attempts.filter(|c| c.uid == sync.uid && c.name == name);
        let from_logs = attempts.map(|c| c.attempt + 1).max().unwrap_or(0);
        let attempt = restart_count.unwrap_or(from_logs);
        let made = making(sync.pod.as_deref(), name);
        match self.runtime.create(&sandbox, name, attempt, made, self.clocks()) {
            Ok(id) => {
                sync.step = ActionProgress::Created(id);
                None
            }
            Err(text) => refused(text),
        }
    }

    /// Sends each container its stop in its turn; true once all have ended.
    fn stopping(&mut self, sync: &mut SyncRun) -> bool {
        let uid = sync.uid.clone();
        let ActionProgress::Stopping { stops, asked } = &mut sync.step else { return true };
        let over = |world: &Self, stop: &ContainerStop| {
            let container = world.runtime.containers.get(stop.id.as_str());
            container.is_none_or(|c| c.state != RunState::Running)
        };
        for index in 0..stops.len() {
            let turn = stops[index].after.iter().all(|other| over(self, &stops[*other]));
            if asked[index] || !turn {
                continue;
            }
            asked[index] = true;
            let id = stops[index].id.as_str().to_owned();
            if over(self, &stops[index]) {
                continue;
            }
            let timeout = stops[index].grace_seconds.max(stop_order::GRACE_SECONDS_MIN);
            self.check.stop_asked(&uid, &id, timeout, self.now);
            let name = self.runtime.containers[&id].name.clone();
            let me = self.check.known[&uid].get(&name).clone();
            let signalled = self.rng.range(MS, 900 * MS);
            match me.stubborn {
                false => self.at(signalled, Event::Exit { id, code: me.stopped_code }),
                true => self.at(timeout as u64 * S, Event::Kill { id }),
            }
        }
        stops.iter().all(|stop| over(self, stop))
    }
}

/// The runtime's parameters for a container.
pub fn making(pod: Option<&Pod>, name: &str) -> Making {
    let spec = pod.and_then(|pod| pod.spec.as_ref()).expect("a pod that starts has a spec");
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(containers::from_ephemeral);
    let container = containers::find(spec, name).map(|(_, container)| container.clone());
    let container = container.or_else(|| ephemeral.into_iter().find(|c| c.name == name));
    let container = container.expect("a container of the pod");
    let cpu = container.resources.as_ref().and_then(|own| own.requests.as_ref()?.get("cpu"));
    let millis = cpu.and_then(|cpu| cpu.0.trim_end_matches('m').parse().ok());
    Making { hash: hash::container_hash(&container), cpu_millis: millis.unwrap_or(0) }
}
