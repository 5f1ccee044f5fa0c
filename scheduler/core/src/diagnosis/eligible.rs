//! Whether a pod may preempt others at all, before any dry run.
//!
//! Input: the cluster cache, the pod, the statuses of nodes. Output: the reason that it may not.
//! Pure. Bounds: the pods of the nominated node.

use pintle_sched_core::filter::status::{Code, Status};

use super::Asking;
use super::words::DISABLED;
use crate::cache::ClusterCache;

/// Returns the reason that no pod may be evicted for this one, whatever a dry run would find.
pub(super) fn may_not_preempt(
    cache: &ClusterCache,
    asking: &Asking,
    statuses: &[(u32, Status)],
) -> Option<String> {
    let disabled = (!asking.profile.preemption).then(|| DISABLED.to_owned());
    let never = asking.never_preempts.map(str::to_owned);
    disabled.or(never).or_else(|| ineligible(cache, asking, statuses))
}

/// Returns the reason that the pod may not preempt others.
// k8s: defaultpreemption/default_preemption.go PodEligibleToPreemptOthers
fn ineligible(cache: &ClusterCache, asking: &Asking, statuses: &[(u32, Status)]) -> Option<String> {
    let spec = asking.pod.spec.as_ref();
    if spec.and_then(|s| s.preemption_policy.as_deref()) == Some("Never") {
        return Some("not eligible due to preemptionPolicy=Never.".to_owned());
    }
    let cluster = &cache.cluster;
    let row = cluster.row(&cache.nomination(asking.uid())?.node)?;
    let status = statuses.iter().find(|(at, _)| *at == row);
    // A node without a status is absent: no eviction there helps.
    // k8s: schedule_one.go findNodesThatFitPod, framework/types.go NewDefaultNodeToStatus
    let is_hopeless =
        |(_, status): &(u32, Status)| status.code == Code::UnschedulableAndUnresolvable;
    if status.is_none_or(is_hopeless) {
        return None;
    }
    let leaving = cluster.pods().on_node(row).any(|id| {
        let pod = cluster.pods().get(id);
        pod.preempted && pod.priority < asking.spec.priority
    });
    leaving.then(|| "not eligible due to a terminating pod on the nominated node.".to_owned())
}
