//! What is to be done in the cluster, and how it ended.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeAllocatableResourceClaimStatus, Pod, PodCondition};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use pintle_api::informer::ObjectKey;
use pintle_sched_core::attempt_budget::Limit;

use super::Reserve;
use crate::extender::Consult;
use crate::framework::Attempt;
use crate::kept::KeptPod;
use crate::volumes::bind::Write;

/// A pod that something is done to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Uid.
    pub uid: Rc<str>,
}

/// With whom a note has to do, beside the pod that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Related {
    /// A pod.
    Pod(PodRef),
    /// A group of pods, by its name and uid, in this version.
    Group(PodRef, Option<String>),
}

/// What somebody has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Of whom.
    pub about: PodRef,
    /// Who tells it: the name of the pod's profile.
    pub reporter: Rc<str>,
    /// The version of it that is meant.
    pub version: Option<String>,
    /// With whom it has to do.
    pub related: Option<Related>,
    /// Something is wrong.
    pub warning: bool,
    /// PascalCase word.
    pub reason: &'static str,
    /// What the scheduler was doing.
    pub action: &'static str,
    /// The sentence.
    pub note: String,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Bind a pod to a node; [`Ended`] is owed.
    Bind {
        /// The pod.
        pod: PodRef,
        /// The node.
        node: Rc<str>,
        /// The pod as it was told last, which says who binds it.
        object: Rc<Pod>,
        /// What plugins of others have to do with it.
        attempt: Option<Rc<Attempt>>,
    },
    /// Write what was chosen of a pod's volumes; a [`Written`](super::Written) is owed.
    BindVolumes {
        /// Its number, which its answer has.
        number: u64,
        /// The pod.
        pod: PodRef,
        /// What is to be written, in this order.
        writes: Vec<Write>,
        /// Whether it still is.
        is_wanted: Rc<Cell<bool>>,
    },
    /// Give claims the devices that were chosen and reserve them for a pod; a
    /// [`Reserved`](super::Reserved) is owed.
    ReserveDevices {
        /// The pod.
        pod: PodRef,
        /// The number of the reservation.
        number: u64,
        /// The claims.
        claims: Vec<Reserve>,
        /// What the pod's status is to say then of what its devices take of the node, if anything.
        statuses: Vec<NodeAllocatableResourceClaimStatus>,
    },
    /// A pod, or a group of pods, uses these claims no longer; that it was done is owed.
    ReleaseDevices {
        /// The pod, or the group by its name and uid.
        pod: PodRef,
        /// The claims.
        claims: Vec<Rc<ResourceClaim>>,
        /// The pod's status is to say no more what devices take of its node.
        clears: bool,
    },
    /// A claim gives its devices back, for a pod that waits; whether it did, and what it is then, is
    /// owed.
    GiveDevicesBack {
        /// The pod.
        pod: PodRef,
        /// The claim.
        claim: Rc<ResourceClaim>,
    },
    /// Ask extenders; a [`Consulted`](crate::extender::Consulted) is owed.
    Consult(Consult),
    /// Write into the pod's status why it has no node, or which one is kept for it.
    Status {
        /// The pod as it was told last.
        pod: Rc<KeptPod>,
        /// The condition, without times.
        condition: Option<PodCondition>,
        /// The node that is kept; empty for none any more.
        nominated: Option<String>,
    },
    /// Make room: give the victims their condition, delete them; an [`Evicted`] is owed.
    Evict {
        /// Those who go, most important first.
        victims: Vec<PodRef>,
        /// For whom: a pod, or a group by its name and uid.
        pod: PodRef,
        /// The sentence of their condition.
        message: String,
        /// What each is told.
        notes: Vec<Note>,
    },
    /// Write into a group's status how its pods fared.
    GroupStatus {
        /// The group as it was told last.
        group: Rc<PodGroup>,
        /// The condition, without times.
        condition: PodCondition,
    },
    /// Tell somebody.
    Tell(Note),
}

/// How a binding ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The pod is bound.
    Bound,
    /// It is not, and why.
    Failed(String),
}

/// Making room ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// For whom: a pod, or a group by its name and uid.
    pub pod: PodRef,
    /// Every victim was deleted, or was gone already.
    pub all: bool,
    /// How long that took.
    pub took: Duration,
}

/// Something that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A pod was bound.
    Bound {
        /// The number of its profile.
        profile: usize,
        /// Since its last attempt began.
        took: Duration,
        /// Since its first one did.
        all: Duration,
        /// How many it needed.
        attempts: u32,
        /// It was tried again only because time went by.
        was_flushed: bool,
    },
    /// Nodes were looked at.
    Searched {
        /// The number of the pod's profile.
        profile: usize,
        /// A plugin failed meanwhile.
        failed: bool,
    },
    /// A pod has a node or none, so long after its decision began: extenders may have been asked.
    Decided(Duration),
    /// A pod got no node.
    Refused {
        /// The number of its profile.
        profile: usize,
        /// By a mistake, not because nobody takes it.
        is_error: bool,
        /// Since its attempt began, up to the decision that it is refused by.
        since: Duration,
    },
    /// An attempt exceeded this limit.
    Exhausted(Limit),
    /// The pods of a group were decided.
    Group {
        /// The number of their profile.
        profile: usize,
        /// Upstream's word for how that ended.
        result: &'static str,
    },
    /// It was looked for victims of a pod that fits nowhere.
    TriedToPreempt,
    /// So many victims make room.
    Preempted(usize),
    /// Volumes of a pod that had a node could not be bound.
    VolumesFailed,
    /// A pod has waited for conditions of its devices.
    Prepared {
        /// The number of its profile.
        profile: usize,
        /// Upstream's word for how that ended.
        status: &'static str,
        /// How long.
        took: Duration,
        /// The driver of each of its devices, and whether that one has conditions.
        devices: Vec<(String, bool)>,
    },
    /// A pod has waited for permission.
    Permitted {
        /// Upstream's word for how that ended.
        result: &'static str,
        /// How long.
        took: Duration,
    },
}
