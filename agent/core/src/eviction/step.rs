//! Inputs of an eviction decision, and the actions that follow from it.
//!
//! Pure data between `Evictor` and `worker::Pods`. Bounds: the pods of the node.

use std::time::Duration;

use pintle_api_types::ids::{Now, PodUid};

use super::message::Notes;
use super::observed::Observation;
use super::rank::Evictable;
use super::signal::{Signal, Starved};
use super::threshold::Settings;

/// A pod to evict.
#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    /// Its uid.
    pub uid: PodUid,
    /// The signal under which it is counted.
    pub signal: &'static str,
    /// Message of its status and event.
    pub message: String,
    /// Annotations of the event.
    pub notes: Notes,
    /// Its grace period, in seconds.
    pub grace_seconds: i64,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum EvictionStep {
    /// Emit an event that this is short.
    Tell(Starved),
    /// Reclaim these.
    Reclaim {
        /// To be returned with the answer.
        ticket: u64,
        /// For this signal.
        signal: Signal,
        /// All dead containers.
        containers: bool,
        /// All unused images.
        images: bool,
    },
    /// Pods were ranked by figures of this age.
    Age(Signal, Duration),
    /// Evict this pod.
    Evict(Victim),
    /// These are given no more time.
    Hurry(Vec<PodUid>),
}

/// The inputs of a decision.
#[derive(Clone, Copy, Debug)]
pub struct EvictionSnapshot<'a> {
    /// The configuration.
    pub settings: &'a Settings,
    /// The latest observation.
    pub observation: &'a Observation,
    /// Pods that may be ended: none that is critical, none that was evicted before.
    pub pods: &'a [Evictable<'a>],
    /// Not all pods of the node are known yet: no pod is ranked.
    pub is_early: bool,
    /// When.
    pub now: Now,
}
