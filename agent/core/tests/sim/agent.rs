//! Executes the core's commands in the simulated world, as the real driver and executor would:
//! one pass a pod, one call after the other, each with a delay and a chance to fail before it had
//! an effect or after.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::outbox;
use pintle_agent_core::sync::plan::{Action, KillReason};
use pintle_agent_core::sync::stop_order::{self, Stop};
use pintle_agent_core::types::{Mono, PodUid};
use pintle_agent_core::worker::{Command, Failure, Input};
use pintle_api_types::pod::{containers, hash};

use crate::faults::Fault;
use crate::runtime::Making;
use crate::world::{Event, MS, S, World};

/// First and longest wait after a failed pull, as for the agent's own images.
const PULL_BACK_OFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// A pass under way.
pub struct Pass {
    uid: PodUid,
    pod: Option<Arc<Pod>>,
    observed: Arc<ObservedPod>,
    actions: Vec<Action>,
    index: usize,
    step: Step,
    cancelled: bool,
    sandbox: Option<String>,
}

/// Where the current action stands.
enum Step {
    Begin,
    /// Containers being stopped, and which have been asked.
    Stopping {
        stops: Vec<Stop>,
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
                let (index, step, cancelled) = (0, Step::Begin, false);
                let pass =
                    Pass { uid, pod, observed, actions, index, step, cancelled, sandbox: None };
                self.passes.insert(ticket, pass);
                self.at(MS / 100, Event::Pass { run, ticket });
            }
            Command::Cancel { ticket, .. } => {
                if let Some(pass) = self.passes.get_mut(&ticket) {
                    pass.cancelled = true;
                    self.at(MS / 100, Event::Pass { run, ticket });
                }
            }
            Command::Publish { uid, status, pod, stage } => {
                self.check.published(&uid, &status);
                let reason = status.reason.as_deref().unwrap_or_default();
                let wrong = reason.starts_with("OutOf")
                    || reason == "NodeAffinity" && !self.node.unread
                    || reason == "NodePorts";
                assert!(!wrong, "{uid} is refused although it has its place here: {reason}");
                self.mail(outbox::Input::Derived { pod, status, stage });
            }
            Command::Gone { uid } => {
                self.check.gone(&uid);
                self.reads.forget(&uid);
                self.mail(outbox::Input::Gone(uid.clone()));
                self.failures.retain(|(of, _), _| *of != uid);
                self.pulls.retain(|(of, _), _| *of != uid);
                self.probing.remove(&uid);
            }
            Command::Probe { uid, observed, terminating, .. } => {
                self.probe(&uid, &observed, terminating);
            }
            Command::FetchNode { ticket } => self.fetch_node(ticket),
            Command::Event { .. } | Command::Count(_) => {}
        }
    }

    /// The agent is dead: calls under way may still have their effect, nothing follows them.
    pub fn orphan_calls(&mut self) {
        for (_, pass) in std::mem::take(&mut self.passes) {
            let Some(action) = pass.actions.get(pass.index) else { continue };
            match (action, &pass.step) {
                (Action::CreateSandbox { attempt, .. }, _) if self.rng.chance(50) => {
                    let (name, now) = (pass.observed.name.clone(), self.clocks());
                    let _ = self.runtime.run_sandbox(&pass.uid, &name, *attempt, now);
                }
                (Action::StartContainer { .. }, Step::Created(id))
                    if self.rng.chance(50) && self.runtime.start(id, self.clocks()).is_ok() =>
                {
                    self.started(&id.clone());
                }
                _ => {}
            }
        }
    }

    pub fn step_pass(&mut self, run: u64, ticket: u64) {
        if run != self.run {
            return;
        }
        let Some(mut pass) = self.passes.remove(&ticket) else { return };
        let Some(action) = pass.actions.get(pass.index).cloned() else {
            self.at(MS / 100, Event::ToAgent(run, Input::PassDone { uid: pass.uid, ticket }));
            return;
        };
        let outcome = self.act(&mut pass, &action);
        let Some(outcome) = outcome else {
            // Still under way.
            self.passes.insert(ticket, pass);
            let delay = self.rng.range(MS, 60 * MS);
            self.at(delay, Event::Pass { run, ticket });
            return;
        };
        let failed = outcome.is_err();
        if failed {
            self.stats.failed_calls += 1;
        }
        let (uid, index) = (pass.uid.clone(), pass.index);
        let progress = Input::Progress { uid, ticket, index, outcome };
        self.at(MS / 100, Event::ToAgent(run, progress));
        pass.step = Step::Begin;
        pass.index = if failed && action.aborts_pass() { usize::MAX } else { pass.index + 1 };
        self.passes.insert(ticket, pass);
        let delay = self.rng.range(MS / 10, 100 * MS);
        self.at(delay, Event::Pass { run, ticket });
    }

    /// One step of an action; `None` while it is under way.
    fn act(&mut self, pass: &mut Pass, action: &Action) -> Option<Result<(), Failure>> {
        let ending = matches!(action, Action::Teardown | Action::Cleanup);
        if pass.cancelled && !ending {
            return Some(Err(Failure::cancelled()));
        }
        if self.trouble(Fault::Calls, 4) {
            return Some(Err(Failure::new("Unavailable", "before any effect")));
        }
        let late = self.trouble(Fault::Calls, 3);
        let done = self.effect(pass, action)?;
        match late && done.is_ok() {
            true => Some(Err(Failure::new("Unavailable", "the reply was lost"))),
            false => Some(done),
        }
    }

    fn effect(&mut self, pass: &mut Pass, action: &Action) -> Option<Result<(), Failure>> {
        let refused = |text: String| Err(Failure::new("Refused", text));
        match action {
            Action::Prepare => {
                let from_s = self.check.known[&pass.uid].volumes_from_s;
                if self.now < Mono::default().plus(Duration::from_secs(from_s)) {
                    return Some(Err(Failure::new("FailedMount", "the server does not answer")));
                }
                self.prepared.insert(pass.uid.clone());
            }
            Action::Refresh => {
                let there = self.prepared.contains(&pass.uid);
                assert!(there, "volumes of {} are written before they are there", pass.uid);
                if self.trouble(Fault::Volumes, 30) {
                    return Some(Err(Failure::new("FailedMount", "no space left")));
                }
            }
            Action::CreateSandbox { attempt, .. } => {
                let (name, now) = (pass.observed.name.clone(), self.clocks());
                match self.runtime.run_sandbox(&pass.uid, &name, *attempt, now) {
                    Ok(id) => pass.sandbox = Some(id),
                    Err(text) => return Some(refused(text)),
                }
            }
            Action::StartContainer { name, restart_count, .. } => {
                return self.start(pass, name, *restart_count);
            }
            Action::KillPod { grace_seconds } => {
                if let Step::Begin = pass.step {
                    let pod = pass.pod.as_deref();
                    let stops = stop_order::stop_pod(pod, &pass.observed, *grace_seconds);
                    let asked = vec![false; stops.len()];
                    pass.step = Step::Stopping { stops, asked };
                }
                if !self.stopping(pass) {
                    return None;
                }
                for sandbox in &pass.observed.sandboxes.clone() {
                    self.stop_sandbox(sandbox.id.as_str());
                }
            }
            Action::KillContainer { id, reason, .. } => {
                let container = pass.observed.containers.iter().find(|c| c.id == *id).cloned();
                if let (Step::Begin, Some(container)) = (&pass.step, container) {
                    let grace = (*reason == KillReason::RestartAll).then_some(0);
                    let pod = pass.pod.as_deref();
                    let stop = stop_order::stop_container(pod, &container, *reason, grace);
                    pass.step = Step::Stopping { stops: vec![stop], asked: vec![false] };
                }
                if !self.stopping(pass) {
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
            Action::Teardown => {
                let alive = self.runtime.containers.values();
                let mut alive = alive.filter(|c| c.uid == pass.uid);
                let running = alive.any(|c| c.state == RunState::Running);
                assert!(!running, "volumes of {} are taken away while it runs", pass.uid);
                if self.trouble(Fault::Volumes, 30) {
                    return Some(Err(Failure::new("FailedUnmount", "busy")));
                }
                self.prepared.remove(&pass.uid);
            }
            Action::Cleanup => {
                for container in &pass.observed.containers.clone() {
                    self.remove(container.id.as_str());
                }
                for sandbox in &pass.observed.sandboxes.clone() {
                    self.stop_sandbox(sandbox.id.as_str());
                    self.runtime.sandboxes.remove(sandbox.id.as_str());
                }
            }
        }
        Some(Ok(()))
    }

    /// Removal is forced: what still runs is killed.
    fn remove(&mut self, id: &str) {
        if self.runtime.containers.get(id).is_some_and(|c| c.state == RunState::Running) {
            self.exit(id, 137, false);
        }
        self.runtime.remove_container(id);
    }

    /// Why the image is not there, and for how long nobody asks for it again.
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
        pass: &mut Pass,
        name: &str,
        restart_count: Option<u32>,
    ) -> Option<Result<(), Failure>> {
        let refused = |text: String| Some(Err(Failure::new("Refused", text)));
        match &pass.step {
            Step::Created(id) => {
                let id = id.clone();
                if let Err(text) = self.runtime.start(&id, self.clocks()) {
                    return refused(text);
                }
                self.started(&id);
                if self.check.known[&pass.uid].get(name).hook {
                    pass.step = Step::Hooked(id);
                    return None;
                }
                return Some(Ok(()));
            }
            Step::Hooked(id) => {
                let id = id.clone();
                if self.trouble(Fault::Hooks, 30) {
                    self.exit(&id, 137, false);
                    return Some(Err(Failure::new("PostStartHookError", "it said no")));
                }
                return Some(Ok(()));
            }
            _ => {}
        }
        self.check.start_asked(&pass.uid, name);
        if let Err(failure) = self.pull(&pass.uid.clone(), name) {
            return Some(Err(failure));
        }
        let newest = pass.observed.newest_sandbox().map(|s| s.id.as_str().to_owned());
        let Some(sandbox) = pass.sandbox.clone().or(newest) else {
            return refused("no sandbox".to_owned());
        };
        // As the log files would tell: one more than any attempt there ever was.
        let attempts = self.runtime.containers.values();
        let attempts = attempts.filter(|c| c.uid == pass.uid && c.name == name);
        let from_logs = attempts.map(|c| c.attempt + 1).max().unwrap_or(0);
        let attempt = restart_count.unwrap_or(from_logs);
        let made = making(pass.pod.as_deref(), name);
        match self.runtime.create(&sandbox, (name, attempt), made, self.clocks()) {
            Ok(id) => {
                pass.step = Step::Created(id);
                None
            }
            Err(text) => refused(text),
        }
    }

    /// Asks each container to stop in its turn; true once all have ended.
    fn stopping(&mut self, pass: &mut Pass) -> bool {
        let uid = pass.uid.clone();
        let Step::Stopping { stops, asked } = &mut pass.step else { return true };
        let over = |world: &Self, stop: &Stop| {
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

/// What the runtime is told of a container.
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
