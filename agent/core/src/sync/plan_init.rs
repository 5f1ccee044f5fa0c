//! The part of `plan` that walks a pod's init containers and sidecars.
//!
//! Pure. The walk goes from the last init container backwards to the first one with a status,
//! because the records of earlier, completed ones may have been removed from the runtime; earlier
//! ones have completed once, and only sidecars among them are kept running.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go computeInitContainerActions

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::observed::{ObservedContainer, ObservedPod, RunState};
use crate::resize::{ResizeAction, change};
use crate::sync::plan::{
    KillReason, PlanInput, TargetLists, definition_changed, kill, kill_unknown, remove, resize,
};
use crate::sync::restart;
use pintle_api_types::pod;

/// Fills `wanted` with the actions of the init containers; true when main containers may start.
pub fn plan_init<'a>(
    input: &PlanInput<'_>,
    spec: &'a PodSpec,
    wanted: &mut TargetLists<'a>,
) -> bool {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    if init.is_empty() {
        return true;
    }
    // Of this sandbox: a container of an earlier sandbox, which died before it could start, does
    // not count for this one.
    let sandbox = input.observed.newest_sandbox().map(|s| &s.id);
    let main_alive = spec.containers.iter().any(|c| {
        let latest = input.observed.latest(&c.name).filter(|c| Some(&c.sandbox_id) == sandbox);
        latest.is_some_and(|c| matches!(c.state, RunState::Created | RunState::Running))
    });
    let mut walk =
        Walk { input, spec, init, initialised: main_alive, passed: main_alive, start: Vec::new() };
    for index in (0..init.len()).rev() {
        if !walk.visit(index, wanted) {
            wanted.kill_pod = true;
            wanted.start.clear();
            return false;
        }
    }
    if !walk.passed {
        walk.start.push(0);
    }
    let Walk { initialised, mut start, .. } = walk;
    start.sort_unstable();
    start.dedup();
    wanted.start.extend(start.iter().map(|i| (&init[*i], pod::containers::init_kind(&init[*i]))));
    initialised
}

struct Walk<'i, 'a> {
    input: &'i PlanInput<'i>,
    spec: &'a PodSpec,
    init: &'a [Container],
    /// Main containers may start.
    initialised: bool,
    /// A later init container, or a main container, has run: this one was initialised before.
    passed: bool,
    start: Vec<usize>,
}

impl<'a> Walk<'_, 'a> {
    /// Plans one init container; false when the pod has failed for good.
    fn visit(&mut self, index: usize, wanted: &mut TargetLists<'a>) -> bool {
        let container = &self.init[index];
        let sidecar = pod::containers::is_sidecar(container);
        let Some(latest) = in_current_sandbox(self.input.observed, &container.name) else {
            if self.passed && sidecar {
                self.start.push(index);
            }
            return true;
        };
        if self.passed && !sidecar {
            return true;
        }
        let alive = match latest.state {
            RunState::Created => {
                wanted.kill.push(remove(latest, true));
                self.start.push(index);
                true
            }
            RunState::Running => {
                if sidecar {
                    self.running_sidecar(index, latest, wanted);
                } else if let ResizeAction::Update(update) =
                    change::of_container(self.input.pod, container, &latest.id, self.input.actuated)
                {
                    wanted.updates.push(*update);
                }
                true
            }
            RunState::Exited if sidecar => {
                self.start.push(index);
                true
            }
            RunState::Exited => self.exited(index, latest),
            RunState::Unknown => self.unknown(index, latest, wanted),
        };
        self.passed = true;
        alive
    }

    fn running_sidecar(
        &mut self,
        index: usize,
        running: &ObservedContainer,
        wanted: &mut TargetLists<'a>,
    ) {
        // As for a main container: a container that ended by itself is not killed.
        if running.certain_end().is_some() {
            return;
        }
        let container = &self.init[index];
        let name = &container.name;
        let verdict = self.input.probes.get(&running.id).copied().unwrap_or_default();
        if container.startup_probe.is_some() && verdict.startup != Some(true) {
            if verdict.startup == Some(false) {
                let message = format!("Init container {name} failed startup probe");
                wanted.kill.push(kill(running, message, KillReason::Startup));
                self.start.push(index);
            }
            return;
        }
        self.completed(index);
        if definition_changed(container, running) {
            let message = format!("Init container {name} definition changed");
            wanted.kill.push(kill(running, message, KillReason::Other));
            self.start.push(index);
        } else if container.liveness_probe.is_some() && verdict.liveness == Some(false) {
            let message = format!("Init container {name} failed liveness probe");
            wanted.kill.push(kill(running, message, KillReason::Liveness));
            self.start.push(index);
        } else if !resize(self.input, container, running, wanted) {
            self.start.push(index);
        }
    }

    fn exited(&mut self, index: usize, latest: &ObservedContainer) -> bool {
        if !failed(latest) {
            self.completed(index);
            return true;
        }
        let again = pod::restart::may_restart(&self.init[index], self.spec, latest.exit_code);
        if again {
            self.start.push(index);
        }
        again
    }

    fn unknown(
        &mut self,
        index: usize,
        latest: &ObservedContainer,
        wanted: &mut TargetLists<'a>,
    ) -> bool {
        let container = &self.init[index];
        let again = pod::containers::is_sidecar(container)
            || restart::returns_after_kill(container, self.spec);
        if again {
            wanted.kill.push(kill_unknown(latest, "Init container is in"));
            self.start.push(index);
        }
        again
    }

    /// This init container has done its part: on to the next one or to the main containers.
    fn completed(&mut self, index: usize) {
        if index + 1 == self.init.len() {
            self.initialised = true;
        } else if !self.passed {
            self.start.push(index + 1);
        }
    }
}

/// The newest attempt of a container, if it belongs to the newest sandbox or may still run: the
/// result of an init container in an earlier sandbox does not count in this one, even if its record
/// is still there, but it must have ended before it is started again.
fn in_current_sandbox<'a>(observed: &'a ObservedPod, name: &str) -> Option<&'a ObservedContainer> {
    let sandbox = &observed.newest_sandbox()?.id;
    observed.latest(name).filter(|c| c.sandbox_id == *sandbox || c.state != RunState::Exited)
}

/// An init container failed when it ended badly or was taken by the OOM killer.
// k8s: pkg/kubelet/kuberuntime/helpers.go isInitContainerFailed
fn failed(container: &ObservedContainer) -> bool {
    container.exit_code != 0 || container.reason == "OOMKilled"
}
