//! The state machine of drivers' volumes: what is wanted, what is, and the next call for each volume.
//!
//! `Storage::handle(now, Input) -> Vec<Command>` is the whole interface; its owner makes the calls
//! and feeds back how each ended. One call at a time is under way for a volume; a call that
//! failed is made again after 500 ms, twice as long each time up to 2 min 2 s, and only the pod or
//! the staging that it was for waits. A failure that leaves the outcome open leaves the volume
//! *uncertain*: it is called again or taken away, never forgotten. What is found on the disk at start
//! is uncertain, and stays until its pod is released.
// k8s: pkg/kubelet/volumemanager/reconciler, pkg/volume/util/operationexecutor

mod found;
mod growth;
mod next;
mod volume;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::csi::{Volume, VolumeId};
use crate::sync::backoff::WaitBounds;
use pintle_api_types::ids::{Mono, PodUid};

pub use crate::node::status::InUse;
pub use found::FoundVolume;
pub use next::USED_BY_ANOTHER_POD;
pub use waiting::{Step, Waiting};

pub use volume::Known;
use volume::State;

/// First and longest wait after a call that failed.
// k8s: pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go
pub(super) const BACKOFF: WaitBounds =
    WaitBounds { first: Duration::from_millis(500), longest: Duration::from_secs(122) };

/// A volume that a pod wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The pod.
    pub pod: PodUid,
    /// What it is.
    pub volume: Volume,
    /// It is attached to the node before it is staged: `attachRequired` of its CSIDriver.
    pub is_attached_first: bool,
    /// It is published again at each sync: `requiresRepublish` of its CSIDriver.
    pub is_republished: bool,
    /// Group that files are given to.
    pub fs_group: Option<u32>,
    /// SELinux label that it is mounted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_label: Option<String>,
}

impl Wanted {
    /// Its name on this node.
    pub fn id(&self) -> VolumeId {
        self.volume.id(&self.pod)
    }
}

/// A pod whose volumes have to be looked at again while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resync {
    /// The pod.
    pub pod: PodUid,
    /// Volumes of claims that it may write to.
    pub volumes: Vec<Volume>,
}

/// What may happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Input {
    /// What the disk has, once, before anything else.
    Found {
        /// Everything that may be staged or published.
        volumes: Vec<FoundVolume>,
        /// Every record could be read. Otherwise all that the Node names as in use when it is first
        /// read stays in use.
        is_whole: bool,
    },
    /// Volumes of a pod that is about to be released, which have no record that can be read.
    Recovered {
        /// The pod.
        pod: PodUid,
        /// What may be published to it.
        volumes: Vec<Known>,
    },
    /// Every source of pods has reported: what is staged without a pod may be unstaged.
    SourcesReady,
    /// A pod is to have these volumes; said again at each of its syncs.
    Wanted {
        /// The pod.
        pod: PodUid,
        /// All its volumes of drivers.
        volumes: Vec<Wanted>,
    },
    /// It is time to publish the volumes of a running pod again, where their driver wants that.
    Republish {
        /// The pod.
        pod: PodUid,
    },
    /// The claims of a running pod were read again.
    Measured {
        /// The pod.
        pod: PodUid,
        /// Its volumes with new sizes.
        volumes: Vec<Volume>,
    },
    /// Nothing of the pod runs any more: its volumes are taken away.
    Released {
        /// The pod.
        pod: PodUid,
    },
    /// The Node object as the API server has it, or had it a while ago.
    Node(NodeVolumes),
    /// The same from a list, which is what there is now: its version may have gone back.
    NodeListed(NodeVolumes),
    /// The Node's status was written with `volumesInUse` of a report, or said the same already.
    InUseWritten {
        /// Number of the report.
        number: u64,
        /// The Node as it was then.
        node: NodeVolumes,
    },
    /// A driver has registered: pauses after failures of its volumes end.
    DriverReady(String),
    /// Answer to `Command::Call`.
    Done {
        /// The volume.
        volume: VolumeId,
        /// The command's.
        ticket: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// Time has passed.
    Tick,
}

/// What a Node object says about volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeVolumes {
    /// The object's resource version.
    pub version: u64,
    /// `volumesAttached`.
    pub attached: BTreeSet<String>,
    /// `volumesInUse`.
    pub in_use: BTreeSet<String>,
}

/// How a call ended.
pub type Outcome = Result<(), Failure>;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What is known of the volume now.
    pub problem: Problem,
    /// It is the attachment that is missing, which is looked at before the call.
    pub is_of_attachment: bool,
    /// For people.
    pub text: String,
}

/// What a failure says about the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// The driver was not asked: all is as it was.
    NotAsked,
    /// The driver may have done it, or may still be about to.
    Uncertain,
    /// The driver has not done it.
    Final,
    /// The claim does not allow the expansion yet, or no more: nothing was done.
    Later,
    /// The driver does not expand a volume in use.
    InUse,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A call to a driver, with what goes before and after it on the disk.
    Call {
        /// The volume.
        volume: VolumeId,
        /// Names the call.
        ticket: u64,
        /// Which.
        call: Call,
    },
    /// `volumesInUse` of the Node is to be this.
    ReportInUse(InUse),
    /// The wait for the pod's volumes ends.
    Answer {
        /// The pod.
        pod: PodUid,
        /// What.
        answer: Answer,
    },
    /// A call for the pod failed, and will be made again.
    Failed {
        /// The pod.
        pod: PodUid,
        /// For its event.
        text: String,
    },
}

/// How a wait for a pod's volumes ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// All that the pod wants is published.
    Ready,
    /// Nothing of the pod is published.
    Gone,
}

/// A call for a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// NodeStageVolume.
    Stage {
        /// What.
        wanted: Box<Wanted>,
        /// It may be staged: nothing is removed if the call fails.
        again: bool,
    },
    /// NodePublishVolume, and files given to the pod's group.
    Publish {
        /// What.
        wanted: Box<Wanted>,
        /// It is published, or may be: nothing is removed if the call fails.
        again: bool,
    },
    /// NodeExpandVolume.
    Expand {
        /// What.
        wanted: Box<Wanted>,
        /// The driver's last refusal was final.
        had_final_error: bool,
    },
    /// NodeUnpublishVolume.
    Unpublish {
        /// The pod.
        pod: PodUid,
        /// What.
        known: Known,
    },
    /// NodeUnstageVolume.
    Unstage(Known),
}

impl Call {
    /// The driver or plugin that it is for.
    pub fn driver(&self) -> &str {
        match self {
            Self::Stage { wanted, .. }
            | Self::Publish { wanted, .. }
            | Self::Expand { wanted, .. } => &wanted.volume.driver,
            Self::Unpublish { known, .. } | Self::Unstage(known) => &known.driver,
        }
    }
}

/// All volumes of drivers on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    volumes: BTreeMap<VolumeId, State>,
    /// The volumes of each pod that wants or has some.
    pods: BTreeMap<PodUid, BTreeSet<VolumeId>>,
    /// Pods that a sync waits for.
    asking: BTreeSet<PodUid>,
    /// `volumesAttached` of the newest Node that was read. A volume in it may have been detached
    /// since, unless the status named it as in use before.
    attached: BTreeSet<String>,
    /// The version of that Node.
    node_version: u64,
    /// The last report of `volumesInUse`; `None` before the Node was read once.
    report: Option<InUse>,
    /// By name: the first of the reports that name it without a break.
    reported_by: BTreeMap<String, u64>,
    /// Number of the report that was written.
    written: u64,
    /// In use for an agent before this one, and without a record that could be read.
    kept_in_use: BTreeSet<String>,
    is_partly_known: bool,
    sources_ready: bool,
    tickets: u64,
    /// Up to when whatever was due has been looked at.
    looked_at: Mono,
}

impl Storage {
    /// Takes in what happened; returns what is to be done.
    pub fn handle(&mut self, now: Mono, input: Input) -> Vec<Command> {
        let mut commands = Vec::new();
        let is_due = |state: &State| state.next_due(self.looked_at).is_some_and(|at| at <= now);
        let due = self.volumes.iter().filter(|(_, state)| is_due(state));
        let mut due: BTreeSet<VolumeId> = due.map(|(id, _)| id.clone()).collect();
        due.extend(self.take(now, input, &mut commands));
        self.looked_at = now;
        for id in due {
            self.advance(&id, now, &mut commands);
        }
        self.answer(&mut commands);
        commands.extend(self.report_in_use());
        commands
    }

    /// The pods that want or have volumes.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    /// What pods have whose claims may change while they run.
    pub fn resyncs(&self) -> Vec<Resync> {
        let of_pod = |(pod, ids): (&PodUid, &BTreeSet<VolumeId>)| {
            let of = |id: &VolumeId| self.volumes.get(id)?.of(pod).filter(|of| !of.is_released());
            let wanted = ids.iter().filter_map(of).filter_map(|of| of.wanted.as_deref());
            let wanted: Vec<&Wanted> = wanted.collect();
            let is_republished = wanted.iter().any(|wanted| wanted.is_republished);
            let grows = |volume: &&Volume| volume.size.is_some() && !volume.is_read_only;
            let volumes = wanted.iter().map(|wanted| &wanted.volume).filter(grows);
            let volumes: Vec<Volume> = volumes.cloned().collect();
            let is_due = is_republished || !volumes.is_empty();
            is_due.then(|| Resync { pod: pod.clone(), volumes })
        };
        self.pods.iter().filter_map(of_pod).collect()
    }

    /// When the next call that failed is to be made again.
    pub fn next_due(&self) -> Option<Mono> {
        self.volumes.values().filter_map(|state| state.next_due(self.looked_at)).min()
    }

    /// Takes an input in; returns the volumes that have to be looked at because of it.
    fn take(&mut self, now: Mono, input: Input, commands: &mut Vec<Command>) -> Vec<VolumeId> {
        match input {
            Input::Found { volumes, is_whole } => {
                self.find(volumes);
                self.is_partly_known = !is_whole;
                Vec::new()
            }
            Input::Recovered { pod, volumes } => {
                self.recover(&pod, volumes);
                Vec::new()
            }
            Input::SourcesReady => {
                self.sources_ready = true;
                self.volumes.keys().cloned().collect()
            }
            Input::Wanted { pod, volumes } => self.want(&pod, volumes),
            Input::Republish { pod } => self.each_of(&pod, |state| state.republish(&pod)),
            Input::Measured { pod, volumes } => {
                self.each_of(&pod, |state| state.measure(&pod, &volumes))
            }
            Input::Released { pod } => self.release(&pod),
            Input::Node(node) => self.read_node(node),
            Input::NodeListed(node) => self.read_listed(node),
            Input::InUseWritten { number, node } => {
                self.read_node(node);
                self.written = self.written.max(number);
                self.volumes.keys().cloned().collect()
            }
            Input::DriverReady(driver) => {
                let mut of_driver = Vec::new();
                for (id, state) in &mut self.volumes {
                    if state.driver() == driver {
                        state.forget_pauses();
                        of_driver.push(id.clone());
                    }
                }
                of_driver
            }
            Input::Done { volume, ticket, outcome } => {
                let Some(state) = self.volumes.get_mut(&volume) else { return Vec::new() };
                commands.extend(state.done(ticket, outcome, now));
                vec![volume]
            }
            Input::Tick => Vec::new(),
        }
    }

    /// Takes a Node in, unless a newer one is known; returns the volumes that it says something new of.
    // k8s: pkg/volume/util/operationexecutor GenerateVerifyControllerAttachedVolumeFunc: the Node is
    // read after its status names the volume as in use
    fn read_node(&mut self, node: NodeVolumes) -> Vec<VolumeId> {
        if node.version < self.node_version {
            return Vec::new();
        }
        let NodeVolumes { version, attached: names, in_use } = node;
        self.node_version = version;
        self.know_in_use(in_use);
        let before = std::mem::replace(&mut self.attached, names.clone());
        let moved = |name: &str| before.contains(name) != names.contains(name);
        let moved = self.volumes.iter().filter(|(id, state)| state.node_names(id).any(moved));
        moved.map(|(id, _)| id.clone()).collect()
    }

    /// Takes a Node of a list in, whatever its version. One that is older than a known Node, or does
    /// not name what was reported, means that etcd was restored: all is reported again, and no
    /// volume counts as attached before that is written. A list that was overtaken by a write looks
    /// the same, and costs one report.
    fn read_listed(&mut self, node: NodeVolumes) -> Vec<VolumeId> {
        let is_back = node.version < self.node_version;
        let is_lost = self
            .reported_by
            .iter()
            .any(|(name, first)| *first <= self.written && !node.in_use.contains(name));
        if self.report.is_some() && (is_back || is_lost) {
            self.node_version = node.version;
            self.reported_by.clear();
        }
        self.read_node(node)
    }

    fn want(&mut self, pod: &PodUid, volumes: Vec<Wanted>) -> Vec<VolumeId> {
        self.asking.insert(pod.clone());
        let ids: Vec<VolumeId> = volumes.iter().map(|wanted| wanted.id()).collect();
        for wanted in volumes {
            let id = wanted.id();
            self.pods.entry(pod.clone()).or_default().insert(id.clone());
            let state = self.volumes.entry(id.clone()).or_default();
            let is_attached = state.node_names(&id).any(|name| self.attached.contains(name));
            state.want(wanted, is_attached);
        }
        ids
    }

    /// Changes each volume of a pod; returns them.
    fn each_of(&mut self, pod: &PodUid, mut change: impl FnMut(&mut State)) -> Vec<VolumeId> {
        let ids: Vec<VolumeId> = self.pods.get(pod).into_iter().flatten().cloned().collect();
        for id in &ids {
            if let Some(state) = self.volumes.get_mut(id) {
                change(state);
            }
        }
        ids
    }

    fn release(&mut self, pod: &PodUid) -> Vec<VolumeId> {
        self.asking.insert(pod.clone());
        self.each_of(pod, |state| state.release(pod))
    }

    /// Makes the next call for a volume, unless one is under way or nothing is to be done.
    fn advance(&mut self, id: &VolumeId, now: Mono, commands: &mut Vec<Command>) {
        let is_attached = |name| self.attached.contains(name) && self.is_reported_in_use(name);
        let state = self.volumes.get(id);
        let node = next::Node {
            is_attached: state.is_some_and(|state| state.node_names(id).all(is_attached)),
            sources_ready: self.sources_ready,
        };
        let Some(state) = self.volumes.get_mut(id) else { return };
        for pod in state.drop_gone() {
            if let Some(ids) = self.pods.get_mut(&pod) {
                ids.remove(id);
            }
        }
        state.mark_mounted();
        let next = state.next(node, now);
        commands.extend(next.refused);
        if let Some(call) = next.call {
            self.tickets += 1;
            let ticket = self.tickets;
            state.begin(ticket, call.clone());
            commands.push(Command::Call { volume: id.clone(), ticket, call });
        } else if state.is_nothing() {
            self.volumes.remove(id);
        }
    }

    /// Ends waits.
    fn answer(&mut self, commands: &mut Vec<Command>) {
        let mut told = Vec::new();
        for pod in &self.asking {
            let ids = self.pods.get(pod).into_iter().flatten();
            let uses = ids.filter_map(|id| {
                let state = self.volumes.get(id)?;
                Some((state, state.of(pod)?))
            });
            let uses: Vec<_> = uses.collect();
            let is_released = uses.iter().all(|(_, of)| of.is_released());
            if uses.is_empty() {
                told.push((pod.clone(), Answer::Gone));
            } else if !is_released && uses.iter().all(|(state, of)| state.is_ready(of)) {
                told.push((pod.clone(), Answer::Ready));
            }
        }
        for (pod, answer) in told {
            self.asking.remove(&pod);
            if answer == Answer::Gone {
                self.pods.remove(&pod);
            }
            commands.push(Command::Answer { pod, answer });
        }
    }

    /// Names of attached volumes that must not be detached.
    // k8s: pkg/kubelet/volumemanager/volume_manager.go GetVolumesInUse
    fn in_use(&self) -> BTreeSet<String> {
        let attachable = self.volumes.iter().filter(|(_, state)| state.is_attachable);
        let names = attachable.flat_map(|(id, state)| state.node_names(id).map(str::to_owned));
        names.chain(self.kept_in_use.iter().cloned()).collect()
    }

    /// The next report, if it differs from the last one.
    fn report_in_use(&mut self) -> Option<Command> {
        let names = self.in_use();
        let is_reported =
            |name: &String| self.reported_by.contains_key(name) || self.kept_in_use.contains(name);
        let last = self.report.as_ref()?;
        // The first report is written whatever the Node said: it may have been read a while ago.
        if last.number > 0 && last.names == names && names.iter().all(is_reported) {
            return None;
        }
        let number = last.number + 1;
        self.reported_by.retain(|name, _| names.contains(name));
        for name in &names {
            self.reported_by.entry(name.clone()).or_insert(number);
        }
        let report = InUse { number, names };
        self.report = Some(report.clone());
        Some(Command::ReportInUse(report))
    }

    /// True once the Node's status names the volume because of this use of it.
    fn is_reported_in_use(&self, name: &str) -> bool {
        self.reported_by.get(name).is_some_and(|first| *first <= self.written)
    }

    /// A found volume that the Node names as in use is attachable, and its use is reported.
    fn know_in_use(&mut self, names: BTreeSet<String>) {
        if self.report.is_some() {
            return;
        }
        for (id, state) in &mut self.volumes {
            // What came since may have been taken off by a write that was on its way.
            let is_found = state.uses.values().all(|of| of.is_found);
            if is_found && state.take_node_names(id, &names) {
                state.is_attachable = true;
                let named = state.node_names(id).map(|name| (name.to_owned(), 0));
                self.reported_by.extend(named);
            }
        }
        if self.is_partly_known {
            self.kept_in_use.clone_from(&names);
        }
        self.report = Some(InUse { number: 0, names });
    }
}

#[cfg(test)]
mod tests;
