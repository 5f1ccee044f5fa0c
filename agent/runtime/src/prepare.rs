//! Makes cgroup, directories and volumes of a pod ready, and keeps files in volumes up to date.
//!
//! Effects of `Prepare` and `Refresh`, with the kubelet's events and reasons. Idempotent.
// k8s: pkg/kubelet/kubelet.go SyncPod

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::types::with_causes;
use pintle_agent_core::volume::PodDirs;
use pintle_agent_core::worker::Failure;
use pintle_agent_host::cgroup::Cgroups;
use pintle_agent_host::cgroup::tree::Tree;
use pintle_agent_host::volume;
use pintle_agent_host::volume::project::Measure;
use pintle_api_types::pod;
use pintle_daemon::blocking;
use pintle_daemon::blocking::Place;

use crate::adopt::makes_sandbox;
use crate::execute::{Executor, SyncOrder};

impl Executor {
    /// Cgroup, directories, volumes.
    pub(super) async fn prepare(&self, order: &SyncOrder, pod: &Pod) -> Result<(), Failure> {
        self.prepare_cgroup(order, pod).await?;
        let dirs = PodDirs::new(Path::new(&self.node.root_dir), &order.uid);
        let made = blocking::run(Place::change(&order.uid), move || {
            volume::execute::make_pod_dirs(&dirs).map_err(|error| error.to_string())
        });
        let made = made.await.unwrap_or_else(|blocked| Err(blocked.to_string()));
        made.map_err(|error| {
            let text = format!("error making pod data directories: {error}");
            self.recorder.event(&order.uid, true, "Failed", &text, None);
            Failure::new("FailedToMakePodDataDirectories", text)
        })?;
        self.objects.register(&order.uid, pod);
        let content = self.objects.content(&order.uid, pod);
        let now = pintle_daemon::clock::now().to_timestamp();
        let (volumes, measure) = (self.volumes(pod), self.measure(pod));
        match volume::execute::mount_all(&order.uid, &volumes, measure, &content, now).await {
            Ok(outdated) => drop(self.failed_mounts(order, &outdated)),
            Err(errors) => return Err(self.failed_mounts(order, &errors)),
        }
        if let Some(text) = self.objects.pull_secrets(&order.uid, pod).await.warning() {
            let reason = "FailedToRetrieveImagePullSecret";
            self.recorder.event(&order.uid, true, reason, &text, None);
        }
        Ok(())
    }

    /// By projects only where no user of the pod can give a file to another one, which needs the
    /// node's own user namespace.
    // k8s: pkg/volume/emptydir/empty_dir.go assignQuota
    fn measure(&self, pod: &Pod) -> Measure {
        match self.project_quotas && pod::spec(pod).host_users == Some(false) {
            true => Measure::Project,
            false => Measure::Walk,
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

    fn failed_mounts(&self, order: &SyncOrder, errors: &[volume::VolumeError]) -> Failure {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        for (error, text) in errors.iter().zip(&texts) {
            self.recorder.event(&order.uid, true, error.reason(), text, None);
        }
        Failure::new("FailedMount", texts.join("; "))
    }

    /// The usual cgroup is made when something is going to be in it, and whichever has the pod's
    /// containers is followed.
    async fn prepare_cgroup(&self, order: &SyncOrder, pod: &Pod) -> Result<(), Failure> {
        self.tell_differences(order, pod);
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
        let exists = cgroups.on_disk(&name, Tree::exists).await;
        if !exists.is_ok_and(|exists| exists) {
            self.count_burstable(&order.uid, Some(pod)).await;
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
