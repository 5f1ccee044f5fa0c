//! Test oracle: fits a pod with node-allocatable devices on one node, from API objects only.
//!
//! Input: a node, the pods on it, slices of drivers, claims. Output: the plugin's status, the pod's
//! new status entries, and the requests that the pod then counts for. Owner: a test that compares
//! them with upstream's plugin. Bounds: the objects. The daemon does not use it.

use k8s_openapi::api::core::v1::{NodeAllocatableResourceClaimStatus, Pod};
use pintle_api_types::object::key_of;
use pintle_sched_core::Profile;
use pintle_sched_core::filter::status::Status;
use pintle_sched_core::requests::PodRequests;
use pintle_sched_core::select::RowPlugin as _;

use crate::cache::ClusterCache;
use crate::plugins::dynamicresources::DeviceGates;
use crate::plugins::dynamicresources::allocatable::on_node;
use crate::watch_event::WatchedObject;

/// A cluster of one node, with DRANodeAllocatableResources on.
#[derive(Debug)]
pub struct OneNodeCluster(ClusterCache);

/// Result of the plugin for a pod on the node.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginVerdict {
    /// The rejection of the node, if any.
    pub status: Option<Status>,
    /// The error that ended the attempt.
    pub error: Option<String>,
    /// The pod's new `nodeAllocatableResourceClaimStatuses`.
    pub statuses: Vec<NodeAllocatableResourceClaimStatus>,
    /// Requests that the pod counts for on the node.
    pub requests: PodRequests,
}

/// Reason why the plugin has no verdict.
#[derive(Debug, thiserror::Error)]
pub enum VerdictError {
    /// The pod is invalid.
    #[error("it cannot be read")]
    Unreadable,
    /// The pod does not compile.
    #[error("{0}")]
    Program(String),
    /// PreFilter rejects the pod.
    #[error("{0}")]
    Refused(String),
    /// The plugin has nothing to decide.
    #[error("it has no claims")]
    NoClaims,
}

impl OneNodeCluster {
    /// Builds a cluster from these objects.
    pub fn new(things: Vec<WatchedObject>) -> Self {
        let mut cache = ClusterCache::new(Profile::default());
        cache.devices.use_gates(DeviceGates { allocatable: true, ..DeviceGates::default() });
        for thing in things {
            let steps = cache.set(thing);
            steps.iter().for_each(|step| cache.make(step));
        }
        Self(cache)
    }

    /// Runs the plugin for a pod without a node.
    ///
    /// # Errors
    /// The pod cannot be decoded, or PreFilter rejects it.
    pub fn ask(&mut self, pod: &Pod) -> Result<PluginVerdict, VerdictError> {
        let cache = &mut self.0;
        let spec = cache.spec_of(pod, &key_of(pod)).ok_or(VerdictError::Unreadable)?;
        let program = cache.cluster.compile(pod);
        let program = program.map_err(|error| VerdictError::Program(error.to_string()))?;
        let claims = cache.device_claims(pod, &spec, &Profile::default());
        let claims = claims.map_err(|refused| VerdictError::Refused(refused.reason))?;
        let claims = claims.ok_or(VerdictError::NoClaims)?;
        let plugin = claims.among(&cache.devices);
        let status = plugin.filter(cache.cluster.view(), &program, 0);
        let share = match status {
            None => plugin.at(0).ok().and_then(|given| given.share),
            // The pod asks for no devices then.
            Some(_) => None,
        };
        let statuses = share.map(|share| share.statuses.clone()).unwrap_or_default();
        let requests = on_node(pod, &spec, &statuses).requests.clone();
        Ok(PluginVerdict { status, error: claims.error(), statuses, requests })
    }
}
