//! One step of a network disk: attach and mount, show to a pod, take away, detach.
//!
//! Input: a `Call` of the state machine for a volume of the plugins iscsi and fc. Output: its outcome.
//! What fails while a disk is attached leaves it uncertain, because some of its paths may be there:
//! it is detached once no pod wants it. Secrets are read for the call and kept nowhere.
// k8s: pkg/volume/iscsi/attacher.go, pkg/volume/fc/attacher.go

use pintle_agent_core::storage::{Call, Failure, Known, Outcome, Problem, Wanted};
use pintle_agent_core::types::PodUid;
use pintle_agent_host::volume::Cause;
use pintle_agent_host::volume::san::{GroupChange, GroupPolicy, StageError};
use pintle_api_types::pod;

use super::Shared;
use super::calls::uncertain;

impl Shared {
    pub(super) async fn disk_call(&self, call: &Call) -> Outcome {
        match call {
            Call::Stage { wanted, .. } => self.stage_disk(wanted).await,
            Call::Publish { wanted, .. } => self.publish_disk(wanted).await,
            // No plugin of disks can be expanded.
            Call::Expand { .. } => Ok(()),
            Call::Unpublish { pod, known } => self.unpublish_disk(pod, known).await,
            Call::Unstage(known) => {
                let done = self.san.unstage(&self.parts.root, known).await;
                done.map_err(|why| open(&why))
            }
        }
    }

    async fn stage_disk(&self, wanted: &Wanted) -> Outcome {
        let volume = &wanted.volume;
        let secret = self.secrets(wanted, volume.secrets.stage.as_ref()).await?;
        let staged = self.san.stage(&self.parts.root, volume, &secret).await;
        staged.map_err(|error| Failure {
            problem: Problem::Uncertain,
            is_of_attachment: matches!(error, StageError::Attach(_)),
            text: error.to_string(),
        })
    }

    async fn publish_disk(&self, wanted: &Wanted) -> Outcome {
        let pod = self.pods.borrow().get(&wanted.pod).cloned();
        let policy = pod.map_or(GroupPolicy::Always, |pod| {
            let security = pod::spec(&pod).security_context.as_ref();
            let policy = security.and_then(|of| of.fs_group_change_policy.as_deref());
            GroupPolicy::parse(policy)
        });
        let group = wanted.fs_group.map(|group| GroupChange { group, policy });
        let (root, pod) = (&self.parts.root, &wanted.pod);
        let published = self.san.publish(root, pod, &wanted.volume, group).await;
        published.map_err(|why| open(&why))
    }

    async fn unpublish_disk(&self, pod: &PodUid, known: &Known) -> Outcome {
        let done = self.san.unpublish(&self.parts.root, pod, known).await;
        done.map_err(|why| open(&why))
    }
}

fn open(why: &Cause) -> Failure {
    uncertain(why.to_string())
}
