//! The met thresholds, since when, and the node's pressure conditions.
//!
//! Input: settings, an observation, the time. Output: the conditions that hold, and the thresholds
//! to act upon. Pure; bounds: a few entries for each configured threshold.
// k8s: pkg/kubelet/eviction/eviction_manager.go synchronize

use std::collections::{BTreeMap, BTreeSet};

use pintle_api_types::ids::{Mono, UnixNanos};
use serde::{Deserialize, Serialize};

use super::observed::{DiskLayout, Observation, ResourceReading};
use super::rank;
use super::signal::{Condition, Signal, Starved};
use super::threshold::{Settings, Threshold};

/// A disk nears a threshold when this part of it, or less, is left above.
const NEAR_PARTS: u64 = 50;

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Met {
    /// Thresholds that are met, or were and are not resolved, and since when.
    since: Vec<(Threshold, Mono)>,
    /// Those with an elapsed grace period.
    acting: Vec<Threshold>,
    /// When each pressure was last observed.
    seen: BTreeMap<Condition, Mono>,
    /// The readings last acted upon.
    weighed: BTreeMap<Signal, UnixNanos>,
}

impl Met {
    /// Takes an observation; returns the conditions that hold now.
    pub fn update(
        &mut self,
        settings: &Settings,
        observation: &Observation,
        now: Mono,
    ) -> BTreeSet<Condition> {
        let met = |of: &Threshold, resolving| settings.is_met(of, observation, resolving);
        let mut all = settings.on(observation.layout);
        all.retain(|threshold| met(threshold, false));
        for threshold in &self.acting {
            if met(threshold, true) && !all.contains(threshold) {
                all.push(*threshold);
            }
        }
        let began = |threshold: &Threshold| {
            let known = self.since.iter().find(|(of, _)| of == threshold);
            known.map_or(now, |(_, since)| *since)
        };
        let since: Vec<_> = all.iter().map(|threshold| (*threshold, began(threshold))).collect();
        self.since = since;
        let over = self.since.iter().filter(|(of, since)| now.since(*since) >= of.grace);
        self.acting = over.map(|(threshold, _)| *threshold).collect();
        for threshold in &all {
            self.seen.insert(threshold.signal.condition(), now);
        }
        self.seen.retain(|_, at| now.since(*at) < settings.transition);
        self.seen.keys().copied().collect()
    }

    /// The thresholds to act upon, memory first, with readings newer than those last acted upon. A
    /// clock that was set back makes a reading no older.
    // k8s: pkg/kubelet/eviction/helpers.go thresholdsUpdatedStats, byEvictionPriority
    pub fn fresh(&self, observation: &Observation) -> Vec<Threshold> {
        let is_new = |threshold: &&Threshold| {
            let at = observation.readings.get(&threshold.signal).map(|reading| reading.at);
            at.is_some_and(|at| !at.is_set() || self.weighed.get(&threshold.signal) != Some(&at))
        };
        let mut fresh: Vec<_> = self.acting.iter().filter(is_new).copied().collect();
        fresh.sort_by_key(|threshold| threshold.signal.starved() != Starved::Memory);
        fresh
    }

    /// Marks these readings as acted upon, so that the same ones cause nothing more.
    pub fn weigh(&mut self, observation: &Observation) {
        for threshold in &self.acting {
            if let Some(reading) = observation.readings.get(&threshold.signal) {
                self.weighed.insert(threshold.signal, reading.at);
            }
        }
    }

    /// Some threshold is to be acted upon.
    pub fn is_acting(&self) -> bool {
        !self.acting.is_empty()
    }

    /// The thresholds that are met or not resolved, and since when.
    pub fn since(&self) -> &[(Threshold, Mono)] {
        &self.since
    }
}

/// Some threshold is met or not resolved, whatever its grace period.
pub fn is_short(settings: &Settings, observation: &Observation) -> bool {
    settings.on(observation.layout).iter().any(|of| settings.is_met(of, observation, true))
}

/// A disk on which volumes count has little more than its threshold: the size of volumes may soon
/// matter, and counting takes its time.
pub fn nears_disk(settings: &Settings, observation: &Observation) -> bool {
    let is_near = |of: &Threshold| {
        let Some(reading) = observation.readings.get(&of.signal) else { return false };
        let spare = reading.capacity / NEAR_PARTS;
        let less =
            ResourceReading { available: reading.available.saturating_sub(spare), ..*reading };
        of.is_met(&less, true)
    };
    let has_volumes = |of: &Threshold| rank::counts_volumes(of.signal, observation.layout);
    settings.on(observation.layout).iter().filter(|of| has_volumes(of)).any(is_near)
}

/// True for dead containers and for unused images, if removing them frees what the signal measures.
// k8s: pkg/kubelet/eviction/helpers.go buildSignalToNodeReclaimFuncs
pub fn reclaims(signal: Signal, layout: DiskLayout) -> (bool, bool) {
    let of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
    let of_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
    match (signal.starved(), layout.images_apart, layout.layers_apart) {
        (Starved::Memory | Starved::Pids, ..) => (false, false),
        (_, false, _) => (true, true),
        (_, true, false) => (!of_node, !of_node),
        (_, true, true) => (!of_images, of_images),
    }
}

#[cfg(test)]
#[path = "met_tests.rs"]
mod tests;
