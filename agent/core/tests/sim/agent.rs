//! Executes the core's commands in the simulated world, as the real driver and executor would:
//! one pass a pod, one call after the other, each with a delay and a chance to fail before it had
//! an effect or after.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::outbox;
use pintle_agent_core::sync::plan::{Action, KillReason};
use pintle_agent_core::sync::stop_order::{self, Stop};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::worker::{Command, Failure, Input};

use crate::world::{Event, MS, World};

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
}

impl World {
    pub fn execute(&mut self, command: Command) {
        let run = self.run;
        match command {
            Command::Read { uid, stamp, after } => {
                let agent = self.agent.as_ref().expect("it asked");
                let pod = agent.worker(&uid).map(|w| w.observed().name.clone());
                let pod = pod.unwrap_or_default();
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
                self.check.published(&uid, status.phase.as_deref().unwrap_or_default());
                self.mail(outbox::Input::Derived { pod, status, stage });
            }
            Command::Gone { uid } => {
                self.check.gone(&uid);
                self.mail(outbox::Input::Gone(uid.clone()));
                self.failures.retain(|(of, _), _| *of != uid);
            }
            Command::Probe { .. } | Command::Event { .. } | Command::Count(_) => {}
        }
    }

    /// The agent is dead: calls under way may still have their effect, nothing follows them.
    pub fn orphan_calls(&mut self) {
        for (_, pass) in std::mem::take(&mut self.passes) {
            let Some(action) = pass.actions.get(pass.index) else { continue };
            match (action, &pass.step) {
                (Action::CreateSandbox { attempt, .. }, _) if self.rng.chance(50) => {
                    let name = pass.observed.name.clone();
                    let _ = self.runtime.run_sandbox(&pass.uid, &name, *attempt, self.now);
                }
                (Action::StartContainer { .. }, Step::Created(id))
                    if self.rng.chance(50) && self.runtime.start(id, self.now).is_ok() =>
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
        if self.faults.calls && self.trouble(4) {
            return Some(Err(Failure::new("Unavailable", "before any effect")));
        }
        let late = self.faults.calls && self.trouble(3);
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
                self.prepared.insert(pass.uid.clone());
            }
            Action::Refresh => {
                let there = self.prepared.contains(&pass.uid);
                assert!(there, "volumes of {} are written before they are there", pass.uid);
            }
            Action::CreateSandbox { attempt, .. } => {
                let name = pass.observed.name.clone();
                match self.runtime.run_sandbox(&pass.uid, &name, *attempt, self.now) {
                    Ok(id) => pass.sandbox = Some(id),
                    Err(text) => return Some(refused(text)),
                }
            }
            Action::StartContainer { name, restart_count, .. } => {
                return self.start(pass, name, *restart_count);
            }
            Action::KillPod { grace_seconds } => {
                let stops =
                    || stop_order::stop_pod(pass.pod.as_deref(), &pass.observed, *grace_seconds);
                if let Step::Begin = pass.step {
                    let stops = stops();
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
            Action::ResizePod(_) => {}
            Action::RemoveContainer { id, .. } => self.remove(id.as_str()),
            Action::Teardown => {
                let alive = self.runtime.containers.values();
                let mut alive = alive.filter(|c| c.uid == pass.uid);
                let running = alive.any(|c| c.state == RunState::Running);
                assert!(!running, "volumes of {} are taken away while it runs", pass.uid);
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

    fn start(
        &mut self,
        pass: &mut Pass,
        name: &str,
        restart_count: Option<u32>,
    ) -> Option<Result<(), Failure>> {
        let refused = |text: String| Some(Err(Failure::new("Refused", text)));
        if let Step::Created(id) = &pass.step {
            let id = id.clone();
            return match self.runtime.start(&id, self.now) {
                Ok(()) => {
                    self.started(&id);
                    Some(Ok(()))
                }
                Err(text) => refused(text),
            };
        }
        self.check.start_asked(&pass.uid, name);
        let newest = pass.observed.newest_sandbox().map(|s| s.id.as_str().to_owned());
        let Some(sandbox) = pass.sandbox.clone().or(newest) else {
            return refused("no sandbox".to_owned());
        };
        // As the log files would tell: one more than any attempt there ever was.
        let attempts = self.runtime.containers.values();
        let attempts = attempts.filter(|c| c.uid == pass.uid && c.name == name);
        let from_logs = attempts.map(|c| c.attempt + 1).max().unwrap_or(0);
        let attempt = restart_count.unwrap_or(from_logs);
        match self.runtime.create(&sandbox, name, attempt, self.now) {
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
            let stubborn = self.check.known[&uid].get(&name).stubborn;
            let signalled = self.rng.range(MS, 900 * MS);
            match stubborn {
                false => self.at(signalled, Event::Exit { id: id.clone(), code: 143 }),
                true => self.at(timeout as u64 * 1000 * MS, Event::Kill { id: id.clone() }),
            }
        }
        stops.iter().all(|stop| over(self, stop))
    }
}
