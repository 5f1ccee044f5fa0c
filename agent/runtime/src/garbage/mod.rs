//! Removes unused images: when their disk is too full, when they are too old, on request.
//!
//! Owner: one task, `Collector::run`. Input: the clock, and `Request`s on a channel, each with the
//! place for its answer: `Request::Images(answer)` removes every unused image that is older than
//! the minimum age and answers with a `Freed`, `Request::Report(answer)` answers with the decision
//! about each image. Output: events about the node, metrics, the answer; `steps`, so that a waiting
//! caller sees progress, for its own request or an earlier one.
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
use pintle_agent_core::garbage::images::{Judged, Policy, Report, Verdict};
use pintle_agent_core::node::conditions::{NodeEvent, NodeEvents};
use pintle_agent_host::disk;
use pintle_agent_host::disk::FileSystem;
use pintle_agent_metrics::Metrics;
use pintle_cri::{Client, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::Place;
use pintle_daemon::clock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use self::holds::Holds;
use self::look::Found;
use self::past::Past;
use crate::execute::Executor;
use crate::puller;
use crate::puller::Puller;

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
pub enum Request {
    /// Remove all unused images, however full the disk is.
    Images(oneshot::Sender<Freed>),
    /// Answer with the decision about each image.
    Report(oneshot::Sender<Report>),
}

/// The channel to a collector, and its progress.
#[derive(Clone, Debug)]
pub struct Requests {
    /// The requests.
    pub queue: mpsc::Sender<Request>,
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
    past: Past,
    found: Vec<Found>,
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
            past: Past::new(root),
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
    pub async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        self.past.load().await;
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    let result = self.turn().await;
                    self.tell(result);
                }
                request = requests.recv() => match request {
                    Some(Request::Images(answer)) => {
                        // The caller may have given up; the room is freed all the same.
                        let _ = answer.send(self.free_unused_images().await);
                    }
                    Some(Request::Report(answer)) => {
                        let _ = answer.send(self.report().await);
                    }
                    None => return,
                },
            }
        }
    }

    /// One failure may be chance: users hear of the second in a row.
    fn tell(&mut self, result: Result<(), String>) {
        let Err(message) = result else {
            self.failed_before = false;
            return;
        };
        tracing::error!(error = message, "image garbage collection failed");
        if std::mem::replace(&mut self.failed_before, true) {
            self.warn("ImageGCFailed", message);
        }
    }

    fn warn(&self, reason: &'static str, message: String) {
        (self.node_events)(NodeEvent { warning: true, reason, message });
    }

    async fn turn(&mut self) -> Result<(), String> {
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
        let old: Vec<_> = of(&judged, Verdict::TooOld).collect();
        if !old.is_empty() {
            let removed = self.remove(&old, u64::MAX, Reason::Age).await;
            removed.into_result(|_, errors| {
                let age = pintle_api_types::duration::GoDuration::from_std(self.policy.max_age);
                format!(
                    "wanted to free images older than {age}, encountered errors in image deletion: \
                     {errors}"
                )
            })?;
        }
        let full = if old.is_empty() { full? } else { self.too_full().await? };
        let Some(full) = full else { return Ok(()) };
        let spare: Vec<_> = of(&judged, Verdict::Spare).collect();
        let removed = self.remove(&spare, full.to_free, Reason::Space).await;
        let freed = removed.into_result(|freed, errors| {
            format!(
                "wanted to free {} bytes, but freed {freed} bytes space with errors in image \
                 deletion: {errors}",
                full.to_free
            )
        })?;
        if freed >= full.to_free {
            return Ok(());
        }
        let message = images::not_enough(full.capacity, full.available, freed);
        self.warn("FreeDiskSpaceFailed", message.clone());
        Err(message)
    }

    /// Removes every unused image that is not too young.
    // k8s: pkg/kubelet/images/image_gc_manager.go DeleteUnusedImages
    async fn free_unused_images(&mut self) -> Freed {
        if let Err(error) = self.look().await {
            return Freed { error: Some(error), ..Freed::default() };
        }
        let judged = self.judge();
        let unused = [Verdict::TooOld, Verdict::Spare];
        let spare: Vec<_> = judged.iter().filter(|j| unused.contains(&j.verdict)).collect();
        let removed = self.remove(&spare, u64::MAX, Reason::Space).await;
        let (bytes, images) = (removed.bytes, removed.images);
        let error = removed.into_result(|freed, errors| {
            format!(
                "wanted to free {} bytes, but freed {freed} bytes space with errors in image \
                 deletion: {errors}",
                i64::MAX
            )
        });
        Freed { bytes, images, containers: 0, error: error.err() }
    }

    fn judge(&self) -> Vec<Judged> {
        let images: Vec<_> = self.found.iter().map(|found| found.image.clone()).collect();
        let now = (clock::now(), self.began.elapsed());
        images::judge(&images, self.past.uses(), &self.policy, now)
    }

    /// Reads images and their users from the runtime.
    async fn look(&mut self) -> Result<(), String> {
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
    async fn report(&mut self) -> Report {
        if let Err(error) = self.look().await {
            tracing::debug!(error, "images cannot be looked at: they are told as they were");
        }
        let disk = self.image_disk().await.ok();
        let judged = self.judge().into_iter().map(|judged| {
            let found = self.found.iter().find(|found| found.image.id == judged.id);
            (found.map_or_else(|| judged.id.clone(), |found| found.shown.clone()), judged)
        });
        Report {
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
    async fn too_full(&self) -> Result<Option<Full>, String> {
        let (capacity, available) = self.image_disk().await?;
        let to_free = images::bytes_to_free(&self.policy, capacity, available);
        Ok(to_free.map(|to_free| Full { capacity, available, to_free }))
    }

    /// Size of the images' disk, and the bytes left.
    async fn image_disk(&self) -> Result<(u64, u64), String> {
        let told = self.client.image_fs_info(v1::ImageFsInfoRequest {}).await;
        let told = told.map_err(|error| error.rpc_text())?;
        let first = told.image_filesystems.into_iter().next().and_then(|fs| fs.fs_id);
        let first = first.ok_or("the runtime tells of no image filesystem")?;
        let (path, read) = (PathBuf::from(first.mountpoint), self.disk);
        let shown = path.display().to_string();
        let place = Place::own("image disk").within(READ_MAX);
        let found = blocking::run(place, move || read(&path)).await.map_err(|e| e.to_string())?;
        let fs = found.ok_or_else(|| format!("the image filesystem at {shown} cannot be read"))?;
        if fs.capacity_bytes == 0 {
            let message = "invalid capacity 0 on image filesystem".to_owned();
            self.warn("InvalidDiskCapacity", message.clone());
            return Err(message);
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
                Err(error) => done.errors.push(error),
            }
        }
        done
    }

    async fn remove_one(&self, image: &Judged, reason: Reason) -> Result<bool, String> {
        let Some(found) = self.found.iter().find(|found| found.image.id == image.id) else {
            return Ok(false);
        };
        let Some(_removal) = self.holds.remove(found.names.clone()) else { return Ok(false) };
        let began = jiff::Timestamp::now();
        let spec = v1::ImageSpec { image: image.id.clone(), ..v1::ImageSpec::default() };
        let removed = self.client.remove_image(v1::RemoveImageRequest { image: Some(spec) });
        let removed = tokio::time::timeout(REMOVE_MAX, removed).await;
        self.holds.changed();
        let late = |_| format!("the removal of image {} did not end in time", image.id);
        removed.map_err(late)?.map_err(|error| error.rpc_text())?;
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
    /// The bytes, or the errors in the words of `tell`.
    fn into_result(self, tell: impl FnOnce(u64, String) -> String) -> Result<u64, String> {
        match self.errors.is_empty() {
            true => Ok(self.bytes),
            false => Err(tell(self.bytes, puller::aggregate(&self.errors))),
        }
    }
}

fn of(judged: &[Judged], verdict: Verdict) -> impl Iterator<Item = &Judged> {
    judged.iter().filter(move |one| one.verdict == verdict)
}

#[cfg(test)]
mod tests;
