//! One call to a driver, with what goes before and after it: folders, records, secrets, ownership.
//!
//! Input: a `Call`. Output: its outcome, which says what is known of the volume now. The order is the
//! kubelet's, so that either agent finds what the other left: folder and record, call, and after a
//! failure that is final the folder is removed, never after one that leaves the outcome open.
// k8s: pkg/volume/csi/csi_attacher.go MountDevice, UnmountDevice; csi_mounter.go SetUpAt, TearDownAt

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::storage::csi::{Lifecycle, SecretKey, Volume, attachment_name};
use pintle_agent_core::storage::disk;
use pintle_agent_core::storage::driver::DriverSpec;
use pintle_agent_core::storage::record::Record;
use pintle_agent_core::storage::request::{self, Extras};
use pintle_agent_core::storage::{Call, Failure, Known, Outcome, Problem, Wanted};
use pintle_agent_core::types::PodUid;
use pintle_agent_host::csi;
use pintle_agent_host::volume::ownership;
use pintle_agent_metrics::OfDriver;
use pintle_agent_plugins::error::{ErrorSide, code_name};
use pintle_agent_plugins::{CallError, Code, RegisteredDriver};
use pintle_api_types::pod;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;

use super::{READY_MAX, Shared};

/// Policy of a pod that has files given to its group only where the root is not yet the group's.
const ON_ROOT_MISMATCH: &str = "OnRootMismatch";

impl Shared {
    pub(super) async fn call(&self, call: &Call) -> Outcome {
        if disk::is_plugin(call.driver()) {
            return self.disk_call(call).await;
        }
        match call {
            Call::Stage { wanted, again } => self.stage(wanted, *again).await,
            Call::Publish { wanted, again } => self.publish(wanted, *again).await,
            Call::Expand { wanted, had_final_error } => self.expand(wanted, *had_final_error).await,
            Call::Unpublish { pod, known } => self.unpublish(pod, known).await,
            Call::Unstage(known) => self.unstage(known).await,
        }
    }

    /// The driver, or what the kubelet says without it where `step` is the call.
    // k8s: pkg/volume/csi/csi_client.go newCsiDriverClient
    fn driver(&self, name: &str, step: &str) -> Result<Arc<RegisteredDriver>, Failure> {
        self.parts.drivers.find(name).ok_or_else(|| {
            not_asked(format!(
                "kubernetes.io/csi: {step}: driver name {name} not found in the list of registered \
                 CSI drivers"
            ))
        })
    }

    async fn stage(&self, wanted: &Wanted, again: bool) -> Outcome {
        let volume = &wanted.volume;
        let spec = self.driver_spec(&volume.driver).await?;
        let publish_context = self.attached(wanted, &spec).await?;
        let driver = self.driver(
            &volume.driver,
            match volume.is_block {
                true => "blockMapper.SetUpDevice failed to get CSI client",
                false => "attacher.MountDevice failed to create newCsiDriverClient",
            },
        )?;
        if !driver.capabilities.stages {
            return Ok(());
        }
        let mut extras = extras(&driver);
        extras.publish_context = publish_context;
        extras.secrets = self.secrets(wanted, volume.secrets.stage.as_ref()).await?;
        let staging = self.staging(&Known::of(wanted));
        let (folder, record) = match volume.is_block {
            true => {
                let record = Record::of_device(volume, &self.parts.node_name);
                (self.dirs.device_data(&volume.name), record)
            }
            false => {
                let record = Record::of_staging(volume).labelled(wanted.selinux_label.as_deref());
                (self.dirs.global(&volume.driver, &volume.handle), record)
            }
        };
        let (text, target, at) = (record.text(), staging.clone(), folder.clone());
        // Something that hangs may be mounted there already: it holds up its driver alone.
        self.disk(JobPlace::remote(&volume.driver).within(READY_MAX), move || {
            csi::write_record(&at, &text)?;
            csi::make_target(&target)
        })
        .await?;
        let sent = request::stage(wanted, &staging, extras);
        let called =
            self.timed(of_driver(volume), "NodeStageVolume", driver.node.stage(&sent)).await;
        match called {
            Ok(()) => Ok(()),
            Err(error) if error.is_final() && !again && !volume.is_block => {
                self.clean_up(&wanted.pod, folder, staging).await;
                Err(failure(&error))
            }
            Err(error) => Err(failure(&error)),
        }
    }

    async fn publish(&self, wanted: &Wanted, again: bool) -> Outcome {
        let volume = &wanted.volume;
        let driver = self.driver(
            &volume.driver,
            match volume.is_block {
                true => "blockMapper.MapPodDevice failed to get CSI client",
                false => "mounter.SetUpAt failed to get CSI client",
            },
        )?;
        let spec = self.driver_spec(&volume.driver).await?;
        if let Some(refusal) = spec.refusal(&volume.driver, volume.lifecycle) {
            let text = format!(
                "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {refusal}"
            );
            return Err(not_asked(text));
        }
        let mut extras = extras(&driver);
        let mut told = BTreeMap::new();
        if volume.lifecycle == Lifecycle::Persistent {
            extras.publish_context = self.attached(wanted, &spec).await?;
        }
        extras.secrets = self.secrets(wanted, volume.secrets.publish.as_ref()).await?;
        let pod = self.pods.borrow().get(&wanted.pod).cloned();
        let pod = pod.ok_or_else(|| not_asked("the pod is gone"))?;
        if spec.has_pod_info {
            told.extend(request::pod_info(&pod, volume.lifecycle));
        }
        if !spec.tokens.is_empty() && !volume.is_block {
            let tokens = self.parts.objects.driver_tokens(&wanted.pod, &pod, &spec.tokens).await;
            let tokens = tokens.map_err(not_asked)?;
            let to = if spec.are_tokens_secret { &mut extras.secrets } else { &mut told };
            to.insert(request::TOKENS_KEY.to_owned(), tokens);
        }
        let (folder, target) = self.prepare_target(wanted).await?;
        let mounts_for_group = extras.mounts_for_group;
        let staging = self.staging(&Known::of(wanted));
        let stages = driver.capabilities.stages && volume.lifecycle == Lifecycle::Persistent;
        let staging = (stages || volume.is_block).then_some(staging);
        let sent = request::publish(wanted, staging.as_deref(), &target, told, extras);
        let called =
            self.timed(of_driver(volume), "NodePublishVolume", driver.node.publish(&sent)).await;
        if let Err(error) = called {
            if error.is_final() && !again && !volume.is_block {
                self.clean_up(&wanted.pod, folder, target).await;
            }
            return Err(failure(&error));
        }
        if volume.is_block {
            return self.map_device(wanted, target).await;
        }
        if let Some(group) = wanted.fs_group
            && !mounts_for_group
            && volume.is_given_to_group(spec.group_policy)
        {
            self.give_to_group(&pod, wanted, target, group).await?;
        }
        Ok(())
    }

    async fn unpublish(&self, pod: &PodUid, known: &Known) -> Outcome {
        let driver = self.driver(
            &known.driver,
            match known.is_block {
                true => "blockMapper.UnmapPodDevice failed to get CSI client",
                false => "Unmounter.TearDownAt failed to get CSI client",
            },
        )?;
        let target = self.target(pod, known);
        if known.is_block {
            self.unmap_device(pod, known).await?;
        }
        let sent = request::unpublish(known, &target);
        let called = driver.node.unpublish(&sent);
        let called = self.timed(OfDriver::own(&driver.name), "NodeUnpublishVolume", called).await;
        if let Err(error) = called {
            if !is_gone_with_its_pod(known, &error) {
                return Err(failure(&error));
            }
            let folder = self.dirs.volume(pod, &known.name);
            let removed = self.removed(JobPlace::removal(pod), folder, target).await;
            return removed.map_err(|_| failure(&error));
        }
        if known.is_block {
            // The record and the folders stay until the device is unstaged.
            let removed = self.disk(JobPlace::removal(pod), move || csi::remove_target(&target));
            return removed.await;
        }
        let folder = self.dirs.volume(pod, &known.name);
        self.removed(JobPlace::removal(pod), folder, target).await
    }

    async fn unstage(&self, known: &Known) -> Outcome {
        let driver = self
            .driver(&known.driver, "attacher.UnmountDevice failed to create newCsiDriverClient")?;
        let staging = self.staging(known);
        let folder = match known.is_block {
            true => self.dirs.device_data(&known.name),
            false => self.dirs.global(&known.driver, &known.handle),
        };
        let place = JobPlace::remote(&known.driver).within(READY_MAX);
        let at = staging.clone();
        let is_there = self.disk(place.clone(), move || Ok::<_, String>(at.exists())).await?;
        if driver.capabilities.stages && is_there {
            let sent = request::unstage(known, &staging);
            let called = driver.node.unstage(&sent);
            let called = self.timed(OfDriver::own(&driver.name), "NodeUnstageVolume", called).await;
            called.map_err(|error| failure(&error))?;
        }
        self.removed(place.clone(), folder, staging).await?;
        match known.is_block {
            true => self.remove_device_folders(known).await,
            false => Ok(()),
        }
    }

    pub(super) async fn timed<T>(
        &self,
        of: OfDriver<'_>,
        method: &'static str,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let begun = tokio::time::Instant::now();
        let called = call.await;
        let code = called.as_ref().map_or_else(|error| code_name(error.code), |_| "OK");
        self.parts.metrics.driver_called(of, method, code, begun.elapsed());
        called
    }

    async fn driver_spec(&self, driver: &str) -> Result<DriverSpec, Failure> {
        self.parts.objects.driver_spec(driver).await.map_err(not_asked)
    }

    /// What the attacher said once the volume is attached; empty for drivers without attachment.
    // k8s: pkg/volume/csi/csi_attacher.go WaitForAttach, verifyAttachmentStatus
    async fn attached(
        &self,
        wanted: &Wanted,
        spec: &DriverSpec,
    ) -> Result<BTreeMap<String, String>, Failure> {
        if !spec.is_attach_required {
            return Ok(BTreeMap::new());
        }
        let volume = &wanted.volume;
        let name = attachment_name(&volume.handle, &volume.driver, &self.parts.node_name);
        let read = self.parts.objects.attachment(&wanted.pod, &name).await;
        let handle = &volume.handle;
        let attachment = read.map_err(|why| {
            unattached(format!("volume {handle} has GET error for volume attachment {name}: {why}"))
        })?;
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err(unattached("volume attachment is being deleted".to_owned()));
        }
        let status = attachment.status.unwrap_or_default();
        if !status.attached {
            let told = status.attach_error.and_then(|error| error.message);
            return Err(unattached(told.unwrap_or_else(|| {
                format!("volume {handle} is not attached for volume attachment {name}")
            })));
        }
        Ok(status.attachment_metadata.unwrap_or_default())
    }

    pub(super) async fn secrets(
        &self,
        wanted: &Wanted,
        key: Option<&SecretKey>,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let Some(key) = key else { return Ok(BTreeMap::new()) };
        let read = self.parts.objects.driver_secret(&wanted.pod, key).await;
        read.map_err(|why| {
            not_asked(format!("fetching secret {}/{} failed: {why}", key.namespace, key.name))
        })
    }

    /// Where a volume is staged.
    pub(super) fn staging(&self, known: &Known) -> PathBuf {
        match known.is_block {
            true => self.dirs.device_staging(&known.name),
            false => self.dirs.staging(&known.driver, &known.handle),
        }
    }

    /// Where a volume is published to a pod.
    pub(super) fn target(&self, pod: &PodUid, known: &Known) -> PathBuf {
        match known.is_block {
            true => self.dirs.device_target(pod, &known.name),
            false => self.dirs.target(pod, &known.name),
        }
    }

    /// Makes what is there before the driver publishes; returns the folder of the record, and the
    /// target.
    async fn prepare_target(&self, wanted: &Wanted) -> Result<(PathBuf, PathBuf), Failure> {
        let volume = &wanted.volume;
        let target = self.target(&wanted.pod, &Known::of(wanted));
        let (folder, record) = match volume.is_block {
            true => {
                let record = Record::of_device(volume, &self.parts.node_name);
                (self.dirs.device_data(&volume.name), record)
            }
            false => {
                let record = Record::of_pod(volume, &self.parts.node_name)
                    .labelled(wanted.selinux_label.as_deref());
                (self.dirs.volume(&wanted.pod, &volume.name), record)
            }
        };
        let (at, text) = (folder.clone(), record.text());
        let parent = target.parent().map(Path::to_owned).unwrap_or_default();
        self.disk(JobPlace::change(&wanted.pod), move || {
            csi::write_record(&at, &text)?;
            csi::make_target(&parent)
        })
        .await?;
        Ok((folder, target))
    }

    /// A walk may take long: it holds up its pod alone.
    async fn give_to_group(
        &self,
        pod: &Pod,
        wanted: &Wanted,
        target: PathBuf,
        group: u32,
    ) -> Outcome {
        let security = pod::spec(pod).security_context.as_ref();
        let policy = security.and_then(|security| security.fs_group_change_policy.as_deref());
        let only_if_needed = policy == Some(ON_ROOT_MISMATCH);
        let is_read_only = wanted.volume.is_read_only;
        let given = blocking::run(JobPlace::ownership(&wanted.pod), move || {
            match only_if_needed && ownership::is_given(&target, group, is_read_only) {
                true => Ok(()),
                false => ownership::give_to_group(&target, group, is_read_only),
            }
        });
        let given = given.await.map_err(|blocked| blocked.to_string());
        let given = given.and_then(|given| given.map_err(|failure| failure.to_string()));
        given.map_err(|why| {
            let handle = &wanted.volume.handle;
            uncertain(format!("applyFSGroup failed for vol {handle}: {why}"))
        })
    }

    /// After a refusal: what cannot be removed now goes with the pod.
    async fn clean_up(&self, pod: &PodUid, folder: PathBuf, target: PathBuf) {
        if let Err(failure) = self.removed(JobPlace::change(pod), folder, target).await {
            tracing::debug!(%pod, why = failure.text, "a folder of a volume stays for now");
        }
    }

    async fn removed(&self, place: JobPlace, folder: PathBuf, target: PathBuf) -> Outcome {
        self.disk(place, move || csi::remove_volume(&folder, &target)).await
    }

    /// Runs a job on the disk; what fails is no word of the driver's.
    pub(super) async fn disk<T: Send + 'static, E: Display + Send + 'static>(
        &self,
        place: JobPlace,
        job: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, Failure> {
        match blocking::run(place, job).await {
            Ok(done) => done.map_err(not_asked),
            Err(blocked) => Err(not_asked(blocked)),
        }
    }
}

/// Returns whether an earlier call has taken away an inline volume, which drivers delete with its
/// publication. The kubelet repeats the call for ever. The id is the agent's own, so it is correct.
// k8s: pkg/volume/csi/csi_mounter.go TearDownAt
fn is_gone_with_its_pod(known: &Known, error: &CallError) -> bool {
    let is_unknown = error.code == Code::NotFound && error.origin == ErrorSide::Plugin;
    known.lifecycle == Lifecycle::Ephemeral && is_unknown
}

/// The driver of a volume, as metrics name it. Calls that take a volume away are of no migrated one.
// k8s: pkg/volume/csi/csi_util.go createCSIOperationContext
pub(super) fn of_driver(volume: &Volume) -> OfDriver<'_> {
    OfDriver { driver: &volume.driver, is_migrated: volume.is_migrated }
}

pub(super) fn extras(driver: &RegisteredDriver) -> Extras {
    Extras {
        tells_writers: driver.capabilities.tells_writers,
        mounts_for_group: driver.capabilities.mounts_for_group,
        ..Extras::default()
    }
}

pub(super) fn not_asked(reason: impl Display) -> Failure {
    Failure { problem: Problem::NotAsked, is_of_attachment: false, text: reason.to_string() }
}

fn unattached(text: String) -> Failure {
    Failure { is_of_attachment: true, ..not_asked(text) }
}

pub(super) fn uncertain(text: String) -> Failure {
    Failure { problem: Problem::Uncertain, is_of_attachment: false, text }
}

fn failure(error: &CallError) -> Failure {
    let problem = if error.is_final() { Problem::Final } else { Problem::Uncertain };
    Failure { problem, is_of_attachment: false, text: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_inline_volume_reported_not_found_by_its_driver_counts_as_removed() {
        let known = |lifecycle| Known {
            driver: "d".to_owned(),
            handle: "h".to_owned(),
            name: "data".to_owned(),
            lifecycle,
            is_block: false,
            is_migrated: false,
            selinux_label: None,
        };
        let error = |code, origin| CallError {
            method: "NodeUnpublishVolume",
            code,
            message: String::new(),
            origin,
        };
        for (lifecycle, code, origin, expected) in [
            (Lifecycle::Ephemeral, Code::NotFound, ErrorSide::Plugin, true),
            (Lifecycle::Ephemeral, Code::NotFound, ErrorSide::Agent, false),
            (Lifecycle::Ephemeral, Code::Internal, ErrorSide::Plugin, false),
            (Lifecycle::Persistent, Code::NotFound, ErrorSide::Plugin, false),
        ] {
            let is_gone = is_gone_with_its_pod(&known(lifecycle), &error(code, origin));
            assert_eq!(is_gone, expected, "{lifecycle:?} {code:?} {origin:?}");
        }
    }
}
