//! PreFilter rejections: the first plugin that rejects the pod gives the reason.
//!
//! Input: a pod without a node, results of plugins so far. Output: a rejection with its rank among
//! the plugins of a profile. Owner: pure functions. Bounds: the pod's volumes and claims.
// k8s: pkg/scheduler/framework/runtime/framework.go RunPreFilterPlugins

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::config::{RANK_LAST, Rank};
use pintle_sched_core::explain;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::select::{self, PreFilterRefusal};
use pintle_sched_core::snapshot::objects::PodSpec;
use pintle_sched_core::snapshot::{Cluster, View};
use pintle_sched_core::{Plugin, Profile};

use super::words::NO_CLAIMS;
use super::{Asking, Diagnosis, PodEvaluator};
use crate::cache::ClusterCache;
use crate::plugins::dynamicresources::look::DeviceClaims;
use crate::plugins::volumes::{Claims, Refused};

impl Asking {
    /// Records a PreFilter rejection by an out-of-tree plugin; it replaces an earlier one.
    pub fn refuse(&mut self, rank: Rank, code: Code, reason: String) {
        self.refused_for_now = code == Code::Unschedulable;
        self.refused = Some((rank, Refused { plugin: Plugin::OutOfTree, reason }));
    }

    /// Returns the nodes that its affinity selects by name.
    pub fn own_nodes(&self, cluster: &Cluster) -> Option<BTreeSet<String>> {
        let names = self.program.node_affinity.subset.as_ref()?.iter();
        Some(names.map(|name| cluster.text(*name).to_owned()).collect())
    }

    /// Returns the status of each node if PreFilter rejected all of them.
    // k8s: pkg/scheduler/schedule_one.go findNodesThatFitPod, SetAbsentNodesStatus
    pub(super) fn everywhere(&self, view: &View) -> Vec<(u32, Status)> {
        let Some((_, refused)) = self.refused.as_ref().filter(|_| self.refused_for_now) else {
            return Vec::new();
        };
        let (plugin, reasons) = (Some(refused.plugin), vec![refused.reason.clone()]);
        let status = Status { plugin, code: Code::Unschedulable, reasons };
        view.valid_rows().iter().map(|row| (row, status.clone())).collect()
    }

    /// Does DynamicResources' PostFilter fail for lack of state? Its PreFilter did not run if an
    /// earlier plugin returned UnschedulableAndUnresolvable.
    // k8s: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go PostFilter, getStateData
    pub(super) fn lacks_claims(&self, refusal: &PreFilterRefusal) -> bool {
        let profile = &self.profile;
        let rank = match refusal {
            PreFilterRefusal::PreFilter(Plugin::OutOfTree, _) => {
                self.refused.as_ref().map(|(rank, _)| *rank)
            }
            PreFilterRefusal::PreFilter(plugin, _) => Some(profile.pre_filter_rank(*plugin)),
            PreFilterRefusal::Error(_) | PreFilterRefusal::Stale => None,
        };
        let own = profile.pre_filter_rank(Plugin::DynamicResources);
        profile.filters(Plugin::DynamicResources)
            && !self.refused_for_now
            && rank.is_some_and(|rank| rank < own)
    }

    /// Returns the PreFilter rejection: the recorded one, unless an earlier plugin of the columns
    /// rejects the pod too. `None` if no rejection was recorded.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunPreFilterPlugins
    pub(super) fn refusal(&self, view: &View) -> Option<PreFilterRefusal> {
        let (rank, refused) = self.refused.as_ref()?;
        let own = PreFilterRefusal::PreFilter(refused.plugin, refused.reason.clone());
        let early = select::refusal(view, &self.program);
        let is_later = early.as_ref().is_none_or(|early| *rank < rank_of(early, view.profile()));
        if is_later { Some(own) } else { early }
    }

    pub(super) fn any_refusal(&self, view: &View) -> Option<PreFilterRefusal> {
        self.refusal(view).or_else(|| select::refusal(view, &self.program))
    }

    /// Returns the rank of the in-tree plugin that rejects the pod in PreFilter, if one does.
    pub fn refusal_rank(&self, view: &View) -> Rank {
        match self.any_refusal(view) {
            Some(PreFilterRefusal::PreFilter(plugin, _)) => view.profile().pre_filter_rank(plugin),
            Some(PreFilterRefusal::Error(_) | PreFilterRefusal::Stale) | None => RANK_LAST,
        }
    }
}

impl PodEvaluator {
    /// Diagnoses a pod rejected in PreFilter.
    pub(super) fn refused(
        &mut self,
        cache: &mut ClusterCache,
        asking: &Asking,
        nodes: usize,
        refusal: &PreFilterRefusal,
    ) -> Diagnosis {
        let text = explain::refused(nodes, refusal);
        if asking.lacks_claims(refusal) {
            let message = format!("{text} {NO_CLAIMS}");
            return Diagnosis { text, message, fails: true, ..Diagnosis::default() };
        }
        let statuses = asking.everywhere(cache.cluster.view());
        let found = self.conclude(cache, asking, nodes, text, statuses);
        // No node was filtered, so there are no statuses by node.
        Diagnosis { statuses: Vec::new(), rejected_by: Vec::new(), ..found }
    }
}

/// Returns the rank of a rejection; an invalid pod comes first.
fn rank_of(refusal: &PreFilterRefusal, profile: &Profile) -> Rank {
    match refusal {
        PreFilterRefusal::PreFilter(plugin, _) => profile.pre_filter_rank(*plugin),
        PreFilterRefusal::Error(_) | PreFilterRefusal::Stale => 0,
    }
}

/// Runs PreFilter of the pod's volumes and ResourceClaims. If both reject it, the plugin of lower
/// rank gives the reason.
pub(super) fn look(
    pod: &Pod,
    spec: &PodSpec,
    profile: &Profile,
    cache: &mut ClusterCache,
) -> Result<(Option<Claims>, Option<DeviceClaims>), (Rank, Refused)> {
    let ranked = |refused: Refused| (profile.pre_filter_rank(refused.plugin), refused);
    let claims = cache.claims(pod).map_err(ranked);
    if let Err((rank, refused)) = &claims
        && *rank < profile.pre_filter_rank(Plugin::DynamicResources)
    {
        return Err((*rank, refused.clone()));
    }
    let devices = cache.device_claims(pod, spec, profile).map_err(ranked)?;
    Ok((claims?, devices))
}
