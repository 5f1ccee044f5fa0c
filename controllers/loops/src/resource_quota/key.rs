//! Keys of quotas: one for a whole count, one for a raise.
//!
//! Admission charges a quota before it creates the object, so a count of the watched objects is too
//! low while objects are being created. A whole count, which may lower the usage, therefore follows
//! only changes that free something. But admission does not charge a quota, or a limit, that is
//! newer than its cache, and the watch of a kind may lag behind that of quotas at their first
//! count. So objects that a watch adds later, and each new count, trigger a comparison: a raise
//! corrects counts that are too low.
// k8s: pkg/controller/resourcequota/resource_quota_monitor.go controllerFor, which ignores additions
// k8s: staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go checkQuotas

use std::fmt;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_controllers_core::frame::QueueKey;

/// Time for which additions are batched before a raise. The watch of quotas mostly shows the
/// charges of admission sooner, so that the write does not conflict with a newer version.
pub(super) const RAISE_WAIT: Duration = Duration::from_secs(1);

/// A quota, and how it is counted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaKey {
    /// The quota.
    pub(super) quota: ObjectKey,
    /// Only counts that are too low are written.
    pub(super) is_raise: bool,
}

impl QuotaKey {
    pub(super) fn whole(quota: ObjectKey) -> Self {
        Self { quota, is_raise: false }
    }

    pub(super) fn raise(quota: ObjectKey) -> Self {
        Self { quota, is_raise: true }
    }
}

impl QueueKey for QuotaKey {
    fn tenant(&self) -> &str {
        self.quota.namespace()
    }
}

impl fmt::Debug for QuotaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manner = if self.is_raise { " (additions)" } else { "" };
        write!(f, "{}{manner}", self.quota)
    }
}
