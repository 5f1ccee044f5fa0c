//! Selection of dead containers and sandboxes of wanted pods for removal.
//!
//! Input: the limits, each pod's record from the runtime and its need, the time. Output: the
//! containers to remove. Unwanted pods are not judged here: their workers remove all of them. Pure;
//! bounds: an entry for each dead container of the node.
//!
//! Unlike the kubelet, the last end of a container stays as long as its pod may run again, whatever
//! the limits are: without it the container would be started once more, out of its crash loop, with
//! a restart count of zero.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_gc.go evictContainers, evictSandboxes

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::observed::{ObservedContainer, ObservedPod, ObservedSandbox, RunState};
use pintle_api_types::ids::{ContainerId, PodUid, UnixNanos};

/// How many dead containers may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLimits {
    /// One that was created later than this ago stays, and does not count.
    pub min_age: Duration,
    /// Of each container of a pod; `None` for any number.
    pub per_container: Option<usize>,
    /// Of the whole node; `None` for any number.
    pub total: Option<usize>,
}

impl Default for DeadLimits {
    fn default() -> Self {
        Self { min_age: Duration::ZERO, per_container: Some(1), total: None }
    }
}

impl DeadLimits {
    /// How many ends of a container stay when it is started again: one at least, and no more than
    /// one where any number may stay, as for the kubelet.
    // k8s: pkg/kubelet/kubelet.go NewMainKubelet containerDeletor
    pub fn kept_at_once(&self) -> usize {
        self.per_container.map_or(1, |limit| limit.max(1))
    }
}

/// The containers of a pod that are still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The last end of each container: the pod may run, or its end is not known everywhere yet.
    LastEnds,
    /// Nothing for itself; the containers within the limits stay, for users to inspect.
    Limits,
    /// Nothing: whatever does not run is removed.
    Nothing,
}

/// A pod and its need.
#[derive(Clone, Copy, Debug)]
pub struct KeptPod<'a> {
    /// Its record from the runtime.
    pub pod: &'a ObservedPod,
    /// Its need.
    pub need: Need,
}

/// The containers to remove, by their pods.
pub type Discarded = BTreeMap<PodUid, BTreeSet<ContainerId>>;

/// A dead container that may be removed.
struct Dead<'a> {
    uid: &'a PodUid,
    container: &'a ObservedContainer,
    needed: bool,
}

/// The dead ones of a container of a pod, the newest first.
type Unit<'a> = Vec<Dead<'a>>;

/// See the module's header.
pub fn discard(limits: &DeadLimits, pods: &[KeptPod<'_>], now: UnixNanos) -> Discarded {
    let mut discarded = Discarded::new();
    let mut units = Vec::new();
    for kept in pods {
        let mut dead = units_of(kept, limits, now);
        if kept.need == Need::Nothing {
            dead.iter_mut().for_each(|unit| trim(unit, 0, &mut discarded));
        } else {
            units.append(&mut dead);
        }
    }
    if let Some(limit) = limits.per_container {
        units.iter_mut().for_each(|unit| trim(unit, limit, &mut discarded));
    }
    if let Some(limit) = limits.total {
        trim_all(units, limit, &mut discarded);
    }
    discarded
}

/// The dead containers of a pod that count, by their names.
fn units_of<'a>(kept: &KeptPod<'a>, limits: &DeadLimits, now: UnixNanos) -> Vec<Unit<'a>> {
    let pod = kept.pod;
    let mut units: BTreeMap<&str, Unit<'a>> = BTreeMap::new();
    // Names with a newer attempt that is not on its way to a start.
    let mut newer = BTreeSet::new();
    for container in &pod.containers {
        let is_last = match container.state {
            RunState::Running => {
                newer.insert(&*container.name);
                continue;
            }
            // It is about to be started, or to be removed before the next start.
            RunState::Created if kept.need == Need::LastEnds => continue,
            RunState::Created => false,
            RunState::Exited | RunState::Unknown => newer.insert(&*container.name),
        };
        if now.since(container.created_at) < limits.min_age {
            continue;
        }
        let needed = is_last && kept.need == Need::LastEnds;
        let dead = Dead { uid: &pod.uid, container, needed };
        units.entry(&container.name).or_default().push(dead);
    }
    units.into_values().collect()
}

/// Leaves this many of a container, or the needed one; removes the oldest first.
fn trim(unit: &mut Unit<'_>, limit: usize, discarded: &mut Discarded) {
    while unit.len() > limit && unit.last().is_some_and(|oldest| !oldest.needed) {
        let oldest = unit.pop().expect("it is not empty");
        note(&oldest, discarded);
    }
}

/// Leaves this many of the node: first this many of each container, then the youngest.
fn trim_all(mut units: Vec<Unit<'_>>, limit: usize, discarded: &mut Discarded) {
    let count = |units: &[Unit<'_>]| units.iter().map(Vec::len).sum::<usize>();
    if count(&units) <= limit {
        return;
    }
    let each = limit.checked_div(units.len()).unwrap_or_default().max(1);
    units.iter_mut().for_each(|unit| trim(unit, each, discarded));
    let excess = count(&units).saturating_sub(limit);
    let mut spare: Vec<_> = units.into_iter().flatten().filter(|dead| !dead.needed).collect();
    spare.sort_by_key(|dead| (dead.container.created_at, dead.container.restart_count));
    spare.iter().take(excess).for_each(|oldest| note(oldest, discarded));
}

fn note(dead: &Dead<'_>, discarded: &mut Discarded) {
    let of = discarded.entry(dead.uid.clone()).or_default();
    of.insert(dead.container.id.clone());
}

/// The sandboxes of a pod to remove: those that are not ready and have no container; the newest one
/// stays while a container of the pod is needed.
pub fn sandboxes(pod: &ObservedPod, keeps_newest: bool) -> impl Iterator<Item = &ObservedSandbox> {
    let older = pod.sandboxes.iter().skip(usize::from(keeps_newest));
    older.filter(|sandbox| {
        !sandbox.ready && !pod.containers.iter().any(|c| c.sandbox_id == sandbox.id)
    })
}

#[cfg(test)]
#[path = "containers_tests.rs"]
mod tests;
