//! The next call for a volume: what goes comes before what is wanted.
//!
//! Pure: the volume's state, what the node says, and the time. At most one call comes out.
// k8s: pkg/kubelet/volumemanager/reconciler/reconciler.go

use super::volume::{Certainty, Known, State, Use, failed};
use super::{BACKOFF, Call, Command, Wanted};
use crate::storage::csi::{AccessMode, VolumeId};
use crate::sync::backoff::Pause;
use pintle_api_types::ids::{Mono, PodUid};

/// Why a second pod does not get a volume that is for one.
// k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMountVolumeFunc
pub const USED_BY_ANOTHER_POD: &str =
    "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// What the node says of the volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Its object says that the volume is attached, and names it as in use.
    pub(super) is_attached: bool,
    /// Every source of pods has reported.
    pub(super) sources_ready: bool,
}

/// What is to be done for a volume.
#[derive(Debug, Default)]
pub(super) struct Next {
    pub(super) call: Option<Call>,
    /// Events of pods that do not get it.
    pub(super) refused: Vec<Command>,
}

impl State {
    pub(super) fn next(&mut self, node: Node, now: Mono) -> Next {
        if self.running.is_some() {
            return Next::default();
        }
        if let Some(call) = self.unpublish(now) {
            return Next { call: Some(call), ..Next::default() };
        }
        if self.uses.is_empty() {
            let call = self.unstage(node, now);
            return Next { call, ..Next::default() };
        }
        let mut refused = self.refuse_second_pods(now);
        refused.extend(self.refuse_other_labels(now));
        Next { call: self.bring_up(node, now), refused }
    }

    /// It has to be unstaged before this pod gets it.
    fn is_staged_with_other_label(&self, wanted: &Wanted) -> bool {
        let is_other = |known: &Known| known.selinux_label != wanted.selinux_label;
        let is_held = self.uses.values().any(|of| of.published != Certainty::No);
        !is_held && self.staged != Certainty::No && self.known.as_ref().is_some_and(is_other)
    }

    fn unpublish(&self, now: Mono) -> Option<Call> {
        let goes = |of: &Use| of.is_released && of.published != Certainty::No && !of.waits(now);
        let (pod, of) = self.uses.iter().find(|(_, of)| goes(of))?;
        Some(Call::Unpublish { pod: pod.clone(), known: of.known.clone() })
    }

    fn unstage(&self, node: Node, now: Mono) -> Option<Call> {
        let known = self.known.as_ref()?;
        let waits = self.pause.is_some_and(|pause| pause.until > now);
        let goes = self.staged != Certainty::No && node.sources_ready && !waits;
        goes.then(|| Call::Unstage(known.clone()))
    }

    /// A volume of one pod is not published to a second one.
    fn refuse_second_pods(&mut self, now: Mono) -> Vec<Command> {
        let has = |of: &Use| of.published != Certainty::No;
        let Some(holder) = self.uses.iter().find(|(_, of)| has(of)).map(|(pod, _)| pod.clone())
        else {
            return Vec::new();
        };
        let mut told = Vec::new();
        for (pod, of) in &mut self.uses {
            let is_second = *pod != holder && of.published == Certainty::No && !of.is_released;
            if !is_second || of.waits(now) || !of.wanted.as_deref().is_some_and(is_of_one_pod) {
                continue;
            }
            of.pause = Some(Pause::after(of.pause, BACKOFF, now));
            let text = failed("MountVolume.SetUp", &of.known.name, USED_BY_ANOTHER_POD);
            of.failure = Some(text.clone());
            told.push(Command::Failed { pod: pod.clone(), text });
        }
        told
    }

    /// A volume that is mounted with a label is not published with another one.
    // k8s: pkg/kubelet/volumemanager/cache/actual_state_of_world.go PodExistsInVolume
    fn refuse_other_labels(&mut self, now: Mono) -> Vec<Command> {
        let mut holders = self.uses.values().filter(|of| of.published != Certainty::No);
        let Some(label) = holders.next().map(|of| of.known.selinux_label.clone()) else {
            return Vec::new();
        };
        let mut told = Vec::new();
        for (pod, of) in &mut self.uses {
            let is_waiting = of.published == Certainty::No && !of.is_released && !of.waits(now);
            let is_other = of.wanted.as_ref().is_some_and(|wanted| wanted.selinux_label != label);
            if is_waiting && is_other {
                of.pause = Some(Pause::after(of.pause, BACKOFF, now));
                let id = VolumeId::shared(&of.known.driver, &of.known.handle);
                let why = format!(
                    "waiting for unmount of volume {:?}, because it is already mounted to a \
                     different pod with a different SELinux label",
                    id.as_str()
                );
                let text = failed("MountVolume.SetUp", &of.known.name, &why);
                of.failure = Some(text.clone());
                told.push(Command::Failed { pod: pod.clone(), text });
            }
        }
        told
    }

    fn bring_up(&self, node: Node, now: Mono) -> Option<Call> {
        let wanting = self.uses.values().filter(|of| !of.is_released);
        let wanting = wanting.filter_map(|of| Some((of, of.wanted.as_ref()?)));
        let mut open = wanting.filter(|(of, wanted)| {
            let is_done = of.published == Certainty::Yes && !of.is_due_again;
            !is_done && !of.waits(now) && (node.is_attached || !wanted.is_attached_first)
        });
        let Some((of, wanted)) = open.next() else { return self.expand(now) };
        let is_shared =
            matches!(wanted.volume.lifecycle, crate::storage::csi::Lifecycle::Persistent);
        if is_shared && self.is_staged_with_other_label(wanted) {
            return self.unstage(node, now);
        }
        if is_shared && self.staged != Certainty::Yes {
            let waits = self.pause.is_some_and(|pause| pause.until > now);
            let again = self.staged == Certainty::Uncertain;
            return (!waits).then(|| Call::Stage { wanted: wanted.clone(), again });
        }
        let again = of.published != Certainty::No;
        Some(Call::Publish { wanted: wanted.clone(), again })
    }
}

// k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMountVolumeFunc
fn is_of_one_pod(wanted: &Wanted) -> bool {
    wanted.volume.access_modes == [AccessMode::ReadWriteOncePod]
}

impl State {
    /// The pods that have the volume.
    pub(super) fn holders(&self) -> impl Iterator<Item = &PodUid> {
        self.uses.iter().filter(|(_, of)| of.published != Certainty::No).map(|(pod, _)| pod)
    }
}
