//! Which nodes a pod may run on by its node name, node selector, required node affinity and
//! tolerations.
//!
//! Input: what a pod template says about nodes, and a node. Output: whether they fit. The scheduler
//! has the same rules in a form that is compiled against its snapshot; a controller asks about one
//! node at a time, by the rules of `pintle_api_types::node_match`, which the agent has as well.

use pintle_api_types::node_match::{
    RequirementFields, TaintFields, TolerationFields, term_matches,
};
use pintle_api_types::symbol::Symbol;
use pintle_api_types::symbol_map::SymbolMap;
use serde::{Deserialize, Deserializer};

use crate::kinds::{Node, Taint};
use crate::meta::or_default;

/// A pod's constraints on nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeFit {
    /// The node that it is bound to; empty for any.
    pub node_name: Symbol,
    /// Labels that the node must have.
    pub node_selector: SymbolMap,
    /// One of these terms must match; `None` when there is no required node affinity.
    #[serde(rename = "affinity", deserialize_with = "required_terms")]
    pub terms: Option<Box<[NodeTerm]>>,
    /// The taints that it tolerates.
    #[serde(deserialize_with = "or_default")]
    pub tolerations: Box<[Toleration]>,
    /// It uses the network of the node.
    #[serde(deserialize_with = "or_default")]
    pub host_network: bool,
}

/// A term of a required node affinity: all requirements must hold; a term without any matches no
/// node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeTerm {
    /// Requirements on labels.
    #[serde(deserialize_with = "or_default")]
    pub match_expressions: Box<[NodeRequirement]>,
    /// Requirements on fields; only `metadata.name` is known.
    #[serde(deserialize_with = "or_default")]
    pub match_fields: Box<[NodeRequirement]>,
}

/// A requirement on a label or field of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeRequirement {
    /// The label or field.
    pub key: Symbol,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    pub operator: Symbol,
    /// The values.
    #[serde(deserialize_with = "or_default")]
    pub values: Box<[Symbol]>,
}

/// A taint that is tolerated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// The taint's key; empty for every key.
    pub key: Symbol,
    /// `Equal`, which is also what nothing means, or `Exists`.
    pub operator: Symbol,
    /// The taint's value.
    pub value: Symbol,
    /// The taint's effect; empty for every effect.
    pub effect: Symbol,
}

impl Toleration {
    /// Tolerates every value of a taint.
    pub fn exists(key: &str, effect: &str) -> Self {
        let (key, effect) = (Symbol::of(key), Symbol::of(effect));
        Self { key, operator: Symbol::of("Exists"), value: Symbol::default(), effect }
    }

    /// It tolerates a taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let Self { key, operator, value, effect } = self;
        let toleration = TolerationFields { key, operator, value, effect };
        let Taint { key, value, effect } = taint;
        toleration.tolerates(TaintFields { key, value, effect })
    }
}

impl NodeFit {
    /// The node has the labels of the selector, and a term of the affinity matches.
    // k8s: nodeaffinity.go RequiredNodeAffinity.Match
    pub fn selects(&self, node: &Node) -> bool {
        let labels = &node.metadata.labels;
        let has_labels =
            self.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
        let is_in_a_term =
            self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(node)));
        has_labels && is_in_a_term
    }

    /// The first taint of one of these effects that is not tolerated.
    pub fn untolerated<'a>(&self, node: &'a Node, effects: &[&str]) -> Option<&'a Taint> {
        let mut taints = node.spec.taints.iter().filter(|taint| effects.contains(&&*taint.effect));
        taints.find(|taint| !self.tolerations.iter().any(|one| one.tolerates(taint)))
    }
}

impl NodeTerm {
    fn matches(&self, node: &Node) -> bool {
        term_matches(
            self.match_expressions.iter().map(NodeRequirement::fields),
            self.match_fields.iter().map(NodeRequirement::fields),
            &node.metadata.name,
            |key| node.metadata.labels.get(key).map(Symbol::as_str),
        )
    }
}

impl NodeRequirement {
    fn fields(&self) -> RequirementFields<'_, Symbol> {
        RequirementFields { key: &self.key, operator: &self.operator, values: &self.values }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Affinity {
    #[serde(deserialize_with = "or_default")]
    node_affinity: NodeAffinity,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<Terms>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terms {
    #[serde(deserialize_with = "or_default")]
    node_selector_terms: Box<[NodeTerm]>,
}

/// Decodes an affinity; keeps the terms of the required node affinity.
fn required_terms<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<[NodeTerm]>>, D::Error> {
    let affinity: Affinity = or_default(from)?;
    let required = affinity.node_affinity.required_during_scheduling_ignored_during_execution;
    Ok(required.map(|required| required.node_selector_terms))
}

/// Decodes an affinity; keeps the name of the one node that it requires.
///
/// # Errors
/// When it is no affinity.
// k8s: pkg/controller/daemon/util/daemonset_util.go GetTargetNodeName
pub fn target_node<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Symbol>, D::Error> {
    let terms = required_terms(from)?.unwrap_or_default();
    let mut fields = terms.iter().flat_map(|term| &term.match_fields);
    let by_name = fields.find(|one| &*one.key == "metadata.name" && &*one.operator == "In");
    Ok(by_name.and_then(|one| match &*one.values {
        [node] => Some(node.clone()),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node() -> Node {
        let taints = json!([{"key": "a", "value": "1", "effect": "NoSchedule"},
            {"key": "b", "effect": "NoExecute"}]);
        let node = json!({"metadata": {"name": "n1", "labels": {"zone": "z", "size": "5"}},
            "spec": {"taints": taints}});
        serde_json::from_value(node).expect("a node")
    }

    fn fit(spec: Value) -> NodeFit {
        serde_json::from_value(spec).expect("a pod's spec")
    }

    fn required(terms: &Value) -> NodeFit {
        fit(json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
    }

    #[test]
    fn node_is_selected_by_labels_and_by_one_of_the_terms() {
        let expression = |key: &str, operator: &str, values: &[&str]| {
            required(&json!([{"matchExpressions":
                [{"key": key, "operator": operator, "values": values}]}]))
        };
        let name = |operator: &str, values: &[&str]| {
            required(&json!([{"matchFields":
                [{"key": "metadata.name", "operator": operator, "values": values}]}]))
        };
        for (fit, is_selected) in [
            (fit(json!({})), true),
            (fit(json!({"nodeSelector": {"zone": "z"}})), true),
            (fit(json!({"nodeSelector": {"zone": "y"}})), false),
            (expression("zone", "In", &["y", "z"]), true),
            (expression("zone", "NotIn", &["y"]), true),
            (expression("none", "NotIn", &["y"]), true),
            (expression("zone", "Exists", &[]), true),
            (expression("zone", "DoesNotExist", &[]), false),
            (expression("size", "Gt", &["4"]), true),
            (expression("size", "Lt", &["4"]), false),
            (expression("zone", "Gt", &["4"]), false),
            (expression("zone", "Unknown", &["z"]), false),
            (name("In", &["n1"]), true),
            (name("In", &["n2"]), false),
            (name("NotIn", &["n2"]), true),
            (name("In", &["n1", "n2"]), false),
            (required(&json!([{}])), false),
            (required(&json!([])), false),
            (
                required(&json!([{}, {"matchFields":
                [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}])),
                true,
            ),
        ] {
            assert_eq!(fit.selects(&node()), is_selected, "{fit:?}");
        }
    }

    #[test]
    fn taint_is_tolerated_by_key_value_and_effect() {
        for (toleration, untolerated) in [
            (json!({}), Some("a")),
            (json!({"operator": "Exists"}), None),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), Some("b")),
            (json!({"key": "a", "value": "1"}), Some("b")),
            (json!({"key": "a", "value": "2"}), Some("a")),
            (json!({"key": "a", "operator": "Gt", "value": "0"}), Some("a")),
        ] {
            let fit = fit(json!({"tolerations": [toleration]}));
            let node = node();
            let found = fit.untolerated(&node, &["NoSchedule", "NoExecute"]);
            assert_eq!(found.map(|taint| &*taint.key), untolerated, "{toleration}");
        }
        let node = node();
        let found = fit(json!({})).untolerated(&node, &["NoExecute"]);
        assert_eq!(found.map(|taint| &*taint.key), Some("b"));
    }

    #[test]
    fn target_node_is_the_only_value_of_the_first_name_requirement() {
        #[derive(Deserialize)]
        struct Spec {
            #[serde(deserialize_with = "target_node", default)]
            affinity: Option<Symbol>,
        }
        let spec = |values: Value| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": values});
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [field]}]}}}})
        };
        for (spec, target) in [
            (json!({}), None),
            (json!({"affinity": null}), None),
            (json!({"affinity": {}}), None),
            (spec(json!(["a"])), Some("a")),
            (spec(json!(["a", "b"])), None),
        ] {
            let decoded: Spec = serde_json::from_value(spec).expect("a spec");
            assert_eq!(decoded.affinity.as_deref(), target);
        }
    }
}
