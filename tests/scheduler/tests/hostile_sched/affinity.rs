//! Pods with far more terms of affinity, spreading and selectors than any real pod.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use pintle_testbed::attacks;
use serde_json::{Value, json};

use crate::ground::{ATTACKER, AttackedCluster, NODES, pod};

attacks!(AttackedCluster, "affinity":
    preferred_terms_by_the_thousand,
    terms_that_preemption_weighs,
    budgets_that_preemption_weighs,
    terms_of_all_namespaces,
    constraints_of_spreading,
    values_of_a_node_selector,
    tolerations_by_the_thousand,
);

/// Each with a selector of its own.
fn terms(count: usize) -> Vec<Value> {
    let term = |at: usize| json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {format!("k{at}"): "v"}}});
    (0..count).map(term).collect()
}

/// Pods that fit nowhere, with these fields.
fn misfits(count: usize, spec: &Value) -> Vec<Value> {
    let one = |at: usize| {
        let mut pod = pod(&format!("misfit{at}"), spec.clone());
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000".into();
        pod
    };
    (0..count).map(one).collect()
}

fn preferred_terms_by_the_thousand(ground: &mut AttackedCluster) {
    let weighed: Vec<Value> = terms(10_000)
        .into_iter()
        .map(|term| json!({"weight": 1, "podAffinityTerm": term}))
        .collect();
    let affinity = json!({"podAntiAffinity":
        {"preferredDuringSchedulingIgnoredDuringExecution": weighed}});
    ground.create::<Pod>(misfits(8, &json!({"affinity": affinity})));
    ground.bystander("beside preferred terms");
    eprintln!("    {:?}", ground.are_answered(&["misfit0"]));
}

/// Nodes full of pods that a more important pod could evict, were there any use in it.
fn full_of_unimportant(ground: &AttackedCluster) {
    let class = json!({"metadata": {"name": format!("{ATTACKER}-low")}, "value": -10});
    ground.create_global::<PriorityClass>(vec![class]);
    let low = json!({"priorityClassName": format!("{ATTACKER}-low")});
    let pods = (0..NODES * 50).map(|at| pod(&format!("low{at}"), low.clone()));
    ground.create::<Pod>(pods.collect());
    ground.are_answered(&["low0", &format!("low{}", NODES * 50 - 1)]);
}

fn terms_that_preemption_weighs(ground: &mut AttackedCluster) {
    full_of_unimportant(ground);
    let affinity = json!({"podAntiAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": terms(10_000)}});
    ground.create::<Pod>(misfits(4, &json!({"affinity": affinity})));
    ground.bystander("beside preemption");
    eprintln!("    {:?}", ground.are_answered(&["misfit0"]));
}

fn budgets_that_preemption_weighs(ground: &mut AttackedCluster) {
    full_of_unimportant(ground);
    let budget = |at: usize| {
        json!({"metadata": {"name": format!("b{at}")}, "spec": {"minAvailable": 1,
            "selector": {"matchExpressions": [
                {"key": format!("k{at}"), "operator": "DoesNotExist"}]}}})
    };
    ground.create::<PodDisruptionBudget>((0..2_000).map(budget).collect());
    ground.create::<Pod>(misfits(8, &json!({})));
    ground.bystander("beside budgets");
    eprintln!("    {:?}", ground.are_answered(&["misfit0"]));
}

fn terms_of_all_namespaces(ground: &mut AttackedCluster) {
    let term = |at: usize| {
        let expression = json!({"key": format!("n{at}"), "operator": "DoesNotExist"});
        json!({"topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": {"matchExpressions": [expression]},
            "labelSelector": {"matchLabels": {format!("k{at}"): "v"}}})
    };
    let terms: Vec<Value> = (0..5_000).map(term).collect();
    let affinity = json!({"podAntiAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    let pods = (0..8).map(|at| pod(&format!("p{at}"), json!({"affinity": affinity})));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside terms of all namespaces");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}

fn constraints_of_spreading(ground: &mut AttackedCluster) {
    let constraint = |at: usize| {
        json!({"topologyKey": format!("key{at}"), "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {format!("k{at}"): "v"}}})
    };
    let constraints: Vec<Value> = (0..5_000).map(constraint).collect();
    ground.create::<Pod>(misfits(8, &json!({"topologySpreadConstraints": constraints})));
    ground.bystander("beside constraints");
    eprintln!("    {:?}", ground.are_answered(&["misfit0"]));
}

fn values_of_a_node_selector(ground: &mut AttackedCluster) {
    let values: Vec<String> = (0..2_000).map(|at| format!("zone{at}")).collect();
    let term = |at: usize| {
        json!({"matchExpressions": [
            {"key": "zone", "operator": "In", "values": values},
            {"key": format!("k{at}"), "operator": "Exists"}]})
    };
    let terms: Vec<Value> = (0..40).map(term).collect();
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": terms}}});
    let pods = (0..8).map(|at| pod(&format!("p{at}"), json!({"affinity": affinity})));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside selectors");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}

fn tolerations_by_the_thousand(ground: &mut AttackedCluster) {
    let toleration = |at: usize| json!({"key": format!("k{at}"), "operator": "Exists"});
    let tolerations: Vec<Value> = (0..10_000).map(toleration).collect();
    ground.create::<Pod>(misfits(8, &json!({"tolerations": tolerations})));
    ground.bystander("beside tolerations");
    eprintln!("    {:?}", ground.are_answered(&["misfit0"]));
}
