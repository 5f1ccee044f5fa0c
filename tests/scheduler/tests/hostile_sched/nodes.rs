//! Compromised nodes: what an agent may report about its own Node object.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use pintle_testbed::attacks;
use serde_json::{Value, json};

use crate::ground::{ATTACKER, AttackedCluster, pod};

attacks!(AttackedCluster, "nodes":
    thirty_thousand_labels_of_each,
    taints_by_the_thousand,
    images_and_resources_by_the_thousand,
    statuses_all_the_time,
);

/// Nodes on which nothing fits, with these fields.
fn nodes(count: usize, fields: impl Fn(usize) -> Value) -> Vec<Value> {
    let one = |at: usize| {
        let mut node = json!({"metadata": {"name": format!("{ATTACKER}-{at}")},
            "status": {"allocatable": {"cpu": "1m", "memory": "1", "pods": "0"}}});
        merge(&mut node, fields(at));
        node
    };
    (0..count).map(one).collect()
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter()
                .for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

fn thirty_thousand_labels_of_each(ground: &mut AttackedCluster) {
    let labels = (0..30_000).map(|at| (format!("k{at}"), Value::from("v"))).collect();
    let labels = Value::Object(labels);
    ground.create_global::<Node>(nodes(10, |_| json!({"metadata": {"labels": labels}})));
    ground.bystander("beside labels");
    change(ground, 40, |at| json!({"metadata": {"labels": {"k0": format!("v{at}")}}}));
    ground.bystander("after changes of labels");
}

fn taints_by_the_thousand(ground: &mut AttackedCluster) {
    let taint = |node: usize, at: usize| json!({"key": format!("k{node}-{at}"), "value": "v", "effect": "NoSchedule"});
    let taints = |node: usize| (0..3_000).map(|at| taint(node, at)).collect::<Vec<Value>>();
    ground.create_global::<Node>(nodes(10, |node| json!({"spec": {"taints": taints(node)}})));
    let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
    ground.create::<Pod>((0..20).map(|at| pod(&format!("p{at}"), tolerant.clone())).collect());
    ground.bystander("beside taints");
    ground.are_answered(&["p0", "p19"]);
}

fn images_and_resources_by_the_thousand(ground: &mut AttackedCluster) {
    let images = |node: usize| {
        let image = |at: usize| json!({"names": [format!("r.example/{node}/i{at}:1")], "sizeBytes": i64::MAX});
        (0..3_000).map(image).collect::<Vec<Value>>()
    };
    let resources = |node: usize| {
        let one =
            |at: usize| (format!("n{node}-{at}.example/r"), Value::from("9223372036854775807"));
        Value::Object((0..3_000).map(one).collect())
    };
    let status =
        |node: usize| json!({"status": {"images": images(node), "allocatable": resources(node)}});
    ground.create_global::<Node>(nodes(10, status));
    ground.bystander("beside images and resources");
}

fn statuses_all_the_time(ground: &mut AttackedCluster) {
    ground.create_global::<Node>(nodes(10, |_| json!({})));
    let stand = std::sync::Arc::clone(&ground.stand);
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            stand.with_client(async |client| {
                let nodes = Api::<Node>::all(client);
                for at in 0..600 {
                    let room = json!({"cpu": format!("{at}m"), "memory": "1", "pods": "0"});
                    let change = Patch::Merge(json!({"status": {"allocatable": room}}));
                    let name = format!("{ATTACKER}-{}", at % 10);
                    nodes.patch_status(&name, &PatchParams::default(), &change).await?;
                }
                Ok(())
            });
        });
        ground.bystander("while nodes change");
        attack.join().expect("the attack was carried out");
    });
}

/// Changes the attacker's nodes in turns.
fn change(ground: &AttackedCluster, count: usize, to: impl Fn(usize) -> Value + Send + Sync) {
    ground.stand.with_client(async |client| {
        let nodes = Api::<Node>::all(client);
        for at in 0..count {
            let change = Patch::Merge(to(at));
            let name = format!("{ATTACKER}-{}", at % 10);
            nodes.patch(&name, &PatchParams::default(), &change).await?;
        }
        Ok(())
    });
}
