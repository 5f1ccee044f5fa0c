//! Allocates devices of a node to claims.
//!
//! ```text
//!   slices ─pools─> what is near ─┐
//!   claims ─prepare─> what they ask for ─search─> devices ─answer─> AllocationResults
//! ```
//! Input: claims without devices, a node, offered and taken devices. Output: an allocation for each
//! claim, or the reason there is none. Owner: pure. Bounds: [`RESULTS_MAX`] devices a claim; the
//! search tries every combination until one fits, until its caller reports a timeout, or until the
//! attempt has spent its budget.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/structured/internal/incubating

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};

use super::answer;
use super::constraint::Constraint;
use super::offer::{AllocationNode, Offers};
use super::pools::{State, pools};
use super::request::{ALL, AskedDevice, EXACT, device_claim, name, requests};
use super::search::{RequestIndex, Search, SearchRequest, SearchStop, Spot};
use super::selectors::Selectors;
use super::usage::Usage;

/// Most devices of a claim.
// k8s: staging/src/k8s.io/api/resource/v1/types.go AllocationResultsMaxSize
pub(super) const RESULTS_MAX: usize = 32;

/// Offered and used devices, classes and compiled selectors.
#[derive(Clone, Copy)]
pub(crate) struct DeviceOffers<'a> {
    pub(crate) offers: &'a Offers,
    pub(crate) usage: &'a Usage,
    pub(crate) classes: &'a BTreeMap<String, Rc<DeviceClass>>,
    pub(crate) selectors: &'a Selectors,
    /// Budget of the attempt.
    pub(crate) budget: &'a AttemptBudget,
    /// Has the filter spent its time limit on this node?
    pub(crate) is_late: &'a dyn Fn() -> bool,
}

/// Reason why claims get no devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllocationFailure {
    /// No combination fits.
    Nothing,
    /// No combination fits, and some pools cannot be used.
    OnNode(String),
    /// Undecided: the search ran into its time limit.
    Late,
    /// The attempt has spent its budget.
    Exhausted(Exhausted),
    /// A claim, a class or a device is invalid.
    Error(String),
}

/// Allocates the claims on a node; returns the allocations in the order of the claims.
///
/// # Errors
/// The reason they get none.
// k8s: allocator_incubating.go Allocate
pub(crate) fn allocate(
    world: DeviceOffers,
    place: &dyn AllocationNode,
    claims: &[Rc<ResourceClaim>],
    share_id: &mut dyn FnMut() -> String,
) -> Result<Vec<AllocationResult>, AllocationFailure> {
    let mut search = Search::new(world, place, claims, pools(world.offers, place));
    for (at, claim) in claims.iter().enumerate() {
        prepare(&mut search, at, claim).map_err(failure)?;
    }
    match search.run() {
        Ok(true) => {
            let results = answer::results(&search, place.name(), share_id);
            results.map_err(|error| AllocationFailure::Error(error.to_string()))
        }
        Ok(false) if search.pools.iter().any(|pool| pool.state == State::Invalid) => {
            Err(AllocationFailure::OnNode("invalid resource pools were encountered".to_owned()))
        }
        Ok(false) => Err(AllocationFailure::Nothing),
        Err(stop) => Err(failure(stop)),
    }
}

fn failure(stop: SearchStop) -> AllocationFailure {
    match stop {
        SearchStop::Late => AllocationFailure::Late,
        SearchStop::Exhausted(exhausted) => AllocationFailure::Exhausted(exhausted),
        SearchStop::TooMany => AllocationFailure::Error("allocation max size exceeded".to_owned()),
        SearchStop::Error(error) => AllocationFailure::Error(error),
    }
}

/// Reads the requests of a claim.
fn prepare<'a>(
    search: &mut Search<'a>,
    at: usize,
    claim: &'a ResourceClaim,
) -> Result<(), SearchStop> {
    let mut least = 0;
    search.requests.push(Vec::new());
    for (number, request) in requests(claim).iter().enumerate() {
        search.pace()?;
        search.requests[at].push(Vec::new());
        let mut of_request = usize::MAX;
        for (sub, request) in AskedDevice::all(request).into_iter().enumerate() {
            let key = RequestIndex { claim: at, request: number, sub };
            let alternative = read(search, claim, request, key)?;
            of_request = of_request.min(alternative.count);
            search.requests[at][number].push(Rc::new(alternative));
        }
        least += if search.requests[at][number].is_empty() { 0 } else { of_request };
    }
    let name = name(claim);
    if least > RESULTS_MAX {
        let limit = format!("exceeds the claim limit of {RESULTS_MAX}");
        let error = format!("claim {name}: number of requested devices {least} {limit}");
        return Err(SearchStop::Error(error));
    }
    let constraints = device_claim(claim).and_then(|devices| devices.constraints.as_deref());
    let lists = search.world.selectors.have_lists();
    let read = |(at, constraint)| {
        Constraint::read(constraint, lists).ok_or_else(|| {
            SearchStop::Error(format!(
                "claim {name}, constraint #{at}: empty constraint (unsupported constraint type?)"
            ))
        })
    };
    let all = constraints.unwrap_or_default().iter().enumerate().map(read);
    search.constraints.push(all.collect::<Result<_, SearchStop>>()?);
    Ok(())
}

/// Reads one request.
// k8s: allocator_incubating.go validateDeviceRequest
fn read<'a>(
    search: &mut Search<'a>,
    claim: &ResourceClaim,
    request: AskedDevice<'a>,
    key: RequestIndex,
) -> Result<SearchRequest<'a>, SearchStop> {
    let whose = format!("claim {}, request {}", name(claim), request.name);
    if let Some(at) = request.selectors.iter().position(|selector| selector.cel.is_none()) {
        let why = "CEL expression empty (unsupported selector type?)";
        return Err(format!("{whose}, selector #{at}: {why}").into());
    }
    if request.class.is_empty() {
        return Err(
            format!("{whose}: missing device class name (unsupported request type?)").into()
        );
    }
    let class = search.world.classes.get(request.class).cloned().ok_or_else(|| {
        let (class, kind) = (request.class, "deviceclass.resource.k8s.io");
        format!("{whose}: could not retrieve device class {class}: {kind} {class:?} not found")
    })?;
    let mut alternative = SearchRequest { request, class, count: 0, all: Vec::new() };
    match request.mode {
        EXACT => alternative.count = usize::try_from(request.count).unwrap_or(usize::MAX),
        ALL => {
            alternative.all = all_devices(search, &alternative, key, &whose)?;
            alternative.count = alternative.all.len();
        }
        other => return Err(format!("{whose}: unsupported count mode {other}").into()),
    }
    Ok(alternative)
}

/// Returns all devices that fit a request.
fn all_devices(
    search: &mut Search,
    alternative: &SearchRequest,
    key: RequestIndex,
    whose: &str,
) -> Result<Vec<Spot>, SearchStop> {
    let mut found = Vec::new();
    for pool in 0..search.pools.len() {
        let id = &search.pools[pool].id;
        let wants = format!("{whose}: asks for all devices, but resource pool {id} is currently");
        match search.pools[pool].state {
            State::Good => {}
            State::Incomplete => return Err(format!("{wants} being updated").into()),
            State::Invalid => return Err(format!("{wants} invalid").into()),
        }
        for slice in 0..search.pools[pool].near.len() {
            for device in 0..search.pools[pool].near[slice].devices.len() {
                search.pace()?;
                let spot = Spot { pool, slice, device };
                if search.fits(alternative, key, spot)? && search.has_capacity(alternative, spot) {
                    found.push(spot);
                }
            }
        }
    }
    Ok(found)
}
