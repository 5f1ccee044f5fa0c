//! One volume of a driver: whether it is staged, the pods that want or have it, and the call under way.
//!
//! Owner: `Storage`. Bounds: one call at a time; an entry for each pod that wants or has it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::growth::Growth;
use super::{BACKOFF, Call, Command, Failure, Outcome, Problem, Wanted};
use crate::storage::csi::{Lifecycle, Volume, VolumeId};
use crate::storage::disk;
use crate::sync::backoff::Pause;
use pintle_api_types::ids::{Mono, PodUid};

/// Whether something is staged or published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Certainty {
    /// It is not.
    #[default]
    No,
    /// It may be.
    Uncertain,
    /// It is.
    Yes,
}

/// All that is needed to take a volume away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The driver.
    pub driver: String,
    /// The driver's name for the volume.
    pub handle: String,
    /// Name on the disk.
    pub name: String,
    /// Whether it outlives the pod.
    pub lifecycle: Lifecycle,
    /// Containers have it as a device.
    pub is_block: bool,
    /// Its plugin was once part of Kubernetes; records on the disk do not say so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_migrated: bool,
    /// SELinux label that it is mounted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_label: Option<String>,
}

impl Known {
    /// What is to be known to take a wanted volume away again.
    pub fn of(wanted: &Wanted) -> Self {
        let selinux_label = wanted.selinux_label.clone();
        Self { selinux_label, ..Self::of_volume(&wanted.volume) }
    }

    /// The same of a volume that is mounted without a label.
    pub fn of_volume(volume: &Volume) -> Self {
        Self {
            driver: volume.driver.clone(),
            handle: volume.handle.clone(),
            name: volume.name.clone(),
            lifecycle: volume.lifecycle,
            is_block: volume.is_block,
            is_migrated: volume.is_migrated,
            selinux_label: None,
        }
    }
}

/// What a pod has of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Use {
    pub(super) known: Known,
    /// `None` for what was found on the disk of a pod that has not asked for it yet.
    pub(super) wanted: Option<Box<Wanted>>,
    pub(super) published: Certainty,
    /// It was found on the disk: a failure does not tell that it is not published.
    pub(super) is_found: bool,
    pub(super) is_released: bool,
    /// It is published, and to be published again.
    pub(super) is_due_again: bool,
    /// The pod may have started with it: an expansion holds it back no more.
    pub(super) is_mounted: bool,
    pub(super) pause: Option<Pause>,
    pub(super) failure: Option<String>,
}

impl Use {
    pub(super) fn new(known: Known) -> Self {
        Self {
            known,
            wanted: None,
            published: Certainty::No,
            is_found: false,
            is_released: false,
            is_due_again: false,
            is_mounted: false,
            pause: None,
            failure: None,
        }
    }

    /// True once it goes.
    pub(super) fn is_released(&self) -> bool {
        self.is_released
    }

    pub(super) fn waits(&self, now: Mono) -> bool {
        self.pause.is_some_and(|pause| pause.until > now)
    }
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) ticket: u64,
    pub(super) call: Call,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// As it was staged, or may be.
    pub(super) known: Option<Known>,
    pub(super) staged: Certainty,
    /// The attach-detach controller attaches it, and may detach it once the Node's status does not name
    /// it as in use.
    pub(super) is_attachable: bool,
    /// The names that Node objects have for it, where those are not its id.
    #[serde(default)]
    node_names: BTreeSet<String>,
    pub(super) uses: BTreeMap<PodUid, Use>,
    pub(super) running: Option<Running>,
    /// After a failure to stage or unstage.
    pub(super) pause: Option<Pause>,
    pub(super) failure: Option<String>,
    pub(super) growth: Growth,
}

impl State {
    /// The pod's.
    pub(super) fn of(&self, pod: &PodUid) -> Option<&Use> {
        self.uses.get(pod)
    }

    fn any_known(&self) -> Option<&Known> {
        self.uses.values().map(|of| &of.known).chain(&self.known).next()
    }

    pub(super) fn driver(&self) -> &str {
        self.any_known().map_or("", |known| &known.driver)
    }

    /// The names that Node objects have for it.
    pub(super) fn node_names<'a>(&'a self, id: &'a VolumeId) -> impl Iterator<Item = &'a str> {
        let own = self.node_names.is_empty().then_some(id.as_str());
        own.into_iter().chain(self.node_names.iter().map(String::as_str))
    }

    /// Takes over the names that a Node has for what was found; returns false without any.
    pub(super) fn take_node_names(&mut self, id: &VolumeId, names: &BTreeSet<String>) -> bool {
        if let Some(known) = self.any_known().filter(|known| disk::is_plugin(&known.driver)) {
            let own = disk::node_names(&known.driver, &known.handle).into_iter();
            self.node_names = own.filter(|name| names.contains(name)).collect();
            return !self.node_names.is_empty();
        }
        names.contains(id.as_str())
    }

    /// `is_attached` if the Node's status names it as attached.
    pub(super) fn want(&mut self, wanted: Wanted, is_attached: bool) {
        let known = Known::of(&wanted);
        self.growth.measure(&wanted.volume);
        // The CSIDriver may end its need of attachments while a pod waits for one: the volume is not
        // in use as an attached one any more, so that the attachment that was begun can go.
        // k8s: pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go findAndRemoveDeletedPods
        self.is_attachable = wanted.is_attached_first || self.is_attachable && is_attached;
        let of = self.uses.entry(wanted.pod.clone()).or_insert_with(|| Use::new(known));
        of.is_released = false;
        of.is_due_again = wanted.is_republished && of.published == Certainty::Yes;
        of.wanted = Some(Box::new(wanted));
        let wanted = self.uses.values().filter_map(|of| of.wanted.as_ref());
        self.node_names = wanted.filter_map(|wanted| wanted.volume.node_name()).collect();
    }

    /// It is time to publish the volume again for a pod that has it, if its driver wants that.
    pub(super) fn republish(&mut self, pod: &PodUid) {
        let Some(of) = self.uses.get_mut(pod).filter(|of| !of.is_released) else { return };
        let is_wanted = of.wanted.as_ref().is_some_and(|wanted| wanted.is_republished);
        of.is_due_again |= is_wanted && of.published == Certainty::Yes;
    }

    pub(super) fn release(&mut self, pod: &PodUid) {
        if let Some(of) = self.uses.get_mut(pod)
            && !of.is_released
        {
            of.is_released = true;
            of.pause = None;
        }
    }

    pub(super) fn forget_pauses(&mut self) {
        self.pause = None;
        self.growth.pause = None;
        self.uses.values_mut().for_each(|of| of.pause = None);
    }

    /// Forgets pods that are released and have nothing; returns them.
    pub(super) fn drop_gone(&mut self) -> Vec<PodUid> {
        if self.running.is_some() {
            return Vec::new();
        }
        let gone = |of: &Use| of.is_released && of.published == Certainty::No;
        let pods: Vec<PodUid> =
            self.uses.iter().filter(|(_, of)| gone(of)).map(|(pod, _)| pod.clone()).collect();
        self.uses.retain(|_, of| !gone(of));
        if !pods.is_empty() {
            // Whatever kept the others from it may have gone with them.
            let others = self.uses.values_mut().filter(|of| of.published == Certainty::No);
            others.for_each(|of| of.pause = None);
        }
        pods
    }

    /// True when no pod wants or has it.
    pub(super) fn is_nothing(&self) -> bool {
        self.uses.is_empty() && self.staged == Certainty::No && self.running.is_none()
    }

    /// When the next pause ends of those that were not over at the last look.
    pub(super) fn next_due(&self, looked_at: Mono) -> Option<Mono> {
        if self.running.is_some() {
            return None;
        }
        let own = self.uses.values().filter_map(|of| of.pause);
        let ends = own.chain(self.pause).chain(self.growth.pause).map(|pause| pause.until);
        ends.filter(|until| *until > looked_at).min()
    }

    pub(super) fn begin(&mut self, ticket: u64, call: Call) {
        match &call {
            Call::Stage { wanted, .. } => {
                // Whatever becomes of it: from here on it may be staged.
                self.known = Some(Known::of(wanted));
            }
            Call::Publish { wanted, .. } => {
                if let Some(of) = self.uses.get_mut(&wanted.pod) {
                    of.is_due_again = false;
                }
            }
            Call::Expand { .. } | Call::Unpublish { .. } | Call::Unstage(_) => {}
        }
        self.running = Some(Running { ticket, call });
    }

    /// A call ended; returns the commands for its pods.
    pub(super) fn done(&mut self, ticket: u64, outcome: Outcome, now: Mono) -> Vec<Command> {
        let Some(running) = self.running.take_if(|running| running.ticket == ticket) else {
            return Vec::new();
        };
        match (&running.call, outcome) {
            (Call::Stage { .. }, Ok(())) => self.staged = Certainty::Yes,
            (Call::Unstage(_), Ok(())) => self.staged = Certainty::No,
            (Call::Stage { wanted, .. }, Err(failure)) => {
                self.staged = after(self.staged, &failure);
                return self.stage_failed(wanted, failure, now);
            }
            (Call::Unstage(_), Err(failure)) => {
                // It may be half gone: pods that want it have it staged once more.
                self.staged = Certainty::Uncertain;
                self.pause = Some(Pause::after(self.pause, BACKOFF, now));
                self.failure = Some(failure.text);
                return Vec::new();
            }
            (Call::Expand { wanted, .. }, outcome) => return self.expanded(wanted, outcome, now),
            (call, outcome) => return self.use_done(call, outcome, now),
        }
        self.pause = None;
        self.failure = None;
        Vec::new()
    }

    fn stage_failed(&mut self, wanted: &Wanted, failure: Failure, now: Mono) -> Vec<Command> {
        self.pause = Some(Pause::after(self.pause, BACKOFF, now));
        let what = match (wanted.volume.is_block, failure.is_of_attachment) {
            (true, true) => "MapVolume.WaitForAttach",
            (true, false) => "MapVolume.SetUpDevice",
            (false, true) => "MountVolume.WaitForAttach",
            (false, false) => "MountVolume.MountDevice",
        };
        let text = failed(what, &wanted.volume.name, &failure.text);
        self.failure = Some(text.clone());
        let waiting = self.uses.iter().filter(|(_, of)| of.wanted.is_some() && !of.is_released);
        let told = waiting.map(|(pod, _)| Command::Failed { pod: pod.clone(), text: text.clone() });
        told.collect()
    }

    fn use_done(&mut self, call: &Call, outcome: Outcome, now: Mono) -> Vec<Command> {
        let pod = match call {
            Call::Publish { wanted, .. } => &wanted.pod,
            Call::Unpublish { pod, .. } => pod,
            Call::Stage { .. } | Call::Unstage(_) | Call::Expand { .. } => return Vec::new(),
        };
        let Some(of) = self.uses.get_mut(pod) else { return Vec::new() };
        let failure = match outcome {
            Ok(()) => {
                let notice = of.succeeded(call);
                let notice = notice.map(|text| Command::Failed { pod: pod.clone(), text });
                return notice.into_iter().collect();
            }
            Err(failure) => failure,
        };
        of.pause = Some(Pause::after(of.pause, BACKOFF, now));
        let what = match call {
            Call::Unpublish { .. } => {
                of.published = Certainty::Uncertain;
                if of.known.is_block { "UnmapVolume" } else { "UnmountVolume.TearDown" }
            }
            _ => {
                of.published = after(of.published, &failure);
                if of.known.is_block { "MapVolume.MapPodDevice" } else { "MountVolume.SetUp" }
            }
        };
        let text = failed(what, &of.known.name, &failure.text);
        of.failure = Some(text.clone());
        vec![Command::Failed { pod: pod.clone(), text }]
    }
}

impl Use {
    /// Returns the message of an event.
    fn succeeded(&mut self, call: &Call) -> Option<String> {
        self.pause = None;
        self.failure = None;
        match call {
            Call::Publish { .. } => {
                self.published = Certainty::Yes;
                self.is_found = false;
                self.read_only_notice().filter(|_| !self.is_mounted)
            }
            Call::Unpublish { .. } => {
                self.published = Certainty::No;
                self.is_mounted = false;
                None
            }
            Call::Stage { .. } | Call::Unstage(_) | Call::Expand { .. } => None,
        }
    }
}

/// What is known after a failure to stage or publish. What is there stays there, and what may be there
/// may still be, whatever the driver says of this call: it is taken away once no pod wants it. The
/// kubelet forgets it after a final error, and leaks what an earlier call has done.
// k8s: pkg/volume/util/operationexecutor/operation_generator.go markVolumeErrorState
fn after(before: Certainty, failure: &Failure) -> Certainty {
    match (failure.problem, before) {
        (Problem::Uncertain, Certainty::No) => Certainty::Uncertain,
        (_, before) => before,
    }
}

/// The sentence of an event.
// k8s: pkg/volume/util/operationexecutor/operation_executor.go GenerateError
pub(super) fn failed(what: &str, name: &str, why: &str) -> String {
    format!("{what} failed for volume {name:?} : {why}")
}
