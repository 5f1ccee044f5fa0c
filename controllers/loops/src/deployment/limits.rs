//! How many pods a rollout may have too many or too few.
// k8s: pkg/controller/deployment/util/deployment_util.go

use pintle_controllers_core::common::scaled::{Rounding, scaled};
use pintle_controllers_core::frame::TranscriptStop;
use pintle_controllers_core::kinds::{DeploymentSpec, RollingUpdate};

use super::sets::{self, Set};
use super::{RECREATE, ROLLING_UPDATE};

/// Limits of a rolling update in pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fenceposts {
    /// Pods beyond those wanted.
    pub(super) surge: i32,
    /// Wanted pods that may be unavailable.
    pub(super) unavailable: i32,
}

/// The limits in pods; both are 0 when a value is not valid, which the API server refuses.
// k8s: pkg/controller/deployment/util/deployment_util.go ResolveFenceposts
pub(super) fn fenceposts(update: &RollingUpdate, desired: i32) -> Fenceposts {
    let surge = scaled(&update.max_surge, desired, Rounding::Up);
    let unavailable = scaled(&update.max_unavailable, desired, Rounding::Down);
    match (surge, unavailable) {
        // Rounding may leave no way to make progress.
        (Ok(0), Ok(0)) => Fenceposts { surge: 0, unavailable: 1 },
        (Ok(surge), Ok(unavailable)) => Fenceposts { surge, unavailable },
        _ => Fenceposts::default(),
    }
}

/// The strategy is `RollingUpdate`.
pub(super) fn is_rolling_update(spec: &DeploymentSpec) -> bool {
    &*spec.strategy.kind == ROLLING_UPDATE
}

fn spec_fenceposts(spec: &DeploymentSpec) -> Fenceposts {
    if !is_rolling_update(spec) {
        return Fenceposts::default();
    }
    let defaulted = RollingUpdate::default();
    let update = spec.strategy.rolling_update.as_ref().unwrap_or(&defaulted);
    fenceposts(update, spec.wanted())
}

/// Pods that there may be beyond those wanted.
pub(super) fn max_surge(spec: &DeploymentSpec) -> i32 {
    spec_fenceposts(spec).surge
}

/// Wanted pods that may be unavailable.
pub(super) fn max_unavailable(spec: &DeploymentSpec) -> i32 {
    match spec.wanted() {
        0 => 0,
        wanted => spec_fenceposts(spec).unavailable.min(wanted),
    }
}

/// All pods that there may be.
pub(super) fn max_replicas(spec: &DeploymentSpec) -> i32 {
    spec.wanted().wrapping_add(max_surge(spec))
}

/// How many pods the new set should want; `all` includes it, and it wants `current` now.
///
/// # Errors
/// When the strategy is unknown or a limit is not valid.
// k8s: pkg/controller/deployment/util/deployment_util.go NewRSNewReplicas
pub(super) fn new_set_replicas(
    spec: &DeploymentSpec,
    all: &[Set],
    current: i32,
) -> Result<i32, TranscriptStop> {
    match &*spec.strategy.kind {
        ROLLING_UPDATE => {
            let update = spec.strategy.rolling_update.as_ref();
            let surge = update
                .map_or(Ok(0), |update| scaled(&update.max_surge, spec.wanted(), Rounding::Up));
            let surge = surge.map_err(|error| TranscriptStop::failed(error.to_string()))?;
            let total = sets::wanted(all);
            let max_total = spec.wanted().wrapping_add(surge);
            if total >= max_total {
                return Ok(current);
            }
            let growth = max_total.wrapping_sub(total).min(spec.wanted().wrapping_sub(current));
            Ok(current.wrapping_add(growth))
        }
        RECREATE => Ok(spec.wanted()),
        other => Err(TranscriptStop::failed(format!("deployment type {other} isn't supported"))),
    }
}
