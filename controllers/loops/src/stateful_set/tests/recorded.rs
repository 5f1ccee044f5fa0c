//! Recorded writes of Kubernetes 1.36 for two StatefulSets: the same decisions in the same
//! order, and the same statuses.

use pintle_api_types::kind::{PERSISTENT_VOLUME_CLAIMS, PODS};
use pintle_api_types::request::Request;
use serde_json::json;

use super::*;

/// The name of the revision that was recorded: a hash of the bytes of its data.
const REVISION: &str = "db-79cd5b4bc8";

/// The set as the API server stored it.
fn recorded(extra: Value) -> LoopWorld {
    let container = json!({"name": "main", "image": "img:1", "resources": {"requests": {"cpu": "10m"}},
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent"});
    let template = json!({"metadata": {"labels": {"app": "db"}}, "spec": {
        "containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler"}});
    let mut set = json!({
        "metadata": {"name": "db", "uid": "set", "generation": 1},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "db"}},
            "template": template,
            "serviceName": "db",
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "revisionHistoryLimit": 10,
        },
        "status": {"replicas": 0, "availableReplicas": 0},
    });
    for (key, value) in extra.as_object().expect("fields of the spec") {
        set["spec"][key] = value.clone();
    }
    world(set)
}

/// Counts of a status: replicas, ready, current, updated, available.
fn counts(status: &Value) -> String {
    let count = |name: &str| status[name].as_i64().unwrap_or(0).to_string();
    ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"]
        .map(count)
        .concat()
}

/// The writes of syncs until nothing is written, with the counts of each status.
fn writes(world: &mut LoopWorld) -> Vec<String> {
    let mut writes = Vec::new();
    loop {
        let driven = world.sync(&mut { CONTROLLER }, "db");
        driven.outcome.as_ref().expect("no failure");
        let before = writes.len();
        for request in &driven.requests {
            let name = |body: &Value| body["metadata"]["name"].as_str().map(str::to_owned);
            writes.push(match request {
                Request::Create { body, .. } => format!("create {}", name(body).expect("a name")),
                Request::Delete { target, .. } => format!("delete {}", target.key.name()),
                Request::Replace { target, body } if target.sub == "status" => {
                    assert_eq!(body["status"]["updateRevision"], REVISION);
                    assert_eq!(body["status"]["collisionCount"], 0);
                    counts(&body["status"])
                }
                Request::Replace { target, .. } => format!("update {}", target.key.name()),
                _ => continue,
            });
        }
        if writes.len() == before {
            return writes;
        }
    }
}

#[test]
fn writes_for_three_ordered_pods_and_a_deleted_pod_match_the_recording() {
    let mut world = recorded(json!({}));
    assert_eq!(
        writes(&mut world),
        [format!("create {REVISION}").as_str(), "create db-0", "00000", "10110"]
    );
    world.run_pod("db-0");
    assert_eq!(writes(&mut world), ["create db-1", "11111", "21221"]);
    world.run_pod("db-1");
    assert_eq!(writes(&mut world), ["create db-2", "22222", "32332"]);
    world.run_pod("db-2");
    assert_eq!(writes(&mut world), ["33333"]);
    world.edit(PODS, "db-1", |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    assert_eq!(writes(&mut world), ["33223"]);
    world.remove(PODS, "db-1");
    assert_eq!(writes(&mut world), ["create db-1", "22222", "32332"]);
    world.run_pod("db-1");
    assert_eq!(writes(&mut world), ["33333"]);
}

#[test]
fn scale_down_and_change_of_the_retention_policy() {
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
    let mut world = recorded(json!({
        "volumeClaimTemplates": [claim], "persistentVolumeClaimRetentionPolicy": policy}));
    let first = ["create data-db-0", "create db-0", "00000", "10110"];
    assert_eq!(writes(&mut world)[1..], first);
    world.run_pod("db-0");
    assert_eq!(writes(&mut world), ["create data-db-1", "create db-1", "11111", "21221"]);
    world.run_pod("db-1");
    assert_eq!(writes(&mut world), ["create data-db-2", "create db-2", "22222", "32332"]);
    world.run_pod("db-2");
    assert_eq!(writes(&mut world), ["33333"]);
    world.edit(STATEFUL_SETS, "db", |set| {
        set["spec"]["replicas"] = 1.into();
        set["metadata"]["generation"] = 2.into();
    });
    let scaled = ["update data-db-2", "update data-db-1", "delete db-2", "33333", "33223"];
    assert_eq!(writes(&mut world), scaled);
    world.remove(PODS, "db-2");
    world.remove(PERSISTENT_VOLUME_CLAIMS, "data-db-2");
    assert_eq!(writes(&mut world), ["delete db-1", "22222", "22112"]);
    world.remove(PODS, "db-1");
    world.remove(PERSISTENT_VOLUME_CLAIMS, "data-db-1");
    assert_eq!(writes(&mut world), ["11111"]);
    world.edit(STATEFUL_SETS, "db", |set| {
        set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = "Delete".into();
        set["metadata"]["generation"] = 3.into();
    });
    assert_eq!(writes(&mut world), ["update data-db-0", "update db-0", "11111"]);
}
