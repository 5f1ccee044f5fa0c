//! Which nodes a pod may run on: requirements of a node selector, and taints that are tolerated.
//!
//! Input: fields of the API as they are written, borrowed from whatever type has decoded them.
//! Output: whether they hold for one node. Owner: pure functions. Bounds: one term, one taint.
//! Agent and controllers ask about one node at a time; the scheduler filters all of them with the
//! same rules compiled against its columns (`pintle-sched-core`).
// k8s: staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go

use std::borrow::Borrow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};

/// A requirement on a label or field of a node.
#[derive(Clone, Copy, Debug)]
pub struct RequirementFields<'a, S> {
    /// The label or field.
    pub key: &'a str,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    pub operator: &'a str,
    /// The values.
    pub values: &'a [S],
}

impl<'a> From<&'a NodeSelectorRequirement> for RequirementFields<'a, String> {
    fn from(one: &'a NodeSelectorRequirement) -> Self {
        let values = one.values.as_deref().unwrap_or_default();
        Self { key: &one.key, operator: &one.operator, values }
    }
}

impl<S: Borrow<str>> RequirementFields<'_, S> {
    // k8s: staging/src/k8s.io/apimachinery/pkg/labels/selector.go Requirement.Matches
    fn holds(&self, value: Option<&str>) -> bool {
        let is_named = |value: &str| self.values.iter().any(|one| one.borrow() == value);
        match self.operator {
            "In" => !self.values.is_empty() && value.is_some_and(is_named),
            "NotIn" => !self.values.is_empty() && !value.is_some_and(is_named),
            "Exists" => self.values.is_empty() && value.is_some(),
            "DoesNotExist" => self.values.is_empty() && value.is_none(),
            "Gt" => self.compare(value).is_some_and(|(value, limit)| value > limit),
            "Lt" => self.compare(value).is_some_and(|(value, limit)| value < limit),
            _ => false,
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        let [limit] = self.values else { return None };
        Some((value?.parse().ok()?, limit.borrow().parse().ok()?))
    }
}

/// Returns true if a term with these requirements on labels and fields matches a node of this name
/// with these labels. A term without any requirement matches no node; `metadata.name` is the only
/// field that nodes have.
pub fn term_matches<'a, 'n, S: Borrow<str> + 'a>(
    labels: impl IntoIterator<Item = RequirementFields<'a, S>>,
    fields: impl IntoIterator<Item = RequirementFields<'a, S>>,
    name: &str,
    label: impl Fn(&str) -> Option<&'n str>,
) -> bool {
    let (mut labels, mut fields) = (labels.into_iter().peekable(), fields.into_iter().peekable());
    let is_empty = labels.peek().is_none() && fields.peek().is_none();
    let field = |key: &str| if key == "metadata.name" { name } else { "" };
    !is_empty
        && labels.all(|one| one.holds(label(one.key)))
        // A field takes one value and these two operators.
        && fields.all(|one| {
            one.values.len() == 1
                && matches!(one.operator, "In" | "NotIn")
                && one.holds(Some(field(one.key)))
        })
}

/// Returns true if a term of the selector matches a node of this name with these labels.
pub fn selects(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let label = |key: &str| labels.get(key).map(String::as_str);
    selector.node_selector_terms.iter().any(|term: &NodeSelectorTerm| {
        let (labels, fields) = (term.match_expressions.iter(), term.match_fields.iter());
        let (labels, fields) = (labels.flatten(), fields.flatten());
        term_matches(labels.map(Into::into), fields.map(Into::into), name, label)
    })
}

/// A taint of a node or a device.
#[derive(Clone, Copy, Debug)]
pub struct TaintFields<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its value; empty when it has none.
    pub value: &'a str,
    /// Its effect.
    pub effect: &'a str,
}

impl<'a> From<&'a Taint> for TaintFields<'a> {
    fn from(taint: &'a Taint) -> Self {
        Self { key: &taint.key, value: text(&taint.value), effect: &taint.effect }
    }
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

/// A toleration of a pod or of a request for devices.
#[derive(Clone, Copy, Debug)]
pub struct TolerationFields<'a> {
    /// The taint's key; empty for every key.
    pub key: &'a str,
    /// `Equal`, which is also what nothing means, or `Exists`.
    pub operator: &'a str,
    /// The taint's value.
    pub value: &'a str,
    /// The taint's effect; empty for every effect.
    pub effect: &'a str,
}

impl<'a> From<&'a Toleration> for TolerationFields<'a> {
    fn from(toleration: &'a Toleration) -> Self {
        Self {
            key: text(&toleration.key),
            operator: text(&toleration.operator),
            value: text(&toleration.value),
            effect: text(&toleration.effect),
        }
    }
}

impl TolerationFields<'_> {
    /// Returns true if the taint is tolerated. Operators that compare numbers are off.
    // k8s: staging/src/k8s.io/api/core/v1/toleration.go ToleratesTaint
    pub fn tolerates(&self, taint: TaintFields<'_>) -> bool {
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && match self.operator {
                "" | "Equal" => self.value == taint.value,
                "Exists" => true,
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<'a>(
        key: &'a str,
        operator: &'a str,
        values: &'a [&'a str],
    ) -> RequirementFields<'a, &'a str> {
        RequirementFields { key, operator, values }
    }

    fn matches(
        labels: &[RequirementFields<'_, &str>],
        fields: &[RequirementFields<'_, &str>],
    ) -> bool {
        let label = |key: &str| match key {
            "zone" => Some("z"),
            "size" => Some("5"),
            _ => None,
        };
        term_matches(labels.iter().copied(), fields.iter().copied(), "n1", label)
    }

    #[test]
    fn requirement_of_a_label_holds_by_operator_and_values() {
        for (requirement, holds) in [
            (one("zone", "In", &["y", "z"]), true),
            (one("zone", "In", &[]), false),
            (one("none", "In", &["z"]), false),
            (one("zone", "NotIn", &["y"]), true),
            (one("none", "NotIn", &["y"]), true),
            (one("none", "NotIn", &[]), false),
            (one("zone", "Exists", &[]), true),
            (one("zone", "Exists", &["z"]), false),
            (one("zone", "DoesNotExist", &[]), false),
            (one("none", "DoesNotExist", &[]), true),
            (one("size", "Gt", &["4"]), true),
            (one("size", "Gt", &["5"]), false),
            (one("size", "Lt", &["6"]), true),
            (one("size", "Lt", &["6", "7"]), false),
            (one("zone", "Gt", &["4"]), false),
            (one("zone", "Unknown", &["z"]), false),
        ] {
            assert_eq!(matches(&[requirement], &[]), holds, "{requirement:?}");
        }
    }

    #[test]
    fn term_matches_when_all_its_requirements_hold() {
        let (zone, name) = (one("zone", "Exists", &[]), one("metadata.name", "In", &["n1"]));
        assert!(matches(&[zone], &[name]));
        assert!(!matches(&[], &[]), "an empty term matches no node");
        assert!(!matches(&[one("none", "Exists", &[])], &[name]));
        assert!(!matches(&[zone], &[one("metadata.name", "NotIn", &["n1"])]));
        assert!(!matches(&[], &[one("metadata.name", "In", &["n1", "n2"])]));
        assert!(!matches(&[], &[one("metadata.name", "Exists", &[])]));
        assert!(matches(&[], &[one("spec.other", "NotIn", &["n1"])]));
    }

    #[test]
    fn taint_is_tolerated_by_key_operator_value_and_effect() {
        let taint = TaintFields { key: "a", value: "1", effect: "NoSchedule" };
        for (key, operator, value, effect, is_tolerated) in [
            ("a", "", "1", "NoSchedule", true),
            ("a", "Equal", "1", "", true),
            ("a", "Equal", "2", "", false),
            ("", "Exists", "", "", true),
            ("b", "Exists", "", "", false),
            ("a", "Exists", "", "NoExecute", false),
            ("a", "Gt", "0", "", false),
        ] {
            let toleration = TolerationFields { key, operator, value, effect };
            assert_eq!(toleration.tolerates(taint), is_tolerated, "{toleration:?}");
        }
    }
}
