//! Fields that filters and scores read and that generated clusters lack.
//!
//! Input: dice, and objects that the generator made. Output: the same objects, some of them with
//! overhead, sidecars, requests of the pod, resizes under way, owners, image volumes, names of
//! nodes, label keys to spread by, features that nodes declare.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, ContainerStatus,
    ImageVolumeSource, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Pod, PodSpec, PodStatus, PodTemplateSpec, ReplicationController, ReplicationControllerSpec,
    ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::generate::{APPS, ChoiceDice, NAMESPACES};
use crate::reference::ClusterObjects;

/// Owners of pods.
#[derive(Default)]
pub struct PodOwners {
    /// Their uid is their name, as of the other kinds.
    pub replica_sets: Vec<ReplicaSet>,
    /// See above.
    pub stateful_sets: Vec<StatefulSet>,
    /// See above.
    pub controllers: Vec<ReplicationController>,
}

const FEATURES: [&str; 3] =
    ["RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport", "Other"];

/// Owners in the namespaces of the generator, each for the pods of one app.
pub fn owners(dice: &mut ChoiceDice) -> PodOwners {
    let mut found = PodOwners::default();
    for at in 0..dice.below(5) {
        let labels = BTreeMap::from([("app".to_owned(), dice.pick(&APPS))]);
        let metadata = ObjectMeta {
            name: Some(format!("owner-{at}")),
            namespace: Some(dice.pick(&NAMESPACES)),
            uid: Some(format!("owner-{at}")),
            ..ObjectMeta::default()
        };
        let of_labels =
            LabelSelector { match_labels: Some(labels.clone()), ..LabelSelector::default() };
        match dice.below(3) {
            0 => {
                let spec = ReplicaSetSpec { selector: of_labels, ..ReplicaSetSpec::default() };
                found.replica_sets.push(ReplicaSet { metadata, spec: Some(spec), status: None });
            }
            1 => {
                let spec = StatefulSetSpec {
                    selector: of_labels,
                    template: PodTemplateSpec::default(),
                    ..StatefulSetSpec::default()
                };
                found.stateful_sets.push(StatefulSet { metadata, spec: Some(spec), status: None });
            }
            _ => {
                let spec =
                    ReplicationControllerSpec { selector: Some(labels), ..Default::default() };
                let spec = Some(spec);
                found.controllers.push(ReplicationController { metadata, spec, status: None });
            }
        }
    }
    found
}

/// Adds to nodes and bound pods.
pub fn world(dice: &mut ChoiceDice, world: &mut ClusterObjects, owners: &PodOwners) {
    for node in &mut world.nodes {
        features(dice, node);
    }
    for bound in &mut world.pods {
        pod(dice, bound, owners);
        if dice.chance(20) {
            resized(dice, bound);
        }
    }
}

fn features(dice: &mut ChoiceDice, node: &mut Node) {
    let declared: Vec<_> = FEATURES.into_iter().filter(|_| dice.chance(40)).collect();
    if let Some(status) = node.status.as_mut().filter(|_| !declared.is_empty()) {
        status.declared_features = Some(declared.into_iter().map(str::to_owned).collect());
    }
}

fn amounts(dice: &mut ChoiceDice) -> BTreeMap<String, Quantity> {
    let cpu = ["50m", "200m", "1", "1001m"][dice.below(4)];
    let memory = ["10Mi", "128Mi", "1G", "1500000001"][dice.below(4)];
    let both = [("cpu", cpu), ("memory", memory)].into_iter();
    both.filter(|_| dice.chance(75)).map(|(k, v)| (k.to_owned(), Quantity(v.to_owned()))).collect()
}

fn requests(dice: &mut ChoiceDice) -> ResourceRequirements {
    ResourceRequirements { requests: Some(amounts(dice)), ..ResourceRequirements::default() }
}

/// Adds to any pod.
pub fn pod(dice: &mut ChoiceDice, pod: &mut Pod, owners: &PodOwners) {
    if dice.chance(40) {
        own(dice, pod, owners);
    }
    let spec = pod.spec.as_mut().expect("generated pods have one");
    if dice.chance(15) {
        spec.overhead = Some(amounts(dice));
    }
    if dice.chance(15) {
        sidecars(dice, spec);
    }
    if dice.chance(15) {
        spec.resources = Some(requests(dice));
    }
    if dice.chance(10) {
        images(dice, spec);
    }
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        if dice.chance(20) && constraint.label_selector.is_some() {
            constraint.match_label_keys = Some(vec!["tier".to_owned()]);
        }
    }
    if dice.chance(8) {
        restart_rules(spec);
    }
    if dice.chance(4) {
        (spec.host_network, spec.host_users) = (Some(true), Some(false));
    }
}

/// Adds to a pod without a node what names nodes.
pub fn named_nodes(dice: &mut ChoiceDice, pod: &mut Pod, nodes: usize) {
    let spec = pod.spec.as_mut().expect("generated pods have one");
    let mut name = || format!("n{}", dice.below(nodes + 1));
    let (first, second) = (name(), name());
    if dice.chance(4) {
        spec.node_name = Some(first);
    } else if dice.chance(6) {
        let field = |name: String| NodeSelectorRequirement {
            key: "metadata.name".into(),
            operator: "In".into(),
            values: Some(vec![name]),
        };
        let term = |name| NodeSelectorTerm {
            match_fields: Some(vec![field(name)]),
            match_expressions: None,
        };
        let terms =
            if dice.chance(50) { vec![term(first), term(second)] } else { vec![term(first)] };
        let affinity = spec.affinity.get_or_insert_default();
        let node = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
        node.required_during_scheduling_ignored_during_execution =
            Some(NodeSelector { node_selector_terms: terms });
    }
}

fn own(dice: &mut ChoiceDice, pod: &mut Pod, owners: &PodOwners) {
    let of = |kind: &str, metadata: &ObjectMeta| (kind.to_owned(), metadata.clone());
    let sets = owners.replica_sets.iter().map(|o| of("ReplicaSet", &o.metadata));
    let stateful = owners.stateful_sets.iter().map(|o| of("StatefulSet", &o.metadata));
    let controllers = owners.controllers.iter().map(|o| of("ReplicationController", &o.metadata));
    let all: Vec<_> = sets.chain(stateful).chain(controllers).collect();
    if all.is_empty() {
        return;
    }
    let (kind, owner) = all[dice.below(all.len())].clone();
    pod.metadata.namespace = owner.namespace;
    let api_version = if kind == "ReplicationController" { "v1" } else { "apps/v1" };
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: api_version.to_owned(),
        block_owner_deletion: None,
        controller: Some(true),
        kind,
        name: owner.name.unwrap_or_default(),
        uid: owner.uid.unwrap_or_default(),
    }]);
}

fn sidecars(dice: &mut ChoiceDice, spec: &mut PodSpec) {
    let init = |at: usize, dice: &mut ChoiceDice| Container {
        name: format!("init-{at}"),
        image: Some("pause:3".into()),
        resources: Some(requests(dice)),
        restart_policy: dice.chance(60).then(|| "Always".to_owned()),
        ..Container::default()
    };
    spec.init_containers = Some((0..1 + dice.below(3)).map(|at| init(at, dice)).collect());
}

fn images(dice: &mut ChoiceDice, spec: &mut PodSpec) {
    let reference = ["big:v1", "huge:v2", "none"][dice.below(3)].to_owned();
    let source = ImageVolumeSource { reference: Some(reference), ..ImageVolumeSource::default() };
    spec.volumes =
        Some(vec![Volume { name: "i".into(), image: Some(source), ..Volume::default() }]);
}

/// The node must support restarting all containers.
fn restart_rules(spec: &mut PodSpec) {
    let on = ContainerRestartRuleOnExitCodes { operator: "In".into(), values: Some(vec![42]) };
    let rule = ContainerRestartRule { action: "RestartAllContainers".into(), exit_codes: Some(on) };
    spec.containers[0].restart_policy = Some("Never".into());
    spec.containers[0].restart_policy_rules = Some(vec![rule]);
}

/// A resize of its first container is under way.
fn resized(dice: &mut ChoiceDice, pod: &mut Pod) {
    let name = pod.spec.as_ref().expect("a spec").containers[0].name.clone();
    let status = ContainerStatus {
        name,
        allocated_resources: dice.chance(70).then(|| amounts(dice)),
        resources: dice.chance(70).then(|| requests(dice)),
        ..ContainerStatus::default()
    };
    let mut found = PodStatus { container_statuses: Some(vec![status]), ..PodStatus::default() };
    if dice.chance(30) {
        let conditions = serde_json::json!([
            {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        found.conditions = serde_json::from_value(conditions).ok();
    }
    pod.status = Some(found);
}
