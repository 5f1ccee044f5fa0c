//! Requests of a pod: the sums over containers, init containers, sidecars, pod level and overhead.
//!
//! Input: a pod. Output: amounts by resource, and the fixed fields the columns hold.
//! Owner: pure functions. Bounds: none beyond the pod's own size.
//! Why several variants: upstream's filter, its two resource scores and its per-node sums each use
//! another subset of the same fields, and the differences show in recorded scores.
// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go PodRequests

pub mod declared;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, NodeAllocatableResourceClaimStatus, Pod, PodSpec,
};

use pintle_api_types::quantity::{self, Amount, Amounts, QuantityError};

/// CPU that a container without a request counts for in scores.
// k8s: pkg/scheduler/util/pod_resources.go
pub const DEFAULT_CPU_MILLI: i64 = 100;
/// Memory that a container without a request counts for in scores.
pub const DEFAULT_MEM_BYTES: i64 = 200 * 1024 * 1024;

/// An invalid quantity of a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}.{resource}")]
pub struct RequestError {
    /// Path of the resource list within the pod.
    pub field: String,
    /// The resource.
    pub resource: String,
    /// The problem.
    #[source]
    pub source: QuantityError,
}

/// Fields that take part.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    status: bool,
    pod_level: bool,
    default_cpu: bool,
    default_mem: bool,
    /// Amounts that devices take from the node, by the pod's status.
    devices: bool,
}

/// Requests in the form of the columns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Millicores.
    pub cpu_milli: i64,
    /// Bytes of memory.
    pub mem_bytes: i64,
    /// Bytes of ephemeral storage.
    pub eph_bytes: i64,
    /// Extended resources, huge pages and attachable volumes, sorted by name, including explicit
    /// zeros.
    pub scalars: Vec<(String, i64)>,
}

/// All variants of a pod's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodRequests {
    /// Requests for the filter, the sums of a node and the balance score.
    pub plain: Resources,
    /// Millicores that a bound pod adds to the sums of the utilisation score.
    pub nonzero_cpu_milli: i64,
    /// Bytes of memory that a bound pod adds to the sums of the utilisation score.
    pub nonzero_mem_bytes: i64,
    /// Amounts that an incoming pod adds in the utilisation score: without pod level and status.
    pub score: Resources,
    /// Its own requests, if `plain` includes amounts that devices take.
    own: Option<Box<Resources>>,
}

impl PodRequests {
    /// Computes all variants.
    ///
    /// # Errors
    /// A quantity of the pod is invalid.
    pub fn of(pod: &Pod) -> Result<Self, RequestError> {
        let plain_options = Options { status: true, pod_level: true, ..Options::default() };
        if has_one_variant(pod) {
            let plain = Resources::of(&pod_amounts(pod, plain_options)?);
            return Ok(Self {
                nonzero_cpu_milli: plain.cpu_milli,
                nonzero_mem_bytes: plain.mem_bytes,
                score: plain.clone(),
                plain,
                own: None,
            });
        }
        Self::read(pod, plain_options)
    }

    /// Like `of`, with the amounts that devices take from the node, by the pod's status.
    ///
    /// # Errors
    /// A quantity of the pod is invalid.
    // k8s: pkg/scheduler/framework/types.go CalculateResource
    pub fn with_devices(pod: &Pod) -> Result<Self, RequestError> {
        let own = Self::of(pod)?;
        if node_claims(pod).is_empty() {
            return Ok(own);
        }
        let all = Options { status: true, pod_level: true, devices: true, ..Options::default() };
        Ok(Self { own: Some(Box::new(own.plain)), ..Self::read(pod, all)? })
    }

    /// Returns true if devices of its claims take allocatable resources of its node.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.own.is_some()
    }

    /// Returns its own requests, without amounts that devices take from the node.
    #[must_use]
    pub fn own(&self) -> &Resources {
        self.own.as_deref().unwrap_or(&self.plain)
    }

    fn read(pod: &Pod, plain_options: Options) -> Result<Self, RequestError> {
        let plain = pod_amounts(pod, plain_options)?;
        // k8s: pkg/scheduler/framework/types.go getNonMissingContainerRequests
        let pod_level = pod_level_requests(pod)?.is_some();
        let bound = pod_amounts(
            pod,
            Options {
                default_cpu: !pod_level || !plain.contains_key("cpu"),
                default_mem: !pod_level || !plain.contains_key("memory"),
                ..plain_options
            },
        )?;
        let score = pod_amounts(
            pod,
            Options { default_cpu: true, default_mem: true, ..Options::default() },
        )?;
        let of = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or_default();
        Ok(Self {
            nonzero_cpu_milli: of(&bound, "cpu").millis(),
            nonzero_mem_bytes: of(&bound, "memory").units(),
            plain: Resources::of(&plain),
            score: Resources::of(&score),
            own: None,
        })
    }
}

/// Returns the requests of a pending pod, with amounts that devices of its claims take, by its
/// status; `pod_level` includes requests at pod level.
///
/// # Errors
/// A quantity of the pod is invalid.
// k8s: dynamicresources/nodeallocatabledynamicresources.go getPodNodeAllocatableResourceFootprint
pub fn demand(pod: &Pod, pod_level: bool) -> Result<Amounts, RequestError> {
    pod_amounts(pod, Options { pod_level, devices: true, ..Options::default() })
}

/// Returns the amounts that devices of a pod's claims take from its node, by the pod's status.
#[must_use]
pub fn node_claims(pod: &Pod) -> &[NodeAllocatableResourceClaimStatus] {
    let status = pod.status.as_ref();
    let all = status.and_then(|s| s.node_allocatable_resource_claim_statuses.as_deref());
    all.unwrap_or_default()
}

impl Resources {
    /// Splits amounts into columns; names that the scheduler does not count are dropped.
    // k8s: pkg/scheduler/framework/types.go Resource.Add
    #[must_use]
    pub fn of(amounts: &Amounts) -> Self {
        let mut resources = Self::default();
        for (name, amount) in amounts {
            match name.as_str() {
                "cpu" => resources.cpu_milli = amount.millis(),
                "memory" => resources.mem_bytes = amount.units(),
                "ephemeral-storage" => resources.eph_bytes = amount.units(),
                "pods" => {}
                name if is_scalar(name) => {
                    resources.scalars.push((name.to_owned(), amount.units()));
                }
                _ => {}
            }
        }
        resources
    }

    /// Returns true if no resource is listed, not even with an explicit zero among `scalars`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpu_milli == 0 && self.mem_bytes == 0 && self.eph_bytes == 0 && self.scalars.is_empty()
    }

    /// Returns the amount of one resource as the scores use it.
    #[must_use]
    pub fn amount(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.cpu_milli,
            "memory" => self.mem_bytes,
            "ephemeral-storage" => self.eph_bytes,
            _ => self.scalar(name).unwrap_or(0),
        }
    }

    /// Returns the amount of an extended resource, if it is listed. The search is binary, because a
    /// pod or node may list very many.
    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<i64> {
        self.scalar_at(name).map(|at| self.scalars[at].1)
    }

    /// Returns true if any amount is less than in `was`.
    #[must_use]
    pub fn is_less_than(&self, was: &Self) -> bool {
        let is_less =
            |(name, amount): &(String, i64)| self.scalar(name).is_none_or(|is| is < *amount);
        self.cpu_milli < was.cpu_milli
            || self.mem_bytes < was.mem_bytes
            || self.eph_bytes < was.eph_bytes
            || was.scalars.iter().any(is_less)
    }

    /// Returns the index of an extended resource in `scalars`.
    pub(crate) fn scalar_at(&self, name: &str) -> Option<usize> {
        self.scalars.binary_search_by(|(other, _)| other.as_str().cmp(name)).ok()
    }
}

/// Returns true if all variants are equal: there are no requests at pod level, no status has
/// resources, and no container needs a default.
fn has_one_variant(pod: &Pod) -> bool {
    let Some(spec) = pod.spec.as_ref() else { return false };
    let named = |c: &Container| {
        let requests = c.resources.as_ref().and_then(|r| r.requests.as_ref());
        requests.is_some_and(|r| r.contains_key("cpu") && r.contains_key("memory"))
    };
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let status = pod.status.as_ref();
    let main = status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
    let init = status.and_then(|s| s.init_container_statuses.as_ref()).into_iter().flatten();
    let mut statuses = main.chain(init);
    spec.resources.is_none()
        && statuses.all(|status| status.resources.is_none())
        && containers.all(named)
}

/// Returns true if the scheduler counts a resource of this name in addition to the built-in ones.
// k8s: pkg/scheduler/util/utils.go IsScalarResourceName
#[must_use]
pub fn is_scalar(name: &str) -> bool {
    name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
        || (name.contains('/') && !name.starts_with("requests."))
}

fn amounts_of(
    list: Option<
        &std::collections::BTreeMap<
            String,
            k8s_openapi::apimachinery::pkg::api::resource::Quantity,
        >,
    >,
    field: impl FnOnce() -> String,
) -> Result<Amounts, RequestError> {
    quantity::read_list(list).map_err(|(resource, source)| RequestError {
        field: field(),
        resource,
        source,
    })
}

fn add(into: &mut Amounts, from: &Amounts) {
    for (name, amount) in from {
        let sum = into.entry(name.clone()).or_default();
        *sum = *sum + *amount;
    }
}

fn raise(into: &mut Amounts, from: &Amounts) {
    for (name, amount) in from {
        let most = into.entry(name.clone()).or_insert(*amount);
        *most = (*most).max(*amount);
    }
}

fn pod_amounts(pod: &Pod, options: Options) -> Result<Amounts, RequestError> {
    let mut total = container_amounts(pod, options)?;
    if options.devices {
        for claim in node_claims(pod) {
            let name = &claim.resource_claim_name;
            let field =
                || format!("status.nodeAllocatableResourceClaimStatuses[{name:?}].resources");
            add(&mut total, &amounts_of(Some(&claim.resources), field)?);
        }
    }
    if options.pod_level
        && let Some(requests) = pod_level_requests(pod)?
    {
        let effective = if options.status { pod_level_effective(pod, requests)? } else { requests };
        for (name, amount) in effective {
            if is_pod_level_resource(&name) {
                total.insert(name, amount);
            }
        }
    }
    let spec = pod.spec.as_ref();
    let overhead = spec.and_then(|s| s.overhead.as_ref());
    add(&mut total, &amounts_of(overhead, || "spec.overhead".to_owned())?);
    Ok(total)
}

// k8s: helpers.go IsPodLevelRequestsSet
fn pod_level_requests(pod: &Pod) -> Result<Option<Amounts>, RequestError> {
    let requests =
        pod.spec.as_ref().and_then(|s| s.resources.as_ref()).map(|r| r.requests.as_ref());
    let Some(Some(requests)) = requests else { return Ok(None) };
    if !requests.keys().any(|name| is_pod_level_resource(name)) {
        return Ok(None);
    }
    amounts_of(Some(requests), || "spec.resources.requests".to_owned()).map(Some)
}

fn is_pod_level_resource(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// Pod-level requests of a pod that is being resized in place: the largest of the requested, the
/// allocated and the actuated amount. An allocation without actuated resources is ignored.
// k8s: helpers.go PodRequests
fn pod_level_effective(pod: &Pod, spec: Amounts) -> Result<Amounts, RequestError> {
    let status = pod.status.as_ref();
    let Some((status, actuated)) = status.and_then(|s| Some((s, s.resources.as_ref()?))) else {
        return Ok(spec);
    };
    let mut effective = if is_resize_infeasible(pod) { Amounts::new() } else { spec.clone() };
    for (list, field) in [
        (actuated.requests.as_ref(), "status.resources.requests"),
        (status.allocated_resources.as_ref(), "status.allocatedResources"),
    ] {
        let mut amounts = amounts_of(list, || field.to_owned())?;
        // The status may list more than the pod requests at pod level; that does not count.
        amounts.retain(|name, _| spec.contains_key(name));
        raise(&mut effective, &amounts);
    }
    Ok(effective)
}

fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == "PodResizePending")
        .is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
}

/// A container's requests; during an in-place resize the largest of the requested, the actuated and
/// the allocated amount. An allocation without actuated resources is ignored.
// k8s: helpers.go determineContainerReqs
fn container_requests(
    pod: &Pod,
    container: &Container,
    options: Options,
) -> Result<Amounts, RequestError> {
    let name = &container.name;
    let spec = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let spec = amounts_of(spec, || format!("spec.containers[{name:?}].resources.requests"))?;
    let status = if options.status { find_status(pod, name) } else { None };
    let Some((status, resources)) = status.and_then(|s| Some((s, s.resources.as_ref()?))) else {
        return Ok(spec);
    };
    let field = || format!("status of container {name:?} requests");
    let mut most = if is_resize_infeasible(pod) { Amounts::new() } else { spec };
    raise(&mut most, &amounts_of(resources.requests.as_ref(), field)?);
    raise(&mut most, &amounts_of(status.allocated_resources.as_ref(), field)?);
    Ok(most)
}

// k8s: helpers.go AggregateContainerRequests
fn container_amounts(pod: &Pod, options: Options) -> Result<Amounts, RequestError> {
    let Some(spec) = pod.spec.as_ref() else { return Ok(Amounts::new()) };
    let requests = |container: &Container, options: Options| {
        let mut amounts = container_requests(pod, container, options)?;
        if options.default_cpu {
            amounts.entry("cpu".into()).or_insert(Amount::from_millis(DEFAULT_CPU_MILLI));
        }
        if options.default_mem {
            amounts.entry("memory".into()).or_insert(Amount::from_bytes(DEFAULT_MEM_BYTES));
        }
        Ok(amounts)
    };
    // Of init containers only sidecars can be resized.
    sum_of(spec, |container, stays| {
        requests(container, Options { status: options.status && stays, ..options })
    })
}

/// Sums up `of` over all containers; its second argument is true for containers that run all the
/// pod's life.
fn sum_of(
    spec: &PodSpec,
    of: impl Fn(&Container, bool) -> Result<Amounts, RequestError>,
) -> Result<Amounts, RequestError> {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &of(container, true)?);
    }
    let (mut sidecars, mut most) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut step = of(container, is_sidecar(container))?;
        if is_sidecar(container) {
            add(&mut total, &step);
            add(&mut sidecars, &step);
            step = sidecars.clone();
        } else {
            add(&mut step, &sidecars);
        }
        raise(&mut most, &step);
    }
    raise(&mut total, &most);
    Ok(total)
}

/// Returns true if an init container keeps running as a sidecar.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn find_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = [status.container_statuses.as_ref(), status.init_container_statuses.as_ref()];
    all.into_iter().flatten().flatten().find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(spec: &str) -> PodRequests {
        let json = format!(r#"{{"metadata":{{}},"spec":{spec}}}"#);
        PodRequests::of(&serde_json::from_str(&json).expect("pod")).expect("quantities")
    }

    #[test]
    fn devices_add_to_requests_that_are_not_set_at_pod_level() {
        let of = |spec: &str| {
            let claims = r#"[{"resourceClaimName":"a","resources":{"cpu":"1500u","memory":"1Gi"}},
                {"resourceClaimName":"b","resources":{"cpu":"1500u","hugepages-2Mi":"2Mi"}}]"#;
            let status = format!(r#"{{"nodeAllocatableResourceClaimStatuses":{claims}}}"#);
            let json = format!(r#"{{"metadata":{{}},"spec":{spec},"status":{status}}}"#);
            let pod: Pod = serde_json::from_str(&json).expect("a pod");
            let all = PodRequests::with_devices(&pod).expect("quantities");
            (pod, all)
        };
        let container = r#"{"name":"c","resources":{"requests":{"cpu":"1","memory":"1Gi"}}}"#;
        let (pod, all) = of(&format!(r#"{{"containers":[{container}]}}"#));
        // Sums are rounded, not their parts.
        assert_eq!((all.plain.cpu_milli, all.plain.mem_bytes), (1003, 2 << 30));
        assert_eq!((all.nonzero_cpu_milli, all.nonzero_mem_bytes), (1003, 2 << 30));
        assert_eq!((all.own().cpu_milli, all.own().mem_bytes), (1000, 1 << 30));
        assert_eq!(all.score, PodRequests::of(&pod).expect("quantities").score);
        assert!(all.has_devices() && !PodRequests::of(&pod).expect("quantities").has_devices());
        let level = r#""resources":{"requests":{"cpu":"2"}},"overhead":{"cpu":"1"}"#;
        let (pod, all) = of(&format!(r#"{{"containers":[{{"name":"c"}}],{level}}}"#));
        assert_eq!((all.plain.cpu_milli, all.plain.mem_bytes), (3000, 1 << 30));
        // No container gets the default memory, because devices take some.
        assert_eq!((all.nonzero_cpu_milli, all.nonzero_mem_bytes), (3000, 1 << 30));
        let wants = |pod_level| Resources::of(&demand(&pod, pod_level).expect("quantities"));
        assert_eq!((wants(true).cpu_milli, wants(false).cpu_milli), (3000, 1003));
        assert_eq!(wants(true).scalars, [("hugepages-2Mi".to_owned(), 2 << 20)]);
    }

    #[test]
    fn requests_for_very_many_resources_are_compared() {
        // A linear search for each name would take minutes.
        let scalars = (0..300_000).map(|at| (format!("x.y/{at:06}"), 1)).collect();
        let was = Resources { scalars, ..Resources::default() };
        let mut is = was.clone();
        assert!(!is.is_less_than(&was));
        is.scalars[299_999].1 = 2;
        assert!(!is.is_less_than(&was) && was.is_less_than(&is));
        is.scalars.pop();
        assert!(is.is_less_than(&was));
        is.cpu_milli = 1;
        assert!(was.is_less_than(&is));
    }

    #[test]
    fn init_containers_raise_and_sidecars_add() {
        let r = requests(
            r#"{"containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}}],
                "initContainers":[
                  {"name":"s","restartPolicy":"Always","resources":{"requests":{"cpu":"2"}}},
                  {"name":"i","resources":{"requests":{"cpu":"4"}}}]}"#,
        );
        assert_eq!(r.plain.cpu_milli, 6000, "the init step with its sidecar is the largest");
    }

    #[test]
    fn an_explicit_zero_is_a_request_and_an_absent_one_has_a_default() {
        let r = requests(
            r#"{"containers":[{"name":"a","resources":{"requests":{"cpu":"0"}}},{"name":"b"}]}"#,
        );
        assert_eq!((r.nonzero_cpu_milli, r.nonzero_mem_bytes), (100, 2 * DEFAULT_MEM_BYTES));
        assert_eq!((r.plain.cpu_milli, r.plain.mem_bytes), (0, 0));
    }

    #[test]
    fn requests_that_need_no_default_are_equal_in_all_variants() {
        let container =
            r#"{"name":"a","resources":{"requests":{"cpu":"1","memory":"3","a.b/c":"2"}}}"#;
        let r = requests(&format!(r#"{{"containers":[{container}],"overhead":{{"cpu":"2"}}}}"#));
        assert_eq!((r.nonzero_cpu_milli, r.nonzero_mem_bytes), (3000, 3));
        assert_eq!((r.plain.amount("cpu"), r.plain.amount("a.b/c")), (3000, 2));
        assert_eq!(r.plain, r.score);
        // A further container gets defaults of its own.
        let r = requests(&format!(
            r#"{{"containers":[{container}],"initContainers":[
            {{"name":"b","restartPolicy":"Always"}}]}}"#
        ));
        assert_eq!((r.plain.cpu_milli, r.nonzero_cpu_milli, r.score.cpu_milli), (1000, 1100, 1100));
    }

    #[test]
    fn pod_level_requests_count_for_the_filter_but_not_for_the_utilisation_score() {
        let r = requests(
            r#"{"resources":{"requests":{"cpu":"3"}},
                "containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}},{"name":"b"}]}"#,
        );
        assert_eq!((r.plain.cpu_milli, r.nonzero_cpu_milli), (3000, 3000));
        assert_eq!(r.score.cpu_milli, 1100);
        assert_eq!(r.nonzero_mem_bytes, 2 * DEFAULT_MEM_BYTES);
    }

    #[test]
    fn a_pod_level_allocation_counts_only_with_actuated_resources() {
        let cpu = |status: &str| {
            let pod = format!(
                r#"{{"metadata":{{}},"status":{status},"spec":{{"containers":[{{"name":"a"}}],
                    "resources":{{"requests":{{"cpu":"1"}}}}}}}}"#
            );
            let pod = serde_json::from_str(&pod).expect("pod");
            PodRequests::of(&pod).expect("quantities").plain.cpu_milli
        };
        assert_eq!(cpu(r#"{"allocatedResources":{"cpu":"2"}}"#), 1000);
        assert_eq!(cpu(r#"{"allocatedResources":{"cpu":"2"},"resources":{}}"#), 2000);
        assert_eq!(cpu(r#"{"resources":{"requests":{"cpu":"3"}}}"#), 3000);
    }

    #[test]
    fn a_bad_quantity_names_its_container_and_resource() {
        let pod = r#"{"metadata":{},"spec":{"containers":[
            {"name":"a","resources":{"requests":{"cpu":"lots"}}}]}}"#;
        let error = PodRequests::of(&serde_json::from_str(pod).expect("pod")).expect_err("bad");
        assert!(error.to_string().contains("\"a\"") && error.resource == "cpu");
    }

    #[test]
    fn an_amount_is_found_among_very_many() {
        // A linear search for each name would take minutes.
        let scalars = (0..300_000).map(|at| (format!("x.y/{at:06}"), at)).collect();
        let resources = Resources { scalars, ..Resources::default() };
        let found = |(name, amount): &(String, i64)| resources.scalar(name) == Some(*amount);
        assert!(resources.scalars.iter().all(found));
        assert_eq!((resources.scalar("x.y/0"), resources.amount("x.y/0")), (None, 0));
    }
}
