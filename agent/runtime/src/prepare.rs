//! Makes cgroup, directories, claims and volumes of a pod ready, and keeps files in volumes up to
//! date.
//!
//! Effects of `Prepare` and `Refresh`, with the kubelet's events and reasons. `Prepare` is a list
//! of stages; an entry of the pod's timeline has their times. Idempotent.
// k8s: pkg/kubelet/kubelet.go SyncPod

use std::path::Path;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::objects::{RefusedVolume, ResolvedClaims};
use pintle_agent_core::storage::csi;
use pintle_agent_core::timeline::took;
use pintle_agent_core::types::with_causes;
use pintle_agent_core::volume::doubled::{self, Doubled};
use pintle_agent_core::volume::plan::PodVolume;
use pintle_agent_core::volume::{PodDirs, PodVolumes};
use pintle_agent_core::worker::{ATTACHMENT_LIMIT, Failure};
use pintle_agent_host::cgroup::Cgroups;
use pintle_agent_host::cgroup::tree::CgroupTree;
use pintle_agent_host::volume;
use pintle_agent_host::volume::project::UsageMeasure;
use pintle_agent_host::volume::{Cause, MountNotice, VolumeError};
use pintle_api_types::pod;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;

use crate::adopt::makes_sandbox;
use crate::execute::{Executor, SyncOrder};
use crate::storage::{self, LateNames, NotReady};

/// What is made ready, in this order; each ends before the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrepareStage {
    Cgroup,
    Directories,
    Claims,
    Volumes,
    PullSecrets,
}

impl PrepareStage {
    const ALL: [Self; 5] =
        [Self::Cgroup, Self::Directories, Self::Claims, Self::Volumes, Self::PullSecrets];

    /// Its name in the timeline.
    fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Directories => "directories",
            Self::Claims => "claims",
            Self::Volumes => "volumes",
            Self::PullSecrets => "pull secrets",
        }
    }
}

/// The timeline's entry with the time of each stage.
const STAGES: &str = "PrepareStages";

impl Executor {
    /// Runs all stages. A stage that fails has emitted its event and ends it.
    pub(super) async fn prepare(&self, order: &SyncOrder, pod: &Pod) -> Result<(), Failure> {
        let (mut claims, mut times) = (ResolvedClaims::default(), Vec::new());
        for stage in PrepareStage::ALL {
            let begun = Instant::now();
            let done = match stage {
                PrepareStage::Cgroup => self.prepare_cgroup(order, pod).await,
                PrepareStage::Directories => self.prepare_directories(order).await,
                PrepareStage::Claims => {
                    // An unusable claim fails the next stage, after it has set up the others.
                    claims = self.objects.resolve_claims(&order.uid, pod).await;
                    Ok(())
                }
                PrepareStage::Volumes => self.prepare_volumes(order, pod, &claims).await,
                PrepareStage::PullSecrets => self.check_pull_secrets(order, pod).await,
            };
            let time = took(begun.elapsed());
            match done {
                Ok(()) => times.push(format!("{} {time}", stage.name())),
                Err(failure) => {
                    times.push(format!("{} failed after {time}", stage.name()));
                    self.recorder.stage(&order.uid, STAGES, None, &times.join(", "));
                    return Err(failure);
                }
            }
        }
        self.recorder.stage(&order.uid, STAGES, None, &times.join(", "));
        Ok(())
    }

    async fn prepare_directories(&self, order: &SyncOrder) -> Result<(), Failure> {
        let dirs = PodDirs::new(Path::new(&self.node.root_dir), &order.uid);
        let made = blocking::run(JobPlace::change(&order.uid), move || {
            volume::execute::make_pod_dirs(&dirs).map_err(|error| error.to_string())
        });
        let made = made.await.unwrap_or_else(|blocked| Err(blocked.to_string()));
        made.map_err(|error| {
            let text = format!("error making pod data directories: {error}");
            self.recorder.event(&order.uid, true, "Failed", &text, None);
            Failure::new("FailedToMakePodDataDirectories", text)
        })
    }

    /// Every volume is tried, also when the claim of another one cannot be used.
    // k8s: pkg/kubelet/volumemanager/volume_manager.go WaitForAttachAndMount
    async fn prepare_volumes(
        &self,
        order: &SyncOrder,
        pod: &Pod,
        claims: &ResolvedClaims,
    ) -> Result<(), Failure> {
        self.objects.register(&order.uid, pod);
        let content = self.objects.content(&order.uid, pod);
        let now = pintle_daemon::clock::now().to_timestamp();
        let (mut volumes, measure) = (self.volumes(pod), self.measure(pod));
        let mut failures = refused(&volumes, claims);
        let doubled = doubled::find(&volumes);
        failures.extend(doubled.iter().map(refused_double));
        let is_refused = |name: &str| {
            claims.refused.iter().any(|refused| refused.volume == name)
                || doubled.iter().any(|doubled| doubled.volume == name)
        };
        volumes.volumes.retain(|volume| !is_refused(&volume.name));
        match volume::execute::mount_all(&order.uid, &volumes, measure, &content, now).await {
            Ok(outdated) => drop(self.failed_mounts(order, &outdated)),
            Err(errors) => failures.extend(errors),
        }
        let (mounted, ready) = tokio::join!(
            volume::claimed::mount_claimed(&volumes),
            self.drivers_ready(order, &volumes)
        );
        for MountNotice { reason, is_warning, text } in &mounted.notices {
            self.recorder.event(&order.uid, *is_warning, reason, text, None);
        }
        if mounted.failures.is_empty() {
            failures.extend(self.volumes.expand_local(&order.uid, &volumes).await);
        }
        failures.extend(mounted.failures);
        failures.extend(unusable(claims));
        match failures.is_empty() {
            // Failed calls have emitted their events.
            true => ready,
            false => Err(self.failed_mounts(order, &failures)),
        }
    }

    /// Waits for the volumes of CSI drivers. The kubelet logs the sentence for those that are late,
    /// and emits it only where something else than the time ended its wait.
    async fn drivers_ready(&self, order: &SyncOrder, volumes: &PodVolumes) -> Result<(), Failure> {
        let Some(pod) = order.pod.as_ref() else { return Ok(()) };
        let staged = |volume: &PodVolume| volume.kind.staged().cloned();
        let wanted: Vec<csi::Volume> = volumes.volumes.iter().filter_map(staged).collect();
        let Err(late) = self.volumes.ready(&order.uid, pod, &wanted).await else { return Ok(()) };
        if let Some(text) = self.volumes.exhausted(&order.uid, &late, volumes).await {
            return Err(Failure::new(ATTACHMENT_LIMIT, text));
        }
        Err(self.failed_mounts(order, &[not_in_time(volumes, &late)]))
    }

    async fn check_pull_secrets(&self, order: &SyncOrder, pod: &Pod) -> Result<(), Failure> {
        if let Some(text) = self.objects.pull_secrets(&order.uid, pod).await.warning() {
            let reason = "FailedToRetrieveImagePullSecret";
            self.recorder.event(&order.uid, true, reason, &text, None);
        }
        Ok(())
    }

    /// By projects only where no user of the pod can give a file to another one, which needs the
    /// node's own user namespace.
    // k8s: pkg/volume/emptydir/empty_dir.go assignQuota
    fn measure(&self, pod: &Pod) -> UsageMeasure {
        match self.settings.project_quotas && pod::spec(pod).host_users == Some(false) {
            true => UsageMeasure::Project,
            false => UsageMeasure::Walk,
        }
    }

    /// Files of volumes whose content may have changed.
    pub(super) async fn refresh(&self, order: &SyncOrder, pod: &Pod) -> Result<(), Failure> {
        self.objects.register(&order.uid, pod);
        let content = self.objects.content(&order.uid, pod);
        let now = pintle_daemon::clock::now().to_timestamp();
        let volumes = self.volumes(pod);
        let refreshed = volume::execute::refresh(&order.uid, &volumes, &content, now).await;
        refreshed.map_err(|errors| self.failed_mounts(order, &errors))
    }

    fn failed_mounts(&self, order: &SyncOrder, errors: &[VolumeError]) -> Failure {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        for (error, text) in errors.iter().zip(&texts) {
            self.recorder.event(&order.uid, true, error.reason(), text, None);
        }
        Failure::new("FailedMount", texts.join("; "))
    }

    /// The usual cgroup is made when something is going to be in it, and whichever has the pod's
    /// containers is followed.
    async fn prepare_cgroup(&self, order: &SyncOrder, pod: &Pod) -> Result<(), Failure> {
        self.log_differences(order, pod);
        if makes_sandbox(order) {
            // Whatever ran there was stopped right before; what cannot go now goes with the pod.
            if let Err(failure) = self.remove_elsewhere(order).await {
                tracing::warn!(pod = %order.uid, "a cgroup of before stays: {}", failure.message);
            }
        }
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        let elsewhere = self.elsewhere(order, pod).await;
        let stays = elsewhere.is_some() && self.stays_together(order, pod);
        if !stays {
            self.make_cgroup(order, pod, cgroups).await?;
        }
        let (path, dir) = match elsewhere {
            Some((path, dir)) => (path, Some(dir)),
            None => (self.usual_cgroup(pod), cgroups.dir(&self.cgroup_name(pod), "memory")),
        };
        if let Some(dir) = dir {
            self.tracker.track(&order.uid, &dir).await;
            self.follow_running(order, pod, &path).await;
        }
        Ok(())
    }

    async fn make_cgroup(
        &self,
        order: &SyncOrder,
        pod: &Pod,
        cgroups: &Cgroups,
    ) -> Result<(), Failure> {
        let name = self.cgroup_name(pod);
        let limits = self.cgroup_limits(pod);
        let exists = cgroups.on_disk(&name, CgroupTree::exists).await;
        if !exists.is_ok_and(|exists| exists) {
            self.count_in_class(&order.uid, Some(pod)).await;
            let begun = std::time::Instant::now();
            let created = cgroups.create_pod(&name, &limits).await;
            self.metrics.cgroup("create", begun.elapsed());
            created.map_err(|error| {
                let error = with_causes(&error);
                let text = format!("unable to ensure pod container exists: {error}");
                self.recorder.event(&order.uid, true, "FailedCreatePodContainer", &text, None);
                Failure::new("FailedCreatePodContainer", text)
            })?;
        }
        Ok(())
    }
}

/// Volumes that are refused for this node or because another pod has them.
fn refused(volumes: &PodVolumes, claims: &ResolvedClaims) -> Vec<VolumeError> {
    let refuse = |RefusedVolume { volume, step, why }: &RefusedVolume| {
        let planned = volumes.volumes.iter().find(|planned| planned.name == *volume);
        let volume = planned.map_or(volume.as_str(), |planned| planned.disk_name()).to_owned();
        VolumeError::Step { step, volume, cause: Cause::Text(why.clone()) }
    };
    claims.refused.iter().map(refuse).collect()
}

/// A volume of a driver that the pod has already, under another name.
fn refused_double(doubled: &Doubled) -> VolumeError {
    let (step, volume) = ("MountVolume.SetUp", doubled.disk_name.clone());
    VolumeError::Step { step, volume, cause: Cause::Text(doubled.why.clone()) }
}

/// The claims that cannot be used, in one sentence.
// k8s: pkg/kubelet/volumemanager/volume_manager.go WaitForAttachAndMount
fn unusable(claims: &ResolvedClaims) -> Option<VolumeError> {
    let mut names: Vec<&str> = claims.unusable.iter().map(|claim| &*claim.volume).collect();
    names.sort_unstable();
    let names = names.join(" ");
    let why: Vec<&str> = claims.unusable.iter().map(|claim| &*claim.why).collect();
    let why = why.join("; ");
    (!why.is_empty()).then(|| VolumeError::unresolved(names, why))
}

/// Volumes of drivers that a pod does not have in time, in one sentence: those that are not
/// published, those among them that are not attached, and what each waits for.
// k8s: pkg/kubelet/volumemanager/volume_manager.go WaitForAttachAndMount
fn not_in_time(volumes: &PodVolumes, late: &NotReady) -> VolumeError {
    let why = match late.waiting.is_empty() {
        false => format!("{late}: {}", storage::sentences(&late.waiting)),
        true => format!("{late}: the CSIDriver objects of its drivers cannot be read"),
    };
    let LateNames { unmounted, unattached } = late.names(volumes);
    VolumeError::NotMounted { names: unmounted, unattached, unresolved: String::new(), why }
}

#[cfg(test)]
mod tests {
    use pintle_agent_cluster::objects::UnusableClaim;
    use pintle_agent_core::storage::csi::VolumeId;
    use pintle_agent_core::storage::{Step, Waiting};
    use pintle_agent_core::types::NodeFacts;
    use pintle_agent_core::volume::claim::Claims;
    use serde_json::json;

    use super::*;

    #[test]
    fn unusable_claims_are_joined_into_one_failed_mount_message() {
        assert_eq!(unusable(&ResolvedClaims::default()), None);
        let claim = |volume: &str, why: &str| UnusableClaim {
            volume: volume.to_owned(),
            why: why.to_owned(),
        };
        let claims = ResolvedClaims {
            unusable: vec![claim("b", "no b"), claim("a", "no a")],
            ..ResolvedClaims::default()
        };
        let error = unusable(&claims).expect("an error");
        assert_eq!(error.reason(), "FailedMount");
        let want = "Unable to attach or mount volumes: unmounted volumes=[a b], unattached \
                    volumes=[], failed to process volumes=[a b]: no b; no a";
        assert_eq!(error.to_string(), want);
    }
    /// A pod with two volumes of drivers and one of its own.
    fn planned() -> PodVolumes {
        let volumes = json!([
            {"name": "one", "awsElasticBlockStore": {"volumeID": "vol-1"}},
            {"name": "two", "cinder": {"volumeID": "vol-2"}},
            {"name": "own", "emptyDir": {}},
        ]);
        let mounts: Vec<_> = ["one", "two", "own"]
            .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
            .into();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        PodVolumes::plan(Path::new("/r"), &NodeFacts::default(), &pod, &Claims::default())
    }

    #[test]
    fn mount_timeout_names_late_volumes_and_their_pending_steps() {
        let waiting = |driver: &str, handle: &str, step: Step| Waiting {
            id: VolumeId::shared(driver, handle),
            name: format!("{driver}-{handle}"),
            driver: driver.to_owned(),
            is_attached: step != Step::Attach,
            step,
        };
        let cinder = "cinder.csi.openstack.org";
        let attach = waiting("ebs.csi.aws.com", "vol-1", Step::Attach);
        let called = waiting(cinder, "vol-2", Step::Call("NodeStageVolume"));
        let table = [
            (vec![], "[one two]", "[]", "the CSIDriver objects of its drivers cannot be read"),
            (
                vec![called.clone()],
                "[two]",
                "[]",
                "NodeStageVolume of driver cinder.csi.openstack.org is under way for volume \
                 cinder.csi.openstack.org-vol-2",
            ),
            (
                vec![attach, called],
                "[one two]",
                "[one]",
                "volume ebs.csi.aws.com-vol-1 has to be attached to this node by the attach-detach \
                 controller and the attacher of driver ebs.csi.aws.com; NodeStageVolume of driver \
                 cinder.csi.openstack.org is under way for volume cinder.csi.openstack.org-vol-2",
            ),
        ];
        for (waiting, unmounted, unattached, why) in table {
            let error = not_in_time(&planned(), &NotReady { waiting });
            assert_eq!(error.reason(), "FailedMount");
            let want = format!(
                "Unable to attach or mount volumes: unmounted volumes={unmounted}, unattached \
                 volumes={unattached}, failed to process volumes=[]: context deadline exceeded: {why}"
            );
            assert_eq!(error.to_string(), want);
        }
    }
}
