//! Takes a pod away: dead containers, volumes, cgroup, sandboxes, logs, directories.
//!
//! Effects of `RemoveContainer`, `Teardown` and `Cleanup`. All of it is idempotent; the worker
//! retries a failure. Data in a volume that is still mounted is never touched, and a running
//! container is never removed: `Teardown` comes after the last container has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pintle_agent_core::cgroup::classes::ClassShare;
use pintle_agent_core::cgroup::formulas;
use pintle_agent_core::observed::{ObservedContainer, ObservedPod};
use pintle_agent_core::request;
use pintle_agent_core::request::paths;
use pintle_agent_core::types::{ContainerId, PodUid, with_causes};
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_agent_core::volume::PodDirs;
use pintle_agent_core::worker::Failure;
use pintle_agent_host::volume;
use pintle_cri::{Code, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;

use crate::execute::{Executor, SyncOrder};
use crate::logs::log_files;
use crate::storage;

/// A younger link may belong to a container that is not known yet.
const LINK_AGE_MIN: Duration = Duration::from_secs(60);
/// containerd's words for a container that still has a task.
const TASK_RUNS: &str = "cannot delete running task";

impl Executor {
    /// Removes a container, with its logs unless they are to be kept.
    pub(super) async fn remove_container(
        &self,
        observed: &ObservedPod,
        id: &ContainerId,
        keep_logs: bool,
    ) -> Result<(), Failure> {
        let container = observed.containers.iter().find(|c| c.id == *id);
        if let Some(container) = container.filter(|_| !keep_logs) {
            self.remove_log(observed, container).await?;
        }
        let request = v1::RemoveContainerRequest { container_id: id.as_str().to_owned() };
        if let Err(error) = ignore_missing(self.client.remove_container(request).await) {
            self.end_forgotten_task(id, &error).await;
            return Err(Failure::new("RemoveContainerError", error.to_string()));
        }
        self.images.container_removed();
        Ok(())
    }

    /// The log is removed before its container, because only the container's record has the path.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go removeContainer
    async fn remove_log(
        &self,
        observed: &ObservedPod,
        container: &ObservedContainer,
    ) -> Result<(), Failure> {
        let full = format!("{}_{}", observed.name, observed.namespace);
        let links = Path::new(paths::LOG_LINKS_DIR);
        let link = log_files::link_path(links, &full, &container.name, container.id.as_str());
        let log = PathBuf::from(&container.log_path);
        // The runtime repeats the path that it was given, by any client.
        if !log_files::is_below(&log, Path::new(&self.node.pod_logs_dir)) {
            tracing::warn!(container = %container.id, path = %log.display(),
                "a container's log lies elsewhere and is left there");
            return Ok(());
        }
        let place = JobPlace::removal(&observed.uid);
        let removed = blocking::run(place, move || log_files::remove_container_log(&log, &link));
        let failed = |text: String| Failure::new("RemoveContainerError", text);
        let removed = removed.await.map_err(|blocked| failed(blocked.to_string()))?;
        removed.map_err(|failure| failed(failure.to_string()))
    }

    /// Ends the task that keeps containerd from removing a container that CRI has reported as
    /// ended; the next try removes it.
    async fn end_forgotten_task(&self, id: &ContainerId, refusal: &pintle_cri::Error) {
        let Some((containerd, _)) = &self.containerd else { return };
        if refusal.code != Code::FailedPrecondition || !refusal.message.contains(TASK_RUNS) {
            return;
        }
        tracing::warn!(container = %id, "killing what the runtime still runs of an ended container");
        if let Err(error) = containerd.end_task(id.as_str()).await {
            tracing::warn!(container = %id, %error, "cannot kill it");
        }
    }

    /// Volumes and cgroup of a pod without running containers.
    pub(super) async fn tear_down(&self, order: &SyncOrder) -> Result<(), Failure> {
        let dirs = PodDirs::new(Path::new(&self.node.root_dir), &order.uid);
        let own = dirs.clone();
        let place = JobPlace::removal(&order.uid);
        let removed = blocking::run(place, move || volume::execute::remove_sub_paths(&own)).await;
        let removed = removed.map_err(|blocked| blocked.to_string());
        let removed = removed.and_then(|removed| removed.map_err(|error| error.to_string()));
        removed.map_err(|text| {
            self.unmount_event(order, &text);
            Failure::new("FailedUnmount", text)
        })?;
        self.recover_records(order, &dirs).await?;
        if let Err(late) = self.volumes.release(&order.uid).await {
            return Err(Failure::new("FailedUnmount", storage::sentences(&late.waiting)));
        }
        match volume::execute::unmount_remote(&order.uid, &dirs).await {
            Ok(given_up) => given_up.iter().for_each(|text| self.unmount_event(order, text)),
            Err(error) => return Err(Failure::new("FailedUnmount", error.to_string())),
        }
        let place = JobPlace::removal(&order.uid);
        match blocking::run(place, move || volume::execute::unmount_all(&dirs)).await {
            Ok(Ok(())) => {}
            Ok(Err(errors)) => {
                let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
                let texts = texts.join("; ");
                self.unmount_event(order, &texts);
                return Err(Failure::new("FailedUnmount", texts));
            }
            Err(error) => return Err(Failure::new("FailedUnmount", error.to_string())),
        }
        self.tracker.untrack(&order.uid).await;
        self.remove_cgroup(order).await?;
        self.count_in_class(&order.uid, None).await;
        self.images.forget(&order.uid);
        self.killer.forget(&order.uid);
        self.users.release(&order.uid).await;
        self.objects.forget(&order.uid);
        self.forget_differences(order);
        Ok(())
    }

    // k8s: pkg/kubelet/events/event.go FailedUnmountVolume
    fn unmount_event(&self, order: &SyncOrder, text: &str) {
        self.recorder.event(&order.uid, true, "FailedUnMount", text, None);
    }

    async fn remove_cgroup(&self, order: &SyncOrder) -> Result<(), Failure> {
        self.remove_elsewhere(order).await?;
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        let names = match order.pod.as_deref() {
            Some(pod) => vec![self.cgroup_name(pod)],
            // The class of an orphan is not known: its cgroup is in one of three places.
            None => self.cgroup_names(&order.uid),
        };
        for name in names {
            let begun = std::time::Instant::now();
            let removed = cgroups.remove_pod(&name).await;
            self.metrics.cgroup("destroy", begun.elapsed());
            removed.map_err(|error| Failure::new("FailedRemoveCgroup", with_causes(&error)))?;
        }
        Ok(())
    }

    /// Everything that is left of a pod that no source wants.
    pub(super) async fn clean_up(&self, order: &SyncOrder) -> Result<(), Failure> {
        let observed = &order.observed;
        let failed = |error: pintle_cri::Error| Failure::new("CleanupError", error.to_string());
        for container in &observed.containers {
            self.remove_container(observed, &container.id, false).await?;
        }
        for sandbox in &observed.sandboxes {
            self.killer.remove_sandbox(&sandbox.id).await.map_err(failed)?;
        }
        self.remove_folders(order).await
    }

    /// Frees the disk space of a pod with an end that cannot be recorded: all but its sandboxes and
    /// one container, which loses its log. The rest shows another agent that the pod has run, so
    /// that a pod that runs only once does not start again. `clean_up` retries a removal that fails
    /// here.
    pub async fn make_room(&self, order: &SyncOrder) {
        let observed = &order.observed;
        let witness = witness(observed);
        let mut outcome = Ok(());
        for container in &observed.containers {
            let removed = match witness == Some(&container.id) {
                true => self.remove_log(observed, container).await,
                false => self.remove_container(observed, &container.id, false).await,
            };
            outcome = outcome.and(removed);
        }
        if let Err(failure) = outcome.and(self.remove_folders(order).await) {
            let error = failure.message;
            tracing::warn!(pod = %order.uid, error, "cannot free what an evicted pod holds");
        }
    }

    /// Logs and directories.
    async fn remove_folders(&self, order: &SyncOrder) -> Result<(), Failure> {
        let observed = &order.observed;
        let (logs, uid) = (Path::new(&self.node.pod_logs_dir), &order.uid);
        let logs = log_files::pod_dir(logs, &observed.namespace, &observed.name, uid.as_str());
        let dirs = PodDirs::new(Path::new(&self.node.root_dir), uid);
        let remove = move || {
            log_files::remove_pod_dir(&logs, Path::new(paths::LOG_LINKS_DIR))
                .map_err(|failure| failure.to_string())?;
            volume::execute::remove_pod_dir(&dirs).map_err(|error| error.to_string())
        };
        let removed = blocking::run(JobPlace::removal(uid), remove).await;
        let removed = removed.unwrap_or_else(|blocked| Err(blocked.to_string()));
        removed.map_err(|text| Failure::new("CleanupError", text))
    }

    /// Removes cgroups of unknown pods.
    pub async fn sweep_cgroups(&self, is_known: impl Fn(&PodUid) -> bool) {
        use pintle_api_types::pod::qos::QosClass::{BestEffort, Burstable, Guaranteed};
        let Some(cgroups) = &self.cgroups else { return };
        let names = &self.node.cgroup;
        let classes =
            [Guaranteed, Burstable, BestEffort].map(|qos| self.below_root(&names.qos(qos)));
        cgroups
            .sweep(&classes, |leaf| names.uid_of_leaf(leaf), &self.foreign.strangers, is_known)
            .await;
    }

    /// Removes log folders of unknown pods: a crash between making the folder and making the
    /// sandbox leaves them. Folders made since then stay, because their pods may not be known yet.
    /// Returns those that could not be removed, with the reason.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_gc.go evictPodLogsDirectories
    pub fn sweep_logs(
        logs: &Path,
        is_kept: impl Fn(&PodUid) -> bool,
        kept_since: SystemTime,
    ) -> io::Result<Vec<(PodUid, String)>> {
        let mut kept = Vec::new();
        let entries = match std::fs::read_dir(logs) {
            // No pod has been here yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(kept),
            entries => entries?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_pods = name.split('_').count() == 3;
            let Some(uid) = PodUid::parse(log_files::uid_of_pod_dir(&name)) else { continue };
            let changed = entry.metadata().and_then(|meta| meta.modified());
            let is_old = changed.is_ok_and(|at| at < kept_since);
            if is_pods
                && is_old
                && !is_kept(&uid)
                && let Err(error) =
                    log_files::remove_pod_dir(&entry.path(), Path::new(paths::LOG_LINKS_DIR))
            {
                kept.push((uid, error.to_string()));
            }
        }
        Ok(kept)
    }

    /// Removes links to logs that are gone, unless one of these is being rotated just now. Links
    /// made shortly before that was known stay.
    pub fn sweep_log_links(logs: &Path, live: &BTreeSet<PathBuf>, known_since: SystemTime) {
        let before = known_since.checked_sub(LINK_AGE_MIN).unwrap_or(SystemTime::UNIX_EPOCH);
        log_files::remove_dangling(Path::new(paths::LOG_LINKS_DIR), logs, live, before);
    }

    /// Name of the pod's cgroup below the cgroup root.
    pub(super) fn cgroup_name(&self, pod: &k8s_openapi::api::core::v1::Pod) -> String {
        self.below_root(&self.usual_cgroup(pod))
    }

    /// The same from the top, as the runtime is given it.
    pub(super) fn usual_cgroup(&self, pod: &k8s_openapi::api::core::v1::Pod) -> String {
        let qos = pintle_api_types::pod::qos::class_of(pod);
        self.node.cgroup.pod(qos, &pintle_api_types::pod::uid(pod))
    }

    fn cgroup_names(&self, uid: &PodUid) -> Vec<String> {
        use pintle_api_types::pod::qos::QosClass::{BestEffort, Burstable, Guaranteed};
        let name = |qos| self.below_root(&self.node.cgroup.pod(qos, uid));
        [Guaranteed, Burstable, BestEffort].map(name).to_vec()
    }

    fn below_root(&self, path: &str) -> String {
        self.node.cgroup.below_root(path).to_owned()
    }

    /// Limits of the pod's cgroup.
    pub(super) fn cgroup_limits(
        &self,
        pod: &k8s_openapi::api::core::v1::Pod,
    ) -> pintle_agent_core::cgroup::CgroupLimits {
        formulas::pod_limits(&request::pod_amounts(pod), &self.node.limits)
    }

    /// Keeps the sums of the pods' requests by class, and the cgroups of the classes with them.
    pub(super) async fn count_in_class(
        &self,
        uid: &PodUid,
        pod: Option<&k8s_openapi::api::core::v1::Pod>,
    ) {
        let share = pod.and_then(|pod| self.class_share(pod));
        let changed = match share {
            Some(share) => {
                self.class_limits.shares.borrow_mut().insert(uid.clone(), share) != Some(share)
            }
            None => self.class_limits.shares.borrow_mut().remove(uid).is_some(),
        };
        if changed {
            self.write_classes().await;
        }
    }

    fn class_share(&self, pod: &k8s_openapi::api::core::v1::Pod) -> Option<ClassShare> {
        ClassShare::of(&request::pod_amounts(pod), &self.node.limits)
    }

    /// Counts all pods again, including those that ran before this agent.
    // k8s: pkg/kubelet/cm/qos_container_manager_linux.go UpdateCgroups
    pub async fn count_all(&self, snapshot: &Snapshot) {
        let ended =
            |view: &PodView| matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let counted = snapshot.pods.iter().filter(|(_, view)| !ended(view));
        let counted =
            counted.filter_map(|(uid, view)| Some((uid.clone(), self.class_share(&view.pod)?)));
        let counted = counted.collect();
        if self.class_limits.shares.replace_with(|_| BTreeMap::clone(&counted)) != counted {
            self.write_classes().await;
        }
    }

    /// One writer at a time, and each writes the sums as they are then: the last one is right.
    async fn write_classes(&self) {
        let Some(cgroups) = &self.cgroups else { return };
        let _turn = self.class_limits.turn.lock().await;
        let (millis, memory) = {
            let shares = self.class_limits.shares.borrow();
            (ClassShare::burstable_millis(shares.values()), ClassShare::memory(shares.values()))
        };
        if self.node.limits.memory_qos.is_some() {
            self.metrics.memory_protected(memory);
        }
        // Limits of all pods together are set once, at the start.
        let all = pintle_agent_core::cgroup::CgroupLimits::default();
        let limits = formulas::qos_limits(all, millis, memory, &self.node.limits);
        if let Err(error) = cgroups.ensure_qos(&limits).await {
            let error = with_causes(&error);
            tracing::warn!(error, "cannot update the QoS cgroups");
        }
    }
}

/// The container that was made first: with init containers it is one of them, which mostly hold little.
fn witness(observed: &ObservedPod) -> Option<&ContainerId> {
    let first = observed.containers.iter().min_by_key(|container| container.created_at);
    first.map(|container| &container.id)
}

fn ignore_missing<T>(result: Result<T, pintle_cri::Error>) -> Result<(), pintle_cri::Error> {
    match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pintle_agent_core::types::UnixNanos;

    use super::*;

    #[test]
    fn container_kept_until_the_end_of_its_pod_is_recorded_is_the_oldest() {
        let mut pod = ObservedPod::empty("u".into(), "ns", "p");
        assert_eq!(witness(&pod), None);
        let exited = pintle_agent_core::status::testing::exited;
        pod.containers = vec![exited("main", "2", 137), exited("init", "1", 0)];
        pod.containers[1].created_at = UnixNanos(1);
        assert_eq!(witness(&pod), Some(&"1".into()));
    }

    #[test]
    fn log_folders_of_unknown_pods_are_removed_and_no_other_folder() {
        let logs = tempfile::tempdir().expect("a folder");
        for name in ["ns_known_u1", "ns_gone_u2", "not-a-pods", "too_many_parts_u2"] {
            std::fs::create_dir_all(logs.path().join(name).join("c")).expect("made");
        }
        let keep = |uid: &PodUid| uid.as_str() == "u1";
        let names = || {
            let entries = std::fs::read_dir(logs.path()).expect("readable").flatten();
            entries.map(|e| e.file_name().into_string().expect("UTF-8")).collect::<BTreeSet<_>>()
        };
        Executor::sweep_logs(logs.path(), keep, SystemTime::UNIX_EPOCH).expect("readable");
        assert_eq!(names().len(), 4, "folders that are newer than the list stay");
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        Executor::sweep_logs(logs.path(), keep, later).expect("readable");
        Executor::sweep_logs(&logs.path().join("none"), keep, later).expect("nothing to do");
        let file = logs.path().join("file");
        std::fs::write(&file, "").expect("written");
        Executor::sweep_logs(&file, keep, later).expect_err("it is no folder");
        std::fs::remove_file(&file).expect("removed");
        let left = ["ns_known_u1", "not-a-pods", "too_many_parts_u2"].map(str::to_owned);
        assert_eq!(names(), BTreeSet::from(left));
    }
}
