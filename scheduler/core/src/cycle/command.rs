//! Commands for the dispatcher, which writes to the API, and their results.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeAllocatableResourceClaimStatus, Pod, PodCondition};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use pintle_sched_core::attempt_budget::Limit;

use crate::extender::Consult;
use crate::framework::Attempt;
use crate::kept::KeptPod;
use crate::plugins::dynamicresources::row::Reserve;
use crate::plugins::volumes::bind::Write;
use crate::pod_fields::PodRef;

/// The `related` object of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Related {
    /// A pod.
    Pod(PodRef),
    /// A pod group, by its name and uid, at this resource version.
    Group(PodRef, Option<String>),
}

/// An event (events.k8s.io).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The `regarding` pod.
    pub about: PodRef,
    /// The reporting controller: the name of the pod's profile.
    pub reporter: Rc<str>,
    /// The resource version of the pod.
    pub version: Option<String>,
    /// The `related` object.
    pub related: Option<Related>,
    /// The event's type is Warning.
    pub warning: bool,
    /// The PascalCase reason.
    pub reason: &'static str,
    /// The action of the scheduler.
    pub action: &'static str,
    /// The message.
    pub note: String,
}

/// A request to the API or to extenders.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Bind a pod to a node; the result is a [`BindingResult`].
    Bind {
        /// The pod.
        pod: PodRef,
        /// The node.
        node: Rc<str>,
        /// The pod as last observed; it determines the binder.
        object: Rc<Pod>,
        /// Out-of-tree plugins that run around the binding.
        attempt: Option<Rc<Attempt>>,
    },
    /// Write the selected volumes of a pod; the result is a [`VolumeWrites`](super::VolumeWrites).
    BindVolumes {
        /// The number of the command, repeated in the result.
        number: u64,
        /// The pod.
        pod: PodRef,
        /// The writes, in this order.
        writes: Vec<Write>,
        /// False once the pod no longer needs the writes.
        is_wanted: Rc<Cell<bool>>,
    },
    /// Allocate the selected devices to claims and reserve the claims for a pod; the result is a
    /// [`ReservationResult`](super::ReservationResult).
    ReserveDevices {
        /// The pod.
        pod: PodRef,
        /// The number of the reservation.
        number: u64,
        /// The claims.
        claims: Vec<Reserve>,
        /// The node-allocatable resources of the devices, for the pod's status; empty for none.
        statuses: Vec<NodeAllocatableResourceClaimStatus>,
    },
    /// Release claims that a pod or a group no longer uses; the result is the claims as released.
    ReleaseDevices {
        /// The pod, or the group by its name and uid.
        pod: PodRef,
        /// The claims.
        claims: Vec<Rc<ResourceClaim>>,
        /// Clear the node-allocatable resources of devices from the pod's status.
        clears: bool,
    },
    /// Deallocate a claim of a pending pod; the result is whether that succeeded, and the claim.
    GiveDevicesBack {
        /// The pod.
        pod: PodRef,
        /// The claim.
        claim: Rc<ResourceClaim>,
    },
    /// Call extenders; the result is a [`Consulted`](crate::extender::Consulted).
    Consult(Consult),
    /// Write the pod's condition, or its nominated node, to its status.
    Status {
        /// The pod as last observed.
        pod: Rc<KeptPod>,
        /// The condition, without times.
        condition: Option<PodCondition>,
        /// The nominated node; an empty name clears it.
        nominated: Option<String>,
    },
    /// Preempt: write the victims' condition and delete them; the result is an [`Evicted`].
    Evict {
        /// The victims, the most important first.
        victims: Vec<PodRef>,
        /// The preemptor: a pod, or a group by its name and uid.
        pod: PodRef,
        /// The message of the victims' condition.
        message: String,
        /// An event for each victim.
        notes: Vec<Note>,
    },
    /// Write the scheduling condition of a group to its status.
    GroupStatus {
        /// The group as last observed.
        group: Rc<PodGroup>,
        /// The condition, without times.
        condition: PodCondition,
    },
    /// Record an event.
    RecordEvent(Note),
}

/// The result of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingResult {
    /// The pod is bound.
    Bound,
    /// The binding failed with this error.
    Failed(String),
}

/// The result of a preemption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The preemptor: a pod, or a group by its name and uid.
    pub pod: PodRef,
    /// Every victim was deleted, or was already gone.
    pub all: bool,
    /// The duration.
    pub took: Duration,
}

/// A metric sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A pod was bound.
    Bound {
        /// The number of its profile.
        profile: usize,
        /// Time since the last attempt began.
        took: Duration,
        /// Time since the first attempt began.
        all: Duration,
        /// The number of attempts.
        attempts: u32,
        /// The last attempt was due to the unschedulable flush.
        was_flushed: bool,
    },
    /// Nodes were evaluated for a pod.
    Searched {
        /// The number of the pod's profile.
        profile: usize,
        /// A plugin failed.
        failed: bool,
    },
    /// A decision ended after this time, extender calls included.
    Decided(Duration),
    /// A pod got no node.
    Refused {
        /// The number of its profile.
        profile: usize,
        /// The attempt failed with an error; false if no node fits.
        is_error: bool,
        /// Time from the start of the attempt to the rejection.
        since: Duration,
    },
    /// An attempt exceeded this limit.
    Exhausted(Limit),
    /// The pods of a group were decided.
    Group {
        /// The number of their profile.
        profile: usize,
        /// Upstream's label of the result.
        result: &'static str,
    },
    /// A dry run searched for victims of a pod that fits on no node.
    TriedToPreempt,
    /// A preemption with this many victims.
    Preempted(usize),
    /// The volumes of a pod could not be bound after a node was chosen.
    VolumesFailed,
    /// The wait for binding conditions of a pod's devices ended.
    Prepared {
        /// The number of its profile.
        profile: usize,
        /// Upstream's label of the result.
        status: &'static str,
        /// The duration of the wait.
        took: Duration,
        /// The driver of each device, and whether the device has binding conditions.
        devices: Vec<(String, bool)>,
    },
    /// A pod's wait for Permit ended.
    Permitted {
        /// Upstream's label of the result.
        result: &'static str,
        /// The duration of the wait.
        took: Duration,
    },
}
