//! Depth-first search for devices that satisfy all requests and constraints.
//!
//! Requests are served one after the other, each device of a request starting where the previous
//! one was found: the first full solution wins, in the same order as upstream. Input: requests of
//! claims, pools. Output: the devices of each claim. Owner: one allocation. Bounds: exhaustive;
//! [`DeviceOffers::is_late`] and the budget of the attempt end it.
// k8s: structured/internal/incubating/allocator_incubating.go allocateOne, allocateDevice

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use pintle_api_types::quantity::Amount;
use pintle_cel::EvaluationLimits;
use pintle_sched_core::attempt_budget::Exhausted;

use super::allocate::{DeviceOffers, RESULTS_MAX};
use super::capacity;
use super::constraint::Constraint;
use super::offer::{AllocationNode, Counters, Device, DeviceId, Reach, Slice};
use super::pools::{DevicePool, State};
use super::request::{ALL, AskedDevice, name};
use super::selectors::SelectorOrigin;
use super::usage::UsedParts;

/// Steps between two checks of the node's time limit.
const STEPS_UNSEEN: u64 = 64;
/// Work of a step.
const STEP_WORK: u64 = 32;
/// Label of budget steps spent on the search.
pub(super) const SEARCHING: &str = "searching for devices";

/// Index of a request, or of an alternative of one, of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestIndex {
    pub(super) claim: usize,
    pub(super) request: usize,
    pub(super) sub: usize,
}

/// Index of a device, in the order in which devices are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) pool: usize,
    pub(super) slice: usize,
    pub(super) device: usize,
}

/// A request, or one alternative of it.
#[derive(Clone, Debug)]
pub(super) struct SearchRequest<'a> {
    pub(super) request: AskedDevice<'a>,
    pub(super) class: Rc<DeviceClass>,
    pub(super) count: usize,
    /// The devices, for allocation mode All.
    pub(super) all: Vec<Spot>,
}

/// A device chosen for a request.
#[derive(Clone, Debug)]
pub(super) struct ChosenDevice {
    pub(super) key: RequestIndex,
    pub(super) spot: Spot,
    /// The amounts taken, if the device is shared.
    pub(super) part: Option<Counters>,
}

/// Reason why the search ends without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SearchStop {
    /// The claim would have too many devices whatever is tried next.
    TooMany,
    Late,
    /// The attempt has spent its budget.
    Exhausted(Exhausted),
    Error(String),
}

impl From<String> for SearchStop {
    fn from(error: String) -> Self {
        Self::Error(error)
    }
}

/// An open step, which waits for the result of the steps after it.
enum OpenStep {
    /// All requests of a claim have their devices.
    Claim(usize),
    /// This alternative of a request is being tried; `all_too_many` says if all earlier ones
    /// exceeded the limit of devices.
    Alternative { key: RequestIndex, all_too_many: bool },
    /// A request has the device of this number; `next` is the next device to try instead.
    Device { key: RequestIndex, number: usize, next: Option<Spot> },
}

/// Next step of the search.
enum SearchStep {
    /// A request of a claim.
    Request(usize, usize),
    /// Find the device of this number, at the spot or later.
    Device(RequestIndex, usize, Spot),
    /// Replace a device that led to no solution.
    Other(RequestIndex, usize, Spot),
    /// Return to the open steps with a result.
    Back(Result<bool, SearchStop>),
}

/// Counters of a pool, by the names of set and counter.
type PoolCounters = BTreeMap<(String, String), Amount>;

/// A search.
pub(super) struct Search<'a> {
    pub(super) world: DeviceOffers<'a>,
    place: &'a dyn AllocationNode,
    pub(super) claims: &'a [Rc<ResourceClaim>],
    pub(super) pools: Vec<DevicePool>,
    /// Requests by claim, request and alternative.
    pub(super) requests: Vec<Vec<Vec<Rc<SearchRequest<'a>>>>>,
    pub(super) constraints: Vec<Vec<Constraint>>,
    /// Chosen alternatives, by claim and request.
    pub(super) selected: HashMap<(usize, usize), usize>,
    pub(super) results: Vec<Vec<ChosenDevice>>,
    fits: HashMap<(RequestIndex, Spot), bool>,
    /// Claims that get the device in this search.
    giving: HashMap<DeviceId, BTreeSet<usize>>,
    parts: HashMap<DeviceId, UsedParts>,
    /// Counters of pools before this search, and the amounts that it takes.
    left: HashMap<usize, PoolCounters>,
    taken: HashMap<usize, PoolCounters>,
    steps: u64,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        world: DeviceOffers<'a>,
        place: &'a dyn AllocationNode,
        claims: &'a [Rc<ResourceClaim>],
        pools: Vec<DevicePool>,
    ) -> Self {
        Self {
            world,
            place,
            claims,
            pools,
            requests: Vec::new(),
            constraints: Vec::new(),
            selected: HashMap::new(),
            results: vec![Vec::new(); claims.len()],
            fits: HashMap::new(),
            giving: HashMap::new(),
            parts: HashMap::new(),
            left: HashMap::new(),
            taken: HashMap::new(),
            steps: 0,
        }
    }

    /// Runs the search; true if there is a solution, which is then in `results`. Open steps are
    /// kept here and not on the stack, because a pod may name any number of claims.
    pub(super) fn run(&mut self) -> Result<bool, SearchStop> {
        let mut open = Vec::new();
        let mut next = SearchStep::Request(0, 0);
        loop {
            let found = match next {
                SearchStep::Request(claim, request) => Ok(self.request(claim, request, &mut open)),
                SearchStep::Device(key, number, from) => {
                    self.device_of(key, number, from, &mut open)
                }
                SearchStep::Other(key, number, from) => {
                    self.search_from(key, number, from, &mut open)
                }
                SearchStep::Back(found) => match open.pop() {
                    Some(at) => Ok(self.back(at, found, &mut open)),
                    None => return found,
                },
            };
            next = found.unwrap_or_else(|stop| SearchStep::Back(Err(stop)));
        }
    }

    pub(super) fn slice(&self, spot: Spot) -> &Rc<Slice> {
        &self.pools[spot.pool].near[spot.slice]
    }

    pub(super) fn device(&self, spot: Spot) -> &Device {
        &self.slice(spot).devices[spot.device]
    }

    /// Continues with a request of a claim, its first alternative first.
    fn request(&mut self, claim: usize, request: usize, open: &mut Vec<OpenStep>) -> SearchStep {
        let Some(requests) = self.requests.get(claim) else { return SearchStep::Back(Ok(true)) };
        let Some(subs) = requests.get(request) else {
            open.push(OpenStep::Claim(claim));
            return SearchStep::Request(claim + 1, 0);
        };
        let key = RequestIndex { claim, request, sub: 0 };
        if subs.first().is_some_and(|alternative| alternative.request.parent.is_some()) {
            open.push(OpenStep::Alternative { key, all_too_many: true });
        }
        SearchStep::Device(key, 0, Spot::default())
    }

    /// Finds the device of this number for a request, at `from` or later.
    fn device_of(
        &mut self,
        key: RequestIndex,
        number: usize,
        from: Spot,
        open: &mut Vec<OpenStep>,
    ) -> Result<SearchStep, SearchStop> {
        self.pace()?;
        let alternative = &self.requests[key.claim][key.request][key.sub];
        let wants_all = alternative.request.mode == ALL;
        if wants_all && alternative.all.is_empty() {
            return Ok(SearchStep::Back(Ok(false)));
        }
        if number >= alternative.count {
            return Ok(SearchStep::Request(key.claim, key.request + 1));
        }
        let others = alternative.count - number;
        if self.results[key.claim].len().saturating_add(others) > RESULTS_MAX {
            return Err(SearchStop::TooMany);
        }
        if !wants_all {
            return self.search_from(key, number, from, open);
        }
        let spot = alternative.all[number];
        if !self.take(key, spot)? {
            return Ok(SearchStep::Back(Ok(false)));
        }
        open.push(OpenStep::Device { key, number, next: None });
        Ok(SearchStep::Device(key, number + 1, Spot::default()))
    }

    /// Takes the first device that fits.
    fn search_from(
        &mut self,
        key: RequestIndex,
        number: usize,
        from: Spot,
        open: &mut Vec<OpenStep>,
    ) -> Result<SearchStep, SearchStop> {
        for pool in from.pool..self.pools.len() {
            if self.pools[pool].state != State::Good {
                continue;
            }
            let in_pool = pool == from.pool;
            for slice in if in_pool { from.slice } else { 0 }..self.pools[pool].near.len() {
                let in_slice = in_pool && slice == from.slice;
                let first = if in_slice { from.device } else { 0 };
                for device in first..self.pools[pool].near[slice].devices.len() {
                    self.pace()?;
                    let spot = Spot { pool, slice, device };
                    if self.is_candidate(key, spot)? && self.take(key, spot)? {
                        let next = Spot { device: device + 1, ..spot };
                        open.push(OpenStep::Device { key, number, next: Some(next) });
                        return Ok(SearchStep::Device(key, number + 1, next));
                    }
                }
            }
        }
        Ok(SearchStep::Back(Ok(false)))
    }

    /// Continues from an open step, with the result of the steps after it.
    fn back(
        &mut self,
        at: OpenStep,
        found: Result<bool, SearchStop>,
        open: &mut Vec<OpenStep>,
    ) -> SearchStep {
        match (at, found) {
            // Other devices for the claims before it may lower its number.
            (OpenStep::Claim(claim), Err(SearchStop::TooMany))
                if claim + 1 < self.requests.len() =>
            {
                SearchStep::Back(Ok(false))
            }
            (OpenStep::Claim(_), found) => SearchStep::Back(found),
            (OpenStep::Alternative { key, .. }, Ok(true)) => {
                self.selected.insert((key.claim, key.request), key.sub);
                SearchStep::Back(Ok(true))
            }
            (
                OpenStep::Alternative { key, all_too_many },
                found @ (Ok(false) | Err(SearchStop::TooMany)),
            ) => {
                let all_too_many = all_too_many && found.is_err();
                let key = RequestIndex { sub: key.sub + 1, ..key };
                if key.sub < self.requests[key.claim][key.request].len() {
                    open.push(OpenStep::Alternative { key, all_too_many });
                    return SearchStep::Device(key, 0, Spot::default());
                }
                SearchStep::Back(if all_too_many { Err(SearchStop::TooMany) } else { Ok(false) })
            }
            (OpenStep::Alternative { .. }, stop) => SearchStep::Back(stop),
            (OpenStep::Device { .. }, Ok(true)) => SearchStep::Back(Ok(true)),
            (OpenStep::Device { key, number, next }, found) => {
                self.give_back(key);
                match (found, next) {
                    (Ok(false), Some(next)) => SearchStep::Other(key, number, next),
                    (found, _) => SearchStep::Back(found),
                }
            }
        }
    }

    /// Counts a step; ends the search at the time limit.
    pub(super) fn pace(&mut self) -> Result<(), SearchStop> {
        self.steps += 1;
        self.world.budget.pay(STEP_WORK, SEARCHING).map_err(SearchStop::Exhausted)?;
        match self.steps.is_multiple_of(STEPS_UNSEEN) && (self.world.is_late)() {
            true => Err(SearchStop::Late),
            false => Ok(()),
        }
    }

    fn is_candidate(&mut self, key: RequestIndex, spot: Spot) -> Result<bool, SearchStop> {
        if self.is_in_use(key, spot) {
            return Ok(false);
        }
        let alternative = Rc::clone(&self.requests[key.claim][key.request][key.sub]);
        Ok(self.fits(&alternative, key, spot)? && self.has_capacity(&alternative, spot))
    }

    /// Is the device in use? For admin access: is it already allocated to this claim?
    fn is_in_use(&self, key: RequestIndex, spot: Spot) -> bool {
        let alternative = &self.requests[key.claim][key.request][key.sub];
        let device = self.device(spot);
        let giving = self.giving.get(&device.id);
        match alternative.request.is_admin {
            true => giving.is_some_and(|claims| claims.contains(&key.claim)),
            false => {
                self.world.usage.is_taken(&device.id)
                    || giving.is_some_and(|claims| !claims.is_empty())
            }
        }
    }

    /// Do the selectors of class and request match the device?
    // k8s: allocator_incubating.go isSelectable
    pub(super) fn fits(
        &mut self,
        alternative: &SearchRequest,
        key: RequestIndex,
        spot: Spot,
    ) -> Result<bool, SearchStop> {
        if let Some(known) = self.fits.get(&(key, spot)) {
            return Ok(*known);
        }
        let device = self.device(spot);
        let class = alternative.class.metadata.name.as_deref().unwrap_or_default();
        let of_class = alternative.class.spec.selectors.as_deref().unwrap_or_default();
        let DeviceOffers { selectors, budget, is_late, .. } = self.world;
        if is_late() {
            return Err(SearchStop::Late);
        }
        budget.pay_at_once(STEP_WORK, SEARCHING).map_err(SearchStop::Exhausted)?;
        let claim = &self.claims[key.claim];
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let class = SelectorOrigin { namespace: "", whose: &|| format!("class {class}") };
        let claim = SelectorOrigin { namespace, whose: &|| format!("claim {}", name(claim)) };
        let limits = EvaluationLimits { budget, is_late };
        let found = selectors.all_match(of_class, device, limits, &class)?
            && selectors.all_match(alternative.request.selectors, device, limits, &claim)?
            && (self.slice(spot).reach != Reach::PerDevice || device.reach.is(self.place));
        self.fits.insert((key, spot), found);
        Ok(found)
    }

    /// Is enough of the device's capacity left for the request?
    pub(super) fn has_capacity(&self, alternative: &SearchRequest, spot: Spot) -> bool {
        let device = self.device(spot);
        let used = [self.world.usage.parts(&device.id), self.parts.get(&device.id)];
        let used = used.map(|parts| parts.map(|parts| &parts.used));
        capacity::is_left(alternative.request.capacity, &device.capacity, used)
    }

    /// Takes a device for a request if it fits.
    fn take(&mut self, key: RequestIndex, spot: Spot) -> Result<bool, SearchStop> {
        let alternative = Rc::clone(&self.requests[key.claim][key.request][key.sub]);
        let (slice, request) = (Rc::clone(self.slice(spot)), alternative.request);
        let device = &slice.devices[spot.device];
        let is_busy = self.is_in_use(key, spot) && !(device.is_shareable && request.is_admin);
        if is_busy || device.keeps_off(&request) || !self.take_counters(spot.pool, device) {
            return Ok(false);
        }
        let (parent, sub) = request.names();
        let constraints = &mut self.constraints[key.claim];
        let refused = constraints.iter_mut().position(|one| !one.add(parent, sub, device));
        if let Some(refused) = refused {
            constraints[..refused].iter_mut().for_each(|one| one.remove(parent, sub));
            self.give_counters_back(spot.pool, device);
            if request.mode != ALL {
                return Ok(false);
            }
            // A claim that requests all devices with a constraint they cannot meet is an error.
            let (claim, request) = (name(&self.claims[key.claim]), request.name);
            return Err(SearchStop::Error(format!(
                "claim {claim}, request {request}: cannot add device {} because a claim \
                 constraint would not be satisfied",
                device.id
            )));
        }
        // Capacity is checked after constraints, because a violated constraint is an error even
        // without capacity.
        if !self.has_capacity(&alternative, spot) {
            self.constraints[key.claim].iter_mut().for_each(|one| one.remove(parent, sub));
            self.give_counters_back(spot.pool, device);
            return Ok(false);
        }
        let part =
            device.is_shareable.then(|| capacity::consumed(request.capacity, &device.capacity));
        match &part {
            Some(part) => self.parts.entry(device.id.clone()).or_default().add(part),
            None => {
                self.giving.entry(device.id.clone()).or_default().insert(key.claim);
            }
        }
        self.results[key.claim].push(ChosenDevice { key, spot, part });
        Ok(true)
    }

    /// Removes the last device of a claim.
    fn give_back(&mut self, key: RequestIndex) {
        let Some(ChosenDevice { spot, part, .. }) = self.results[key.claim].pop() else { return };
        let slice = Rc::clone(self.slice(spot));
        let device = &slice.devices[spot.device];
        match part {
            Some(part) => {
                if self.parts.get_mut(&device.id).is_some_and(|parts| parts.remove(&part)) {
                    self.parts.remove(&device.id);
                }
            }
            None => {
                if let Some(claims) = self.giving.get_mut(&device.id) {
                    claims.remove(&key.claim);
                }
            }
        }
        let alternative = &self.requests[key.claim][key.request][key.sub];
        let (parent, sub) = alternative.request.names();
        self.constraints[key.claim].iter_mut().for_each(|one| one.remove(parent, sub));
        self.give_counters_back(spot.pool, device);
    }

    /// Does the device consume counters? Not if another claim already has a part of it.
    fn counts(&self, device: &Device) -> bool {
        let is_shared = device.is_shareable
            && (self.world.usage.parts(&device.id).is_some()
                || self.parts.contains_key(&device.id));
        !device.consumes.is_empty() && !is_shared
    }

    /// Takes a device's amounts from its pool's counters, if enough is left. Upstream has one
    /// account for pools of the same name, whatever their drivers; here each has its own.
    // k8s: allocator_incubating.go checkAvailableCounters
    fn take_counters(&mut self, pool: usize, device: &Device) -> bool {
        if !self.counts(device) {
            return true;
        }
        let left = self.left.entry(pool).or_insert_with(|| left(&self.pools[pool], &self.world));
        let taken = self.taken.entry(pool).or_default();
        let needs = needs(device);
        let is_left = needs.iter().all(|(name, amount)| {
            let sum = taken.get(name).map_or(*amount, |sum| *sum + *amount);
            left.get(name).is_some_and(|left| sum <= *left)
        });
        // An overdrawn counter blocks all devices of the pool.
        let is_good = is_left && !left.values().any(|left| left.is_negative());
        if is_good {
            for (name, amount) in needs {
                let sum = taken.get(&name).map_or(amount, |sum| *sum + amount);
                taken.insert(name, sum);
            }
        }
        is_good
    }

    fn give_counters_back(&mut self, pool: usize, device: &Device) {
        // Checked after the removal, so that the first of several parts returns the counters.
        if !self.counts(device) {
            return;
        }
        let Some(taken) = self.taken.get_mut(&pool) else { return };
        for (name, amount) in needs(device) {
            if let Some(sum) = taken.get_mut(&name) {
                *sum = sum.minus(amount);
            }
        }
    }
}

fn needs(device: &Device) -> Vec<((String, String), Amount)> {
    let of_set = |(set, counters): &(String, Counters)| {
        let one = |(name, amount): (&String, &Amount)| ((set.clone(), name.clone()), *amount);
        counters.iter().map(one).collect::<Vec<_>>()
    };
    device.consumes.iter().flat_map(of_set).collect()
}

/// Returns a pool's counters less those of allocated devices.
fn left(pool: &DevicePool, world: &DeviceOffers) -> PoolCounters {
    let mut left = PoolCounters::new();
    for (set, counters) in &pool.counters {
        left.extend(counters.iter().map(|(name, amount)| ((set.clone(), name.clone()), *amount)));
    }
    let slices = pool.near.iter().chain(&pool.far);
    let devices = slices.flat_map(|slice| &slice.devices);
    for device in devices.filter(|device| world.usage.is_used(&device.id)) {
        for (name, amount) in needs(device) {
            if let Some(sum) = left.get_mut(&name) {
                *sum = sum.minus(amount);
            }
        }
    }
    left
}
