//! Selectors of nodes: does one hold for a node of this name with these labels? Pure.
// k8s: staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// True when a selector of nodes holds for a node of this name with these labels.
pub fn selects(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(name, labels, term))
}

/// An empty term matches nothing.
fn term_matches(name: &str, own: &BTreeMap<String, String>, term: &NodeSelectorTerm) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if labels.is_empty() && fields.is_empty() {
        return false;
    }
    let named = BTreeMap::from([("metadata.name".to_owned(), name.to_owned())]);
    labels.iter().all(|wanted| requirement_holds(own, wanted))
        && fields.iter().all(|wanted| requirement_holds(&named, wanted))
}

fn requirement_holds(labels: &BTreeMap<String, String>, wanted: &NodeSelectorRequirement) -> bool {
    let value = labels.get(&wanted.key);
    let values = wanted.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.contains(value));
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let pair = || Some((number(value)?, number(values.first())?));
    match wanted.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => pair().is_some_and(|(own, other)| own > other),
        "Lt" => pair().is_some_and(|(own, other)| own < other),
        _ => false,
    }
}
