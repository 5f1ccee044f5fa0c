//! The node's Lease: the heartbeat that shows the control plane that the node is alive.
//!
//! Owner: one task with its own connection, so that no other request can delay it. Bounds: one
//! request at a time, `UPDATES_MAX` attempts in one round, waits up to `BACKOFF_MAX`.
// k8s: staging/src/k8s.io/component-helpers/apimachinery/lease/controller.go

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{Api, PostParams};
use pintle_api_types::jitter as pace;
use tokio::sync::watch;

use super::own::OwnNode;

/// Namespace of the nodes' Leases.
const NAMESPACE: &str = "kube-node-lease";
/// Attempts to renew in one round.
const UPDATES_MAX: usize = 5;
/// The lease is renewed after this fraction of its duration.
const RENEW_PART: f64 = 0.25;
/// Jitter of the renewals.
const JITTER: f64 = 0.04;
/// First and longest wait while the lease cannot be created.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), BACKOFF_MAX);
const BACKOFF_MAX: Duration = Duration::from_secs(7);

/// Keeps the lease of one node.
pub struct LeaseKeeper {
    api: Api<Lease>,
    name: Arc<str>,
    duration_seconds: i32,
    own: watch::Receiver<OwnNode>,
    latest: Option<Lease>,
}

impl LeaseKeeper {
    /// A keeper for a node; it sends nothing until it runs.
    pub fn new(
        heartbeat: kube::Client,
        name: Arc<str>,
        duration_seconds: i32,
        own: watch::Receiver<OwnNode>,
    ) -> Self {
        let api = Api::namespaced(heartbeat, NAMESPACE);
        Self { api, name, duration_seconds, own, latest: None }
    }

    /// Renews for ever.
    pub async fn run(mut self) {
        let life = Duration::from_secs(self.duration_seconds.max(1).unsigned_abs().into());
        loop {
            self.round().await;
            tokio::time::sleep(pace::jitter(life.mul_f64(RENEW_PART), JITTER)).await;
        }
    }

    async fn round(&mut self) {
        if let Some(latest) = self.latest.take()
            && self.renew(latest).await
        {
            return;
        }
        let (lease, created) = self.ensure().await;
        match created {
            true => self.latest = Some(lease),
            false => {
                if !self.renew(lease).await {
                    tracing::warn!("the node's lease could not be renewed; trying again");
                }
            }
        }
    }

    /// Renews this lease; if that succeeds, it becomes `latest`.
    async fn renew(&mut self, mut base: Lease) -> bool {
        for _ in 0..UPDATES_MAX {
            let wanted = self.renewed(Some(&base));
            match self.api.replace(&self.name, &PostParams::default(), &wanted).await {
                Ok(lease) => {
                    self.latest = Some(lease);
                    return true;
                }
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    base = self.ensure().await.0;
                }
                Err(kube::Error::Api(status)) if status.is_not_found() => return false,
                Err(error) => tracing::debug!(%error, "lease"),
            }
        }
        false
    }

    /// Reads or creates the lease; returns it and whether it is new.
    async fn ensure(&mut self) -> (Lease, bool) {
        let mut wait = BACKOFF.0;
        let mut said = false;
        loop {
            match self.read_or_create().await {
                Ok(found) => {
                    if said {
                        tracing::info!("the API server takes the node's lease again");
                    }
                    return found;
                }
                Err(error) if !std::mem::replace(&mut said, true) => {
                    tracing::warn!(%error, "the node's lease is not renewed; trying again");
                }
                Err(error) => tracing::debug!(%error, "lease"),
            }
            tokio::time::sleep(wait).await;
            wait = pace::doubled(wait, BACKOFF.1);
        }
    }

    async fn read_or_create(&mut self) -> Result<(Lease, bool), kube::Error> {
        if let Some(lease) = self.api.get_opt(&self.name).await? {
            return Ok((lease, false));
        }
        // Without an owner reference the lease would outlive the node.
        if self.own.wait_for(|own| own.uid().is_some()).await.is_err() {
            std::future::pending::<()>().await;
        }
        let lease = self.api.create(&PostParams::default(), &self.renewed(None)).await?;
        Ok((lease, true))
    }

    fn renewed(&self, base: Option<&Lease>) -> Lease {
        let owner = self.own.borrow().uid().map(|uid| owner(&self.name, uid));
        renewed(base, &self.name, self.duration_seconds, owner, jiff::Timestamp::now())
    }
}

/// The lease with `now` as its renew time.
fn renewed(
    base: Option<&Lease>,
    name: &str,
    duration_seconds: i32,
    owner: Option<OwnerReference>,
    now: jiff::Timestamp,
) -> Lease {
    let mut lease = base.cloned().unwrap_or_else(|| {
        let mut lease = Lease::default();
        lease.metadata.name = Some(name.to_owned());
        lease.metadata.namespace = Some(NAMESPACE.to_owned());
        let holder_identity = Some(name.to_owned());
        lease.spec = Some(LeaseSpec { holder_identity, ..LeaseSpec::default() });
        lease
    });
    let spec = lease.spec.get_or_insert_default();
    spec.lease_duration_seconds = Some(duration_seconds);
    spec.renew_time = Some(MicroTime(now));
    // k8s: pkg/kubelet/util/nodelease.go SetNodeOwnerFunc
    if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
        lease.metadata.owner_references = owner.map(|owner| vec![owner]);
    }
    lease
}

/// The owner reference with which an object is garbage collected after its Node is deleted.
pub(super) fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_lease_belongs_to_the_node() {
        let now = jiff::Timestamp::from_second(7).expect("a time");
        let lease = renewed(None, "n", 40, Some(owner("n", "u")), now);
        let text = serde_json::to_value(&lease).expect("JSON");
        assert_eq!(text["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(text["spec"]["holderIdentity"], "n");
        assert_eq!(text["spec"]["leaseDurationSeconds"], 40);
        assert_eq!(text["spec"]["renewTime"], "1970-01-01T00:00:07.000000Z");
    }

    #[test]
    fn renewed_lease_keeps_the_fields_of_other_writers() {
        let mut base = renewed(None, "n", 40, None, jiff::Timestamp::UNIX_EPOCH);
        base.metadata.resource_version = Some("9".to_owned());
        base.spec.get_or_insert_default().lease_transitions = Some(3);
        let now = jiff::Timestamp::from_second(9).expect("a time");
        let lease = renewed(Some(&base), "n", 50, Some(owner("n", "u")), now);
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("9"));
        let spec = lease.spec.expect("a spec");
        assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(3), Some(50)));
        assert!(lease.metadata.owner_references.is_some_and(|owners| owners.len() == 1));
    }
}
