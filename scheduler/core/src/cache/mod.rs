//! Cluster state from watches: the columns of `sched-core`, and what decisions need of pods without
//! a node.
//!
//! Input: [`WatchEvent`] by watches. Output: [`CacheDelta`]s, and the cluster after them. Owner:
//! one task. Bounds: the objects in the API server. Of a bound pod only its row in the columns and
//! its name are kept; of a node its fields as ids; of a pod without a node the pruned object, or
//! its packed text (`kept`). Fields that cannot be parsed are left out; the object is counted and
//! logged once.

mod deletion;
mod expected;
pub(crate) mod flawed;
mod kinds;
mod step;
mod whole;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;
use pintle_api_types::symbol::Symbol;
use pintle_sched_core::Profile;
use pintle_sched_core::attempt_budget::AttemptBudget;
use pintle_sched_core::hint::HintEvent;
use pintle_sched_core::intern::Str;
use pintle_sched_core::preempt::Budget;
use pintle_sched_core::snapshot::Cluster;
use pintle_sched_core::snapshot::objects::{NodeSpec, PodSpec};

use self::flawed::Flawed;
use self::kinds::{is_of_devices, is_of_volumes};
pub(crate) use self::step::Aside;
pub use self::step::{CacheDelta, Hidden};
use crate::declared::{BoundPod, Declarations, DeclaredRow};
use crate::framework::WholeNodes;
use crate::framework::pods::WholePods;
use crate::groups::Groups;
use crate::kept::{KeptPod, Shelf};
use crate::plugins::dynamicresources::known::Devices;
use crate::plugins::dynamicresources::look::{ClaimingPod, DeviceClaims, DeviceLimits};
use crate::plugins::volumes::bind::{BindProgress, Write};
use crate::plugins::volumes::{Claims, Refused, Volumes};
use crate::pod_fields::{is_over, node_name, nominated_node, scheduler_name};
use crate::watch_event::{KINDS, WatchEvent, WatchedKind, WatchedObject};

/// A nominated pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Nominee {
    /// The pod.
    pub spec: Rc<PodSpec>,
    /// The node.
    pub node: Rc<str>,
}

/// A list under way.
#[derive(Debug, Default)]
struct Listing {
    seen: HashSet<ObjectKey>,
    /// The list had an object with an unreadable name: an object is deleted once two lists lack it.
    nameless: bool,
}

/// Whole nodes, if a plugin or an extender needs them.
#[derive(Debug, Default)]
struct WholeNodeCache {
    objects: Option<HashMap<String, Rc<Node>>>,
    /// By row, once requested.
    rows: WholeNodes,
    rows_are_stale: bool,
}

/// Disruption budgets, as objects and as preemption reads them.
#[derive(Debug, Default)]
struct BudgetCache {
    objects: BTreeMap<ObjectKey, PodDisruptionBudget>,
    /// Decoded once requested, until one changes.
    decoded: Option<Rc<[Budget]>>,
}

/// Progress of the lists of each kind.
#[derive(Debug, Default)]
struct WatchState {
    lists: HashMap<WatchedKind, Listing>,
    /// Objects absent from the last list of a kind, if that list had an object without a name.
    missed: HashMap<WatchedKind, HashSet<ObjectKey>>,
    complete: HashSet<WatchedKind>,
    flawed: Flawed,
}

/// The scheduler's cache of the cluster.
#[derive(Debug)]
pub struct ClusterCache {
    /// The columns.
    pub cluster: Cluster,
    /// Scheduling profiles, at least one.
    profiles: Vec<Arc<Profile>>,
    /// Pods without a node, by key.
    waiting: HashMap<ObjectKey, Rc<KeptPod>>,
    shelf: Shelf,
    /// Pods with a node, by key.
    bound: HashMap<ObjectKey, BoundPod>,
    declarations: Declarations,
    nominated: HashMap<Str, Nominee>,
    nodes: HashMap<Str, Rc<NodeSpec>>,
    whole: WholeNodeCache,
    /// Whole pods, for out-of-tree plugins.
    pub(crate) whole_pods: Option<Rc<WholePods>>,
    disruption: BudgetCache,
    /// Volumes and claims.
    pub volumes: Volumes,
    /// Devices and ResourceClaims.
    pub devices: Devices,
    /// Pod groups, if their feature gate is on.
    pub groups: Option<Groups>,
    /// Events of volumes, devices and claims.
    happened: Vec<HintEvent>,
    /// Hashes of the selectors of workloads and labels of namespaces: their status changes often.
    others: HashMap<(WatchedKind, ObjectKey), u64>,
    watches: WatchState,
    /// The budget of the attempt under way; unlimited between attempts.
    pub attempt_budget: Rc<AttemptBudget>,
    /// A dry run is adding pods or removing them again: after a panic in between they would stay.
    pub(crate) is_changing: Cell<bool>,
}

impl ClusterCache {
    /// Creates an empty cache with one profile.
    pub fn new(profile: Profile) -> Self {
        Self::with_profiles(vec![profile])
    }

    /// Creates an empty cache. Without any profile it has the default one.
    pub fn with_profiles(profiles: Vec<Profile>) -> Self {
        let mut profiles: Vec<Arc<Profile>> = profiles.into_iter().map(Arc::new).collect();
        if profiles.is_empty() {
            profiles.push(Arc::default());
        }
        Self {
            cluster: Cluster::new(Profile::clone(&profiles[0])),
            profiles,
            waiting: HashMap::new(),
            shelf: Shelf::default(),
            bound: HashMap::new(),
            declarations: Declarations::default(),
            nominated: HashMap::new(),
            nodes: HashMap::new(),
            whole: WholeNodeCache::default(),
            whole_pods: None,
            disruption: BudgetCache::default(),
            volumes: Volumes::default(),
            devices: Devices::default(),
            groups: None,
            happened: Vec::new(),
            others: HashMap::new(),
            watches: WatchState::default(),
            attempt_budget: Rc::default(),
            is_changing: Cell::default(),
        }
    }

    /// Returns the number of the profile that a pod names, if there is one.
    // k8s: pkg/scheduler/schedule_one.go frameworkForPod
    pub fn profile_number(&self, pod: &Pod) -> Option<usize> {
        let name = scheduler_name(pod);
        self.profiles.iter().position(|profile| profile.scheduler_name == name)
    }

    /// Returns a profile by number.
    pub fn profile(&self, number: usize) -> &Arc<Profile> {
        &self.profiles[number]
    }

    /// Returns true once every kind was listed.
    pub fn is_complete(&self) -> bool {
        self.watches.complete.len() == KINDS.len() + self.gated_kinds().count()
    }

    /// Kinds that are watched because of a feature gate.
    fn gated_kinds(&self) -> impl Iterator<Item = WatchedKind> + use<> {
        let groups = self.groups.as_ref().map(|_| WatchedKind::PodGroup);
        groups.into_iter().chain(self.devices.has_rules().then_some(WatchedKind::DeviceTaintRule))
    }

    /// Returns the kinds without a complete first list.
    pub fn missing(&self) -> impl Iterator<Item = WatchedKind> + '_ {
        KINDS
            .into_iter()
            .chain(self.gated_kinds())
            .filter(|kind| !self.watches.complete.contains(kind))
    }

    /// Returns the number of objects that failed to decode, by kind.
    pub fn unreadable(&self) -> BTreeMap<WatchedKind, usize> {
        self.watches.flawed.counts()
    }

    /// Returns a pod without a node.
    pub fn waiting(&self, key: &ObjectKey) -> Option<&Rc<KeptPod>> {
        self.waiting.get(key)
    }

    /// Returns the node of a bound pod.
    pub fn node_of(&self, key: &ObjectKey) -> Option<&str> {
        self.bound.get(key).map(|pod| &*pod.node)
    }

    /// Returns the numbers of pods without a node, pods with a node, and nodes.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.waiting.len(), self.bound.len(), self.nodes.len())
    }

    /// Returns the declarations of all pods, in no order.
    pub fn declared(&self) -> Vec<DeclaredRow> {
        let row = |pod: &ObjectKey, node: Option<&Symbol>, declares| DeclaredRow {
            pod: pod.clone(),
            node: node.cloned(),
            declares: Arc::clone(declares),
        };
        let bound = self.bound.iter().map(|(key, pod)| row(key, Some(&pod.node), &pod.declares));
        let waiting = self.waiting.iter().map(|(key, pod)| row(key, None, pod.declares()));
        bound.chain(waiting).collect()
    }

    /// Returns the events of volumes, devices and claims since the last call.
    pub fn take_happened(&mut self) -> Vec<HintEvent> {
        std::mem::take(&mut self.happened)
    }

    /// Returns the nodes that a pod's volumes allow.
    ///
    /// # Errors
    /// When they allow no node.
    pub fn claims(&mut self, pod: &Pod) -> Result<Option<Claims>, Refused> {
        self.volumes.look(pod, &mut self.cluster, &self.attempt_budget)
    }

    /// Returns the nodes that a pod's ResourceClaims allow.
    ///
    /// # Errors
    /// When they allow no node.
    pub fn device_claims(
        &mut self,
        pod: &Pod,
        spec: &PodSpec,
        profile: &Profile,
    ) -> Result<Option<DeviceClaims>, Refused> {
        let (filter, binding) = (profile.timeouts.device_filter, profile.timeouts.device_binding);
        let budget = Rc::clone(&self.attempt_budget);
        let limits = DeviceLimits { filter, binding, budget };
        let resources = &spec.requests.plain.scalars;
        let group = self.groups.as_ref().and_then(|groups| groups.with_claims(pod));
        let of = ClaimingPod { pod, resources, group };
        self.devices.look(of, &mut self.cluster, self.volumes.nodes_changed, limits)
    }

    /// Returns the progress of binding a pod's volumes on a node.
    pub fn progress(&mut self, writes: &[Write], node: &str) -> BindProgress {
        self.volumes.progress(&mut self.cluster, writes, node)
    }

    /// Returns the parsed PodDisruptionBudgets.
    pub fn budgets(&mut self) -> Rc<[Budget]> {
        let (budgets, cluster) = (&self.disruption.objects, &mut self.cluster);
        let read = || cluster.budgets(budgets.values()).into();
        Rc::clone(self.disruption.decoded.get_or_insert_with(read))
    }

    /// Applies a watch event; returns the changes of pods and nodes. Objects of other kinds change
    /// at once.
    pub fn list(&mut self, watch_event: WatchEvent) -> Vec<CacheDelta> {
        match watch_event {
            WatchEvent::Begun(kind) => {
                self.watches.lists.insert(kind, Listing::default());
                Vec::new()
            }
            WatchEvent::Listed(thing) => {
                let list = self.watches.lists.entry(thing.kind()).or_default();
                list.seen.insert(thing.key());
                match thing {
                    WatchedObject::ResourceClaim(claim) => {
                        self.happened.extend(self.devices.set_listed(*claim));
                        Vec::new()
                    }
                    thing => self.set(thing),
                }
            }
            WatchEvent::Unreadable(kind, key) => {
                key.iter().for_each(|key| self.watches.flawed.put_undecoded(kind, key));
                let list = self.watches.lists.entry(kind).or_default();
                list.nameless |= key.is_none();
                list.seen.extend(key);
                Vec::new()
            }
            WatchEvent::Complete(kind) => self.end_of_list(kind),
            WatchEvent::Set(thing) => self.set(thing),
            WatchEvent::Gone(thing) => self.gone(thing.kind(), &thing.key(), Some(&thing)),
            WatchEvent::Lost(kind, key) => self.gone(kind, &key, None),
        }
    }

    fn end_of_list(&mut self, kind: WatchedKind) -> Vec<CacheDelta> {
        self.watches.complete.insert(kind);
        let list = self.watches.lists.remove(&kind).unwrap_or_default();
        let known: Vec<ObjectKey> = match kind {
            WatchedKind::Pod => self.waiting.keys().chain(self.bound.keys()).cloned().collect(),
            WatchedKind::Node => {
                let names = self.nodes.keys().map(|name| self.cluster.text(*name));
                names.map(|name| ObjectKey::new("", name)).collect()
            }
            WatchedKind::PodDisruptionBudget => self.disruption.objects.keys().cloned().collect(),
            kind if is_of_volumes(kind) => self.volumes.keys(kind),
            kind if is_of_devices(kind) => self.devices.keys(kind),
            WatchedKind::PodGroup => self.groups.iter().flat_map(Groups::keys).collect(),
            _ => self.others.keys().filter(|(k, _)| *k == kind).map(|(_, k)| k.clone()).collect(),
        };
        let flawed = self.watches.flawed.keys(kind).cloned().collect::<Vec<_>>();
        let known: HashSet<ObjectKey> = known.into_iter().chain(flawed).collect();
        let mut gone: HashSet<ObjectKey> =
            known.into_iter().filter(|key| !list.seen.contains(key)).collect();
        let missed = self.watches.missed.remove(&kind).unwrap_or_default();
        if list.nameless {
            let (twice, once) = gone.into_iter().partition(|key| missed.contains(key));
            self.watches.missed.insert(kind, once);
            gone = twice;
        }
        gone.iter().flat_map(|key| self.gone(kind, key, None)).collect()
    }

    /// Applies the current state of an object.
    pub fn set(&mut self, thing: WatchedObject) -> Vec<CacheDelta> {
        match thing {
            WatchedObject::Pod(pod) => {
                if let Some(groups) = &self.groups {
                    self.happened.extend(groups.set_pod(&pod, self.profile_number(&pod).is_some()));
                }
                self.set_pod(*pod)
            }
            WatchedObject::Node(node) => self.set_whole_node(*node),
            WatchedObject::PodGroup(group) => {
                let groups = self.groups.as_ref();
                self.happened.extend(groups.and_then(|groups| groups.set(*group)));
                Vec::new()
            }
            WatchedObject::PodDisruptionBudget(budget) => {
                self.disruption.objects.insert(key_of(&*budget), *budget);
                self.disruption.decoded = None;
                Vec::new()
            }
            other if is_of_volumes(other.kind()) => {
                self.happened.extend(self.volumes.set(other));
                Vec::new()
            }
            other if is_of_devices(other.kind()) => {
                self.happened.extend(self.devices.set(other));
                self.cluster.set_of_devices(self.devices.resources());
                Vec::new()
            }
            other => {
                self.set_other(&other);
                Vec::new()
            }
        }
    }

    /// Returns the changes of pods and nodes that a state of an object would make.
    pub fn foresee(&mut self, thing: &WatchedObject) -> Vec<CacheDelta> {
        match thing {
            WatchedObject::Pod(pod) => {
                let found = self.steps_of(pod, &key_of(&**pod));
                found.map(|(_, steps)| steps).unwrap_or_default()
            }
            WatchedObject::Node(node) => self.read_node(node).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the changes that the deletion of an object would make.
    pub fn foresee_end(
        &mut self,
        kind: WatchedKind,
        key: &ObjectKey,
        last: Option<&WatchedObject>,
    ) -> Vec<CacheDelta> {
        let pod = match last {
            Some(WatchedObject::Pod(pod)) => Some(&**pod),
            _ => None,
        };
        match kind {
            WatchedKind::Pod => self.end_of_pod(key, pod),
            WatchedKind::Node => self.end_of_node(key).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn set_other(&mut self, thing: &WatchedObject) {
        let mut hasher = DefaultHasher::new();
        let labels = thing.metadata().labels.as_ref();
        let fields = match thing {
            WatchedObject::Namespace(_) => format!("{labels:?}"),
            WatchedObject::Service(o) => format!("{:?}", o.spec.as_ref().map(|s| &s.selector)),
            WatchedObject::ReplicaSet(o) => format!("{:?}", o.spec.as_ref().map(|s| &s.selector)),
            WatchedObject::StatefulSet(o) => format!("{:?}", o.spec.as_ref().map(|s| &s.selector)),
            WatchedObject::ReplicationController(o) => {
                format!("{:?}", o.spec.as_ref().map(|s| &s.selector))
            }
            _ => return,
        };
        fields.hash(&mut hasher);
        let digest = hasher.finish();
        if self.others.insert((thing.kind(), thing.key()), digest) == Some(digest) {
            return;
        }
        match thing {
            WatchedObject::Namespace(o) => self.cluster.set_namespace(o),
            WatchedObject::Service(o) => self.cluster.set_service(o),
            WatchedObject::ReplicaSet(o) => self.cluster.set_replica_set(o),
            WatchedObject::StatefulSet(o) => self.cluster.set_stateful_set(o),
            WatchedObject::ReplicationController(o) => self.cluster.set_replication_controller(o),
            _ => {}
        }
    }

    fn set_pod(&mut self, mut pod: Pod) -> Vec<CacheDelta> {
        let key = key_of(&pod);
        let Some((spec, steps)) = self.steps_of(&pod, &key) else { return Vec::new() };
        let declares = self.declarations.of(&pod);
        self.forget_whole(&key);
        if let Some(whole) = self.whole_pods.as_ref().filter(|_| !is_over(&pod)) {
            whole.set(&pod);
        }
        match node_name(&pod) {
            Some(_) if is_over(&pod) => {
                self.bound.remove(&key);
            }
            Some(node) => {
                self.waiting.remove(&key);
                self.volumes.users.put(self.cluster.text(spec.key), &pod, node);
                self.devices.uses(self.cluster.text(spec.key), &pod, node);
                let (uid, node) = (spec.key, Symbol::of(node));
                self.bound.insert(key, BoundPod { uid, node, declares });
            }
            None => {
                self.bound.remove(&key);
                // The node name may be an empty string.
                pod.spec.iter_mut().for_each(|spec| spec.node_name = None);
                self.waiting.insert(key, self.shelf.keep(pod, spec, declares));
            }
        }
        steps
    }

    /// Reads a pod and returns its changes; `None` for a pod without a name.
    fn steps_of(&mut self, pod: &Pod, key: &ObjectKey) -> Option<(Rc<PodSpec>, Vec<CacheDelta>)> {
        let spec = self.spec_of(pod, key)?;
        let mut steps = Vec::new();
        // The deletion of an earlier pod of the same name was not observed.
        let is_it = |known: &Rc<KeptPod>| known.uid() == pod.metadata.uid.as_deref();
        let waits = self.waiting.get(key).cloned().filter(is_it);
        let is_other = match self.bound.get(key) {
            Some(known) => known.uid != spec.key,
            None => waits.is_none() && self.waiting.contains_key(key),
        };
        if is_other {
            steps.extend(self.end_of_pod(key, None));
        }
        steps.extend(self.nomination_of(pod, &spec, waits.as_deref()));
        let Some(node) = node_name(pod) else {
            // The API server lost the binding, as after a restore of its store.
            let had = self.bound.get(key).filter(|known| known.uid == spec.key);
            steps.extend(had.map(|known| CacheDelta::Gone {
                pod: spec.key,
                last: Some(Rc::clone(&spec)),
                node: known.node.as_str().into(),
            }));
            return Some((spec, steps));
        };
        let node: Rc<str> = node.into();
        match self.cluster.pods().find(spec.key).map(|id| self.cluster.pods().get(id).terminating) {
            _ if is_over(pod) => steps.extend(self.end_of_pod(key, Some(pod))),
            None => steps.push(CacheDelta::Bound(Rc::clone(&spec), node)),
            Some(terminating) => {
                // Other fields of a bound pod seldom change; their changes are not undone.
                let old = PodSpec { terminating, ..(*spec).clone() };
                let (old, new) = (Rc::new(old), Rc::clone(&spec));
                steps.push(CacheDelta::Changed { old, new, node });
            }
        }
        Some((spec, steps))
    }

    /// Returns the change of a pod's nomination. The nomination here may be newer than the one in
    /// the API, so only a difference from the pod's previous state counts.
    // k8s: pkg/scheduler/backend/queue/nominator.go updateNominatedPodUnlocked
    fn nomination_of(
        &self,
        pod: &Pod,
        spec: &Rc<PodSpec>,
        before: Option<&KeptPod>,
    ) -> Option<CacheDelta> {
        let has_node = self.cluster.pods().find(spec.key).is_some() || node_name(pod).is_some();
        // Other schedulers keep the nominations of their own pods.
        let counts = !has_node && self.profile_number(pod).is_some();
        let nominated = if counts { nominated_node(pod) } else { None };
        let old = self.nominated.get(&spec.key).cloned();
        let stays = !has_node && before.is_some_and(|before| before.nominated_node() == nominated);
        let node = match &old {
            // The nomination stays; the pod may have changed.
            Some(old) if stays => Some(Rc::clone(&old.node)),
            None if stays => None,
            _ => nominated.map(Rc::from),
        };
        let new = node.map(|node| Nominee { spec: Rc::clone(spec), node });
        (old != new).then_some(CacheDelta::Nominated { pod: spec.key, old, new })
    }

    fn read_node(&mut self, node: &Node) -> Option<CacheDelta> {
        let key = key_of(node);
        match self.cluster.read_node(node) {
            Ok(spec) => {
                self.watches.flawed.take(WatchedKind::Node, &key);
                let old = self.nodes.get(&spec.name).cloned();
                Some(CacheDelta::Node { old, new: Some(Rc::new(spec)) })
            }
            Err(error) => {
                let stays = "it stays what it was, if it was known";
                self.watches.flawed.put(WatchedKind::Node, &key, stays, &error);
                None
            }
        }
    }
}
