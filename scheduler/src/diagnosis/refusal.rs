//! Why no node is looked at for a pod: the first plugin says so that is asked before any is.
//!
//! Input: a pod that wants a node, what plugins said before. Output: a refusal with its place among the
//! plugins of a profile. Owner: pure functions. Bounds: the pod's volumes and claims.
// k8s: pkg/scheduler/framework/runtime/framework.go RunPreFilterPlugins

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::config::{RANK_LAST, Rank};
use pintle_sched_core::filter::status::Code;
use pintle_sched_core::select::{self, Refusal};
use pintle_sched_core::snapshot::View;
use pintle_sched_core::snapshot::objects::PodSpec;
use pintle_sched_core::{Plugin, Profile};

use super::Asking;
use crate::devices::look::DeviceClaims;
use crate::mirror::Mirror;
use crate::volumes::{Claims, Refused};

impl Asking {
    /// No node is looked at, for this reason, whatever the reason was before.
    pub fn refuse(&mut self, plugin: Plugin, code: Code, reason: String) {
        self.refused_for_now = code == Code::Unschedulable;
        self.refused = Some((0, Refused { plugin, reason }));
    }

    /// Why no node is looked at, where another plugin than those of columns says so and none of these
    /// before it.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunPreFilterPlugins
    pub(super) fn refusal(&self, view: &View) -> Option<Refusal> {
        let (rank, refused) = self.refused.as_ref()?;
        let own = Refusal::PreFilter(refused.plugin, refused.reason.clone());
        let early = select::refusal(view, &self.program);
        let is_later = early.as_ref().is_none_or(|early| *rank < rank_of(early, view.profile()));
        if is_later { Some(own) } else { early }
    }

    /// The place of the plugin of upstream's that says why no node is looked at, if one does.
    pub fn refusal_rank(&self, view: &View) -> Rank {
        let refusal = self.refusal(view).or_else(|| select::refusal(view, &self.program));
        match refusal {
            Some(Refusal::PreFilter(plugin, _)) => view.profile().pre_filter_rank(plugin),
            Some(Refusal::Error(_) | Refusal::Stale) | None => RANK_LAST,
        }
    }
}

/// The place of who says why no node is looked at; a mistake in the pod comes before all.
fn rank_of(refusal: &Refusal, profile: &Profile) -> Rank {
    match refusal {
        Refusal::PreFilter(plugin, _) => profile.pre_filter_rank(*plugin),
        Refusal::Error(_) | Refusal::Stale => 0,
    }
}

/// What a pod's volumes and its claims of devices leave it of the nodes. Where both leave it none, the
/// plugin that comes first says why.
pub(super) fn look(
    pod: &Pod,
    spec: &PodSpec,
    profile: &Profile,
    mirror: &mut Mirror,
) -> Result<(Option<Claims>, Option<DeviceClaims>), (Rank, Refused)> {
    let ranked = |refused: Refused| (profile.pre_filter_rank(refused.plugin), refused);
    let claims = mirror.claims(pod).map_err(ranked);
    if let Err((rank, refused)) = &claims
        && *rank < profile.pre_filter_rank(Plugin::DynamicResources)
    {
        return Err((*rank, refused.clone()));
    }
    let devices = mirror.device_claims(pod, spec, profile).map_err(ranked)?;
    Ok((claims?, devices))
}
