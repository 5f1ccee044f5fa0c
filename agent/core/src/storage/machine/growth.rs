//! Expansion of a volume: whether it is due, and what is known after each try.
//!
//! A volume is expanded once for the node, whatever number of pods has it, when its PersistentVolume
//! is larger than what the node last knew of the claim. A pod that is about to start waits for it; a
//! pod that runs goes on. An expansion that the claim does not allow yet is looked at again when the
//! claim was read again; one that the driver refuses for a volume in use is not tried again.
// k8s: pkg/kubelet/volumemanager/cache/actual_state_of_world.go volumeNeedsExpansion,
// MarkForInUseExpansionError; populator checkVolumeFSResize

use serde::{Deserialize, Serialize};

use super::volume::{Certainty, State, Use};
use super::{BACKOFF, Call, Command, Failure, Problem, Wanted};
use crate::storage::csi::Volume;
use crate::storage::expansion::{failed_at_start, failed_in_use, read_only_notice};
use crate::sync::backoff::Pause;
use pintle_api_types::ids::{Mono, PodUid};

/// How large a volume is, and what stands in the way of its expansion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Growth {
    /// Bytes that it has on this node; 0 before the claim was read.
    has: u64,
    /// Bytes of its PersistentVolume.
    wants: u64,
    /// The claim did not allow it when it was read last.
    is_later: bool,
    /// The driver does not expand it while it is in use.
    is_refused: bool,
    /// A driver's refusal was final: if the claim asks for another size now, the next one makes the
    /// expansion infeasible.
    had_final_error: bool,
    pub(super) pause: Option<Pause>,
    pub(super) failure: Option<String>,
}

impl Growth {
    /// Takes the sizes of a claim that was just read.
    // k8s: actual_state_of_world.go InitializeClaimSize, UpdatePersistentVolumeSize
    pub(super) fn measure(&mut self, volume: &Volume) {
        let Some(size) = volume.size.as_ref().filter(|_| !volume.is_read_only) else { return };
        self.wants = size.volume_bytes();
        self.is_later = false;
        if self.has == 0 {
            self.has = size.claimed_bytes;
        }
    }

    /// True when the volume has to grow, now or after a pause.
    pub(super) fn is_due(&self) -> bool {
        self.has > 0 && self.wants > self.has && !self.is_later && !self.is_refused
    }

    fn done(&mut self, outcome: Result<u64, &Failure>, now: Mono) {
        let pause = self.pause.take();
        self.failure = None;
        match outcome {
            Ok(bytes) => {
                self.has = bytes.max(self.has);
                self.had_final_error = false;
            }
            Err(failure) => match failure.problem {
                Problem::Later => self.is_later = true,
                Problem::InUse => self.is_refused = true,
                Problem::Final | Problem::Uncertain | Problem::NotAsked => {
                    self.had_final_error |= failure.problem == Problem::Final;
                    self.pause = Some(Pause::after(pause, BACKOFF, now));
                }
            },
        }
    }
}

impl State {
    /// True when the pod may start, or runs: it has the volume, and in its full size at its start.
    pub(super) fn is_ready(&self, of: &Use) -> bool {
        let is_held_back = self.growth.is_due() && !of.is_mounted && !of.is_reader();
        of.wanted.is_some() && of.published == Certainty::Yes && !is_held_back
    }

    /// Remembers which pods may run: a later expansion holds them back no more.
    pub(super) fn mark_mounted(&mut self) {
        let is_due = self.growth.is_due();
        for of in self.uses.values_mut() {
            let has = of.wanted.is_some() && of.published == Certainty::Yes;
            of.is_mounted = has && (of.is_mounted || of.is_reader() || !is_due);
        }
    }

    /// The call that expands the volume, for a pod that waits for it if there is one.
    pub(super) fn expand(&self, now: Mono) -> Option<Call> {
        let waits = self.growth.pause.is_some_and(|pause| pause.until > now);
        if waits || !self.growth.is_due() {
            return None;
        }
        let has = |of: &&Use| !of.is_released && of.published == Certainty::Yes && !of.is_reader();
        let of = self.uses.values().filter(has).min_by_key(|of| of.is_mounted)?;
        let (wanted, had_final_error) = (of.wanted.clone()?, self.growth.had_final_error);
        Some(Call::Expand { wanted, had_final_error })
    }

    /// An expansion ended.
    // k8s: operation_generator.go GenerateExpandInUseVolumeFunc, GenerateMountVolumeFunc
    pub(super) fn expanded(
        &mut self,
        wanted: &Wanted,
        outcome: Result<(), Failure>,
        now: Mono,
    ) -> Vec<Command> {
        let bytes = wanted.volume.size.as_ref().map_or(0, |size| size.volume_bytes());
        self.growth.done(outcome.as_ref().map(|()| bytes), now);
        let Err(failure) = outcome else { return Vec::new() };
        if matches!(failure.problem, Problem::Later | Problem::InUse) {
            return Vec::new();
        }
        let is_running = self.uses.get(&wanted.pod).is_some_and(|of| of.is_mounted);
        let (name, why) = (&wanted.volume.name, &failure.text);
        let text = match is_running {
            true => failed_in_use(name, why),
            false => failed_at_start(name, wanted.volume.is_block, why),
        };
        self.growth.failure = Some(text.clone());
        vec![Command::Failed { pod: wanted.pod.clone(), text }]
    }

    /// Takes the volume's new size, if it is among those of a pod that were read again.
    pub(super) fn measure(&mut self, pod: &PodUid, volumes: &[Volume]) {
        let Some(of) = self.uses.get_mut(pod).filter(|of| !of.is_released) else { return };
        let Some(wanted) = &mut of.wanted else { return };
        let id = wanted.volume.id(pod);
        if let Some(volume) = volumes.iter().find(|volume| volume.id(pod) == id) {
            wanted.volume.size.clone_from(&volume.size);
            self.growth.measure(&wanted.volume);
        }
    }
}

impl Use {
    /// True for a pod that never writes: it does not wait for an expansion, and none is made for it.
    pub(super) fn is_reader(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.volume.is_read_only)
    }

    /// The event of a pod that has a volume read-only while it is to grow.
    pub(super) fn read_only_notice(&self) -> Option<String> {
        let wanted = self.wanted.as_ref().filter(|wanted| wanted.volume.is_read_only)?;
        read_only_notice(&wanted.volume.name, wanted.volume.size.as_ref()?)
    }
}
