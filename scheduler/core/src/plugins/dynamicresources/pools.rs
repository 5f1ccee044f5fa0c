//! The pools that have devices for a node.
//!
//! Input: slices, a node. Output: pools in the order in which devices are allocated; incomplete and
//! invalid pools are marked. Owner: pure functions. Bounds: the slices.
// k8s: structured/internal/incubating/pools_incubating.go

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use super::offer::{AllocationNode, Counters, Device, Offers, Reach, Slice};

/// Driver and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PoolId {
    driver: Rc<str>,
    pool: Rc<str>,
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

/// State of a pool: may its devices be allocated?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Good,
    /// Some of its slices were not observed yet.
    Incomplete,
    /// Its slices contradict each other.
    Invalid,
}

/// A pool.
#[derive(Clone, Debug)]
pub(super) struct DevicePool {
    pub(super) id: PoolId,
    pub(super) state: State,
    /// Slices with devices for the node, by name.
    pub(super) near: Vec<Rc<Slice>>,
    /// Slices for other nodes, whose devices consume the same counters.
    pub(super) far: Vec<Rc<Slice>>,
    /// Counters by the name of their set.
    pub(super) counters: BTreeMap<String, Counters>,
}

impl DevicePool {
    /// A pool without usable devices.
    fn unusable(id: PoolId, state: State) -> Self {
        Self { id, state, near: Vec::new(), far: Vec::new(), counters: BTreeMap::new() }
    }

    fn has_conditions(&self) -> bool {
        let devices = self.near.iter().flat_map(|slice| &slice.devices);
        devices.into_iter().any(|device| device.conditions.is_some())
    }
}

/// Returns the pools of a node by driver and name; pools with devices that have binding conditions
/// come last.
pub(super) fn pools(offers: &Offers, place: &dyn AllocationNode) -> Vec<DevicePool> {
    let mut found: BTreeMap<PoolId, Vec<Rc<Slice>>> = BTreeMap::new();
    for slice in offers.near(place.name()).filter(|slice| is_near(slice, place)) {
        let id = PoolId { driver: Rc::clone(&slice.driver), pool: Rc::clone(&slice.pool) };
        let slices = found.entry(id).or_default();
        let newest = slices.first().map_or(i64::MIN, |other| other.generation);
        if slice.generation > newest {
            slices.clear();
        }
        if slice.generation >= newest {
            slices.push(Rc::clone(slice));
        }
    }
    let pools = found.into_iter().filter_map(|(id, slices)| pool(offers, id, slices));
    let (late, mut all): (Vec<_>, Vec<_>) = pools.partition(DevicePool::has_conditions);
    all.extend(late);
    all
}

fn is_near(slice: &Slice, place: &dyn AllocationNode) -> bool {
    // Counters apply wherever the devices that consume them are.
    let per_device = || slice.devices.iter().any(|device| device.reach.is(place));
    !slice.shared.is_empty()
        || match &slice.reach {
            Reach::PerDevice => per_device(),
            reach => reach.is(place),
        }
}

/// Builds a pool from these slices; `None` if a newer generation replaces them.
fn pool(offers: &Offers, id: PoolId, mut near: Vec<Rc<Slice>>) -> Option<DevicePool> {
    let (generation, count) = (near[0].generation, near[0].count);
    near.sort_by(|a, b| a.name.cmp(&b.name));
    let has = |slices: &[Rc<Slice>]| i64::try_from(slices.len()) == Ok(count);
    if has(&near) {
        return Some(built(id, near, Vec::new()));
    }
    // The pool's other slices may be for other nodes only.
    let is_of = |slice: &&Rc<Slice>| slice.driver == id.driver && slice.pool == id.pool;
    let all: Vec<&Rc<Slice>> = offers.all().filter(is_of).collect();
    if all.iter().any(|slice| slice.generation > generation) {
        return None;
    }
    let current = all.into_iter().filter(|slice| slice.generation == generation);
    let current: Vec<Rc<Slice>> = current.cloned().collect();
    if !has(&current) {
        return Some(DevicePool::unusable(id, State::Incomplete));
    }
    let is_far = |slice: &Rc<Slice>| !near.iter().any(|other| other.name == slice.name);
    let far = current.into_iter().filter(is_far).collect();
    Some(built(id, near, far))
}

fn built(id: PoolId, slices: Vec<Rc<Slice>>, far: Vec<Rc<Slice>>) -> DevicePool {
    let mut counters = BTreeMap::new();
    for (name, set) in slices.iter().flat_map(|slice| &slice.shared) {
        if counters.insert(name.clone(), set.clone()).is_some() {
            return DevicePool::unusable(id, State::Invalid);
        }
    }
    let mut names = BTreeSet::new();
    let near: Vec<Rc<Slice>> = slices.into_iter().filter(|s| s.shared.is_empty()).collect();
    let has_counters = |device: &Device| {
        device.consumes.iter().all(|(set, taken)| {
            let set = counters.get(set);
            set.is_some_and(|set| taken.keys().all(|name| set.contains_key(name)))
        })
    };
    let all_good = |slices: &[Rc<Slice>]| {
        let mut devices = slices.iter().flat_map(|slice| &slice.devices);
        devices.all(has_counters)
    };
    let mut devices = near.iter().flat_map(|slice| &slice.devices);
    let is_good =
        devices.all(|device| names.insert(&device.id.device)) && all_good(&near) && all_good(&far);
    if !is_good {
        return DevicePool::unusable(id, State::Invalid);
    }
    DevicePool { id, state: State::Good, near, far, counters }
}
