//! Pods with many volume claims, or with one claim many times.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use pintle_testbed::attacks;
use serde_json::{Value, json};

use crate::ground::{ATTACKER, AttackedCluster, LATE_CLASS, NODES, pod};

attacks!(AttackedCluster, "volumes":
    one_claim_named_two_thousand_times,
    two_hundred_claims_of_one_pod,
    names_of_claims_that_are_not_there,
);

/// Volumes on disks of nodes, for the first claim that comes.
fn offer(ground: &AttackedCluster, count: usize) {
    let volume = |at: usize| {
        let node = json!({"key": "kubernetes.io/hostname", "operator": "In",
            "values": [format!("n{}", at % NODES)]});
        json!({"metadata": {"name": format!("{ATTACKER}-{at}")}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": LATE_CLASS, "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}}}})
    };
    ground.create_global::<PersistentVolume>((0..count).map(volume).collect());
}

fn claims(ground: &AttackedCluster, count: usize) {
    let claim = |at: usize| {
        json!({"metadata": {"name": format!("claim{at}")}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": LATE_CLASS,
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    ground.create::<PersistentVolumeClaim>((0..count).map(claim).collect());
}

/// A pod with these claims as volumes, in this order.
fn user(name: &str, claims: impl Iterator<Item = String>) -> Value {
    let volume = |(at, claim): (usize, String)| {
        let source = json!({"claimName": claim});
        json!({"name": format!("v{at}"), "persistentVolumeClaim": source})
    };
    pod(name, json!({"volumes": claims.enumerate().map(volume).collect::<Vec<Value>>()}))
}

fn one_claim_named_two_thousand_times(ground: &mut AttackedCluster) {
    offer(ground, 500);
    claims(ground, 1);
    let pods = (0..4).map(|at| user(&format!("p{at}"), (0..2_000).map(|_| "claim0".to_owned())));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside the claim");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}

fn two_hundred_claims_of_one_pod(ground: &mut AttackedCluster) {
    offer(ground, 500);
    claims(ground, 200);
    let pods = (0..4).map(|at| user(&format!("p{at}"), (0..200).map(|at| format!("claim{at}"))));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside the claims");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}

fn names_of_claims_that_are_not_there(ground: &mut AttackedCluster) {
    let pods = (0..20).map(|at| user(&format!("p{at}"), (0..1_000).map(|at| format!("none{at}"))));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside missing claims");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}
