//! CRI's resources of sandboxes and containers, and a pod's sums for its cgroup.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use pintle_cri_v1 as v1;

use super::context::{NodeContext, PodContext};
use crate::cgroup::formulas::{self, OomInput, PodAmounts};
use crate::cgroup::names::CgroupVersion;
use pintle_api_types::ids::ContainerKind;
use pintle_api_types::pod;
use pintle_api_types::pod::qos::QosClass;
use pintle_api_types::pod::resources::{Amounts, Side, is_limited, of_container, pod_level};
use pintle_api_types::quantity::Amount;

const OOM_GROUP: &str = "memory.oom.group";
const SWAP_MAX: &str = "memory.swap.max";
const HUGEPAGES: &str = "hugepages-";

/// A pod's sums with overhead, for `cgroup::formulas::pod_limits`.
pub fn pod_amounts(pod: &Pod) -> PodAmounts {
    let (requests, limits) = (pod::resources::pod_requests(pod), pod::resources::pod_limits(pod));
    PodAmounts {
        qos: pod::qos::class_of(pod),
        cpu_request_millis: amount(&requests, "cpu").millis(),
        cpu_limit_millis: amount(&limits, "cpu").millis(),
        memory_request_bytes: amount(&requests, "memory").units(),
        memory_limit_bytes: amount(&limits, "memory").units(),
        cpu_limited: is_limited(pod, "cpu"),
        memory_limited: is_limited(pod, "memory"),
        hugepages: hugepages(&requests),
    }
}

/// The pod's resources in the sandbox config: the sums without overhead.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_sandbox_linux.go calculateSandboxResources
pub fn sandbox_resources(ctx: &PodContext<'_>) -> v1::LinuxContainerResources {
    let mut pod = Cow::Borrowed(ctx.pod);
    if pod::spec(ctx.pod).overhead.is_some()
        && let Some(spec) = pod.to_mut().spec.as_mut()
    {
        spec.overhead = None;
    }
    let requests = pod::resources::pod_requests(&pod);
    let limits = pod::resources::pod_limits(&pod);
    let (cpu, memory) = (amount(&limits, "cpu"), amount(&limits, "memory"));
    let mut resources = linux(ctx.node, requests.get("cpu").copied(), cpu, memory);
    lift_quota(&mut resources, ctx.node, ctx.exclusive_cpus);
    resources
}

/// The pod's overhead; empty without one.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_sandbox_linux.go convertOverheadToLinuxResources
pub fn overhead_resources(node: &NodeContext, pod: &Pod) -> v1::LinuxContainerResources {
    let Some(overhead) = pod::spec(pod).overhead.as_ref() else {
        return v1::LinuxContainerResources::default();
    };
    let of = |name: &str| overhead.get(name).and_then(|quantity| Amount::parse(&quantity.0));
    let cpu = of("cpu").unwrap_or(Amount::ZERO);
    linux(node, Some(cpu), cpu, of("memory").unwrap_or(Amount::ZERO))
}

/// A container's resources; also the content of `UpdateContainerResources`.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go generateLinuxContainerResources
pub fn container_resources(
    node: &NodeContext,
    pod: &Pod,
    container: &Container,
    exclusive_cpus: bool,
) -> v1::LinuxContainerResources {
    let requests = of_container(container, Side::Requests);
    let limits = of_container(container, Side::Limits);
    let of_pod = pod_level(pod::spec(pod), Side::Limits);
    let limit = |name: &str| {
        let own = amount(&limits, name);
        if own.is_zero() { amount(&of_pod, name) } else { own }
    };
    let mut resources = linux(node, requests.get("cpu").copied(), limit("cpu"), limit("memory"));
    lift_quota(&mut resources, node, exclusive_cpus);
    resources.oom_score_adj = oom_score_adj(node, pod, container);
    resources.hugepage_limits = hugepage_limits(node, &of_pod, &limits);
    set_swap(&mut resources, node, pod, container);
    if let Some(memory_qos) = node.limits.memory_qos {
        // The container's own limit: the pod's does not stand for it here.
        let limit = amount(&limits, "memory").units();
        let qos = pod::qos::class_of(pod);
        let files = memory_qos.of_container(qos, memory_request(container), limit);
        resources.unified.extend(files);
    }
    resources
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go calculateLinuxResources
fn linux(
    node: &NodeContext,
    cpu_request: Option<Amount>,
    cpu_limit: Amount,
    memory_limit: Amount,
) -> v1::LinuxContainerResources {
    let mut resources = v1::LinuxContainerResources {
        // A request of zero is one; only where none is named does the limit stand for it.
        cpu_shares: formulas::cpu_shares(cpu_request.unwrap_or(cpu_limit).millis()).cast_signed(),
        memory_limit_in_bytes: memory_limit.units(),
        ..Default::default()
    };
    if node.limits.enforce_cpu_quota {
        resources.cpu_period = node.limits.cpu_period_us;
        resources.cpu_quota = formulas::cpu_quota_us(cpu_limit.millis(), resources.cpu_period);
    }
    // k8s: pkg/kubelet/kubelet.go NewMainKubelet: unset means that the whole container ends.
    if node.cgroup.version == CgroupVersion::V2 && node.single_process_oom_kill != Some(true) {
        resources.unified.insert(OOM_GROUP.to_owned(), "1".to_owned());
    }
    resources
}

/// Cores of one's own are not limited by time.
fn lift_quota(resources: &mut v1::LinuxContainerResources, node: &NodeContext, exclusive: bool) {
    if exclusive && node.limits.enforce_cpu_quota {
        resources.cpu_quota = formulas::QUOTA_UNLIMITED_US;
    }
}

fn oom_score_adj(node: &NodeContext, pod: &Pod, container: &Container) -> i64 {
    let spec = pod::spec(pod);
    let share = pod_request_share(pod);
    let is_sidecar = pod::containers::init(spec)
        .any(|(kind, other)| kind == ContainerKind::Sidecar && other.name == container.name);
    let smallest = spec.containers.iter().map(memory_request).min().unwrap_or(0);
    formulas::oom_score_adj(&OomInput {
        qos: pod::qos::class_of(pod),
        node_critical: pod::is_node_critical(pod),
        memory_request_bytes: memory_request(container).saturating_add(share),
        smallest_main_request_bytes: is_sidecar.then(|| smallest.saturating_add(share)),
        memory_capacity_bytes: node.facts.memory_capacity_bytes,
    })
}

/// Each container's share of the pod-level request beyond the containers' own.
// k8s: pkg/kubelet/qos/helpers.go remainingPodMemReqPerContainer
fn pod_request_share(pod: &Pod) -> i64 {
    let of_pod = amount(&pod_level(pod::spec(pod), Side::Requests), "memory").units();
    if of_pod == 0 {
        return 0;
    }
    let mut parts = pod.clone();
    let Some(spec) = parts.spec.as_mut() else {
        return 0;
    };
    (spec.resources, spec.overhead) = (None, None);
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    let of_containers = amount(&pod::resources::pod_requests(&parts), "memory").units();
    of_pod.saturating_sub(of_containers) / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go GetHugepageLimitsFromResources
fn hugepage_limits(node: &NodeContext, of_pod: &Amounts, own: &Amounts) -> Vec<v1::HugepageLimit> {
    let (of_pod, own) = (hugepages(of_pod), hugepages(own));
    let sizes = node.facts.hugepage_sizes.iter();
    sizes
        .map(|size| {
            let bytes = own.get(size).or_else(|| of_pod.get(size)).copied().unwrap_or(0);
            v1::HugepageLimit {
                page_size: formulas::hugepage_size_name(*size),
                limit: bytes.max(0).unsigned_abs(),
            }
        })
        .collect()
}

/// Huge page amounts by page size in bytes.
fn hugepages(amounts: &Amounts) -> BTreeMap<u64, i64> {
    let sized = amounts.iter().filter_map(|(name, amount)| {
        let size = Amount::parse(name.strip_prefix(HUGEPAGES)?)?.units();
        Some((u64::try_from(size).ok()?, amount.units()))
    });
    sized.collect()
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go configureContainerSwapResources
fn set_swap(
    resources: &mut v1::LinuxContainerResources,
    node: &NodeContext,
    pod: &Pod,
    container: &Container,
) {
    if !node.swap.controller {
        return;
    }
    if node.cgroup.version == CgroupVersion::V1 {
        // Memory and swap together: equal to the memory limit means no swap.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
        return;
    }
    let limited = (node.swap.limited && may_swap(pod, container)).then(|| {
        let memory = node.facts.memory_capacity_bytes.cast_signed();
        let swap = node.swap.capacity_bytes.cast_signed();
        formulas::limited_swap_bytes(memory_request(container), memory, swap)
    });
    let bytes = limited.flatten().unwrap_or(0);
    resources.unified.insert(SWAP_MAX.to_owned(), bytes.to_string());
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go GetContainerSwapBehavior
fn may_swap(pod: &Pod, container: &Container) -> bool {
    let memory = |side| amount(&of_container(container, side), "memory");
    // Equal covers the case where neither is set.
    pod::qos::class_of(pod) == QosClass::Burstable
        && !pod::is_critical(pod)
        && memory(Side::Requests) != memory(Side::Limits)
}

fn memory_request(container: &Container) -> i64 {
    amount(&of_container(container, Side::Requests), "memory").units()
}

fn amount(amounts: &Amounts, name: &str) -> Amount {
    amounts.get(name).copied().unwrap_or(Amount::ZERO)
}
