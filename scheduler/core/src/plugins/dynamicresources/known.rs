//! Cache of slices, classes, claims and devices in use.
//!
//! Input: slices, classes and claims from watches; allocations decided and not written yet. Output:
//! devices in use, and the claims of pods. Owner: the cluster cache; pure but for the clock.
//! Bounds: the objects of the API server.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/dra_manager.go

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{NodeSelector, Pod};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;
use pintle_sched_core::bits::Bits;
use pintle_sched_core::hint::HintEvent;
use pintle_sched_core::requests::node_claims;
use pintle_sched_core::{Cluster, Plugin};

use super::offer::{Offers, Slice};
use super::rules::TaintRule;
use super::selectors::Selectors;
use super::usage::Usage;
use super::users::ClaimUsers;
use super::{DeviceGates, extended};
use crate::watch_event::{WatchedKind, WatchedObject};

/// Claims by name, at the newest version that a watch, a list or a write returned.
pub(crate) type Claims = Rc<RefCell<KnownClaims>>;

/// Upstream's event name of a claim update.
const CLAIM_UPDATE: &str = "resource.k8s.io/ResourceClaimUpdate";
/// Upstream's event name of a slice update.
const SLICE_UPDATE: &str = "resource.k8s.io/ResourceSliceUpdate";
/// Taint rules changed; upstream reports it as a change of slices.
const TAINTED: HintEvent = HintEvent::Other(&[Plugin::DynamicResources], SLICE_UPDATE);

/// See [`Claims`].
#[derive(Debug, Default)]
pub(crate) struct KnownClaims {
    all: HashMap<ObjectKey, Rc<ResourceClaim>>,
    /// Claims may belong to groups of pods (DRAWorkloadResourceClaims).
    pub(super) of_groups: bool,
}

/// Version of a claim written here, and the time: a list may be older than the write.
#[derive(Debug)]
struct WrittenClaim {
    version: u64,
    at: SystemTime,
}

/// How long a written claim outlives a list that does not have the write.
const WRITTEN_KEPT: Duration = Duration::from_secs(60);

impl Deref for KnownClaims {
    type Target = HashMap<ObjectKey, Rc<ResourceClaim>>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

/// A pending allocation of a claim.
#[derive(Debug)]
struct PendingAllocation {
    key: ObjectKey,
    allocation: AllocationResult,
    /// Number of pods that wait for it.
    pods: usize,
    /// The group cycle in which it was decided, if any.
    cycle: Option<u64>,
    /// Its own number: a claim may be allocated, deallocated, and allocated again for another pod.
    number: u64,
}

/// Rows of nodes that meet a selector, at a node count. The selector is kept, so that its address
/// stays unique.
#[derive(Debug)]
struct Reachable {
    _selector: Rc<NodeSelector>,
    nodes: u64,
    rows: Rc<Bits>,
}

/// The cache.
#[derive(Debug)]
pub struct Devices {
    claims: Claims,
    written: HashMap<ObjectKey, WrittenClaim>,
    /// Listed versions of claims that were written here just before the list.
    outlived: HashMap<ObjectKey, ResourceClaim>,
    /// Pending allocations by uid of the claim: decided, and not known to be written.
    given: HashMap<String, PendingAllocation>,
    last_given: u64,
    /// Number of groups decided, and whether a group is being decided now.
    cycles: u64,
    is_of_group: bool,
    gates: DeviceGates,
    pub(super) offers: Offers,
    pub(super) classes: BTreeMap<String, Rc<DeviceClass>>,
    /// Names of classes by extended resource.
    pub(super) extended: BTreeMap<String, String>,
    pub(super) usage: Usage,
    /// Pods with node-allocatable devices.
    pub(crate) users: ClaimUsers,
    pub(super) selectors: Selectors,
    reachable: HashMap<*const NodeSelector, Reachable>,
    /// Node names by row, at a node count.
    names: (u64, Rc<[Rc<str>]>),
    pub(super) clock: fn() -> SystemTime,
}

impl Default for Devices {
    fn default() -> Self {
        Self {
            claims: Claims::default(),
            written: HashMap::new(),
            outlived: HashMap::new(),
            given: HashMap::new(),
            last_given: 0,
            cycles: 0,
            is_of_group: false,
            gates: DeviceGates::default(),
            offers: Offers::default(),
            classes: BTreeMap::new(),
            extended: BTreeMap::new(),
            usage: Usage::default(),
            users: ClaimUsers::default(),
            selectors: Selectors::default(),
            reachable: HashMap::new(),
            names: (0, Rc::new([])),
            clock: SystemTime::now,
        }
    }
}

fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn is_recent(written: &WrittenClaim, now: SystemTime) -> bool {
    now.duration_since(written.at).is_ok_and(|age| age < WRITTEN_KEPT)
}

/// Returns the uid of a claim.
pub fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

/// Returns the allocation in a claim's status.
pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

impl Devices {
    /// Returns the claims, shared with other plugins.
    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Returns the time, by the clock that claims are stamped with.
    pub(crate) fn now(&self) -> SystemTime {
        (self.clock)()
    }

    /// A claim.
    pub(crate) fn claim(&self, key: &ObjectKey) -> Option<Rc<ResourceClaim>> {
        self.claims.borrow().get(key).cloned()
    }

    /// Is a claim being allocated (decided, and not known to be written)?
    pub(super) fn is_given(&self, claim: &ResourceClaim) -> bool {
        self.given.contains_key(uid(claim))
    }

    /// Turns DRAWorkloadResourceClaims on.
    pub(crate) fn of_groups(&mut self) {
        self.claims.borrow_mut().of_groups = true;
    }

    /// Sets the gates; must be called before the first slice.
    pub(crate) fn use_gates(&mut self, gates: DeviceGates) {
        self.gates = gates;
        self.selectors = Selectors::new(gates.lists);
    }

    /// Are DeviceTaintRules watched?
    pub(crate) fn has_rules(&self) -> bool {
        self.gates.taint_rules
    }

    /// May devices take allocatable resources of their nodes?
    pub(crate) fn takes_of_nodes(&self) -> bool {
        self.gates.allocatable
    }

    /// Records a pod on a node, with the status entries of its node-allocatable devices.
    pub(crate) fn uses(&mut self, uid: &str, pod: &Pod, node: &str) {
        if self.takes_of_nodes() {
            let namespace = key_of(pod);
            self.users.put(uid, namespace.namespace(), node_claims(pod), node);
        }
    }

    /// Begins or ends the decision of a group.
    pub(crate) fn decides_group(&mut self, is_of_group: bool) {
        self.cycles += 1;
        self.is_of_group = is_of_group;
    }

    fn cycle(&self) -> Option<u64> {
        self.is_of_group.then_some(self.cycles)
    }

    /// Returns the pending allocation of a claim that was decided in this group cycle: other pods
    /// of the group may use it too.
    // k8s: dynamicresources.go PreFilter, podGroupStateData
    pub(super) fn shared(&self, claim: &ResourceClaim) -> Option<&AllocationResult> {
        let given = self.given.get(uid(claim))?;
        (given.cycle.is_some() && given.cycle == self.cycle()).then_some(&given.allocation)
    }

    /// Adds or updates an object. Returns the event for queueing hints.
    pub(crate) fn set(&mut self, thing: WatchedObject) -> Option<HintEvent> {
        match thing {
            WatchedObject::ResourceClaim(claim) => self.set_claim(*claim),
            WatchedObject::ResourceSlice(slice) => {
                let is_new = self.offers.set(Slice::read(&slice, self.gates.lists));
                let label = match is_new {
                    true => "resource.k8s.io/ResourceSliceAdd",
                    false => SLICE_UPDATE,
                };
                Some(HintEvent::Other(&[Plugin::DynamicResources], label))
            }
            WatchedObject::DeviceTaintRule(rule) => {
                let name = rule.metadata.name.as_deref().unwrap_or_default();
                self.offers.set_rule(name, Some(TaintRule::read(&rule))).then_some(TAINTED)
            }
            WatchedObject::DeviceClass(class) => {
                let name = class.metadata.name.clone().unwrap_or_default();
                let old = self.classes.insert(name, Rc::new(*class));
                self.extended = extended::resources(self.classes.values());
                let label = match old {
                    None => "resource.k8s.io/DeviceClassAdd",
                    Some(_) => "resource.k8s.io/DeviceClassUpdate",
                };
                Some(HintEvent::Other(&[Plugin::DynamicResources, Plugin::NodeResourcesFit], label))
            }
            _ => None,
        }
    }

    /// Updates a claim, unless a newer version is known.
    // k8s: dynamicresources.go isSchedulableAfterClaimChange
    pub(crate) fn set_claim(&mut self, claim: ResourceClaim) -> Option<HintEvent> {
        let key = key_of(&claim);
        let old = self.claim(&key);
        if old.as_ref().is_some_and(|old| version(&old.metadata) > version(&claim.metadata)) {
            return None;
        }
        self.replace_claim(key, old, claim)
    }

    /// Updates a claim from a full list: it replaces the known version, even with an older one,
    /// because a restored etcd counts from a lower number. A claim written here a moment ago stays.
    pub(crate) fn set_listed(&mut self, claim: ResourceClaim) -> Option<HintEvent> {
        let key = key_of(&claim);
        let old = self.claim(&key);
        let is_newer =
            old.as_ref().is_some_and(|old| version(&old.metadata) > version(&claim.metadata));
        match is_newer && self.is_written_here(&key) {
            true => {
                self.outlived.insert(key, claim);
                None
            }
            false => self.replace_claim(key, old, claim),
        }
    }

    /// Applies listed versions of claims written here, once that is a while ago and no newer
    /// version came: a restored etcd has lost the write.
    pub(super) fn end_outlived(&mut self) {
        let is_over = |key: &&ObjectKey| !self.is_written_here(key);
        let over: Vec<ObjectKey> = self.outlived.keys().filter(is_over).cloned().collect();
        for key in over {
            if let (Some(listed), Some(old)) = (self.outlived.remove(&key), self.claim(&key)) {
                self.replace_claim(key, Some(old), listed);
            }
        }
    }

    /// Was the known version of a claim written here a moment ago?
    fn is_written_here(&self, key: &ObjectKey) -> bool {
        let known = self.claim(key).map(|claim| version(&claim.metadata));
        let written = self.written.get(key).filter(|written| Some(written.version) == known);
        written.is_some_and(|written| is_recent(written, self.now()))
    }

    fn replace_claim(
        &mut self,
        key: ObjectKey,
        old: Option<Rc<ResourceClaim>>,
        claim: ResourceClaim,
    ) -> Option<HintEvent> {
        let new = Rc::new(claim);
        self.outlived.remove(&key);
        old.as_deref().into_iter().for_each(|old| self.count(old, false));
        self.count(&new, true);
        self.claims.borrow_mut().all.insert(key.clone(), Rc::clone(&new));
        let had = old.as_deref().and_then(allocation).is_some();
        if had && allocation(&new).is_none() {
            return Some(HintEvent::Other(&[Plugin::DynamicResources], CLAIM_UPDATE));
        }
        let label = if old.is_some() { CLAIM_UPDATE } else { "resource.k8s.io/ResourceClaimAdd" };
        let is_same = old.is_some_and(|old| uid(&old) == uid(&new) && old.status == new.status);
        (!is_same).then(|| HintEvent::ResourceClaim(key.as_str().into(), label))
    }

    /// Applies the answer of a write of a claim. A claim whose deletion was observed before the
    /// answer stays deleted, because no second deletion event follows.
    // k8s: pkg/scheduler/util/assumecache/assume_cache.go Assume
    pub(crate) fn set_written(&mut self, claim: ResourceClaim) -> Option<HintEvent> {
        let key = key_of(&claim);
        let known = self.claim(&key)?;
        if uid(&known) != uid(&claim) {
            return None;
        }
        let now = self.now();
        self.written.retain(|_, written| is_recent(written, now));
        self.written.insert(key, WrittenClaim { version: version(&claim.metadata), at: now });
        self.set_claim(claim)
    }

    /// Adds or removes a claim's allocation in the usage, unless a pending allocation counts
    /// instead.
    fn count(&mut self, claim: &ResourceClaim, is_there: bool) {
        if let Some(allocation) = allocation(claim).filter(|_| !self.is_given(claim)) {
            match is_there {
                true => self.usage.add(allocation),
                false => self.usage.remove(allocation),
            }
        }
    }

    /// Removes an object. Returns the event for queueing hints.
    pub(crate) fn gone(&mut self, kind: WatchedKind, key: &ObjectKey) -> Option<HintEvent> {
        match kind {
            WatchedKind::ResourceClaim => {
                self.outlived.remove(key);
                let old = self.claims.borrow_mut().all.remove(key)?;
                self.count(&old, false);
                // The deallocation was an event of its own, if it was observed.
                let frees = allocation(&old).is_some() || extended::is_of_resources(&old);
                let label = "resource.k8s.io/ResourceClaimDelete";
                return frees.then_some(HintEvent::Other(&[Plugin::DynamicResources], label));
            }
            WatchedKind::ResourceSlice => self.offers.remove(key.name()),
            WatchedKind::DeviceTaintRule => {
                return self.offers.set_rule(key.name(), None).then_some(TAINTED);
            }
            WatchedKind::DeviceClass => {
                self.classes.remove(key.name());
                self.extended = extended::resources(self.classes.values());
            }
            _ => {}
        }
        None
    }

    /// Returns the extended resources that classes offer.
    pub(crate) fn resources(&self) -> BTreeSet<String> {
        self.extended.keys().cloned().collect()
    }

    /// Returns the names of all objects of a kind.
    pub(crate) fn keys(&self, kind: WatchedKind) -> Vec<ObjectKey> {
        let unspaced = |name: &String| ObjectKey::new("", name);
        match kind {
            WatchedKind::ResourceClaim => self.claims.borrow().keys().cloned().collect(),
            WatchedKind::ResourceSlice => self.offers.names().map(unspaced).collect(),
            WatchedKind::DeviceTaintRule => self.offers.rules().map(unspaced).collect(),
            WatchedKind::DeviceClass => self.classes.keys().map(unspaced).collect(),
            _ => Vec::new(),
        }
    }

    /// Adds a pending allocation of a claim; returns the number by which it is withdrawn.
    // k8s: dra_manager.go SignalClaimPendingAllocation
    pub(crate) fn give(&mut self, claim: &ResourceClaim, allocation: AllocationResult) -> u64 {
        if self.shared(claim).is_some()
            && let Some(given) = self.given.get_mut(uid(claim))
        {
            given.pods += 1;
            return given.number;
        }
        self.drop_pending(uid(claim));
        self.count(claim, false);
        self.usage.add(&allocation);
        let (key, cycle) = (key_of(claim), self.cycle());
        self.last_given += 1;
        let number = self.last_given;
        let given = PendingAllocation { key, allocation, pods: 1, cycle, number };
        self.given.insert(uid(claim).to_owned(), given);
        number
    }

    /// Is the claim deallocated, and not being allocated?
    pub(crate) fn is_bare(&self, claim: &ResourceClaim) -> bool {
        allocation(claim).is_none() && !self.given.contains_key(uid(claim))
    }

    /// Withdraws one pod's interest in the pending allocation of this number. Without a pod left,
    /// the claim's own status counts. A pending allocation of another number stays.
    // k8s: dra_manager.go MaybeRemoveClaimPendingAllocation
    pub(crate) fn take_back(&mut self, uid_of_claim: &str, number: u64) {
        match self.given.get_mut(uid_of_claim).filter(|given| given.number == number) {
            Some(given) if given.pods > 1 => given.pods -= 1,
            Some(_) => self.drop_pending(uid_of_claim),
            None => {}
        }
    }

    /// Drops the pending allocation of a claim: from now on the claim's own status counts.
    pub(crate) fn drop_pending(&mut self, uid_of_claim: &str) {
        let Some(given) = self.given.remove(uid_of_claim) else { return };
        self.usage.remove(&given.allocation);
        let claim = self.claim(&given.key).filter(|claim| uid(claim) == uid_of_claim);
        claim.iter().for_each(|claim| self.count(claim, true));
    }

    /// Returns node names by row.
    pub(super) fn names(&mut self, cluster: &Cluster, nodes: u64) -> Rc<[Rc<str>]> {
        let rows = cluster.view().row_count();
        if self.names.0 != nodes || self.names.1.len() != rows {
            let name = |row: usize| cluster.node_name(u32::try_from(row).unwrap_or(0)).into();
            self.names = (nodes, (0..rows).map(name).collect());
        }
        Rc::clone(&self.names.1)
    }

    /// Returns the rows of nodes that meet each selector of a slice or a device.
    pub(super) fn reachable(
        &mut self,
        cluster: &mut Cluster,
        nodes: u64,
    ) -> HashMap<*const NodeSelector, Rc<Bits>> {
        let slices = self.offers.all().flat_map(|slice| slice.selectors());
        let mut all = HashMap::new();
        for selector in slices {
            let at = Rc::as_ptr(selector);
            let known = self.reachable.remove(&at).filter(|known| known.nodes == nodes);
            let known = known.unwrap_or_else(|| Reachable {
                _selector: Rc::clone(selector),
                nodes,
                rows: Rc::new(cluster.rows_matching(&selector.node_selector_terms)),
            });
            all.insert(at, known);
        }
        // Selectors of deleted slices are dropped.
        self.reachable = all;
        self.reachable.iter().map(|(at, known)| (*at, Rc::clone(&known.rows))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::super::offer::DeviceId;
    use super::*;

    thread_local! {
        static NOW: Cell<SystemTime> = const { Cell::new(SystemTime::UNIX_EPOCH) };
    }

    /// A claim that has this device allocated, or none.
    fn claim(version: u64, device: Option<&str>) -> ResourceClaim {
        let result = |device| json!({"driver": "d", "pool": "p", "device": device, "request": "r"});
        let devices = device.map(|device| json!({"results": [result(device)]}));
        let allocation = devices.map(|devices| json!({"devices": devices}));
        let claim = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u",
                "resourceVersion": version.to_string()},
            "spec": {}, "status": {"allocation": allocation},
        });
        serde_json::from_value(claim).expect("a claim")
    }

    fn is_taken(devices: &Devices, device: &str) -> bool {
        let (driver, pool, device) = ("d".into(), "p".into(), device.into());
        devices.usage.is_taken(&DeviceId { driver, pool, device })
    }

    fn devices() -> Devices {
        Devices { clock: || NOW.get(), ..Devices::default() }
    }

    #[test]
    fn list_replaces_newer_versions_of_claims_after_a_restore() {
        let mut devices = devices();
        devices.set_claim(claim(1000, Some("x")));
        assert!(devices.set_claim(claim(10, None)).is_none(), "an event that comes late");
        assert!(is_taken(&devices, "x"));
        devices.set_listed(claim(10, None));
        assert!(!is_taken(&devices, "x"));
        devices.set_claim(claim(11, Some("y")));
        assert!(is_taken(&devices, "y"), "what follows the list counts from its number");
    }

    #[test]
    fn own_write_outlives_an_older_list_for_a_while() {
        let mut devices = devices();
        devices.set_claim(claim(10, None));
        devices.set_written(claim(12, Some("x")));
        devices.set_listed(claim(10, None));
        devices.end_outlived();
        assert!(is_taken(&devices, "x"));
        NOW.set(SystemTime::UNIX_EPOCH + WRITTEN_KEPT);
        devices.end_outlived();
        assert!(!is_taken(&devices, "x"), "the write was undone");
    }

    #[test]
    fn own_write_that_the_watch_confirms_stays() {
        let mut devices = devices();
        devices.set_claim(claim(10, None));
        devices.set_written(claim(12, Some("x")));
        devices.set_listed(claim(10, None));
        devices.set_claim(claim(12, Some("x")));
        NOW.set(SystemTime::UNIX_EPOCH + WRITTEN_KEPT);
        devices.end_outlived();
        assert!(is_taken(&devices, "x"));
    }
}
