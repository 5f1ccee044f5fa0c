//! Filter, PostFilter and Score of a pod's claims: which nodes have the devices, and how well they
//! fit.
//!
//! Input: known devices, a pod's claims, rows that passed other plugins. Output: statuses, scores,
//! and the devices of the chosen node. Owner: one decision. Bounds: each row is filtered once a
//! decision, for `DeviceLimits::filter` at most, and all rows together within the budget of the
//! attempt; the first row over the budget ends the attempt.
// k8s: dynamicresources.go Filter, PostFilter, Score

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{ContainerExtendedResourceRequest, NodeSelector};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceRequest, ResourceClaim, ResourceClaimConsumerReference,
};
use pintle_api_types::object::key_of;
use pintle_sched_core::Plugin;
use pintle_sched_core::bits::Bits;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::program::Program;
use pintle_sched_core::select::RowPlugin;
use pintle_sched_core::snapshot::pods::PodId;
use pintle_sched_core::snapshot::{Cluster, View};

use super::allocatable::{NodeShare, Sharer, Unfit};
use super::allocate::{AllocationFailure, DeviceOffers, allocate};
use super::extended::NewClaim;
use super::known::{Devices, allocation};
use super::look::{DeviceClaims, PodClaim, is_reserved};
use super::offer::AllocationNode;
use super::request::requests;

/// Highest score of a node.
const SCORE_MAX: i64 = 100;
/// Reason for a node on which an allocated claim cannot be used.
const UNAVAILABLE: &str = "resourceclaim not available on the node";
/// Most alternatives of a request.
// k8s: staging/src/k8s.io/api/resource/v1/types.go FirstAvailableDeviceRequestMaxSize
const ALTERNATIVES_MAX: usize = 8;

/// A ResourceClaim that a pod is to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserve {
    /// The claim as last observed.
    pub claim: Rc<ResourceClaim>,
    /// The allocation to write, if the claim has none.
    pub allocation: Option<AllocationResult>,
    /// The consumer to reserve it for, if not the pod.
    pub user: Option<ResourceClaimConsumerReference>,
    /// Requests by container, for a claim that has to be created for extended resources.
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// Devices that claims get on a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// Allocations for the claims that need one, in their order.
    pub(super) devices: Vec<AllocationResult>,
    /// The claim to create for extended resources; its devices come last.
    pub(super) extended: Option<Rc<NewClaim>>,
    /// The pod's requests on the node, with what the devices take.
    pub(crate) share: Option<Rc<NodeShare>>,
}

/// A node on which the claims can be allocated.
#[derive(Clone, Debug)]
struct AllocatableNode {
    /// Score of the devices.
    score: i64,
    share: Option<Rc<NodeShare>>,
    /// Claims already allocated cannot be used there.
    is_unavailable: bool,
}

/// The devices, or the status of the rejection.
type Found = Result<Given, Status>;

/// Results by row within one decision.
#[derive(Clone, Debug, Default)]
pub(super) struct RowMemory {
    /// Devices found, or the rejection.
    rows: HashMap<u32, Result<AllocatableNode, Status>>,
    scores: HashMap<u32, i64>,
    /// Indexes of claims with devices that cannot be used on some node.
    unavailable: BTreeSet<usize>,
    /// The error that ends the attempt.
    error: Option<String>,
}

/// The claims of a pod, with the current devices.
#[derive(Clone, Copy)]
pub struct OfDevices<'a> {
    devices: &'a Devices,
    claims: &'a DeviceClaims,
}

/// A node.
struct RowPlace<'a> {
    name: &'a str,
    row: u32,
    reachable: &'a HashMap<*const NodeSelector, Rc<Bits>>,
}

impl AllocationNode for RowPlace<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn meets(&self, selector: &Rc<NodeSelector>) -> bool {
        self.reachable.get(&Rc::as_ptr(selector)).is_some_and(|rows| rows.get(self.row))
    }
}

fn rejected(reason: &str) -> Status {
    Status {
        plugin: Some(Plugin::DynamicResources),
        code: Code::UnschedulableAndUnresolvable,
        reasons: vec![reason.to_owned()],
    }
}

impl DeviceClaims {
    /// Returns the claims as a row plugin.
    pub fn among<'a>(&'a self, devices: &'a Devices) -> OfDevices<'a> {
        OfDevices { devices, claims: self }
    }

    /// Returns the error of the filter, if it failed.
    pub fn error(&self) -> Option<String> {
        self.memory.borrow().error.clone()
    }

    /// Forgets which claims had unusable devices, because other nodes are filtered next.
    pub(crate) fn forget_unavailable(&self) {
        self.memory.borrow_mut().unavailable.clear();
    }

    /// Returns all claims, with the new allocation of those that have none.
    pub(crate) fn with(&self, given: &Given) -> Vec<(Rc<ResourceClaim>, Option<AllocationResult>)> {
        let mut given = given.devices.iter();
        let mut one = |own: &PodClaim| match (&own.shared, allocation(&own.claim)) {
            (Some(shared), _) => Some(shared.clone()),
            (None, Some(_)) => None,
            (None, None) => given.next().cloned(),
        };
        self.all.iter().map(|own| (Rc::clone(&own.claim), one(own))).collect()
    }

    /// Returns the writes needed to reserve these devices on a node.
    pub(crate) fn reserves(&self, given: Given) -> Vec<Reserve> {
        let own = self.with(&given).into_iter().zip(&self.all);
        let own = own.map(|((claim, allocation), own)| {
            let (user, mappings) = (own.user.clone(), Vec::new());
            Reserve { claim, allocation, user, mappings }
        });
        let made = given.extended.map(|made| Reserve {
            claim: Rc::clone(&made.claim),
            allocation: given.devices.last().cloned(),
            user: None,
            mappings: made.mappings.clone(),
        });
        own.chain(made).collect()
    }

    /// Returns a claim to deallocate: its devices keep the pod off nodes, and no other consumer
    /// uses it.
    pub(crate) fn to_give_back(&self) -> Option<Rc<ResourceClaim>> {
        let old = || self.extended.as_ref()?.old.clone();
        let memory = self.memory.borrow();
        // A pending allocation cannot be deallocated.
        let all = memory.unavailable.iter().map(|at| &self.all[*at]);
        let mut all = all.filter(|own| own.shared.is_none()).map(|own| &own.claim);
        let is_free = |claim: &&Rc<ResourceClaim>| {
            let users = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref());
            match users.unwrap_or_default() {
                [] => true,
                [_] => is_reserved(claim, &self.uid, None),
                _ => false,
            }
        };
        all.find(is_free).cloned().or_else(old)
    }
}

impl OfDevices<'_> {
    /// Returns the rejection of a node from which some pods were removed; `lack` checks the node's
    /// own resources. No claim is deallocated for it, because this may be a dry run.
    // k8s: default_plugins.go applyDynamicResources, whose PostFilter is before that of DefaultPreemption
    fn rejection(
        &self,
        row: u32,
        is_gone: impl Fn(&str) -> bool,
        lack: impl FnOnce(&Sharer, &NodeShare) -> Option<Status>,
    ) -> Option<Status> {
        if let Some(status) = self.used_by_others(row, is_gone) {
            return Some(status);
        }
        let known = self.claims.memory.borrow().rows.get(&row).cloned();
        let found = known.unwrap_or_else(|| {
            let found = self.look_at(row);
            self.claims.memory.borrow_mut().rows.insert(row, found.clone());
            found
        });
        let seen = match found {
            Ok(seen) => seen,
            Err(status) => return Some(status),
        };
        let share = self.claims.sharer.as_deref().zip(seen.share.as_deref());
        let lacks = share.and_then(|(sharer, share)| lack(sharer, share));
        lacks.or_else(|| seen.is_unavailable.then(|| rejected(UNAVAILABLE)))
    }

    /// Returns the rejection of a node without these pods.
    pub(crate) fn rejection_without(
        &self,
        cluster: &Cluster,
        row: u32,
        gone: &[PodId],
    ) -> Option<Status> {
        let text = |id: &PodId| cluster.text(cluster.pods().get(*id).key);
        let is_gone = |uid: &str| gone.iter().any(|id| text(id) == uid);
        self.rejection(row, is_gone, |sharer, share| sharer.lack_without(share, cluster, row, gone))
    }

    fn look_at(&self, row: u32) -> Result<AllocatableNode, Status> {
        let given = self.get(row)?;
        let (score, is_unavailable) =
            (self.raw_score(&given), self.unavailable(row).next().is_some());
        Ok(AllocatableNode { score, share: given.share, is_unavailable })
    }

    /// Allocates the claims that need devices on a node.
    pub(crate) fn at(&self, row: u32) -> Found {
        let given = self.get(row)?;
        match self.unavailable(row).next() {
            Some(_) => Err(rejected(UNAVAILABLE)),
            None => Ok(given),
        }
    }

    /// Finds devices for the row; whether claims that are already allocated fit there is not
    /// checked.
    fn get(&self, row: u32) -> Found {
        if let Some(error) = self.claims.error() {
            return Err(rejected(&error));
        }
        let extended = self.made(row)?;
        let devices = self.allocate(row, extended.as_deref())?;
        let given = Given { devices, extended, share: None };
        let share = self.share(row, &given)?;
        Ok(Given { share, ..given })
    }

    /// Returns the claim to create there for extended resources.
    fn made(&self, row: u32) -> Result<Option<Rc<NewClaim>>, Status> {
        let extended = self.claims.extended.as_ref();
        extended.map_or(Ok(None), |extended| extended.at(row).map_err(rejected))
    }

    /// Returns a rejection if another pod uses a claim with node-allocatable devices there.
    fn used_by_others(&self, row: u32, is_gone: impl Fn(&str) -> bool) -> Option<Status> {
        if !self.devices.takes_of_nodes() {
            return None;
        }
        let is_near = |own: &&PodClaim| own.reach.as_ref().is_none_or(|rows| rows.get(row));
        let has = |own: &&PodClaim| own.shared.is_none() && allocation(&own.claim).is_some();
        let mut claims = self.claims.all.iter().filter(is_near).filter(has);
        let why = claims.find_map(|own| {
            let key = key_of(&*own.claim);
            self.devices.users.refusal(&self.claims.uid, &key, self.name(row), &is_gone)
        })?;
        // A rejection for extended resources takes precedence.
        Some(self.made(row).err().unwrap_or_else(|| rejected(&why)))
    }

    /// Computes the pod's requests on the node with these devices.
    fn share(&self, row: u32, given: &Given) -> Result<Option<Rc<NodeShare>>, Status> {
        let Some(sharer) = &self.claims.sharer else { return Ok(None) };
        let own = self.claims.with(given);
        let own = own.iter().filter_map(|(claim, has)| Some((claim, has.as_ref()?)));
        let made =
            given.extended.as_ref().and_then(|made| Some((&made.claim, given.devices.last()?)));
        let gets: Vec<_> = own.chain(made).collect();
        match sharer.share(&gets, &self.devices.offers, self.name(row)) {
            Ok(share) => Ok(share.map(Rc::new)),
            Err(Unfit::Here(why)) => Err(rejected(&why)),
            Err(Unfit::Anywhere(error)) => Err(self.fails(&error)),
        }
    }

    fn name(&self, row: u32) -> &str {
        self.claims.names.get(row as usize).map_or("", |name| name)
    }

    /// Records the error that ends the attempt.
    fn fails(&self, error: &str) -> Status {
        let error = format!("running {:?} filter plugin: {error}", "DynamicResources");
        self.claims.memory.borrow_mut().error.get_or_insert_with(|| error.clone());
        rejected(&error)
    }

    /// Returns the indexes of claims with devices that cannot be used on a node.
    fn unavailable(&self, row: u32) -> impl Iterator<Item = usize> {
        let is_off = move |own: &PodClaim| {
            own.is_broken || own.reach.as_ref().is_some_and(|rows| !rows.get(row))
        };
        let all = self.claims.all.iter().enumerate();
        all.filter(move |(_, own)| is_off(own)).map(|(at, _)| at)
    }

    fn allocate(&self, row: u32, made: Option<&NewClaim>) -> Result<Vec<AllocationResult>, Status> {
        let (claims, devices) = (self.claims, self.devices);
        let made = made.map(|made| Rc::clone(&made.claim));
        let wanted: Vec<_> = claims.wanted.iter().cloned().chain(made).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let name = self.name(row);
        let place = RowPlace { name, row, reachable: &claims.reachable };
        let (began, most) = (Instant::now(), claims.limits.filter);
        let world = DeviceOffers {
            offers: &devices.offers,
            usage: &devices.usage,
            classes: &devices.classes,
            selectors: &devices.selectors,
            budget: &claims.limits.budget,
            is_late: &|| !most.is_zero() && began.elapsed() >= most,
        };
        let mut share_id = uuid;
        let error = match allocate(world, &place, &wanted, &mut share_id) {
            Ok(found) => return Ok(found),
            Err(AllocationFailure::Nothing) => return Err(rejected("cannot allocate all claims")),
            Err(AllocationFailure::OnNode(why)) => return Err(rejected(&why)),
            Err(AllocationFailure::Late) => {
                format!("node {name}: timed out trying to allocate devices")
            }
            Err(AllocationFailure::Exhausted(exhausted)) => exhausted.to_string(),
            Err(AllocationFailure::Error(error)) => error,
        };
        Err(self.fails(&error))
    }

    /// Scores the chosen alternatives: earlier ones are better.
    // k8s: dynamicresources.go computeScore
    fn raw_score(&self, given: &Given) -> i64 {
        if self.claims.wanted.is_empty() {
            return 0;
        }
        let all = self.claims.with(given);
        let of_claim = |(claim, given): &(Rc<ResourceClaim>, Option<AllocationResult>)| {
            let has = given.as_ref().or_else(|| allocation(claim));
            let has = has.and_then(|has| has.devices.as_ref()?.results.as_ref());
            let has: HashSet<&str> = has.into_iter().flatten().map(|r| &*r.request).collect();
            let requests = requests(claim).iter().filter(|request| request.exactly.is_none());
            let of_request = |request: &DeviceRequest| {
                let subs = request.first_available.iter().flatten().enumerate();
                let is_had = |name: &str| has.contains(&*format!("{}/{name}", request.name));
                let subs = subs.filter(|(_, sub)| is_had(&sub.name));
                subs.map(|(at, _)| ALTERNATIVES_MAX.saturating_sub(at)).sum::<usize>()
            };
            requests.map(of_request).sum::<usize>()
        };
        i64::try_from(all.iter().map(of_claim).sum::<usize>()).unwrap_or(0)
    }
}

/// Returns a random uuid, for a part of a device, or for a claim not created yet.
pub(super) fn uuid() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let now = Instant::now();
    let random = |salt: u8| u128::from(RandomState::new().hash_one((now, salt)));
    let bits = (random(0) << 64) | random(1);
    // Version 4, variant 1 of RFC 9562.
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

impl RowPlugin for OfDevices<'_> {
    fn plugin(&self) -> Plugin {
        Plugin::DynamicResources
    }

    fn filter(&self, view: &View, _: &Program, row: u32) -> Option<Status> {
        let lack = |sharer: &Sharer, share: &NodeShare| sharer.lack(share, view, row);
        let status = self.rejection(row, |_| false, lack);
        if status.as_ref().is_some_and(|status| status.reasons == [UNAVAILABLE]) {
            self.claims.memory.borrow_mut().unavailable.extend(self.unavailable(row));
        }
        status
    }

    fn prepare(&self, _: &View, feasible: &Bits) {
        let mut memory = self.claims.memory.borrow_mut();
        let raw =
            |row| memory.rows.get(&row).and_then(|f| f.as_ref().ok()).map_or(0, |seen| seen.score);
        let raw: Vec<(u32, i64)> = feasible.iter().map(|row| (row, raw(row))).collect();
        // k8s: plugins/helper/normalize_score.go DefaultNormalizeScore
        let most = raw.iter().map(|(_, score)| *score).max().unwrap_or(0).max(1);
        let scores = raw.into_iter().map(|(row, score)| (row, score * SCORE_MAX / most));
        memory.scores = scores.collect();
    }

    fn score(&self, _: &View, _: &Program, row: u32) -> Option<i64> {
        self.claims.memory.borrow().scores.get(&row).copied()
    }
}
