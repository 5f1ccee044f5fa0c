//! Scaling outside a rollout: when the Deployment's replicas changed, or while it is paused.
// k8s: pkg/controller/deployment/sync.go scale, scaleReplicaSet

use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::kinds::DeploymentSpec;

use super::annotations;
use super::limits;
use super::rollout::{Rollout, replace_set};
use super::sets::{self, DESIRED_REPLICAS, MAX_REPLICAS, Set};

/// When a set is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleWrite {
    /// When its size changes.
    OfSize,
    /// When its size or its annotations about replicas change.
    OfSizeOrAnnotations,
}

/// The outcome of scaling a set.
pub(super) struct Scaled {
    /// Its size changed.
    pub(super) is_scaled: bool,
    /// The set.
    pub(super) set: Set,
}

impl Rollout<'_> {
    /// Some active set was last scaled for another number of replicas of the Deployment.
    ///
    /// # Errors
    /// When a write failed.
    // k8s: pkg/controller/deployment/sync.go isScalingEvent
    pub(super) fn is_scaling_event(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<bool, TranscriptStop> {
        self.sync_revision(false, transcript)?;
        let wanted = self.spec().wanted();
        let is_outdated =
            |set: &Set| sets::desired_replicas(set).is_some_and(|desired| desired != wanted);
        Ok(sets::active(&self.all()).iter().any(is_outdated))
    }

    /// Spreads the wanted replicas over the sets, without hastening a rollout.
    ///
    /// # Errors
    /// When a write failed; the sets after it are not scaled.
    pub(super) fn scale(&self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let wanted = self.spec().wanted();
        if let Some(set) = self.active_or_latest() {
            self.scale_set(&set, wanted, ScaleWrite::OfSize, transcript)?;
            return Ok(());
        }
        if self.is_saturated() {
            for set in self.newest_old_first().iter().filter(|set| set.spec.wanted() > 0) {
                self.scale_set(set, 0, ScaleWrite::OfSize, transcript)?;
            }
            return Ok(());
        }
        if limits::is_rolling_update(self.spec()) {
            if sets::active(&self.all()).len() > 1 {
                transcript.because("several sets have pods: each is scaled in proportion");
            }
            for share in self.shares() {
                self.scale_set(
                    &share.set,
                    share.size,
                    ScaleWrite::OfSizeOrAnnotations,
                    transcript,
                )?;
            }
        }
        Ok(())
    }

    fn newest_old_first(&self) -> Vec<Set> {
        let mut old = self.old.clone();
        old.sort_by(|one, other| sets::by_creation(other, one));
        old
    }

    /// The set that alone has pods or, when none has, the newest; `None` when several have.
    // k8s: pkg/controller/deployment/util/deployment_util.go FindActiveOrLatest
    pub(super) fn active_or_latest(&self) -> Option<Set> {
        let old = self.newest_old_first();
        let active = sets::active(&self.all());
        match &*active {
            [] => self.new.as_ref().or(old.first()).cloned(),
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    /// The new set has all the pods that are wanted, and all are available.
    // k8s: pkg/controller/deployment/util/deployment_util.go IsSaturated
    fn is_saturated(&self) -> bool {
        let Some(new) = &self.new else { return false };
        let wanted = self.spec().wanted();
        let desired = new.metadata.annotation(DESIRED_REPLICAS);
        // Upstream reads a wider number and cuts it.
        let desired = desired.and_then(|text| text.parse::<i64>().ok()).map(|count| count as i32);
        new.spec.wanted() == wanted
            && desired == Some(wanted)
            && new.status.available_replicas == wanted
    }

    /// The size of each active set, in proportion to the size that it has.
    pub(super) fn shares(&self) -> Vec<SetShare> {
        let spec = self.spec();
        // The order counts when nothing is added: then it is that of the writes.
        let all: Vec<_> = self.newest_old_first().into_iter().chain(self.new.clone()).collect();
        let mut active = sets::active(&all);
        let allowed = if spec.wanted() > 0 { limits::max_replicas(spec) } else { 0 };
        let to_add = allowed.wrapping_sub(sets::wanted(&active));
        // Of sets of one size, newer ones grow first and older ones shrink first.
        match to_add {
            0 => {}
            1.. => active.sort_by(sets::by_size_newer),
            _ => active.sort_by(sets::by_size_older),
        }
        let mut added = 0_i32;
        let mut shares = Vec::with_capacity(active.len());
        for set in active {
            let left = to_add.wrapping_sub(added);
            let part = proportion(&set, spec, self.status.replicas, Growth { to_add, left });
            added = added.wrapping_add(part);
            shares.push(SetShare { size: set.spec.wanted().wrapping_add(part), set });
        }
        if to_add != 0
            && let Some(largest) = shares.first_mut()
        {
            let rest = to_add.wrapping_sub(added);
            largest.size = largest.size.wrapping_add(rest).max(0);
        }
        shares
    }

    /// Gives a set another size, and records the Deployment's size with it.
    ///
    /// # Errors
    /// When the write failed.
    pub(super) fn scale_set(
        &self,
        set: &Set,
        size: i32,
        write: ScaleWrite,
        transcript: &mut Transcript,
    ) -> Result<Scaled, TranscriptStop> {
        let unchanged = Scaled { is_scaled: false, set: set.clone() };
        let before = set.spec.wanted();
        if write == ScaleWrite::OfSize && before == size {
            return Ok(unchanged);
        }
        let (desired, max) = (self.spec().wanted(), limits::max_replicas(self.spec()));
        if before == size && !is_annotation_outdated(set, desired, max) {
            return Ok(unchanged);
        }
        let body = || {
            let mut body = set.value();
            body["spec"]["replicas"] = size.into();
            let mut known = annotations::of(&body);
            annotations::set_replicas(&mut known, desired, max);
            annotations::put(&mut body, known);
            body
        };
        let updated = replace_set(set, body, transcript)?;
        let is_scaled = before != size;
        if is_scaled {
            let direction = if before < size { "up" } else { "down" };
            let name = &updated.metadata.name;
            let message = format!("Scaled {direction} replica set {name} from {before} to {size}");
            self.note("ScalingReplicaSet", message, transcript);
        }
        Ok(Scaled { is_scaled, set: updated })
    }
}

/// A set and the size that it is to have.
pub(super) struct SetShare {
    pub(super) set: Set,
    pub(super) size: i32,
}

/// Replicas to be added to all sets; negative when they are to be removed.
#[derive(Clone, Copy, Debug)]
struct Growth {
    /// In all.
    to_add: i32,
    /// Not given to a set yet.
    left: i32,
}

// k8s: pkg/controller/deployment/util/deployment_util.go ReplicasAnnotationsNeedUpdate
fn is_annotation_outdated(set: &Set, desired: i32, max: i32) -> bool {
    [(DESIRED_REPLICAS, desired), (MAX_REPLICAS, max)].iter().any(|(key, count)| {
        set.metadata.annotation(key).is_none_or(|text| text != count.to_string())
    })
}

/// How many of the replicas a set gets.
// k8s: pkg/controller/deployment/util/deployment_util.go GetReplicaSetProportion
fn proportion(set: &Set, spec: &DeploymentSpec, replicas: i32, growth: Growth) -> i32 {
    if set.spec.wanted() == 0 || growth.to_add == 0 || growth.left == 0 {
        return 0;
    }
    let part = fraction(set, spec, replicas);
    if growth.to_add > 0 { part.min(growth.left) } else { part.max(growth.left) }
}

/// By how much a set grows if it keeps its part of the whole; `replicas` are those of the status.
// k8s: pkg/controller/deployment/util/deployment_util.go getReplicaSetFraction
pub(super) fn fraction(set: &Set, spec: &DeploymentSpec, replicas: i32) -> i32 {
    let size = set.spec.wanted();
    if spec.wanted() == 0 {
        return size.wrapping_neg();
    }
    let before = sets::max_replicas(set).filter(|max| *max != 0).unwrap_or(replicas);
    if before == 0 {
        return 0;
    }
    // Upstream multiplies 32-bit numbers, and rounds half away from zero.
    let product = size.wrapping_mul(limits::max_replicas(spec));
    let exact = f64::from(product) / f64::from(before);
    (exact.round() as i32).wrapping_sub(size)
}
