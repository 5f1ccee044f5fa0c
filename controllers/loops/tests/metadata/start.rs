//! The garbage collector at the start of a manager, and in namespaces that are deleted.
//!
//! Input: owners with dependents. Output: the live reads of the collector, each of which waits for
//! the limit of requests. In k#126114 180,000 of them delayed all cascades by half an hour.

use std::time::Duration;

use pintle_api_types::kind::{CONFIG_MAPS, DEPLOYMENTS, NAMESPACES};
use serde_json::json;

use crate::cluster::MetadataCluster;
use crate::deployment;

/// Fewer than what is deleted before a namespace's grace is over.
const OWNERS: usize = 40;

/// A namespace with owners, and a dependent of each: dependents are listed first.
fn cluster() -> MetadataCluster {
    let mut cluster = MetadataCluster::new();
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    for at in 0..OWNERS {
        let mut owner = deployment();
        owner["metadata"]["name"] = format!("owner-{at}").into();
        let owner = cluster.create(DEPLOYMENTS, "a", owner);
        let reference = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]});
        let name = format!("dependent-{at}");
        let meta = json!({"name": name, "ownerReferences": [reference]});
        cluster.create(CONFIG_MAPS, "a", json!({"metadata": meta}));
    }
    cluster
}

#[test]
fn owners_that_are_listed_after_their_dependents_are_not_read() {
    let mut cluster = cluster();
    cluster.settle(Duration::ZERO);
    assert_eq!(cluster.collector_reads, 0);
    cluster.delete(DEPLOYMENTS, "a", "owner-7", None);
    cluster.settle(Duration::ZERO);
    assert!(cluster.object(CONFIG_MAPS, "a", "dependent-7").is_none());
    assert!(cluster.object(CONFIG_MAPS, "a", "dependent-8").is_some());
    assert_eq!(cluster.collector_reads, 1, "the owner is known to be gone");
}

#[test]
fn dependents_that_are_deleted_with_their_namespace_are_not_read() {
    let mut cluster = cluster();
    cluster.settle(Duration::ZERO);
    cluster.delete(NAMESPACES, "", "a", None);
    cluster.settle(Duration::from_secs(8));
    assert!(cluster.object(NAMESPACES, "", "a").is_none());
    assert_eq!(cluster.collector_reads, 0);
}
