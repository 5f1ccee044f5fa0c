//! Whether a label selector takes an object: pure.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/helpers.go LabelSelectorAsSelector

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// No selector takes nothing, an empty one everything; the error names an unknown operator.
pub fn matches(
    selector: Option<&LabelSelector>,
    labels: &BTreeMap<String, String>,
) -> Result<bool, String> {
    let Some(selector) = selector else { return Ok(false) };
    let mut all = selector.match_labels.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    for expression in selector.match_expressions.iter().flatten() {
        let value = labels.get(&expression.key);
        let one_of = |value: &String| expression.values.iter().flatten().any(|v| v == value);
        all &= match expression.operator.as_str() {
            "In" => value.is_some_and(one_of),
            "NotIn" => !value.is_some_and(one_of),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => return Err(format!("{other:?} is not a valid label selector operator")),
        };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_that_a_selector_says_has_to_hold() {
        let labels = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        let expression = |operator: &str, key: &str, values: &[&str]| {
            let expression = json!({"key": key, "operator": operator, "values": values});
            json!({"matchExpressions": [expression]})
        };
        let table = [
            (json!(null), false),
            (json!({}), true),
            (json!({"matchLabels": {"a": "1"}}), true),
            (json!({"matchLabels": {"a": "1", "b": "2"}}), false),
            (expression("In", "a", &["0", "1"]), true),
            (expression("In", "a", &["0"]), false),
            (expression("In", "b", &["0"]), false),
            (expression("NotIn", "a", &["1"]), false),
            (expression("NotIn", "b", &["1"]), true),
            (expression("Exists", "a", &[]), true),
            (expression("Exists", "b", &[]), false),
            (expression("DoesNotExist", "b", &[]), true),
        ];
        for (selector, want) in table {
            let parsed: Option<LabelSelector> =
                serde_json::from_value(selector.clone()).expect("a selector");
            assert_eq!(matches(parsed.as_ref(), &labels), Ok(want), "{selector}");
        }
    }
}
