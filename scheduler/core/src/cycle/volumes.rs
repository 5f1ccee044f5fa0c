//! Volumes of a pod with a node: written and bound; then the pod is bound.
//!
//! Input: selected volumes, written objects, watch events. Output: writes of volumes and claims,
//! and the binding. Owner: the scheduler. Bounds: pods with nodes; `bindTimeoutSeconds` of
//! `VolumeBindingArgs` for each.
// k8s: pkg/scheduler/framework/plugins/volumebinding/volume_binding.go Reserve, PreBind

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_sched_core::Plugin;
use pintle_sched_core::hint::HintEvent;

use super::command::{Command, Fact};
use super::decide::pod_ref;
use super::permit::PREEMPTED;
use super::{Assumed, QueuedPod, Scheduler, Uid};
use crate::plugins::volumes::bind::{BindProgress, Topic, Write};
use crate::pod_fields::PodRef;
use crate::watch_event::{WatchEvent, WatchedKind};

/// Volumes that were selected for a pod are free again.
const FREED: HintEvent = HintEvent::Other(&[Plugin::VolumeBinding], "AssignedPodDelete");

/// The volumes of a pod that has a node.
#[derive(Debug)]
pub(super) struct PodBinding {
    number: u64,
    node: Rc<str>,
    writes: Vec<Write>,
    /// Every write has succeeded or failed.
    is_written: bool,
    /// The writes are needed: the pod still has this node.
    is_wanted: Rc<Cell<bool>>,
    until: Duration,
    /// Objects that the progress depends on.
    topics: Vec<Topic>,
}

/// Pods with a node that wait for their volumes, indexed by the objects they depend on: a check of
/// all pods at each event would take time quadratic in their number.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    of_pods: HashMap<Uid, PodBinding>,
    by_topic: HashMap<Topic, HashSet<Uid>>,
    /// The number of checks.
    #[cfg(test)]
    pub(super) looks: usize,
}

impl Bindings {
    fn put(&mut self, uid: &Uid, binding: PodBinding) {
        self.remove(uid);
        for topic in &binding.topics {
            self.by_topic.entry(topic.clone()).or_default().insert(uid.clone());
        }
        self.of_pods.insert(uid.clone(), binding);
    }

    fn remove(&mut self, uid: &Uid) -> Option<PodBinding> {
        let binding = self.of_pods.remove(uid)?;
        for topic in &binding.topics {
            if let Some(uids) = self.by_topic.get_mut(topic) {
                uids.remove(uid);
                if uids.is_empty() {
                    self.by_topic.remove(topic);
                }
            }
        }
        Some(binding)
    }

    /// Stops the writes of all pods.
    pub(super) fn stop_all(&self) {
        self.of_pods.values().for_each(|binding| binding.is_wanted.set(false));
    }

    fn about(&self, about: &About) -> Vec<Uid> {
        match about {
            About::Nothing => Vec::new(),
            About::One(topic) => self.by_topic.get(topic).into_iter().flatten().cloned().collect(),
            About::Any => self.of_pods.keys().cloned().collect(),
        }
    }
}

/// The objects that a watch event concerns.
#[derive(Debug)]
pub(super) enum About {
    Nothing,
    One(Topic),
    /// Any object, after a complete list.
    Any,
}

impl About {
    pub(super) fn of(watch_event: &WatchEvent) -> Self {
        let topic = |kind: WatchedKind, key: &dyn Fn() -> ObjectKey| match kind {
            WatchedKind::PersistentVolumeClaim => Self::One(Topic::Claim(key())),
            WatchedKind::PersistentVolume => Self::One(Topic::Volume(key().name().to_owned())),
            WatchedKind::Node | WatchedKind::CSINode => {
                Self::One(Topic::Node(key().name().to_owned()))
            }
            _ => Self::Nothing,
        };
        match watch_event {
            WatchEvent::Listed(thing) | WatchEvent::Set(thing) | WatchEvent::Gone(thing) => {
                topic(thing.kind(), &|| thing.key())
            }
            WatchEvent::Lost(kind, key) => topic(*kind, &|| key.clone()),
            WatchEvent::Complete(_) => Self::Any,
            WatchEvent::Begun(_) | WatchEvent::Unreadable(..) => Self::Nothing,
        }
    }

    /// Returns true for volumes and claims, which pods that wait for devices do not depend on.
    pub(super) fn is_of_volumes(&self) -> bool {
        matches!(self, Self::One(Topic::Claim(_) | Topic::Volume(_)))
    }
}

/// The result of writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeWrites {
    /// The pod of the volumes.
    pub pod: PodRef,
    /// The number of the command.
    pub number: u64,
    /// The objects' new versions, in the order of the command; fewer after one that failed.
    pub versions: Vec<String>,
    /// The error of the write that failed.
    pub error: Option<String>,
}

impl Scheduler {
    /// Assumes the volumes that are selected for a pod on a node.
    pub(super) fn choose_volumes(&mut self, uid: &Uid, queued: &QueuedPod, node: &Rc<str>) {
        let claims = self.cache.claims(&queued.pod.whole()).ok().flatten();
        let row = self.cache.cluster.row(node);
        let choice = claims.zip(row).and_then(|(claims, row)| claims.choice(row));
        let Some(choice) = choice else { return };
        let writes = self.cache.volumes.assume(&choice, node);
        if !writes.is_empty() {
            let (node, until) = (Rc::clone(node), Duration::MAX);
            self.volumes_chosen += 1;
            let number = self.volumes_chosen;
            let (is_written, is_wanted) = (false, Rc::new(Cell::new(true)));
            let topics = self.cache.volumes.topics(&writes, &node);
            let binding = PodBinding { number, node, writes, is_written, is_wanted, until, topics };
            self.binding_volumes.put(uid, binding);
        }
    }

    /// Starts the writes of a pod's volumes; returns true if there are any.
    pub(super) fn begin_volumes(&mut self, uid: &Uid, now: Duration) -> bool {
        let assumed = self.assumed.get(uid);
        let Some((binding, assumed)) = self.binding_volumes.of_pods.get_mut(uid).zip(assumed)
        else {
            return false;
        };
        let profile = self.cache.profile(assumed.queued.profile);
        let time = Duration::from_secs(profile.timeouts.volume_bind_seconds);
        binding.until = now.saturating_add(time);
        let (pod, writes) = (pod_ref(&assumed.queued, uid), binding.writes.clone());
        let (number, is_wanted) = (binding.number, Rc::clone(&binding.is_wanted));
        self.commands.push(Command::BindVolumes { pod, number, writes, is_wanted });
        true
    }

    /// Handles the result of writes. Writes for an earlier node of the pod are ignored.
    pub fn volumes_written(&mut self, written: VolumeWrites, now: Duration) {
        self.netted(now, |scheduler| scheduler.take_written(written, now));
    }

    fn take_written(&mut self, written: VolumeWrites, now: Duration) {
        let uid = &written.pod.uid;
        let is_it = |binding: &&mut PodBinding| binding.number == written.number;
        let Some(binding) = self.binding_volumes.of_pods.get_mut(uid).filter(is_it) else { return };
        for (write, version) in binding.writes.iter_mut().zip(written.versions) {
            (write.version, write.is_written) = (version, true);
        }
        binding.is_written = true;
        match written.error {
            Some(error) => self.volumes_failed(&written.pod.uid, error, now),
            None => self.look_at_volumes_of(&written.pod.uid, now),
        }
    }

    /// Checks the pods that an event concerns.
    pub(super) fn look_at_volumes(&mut self, about: &About, now: Duration) {
        for uid in self.binding_volumes.about(about) {
            self.look_at_volumes_of(&uid, now);
        }
    }

    /// Checks pods with a volume binding that timed out.
    pub(super) fn end_late_volumes(&mut self, now: Duration) {
        let all = self.binding_volumes.of_pods.iter();
        let late = all.filter(|(_, binding)| binding.until <= now).map(|(uid, _)| uid.clone());
        for uid in late.collect::<Vec<_>>() {
            self.look_at_volumes_of(&uid, now);
        }
    }

    /// Binds a pod once its volumes are bound. If they failed or timed out, the pod is rejected and
    /// retried.
    fn look_at_volumes_of(&mut self, uid: &Uid, now: Duration) {
        let Some(binding) = self.binding_volumes.of_pods.get(uid) else { return };
        #[cfg(test)]
        {
            self.binding_volumes.looks += 1;
        }
        let progress = match binding.is_written {
            true => self.cache.progress(&binding.writes, &binding.node),
            false => BindProgress::Waits,
        };
        match progress {
            BindProgress::Waits if now >= binding.until => {
                let error = "binding volumes: context deadline exceeded";
                self.volumes_failed(uid, error.to_owned(), now);
            }
            BindProgress::Waits => {
                let topics = self.cache.volumes.topics(&binding.writes, &binding.node);
                if topics != binding.topics
                    && let Some(binding) = self.binding_volumes.remove(uid)
                {
                    self.binding_volumes.put(uid, PodBinding { topics, ..binding });
                }
            }
            BindProgress::Failed(error) => {
                self.volumes_failed(uid, format!("binding volumes: {error}"), now);
            }
            BindProgress::Bound => {
                self.binding_volumes.remove(uid);
                self.bind_if_ready(uid);
            }
        }
    }

    fn volumes_failed(&mut self, uid: &Uid, error: String, now: Duration) {
        let Some(assumed) = self.assumed.get(uid) else {
            self.forget_volumes(uid);
            return;
        };
        let pod = pod_ref(&assumed.queued, uid);
        self.facts.push(Fact::VolumesFailed);
        self.failed(&pod, format!("running PreBind plugin \"VolumeBinding\": {error}"), now);
    }

    /// Takes the node from a victim that waits for its volumes; returns true if it waited.
    pub(super) fn preempt_volumes(&mut self, uid: &str, now: Duration) -> bool {
        let Some((uid, _)) = self.binding_volumes.of_pods.get_key_value(uid) else { return false };
        let uid = uid.clone();
        self.volumes_failed(&uid, PREEMPTED.to_owned(), now);
        true
    }

    /// Binds a pod unless it still waits for volumes or devices.
    pub(super) fn bind_if_ready(&mut self, uid: &Uid) {
        if self.binding_volumes.of_pods.contains_key(uid) || self.devices.waits(uid) {
            return;
        }
        if let Some(Assumed { queued, node, .. }) = self.assumed.get(uid) {
            let (queued, node) = (Rc::clone(queued), Rc::clone(node));
            self.bind(uid, &queued, &node);
        }
    }

    /// Reverts the assumed volumes of a pod; returns true if it had any.
    pub(super) fn forget_volumes(&mut self, uid: &Uid) -> bool {
        let Some(binding) = self.binding_volumes.remove(uid) else { return false };
        binding.is_wanted.set(false);
        self.cache.volumes.revert(&binding.writes);
        true
    }

    /// Reverts the assumed volumes of a pod that lost its node, and requeues pods that wait for
    /// volumes; returns true if it had any.
    pub(super) fn give_volumes_back(&mut self, uid: &Uid, now: Duration) -> bool {
        let had = self.forget_volumes(uid);
        if had {
            self.requeue_after(&FREED, now);
        }
        had
    }

    /// Returns when the next volume binding times out.
    pub(super) fn volumes_due(&self) -> Option<Duration> {
        let all = self.binding_volumes.of_pods.values().map(|binding| binding.until);
        all.min().filter(|until| *until < Duration::MAX)
    }
}
