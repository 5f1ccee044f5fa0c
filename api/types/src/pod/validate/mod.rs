//! Validation of a pod as the API server does it on create.
//!
//! Input: a pod with its defaults set. Output: every violation, with field path and in upstream's
//! words, so that users find the same text in search engines. Pure. Static pods go through all of
//! it; a pod from the API server was checked there. Not checked: affinity, selectors of
//! topology spread, Windows options and volume kinds that a node without an API server cannot mount.

mod container;
mod handler;
mod metadata;
pub mod names;
mod placement;
mod resources;
mod security;
mod spec;
#[cfg(test)]
mod tests;
mod volume;

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;

/// A violation: field and fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {detail}")]
pub struct FieldError {
    /// Path of the field: `spec.containers[0].image`.
    pub path: String,
    /// The fault, with the value: `Required value`.
    pub detail: String,
}

impl FieldError {
    fn new(path: impl Into<String>, kind: &str, detail: &str) -> Self {
        let separator = if detail.is_empty() { "" } else { ": " };
        Self { path: path.into(), detail: format!("{kind}{separator}{detail}") }
    }

    /// A value is missing.
    pub fn required(path: impl Into<String>, detail: &str) -> Self {
        Self::new(path, "Required value", detail)
    }

    /// A value is wrong.
    pub fn invalid(path: impl Into<String>, value: impl Shown, detail: &str) -> Self {
        Self::new(path, &format!("Invalid value: {}", value.shown()), detail)
    }

    /// A value is none of a set.
    pub fn unsupported(path: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<_> = supported.iter().map(|value| value.shown()).collect();
        let detail = format!("supported values: {}", supported.join(", "));
        Self::new(path, &format!("Unsupported value: {}", value.shown()), &detail)
    }

    /// A value stands twice where it must not.
    pub fn duplicate(path: impl Into<String>, value: impl Shown) -> Self {
        Self::new(path, &format!("Duplicate value: {}", value.shown()), "")
    }

    /// A reference leads nowhere.
    pub fn not_found(path: impl Into<String>, value: &str) -> Self {
        Self::new(path, &format!("Not found: {}", value.shown()), "")
    }

    /// A field may not be set here.
    pub fn forbidden(path: impl Into<String>, detail: &str) -> Self {
        Self::new(path, "Forbidden", detail)
    }

    /// A text or list is beyond its bound.
    pub fn too_long(path: impl Into<String>, bytes_max: usize) -> Self {
        Self::new(path, "Too long", &format!("may not be more than {bytes_max} bytes"))
    }
}

/// A value as messages show it: texts in quotes, numbers plain.
pub trait Shown {
    /// The text.
    fn shown(&self) -> String;
}

impl Shown for &str {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}
impl Shown for i32 {
    fn shown(&self) -> String {
        self.to_string()
    }
}
impl Shown for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}
impl Shown for bool {
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Path of a field.
#[derive(Clone, Debug)]
struct Path(String);

impl Path {
    fn root(name: &str) -> Self {
        Self(name.to_owned())
    }

    fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl From<Path> for String {
    fn from(path: Path) -> Self {
        path.0
    }
}
impl From<&Path> for String {
    fn from(path: &Path) -> Self {
        path.0.clone()
    }
}
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The violations found so far.
#[derive(Debug, Default)]
struct Errors(Vec<FieldError>);

impl Errors {
    fn push(&mut self, error: FieldError) {
        self.0.push(error);
    }

    /// Checks a text by a rule that returns its faults.
    fn check(&mut self, path: &Path, value: &str, rule: fn(&str) -> Vec<String>) {
        for detail in rule(value) {
            self.push(FieldError::invalid(path, value, &detail));
        }
    }

    /// A text that must be there and one of a set.
    fn one_of(&mut self, path: &Path, value: Option<&str>, supported: &[&str]) {
        match value {
            None | Some("") => self.push(FieldError::required(path, "")),
            Some(value) if supported.contains(&value) => {}
            Some(value) => self.push(FieldError::unsupported(path, value, supported)),
        }
    }

    /// A number that must not be negative.
    fn not_negative(&mut self, path: &Path, value: Option<i64>) {
        if let Some(value) = value.filter(|value| *value < 0) {
            let detail = "must be greater than or equal to 0";
            self.push(FieldError::invalid(path, value, detail));
        }
    }
}

/// Every violation of the pod.
// k8s: pkg/apis/core/validation/validation.go ValidatePodCreate
pub fn pod(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::check(&mut errors, &pod.metadata);
    spec::check(&mut errors, super::spec(pod));
    errors.0
}
