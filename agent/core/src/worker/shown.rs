//! The record of a pod as its status and its prober see it.
//!
//! Pure, part of the worker. Plans use the record itself; the status differs from it in three ways:
//! an end that the runtime has reported and does not list yet is shown already, a container with a
//! running postStart hook is shown as not started yet, and one that a sync kills to start it again
//! is shown as it was until the sync is over.
// k8s: pkg/kubelet/kubelet.go SyncPod: a status is made before a sync, never within it

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::observed::{ObservedContainer, ObservedPod, RunState};
use crate::status;
use crate::sync::plan::Action;
use crate::worker::step::Worker;
use pintle_api_types::ids::ContainerId;
use pintle_api_types::pod;
use pintle_api_types::pod::restart;

impl Worker {
    /// The record for the status, `None` when it equals the real one: with ends that the runtime
    /// has reported and does not list yet, and with containers in a postStart hook as not started
    /// yet, because the kubelet reports them only when the hook is done.
    pub(super) fn shown(&self) -> Option<ObservedPod> {
        let hooked = self.hooked();
        let shown = |container: &ObservedContainer| {
            let waits = hooked == Some(&*container.name) && container.state == RunState::Running;
            let created = || ObservedContainer { state: RunState::Created, ..container.clone() };
            status::ending(container).or_else(|| waits.then(created))
        };
        let mut changed = self.reads.observed.containers.iter().map(shown).collect::<Vec<_>>();
        changed.iter().any(Option::is_some).then(|| {
            let mut pod = (*self.reads.observed).clone();
            for (container, shown) in pod.containers.iter_mut().zip(&mut changed) {
                if let Some(shown) = shown.take() {
                    *container = shown;
                }
            }
            pod
        })
    }

    /// The container that is being started, if it has a postStart hook.
    fn hooked(&self) -> Option<&str> {
        let (pass, pod) = (self.sync.run.as_ref()?, self.pod.as_ref()?);
        let action = pass.actions.get(pass.done)?;
        let name =
            matches!(action, Action::StartContainer { .. }).then(|| action.container())??;
        let container = pod::containers::find(pod::spec(pod), name).map(|(_, c)| c);
        let hooks = container.and_then(|c| c.lifecycle.as_ref());
        hooks.is_some_and(|hooks| hooks.post_start.is_some()).then_some(name)
    }

    /// A container that the sync replaces and that would not restart by its policy is never shown
    /// dead: the status may not leave such an end, so it would stay as it is for ever.
    // k8s: pkg/kubelet/status/status_manager.go checkContainerStateTransition
    pub(super) fn unreplaced(&self, pod: &Pod, shown: Option<ObservedPod>) -> Option<ObservedPod> {
        let spec = pod::spec(pod);
        let record = shown.as_ref().unwrap_or(&self.reads.observed);
        let stays_dead = |dead: &ObservedContainer| {
            let container = pod::containers::find(spec, &dead.name).map(|(_, c)| c);
            dead.state == RunState::Exited
                && container.is_some_and(|c| !restart::may_restart(c, spec, dead.exit_code))
        };
        let killed = |c: &ObservedContainer| self.sync.replaced.get(&c.name) == Some(&c.id);
        let dead = record.containers.iter().filter(|c| killed(c) && stays_dead(c));
        let dead: BTreeMap<_, _> =
            dead.map(|c| (c.name.clone(), (c.id.clone(), c.restart_count))).collect();
        if dead.is_empty() {
            return shown;
        }
        let mut record = shown.unwrap_or_else(|| (*self.reads.observed).clone());
        record.containers.retain(|c| dead.get(&c.name).is_none_or(|(_, n)| c.restart_count <= *n));
        for container in &mut record.containers {
            if dead.get(&container.name).is_some_and(|(id, _)| *id == container.id) {
                container.state = RunState::Running;
            }
        }
        Some(record)
    }
}

/// Containers that these actions kill and start again, with the ids of the killed ones.
pub(super) fn replaced(actions: &[Action]) -> BTreeMap<String, ContainerId> {
    let starts = |of: &str| {
        let starts = |a: &Action| matches!(a, Action::StartContainer { name, .. } if name == of);
        actions.iter().any(starts)
    };
    let killed = actions.iter().filter_map(|action| match action {
        Action::KillContainer { id, name, .. } => Some((name.clone(), id.clone())),
        _ => None,
    });
    killed.filter(|(name, _)| starts(name)).collect()
}
