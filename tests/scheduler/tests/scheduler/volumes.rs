//! Pods with claims on a real API server. The test is the controller of volumes and the
//! provisioner.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use nix::sys::signal::Signal;
use pintle_testbed::wait::LONG;
use serde_json::{Value, json};

use crate::shadow::{create, name, patch};
use crate::stand::SchedulerStand;

const SELECTED: &str = "volume.kubernetes.io/selected-node";
/// Volumes that exist, and claims for each way to get one.
const EACH: usize = 3;

/// Nodes n0 to n2 with a volume each, a class for these and one with dynamic provisioning.
async fn set_up(client: &kube::Client) -> Result<()> {
    let account = json!({"metadata": {"name": "default"}});
    create::<ServiceAccount>(&Api::namespaced(client.clone(), "default"), account).await?;
    for (name, provisioner) in [("local", "kubernetes.io/no-provisioner"), ("made", "x.example")] {
        let class = json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"});
        create::<StorageClass>(&Api::all(client.clone()), class).await?;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    for at in 0..EACH {
        let name = format!("n{at}");
        let room = json!({"cpu": "100", "memory": "100Gi", "pods": "110"});
        let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": room, "capacity": room}});
        create::<Node>(&nodes, node).await?;
        patch(&nodes, &name, json!({"spec": {"taints": []}})).await?;
        add_volume(client, &format!("v{at}"), "local", &name, None).await?;
    }
    for class in ["local", "made"] {
        for at in 0..EACH {
            let name = format!("{class}-{at}");
            let claim = json!({"metadata": {"name": name}, "spec": {"storageClassName": class,
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
            let claims = Api::namespaced(client.clone(), "default");
            create::<PersistentVolumeClaim>(&claims, claim).await?;
        }
    }
    Ok(())
}

/// A volume that is local to one node.
async fn add_volume(
    client: &kube::Client,
    name: &str,
    class: &str,
    node: &str,
    claim: Option<Value>,
) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": class, "claimRef": claim,
        "capacity": {"storage": "1Gi"}, "local": {"path": "/v"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}}});
    create::<PersistentVolume>(&volumes, volume).await?;
    let status = json!({"status": {"phase": "Available"}});
    volumes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}

/// Does what the controller of volumes and a provisioner do, until it is dropped.
async fn control(client: kube::Client) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let mut given = volumes.watch(&WatchParams::default(), "0").await?.boxed();
    let mut asked = claims.watch(&WatchParams::default(), "0").await?.boxed();
    loop {
        tokio::select! {
            event = given.try_next() => {
                let WatchEvent::Modified(volume) = event?.context("the watch ended")? else { continue };
                let to = volume.spec.and_then(|spec| spec.claim_ref).and_then(|to| to.name);
                if let (Some(claim), Some(volume)) = (to, volume.metadata.name) {
                    finish(&claims, &claim, &volume).await?;
                }
            }
            event = asked.try_next() => {
                let WatchEvent::Modified(claim) = event?.context("the watch ended")? else { continue };
                let node = claim.metadata.annotations.as_ref().and_then(|all| all.get(SELECTED));
                let has = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
                let (Some(node), false) = (node, has) else { continue };
                let name = claim.metadata.name.clone().context("a name")?;
                let to = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "name": name,
                    "namespace": "default", "uid": claim.metadata.uid});
                let volume = format!("made-for-{name}");
                add_volume(&client, &volume, "made", node, Some(to)).await?;
                finish(&claims, &name, &volume).await?;
            }
        }
    }
}

async fn finish(claims: &Api<PersistentVolumeClaim>, claim: &str, volume: &str) -> Result<()> {
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": volume}});
    patch(claims, claim, bound).await
}

/// Waits until this number of pods has nodes; returns the nodes by pod.
async fn bound(client: &kube::Client, count: usize) -> Result<BTreeMap<String, String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let mut events = pods.watch(&WatchParams::default(), "0").await?.boxed();
    let mut found = BTreeMap::new();
    while found.len() < count {
        let event = events.try_next().await?.context("the watch ended")?;
        if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event
            && let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
        {
            found.insert(name(&pod).to_owned(), node);
        }
    }
    Ok(found)
}

#[test]
fn pods_are_bound_to_nodes_that_can_access_their_volumes() {
    let configuration = json!({"leaderElection": {"leaderElect": false}});
    let stand = SchedulerStand::without_scheduler("volumes", &configuration);
    stand.with_client(async |client| set_up(&client).await);
    let ours = stand.start_ours(&["--secure-port=0"]);
    let (pods, claims) = stand.with_client(async |client| {
        let controller = tokio::task::spawn_local(control(client.clone()));
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        for claim in ["local", "made"] {
            for at in 0..EACH {
                let name = format!("{claim}-{at}");
                let pod = json!({"metadata": {"name": name}, "spec": {
                    "containers": [{"name": "c", "image": "i"}], "volumes": [
                        {"name": "v", "persistentVolumeClaim": {"claimName": name}}]}});
                create::<Pod>(&pods, pod).await?;
            }
        }
        let found = tokio::time::timeout(LONG, bound(&client, 2 * EACH)).await;
        anyhow::ensure!(!controller.is_finished(), "{:?}", controller.await);
        let claims = Api::<PersistentVolumeClaim>::namespaced(client, "default");
        Ok((found??, claims.list(&Default::default()).await?.items))
    });
    println!("{pods:?}");
    let mut local: Vec<&String> =
        pods.iter().filter(|(name, _)| name.starts_with("local")).map(|(_, node)| node).collect();
    local.sort_unstable();
    assert_eq!(local, ["n0", "n1", "n2"], "each has the volume of another node");
    for claim in claims {
        let of = claim.metadata.name.as_deref().expect("a name").to_owned();
        let volume = claim.spec.and_then(|spec| spec.volume_name).expect("it is bound");
        let selected = claim.metadata.annotations.and_then(|all| all.get(SELECTED).cloned());
        match of.starts_with("local") {
            true => assert_eq!(volume, pods[&of].replace('n', "v"), "{of}"),
            false => assert_eq!(selected.as_ref(), Some(&pods[&of]), "{of}"),
        }
    }
    assert!(ours.end(Signal::SIGTERM), "{}", stand.ours_log_end());
}
