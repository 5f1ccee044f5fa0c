//! Removes unused images: when their disk is too full, when they are too old, on request.
//!
//! Owner: one task, `Collector::run`. Input: the clock, and `GarbageRequest`s on a channel, each
//! with the place for its answer: `GarbageRequest::Images(answer)` removes every unused image that
//! is older than the minimum age and answers with a `Freed`, `GarbageRequest::Report(answer)`
//! answers with the decision about each image. Output: events about the node, metrics, the answer;
//! `steps`, so that a waiting caller sees progress, for its own request or an earlier one.
//!
//! Every `EVERY` the disk is read. The runtime is asked for images and containers only when the
//! disk is too full, a maximum age is set, a container was started or removed since, or the last
//! such call is `LOOK_AFTER` ago. When each image was first seen and last used is kept in a file,
//! so the order survives a restart of the agent. `holds` keeps images that are about to be used.
//!
//! Bounds: one removal at a time, each for `REMOVE_MAX`; `FILE_BYTES_MAX` read of the file;
//! `REQUESTS_MAX` requests wait.
// k8s: pkg/kubelet/images/image_gc_manager.go, pkg/kubelet/kubelet.go StartGarbageCollection

pub(crate) mod holds;
mod look;
mod past;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pintle_agent_core::eviction::observed::Freed;
use pintle_agent_core::garbage::images;
use pintle_agent_core::garbage::images::{ImageReport, ImageVerdict, Judged, Policy};
use pintle_agent_core::node::conditions::{NodeEvent, NodeEvents};
use pintle_agent_host::disk;
use pintle_agent_host::disk::FileSystem;
use pintle_agent_metrics::Metrics;
use pintle_cri::{Client, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::clock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use self::holds::Holds;
use self::look::RuntimeImage;
use self::past::ImageHistory;
use crate::execute::Executor;
use crate::image::puller;
use crate::image::puller::Puller;

/// How often the disk is checked.
// k8s: pkg/kubelet/kubelet.go ImageGCPeriod
const EVERY: Duration = Duration::from_secs(300);
/// How long the runtime is not called while nothing seems to change.
const LOOK_AFTER: Duration = Duration::from_secs(3600);
/// How long the removal of one image may take.
const REMOVE_MAX: Duration = Duration::from_secs(120);
/// How long the disk may take to answer; the runtime has as long as for any other call.
const READ_MAX: Duration = Duration::from_secs(30);
/// Requests that may wait.
pub const REQUESTS_MAX: usize = 4;

/// A request that is due now.
#[derive(Debug)]
pub enum GarbageRequest {
    /// Remove all unused images, however full the disk is.
    Images(oneshot::Sender<Freed>),
    /// Answer with the decision about each image.
    Report(oneshot::Sender<ImageReport>),
}

/// The channel to a collector, and its progress.
#[derive(Clone, Debug)]
pub struct CollectorRequests {
    /// The requests.
    pub queue: mpsc::Sender<GarbageRequest>,
    /// Changes with each answer of a look and each removed image.
    pub steps: watch::Receiver<u64>,
}

/// How often a collector came further.
#[derive(Debug, Default)]
struct Steps(watch::Sender<u64>);

impl Steps {
    fn one_more(&self) {
        self.0.send_modify(|steps| *steps = steps.wrapping_add(1));
    }
}

/// The reason for the removal of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Age,
    Space,
}

/// Removes images; one task has it.
pub struct Collector {
    client: Client,
    holds: Holds,
    puller: Rc<Puller>,
    metrics: Arc<Metrics>,
    node_events: NodeEvents,
    policy: Policy,
    past: ImageHistory,
    found: Vec<RuntimeImage>,
    looked_at: Option<Instant>,
    began: Instant,
    failed_before: bool,
    disk: fn(&Path) -> Option<FileSystem>,
    steps: Steps,
}

impl Collector {
    /// A collector of the images of this executor; its file is below `root`.
    pub fn new(of: &Executor, policy: Policy, root: &Path) -> Self {
        let (holds, puller) = of.images.for_collector();
        Self {
            client: of.client.clone(),
            holds,
            puller,
            metrics: Arc::clone(&of.metrics),
            node_events: Rc::clone(&of.node_events),
            policy,
            past: ImageHistory::new(root),
            found: Vec::new(),
            looked_at: None,
            began: Instant::now(),
            failed_before: false,
            disk: disk::file_system,
            steps: Steps::default(),
        }
    }

    /// Its step counter, for waiting callers.
    pub fn steps(&self) -> watch::Receiver<u64> {
        self.steps.0.subscribe()
    }

    /// Collects until the request channel closes.
    pub async fn run(mut self, mut requests: mpsc::Receiver<GarbageRequest>) {
        self.past.load().await;
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    let result = self.turn().await;
                    self.report_result(result);
                }
                request = requests.recv() => match request {
                    Some(GarbageRequest::Images(answer)) => {
                        // The caller may have given up; the room is freed all the same.
                        let _ = answer.send(self.free_unused_images().await);
                    }
                    Some(GarbageRequest::Report(answer)) => {
                        let _ = answer.send(self.report().await);
                    }
                    None => return,
                },
            }
        }
    }

    /// One failure may be chance: users hear of the second in a row.
    fn report_result(&mut self, result: Result<(), CollectError>) {
        let Err(error) = result else {
            self.failed_before = false;
            return;
        };
        tracing::error!(%error, "image garbage collection failed");
        if std::mem::replace(&mut self.failed_before, true) {
            self.warn("ImageGCFailed", error.to_string());
        }
    }

    fn warn(&self, reason: &'static str, message: String) {
        (self.node_events)(NodeEvent { warning: true, reason, message });
    }

    async fn turn(&mut self) -> Result<(), CollectError> {
        let by_age = !self.policy.max_age.is_zero();
        let full = match self.policy.is_on() {
            true => self.too_full().await,
            false => Ok(None),
        };
        // An image beyond its age limit is removed even if the disk cannot be read.
        let full = if by_age { full } else { Ok(full?) };
        let stale = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_AFTER);
        if matches!(full, Ok(None)) && !by_age && !stale && !self.holds.has_changed() {
            self.past.still(&self.found);
            return Ok(());
        }
        let looked = self.look().await;
        if !self.policy.is_on() {
            // The look is for reports and for the day garbage collection is switched on: nothing
            // has failed.
            return Ok(());
        }
        looked?;
        let judged = self.judge();
        let old: Vec<_> = of(&judged, ImageVerdict::TooOld).collect();
        if !old.is_empty() {
            let removed = self.remove(&old, u64::MAX, Reason::Age).await;
            removed.into_result(|_, errors| {
                let age = pintle_api_types::duration::GoDuration::from_std(self.policy.max_age);
                CollectError::Old { age: age.to_string(), errors }
            })?;
        }
        let full = if old.is_empty() { full? } else { self.too_full().await? };
        let Some(full) = full else { return Ok(()) };
        let spare: Vec<_> = of(&judged, ImageVerdict::Spare).collect();
        let removed = self.remove(&spare, full.to_free, Reason::Space).await;
        let wanted = full.to_free;
        let freed = removed.into_result(|freed, errors| CollectError::Removals {
            wanted,
            freed,
            errors,
        })?;
        if freed >= full.to_free {
            return Ok(());
        }
        let message = images::not_enough(full.capacity, full.available, freed);
        self.warn("FreeDiskSpaceFailed", message.clone());
        Err(CollectError::NotEnough(message))
    }

    /// Removes every unused image that is not too young.
    // k8s: pkg/kubelet/images/image_gc_manager.go DeleteUnusedImages
    async fn free_unused_images(&mut self) -> Freed {
        if let Err(error) = self.look().await {
            return Freed { error: Some(error.to_string()), ..Freed::default() };
        }
        let judged = self.judge();
        let unused = [ImageVerdict::TooOld, ImageVerdict::Spare];
        let spare: Vec<_> = judged.iter().filter(|j| unused.contains(&j.verdict)).collect();
        let removed = self.remove(&spare, u64::MAX, Reason::Space).await;
        let (bytes, images) = (removed.bytes, removed.images);
        let error = removed.into_result(|freed, errors| CollectError::Removals {
            wanted: i64::MAX.unsigned_abs(),
            freed,
            errors,
        });
        let error = error.err().map(|error| error.to_string());
        Freed { bytes, images, containers: 0, error }
    }

    fn judge(&self) -> Vec<Judged> {
        let images: Vec<_> = self.found.iter().map(|found| found.image.clone()).collect();
        let running = self.began.elapsed();
        images::judge(&images, self.past.uses(), &self.policy, clock::now(), running)
    }

    /// Reads images and their users from the runtime.
    async fn look(&mut self) -> Result<(), CollectError> {
        self.holds.look();
        // Until the end of this look no image is known to be seen.
        self.looked_at = None;
        let began = jiff::Timestamp::now();
        // An image in use until now is found unused only by this look.
        self.past.still(&self.found);
        self.found = look::look(&self.client, &self.steps).await?;
        self.past.see(&self.found).await;
        self.forget_removed(began).await;
        self.looked_at = Some(Instant::now());
        Ok(())
    }

    /// The decision about each image; from the last look when the runtime does not answer now.
    async fn report(&mut self) -> ImageReport {
        if let Err(error) = self.look().await {
            tracing::debug!(%error, "images cannot be listed: the last list is reported");
        }
        let disk = self.image_disk().await.ok();
        let judged = self.judge().into_iter().map(|judged| {
            let found = self.found.iter().find(|found| found.image.id == judged.id);
            (found.map_or_else(|| judged.id.clone(), |found| found.shown.clone()), judged)
        });
        ImageReport {
            used_percent: disk.map(|(of, left)| images::used_percent(of, left)),
            policy: self.policy,
            images: judged.collect(),
        }
    }

    /// Removes records of pulls of images that another client removed.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go PruneUnknownRecords
    async fn forget_removed(&self, listed: jiff::Timestamp) {
        let Some(records) = self.puller.records() else { return };
        let known = self.found.iter().map(|found| found.image.id.clone()).collect();
        let unknown = match records.unknown(known, listed).await {
            Ok(unknown) => unknown,
            Err(error) => {
                tracing::warn!(%error, "the records of pulled images cannot be read");
                return;
            }
        };
        for image in unknown {
            // A pull under way relies on its record.
            let Some(_removal) = self.holds.remove(vec![image.clone()]) else { continue };
            records.removed(&image, listed).await;
        }
    }

    /// How much is to be freed; `None` while the disk has room.
    async fn too_full(&self) -> Result<Option<Full>, CollectError> {
        let (capacity, available) = self.image_disk().await?;
        let to_free = images::bytes_to_free(&self.policy, capacity, available);
        Ok(to_free.map(|to_free| Full { capacity, available, to_free }))
    }

    /// Size of the images' disk, and the bytes left.
    async fn image_disk(&self) -> Result<(u64, u64), CollectError> {
        let told = self.client.image_fs_info(v1::ImageFsInfoRequest {}).await;
        let told = told.map_err(CollectError::Runtime)?;
        let first = told.image_filesystems.into_iter().next().and_then(|fs| fs.fs_id);
        let first = first.ok_or(CollectError::NoDisk)?;
        let (path, read) = (PathBuf::from(first.mountpoint), self.disk);
        let shown = path.display().to_string();
        let place = JobPlace::own("image disk").within(READ_MAX);
        let found = blocking::run(place, move || read(&path)).await?;
        let fs = found.ok_or(CollectError::Disk(shown))?;
        if fs.capacity_bytes == 0 {
            self.warn("InvalidDiskCapacity", CollectError::NoCapacity.to_string());
            return Err(CollectError::NoCapacity);
        }
        Ok((fs.capacity_bytes, fs.available_bytes))
    }

    /// Removes images one after the other until this much is free.
    async fn remove(&self, judged: &[&Judged], enough: u64, reason: Reason) -> Removed {
        let mut done = Removed::default();
        for image in judged {
            if done.bytes >= enough {
                break;
            }
            match self.remove_one(image, reason).await {
                Ok(true) => {
                    self.steps.one_more();
                    done.bytes = done.bytes.saturating_add(image.bytes);
                    done.images = done.images.saturating_add(1);
                }
                Ok(false) => tracing::debug!(image = image.id, "somebody needs it now: it stays"),
                Err(error) => done.errors.push(error.to_string()),
            }
        }
        done
    }

    async fn remove_one(&self, image: &Judged, reason: Reason) -> Result<bool, CollectError> {
        let Some(found) = self.found.iter().find(|found| found.image.id == image.id) else {
            return Ok(false);
        };
        let Some(_removal) = self.holds.remove(found.names.clone()) else { return Ok(false) };
        let began = jiff::Timestamp::now();
        let spec = v1::ImageSpec { image: image.id.clone(), ..v1::ImageSpec::default() };
        let removed = self.client.remove_image(v1::RemoveImageRequest { image: Some(spec) });
        let removed = tokio::time::timeout(REMOVE_MAX, removed).await;
        self.holds.changed();
        let late = |_| CollectError::Late(image.id.clone());
        removed.map_err(late)?.map_err(CollectError::Runtime)?;
        tracing::info!(image = image.id, bytes = image.bytes, ?reason, "removed an unused image");
        let label = if reason == Reason::Age { "age" } else { "space" };
        self.metrics.images().collected(label);
        // The runtime may have removed it long before it answers: a pull since then has a record of
        // its own, without which every pod could use the image.
        if let Some(records) = self.puller.records() {
            records.removed(&image.id, began).await;
        }
        Ok(true)
    }
}

/// Reason why images were not collected.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error("{}", .0.rpc_text())]
    Runtime(pintle_cri::Error),
    #[error("get container status: {}", .0.rpc_text())]
    ContainerStatus(pintle_cri::Error),
    #[error("the removal of image {0} did not end in time")]
    Late(String),
    #[error("the runtime tells of no image filesystem")]
    NoDisk,
    #[error("the image filesystem at {0} cannot be read")]
    Disk(String),
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    #[error(transparent)]
    Read(#[from] blocking::Blocked),
    #[error(
        "wanted to free images older than {age}, encountered errors in image deletion: {errors}"
    )]
    Old { age: String, errors: String },
    #[error(
        "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image \
         deletion: {errors}"
    )]
    Removals { wanted: u64, freed: u64, errors: String },
    /// The sentence that users read.
    #[error("{0}")]
    NotEnough(String),
}

/// A disk that is too full.
#[derive(Clone, Copy, Debug)]
struct Full {
    capacity: u64,
    available: u64,
    to_free: u64,
}

/// The result of removals.
#[derive(Debug, Default)]
struct Removed {
    bytes: u64,
    images: u32,
    errors: Vec<String>,
}

impl Removed {
    /// The bytes, or the errors of images as one.
    fn into_result(
        self,
        failed: impl FnOnce(u64, String) -> CollectError,
    ) -> Result<u64, CollectError> {
        match self.errors.is_empty() {
            true => Ok(self.bytes),
            false => Err(failed(self.bytes, puller::aggregate(&self.errors))),
        }
    }
}

fn of(judged: &[Judged], verdict: ImageVerdict) -> impl Iterator<Item = &Judged> {
    judged.iter().filter(move |one| one.verdict == verdict)
}

#[cfg(test)]
mod tests;
