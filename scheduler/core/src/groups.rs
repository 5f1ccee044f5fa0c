//! Pod groups: their API objects, and the state of each group's pods.
//!
//! ```text
//!   pod without node ──> waits ── assume ──> assumed ── observed with a node ──> assigned
//!                          ^ ───── forget ─────┘
//! ```
//! Input: `PodGroup`s and pods as observed, pods that were assumed. Output: whether a pod may be
//! decided, whether its gang has enough pods with nodes, which pods wait. Owner: the deciding
//! thread; shared with its pods. Bounds: the groups and pods in the API server. Unused without the
//! feature gate GenericWorkload.
// k8s: pkg/scheduler/backend/cache/podgroupstate.go,
//      pkg/scheduler/framework/plugins/gangscheduling/gangscheduling.go

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;
use pintle_sched_core::Cluster;
use pintle_sched_core::hint::HintEvent;
use pintle_sched_core::intern::Str;
use pintle_sched_core::preempt::units::Membership;

use crate::pod_fields::{is_over, node_name};
use crate::uid::Uid;

/// The disruption mode of a group that is preempted as a whole.
const WHOLE: &str = "PodGroup";
/// The condition of a group that reports how its pods were scheduled.
pub const SCHEDULED: &str = "PodGroupScheduled";

/// Feature gates of pod groups beyond GenericWorkload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupGates {
    /// GangScheduling: pods of a gang wait for each other.
    pub gangs: bool,
    /// TopologyAwareWorkloadScheduling: a group is placed within one domain of its topology.
    pub topology: bool,
    /// WorkloadAwarePreemption: a group preempts as a whole, and groups may be victims as a whole.
    pub preemption: bool,
    /// DRAWorkloadResourceClaims: ResourceClaims may belong to groups.
    pub claims: bool,
}

/// Reason why a group has no answer: its object does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// For claims and topology.
    #[error("podgroup.scheduling.k8s.io \"{}\" not found", .0.name())]
    NotFound(ObjectKey),
    /// At Permit.
    #[error(
        "running Permit plugin \"GangScheduling\": failed to get podGroup {}: \
         podgroup.scheduling.k8s.io \"{}\" not found",
        .0.as_str(), .0.name()
    )]
    Permit(ObjectKey),
    /// At preemption.
    #[error(
        "failed to get pod group object: podgroup.scheduling.k8s.io \"{}\" not found",
        .0.name()
    )]
    Preemption(ObjectKey),
}

/// State of a pod of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    Waits,
    Assumed,
    Assigned,
}

/// All pod groups and their pods.
#[derive(Clone, Debug, Default)]
pub struct Groups(Rc<RefCell<KnownGroup>>);

#[derive(Debug, Default)]
struct KnownGroup {
    gates: GroupGates,
    groups: HashMap<ObjectKey, Rc<PodGroup>>,
    /// Groups with PodGroupScheduled=True reported by this process, by name: their uids.
    scheduled: HashMap<ObjectKey, Option<String>>,
    members: HashMap<ObjectKey, BTreeMap<Uid, MemberState>>,
    of_pods: HashMap<ObjectKey, (ObjectKey, Uid)>,
    /// Uids of groups with a preemption under way.
    preempting: HashSet<String>,
    /// By uid, names of groups with a release of claims that is being written.
    releasing: HashMap<Uid, ObjectKey>,
}

/// A group that preempts.
// k8s: pkg/scheduler/framework/preemption/types.go podGroupPreemptor
#[derive(Clone, Debug)]
pub struct Preemptor {
    /// Its priority.
    pub priority: i32,
    /// Namespace and name.
    pub key: ObjectKey,
    /// Uid.
    pub uid: Uid,
    /// The resource version in which the group was observed.
    pub version: Option<String>,
    /// The group has a topology constraint.
    pub has_topology: bool,
}

impl KnownGroup {
    fn of_stand(&self, group: &ObjectKey, stand: MemberState) -> Vec<Uid> {
        let members = self.members.get(group).into_iter().flatten();
        members.filter(|(_, is)| **is == stand).map(|(uid, _)| uid.clone()).collect()
    }

    fn count(&self, group: &ObjectKey, counts: impl Fn(MemberState) -> bool) -> usize {
        let members = self.members.get(group).into_iter().flatten();
        members.filter(|(_, stand)| counts(**stand)).count()
    }

    /// Returns the number of pods that a gang needs at least; `None` for a group that is no gang.
    fn min_count(&self, group: &ObjectKey) -> Option<usize> {
        let gang = self.groups.get(group)?.spec.scheduling_policy.gang.as_ref()?;
        Some(usize::try_from(gang.min_count).unwrap_or(0))
    }

    fn take_pod(&mut self, pod: &ObjectKey) {
        let Some((group, uid)) = self.of_pods.remove(pod) else { return };
        if let Some(members) = self.members.get_mut(&group) {
            members.remove(&uid);
            if members.is_empty() {
                self.members.remove(&group);
            }
        }
    }

    /// Returns the priority of a group that is preempted as a whole or not at all.
    // k8s: pkg/scheduler/framework/preemption/types.go isPodGroupPreemptiblePod
    fn goes_whole(&self, group: &ObjectKey) -> Option<i32> {
        let spec = &self.groups.get(group)?.spec;
        let is_whole = spec.disruption_mode.as_deref() == Some(WHOLE);
        is_whole.then_some(spec.priority.unwrap_or(0))
    }

    /// Changes the state of a known pod from `from` to `to`.
    fn moves(&mut self, group: &ObjectKey, uid: &str, from: MemberState, to: MemberState) {
        let members = self.members.get_mut(group);
        if let Some(stand) = members.and_then(|all| all.get_mut(uid)).filter(|s| **s == from) {
            *stand = to;
        }
    }
}

impl Groups {
    /// Creates an empty set of groups.
    #[must_use]
    pub fn new(gates: GroupGates) -> Self {
        Self(Rc::new(RefCell::new(KnownGroup { gates, ..KnownGroup::default() })))
    }

    /// Returns the names of the observed groups.
    pub fn keys(&self) -> Vec<ObjectKey> {
        self.0.borrow().groups.keys().cloned().collect()
    }

    /// Adds or replaces a group. Returns the event of a group that is new.
    pub fn set(&self, group: PodGroup) -> Option<HintEvent> {
        let key = key_of(&group);
        let is_new = self.0.borrow_mut().groups.insert(key.clone(), Rc::new(group)).is_none();
        is_new.then(|| HintEvent::Group(key.as_str().into(), "scheduling.k8s.io/PodGroupAdd"))
    }

    /// Removes a group; its pods may still exist.
    pub fn gone(&self, key: &ObjectKey) {
        let mut known = self.0.borrow_mut();
        known.groups.remove(key);
        known.scheduled.remove(key);
    }

    /// Updates the state of a pod. A pod without a node counts only if this scheduler decides it.
    /// Returns the event of a pod that got a node, because other pods of its group may wait for it.
    // k8s: gangscheduling/gangscheduling.go isSchedulableAfterPodAdded
    pub fn set_pod(&self, pod: &Pod, is_ours: bool) -> Option<HintEvent> {
        let key = key_of(pod);
        let mut known = self.0.borrow_mut();
        let Some(group) = group_of(pod) else {
            known.take_pod(&key);
            return None;
        };
        let uid = uid_of(pod, &key);
        if known.of_pods.get(&key).is_some_and(|of| *of != (group.clone(), uid.clone())) {
            known.take_pod(&key);
        }
        let has_node = node_name(pod).is_some();
        if is_over(pod) || !has_node && !is_ours {
            known.take_pod(&key);
            return None;
        }
        known.of_pods.insert(key, (group.clone(), uid.clone()));
        let told = HintEvent::Group(group.as_str().into(), "AssignedPodAdd");
        let stand =
            known.members.entry(group).or_default().entry(uid).or_insert(MemberState::Waits);
        let comes = has_node && *stand != MemberState::Assigned;
        if has_node {
            *stand = MemberState::Assigned;
        }
        comes.then_some(told)
    }

    /// Removes a pod.
    pub fn end_of_pod(&self, pod: &ObjectKey) {
        self.0.borrow_mut().take_pod(pod);
    }

    /// Returns, for pods on nodes, whether they are preempted with their group.
    pub fn memberships(&self, cluster: &Cluster) -> HashMap<Str, Membership> {
        let known = self.0.borrow();
        let mut found = HashMap::new();
        for (number, (group, members)) in known.members.iter().enumerate() {
            let whole = known.goes_whole(group);
            let membership = whole.map(|priority| Membership::Whole(number, priority));
            let placed = members.keys().filter_map(|uid| cluster.placed(uid));
            found.extend(placed.map(|pod| (pod, membership.unwrap_or(Membership::Alone))));
        }
        found
    }

    /// Returns true if ResourceClaims may belong to groups.
    pub fn have_claims(&self) -> bool {
        self.0.borrow().gates.claims
    }

    /// Returns the group of a pod, which claims may belong to; an error if the group was deleted.
    // k8s: dynamicresources.go getPodGroup
    pub fn with_claims(&self, pod: &Pod) -> Option<Result<Rc<PodGroup>, GroupError>> {
        let known = self.0.borrow();
        let key = group_of(pod).filter(|_| known.gates.claims)?;
        let missing = || GroupError::NotFound(key.clone());
        Some(known.groups.get(&key).cloned().ok_or_else(missing))
    }

    /// Marks the preemption for a group as under way.
    pub fn preempts(&self, uid: &str) {
        self.0.borrow_mut().preempting.insert(uid.to_owned());
    }

    /// Ends the preemption for a group and returns its waiting pods; `None` if none was under way.
    pub fn end_preemption(&self, group: &ObjectKey, uid: &str) -> Option<Vec<Uid>> {
        let mut known = self.0.borrow_mut();
        known.preempting.remove(uid).then(|| known.of_stand(group, MemberState::Waits))
    }

    /// Marks the release of a group's claims as under way.
    pub fn releases(&self, group: &ObjectKey, uid: &Uid) {
        self.0.borrow_mut().releasing.insert(uid.clone(), group.clone());
    }

    /// Ends the release of a group's claims and returns its waiting pods; `None` if none was under
    /// way.
    pub fn end_release(&self, uid: &str) -> Option<Vec<Uid>> {
        let mut known = self.0.borrow_mut();
        let group = known.releasing.remove(uid)?;
        Some(known.of_stand(&group, MemberState::Waits))
    }

    /// Returns the handle of a pod to its group; `is_gang` if the pod's profile supports gangs.
    pub fn of(&self, pod: &Pod, is_gang: bool) -> Option<OfGroup> {
        let is_gang = is_gang && self.0.borrow().gates.gangs;
        Some(OfGroup { key: group_of(pod)?, groups: self.clone(), is_gang })
    }

    /// Returns the group as last observed, and the condition if it differs from the group's own.
    // k8s: pkg/scheduler/schedule_one_podgroup.go updatePodGroupCondition
    pub fn changed_condition(
        &self,
        key: &ObjectKey,
        mut condition: PodCondition,
    ) -> Option<(Rc<PodGroup>, PodCondition)> {
        let mut known = self.0.borrow_mut();
        let group = Rc::clone(known.groups.get(key)?);
        let all = group.status.as_ref().and_then(|status| status.conditions.as_deref());
        let old = all.into_iter().flatten().find(|old| old.type_ == condition.type_);
        let was_said = known.scheduled.get(key).is_some_and(|uid| *uid == group.metadata.uid);
        let is_scheduled = was_said || old.is_some_and(|old| old.status == "True");
        if is_scheduled && condition.status != "True" {
            return None;
        }
        condition.observed_generation = group.metadata.generation;
        let is_same = old.is_some_and(|old| {
            old.status == condition.status
                && Some(&old.reason) == condition.reason.as_ref()
                && Some(&old.message) == condition.message.as_ref()
                && old.observed_generation == condition.observed_generation
        });
        if condition.status == "True" {
            known.scheduled.insert(key.clone(), group.metadata.uid.clone());
        }
        (!is_same).then_some((group, condition))
    }
}

/// Handle of a pod to its group.
#[derive(Clone, Debug)]
pub struct OfGroup {
    /// The group's name.
    pub key: ObjectKey,
    groups: Groups,
    /// The pod waits for the other pods if the group is a gang.
    is_gang: bool,
}

impl OfGroup {
    /// Returns the event of a further pod in the group.
    #[must_use]
    pub fn pod_is_there(&self) -> HintEvent {
        HintEvent::Group(self.key.as_str().into(), "UnschedulablePodAdd")
    }

    /// Returns true until the group exists and has as many pods as the gang needs.
    // k8s: gangscheduling.go PreEnqueue
    #[must_use]
    pub fn is_gated(&self) -> bool {
        if !self.is_gang {
            return false;
        }
        let known = self.groups.0.borrow();
        if !known.groups.contains_key(&self.key) {
            return true;
        }
        let min = known.min_count(&self.key);
        min.is_some_and(|min| known.count(&self.key, |_| true) < min)
    }

    /// Enough pods of the gang have nodes to be bound.
    ///
    /// # Errors
    /// When the group was deleted.
    // k8s: gangscheduling.go Permit
    pub fn is_enough(&self) -> Result<bool, GroupError> {
        if !self.is_gang {
            return Ok(true);
        }
        let known = self.groups.0.borrow();
        if !known.groups.contains_key(&self.key) {
            return Err(GroupError::Permit(self.key.clone()));
        }
        let min = known.min_count(&self.key);
        Ok(min.is_none_or(|min| known.count(&self.key, |stand| stand != MemberState::Waits) >= min))
    }

    /// Counts a pod of the group as on a node.
    pub fn assume(&self, uid: &str) {
        self.groups.0.borrow_mut().moves(&self.key, uid, MemberState::Waits, MemberState::Assumed);
    }

    /// Reverts `assume`.
    pub fn forget(&self, uid: &str) {
        self.groups.0.borrow_mut().moves(&self.key, uid, MemberState::Assumed, MemberState::Waits);
    }

    /// Returns true if groups are placed within one domain of a topology.
    #[must_use]
    pub fn has_placements(&self) -> bool {
        self.groups.0.borrow().gates.topology
    }

    /// Returns the topology key of the group, and whether the group has constraints at all.
    ///
    /// # Errors
    /// When the group was deleted.
    pub fn topology(&self) -> Result<(Option<String>, bool), GroupError> {
        let known = self.groups.0.borrow();
        let group = known.groups.get(&self.key);
        let group = group.ok_or_else(|| GroupError::NotFound(self.key.clone()))?;
        let constraints = group.spec.scheduling_constraints.as_ref();
        let keys = constraints.and_then(|constraints| constraints.topology.as_ref());
        let key = keys.and_then(|keys| keys.first()).map(|topology| topology.key.clone());
        Ok((key, constraints.is_some()))
    }

    /// Returns names and uids of the group's pods that are on nodes or assumed.
    #[must_use]
    pub fn placed(&self) -> Vec<(ObjectKey, Uid)> {
        let known = self.groups.0.borrow();
        let members = known.members.get(&self.key);
        let is_placed = |uid: &Uid| {
            members.and_then(|all| all.get(uid)).is_some_and(|stand| *stand != MemberState::Waits)
        };
        let of_pods = known.of_pods.iter();
        let placed = of_pods.filter(|(_, (group, uid))| *group == self.key && is_placed(uid));
        let placed = placed.map(|(pod, (_, uid))| (pod.clone(), uid.clone()));
        let mut placed: Vec<_> = placed.collect();
        placed.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
        placed
    }

    /// Returns the assumed pods of the group.
    #[must_use]
    pub fn assumed(&self) -> Vec<Uid> {
        self.groups.0.borrow().of_stand(&self.key, MemberState::Assumed)
    }

    /// Returns the pods of the group without a node.
    #[must_use]
    pub fn waiting(&self) -> Vec<Uid> {
        self.groups.0.borrow().of_stand(&self.key, MemberState::Waits)
    }

    /// Returns true if groups preempt as a whole, and their pods never alone.
    #[must_use]
    pub fn preempts_whole(&self) -> bool {
        self.groups.0.borrow().gates.preemption
    }

    /// Returns true if ResourceClaims may belong to the group.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        self.groups.have_claims()
    }

    /// Returns true while the group's pods are held: its preemption or a release of its claims is
    /// under way.
    // k8s: defaultpreemption/default_preemption.go PreEnqueue
    #[must_use]
    pub fn is_held(&self) -> bool {
        let known = self.groups.0.borrow();
        let group = known.groups.get(&self.key);
        let preempts = !known.preempting.is_empty()
            && group.is_some_and(|group| known.preempting.contains(&*uid_of_group(group)));
        preempts || known.releasing.values().any(|key| *key == self.key)
    }

    /// Returns the group as a preemptor.
    ///
    /// # Errors
    /// When the group was deleted.
    pub fn preemptor(&self) -> Result<Preemptor, GroupError> {
        let known = self.groups.0.borrow();
        let group = known.groups.get(&self.key);
        let group = group.ok_or_else(|| GroupError::Preemption(self.key.clone()))?;
        let constraints = group.spec.scheduling_constraints.as_ref();
        let topology = constraints.and_then(|constraints| constraints.topology.as_ref());
        Ok(Preemptor {
            priority: group.spec.priority.unwrap_or(0),
            key: self.key.clone(),
            uid: uid_of_group(group),
            version: group.metadata.resource_version.clone(),
            has_topology: topology.is_some_and(|keys| !keys.is_empty()),
        })
    }
}

/// The group that a pod's spec names.
fn group_of(pod: &Pod) -> Option<ObjectKey> {
    let group = pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.as_deref()?;
    Some(ObjectKey::new(pod.metadata.namespace.as_deref().unwrap_or_default(), group))
}

fn uid_of_group(group: &PodGroup) -> Uid {
    group.metadata.uid.as_deref().unwrap_or_default().into()
}

/// The uid under which the queue has the pod.
fn uid_of(pod: &Pod, key: &ObjectKey) -> Uid {
    pod.metadata.uid.as_deref().unwrap_or(key.as_str()).into()
}
