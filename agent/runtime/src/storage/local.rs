//! Expansion of local volumes, which are in no state machine: `volume::claimed` sets them up.
//!
//! Input: the local volumes of a pod that were just set up; the claims of pods that run, which are
//! read again from time to time. Output: a file system as large as its disk, and the claim's status,
//! as for volumes of drivers. A pod that starts waits for it; a failure while it runs is an event,
//! and the expansion is tried again when the claim is read the next time. Bounds: an entry for each
//! local volume of a pod.
// k8s: pkg/volume/local/local.go NodeExpand; operation_generator.go expandVolumeDuringMount

use pintle_agent_core::storage::csi::ClaimSize;
use pintle_agent_core::storage::expansion::{
    Refusal, RefusalKind, failed_in_use, read_only_notice,
};
use pintle_agent_core::storage::{Outcome, Problem};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::PodVolumes;
use pintle_agent_core::volume::kind::{LOCAL, Local, VolumeKind};
use pintle_agent_core::volume::plan::PodVolume;
use pintle_agent_host::volume::{Cause, VolumeError, expand_local};
use pintle_agent_metrics::OfDriver;
use tokio::time::timeout;

use super::expand::Growing;
use super::{EXPANSION, READY_MAX, Shared, Volumes, reason};

/// A local volume of a pod.
#[derive(Clone, Debug)]
pub(super) struct LocalVolume {
    /// Name of the PersistentVolume.
    name: String,
    local: Local,
    /// As the claim was read last.
    size: ClaimSize,
    /// Bytes that it has on this node.
    has: u64,
    /// The last refusal was final.
    had_final_error: bool,
    /// An expansion is under way.
    is_growing: bool,
}

impl LocalVolume {
    /// Those of a pod that it may write to.
    fn of(volumes: &PodVolumes) -> Vec<Self> {
        let of = |volume: &PodVolume| {
            let VolumeKind::Local(local) = &volume.kind else { return None };
            let size = local.size.clone()?;
            let (name, has) = (volume.disk_name().to_owned(), size.claimed_bytes);
            let local = local.clone();
            Some(Self { name, local, size, has, had_final_error: false, is_growing: false })
        };
        volumes.volumes.iter().filter_map(of).collect()
    }

    /// Takes over what an earlier attempt of its pod has found.
    fn remember(&mut self, before: &[Self]) {
        let own = before.iter().find(|before| before.name == self.name);
        self.had_final_error = own.is_some_and(|own| own.had_final_error);
    }

    fn is_due(&self) -> bool {
        self.size.volume_bytes() > self.has
    }
}

impl Volumes {
    /// Expands the local volumes of a pod that are smaller than their PersistentVolumes; returns
    /// those that could not be expanded.
    pub async fn expand_local(&self, uid: &PodUid, volumes: &PodVolumes) -> Vec<VolumeError> {
        let mut locals = LocalVolume::of(volumes);
        if locals.is_empty() {
            return Vec::new();
        }
        if let Some(before) = self.0.locals.borrow().get(uid) {
            locals.iter_mut().for_each(|volume| volume.remember(before));
        }
        let mut failures = Vec::new();
        for volume in locals.iter_mut().filter(|volume| volume.is_due()) {
            if volume.local.read_only {
                if let Some(text) = read_only_notice(&volume.name, &volume.size) {
                    self.0.parts.recorder.event(uid, true, reason(&text), &text, None);
                }
                continue;
            }
            if let Some(why) = self.0.expand_local(uid, volume).await {
                let (name, is_block) = (volume.name.clone(), volume.local.is_block);
                let cause = Cause::Text(why);
                failures.push(VolumeError::Expansion { volume: name, is_block, cause });
            }
        }
        locals.retain(|volume| !volume.local.read_only);
        self.0.locals.borrow_mut().insert(uid.clone(), locals);
        failures
    }

    /// Reads the claims of pods that run again, and begins to expand what has grown: a disk that hangs
    /// holds up nothing else.
    pub(super) async fn measure_locals(&self) {
        let all = self.0.locals.borrow().clone();
        let all =
            all.into_iter().flat_map(|(pod, own)| own.into_iter().map(move |v| (pod.clone(), v)));
        for (pod, mut volume) in all.filter(|(_, volume)| !volume.is_growing) {
            match self.0.parts.objects.sizes(&pod, &volume.name, &volume.size).await {
                Ok(Some(size)) => volume.size = size,
                Ok(None) => continue,
                Err(why) => {
                    tracing::debug!(%pod, volume = volume.name, %why, "a claim cannot be read again");
                    continue;
                }
            }
            if !volume.is_due() {
                continue;
            }
            let volumes = self.clone();
            self.0.keep_local(&pod, LocalVolume { is_growing: true, ..volume.clone() });
            tokio::task::spawn_local(async move {
                if let Some(why) = volumes.0.expand_local(&pod, &mut volume).await {
                    let text = failed_in_use(&volume.name, &why);
                    volumes.0.parts.recorder.event(&pod, true, reason(&text), &text, None);
                }
                volumes.0.keep_local(&pod, volume);
            });
        }
    }
}

impl Shared {
    /// Keeps what is known of a volume now, unless its pod has gone meanwhile.
    fn keep_local(&self, pod: &PodUid, volume: LocalVolume) {
        let mut locals = self.locals.borrow_mut();
        let mut own = locals.get_mut(pod).into_iter().flatten();
        if let Some(own) = own.find(|own| own.name == volume.name) {
            *own = volume;
        }
    }

    /// Expands the volume now, if its claim allows that; returns why it failed.
    async fn expand_local(&self, pod: &PodUid, volume: &mut LocalVolume) -> Option<String> {
        let work = self.expand_local_by_claim(pod, volume);
        let failure = self.operate(OfDriver::own(LOCAL.name), EXPANSION, work).await.err()?;
        if matches!(failure.problem, Problem::Later | Problem::InUse) {
            return None;
        }
        volume.had_final_error |= failure.problem == Problem::Final;
        Some(failure.text)
    }

    async fn expand_local_by_claim(&self, pod: &PodUid, volume: &mut LocalVolume) -> Outcome {
        let LocalVolume { name, local, size, had_final_error, .. } = &*volume;
        let growing = Growing { pod, name, size, had_final_error: *had_final_error };
        let call = async |order: &_| {
            self.note_expansion(pod, name, order, LOCAL.name);
            let done = timeout(READY_MAX, expand_local(pod, &self.parts.root, name, local)).await;
            let done = done.unwrap_or_else(|late| Err(Cause::Text(late.to_string())));
            done.map_err(|why| Refusal { kind: RefusalKind::Failed, text: why.to_string() })
        };
        self.expand_by(growing, call).await?;
        volume.has = volume.size.volume_bytes();
        Ok(())
    }
}
