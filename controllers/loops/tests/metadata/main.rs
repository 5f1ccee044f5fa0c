//! The controllers that look after metadata, in one frame, against an API server in memory.
//!
//! The frame gets every event and answer at once, and time passes only when nothing else is to be
//! done.

mod cluster;
mod first;
mod start;

use std::time::Duration;

use cluster::MetadataCluster;
use pintle_api_types::kind::{
    CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, REPLICA_SETS, RESOURCE_QUOTAS, SERVICE_ACCOUNTS, SERVICES,
};
use pintle_api_types::request::Propagation;
use serde_json::{Value, json};

fn deployment() -> Value {
    let labels = json!({"app": "a"});
    json!({"metadata": {"name": "owner"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn owned(name: &str, owner: &Value, is_blocking: bool) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "owner",
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": is_blocking}]}})
}

#[test]
fn new_namespace_gets_its_account_and_the_root_ca() {
    let mut cluster = MetadataCluster::new();
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    cluster.settle(Duration::ZERO);
    assert!(cluster.object(SERVICE_ACCOUNTS, "a", "default").is_some());
    let config_map = cluster.object(CONFIG_MAPS, "a", "kube-root-ca.crt").expect("a ConfigMap");
    assert_eq!(config_map["data"]["ca.crt"], "ca");
    cluster.delete(CONFIG_MAPS, "a", "kube-root-ca.crt", None);
    cluster.delete(SERVICE_ACCOUNTS, "a", "default", None);
    cluster.settle(Duration::ZERO);
    assert!(cluster.object(SERVICE_ACCOUNTS, "a", "default").is_some());
    assert!(cluster.object(CONFIG_MAPS, "a", "kube-root-ca.crt").is_some());
    assert_eq!(cluster.failures, [""; 0]);
}

#[test]
fn dependents_are_deleted_with_their_owner_and_the_quota_is_recounted() {
    for propagation in [Propagation::Background, Propagation::Foreground] {
        let mut cluster = MetadataCluster::new();
        cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
        let hard = json!({"configmaps": "9", "count/deployments.apps": "9"});
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
        let owner = cluster.create(DEPLOYMENTS, "a", deployment());
        for name in ["x", "y"] {
            cluster.create(CONFIG_MAPS, "a", owned(name, &owner, true));
        }
        cluster.settle(Duration::ZERO);
        cluster.create(RESOURCE_QUOTAS, "a", quota);
        cluster.settle(Duration::ZERO);
        let used = |cluster: &MetadataCluster| {
            let quota = cluster.object(RESOURCE_QUOTAS, "a", "q").expect("the quota");
            quota["status"]["used"].clone()
        };
        // The third one is that of the root CA.
        let expected = json!({"configmaps": "3", "count/deployments.apps": "1"});
        assert_eq!(used(&cluster), expected);
        cluster.delete(DEPLOYMENTS, "a", "owner", Some(propagation));
        cluster.settle(Duration::ZERO);
        assert!(cluster.object(CONFIG_MAPS, "a", "x").is_none(), "{propagation:?}");
        assert!(cluster.object(DEPLOYMENTS, "a", "owner").is_none(), "{propagation:?}");
        let expected = json!({"configmaps": "1", "count/deployments.apps": "0"});
        assert_eq!(used(&cluster), expected);
        assert_eq!(cluster.failures, [""; 0]);
    }
}

/// A quota is counted long before its period is over, whatever its watch shows first.
#[test]
fn quota_counts_objects_of_kinds_with_a_lagging_watch() {
    let mut cluster = MetadataCluster::new();
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    cluster.settle(Duration::ZERO);
    for lagging in [CONFIG_MAPS, SERVICES, DEPLOYMENTS] {
        cluster.silence(lagging);
    }
    cluster.create(CONFIG_MAPS, "a", json!({"metadata": {"name": "c"}}));
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}});
    cluster.create(SERVICES, "a", service);
    cluster.create(DEPLOYMENTS, "a", deployment());
    let hard = json!({"configmaps": "9", "services": "9", "count/deployments.apps": "9"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    cluster.create(RESOURCE_QUOTAS, "a", quota);
    cluster.settle(Duration::from_secs(5));
    let used = |cluster: &MetadataCluster| {
        let quota = cluster.object(RESOURCE_QUOTAS, "a", "q").expect("the quota");
        quota["status"]["used"].clone()
    };
    let early = json!({"configmaps": "1", "services": "0", "count/deployments.apps": "0"});
    assert_eq!(used(&cluster), early);
    cluster.end_silence();
    cluster.settle(Duration::from_secs(5));
    let late = json!({"configmaps": "2", "services": "1", "count/deployments.apps": "1"});
    assert_eq!(used(&cluster), late);
    assert_eq!(cluster.failures, [""; 0]);
}

#[test]
fn orphaned_dependents_stay() {
    let mut cluster = MetadataCluster::new();
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    let owner = cluster.create(DEPLOYMENTS, "a", deployment());
    cluster.create(CONFIG_MAPS, "a", owned("x", &owner, true));
    cluster.settle(Duration::ZERO);
    cluster.delete(DEPLOYMENTS, "a", "owner", Some(Propagation::Orphan));
    cluster.settle(Duration::ZERO);
    let config_map = cluster.object(CONFIG_MAPS, "a", "x").expect("the dependent");
    assert!(config_map["metadata"].get("ownerReferences").is_none(), "{config_map}");
    assert!(cluster.object(DEPLOYMENTS, "a", "owner").is_none());
}

#[test]
fn namespace_is_emptied_after_its_grace_period_and_then_deleted() {
    let mut cluster = MetadataCluster::new();
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    for at in 0..20 {
        let name = format!("c{at}");
        cluster.create(CONFIG_MAPS, "a", json!({"metadata": {"name": name}}));
    }
    cluster.settle(Duration::ZERO);
    cluster.delete(NAMESPACES, "", "a", None);
    cluster.settle(Duration::from_secs(4));
    assert!(cluster.object(CONFIG_MAPS, "a", "c0").is_some(), "it is too early");
    cluster.settle(Duration::from_secs(2));
    assert!(cluster.object(NAMESPACES, "", "a").is_none());
    assert!(cluster.object(CONFIG_MAPS, "a", "c0").is_none());
    assert!(cluster.object(SERVICE_ACCOUNTS, "a", "default").is_none());
    assert_eq!(cluster.failures, [""; 0]);
}

#[test]
fn namespace_waits_for_finalizers_and_is_deleted_soon_after_their_removal() {
    let mut cluster = MetadataCluster::new();
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    let held = json!({"metadata": {"name": "held", "finalizers": ["x/y"]}});
    cluster.create(CONFIG_MAPS, "a", held);
    cluster.settle(Duration::ZERO);
    cluster.delete(NAMESPACES, "", "a", None);
    cluster.settle(Duration::from_secs(6));
    let namespace = cluster.object(NAMESPACES, "", "a").expect("it waits");
    let conditions = namespace["status"]["conditions"].to_string();
    assert!(conditions.contains("x/y in 1 resource instances"), "{conditions}");
    assert!(conditions.contains("configmaps. has 1 resource instances"), "{conditions}");
    cluster.unfinalize(CONFIG_MAPS, "a", "held");
    cluster.settle(Duration::from_secs(1));
    assert!(cluster.object(NAMESPACES, "", "a").is_none(), "the end of the objects wakes it");
}

#[test]
fn dependents_of_an_absent_owner_are_deleted_at_startup() {
    let mut cluster = MetadataCluster::new();
    cluster.create(NAMESPACES, "", json!({"metadata": {"name": "a"}}));
    let owner = json!({"metadata": {"uid": "never"}});
    for name in ["x", "y", "z"] {
        cluster.create(CONFIG_MAPS, "a", owned(name, &owner, false));
    }
    // So that the kinds of the owner are there.
    let live = cluster.create(DEPLOYMENTS, "a", deployment());
    cluster.create(REPLICA_SETS, "a", replica_set(&live));
    cluster.settle(Duration::ZERO);
    for name in ["x", "y", "z"] {
        assert!(cluster.object(CONFIG_MAPS, "a", name).is_none());
    }
    assert!(cluster.object(REPLICA_SETS, "a", "rs").is_some());
    assert_eq!(cluster.failures, [""; 0]);
}

fn replica_set(owner: &Value) -> Value {
    let mut set = owned("rs", owner, true);
    let spec = &deployment()["spec"];
    set["spec"] = json!({"selector": spec["selector"], "template": spec["template"]});
    set
}

/// Answers get lost and watches lag: the end is the same.
#[test]
fn lost_answers_and_late_watches_do_not_change_the_final_state() {
    let mut lost = 0;
    for seed in 0..60 {
        let mut cluster = MetadataCluster::new();
        cluster.begin_faults(seed);
        for name in ["a", "b"] {
            cluster.create(NAMESPACES, "", json!({"metadata": {"name": name}}));
        }
        let owner = cluster.create(DEPLOYMENTS, "a", deployment());
        cluster.create(REPLICA_SETS, "a", replica_set(&owner));
        for at in 0..10 {
            let name = format!("c{at}");
            cluster.create(CONFIG_MAPS, "a", owned(&name, &owner, at % 2 == 0));
            cluster.create(CONFIG_MAPS, "b", json!({"metadata": {"name": name}}));
        }
        let hard = json!({"configmaps": "90", "count/replicasets.apps": "9"});
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
        cluster.create(RESOURCE_QUOTAS, "a", quota);
        cluster.settle(Duration::from_secs(2));
        let manner = if seed % 2 == 0 { Propagation::Foreground } else { Propagation::Background };
        cluster.delete(DEPLOYMENTS, "a", "owner", Some(manner));
        cluster.delete(NAMESPACES, "", "b", None);
        cluster.settle(Duration::from_secs(8));
        cluster.end_faults();
        cluster.settle(Duration::from_secs(400));
        assert!(cluster.object(NAMESPACES, "", "b").is_none(), "seed {seed}");
        assert!(cluster.object(DEPLOYMENTS, "a", "owner").is_none(), "seed {seed}");
        assert!(cluster.object(REPLICA_SETS, "a", "rs").is_none(), "seed {seed}");
        assert!(cluster.object(SERVICE_ACCOUNTS, "a", "default").is_some(), "seed {seed}");
        let quota = cluster.object(RESOURCE_QUOTAS, "a", "q").expect("the quota");
        let expected = json!({"configmaps": "1", "count/replicasets.apps": "0"});
        assert_eq!(quota["status"]["used"], expected, "seed {seed}");
        lost += cluster.lost;
    }
    assert!(lost > 300, "only {lost} answers were lost");
}
