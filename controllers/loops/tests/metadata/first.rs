//! `--shadow-first`: collection and namespace deletion act after a time without a mistake.
//!
//! Input: a cluster with garbage from the beginning. Output: the time of its deletion. All other
//! controllers act at once.

use std::time::Duration;

use pintle_api_types::kind::{CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, SERVICE_ACCOUNTS};
use serde_json::json;

use crate::cluster::MetadataCluster;
use crate::{deployment, owned};

const WAIT: Duration = Duration::from_secs(600);

/// Two namespaces, one of them being deleted, and an object with an owner that does not exist.
fn cluster() -> MetadataCluster {
    let mut cluster = MetadataCluster::new();
    cluster.begin_in_shadow(WAIT);
    for name in ["a", "b"] {
        cluster.create(NAMESPACES, "", json!({"metadata": {"name": name}}));
    }
    cluster.create(DEPLOYMENTS, "a", deployment());
    let never = json!({"metadata": {"uid": "never"}});
    cluster.create(CONFIG_MAPS, "a", owned("x", &never, false));
    cluster.create(CONFIG_MAPS, "b", json!({"metadata": {"name": "c"}}));
    cluster.settle(Duration::ZERO);
    cluster.delete(NAMESPACES, "", "b", None);
    cluster
}

fn is_untouched(cluster: &MetadataCluster) -> bool {
    let namespace = cluster.object(NAMESPACES, "", "b");
    cluster.object(CONFIG_MAPS, "a", "x").is_some()
        && cluster.object(CONFIG_MAPS, "b", "c").is_some()
        && namespace.is_some_and(|namespace| namespace["status"]["conditions"].is_null())
}

fn is_collected(cluster: &MetadataCluster) -> bool {
    cluster.object(CONFIG_MAPS, "a", "x").is_none() && cluster.object(NAMESPACES, "", "b").is_none()
}

#[test]
fn controllers_that_delete_act_after_a_clean_time_in_shadow() {
    let mut cluster = cluster();
    cluster.settle(WAIT - Duration::from_secs(2));
    assert!(is_untouched(&cluster) && !cluster.is_acting());
    assert!(cluster.object(SERVICE_ACCOUNTS, "a", "default").is_some(), "others act at once");
    cluster.settle(Duration::from_secs(20));
    assert!(cluster.is_acting() && is_collected(&cluster));
    assert_eq!(cluster.failures, [""; 0]);
}

/// An object that would have been collected has an owner after all: the time starts again.
#[test]
fn deletion_that_would_have_been_a_mistake_prolongs_the_shadow() {
    let mut cluster = cluster();
    cluster.settle(Duration::from_secs(300));
    cluster.patch(CONFIG_MAPS, "a", "x", json!({"metadata": {"ownerReferences": null}}));
    // Nothing has the collector look again before the end of the wait.
    cluster.settle(WAIT + Duration::from_secs(200));
    assert!(is_untouched(&cluster) && !cluster.is_acting());
    cluster.settle(Duration::from_secs(150));
    assert!(cluster.is_acting() && cluster.object(NAMESPACES, "", "b").is_none());
    assert!(cluster.object(CONFIG_MAPS, "a", "x").is_some(), "it has no owner");
    assert_eq!(cluster.failures, [""; 0]);
}

/// A user's deletion of an object that would have been collected confirms the decision.
#[test]
fn deletion_by_another_client_does_not_prolong_the_shadow() {
    let mut cluster = cluster();
    cluster.settle(Duration::from_secs(300));
    cluster.delete(CONFIG_MAPS, "a", "x", None);
    cluster.settle(WAIT - Duration::from_secs(300) + Duration::from_secs(20));
    assert!(cluster.is_acting() && is_collected(&cluster));
}

/// An object is deleted as garbage that ours would keep, because the server lacks its owner's kind.
#[test]
fn deletion_that_ours_would_not_make_prolongs_the_shadow() {
    let mut cluster = cluster();
    let reference = json!({"apiVersion": "none.pintle.test/v1", "kind": "Nothing", "name": "n",
        "uid": "nothing"});
    let meta = json!({"name": "foreign", "ownerReferences": [reference]});
    cluster.create(CONFIG_MAPS, "a", json!({"metadata": meta}));
    cluster.settle(Duration::from_secs(300));
    cluster.delete(CONFIG_MAPS, "a", "foreign", None);
    cluster.settle(WAIT);
    assert!(is_untouched(&cluster) && !cluster.is_acting());
    cluster.settle(Duration::from_secs(30));
    assert!(cluster.is_acting() && is_collected(&cluster));
}

/// The last look at what would be deleted is the only thing that is left to be decided.
#[test]
fn mistake_found_only_by_the_last_check_prolongs_the_shadow() {
    let mut cluster = MetadataCluster::new();
    cluster.begin_in_shadow(WAIT);
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    let never = json!({"metadata": {"uid": "never"}});
    cluster.create(DEPLOYMENTS, "a", deployment());
    cluster.create(CONFIG_MAPS, "a", owned("x", &never, false));
    cluster.settle(Duration::from_secs(300));
    cluster.patch(CONFIG_MAPS, "a", "x", json!({"metadata": {"ownerReferences": null}}));
    cluster.settle(WAIT + Duration::from_secs(200));
    assert!(!cluster.is_acting());
    cluster.settle(Duration::from_secs(150));
    assert!(cluster.is_acting() && cluster.object(CONFIG_MAPS, "a", "x").is_some());
}
