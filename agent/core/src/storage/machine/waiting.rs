//! Why a pod does not have its volumes yet: for `explain`, and for the error of a sync that waited.
//!
//! Pure, from the state. One entry for each volume that is not as the pod wants it.

use super::volume::{Certainty, State, Use};
use super::{Call, Storage};
use crate::storage::csi::VolumeId;
use pintle_api_types::ids::{Mono, PodUid};

/// What a volume waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The Node's status has to name it as in use first.
    Report,
    /// The attach-detach controller has to attach it.
    Attach,
    /// A call to the driver is under way: its name.
    Call(&'static str),
    /// The call of this volume for another pod has to end first.
    Other(&'static str),
    /// The last call failed; the next one is made then.
    Pause {
        /// When.
        until: Mono,
        /// The message of its event.
        failure: String,
    },
    /// Other pods have it.
    Holders(Vec<PodUid>),
}

/// A volume that is not as the pod wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The volume.
    pub id: VolumeId,
    /// Name on the disk.
    pub name: String,
    /// The driver.
    pub driver: String,
    /// The volume is attached, as far as it has to be.
    pub is_attached: bool,
    /// What it waits for.
    pub step: Step,
}

impl Storage {
    /// What the pod waits for.
    pub fn waiting(&self, pod: &PodUid) -> Vec<Waiting> {
        let ids = self.pods.get(pod).into_iter().flatten();
        let open = ids.filter_map(|id| {
            let state = self.volumes.get(id)?;
            let of = state.of(pod)?;
            let is_done = !of.is_released && state.is_ready(of);
            (!is_done).then(|| self.waiting_for(id, state, of, pod))
        });
        open.collect()
    }

    fn waiting_for(&self, id: &VolumeId, state: &State, of: &Use, pod: &PodUid) -> Waiting {
        let has_to_attach = of.wanted.as_ref().is_some_and(|wanted| wanted.is_attached_first);
        let is_written = state.node_names(id).all(|name| self.is_reported_in_use(name));
        let is_named = state.node_names(id).all(|name| self.attached.contains(name));
        let is_attached = !has_to_attach || (is_written && is_named);
        let step = match state.step(of, pod) {
            Some(step) => step,
            None if !has_to_attach || is_attached => {
                Step::Holders(state.holders().filter(|holder| *holder != pod).cloned().collect())
            }
            None if !is_written => Step::Report,
            None => Step::Attach,
        };
        let driver = of.known.driver.clone();
        Waiting { id: id.clone(), name: of.known.name.clone(), driver, is_attached, step }
    }
}

impl State {
    fn step(&self, of: &Use, pod: &PodUid) -> Option<Step> {
        if let Some(running) = &self.running {
            let (name, whose) = named(&running.call);
            let is_own = whose.is_none_or(|whose| whose == pod);
            return Some(if is_own { Step::Call(name) } else { Step::Other(name) });
        }
        let stages = !of.is_released && self.staged != Certainty::Yes;
        let of_stage = self.pause.zip(self.failure.clone()).filter(|_| stages);
        let of_growth = self.growth.pause.zip(self.growth.failure.clone());
        let of_growth = of_growth.filter(|_| !of.is_released && self.growth.is_due());
        let own = of.pause.zip(of.failure.clone());
        let (pause, failure) = own.or(of_stage).or(of_growth)?;
        Some(Step::Pause { until: pause.until, failure })
    }
}

fn named(call: &Call) -> (&'static str, Option<&PodUid>) {
    match call {
        Call::Stage { .. } => ("NodeStageVolume", None),
        Call::Publish { wanted, .. } => ("NodePublishVolume", Some(&wanted.pod)),
        Call::Expand { wanted, .. } => ("NodeExpandVolume", Some(&wanted.pod)),
        Call::Unpublish { pod, .. } => ("NodeUnpublishVolume", Some(pod)),
        Call::Unstage(_) => ("NodeUnstageVolume", None),
    }
}
