//! Selection of the images to remove: when their disk is too full, or when they are unused for too
//! long.
//!
//! Input: the images, when each was first seen and last used, and how full their disk is. Output:
//! the images in the order of removal, each with the reason why it is removed or stays. Bounds: one
//! `Use` for each image that the runtime has.
// k8s: pkg/kubelet/images/image_gc_manager.go

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::UnixNanos;

/// When images are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// From this share of the disk in use on, images are removed.
    pub high_percent: u8,
    /// They are removed until this share is in use.
    pub low_percent: u8,
    /// One that was first seen later than this ago stays.
    pub min_age: Duration,
    /// An image that is unused for longer than this is removed; zero for never.
    pub max_age: Duration,
}

impl Policy {
    /// True if garbage collection of images is on.
    // k8s: pkg/kubelet/kubelet.go StartGarbageCollection
    pub fn is_on(&self) -> bool {
        self.high_percent < 100 || !self.max_age.is_zero()
    }
}

/// An image, as the runtime and its containers have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// The runtime's id.
    pub id: String,
    /// Its size.
    pub bytes: u64,
    /// The runtime wants to keep it.
    pub pinned: bool,
    /// A container is made of it or mounts it, running or not.
    pub in_use: bool,
}

/// The known past of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUse {
    /// When it was first seen.
    pub first_seen: UnixNanos,
    /// When it was last seen in use; `NEVER` for one that was not.
    pub last_used: UnixNanos,
}

/// The past of all images, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses(pub BTreeMap<String, ImageUse>);

impl Uses {
    /// Records the present images, and forgets those that are gone.
    pub fn see(&mut self, images: &[ImageFacts], now: UnixNanos) {
        let before = std::mem::take(&mut self.0);
        for image in images {
            let known = before.get(&image.id).copied();
            let mut of = known.unwrap_or(ImageUse { first_seen: now, last_used: UnixNanos::NEVER });
            // A clock that was set back must not make an image young for ever.
            of.first_seen = of.first_seen.min(now);
            of.last_used = if image.in_use { now } else { of.last_used.min(now) };
            self.0.insert(image.id.clone(), of);
        }
    }

    /// Nothing has changed since `images` were seen: an image in use then was in use until now.
    pub fn still(&mut self, images: &[ImageFacts], now: UnixNanos) {
        for image in images.iter().filter(|image| image.in_use) {
            if let Some(of) = self.0.get_mut(&image.id) {
                of.last_used = now;
            }
        }
    }
}

/// The decision about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageVerdict {
    /// Remove, however full the disk is: unused for longer than the maximum age.
    TooOld,
    /// Remove when room is needed.
    Spare,
    /// It stays: first seen less than the minimum age ago.
    TooYoung,
    /// It stays: a container has it.
    InUse,
    /// It stays: the runtime wants it.
    Pinned,
}

/// An image and the decision about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The runtime's id.
    pub id: String,
    /// Its size.
    pub bytes: u64,
    /// The decision.
    pub verdict: ImageVerdict,
    /// How long it has been unused, as far as is known.
    pub unused_for: Duration,
}

/// The report on images for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReport {
    /// How full their disk is, in percent; `None` when that could not be read.
    pub used_percent: Option<u8>,
    /// When images are removed.
    pub policy: Policy,
    /// All of them with their names for users, in the order of removal.
    pub images: Vec<(String, Judged)>,
}

impl ImageVerdict {
    /// True if the image is removed, at once or when room is needed.
    pub fn goes(self) -> bool {
        matches!(self, Self::TooOld | Self::Spare)
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::TooOld => "goes soon: unused for longer than the maximum age",
            Self::Spare => "goes when the disk is too full: unused",
            Self::TooYoung => "stays: the agent has known it for less than the minimum age",
            Self::InUse => "stays: a container has it",
            Self::Pinned => "stays: the runtime wants it (pinned)",
        }
    }
}

/// All images in the order of removal: least recently used first, of those the one seen first.
/// `running` is the uptime of the agent: before the maximum age has passed, an image cannot be
/// known to be unused for so long.
///
/// An image that was never used is as old as it has been seen, not infinitely old as for the
/// kubelet: it would be removed right after its pull.
pub fn judge(
    images: &[ImageFacts],
    uses: &Uses,
    policy: &Policy,
    now: UnixNanos,
    running: Duration,
) -> Vec<Judged> {
    let past = |image: &ImageFacts| {
        let unseen = ImageUse { first_seen: now, last_used: UnixNanos::NEVER };
        uses.0.get(&image.id).copied().unwrap_or(unseen)
    };
    let mut ordered: Vec<_> = images.iter().map(|image| (past(image), image)).collect();
    ordered.sort_by_key(|(of, image)| (of.last_used, of.first_seen, image.id.clone()));
    let judged = ordered.into_iter().map(|(of, image)| {
        let by_age = !policy.max_age.is_zero() && running > policy.max_age;
        let unused_for = now.since(of.last_used.max(of.first_seen));
        let verdict = match image {
            ImageFacts { pinned: true, .. } => ImageVerdict::Pinned,
            ImageFacts { in_use: true, .. } => ImageVerdict::InUse,
            _ if by_age && unused_for > policy.max_age => ImageVerdict::TooOld,
            _ if now.since(of.first_seen) < policy.min_age => ImageVerdict::TooYoung,
            _ => ImageVerdict::Spare,
        };
        let unused_for = if image.in_use { Duration::ZERO } else { unused_for };
        Judged { id: image.id.clone(), bytes: image.bytes, verdict, unused_for }
    });
    judged.collect()
}

/// How full a disk is, in percent, rounded up.
pub fn used_percent(capacity: u64, available: u64) -> u8 {
    let (capacity, available) = (u128::from(capacity), u128::from(available.min(capacity)));
    let free = (available * 100).checked_div(capacity).unwrap_or(0);
    u8::try_from(100 - free).unwrap_or(100)
}

/// How much is to be removed from a disk; `None` while it is not too full.
pub fn bytes_to_free(policy: &Policy, capacity: u64, available: u64) -> Option<u64> {
    let available = available.min(capacity);
    if used_percent(capacity, available) < policy.high_percent {
        return None;
    }
    let free = u128::from(capacity) * u128::from(100 - policy.low_percent.min(100)) / 100;
    Some(u64::try_from(free).unwrap_or(u64::MAX).saturating_sub(available))
}

/// The message for users when images alone do not make room, in upstream's words.
pub fn not_enough(capacity: u64, available: u64, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to \
         free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk \
         usage, as it could be used by active images, logs, volumes, or other data.",
        used_percent(capacity, available),
        size(capacity),
    )
}

// k8s: pkg/kubelet/images/image_gc_manager.go formatSize
#[allow(clippy::cast_precision_loss)] // one digit after the point is shown
fn size(bytes: u64) -> String {
    let exact = bytes as f64;
    let of = |unit: u64| exact / unit as f64;
    match bytes {
        0..=1023 => format!("{bytes} B"),
        _ if bytes < 1 << 20 => format!("{:.1} KiB", of(1 << 10)),
        _ if bytes < 1 << 30 => format!("{:.1} MiB", of(1 << 20)),
        _ if bytes < 1 << 40 => format!("{:.1} GiB", of(1 << 30)),
        _ => format!("{:.1} TiB", of(1 << 40)),
    }
}

#[cfg(test)]
#[path = "images_tests.rs"]
mod tests;
