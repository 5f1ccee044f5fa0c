//! Groups of pods that are many, large, never complete or never fit.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::api::{Api, DeleteParams, PostParams};
use pintle_testbed::attacks;
use serde_json::{Value, json};

use crate::ground::{ATTACKER, AttackedCluster, EXTENDED, pod};

attacks!(AttackedCluster, "groups":
    gangs_by_the_thousand_that_never_are_complete,
    a_gang_of_hundreds_that_almost_fits,
    gangs_that_try_every_domain,
    a_gang_with_dear_terms,
    gangs_that_preempt_in_vain,
    groups_that_come_and_go,
    a_gang_whose_extender_hangs,
);

/// A group of pods that are bound together or not at all.
fn gang(name: &str, min_count: usize) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}})
}

/// A pod of a group that requests these CPUs.
fn member(name: &str, group: &str, cpus: usize) -> Value {
    let mut pod = pod(name, json!({"schedulingGroup": {"podGroupName": group}}));
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpus.to_string().into();
    pod
}

/// Pods `{group}-0` and so on.
fn members(group: &str, count: usize, cpus: usize) -> Vec<Value> {
    (0..count).map(|at| member(&format!("{group}-{at}"), group, cpus)).collect()
}

fn gangs_by_the_thousand_that_never_are_complete(ground: &mut AttackedCluster) {
    ground.create::<PodGroup>((0..1_000).map(|at| gang(&format!("g{at}"), 100)).collect());
    let pods = (0..1_000).flat_map(|at| members(&format!("g{at}"), 1, 1));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside gangs that wait for their pods");
}

/// The 40 nodes have room for 200 pods of three CPUs.
fn a_gang_of_hundreds_that_almost_fits(ground: &mut AttackedCluster) {
    for group in ["g0", "g1", "g2"] {
        ground.create::<PodGroup>(vec![gang(group, 220)]);
        ground.create::<Pod>(members(group, 220, 3));
    }
    ground.bystander("beside gangs that almost fit");
    ground.are_answered(&["g0-0"]);
}

fn gangs_that_try_every_domain(ground: &mut AttackedCluster) {
    let bound_to_a_node = |at: usize| {
        let mut group = gang(&format!("g{at}"), 20);
        group["spec"]["schedulingConstraints"] =
            json!({"topology": [{"key": "kubernetes.io/hostname"}]});
        group
    };
    ground.create::<PodGroup>((0..30).map(bound_to_a_node).collect());
    let pods = (0..30).flat_map(|at| members(&format!("g{at}"), 20, 1));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside gangs that fit into no domain");
    ground.are_answered(&["g0-0", "g29-19"]);
}

fn a_gang_with_dear_terms(ground: &mut AttackedCluster) {
    let term = |at: usize| json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": format!("v{at}")}}});
    let terms: Vec<Value> = (0..400).map(term).collect();
    let pods = members("g0", 60, 1).into_iter().map(|mut pod| {
        pod["metadata"]["labels"] = json!({"a": "v0"});
        pod["spec"]["affinity"] = json!({"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": terms}});
        pod
    });
    ground.create::<PodGroup>(vec![gang("g0", 60)]);
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside a gang with many terms");
    ground.are_answered(&["g0-0"]);
}

/// Pods of no priority fill the nodes; gangs of a higher one need more than all nodes have.
fn gangs_that_preempt_in_vain(ground: &mut AttackedCluster) {
    let class = json!({"metadata": {"name": format!("{ATTACKER}-high")}, "value": 1000});
    ground.create_global::<k8s_openapi::api::scheduling::v1::PriorityClass>(vec![class]);
    ground.create::<Pod>((0..400).map(|at| pod(&format!("low{at}"), json!({}))).collect());
    for at in 0..10 {
        let (group, class) = (format!("g{at}"), format!("{ATTACKER}-high"));
        let mut object = gang(&group, 50);
        object["spec"]["priorityClassName"] = class.clone().into();
        ground.create::<PodGroup>(vec![object]);
        let pods = members(&group, 50, 15).into_iter().map(|mut pod| {
            pod["spec"]["priorityClassName"] = class.clone().into();
            pod
        });
        ground.create::<Pod>(pods.collect());
    }
    ground.bystander("beside gangs that preempt");
    ground.are_answered(&["g0-0", "low0"]);
}

fn groups_that_come_and_go(ground: &mut AttackedCluster) {
    ground.create::<Pod>((0..10).flat_map(|at| members(&format!("g{at}"), 20, 1)).collect());
    for _ in 0..10 {
        ground.create::<PodGroup>((0..10).map(|at| gang(&format!("g{at}"), 21)).collect());
        ground.stand.with_client(async |client| {
            let groups = Api::<PodGroup>::namespaced(client, ATTACKER);
            for at in 0..10 {
                let now = DeleteParams::default().grace_period(0);
                groups.delete(&format!("g{at}"), &now).await?;
                // No controller removes the finalizer of a group with pods.
                let free = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let patched =
                    groups.patch_metadata(&format!("g{at}"), &Default::default(), &free).await;
                drop(patched); // it may be gone
            }
            Ok(())
        });
    }
    ground.bystander("beside groups that came and went");
    let alone: k8s_openapi::api::core::v1::Pod =
        serde_json::from_value(pod("alone", json!({}))).expect("a pod");
    ground.stand.with_client(async |client| {
        let pods = Api::<Pod>::namespaced(client, ATTACKER);
        pods.create(&PostParams::default(), &alone).await?;
        Ok(())
    });
    ground.are_answered(&["alone"]);
}

/// While the extender handles one of its pods, the others are placed on trial.
fn a_gang_whose_extender_hangs(ground: &mut AttackedCluster) {
    let _extender = crate::extenders::listen(ground, crate::extenders::ExtenderManner::Silent);
    for at in 0..20 {
        let group = format!("g{at}");
        ground.create::<PodGroup>(vec![gang(&group, 5)]);
        let pods = members(&group, 5, 1).into_iter().map(|mut pod| {
            let resources = &mut pod["spec"]["containers"][0]["resources"];
            resources["requests"][EXTENDED] = "1".into();
            resources["limits"] = json!({EXTENDED: "1"});
            pod
        });
        ground.create::<Pod>(pods.collect());
    }
    ground.bystander("beside gangs whose extender hangs");
    ground.are_answered(&["g0-0"]);
}
