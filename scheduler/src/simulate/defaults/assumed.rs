//! Assumed values: fields that count although manifests do not set them.
//!
//! Input: one field of one pod at a time. Output: for each field and value the number of pods that
//! got it, with the first names. Pure. Bounds: `ASSUMED_MAX` different values, `EXAMPLES_MAX` names
//! each.

use std::collections::BTreeMap;

use serde::Serialize;

/// Limit of different fields and values.
const ASSUMED_MAX: usize = 200;
/// Names of pods with each.
const EXAMPLES_MAX: usize = 5;

/// A value set on pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// The field, as `spec.containers[].resources.requests`.
    pub field: String,
    /// The assumed value, and the rule.
    pub value: String,
    /// Number of pods.
    pub pods: usize,
    /// The first of them, as namespace/name.
    pub examples: Vec<String>,
}

/// All assumptions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assumed(BTreeMap<(&'static str, String), (usize, Vec<String>)>);

impl Assumed {
    pub(crate) fn add(&mut self, field: &'static str, value: impl Into<String>, pod: &str) {
        let key = (field, value.into());
        if self.0.len() >= ASSUMED_MAX && !self.0.contains_key(&key) {
            return;
        }
        let (pods, examples) = self.0.entry(key).or_default();
        *pods += 1;
        if examples.len() < EXAMPLES_MAX {
            examples.push(pod.to_owned());
        }
    }

    /// Adds the assumptions about other pods.
    pub(crate) fn append(&mut self, other: Self) {
        for (key, (pods, examples)) in other.0 {
            let entry = self.0.entry(key).or_default();
            entry.0 += pods;
            entry.1.extend(examples);
            entry.1.truncate(EXAMPLES_MAX);
        }
    }

    /// Returns the assumptions in the order of the fields.
    pub(crate) fn list(self) -> Vec<Assumption> {
        let one = |((field, value), (pods, examples)): ((&str, String), _)| Assumption {
            field: field.to_owned(),
            value,
            pods,
            examples,
        };
        self.0.into_iter().map(one).collect()
    }
}
