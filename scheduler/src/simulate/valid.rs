//! What the API refuses of nodes and pods, as far as decisions read it.
//!
//! Input: an object of a file. Output: the first field that no API server has or would take, and why.
//! Pure. A dump of a cluster has none; a file that somebody wrote may, and an answer about a pod that
//! cannot be made would be wrong.
// k8s: pkg/apis/core/validation/validation.go ValidatePodSpec, ValidateNode

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm,
    PodSpec, ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use pintle_sched_core::names;

/// A field, and what is wrong with it.
pub(super) type Flaw = (String, String);

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const OF_LABELS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];
const OF_NODES: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
const OF_FIELDS: [&str; 2] = ["In", "NotIn"];

type Checked = Result<(), Flaw>;

/// # Errors
/// The first field that is wrong.
pub(super) fn node(node: &Node) -> Checked {
    let status = node.status.as_ref();
    amounts(status.and_then(|status| status.allocatable.as_ref()), "status.allocatable")?;
    amounts(status.and_then(|status| status.capacity.as_ref()), "status.capacity")?;
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    for (at, taint) in taints.into_iter().flatten().enumerate() {
        one_of(&taint.effect, &EFFECTS, &format!("spec.taints[{at}].effect"))?;
    }
    Ok(())
}

/// # Errors
/// The first field that is wrong.
pub(super) fn pod(pod: &Pod) -> Checked {
    let Some(spec) = &pod.spec else { return wrong("spec", "is missing") };
    if spec.containers.is_empty() {
        return wrong("spec.containers", "is empty");
    }
    requests(spec)?;
    for (at, toleration) in spec.tolerations.iter().flatten().enumerate() {
        tolerates(toleration, &format!("spec.tolerations[{at}]"))?;
    }
    for (at, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        spreads(constraint, &format!("spec.topologySpreadConstraints[{at}]"))?;
    }
    spec.affinity.as_ref().map_or(Ok(()), affinity)
}

fn requests(spec: &PodSpec) -> Checked {
    let of_resources = |resources: Option<&ResourceRequirements>, path: &str| {
        let Some(resources) = resources else { return Ok(()) };
        amounts(resources.requests.as_ref(), &format!("{path}.resources.requests"))?;
        amounts(resources.limits.as_ref(), &format!("{path}.resources.limits"))
    };
    let all = |containers: &[Container], path: &str| {
        containers.iter().enumerate().try_for_each(|(at, container)| {
            of_resources(container.resources.as_ref(), &format!("spec.{path}[{at}]"))
        })
    };
    all(&spec.containers, "containers")?;
    all(spec.init_containers.as_deref().unwrap_or_default(), "initContainers")?;
    of_resources(spec.resources.as_ref(), "spec")?;
    amounts(spec.overhead.as_ref(), "spec.overhead")
}

fn amounts(all: Option<&BTreeMap<String, Quantity>>, path: &str) -> Checked {
    let negative = all.into_iter().flatten().find(|(_, amount)| amount.0.starts_with('-'));
    match negative {
        Some((name, amount)) => {
            wrong(&format!("{path}.{name}"), format!("{:?} is below zero", amount.0))
        }
        None => Ok(()),
    }
}

fn tolerates(toleration: &Toleration, path: &str) -> Checked {
    if let Some(operator) = toleration.operator.as_deref().filter(|text| !text.is_empty()) {
        one_of(operator, &["Equal", "Exists", "Gt", "Lt"], &format!("{path}.operator"))?;
    }
    match toleration.effect.as_deref().filter(|text| !text.is_empty()) {
        Some(effect) => one_of(effect, &EFFECTS, &format!("{path}.effect")),
        None => Ok(()),
    }
}

fn spreads(constraint: &TopologySpreadConstraint, path: &str) -> Checked {
    if constraint.max_skew < 1 {
        let problem = format!("{} is not above zero", constraint.max_skew);
        return wrong(&format!("{path}.maxSkew"), problem);
    }
    let what = ["DoNotSchedule", "ScheduleAnyway"];
    one_of(&constraint.when_unsatisfiable, &what, &format!("{path}.whenUnsatisfiable"))?;
    label(&constraint.topology_key, &format!("{path}.topologyKey"))?;
    selector(constraint.label_selector.as_ref(), &format!("{path}.labelSelector"))
}

fn affinity(affinity: &Affinity) -> Checked {
    if let Some(of_node) = &affinity.node_affinity {
        let path = "spec.affinity.nodeAffinity";
        let required = &of_node.required_during_scheduling_ignored_during_execution;
        for (at, term) in required.iter().flat_map(|r| &r.node_selector_terms).enumerate() {
            let required = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
            node_term(term, &format!("{path}.{required}[{at}]"))?;
        }
        let preferred = &of_node.preferred_during_scheduling_ignored_during_execution;
        for (at, preferred) in preferred.iter().flatten().enumerate() {
            let name = "preferredDuringSchedulingIgnoredDuringExecution";
            node_term(&preferred.preference, &format!("{path}.{name}[{at}].preference"))?;
        }
    }
    let with = affinity.pod_affinity.as_ref().map(|of| {
        let required = &of.required_during_scheduling_ignored_during_execution;
        let preferred = &of.preferred_during_scheduling_ignored_during_execution;
        ("podAffinity", required, preferred)
    });
    let against = affinity.pod_anti_affinity.as_ref().map(|of| {
        let required = &of.required_during_scheduling_ignored_during_execution;
        let preferred = &of.preferred_during_scheduling_ignored_during_execution;
        ("podAntiAffinity", required, preferred)
    });
    for (name, required, preferred) in with.into_iter().chain(against) {
        let path = format!("spec.affinity.{name}");
        for (at, term) in required.iter().flatten().enumerate() {
            let name = "requiredDuringSchedulingIgnoredDuringExecution";
            pod_term(term, &format!("{path}.{name}[{at}]"))?;
        }
        for (at, preferred) in preferred.iter().flatten().enumerate() {
            let name = "preferredDuringSchedulingIgnoredDuringExecution";
            pod_term(
                &preferred.pod_affinity_term,
                &format!("{path}.{name}[{at}].podAffinityTerm"),
            )?;
        }
    }
    Ok(())
}

fn node_term(term: &NodeSelectorTerm, path: &str) -> Checked {
    let all = |all: &Option<Vec<NodeSelectorRequirement>>, operators: &[&str], name: &str| {
        all.iter().flatten().enumerate().try_for_each(|(at, one)| {
            one_of(&one.operator, operators, &format!("{path}.{name}[{at}].operator"))
        })
    };
    all(&term.match_expressions, &OF_NODES, "matchExpressions")?;
    all(&term.match_fields, &OF_FIELDS, "matchFields")
}

fn pod_term(term: &PodAffinityTerm, path: &str) -> Checked {
    label(&term.topology_key, &format!("{path}.topologyKey"))?;
    selector(term.label_selector.as_ref(), &format!("{path}.labelSelector"))?;
    selector(term.namespace_selector.as_ref(), &format!("{path}.namespaceSelector"))
}

fn selector(selector: Option<&LabelSelector>, path: &str) -> Checked {
    let all = selector.and_then(|selector| selector.match_expressions.as_ref());
    all.into_iter().flatten().enumerate().try_for_each(|(at, one)| {
        let path = format!("{path}.matchExpressions[{at}]");
        label(&one.key, &format!("{path}.key"))?;
        one_of(&one.operator, &OF_LABELS, &format!("{path}.operator"))
    })
}

fn label(name: &str, path: &str) -> Checked {
    match names::mistake(name) {
        Some(problem) => wrong(path, format!("{name:?} is no label: {problem}")),
        None => Ok(()),
    }
}

fn one_of(text: &str, all: &[&str], path: &str) -> Checked {
    match all.contains(&text) {
        true => Ok(()),
        false => wrong(path, format!("{text:?} is none of {}", all.join(", "))),
    }
}

fn wrong(path: &str, problem: impl Into<String>) -> Checked {
    Err((path.to_owned(), problem.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of_pod(spec: Value) -> String {
        let mut all = json!({"containers": [{"name": "c"}]});
        let fields = all.as_object_mut().expect("an object");
        fields.extend(spec.as_object().expect("an object").clone());
        let read: Pod = serde_json::from_value(json!({"spec": all})).expect("a pod");
        pod(&read).err().map(|(field, problem)| format!("{field}: {problem}")).unwrap_or_default()
    }

    #[test]
    fn fields_of_pods_that_no_api_server_takes_are_named() {
        let term = |operator: &str| json!({"key": "a", "operator": operator, "values": ["1"]});
        let of_nodes = |terms: Value| {
            json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
        };
        let against = |term: Value| {
            json!({"affinity": {"podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution":
                    [{"weight": 1, "podAffinityTerm": term}]}}})
        };
        let spread = |skew: i32, when: &str| {
            json!({"topologySpreadConstraints":
                [{"maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": when}]})
        };
        let requests = json!([{"name": "c", "resources": {"requests": {"cpu": "-3"}}}]);
        for (spec, says) in [
            (json!({}), ""),
            (json!({"containers": []}), "spec.containers: is empty"),
            (
                json!({"containers": requests}),
                "spec.containers[0].resources.requests.cpu: \"-3\" is",
            ),
            (json!({"overhead": {"memory": "-1Gi"}}), "spec.overhead.memory: \"-1Gi\" is below"),
            (json!({"tolerations": [{"operator": "Exists"}]}), ""),
            (
                json!({"tolerations": [{"operator": "Weird"}]}),
                "spec.tolerations[0].operator: \"Weird\"",
            ),
            (
                json!({"tolerations": [{"effect": "Bogus"}]}),
                "spec.tolerations[0].effect: \"Bogus\"",
            ),
            (spread(1, "DoNotSchedule"), ""),
            (spread(0, "DoNotSchedule"), "spec.topologySpreadConstraints[0].maxSkew: 0 is not"),
            (spread(1, "Never"), "spec.topologySpreadConstraints[0].whenUnsatisfiable: \"Never\""),
            (of_nodes(json!([{"matchExpressions": [term("Gt")]}])), ""),
            (
                of_nodes(json!([{}, {"matchExpressions": [term("Foo")]}])),
                "spec.affinity.nodeAffinity.",
            ),
            (of_nodes(json!([{"matchFields": [term("Gt")]}])), "spec.affinity.nodeAffinity."),
            (against(json!({"topologyKey": "zone"})), ""),
            (against(json!({"topologyKey": ""})), "spec.affinity.podAntiAffinity."),
            (
                against(
                    json!({"topologyKey": "z", "labelSelector": {"matchExpressions": [term("Gt")]}}),
                ),
                "spec.affinity.podAntiAffinity.",
            ),
        ] {
            let said = of_pod(spec.clone());
            assert!(said.starts_with(says) && said.is_empty() == says.is_empty(), "{spec}: {said}");
        }
        let said = of_pod(of_nodes(json!([{"matchExpressions": [term("Foo")]}])));
        assert!(
            said.ends_with("\"Foo\" is none of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
            "{said}"
        );
    }

    #[test]
    fn fields_of_nodes_that_no_api_server_has_are_named() {
        let of_node = |value: Value| {
            let read: Node = serde_json::from_value(value).expect("a node");
            node(&read).err().map(|(field, _)| field).unwrap_or_default()
        };
        let taint = |effect: &str| json!({"spec": {"taints": [{"key": "a", "effect": effect}]}});
        assert_eq!(of_node(taint("NoExecute")), "");
        assert_eq!(of_node(taint("Bogus")), "spec.taints[0].effect");
        let negative = json!({"status": {"allocatable": {"cpu": "4", "pods": "-1"}}});
        assert_eq!(of_node(negative), "status.allocatable.pods");
    }
}
