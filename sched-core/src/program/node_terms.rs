//! Node selector terms: parsing with upstream's checks and error messages.
//!
//! Input: a term of required or preferred node affinity. Output: requirements, or error texts.
//! Owner: pure but for the interner. Bounds: the term's own size.
//! Why the texts: a preferred term that cannot be parsed ends upstream's cycle in this error.
//! Why not the rules of `pintle_api_types::node_match`, which agent and controllers have: those
//! compare texts of one node, these compare interned numbers of all nodes.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use super::{NodeOp, NodeRequirement, NodeTerm};
use crate::intern::Interner;

pub(crate) fn is_empty_term(term: &NodeSelectorTerm) -> bool {
    let empty =
        |list: &Option<Vec<NodeSelectorRequirement>>| list.as_ref().is_none_or(Vec::is_empty);
    empty(&term.match_expressions) && empty(&term.match_fields)
}

// k8s: component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go newNodeSelectorTerm
pub(crate) fn parse_term(
    term: &NodeSelectorTerm,
    path: &str,
    interner: &mut Interner,
) -> Result<NodeTerm, Vec<String>> {
    let (mut requirements, mut errors) = (Vec::new(), Vec::new());
    for (at, expression) in term.match_expressions.iter().flatten().enumerate() {
        match label_op(expression, &format!("{path}.matchExpressions[{at}]"), interner) {
            Ok(op) => {
                let key = Some(interner.intern(&expression.key));
                requirements.push(NodeRequirement { key, op });
            }
            Err(error) => errors.extend(error),
        }
    }
    for (at, field) in term.match_fields.iter().flatten().enumerate() {
        match field_op(field, &format!("{path}.matchFields[{at}]"), interner) {
            Ok(op) => requirements.push(NodeRequirement { key: None, op }),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if errors.is_empty() { Ok(NodeTerm(requirements.into())) } else { Err(errors) }
}

const BAD_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
    'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// Longest label value.
const VALUE_BYTES_MAX: usize = 63;

fn label_op(
    r: &NodeSelectorRequirement,
    path: &str,
    interner: &mut Interner,
) -> Result<NodeOp, Vec<String>> {
    let values = r.values.as_deref().unwrap_or_default();
    let number = |values: &[String]| match values {
        [one] => one.parse::<i64>().map_err(|_| {
            vec![format!(
                "{path}.values[0]: Invalid value: {one:?}: for 'Gt', 'Lt' operators, the value \
                 must be an integer"
            )]
        }),
        _ => Err(vec![format!(
            "{path}.values: Invalid value: {}: for 'Gt', 'Lt' operators, exactly one value is \
             required",
            serde_json::to_string(values).unwrap_or_default()
        )]),
    };
    let interned = |interner: &mut Interner| values.iter().map(|v| interner.intern(v)).collect();
    let op = match r.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            return Err(vec![format!(
                "{path}.values: Invalid value: []: for 'in', 'notin' operators, values set can't \
                 be empty"
            )]);
        }
        "In" => NodeOp::In(interned(interner)),
        "NotIn" => NodeOp::NotIn(interned(interner)),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            return Err(vec![format!("{path}.values: values set must be empty")]);
        }
        "Exists" => NodeOp::Exists,
        "DoesNotExist" => NodeOp::NotExists,
        "Gt" => NodeOp::Above(number(values)?),
        "Lt" => NodeOp::Below(number(values)?),
        other => {
            return Err(vec![format!(
                "{path}.operator: Unsupported value: {other:?}: not a valid node selector operator"
            )]);
        }
    };
    let bad = values.iter().enumerate().filter(|(_, v)| !is_label_value(v));
    let errors: Vec<String> = bad
        .map(|(at, v)| format!("{path}.values[{at}][{}]: Invalid value: {v:?}: {BAD_VALUE}", r.key))
        .collect();
    if errors.is_empty() { Ok(op) } else { Err(errors) }
}

/// Returns true if a text can be the value of a label.
fn is_label_value(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            bytes.len() <= VALUE_BYTES_MAX
                && first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && bytes.iter().all(|c| inner(*c))
        }
        _ => true,
    }
}

/// An invalid requirement of a field.
#[derive(Debug, thiserror::Error)]
enum FieldTermError {
    #[error("{0}.values: Invalid value: must have one element")]
    Values(String),
    #[error("{path}.operator: Unsupported value: {operator:?}")]
    Operator { path: String, operator: String },
}

// k8s: nodeaffinity.go nodeSelectorRequirementsAsFieldSelector
fn field_op(
    r: &NodeSelectorRequirement,
    path: &str,
    interner: &mut Interner,
) -> Result<NodeOp, FieldTermError> {
    let values = r.values.as_deref().unwrap_or_default();
    let [value] = values else {
        return Err(FieldTermError::Values(path.to_owned()));
    };
    // A field other than the name reads as empty text.
    let named = r.key == "metadata.name";
    let empty = value.is_empty();
    match (r.operator.as_str(), named) {
        ("In", true) => Ok(NodeOp::In([interner.intern(value)].into())),
        ("NotIn", true) => Ok(NodeOp::NotIn([interner.intern(value)].into())),
        ("In", false) => Ok(if empty { NodeOp::Exists } else { NodeOp::NotExists }),
        ("NotIn", false) => Ok(if empty { NodeOp::NotExists } else { NodeOp::Exists }),
        (other, _) => {
            let (path, operator) = (path.to_owned(), other.to_owned());
            Err(FieldTermError::Operator { path, operator })
        }
    }
}
