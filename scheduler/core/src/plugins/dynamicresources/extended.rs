//! Extended resources of device classes: if no device plugin offers any, a claim is created for the
//! pod.
//!
//! Input: requests of a pod's containers, classes, allocatable resources of nodes. Output: for each
//! node the claim to be created. Owner: one decision; pure but for random uids. Bounds: the pod's
//! containers.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, Pod};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClass, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pintle_api_types::quantity::Amount;
use pintle_sched_core::Cluster;
use pintle_sched_core::bits::Bits;

use super::known::Devices;
use super::request::EXACT;
use super::row::uuid;

/// Annotation of a claim created for extended resources.
// k8s: staging/src/k8s.io/api/resource/v1/types.go ExtendedResourceClaimAnnotation
pub(crate) const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// Prefix of resource names that name a class directly.
// k8s: staging/src/k8s.io/api/resource/v1/types.go ResourceDeviceClassPrefix
const OF_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// Maps each extended resource to its class; of several classes the newest wins.
// k8s: dynamic-resource-allocation/deviceclass/extendedresourcecache
pub(super) fn resources<'a>(
    classes: impl Iterator<Item = &'a Rc<DeviceClass>>,
) -> BTreeMap<String, String> {
    let mut all: Vec<&DeviceClass> = classes.map(|class| &**class).collect();
    let name = |class: &DeviceClass| class.metadata.name.clone().unwrap_or_default();
    // The last one wins: the newest class, and of equally old ones the first by name.
    all.sort_by_key(|class| {
        let created = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, std::cmp::Reverse(name(class)))
    });
    let mut found = BTreeMap::new();
    for class in all {
        found.insert(format!("{OF_CLASS}{}", name(class)), name(class));
        if let Some(resource) = &class.spec.extended_resource_name {
            found.insert(resource.clone(), name(class));
        }
    }
    found
}

/// Was the claim created for extended resources?
pub fn is_of_resources(claim: &ResourceClaim) -> bool {
    let all = claim.metadata.annotations.as_ref();
    all.and_then(|all| all.get(EXTENDED)).is_some_and(|value| value == "true")
}

/// Is this a valid name of an extended resource (not native to Kubernetes)?
// k8s: pkg/apis/core/v1/helper/helpers.go IsExtendedResourceName, scheduler/util IsDRAExtendedResourceName
fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    name.starts_with(OF_CLASS) || (!is_native && !name.starts_with("requests."))
}

/// A requested resource, nodes that list it, and nodes that have some of it.
#[derive(Clone, Debug)]
struct ExtendedRequest {
    name: String,
    class: Option<String>,
    named: Bits,
    some: Bits,
}

/// A claim to be created.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewClaim {
    pub(crate) claim: Rc<ResourceClaim>,
    /// Maps the claim's requests to containers and resources.
    pub(crate) mappings: Vec<ContainerExtendedResourceRequest>,
}

/// Claims by the resources that nodes lack.
type ByLack = HashMap<Vec<String>, Option<Rc<NewClaim>>>;

/// Extended resources that a pod requests.
#[derive(Clone, Debug)]
pub(super) struct Extended {
    wanted: Vec<ExtendedRequest>,
    /// The claim of an earlier attempt: it must be deleted first.
    pub(super) old: Option<Rc<ResourceClaim>>,
    metadata: ObjectMeta,
    containers: Rc<[Asking]>,
    made: RefCell<ByLack>,
}

/// Extended resources that a container requests.
#[derive(Clone, Debug)]
struct Asking {
    name: String,
    requests: BTreeMap<String, i64>,
    /// An init container that ends before the others begin.
    is_short: bool,
}

impl Asking {
    fn of(container: &Container, is_init: bool) -> Self {
        let all = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let amount = |text: &str| Amount::parse(text).map_or(0, Amount::units);
        let requests = all.into_iter().flatten().map(|(name, q)| (name.clone(), amount(&q.0)));
        Self {
            name: container.name.clone(),
            requests: requests.collect(),
            is_short: is_init && container.restart_policy.as_deref() != Some("Always"),
        }
    }
}

impl Devices {
    /// Evaluates a pod's extended resources against all nodes.
    pub(super) fn extended(
        &self,
        pod: &Pod,
        resources: &[(String, i64)],
        cluster: &Cluster,
    ) -> Extended {
        let wanted = resources.iter().filter(|(name, amount)| *amount != 0 && is_extended(name));
        let wanted = wanted.map(|(name, _)| {
            let (named, some) = cluster.rows_offering(name);
            ExtendedRequest {
                name: name.clone(),
                class: self.extended.get(name).cloned(),
                named,
                some,
            }
        });
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let is_its = |claim: &&Rc<ResourceClaim>| {
            let owners = claim.metadata.owner_references.iter().flatten();
            let mut owners = owners.filter(|owner| owner.controller == Some(true));
            is_of_resources(claim) && owners.any(|owner| owner.uid == uid && owner.name == name)
        };
        let old = self.claims().borrow().values().find(is_its).cloned();
        let spec = pod.spec.as_ref();
        let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        let init = init.iter().map(|container| Asking::of(container, true));
        let rest = spec.map(|spec| &spec.containers[..]).unwrap_or_default();
        let containers = init.chain(rest.iter().map(|container| Asking::of(container, false)));
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: name.clone(),
            uid,
            controller: Some(true),
            block_owner_deletion: None,
        };
        let metadata = ObjectMeta {
            namespace: pod.metadata.namespace.clone(),
            generate_name: Some(format!("{name}-extended-resources-")),
            // A temporary UID, until the API server has created the claim.
            uid: Some(uuid()),
            annotations: Some([(EXTENDED.to_owned(), "true".to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        Extended {
            wanted: wanted.collect(),
            old,
            metadata,
            containers: containers.collect(),
            made: RefCell::default(),
        }
    }
}

impl Extended {
    /// Returns the claim to create for the pod on a node, if it needs one there.
    ///
    /// # Errors
    /// The reason it cannot be created there.
    // k8s: filterExtendedResources
    pub(super) fn at(&self, row: u32) -> Result<Option<Rc<NewClaim>>, &'static str> {
        if self.old.is_some() {
            return Err("cannot schedule extended resource claim");
        }
        let mut lacks = Vec::new();
        for wanted in &self.wanted {
            match &wanted.class {
                Some(_) if !wanted.some.get(row) => lacks.push(wanted.name.clone()),
                _ if !wanted.named.get(row) => return Err("cannot fit resource"),
                _ => {}
            }
        }
        let mut made = self.made.borrow_mut();
        let make = || (!lacks.is_empty()).then(|| Rc::new(self.make(&lacks)));
        Ok(made.entry(lacks.clone()).or_insert_with(make).clone())
    }

    // k8s: createRequestsAndMappings
    fn make(&self, lacks: &[String]) -> NewClaim {
        let (mut requests, mut mappings) = (Vec::new(), Vec::new());
        let lacks: BTreeSet<&String> = lacks.iter().collect();
        for resource in lacks {
            let class = self.wanted.iter().find(|wanted| wanted.name == *resource);
            let Some(class) = class.and_then(|wanted| wanted.class.as_deref()) else { continue };
            let mut of_resource = OfResource::new(resource, class, self.containers.len());
            let all = || self.containers.iter().enumerate();
            for (at, container) in all().filter(|(_, container)| !container.is_short) {
                of_resource.long(at, container);
            }
            for (at, container) in all().filter(|(_, container)| container.is_short) {
                of_resource.short(at, container);
            }
            of_resource.end(&mut requests, &mut mappings);
        }
        requests.sort_by(|a: &DeviceRequest, b| a.name.cmp(&b.name));
        let devices = Some(DeviceClaim { requests: Some(requests), ..DeviceClaim::default() });
        let claim = ResourceClaim {
            metadata: self.metadata.clone(),
            spec: ResourceClaimSpec { devices },
            status: None,
        };
        NewClaim { claim: Rc::new(claim), mappings }
    }
}

/// Requests of one resource, over all containers.
struct OfResource<'a> {
    resource: &'a str,
    class: &'a str,
    /// Requests of containers that live as long as the pod, by their number; init containers that
    /// end before may use the same devices.
    long: Vec<Option<DeviceRequest>>,
    long_mappings: Vec<ContainerExtendedResourceRequest>,
    /// The largest request of those init containers, which all of them use, one after the other.
    short: Option<DeviceRequest>,
    short_names: BTreeSet<String>,
    short_mappings: Vec<ContainerExtendedResourceRequest>,
}

fn count(request: &DeviceRequest) -> i64 {
    request.exactly.as_ref().and_then(|exactly| exactly.count).unwrap_or(0)
}

impl<'a> OfResource<'a> {
    fn new(resource: &'a str, class: &'a str, containers: usize) -> Self {
        Self {
            resource,
            class,
            long: vec![None; containers],
            long_mappings: Vec::new(),
            short: None,
            short_names: BTreeSet::new(),
            short_mappings: Vec::new(),
        }
    }

    fn long(&mut self, at: usize, container: &Asking) {
        let (request, mappings) = self.of_container(at, container, &[]);
        self.long[at] = request;
        self.long_mappings.extend(mappings);
    }

    fn short(&mut self, at: usize, container: &Asking) {
        let (request, mappings) = self.of_container(at, container, &self.long[at..]);
        if let Some(request) = request {
            self.short_names.insert(request.name.clone());
            if self.short.as_ref().is_none_or(|most| count(most) < count(&request)) {
                self.short = Some(request);
            }
        }
        self.short_mappings.extend(mappings);
    }

    // k8s: createResourceRequestAndMappings
    fn of_container(
        &self,
        at: usize,
        container: &Asking,
        others: &[Option<DeviceRequest>],
    ) -> (Option<DeviceRequest>, Vec<ContainerExtendedResourceRequest>) {
        let mut mappings = Vec::new();
        let wants = container.requests.get(self.resource).copied().unwrap_or(0);
        if wants == 0 {
            return (None, mappings);
        }
        let mapping = |request: &str| ContainerExtendedResourceRequest {
            container_name: container.name.clone(),
            request_name: request.to_owned(),
            resource_name: self.resource.to_owned(),
        };
        let mut has = 0;
        for other in others.iter().flatten() {
            has += count(other);
            mappings.push(mapping(&other.name));
            if has >= wants {
                return (None, mappings);
            }
        }
        let number = container.requests.keys().position(|name| name == self.resource);
        let name = format!("container-{at}-request-{}", number.unwrap_or(0));
        mappings.push(mapping(&name));
        let exactly = ExactDeviceRequest {
            device_class_name: self.class.to_owned(),
            allocation_mode: Some(EXACT.to_owned()),
            count: Some(wants - has),
            ..ExactDeviceRequest::default()
        };
        (Some(DeviceRequest { name, exactly: Some(exactly), first_available: None }), mappings)
    }

    fn end(
        mut self,
        requests: &mut Vec<DeviceRequest>,
        mappings: &mut Vec<ContainerExtendedResourceRequest>,
    ) {
        if let Some(most) = &self.short {
            for mapping in &mut self.short_mappings {
                if self.short_names.contains(&mapping.request_name) {
                    mapping.request_name.clone_from(&most.name);
                }
            }
        }
        requests.extend(self.short.into_iter().chain(self.long.into_iter().flatten()));
        mappings.extend(self.long_mappings);
        mappings.extend(self.short_mappings);
    }
}
