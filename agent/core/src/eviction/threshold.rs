//! Thresholds: minimum amounts of the node's resources, as configured and as met.
//!
//! Input: the configuration, which has been validated. Output: `Settings`, made once. Pure. A text that
//! is no threshold is left out here; `agent/config` refuses it before.
// k8s: pkg/kubelet/eviction/helpers.go ParseThresholdConfig, UpdateContainerFsThresholds

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_config::Config;
use pintle_agent_config::types::{KubeletConfiguration, TextMap};
use pintle_api_types::duration::GoDuration;
use pintle_api_types::pod;
use pintle_api_types::quantity::Amount;
use serde::{Deserialize, Serialize};

use super::observed::{DiskLayout, Observation, ResourceReading};
use super::signal::{Signal, Starved};

/// Grace period of a pod evicted at once, in seconds.
// k8s: pkg/kubelet/eviction/eviction_manager.go immediateEvictionGracePeriodSeconds
pub(super) const IMMEDIATE_SECONDS: i64 = 1;

/// Stall at which a shortage of memory counts with `--pintle-psi-eviction`, in hundredths of a percent.
/// Docs: docs/adr/0007-psi-eviction.md.
pub const STALL_MIN: u16 = 1_000;
/// Names the enforcement that adds a threshold for the memory of all pods.
// k8s: pkg/kubelet/types/constants.go NodeAllocatableEnforcementKey
const PODS: &str = "pods";

/// When pods are evicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// As configured, without those that follow from the layout of disks.
    pub thresholds: Vec<Threshold>,
    /// How long a pressure stays reported after its last observation.
    pub transition: Duration,
    /// Most seconds that a pod is given when a soft threshold is met.
    pub grace_seconds_max: i64,
    /// Pods above a disk limit of their own are evicted.
    pub local_storage: bool,
    /// Page cache counts as used only while the node stalls for memory by at least this, in
    /// hundredths of a percent; `None` selects the kubelet's rule, by which it always does.
    #[serde(default)]
    pub stall_min: Option<u16>,
}

/// A fixed amount, or this part of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ThresholdLevel {
    /// A fixed amount.
    Amount(Amount),
    /// This part of the capacity, in the precision of the kubelet.
    Part(f32),
}

/// A least amount of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// It is met when less than this is available.
    pub level: ThresholdLevel,
    /// How long it must be met; zero for a hard threshold.
    pub grace: Duration,
    /// How much more must be available until it counts as resolved.
    pub min_reclaim: Option<ThresholdLevel>,
}

impl ThresholdLevel {
    /// Reads `100Mi` or `10%`; `None` for anything else.
    // k8s: pkg/kubelet/eviction/helpers.go parseThresholdStatement, parsePercentage
    pub fn parse(text: &str) -> Option<Self> {
        match text.ends_with('%') {
            true => Some(Self::Part(text.trim_end_matches('%').parse::<f32>().ok()? / 100.0)),
            false => Amount::parse(text).map(Self::Amount),
        }
    }

    /// The amount for this capacity.
    // k8s: pkg/kubelet/eviction/api/types.go GetThresholdQuantity
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    pub fn of(self, capacity: i64) -> Amount {
        match self {
            Self::Amount(amount) => amount,
            // The percentage is a 32-bit float there, which shows in the last digits.
            Self::Part(part) => Amount::from_bytes((capacity as f64 * f64::from(part)) as i64),
        }
    }

    /// A threshold of zero is never met; one above the capacity cannot be reached.
    fn is_off(self) -> bool {
        match self {
            Self::Amount(amount) => amount.is_zero() || amount.is_negative(),
            Self::Part(part) => part <= 0.0 || part > 1.0,
        }
    }
}

impl Settings {
    /// From the configuration.
    pub fn of(config: &Config) -> Self {
        let kubelet = &config.kubelet;
        Self {
            thresholds: thresholds(kubelet, config.flags.allocatable_ignores_eviction),
            transition: kubelet.eviction_pressure_transition_period.to_std(),
            grace_seconds_max: kubelet.eviction_max_pod_grace_period.into(),
            local_storage: kubelet.local_storage_capacity_isolation,
            stall_min: config.flags.psi_eviction.then_some(STALL_MIN),
        }
    }

    /// The grace period of a pod evicted for this, in seconds: one for a hard threshold; for a soft
    /// one the pod's own, at most the configured one.
    pub(super) fn grace_seconds(&self, of: &Threshold, pod: &Pod) -> i64 {
        if of.is_hard() {
            return IMMEDIATE_SECONDS;
        }
        let own = pod::spec(pod).termination_grace_period_seconds;
        own.map_or(self.grace_seconds_max, |own| own.min(self.grace_seconds_max))
    }

    /// The node has less of it than required; with `resolving` less than would resolve it.
    pub fn is_met(&self, of: &Threshold, seen: &Observation, resolving: bool) -> bool {
        self.counted(of.signal, seen).is_some_and(|reading| of.is_met(&reading, resolving))
    }

    /// The reading to compare with the threshold. Page cache is memory that can be had back at
    /// once: where stall decides, it counts as available unless the node stalls. With a kernel that
    /// does not count stall, only the available amount decides.
    pub fn counted(&self, signal: Signal, seen: &Observation) -> Option<ResourceReading> {
        let reading = *seen.readings.get(&signal)?;
        let is_memory = signal.starved() == Starved::Memory;
        let spares = self.stall_min.zip(seen.stall).is_some_and(|(min, stall)| stall < min);
        let cache = seen.cache.get(&signal).filter(|_| is_memory && spares);
        let available = reading.available.saturating_add(cache.copied().unwrap_or(0));
        Some(ResourceReading { available, ..reading })
    }

    /// The amount required at once: the greatest of its hard thresholds.
    pub fn least(&self, signal: Signal, reading: &ResourceReading) -> u64 {
        let hard = self.thresholds.iter().filter(|of| of.is_hard() && of.signal == signal);
        let least = hard.map(|of| of.least(reading).units()).max();
        least.and_then(|least| u64::try_from(least).ok()).unwrap_or(0)
    }

    /// Some threshold or limit is configured.
    pub fn is_on(&self) -> bool {
        !self.thresholds.is_empty() || self.local_storage
    }

    /// All thresholds on a node with these disks: the containers' disk has those of the disk that it
    /// is a part of, whatever is configured for it.
    pub fn on(&self, layout: DiskLayout) -> Vec<Threshold> {
        let of_containers = |threshold: &Threshold| {
            let node = !layout.images_apart && !layout.layers_apart
                || layout.images_apart && layout.layers_apart;
            let images = layout.images_apart && !layout.layers_apart;
            let signal = match threshold.signal {
                Signal::NodeFsAvailable if node => Signal::ContainerFsAvailable,
                Signal::NodeFsInodesFree if node => Signal::ContainerFsInodesFree,
                Signal::ImageFsAvailable if images => Signal::ContainerFsAvailable,
                Signal::ImageFsInodesFree if images => Signal::ContainerFsInodesFree,
                _ => return None,
            };
            Some(Threshold { signal, ..*threshold })
        };
        let own = |threshold: &&Threshold| {
            !matches!(
                threshold.signal,
                Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree
            )
        };
        let derived = self.thresholds.iter().filter_map(of_containers);
        self.thresholds.iter().filter(own).copied().chain(derived).collect()
    }
}

/// Hard ones, then soft ones, then that of the memory of all pods. Where no memory is reserved for
/// thresholds, pods may take all that there is for them.
// k8s: pkg/kubelet/kubelet.go NewMainKubelet
fn thresholds(kubelet: &KubeletConfiguration, pods_take_all: bool) -> Vec<Threshold> {
    let reclaims = levels(&kubelet.eviction_minimum_reclaim);
    let min_reclaim =
        |signal| reclaims.iter().find(|(of, _)| *of == signal).map(|(_, level)| *level);
    let one =
        |signal, level, grace| Threshold { signal, level, grace, min_reclaim: min_reclaim(signal) };
    let hard = hard(&kubelet.eviction_hard);
    let mut all: Vec<_> =
        hard.into_iter().map(|(signal, level)| one(signal, level, Duration::ZERO)).collect();
    for (signal, level) in on(&kubelet.eviction_soft) {
        let grace = kubelet.eviction_soft_grace_period.get(signal.as_str());
        let grace = grace.and_then(|text| text.parse::<GoDuration>().ok());
        if let Some(grace) = grace {
            all.push(one(signal, level, grace.to_std()));
        }
    }
    if !pods_take_all && kubelet.enforce_node_allocatable.iter().any(|word| word == PODS) {
        let of_node = |t: &&Threshold| t.signal == Signal::MemoryAvailable && t.is_hard();
        let of_pods =
            |t: &Threshold| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*t };
        let of_pods: Vec<_> = all.iter().filter(of_node).map(of_pods).collect();
        all.extend(of_pods);
    }
    all
}

/// The hard thresholds of a configuration.
pub fn hard(texts: &TextMap) -> Vec<(Signal, ThresholdLevel)> {
    on(texts)
}

/// Those that are not turned off. `100%` is, while `100.0%` is a threshold of all there is.
// k8s: pkg/kubelet/eviction/helpers.go parseThresholdStatement
fn on(texts: &TextMap) -> Vec<(Signal, ThresholdLevel)> {
    let on = texts.iter().filter(|(_, text)| *text != "100%");
    let on: TextMap = on.map(|(name, text)| (name.clone(), text.clone())).collect();
    levels(&on).into_iter().filter(|(_, level)| !level.is_off()).collect()
}

fn levels(texts: &TextMap) -> Vec<(Signal, ThresholdLevel)> {
    let one = |(name, text): (&String, &String)| {
        Some((Signal::parse(name)?, ThresholdLevel::parse(text)?))
    };
    texts.iter().filter_map(one).collect()
}

impl Threshold {
    /// A hard threshold: pods are evicted at once.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// The amount required.
    pub fn least(&self, reading: &ResourceReading) -> Amount {
        self.level.of(signed(reading.capacity))
    }

    /// Less is available than required; with `resolving` less than would resolve it.
    // k8s: pkg/kubelet/eviction/helpers.go thresholdsMet
    pub fn is_met(&self, reading: &ResourceReading, resolving: bool) -> bool {
        let more = self.min_reclaim.filter(|_| resolving);
        let more = more.map_or(Amount::ZERO, |level| level.of(signed(reading.capacity)));
        self.least(reading) + more > Amount::from_bytes(signed(reading.available))
    }

    /// The amount left, as messages write it: bytes in powers of two, everything else in powers of
    /// ten.
    pub fn shown(&self, available: u64) -> Amount {
        shown(self.signal.starved(), signed(available))
    }
}

/// An amount of a resource, as messages write it.
pub fn shown(starved: Starved, amount: i64) -> Amount {
    match starved {
        Starved::Memory | Starved::EphemeralStorage => Amount::from_bytes(amount),
        Starved::Inodes | Starved::Pids => Amount::from_millis(amount.saturating_mul(1000)),
    }
}

/// A figure as amounts are counted.
pub fn signed(figure: u64) -> i64 {
    i64::try_from(figure).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "threshold_tests.rs"]
mod tests;
