//! Semantic equality of two objects, as Go finds it between decoded ones.
//!
//! Input: two objects as JSON. Output: whether Go's decoder makes semantically equal structs of
//! them: nil and empty lists and maps are equal, quantities are compared as amounts, times as
//! instants, pointers by whether they are set; fields that the types do not have do not count.
//! Defaults are not filled in: both sides must come from the API server, or be defaulted before.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/equality/semantic.go

use serde_json::Value;

use super::types::{GoStruct, JsonShape};
use super::{number, time};

/// The label with the hash, which a Deployment adds to the templates of its ReplicaSets.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Are two pod templates equal but for the label with the hash?
// k8s: pkg/controller/deployment/util/deployment_util.go EqualIgnoreHash
pub fn are_templates_equal_but_hash(one: &Value, other: &Value) -> bool {
    let metadata = GoStruct::named("meta/v1.ObjectMeta");
    let (left, right) = (one.get("metadata"), other.get("metadata"));
    let is_equal = metadata.fields.iter().all(|field| {
        let (a, b) = (field.of(left), field.of(right));
        if field.json == "labels" {
            are_labels_equal_but_hash(a, b)
        } else {
            is_equal(&field.shape, a, b)
        }
    });
    let spec = GoStruct::named("core/v1.PodSpec");
    is_equal && are_structs_equal(spec, one.get("spec"), other.get("spec"))
}

fn are_labels_equal_but_hash(one: Option<&Value>, other: Option<&Value>) -> bool {
    let labels = |of: Option<&Value>| {
        let entries = of.and_then(Value::as_object).into_iter().flatten();
        let kept = entries.filter(|(key, _)| *key != POD_TEMPLATE_HASH);
        let texts = kept.map(|(key, value)| (key.clone(), value.as_str().unwrap_or("").to_owned()));
        texts.collect::<Vec<_>>()
    };
    labels(one) == labels(other)
}

/// Are two objects of the struct `name`, such as `apps/v1.DeploymentStatus`, equal?
///
/// # Panics
/// If the table has no such struct.
pub fn are_objects_equal(name: &str, one: &Value, other: &Value) -> bool {
    are_structs_equal(GoStruct::named(name), Some(one), Some(other))
}

fn are_structs_equal(of: &GoStruct, one: Option<&Value>, other: Option<&Value>) -> bool {
    of.fields.iter().all(|field| is_equal(&field.shape, field.of(one), field.of(other)))
}

fn is_equal<'a>(shape: &JsonShape, one: Option<&'a Value>, other: Option<&'a Value>) -> bool {
    let one = one.filter(|value| !value.is_null());
    let other = other.filter(|value| !value.is_null());
    match shape {
        JsonShape::Pointer(inner) => match (one, other) {
            (Some(_), Some(_)) => is_equal(inner, one, other),
            (one, other) => one.is_none() == other.is_none(),
        },
        JsonShape::Struct(at) => are_structs_equal(GoStruct::at(*at), one, other),
        JsonShape::List(inner) => {
            let count = |of: Option<&Value>| of.and_then(Value::as_array).map_or(0, Vec::len);
            let item = |of: Option<&'a Value>, at: usize| of.and_then(|list| list.get(at));
            count(one) == count(other)
                && (0..count(one)).all(|at| is_equal(inner, item(one, at), item(other, at)))
        }
        JsonShape::Map(inner) => are_maps_equal(inner, one, other),
        JsonShape::Quantity => number::amount(one) == number::amount(other),
        JsonShape::Time | JsonShape::MicroTime => time::instant(one) == time::instant(other),
        JsonShape::Text | JsonShape::Bytes => {
            let text = |of: Option<&'a Value>| of.and_then(Value::as_str).unwrap_or_default();
            text(one) == text(other)
        }
        JsonShape::Bool => {
            let is_set = |of: Option<&Value>| of.and_then(Value::as_bool).unwrap_or_default();
            is_set(one) == is_set(other)
        }
        JsonShape::Int | JsonShape::Float | JsonShape::IntOrString => {
            let zero = Value::from(0);
            one.unwrap_or(&zero) == other.unwrap_or(&zero)
        }
        JsonShape::Duration | JsonShape::Fields | JsonShape::Raw => one == other,
    }
}

fn are_maps_equal(inner: &JsonShape, one: Option<&Value>, other: Option<&Value>) -> bool {
    let entries = |of: Option<&Value>| of.and_then(Value::as_object).map_or(0, |map| map.len());
    entries(one) == entries(other)
        && one.and_then(Value::as_object).is_none_or(|map| {
            map.iter().all(|(key, value)| {
                let same = other.and_then(|other| other.get(key));
                same.is_some() && is_equal(inner, Some(value), same)
            })
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(labels: &Value, container: &Value) -> Value {
        json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}})
    }

    #[test]
    fn other_spellings_of_the_same_template_are_equal() {
        let one = template(
            &json!({"app": "a"}),
            &json!({
                "name": "a", "args": [], "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
            }),
        );
        let other = template(
            &json!({"app": "a"}),
            &json!({
                "name": "a", "tty": false, "fieldOfNextYear": true,
                "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {}},
            }),
        );
        assert!(are_objects_equal("core/v1.PodTemplateSpec", &one, &other));
    }

    #[test]
    fn pointer_to_an_empty_struct_differs_from_nil() {
        let one = template(&json!({}), &json!({"name": "a", "securityContext": {}}));
        let other = template(&json!({}), &json!({"name": "a"}));
        assert!(!are_templates_equal_but_hash(&one, &other));
    }

    #[test]
    fn only_the_label_with_the_hash_does_not_count() {
        let container = json!({"name": "a"});
        let one = template(&json!({"app": "a", "pod-template-hash": "7f8fbb96d"}), &container);
        let other = template(&json!({"app": "a"}), &container);
        assert!(are_templates_equal_but_hash(&one, &other));
        assert!(!are_objects_equal("core/v1.PodTemplateSpec", &one, &other));
        let other = template(&json!({"app": "b"}), &container);
        assert!(!are_templates_equal_but_hash(&one, &other));
    }

    #[test]
    fn times_are_equal_as_instants() {
        let condition = |time: &str| json!({"type": "Ready", "lastProbeTime": time});
        let (one, other) =
            (condition("2026-01-01T02:00:00+02:00"), condition("2026-01-01T00:00:00Z"));
        assert!(are_objects_equal("core/v1.PodCondition", &one, &other));
        let other = condition("2026-01-01T00:00:01Z");
        assert!(!are_objects_equal("core/v1.PodCondition", &one, &other));
    }
}
