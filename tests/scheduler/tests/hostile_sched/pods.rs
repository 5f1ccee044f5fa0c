//! Pods that are many, large, odd or short-lived.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use pintle_testbed::attacks;
use serde_json::{Value, json};

use crate::ground::{ATTACKER, AttackedCluster, pod};

attacks!(AttackedCluster, "pods":
    a_thousand_that_fit_nowhere,
    a_thousand_that_fit,
    annotations_of_a_megabyte,
    resources_by_the_hundred,
    quantities_at_their_limits,
    host_ports_by_the_thousand,
    gates_by_the_hundred,
    classes_of_priority_without_number,
    created_and_deleted_again,
    labels_that_change_all_the_time,
);

/// Rounds of a continuous attack.
const ROUNDS: usize = 400;

/// A pod that asks for these amounts as well.
fn asking(name: &str, amounts: &Value) -> Value {
    let mut pod = pod(name, json!({}));
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    for kind in ["requests", "limits"] {
        resources[kind] = amounts.clone();
    }
    pod
}

fn a_thousand_that_fit_nowhere(ground: &mut AttackedCluster) {
    let pods = (0..1_000).map(|at| asking(&format!("p{at}"), &json!({"cpu": format!("1{at:03}")})));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside a thousand misfits");
    ground.are_answered(&["p0", "p999"]);
}

fn a_thousand_that_fit(ground: &mut AttackedCluster) {
    ground.create::<Pod>((0..1_000).map(|at| pod(&format!("p{at}"), json!({}))).collect());
    ground.bystander("beside a thousand pods");
    ground.are_answered(&["p0", "p999"]);
}

fn annotations_of_a_megabyte(ground: &mut AttackedCluster) {
    let large = |at: usize| {
        let mut pod = asking(&format!("p{at}"), &json!({"cpu": "1000"}));
        pod["metadata"]["annotations"] = json!({"large": "x".repeat(250_000)});
        pod
    };
    ground.create::<Pod>((0..100).map(large).collect());
    ground.bystander("beside large pods");
    ground.are_answered(&["p0", "p99"]);
}

fn resources_by_the_hundred(ground: &mut AttackedCluster) {
    let amounts = |pod: usize| -> Value {
        let amount = |at: usize| (format!("r{pod}-{at}.example/r"), Value::from("1"));
        Value::Object((0..500).map(amount).collect())
    };
    let pods = (0..20).map(|at| asking(&format!("p{at}"), &amounts(at)));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside unknown resources");
    eprintln!("    {:?}", ground.are_answered(&["p0"]).iter().map(String::len).max());
}

fn quantities_at_their_limits(ground: &mut AttackedCluster) {
    let most = i64::MAX.to_string();
    let amounts = [
        json!({"cpu": most, "memory": most, "ephemeral-storage": most}),
        json!({"cpu": "9223372036854775807m", "memory": "7Ei"}),
        json!({"cpu": "1n", "memory": "1"}),
        json!({"memory": "9E", "cpu": "0.0000000001"}),
        json!({"example.com/r": most}),
        json!({"hugepages-2Mi": "9223372036852678656", "cpu": "1", "memory": "1"}),
    ];
    let odd = amounts.iter().enumerate().map(|(at, all)| asking(&format!("p{at}"), all));
    ground.create::<Pod>(odd.collect());
    // Sums of containers' requests overflow as well.
    let many = (0..4).map(|at| {
        let mut pod = asking(&format!("sum{at}"), &amounts[0]);
        let container = pod["spec"]["containers"][0].clone();
        let copy = |n: usize| {
            let mut one = container.clone();
            one["name"] = format!("c{n}").into();
            one
        };
        pod["spec"]["containers"] = (0..50).map(copy).collect();
        pod
    });
    ground.create::<Pod>(many.collect());
    ground.bystander("beside odd quantities");
    eprintln!("    {:?}", ground.are_answered(&["p0", "p1", "p2", "p3", "p4", "p5", "sum0"]));
}

fn host_ports_by_the_thousand(ground: &mut AttackedCluster) {
    let with_ports = |at: usize| {
        let mut pod = pod(&format!("p{at}"), json!({}));
        let port = |n: usize| json!({"containerPort": 1, "hostPort": 1_000 + n});
        pod["spec"]["containers"][0]["ports"] = (0..2_000).map(port).collect();
        pod
    };
    ground.create::<Pod>((0..60).map(with_ports).collect());
    ground.bystander("beside ports");
    ground.are_answered(&["p0", "p59"]);
}

fn gates_by_the_hundred(ground: &mut AttackedCluster) {
    let gates: Vec<Value> =
        (0..1_000).map(|at| json!({"name": format!("g.example/{at}")})).collect();
    let pods = (0..50).map(|at| pod(&format!("p{at}"), json!({"schedulingGates": gates})));
    ground.create::<Pod>(pods.collect());
    ground.stand.with_client(async |client| {
        let pods = Api::<Pod>::namespaced(client, ATTACKER);
        for at in 0..50 {
            let change = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
            pods.patch(&format!("p{at}"), &PatchParams::default(), &change).await?;
        }
        Ok(())
    });
    ground.bystander("beside open gates");
    ground.are_answered(&["p0", "p49"]);
}

/// An administrator creates many priority classes; pods of each wait for room.
fn classes_of_priority_without_number(ground: &mut AttackedCluster) {
    let class = |at: usize| {
        json!({"metadata": {"name": format!("{ATTACKER}-{at}")}, "value": at,
            "preemptionPolicy": if at.is_multiple_of(2) { "Never" } else { "PreemptLowerPriority" }})
    };
    ground.create_global::<PriorityClass>((0..500).map(class).collect());
    let waits = |at: usize| {
        let mut pod = asking(&format!("p{at}"), &json!({"cpu": "1000"}));
        pod["spec"]["priorityClassName"] = format!("{ATTACKER}-{at}").into();
        pod
    };
    ground.create::<Pod>((0..500).map(waits).collect());
    ground.bystander("beside all priorities");
    ground.are_answered(&["p0", "p499"]);
}

/// Rounds of an attack that continues while bystanders are bound.
fn goes_on(
    ground: &mut AttackedCluster,
    when: &str,
    round: impl AsyncFn(&Api<Pod>, usize) -> kube::Result<()> + Sync,
) {
    let stand = std::sync::Arc::clone(&ground.stand);
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            stand.with_client(async |client| {
                let pods = Api::<Pod>::namespaced(client, ATTACKER);
                for at in 0..ROUNDS {
                    round(&pods, at).await?;
                }
                Ok(())
            });
        });
        ground.bystander(when);
        attack.join().expect("the attack was carried out");
    });
}

fn created_and_deleted_again(ground: &mut AttackedCluster) {
    goes_on(ground, "while pods come and go", async |pods, at| {
        let name = format!("p{at}");
        let object = serde_json::from_value(pod(&name, json!({}))).expect("a pod");
        pods.create(&PostParams::default(), &object).await?;
        pods.delete(&name, &DeleteParams::default().grace_period(0)).await.map(drop)
    });
}

fn labels_that_change_all_the_time(ground: &mut AttackedCluster) {
    ground.create::<Pod>(
        (0..10).map(|at| asking(&format!("p{at}"), &json!({"cpu": "1000"}))).collect(),
    );
    ground.are_answered(&["p0", "p9"]);
    goes_on(ground, "while labels change", async |pods, at| {
        let change = Patch::Merge(json!({"metadata": {"labels": {format!("k{at}"): "v"}}}));
        pods.patch(&format!("p{}", at % 10), &PatchParams::default(), &change).await.map(drop)
    });
}
