//! Node-allocatable devices: devices that use CPUs, memory or huge pages of their node.
//!
//! Input: a pod, the devices that its claims get on a node, the node's free resources. Output: the
//! pod's status entry for each claim, the pod's total requests on the node, the reason it does not
//! fit. Owner: one decision; pure. Bounds: the devices of a pod. Only behind the gate
//! DRANodeAllocatableResources.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/nodeallocatabledynamicresources.go

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Container, NodeAllocatableResourceClaimStatus, Pod};
use k8s_openapi::api::resource::v1::{
    self as api, AllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_api_types::quantity::{Amount, Amounts};
use pintle_sched_core::Plugin;
use pintle_sched_core::chunk::Numbers;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::intern::Str;
use pintle_sched_core::requests::{PodRequests, Resources, demand, node_claims};
use pintle_sched_core::snapshot::objects::PodSpec;
use pintle_sched_core::snapshot::pods::PodId;
use pintle_sched_core::snapshot::{Cluster, View};

use super::known::uid;
use super::offer::{Device, Offers, Slice, amount};
use super::request::name;

/// Amounts that a device takes from its node, by resource name.
pub(super) type Takes = BTreeMap<String, Take>;

/// Amount of a node resource that a device takes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Take {
    /// The amount is the consumed capacity of this name.
    capacity: Option<String>,
    /// Factor of the capacity; the amount itself if there is no capacity.
    multiplier: Option<Amount>,
}

impl Take {
    /// Reads the mappings of a device.
    pub(super) fn read(device: &api::Device) -> Takes {
        let all = device.node_allocatable_resource_mappings.iter().flatten();
        let one = |(resource, take): (&String, &api::NodeAllocatableResourceMapping)| {
            let capacity = take.capacity_key.clone().filter(|key| !key.is_empty());
            let multiplier = take.allocation_multiplier.as_ref().map(amount);
            (resource.clone(), Self { capacity, multiplier })
        };
        all.map(one).collect()
    }

    /// Returns the amount for an allocated device; `None` if the capacity is not consumed.
    ///
    /// # Errors
    /// The allocation records no consumed capacity.
    fn of(&self, given: &DeviceRequestAllocationResult) -> Result<Option<Amount>, &str> {
        let Some(capacity) = &self.capacity else {
            return Ok(Some(self.multiplier.unwrap_or_default()));
        };
        let consumed = given.consumed_capacity.as_ref().ok_or(&**capacity)?;
        let base = consumed.get(capacity).map(amount);
        Ok(base.map(|base| self.multiplier.map_or(base, |multiplier| base.times(multiplier))))
    }
}

/// Total requests of a pod on a node, including what its devices take.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeShare {
    /// The pod's `nodeAllocatableResourceClaimStatuses`, ordered by claim name.
    pub(crate) statuses: Vec<NodeAllocatableResourceClaimStatus>,
    /// All requests of the pod.
    total: Resources,
}

/// Reason why devices do not fit the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// On this node.
    Here(String),
    /// On any node: the attempt ends.
    Anywhere(String),
}

/// A pod whose devices may take allocatable resources of its node.
#[derive(Clone, Debug)]
pub(super) struct Sharer {
    pod: Pod,
    /// Uids of its claims by the names that its containers use.
    claims: BTreeMap<String, String>,
    /// Ids of the sizes of huge pages that it may want.
    sizes: BTreeMap<String, Option<Str>>,
}

/// Placeholder name of a claim still to be created for extended resources. No container names it.
// k8s: extendeddynamicresources.go specialClaimInMemName
const UNMADE: &str = "<extended-resources>";

/// Does the resource name a size of huge pages?
// k8s: pkg/apis/core/v1/helper/helpers.go IsHugePageResourceName
fn is_pages(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

/// Returns the device results of an allocation.
fn results(allocation: &AllocationResult) -> &[DeviceRequestAllocationResult] {
    let devices = allocation.devices.as_ref();
    devices.and_then(|devices| devices.results.as_deref()).unwrap_or_default()
}

/// A claim and its allocation.
type Gets<'a> = (&'a Rc<ResourceClaim>, &'a AllocationResult);

impl Sharer {
    /// Creates the state of a pod from its claims, by the pod's names for them.
    pub(super) fn new<'a>(
        pod: &Pod,
        claims: impl Iterator<Item = (&'a String, &'a Rc<ResourceClaim>)>,
        asks: &[(String, i64)],
        offers: &Offers,
        cluster: &Cluster,
    ) -> Self {
        let claims = claims.map(|(name, claim)| (name.clone(), uid(claim).to_owned())).collect();
        let of_devices = offers.all().flat_map(|slice| &slice.takes);
        let all = of_devices.chain(asks.iter().map(|(name, _)| name)).filter(|name| is_pages(name));
        let sizes = all.map(|name| (name.clone(), cluster.scalar(name))).collect();
        Self { pod: pod.clone(), claims, sizes }
    }

    /// Returns the pod's requests on a node where its claims get these devices; `None` if the
    /// devices take nothing from the node.
    ///
    /// # Errors
    /// The reason the pod cannot have these devices there.
    // k8s: calculateAndCheckNodeAllocatableResources, getPodNodeAllocatableResourceFootprint
    pub(super) fn share(
        &self,
        gets: &[Gets],
        offers: &Offers,
        node: &str,
    ) -> Result<Option<NodeShare>, Unfit> {
        let takes = |given: &DeviceRequestAllocationResult| {
            device(offers, node, given).is_some_and(|device| !device.takes.is_empty())
        };
        // If the pod has several names for a claim, its last allocation counts.
        let is_last =
            |at: usize| !gets[at + 1..].iter().any(|(other, _)| uid(other) == uid(gets[at].0));
        let last = (0..gets.len()).filter(|at| is_last(*at)).map(|at| &gets[at]);
        let taking: Vec<&Gets> = last.filter(|(_, has)| results(has).iter().any(takes)).collect();
        if taking.is_empty() {
            return Ok(None);
        }
        let mut statuses = Vec::new();
        for (claim, has) in taking {
            let resources = taken(claim, has, offers, node);
            let resources = resources.map_err(|error| Unfit::Anywhere(error.to_string()))?;
            statuses.extend(resources.map(|resources| self.status(claim, &resources)));
        }
        statuses.sort_by(|a, b| a.resource_claim_name.cmp(&b.resource_claim_name));
        let is_idle = |status: &&NodeAllocatableResourceClaimStatus| {
            status.containers.as_ref().is_none_or(Vec::is_empty)
        };
        if let Some(idle) = statuses.iter().find(is_idle) {
            let why =
                "node-allocatable resource claim not referenced by any container within the pod";
            return Err(Unfit::Here(format!("claim {}: {why}", idle.resource_claim_name)));
        }
        self.total(statuses).map(Some)
    }

    /// Builds the entry of the pod's status for a claim.
    fn status(
        &self,
        claim: &ResourceClaim,
        resources: &Amounts,
    ) -> NodeAllocatableResourceClaimStatus {
        let spec = self.pod.spec.as_ref();
        let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let all = init.chain(spec.into_iter().flat_map(|spec| &spec.containers));
        let is_its = |name: &String| self.claims.get(name).is_some_and(|known| known == uid(claim));
        let uses = |container: &Container| {
            let named = container.resources.as_ref().and_then(|r| r.claims.as_ref());
            let count = named.into_iter().flatten().filter(|named| is_its(&named.name)).count();
            // Once for each request of the claim that the container names.
            std::iter::repeat_n(container.name.clone(), count)
        };
        let quantity =
            |(name, amount): (&String, &Amount)| (name.clone(), Quantity(amount.canonical()));
        NodeAllocatableResourceClaimStatus {
            containers: Some(all.flat_map(uses).collect()),
            resource_claim_name: claim.metadata.name.as_deref().unwrap_or(UNMADE).to_owned(),
            resources: resources.iter().map(quantity).collect(),
        }
    }

    // k8s: validatePodLevelRequestsCoverDRA
    fn total(&self, statuses: Vec<NodeAllocatableResourceClaimStatus>) -> Result<NodeShare, Unfit> {
        let mut pod = self.pod.clone();
        pod.status.get_or_insert_default().node_allocatable_resource_claim_statuses =
            Some(statuses.clone());
        let read = |pod_level| demand(&pod, pod_level);
        let unread = |error: &dyn std::error::Error| Unfit::Anywhere(error.to_string());
        let total = read(true).map_err(|error| unread(&error))?;
        let of_pod = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        if of_pod.is_some() {
            let sums = read(false).map_err(|error| unread(&error))?;
            let is_less =
                |(name, has): &(&String, &Amount)| sums.get(*name).is_some_and(|sum| sum > has);
            if let Some((name, _)) = total.iter().find(is_less) {
                return Err(Unfit::Here(format!(
                    "pod level request for {name} is insufficient to cover the aggregated container \
                     and node-allocatable DRA requests"
                )));
            }
        }
        Ok(NodeShare { statuses, total: Resources::of(&total) })
    }

    /// Returns the reason a node has too little left for the pod's requests.
    pub(super) fn lack(&self, share: &NodeShare, view: &View, row: u32) -> Option<Status> {
        let of_size = |name: &str| self.pages(name, view, row);
        lack(&share.total, &view.numbers(row), of_size)
    }

    /// Like `lack`, without these pods of the node.
    pub(super) fn lack_without(
        &self,
        share: &NodeShare,
        cluster: &Cluster,
        row: u32,
        gone: &[PodId],
    ) -> Option<Status> {
        let of_size = |name: &str| {
            let (all, used) = self.pages(name, cluster.view(), row);
            let freed = gone.iter().map(|id| cluster.pod_requests(*id).plain.amount(name));
            (all, freed.fold(used, i64::wrapping_sub))
        };
        lack(&share.total, &cluster.numbers_without(row, gone), of_size)
    }

    /// Returns a node's huge pages of a size, and how much of them is requested.
    fn pages(&self, name: &str, view: &View, row: u32) -> (i64, i64) {
        let size = self.sizes.get(name).copied().flatten();
        size.map_or((0, 0), |size| view.extended(size, row))
    }
}

/// Returns an allocated device as its driver offers it now.
fn device<'a>(
    offers: &'a Offers,
    node: &str,
    given: &DeviceRequestAllocationResult,
) -> Option<&'a Device> {
    // The shared claim of a group may have devices of another node.
    newest(offers.near(node), given).or_else(|| newest(offers.all(), given))
}

/// Returns the device from the newest of these slices: an older generation of the pool may list it
/// too.
fn newest<'a>(
    slices: impl Iterator<Item = &'a Rc<Slice>>,
    given: &DeviceRequestAllocationResult,
) -> Option<&'a Device> {
    let slices =
        slices.filter(|slice| *slice.pool == *given.pool && *slice.driver == *given.driver);
    let all =
        slices.flat_map(|slice| slice.devices.iter().map(|device| (slice.generation, device)));
    let all = all.filter(|(_, device)| *device.id.device == *given.device);
    all.max_by_key(|(generation, _)| *generation).map(|(_, device)| device)
}

/// A device whose amounts of the node's resources are not known.
#[derive(Debug, thiserror::Error)]
#[error("claim {claim}, device {device}: {fault}")]
struct TakenError {
    claim: String,
    device: String,
    fault: TakenFault,
}

#[derive(Debug, thiserror::Error)]
enum TakenFault {
    #[error("device {0} not found in pool {1}")]
    NotInPool(String, String),
    #[error(
        "ConsumedCapacity is nil, but Capacity key '{key}' is set in \
         NodeAllocatableResourceMappings for resource {resource}"
    )]
    NoCapacity { key: String, resource: String },
}

/// Sums the amounts that the devices of a claim take from their node; `None` if nothing counts.
// k8s: buildNodeAllocatableDRAInfo
fn taken(
    claim: &ResourceClaim,
    has: &AllocationResult,
    offers: &Offers,
    node: &str,
) -> Result<Option<Amounts>, TakenError> {
    let mut taken = None;
    for given in results(has) {
        let failed = |fault| {
            let (claim, device) = (name(claim), given.device.clone());
            TakenError { claim, device, fault }
        };
        let device = device(offers, node, given).ok_or_else(|| {
            failed(TakenFault::NotInPool(given.device.clone(), given.pool.clone()))
        })?;
        for (resource, take) in &device.takes {
            let amount = take.of(given).map_err(|key| {
                let (key, resource) = (key.to_owned(), resource.clone());
                failed(TakenFault::NoCapacity { key, resource })
            })?;
            if let Some(amount) = amount {
                let all: &mut Amounts = taken.get_or_insert_default();
                let sum = all.entry(resource.clone()).or_default();
                *sum = *sum + amount;
            }
        }
    }
    Ok(taken)
}

/// Returns the reason that too little is left for the requests; `pages` returns a node's huge pages
/// of a size, and how much of them is requested.
// k8s: nodeFitsResources
fn lack(wants: &Resources, has: &Numbers, pages: impl Fn(&str) -> (i64, i64)) -> Option<Status> {
    let plain = [
        ("cpu", wants.cpu_milli, (has.cpu, has.cpu_used)),
        ("memory", wants.mem_bytes, (has.mem, has.mem_used)),
        ("ephemeral-storage", wants.eph_bytes, (has.eph, has.eph_used)),
    ];
    let plain = plain.into_iter().filter(|(_, wants, _)| *wants > 0);
    let sizes = wants.scalars.iter().filter(|(name, _)| is_pages(name));
    let sizes = sizes.map(|(name, wants)| (&**name, *wants, pages(name)));
    let lacks =
        plain.chain(sizes).filter(|(_, wants, (all, used))| *wants > all.wrapping_sub(*used));
    let (mut reasons, mut code) = (Vec::new(), Code::Unschedulable);
    for (name, wants, (all, _)) in lacks {
        reasons.push(format!("Insufficient {name}"));
        if wants > all {
            // The request exceeds the node's total, so no eviction helps.
            code = Code::UnschedulableAndUnresolvable;
        }
    }
    let plugin = Some(Plugin::DynamicResources);
    (!reasons.is_empty()).then_some(Status { plugin, code, reasons })
}

/// Returns a pod with the amounts of these status entries, which replace those of its own status.
// k8s: pkg/scheduler/schedule_one.go assume
pub(crate) fn on_node(
    pod: &Pod,
    spec: &Rc<PodSpec>,
    statuses: &[NodeAllocatableResourceClaimStatus],
) -> Rc<PodSpec> {
    if statuses == node_claims(pod) {
        return Rc::clone(spec);
    }
    let mut pod = pod.clone();
    pod.status.get_or_insert_default().node_allocatable_resource_claim_statuses =
        (!statuses.is_empty()).then(|| statuses.to_vec());
    counted(&pod, spec)
}

/// Returns a pod with the amounts that devices take, by its status.
pub(crate) fn with_devices(pod: &Pod, spec: Rc<PodSpec>) -> Rc<PodSpec> {
    if node_claims(pod).is_empty() { spec } else { counted(pod, &spec) }
}

fn counted(pod: &Pod, spec: &Rc<PodSpec>) -> Rc<PodSpec> {
    match PodRequests::with_devices(pod) {
        Ok(requests) if requests != spec.requests => {
            Rc::new(PodSpec { requests, ..PodSpec::clone(spec) })
        }
        // If the amounts are invalid or equal, the spec stays as it is.
        _ => Rc::clone(spec),
    }
}
