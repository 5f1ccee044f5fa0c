//! Constraints among the devices of a claim.
//!
//! Input: devices as they are tried and given up. Output: whether they go together. Owner: one
//! search. Bounds: the constraints of a claim, 32 of them.
// k8s: structured/internal/incubating/{allocator_incubating,constraint}.go

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint};

use super::offer::Device;

/// A constraint, and what its devices have so far.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    /// Names of the requests that it is about; all where there is none.
    requests: Vec<String>,
    attribute: String,
    rule: Rule,
    devices: usize,
}

#[derive(Clone, Debug)]
enum Rule {
    /// All have the same.
    Match(Option<DeviceAttribute>),
    /// The last device of each request has another one.
    Distinct(BTreeMap<String, DeviceAttribute>),
}

impl Constraint {
    /// Reads one; `None` for a kind that nobody knows here.
    pub(super) fn read(constraint: &DeviceConstraint) -> Option<Self> {
        let (attribute, rule) = match (&constraint.match_attribute, &constraint.distinct_attribute)
        {
            (Some(name), _) => (name, Rule::Match(None)),
            (None, Some(name)) => (name, Rule::Distinct(BTreeMap::new())),
            (None, None) => return None,
        };
        let requests = constraint.requests.clone().unwrap_or_default();
        Some(Self { requests, attribute: attribute.clone(), rule, devices: 0 })
    }

    fn is_about(&self, request: &str, sub: Option<&str>) -> bool {
        let full = sub.map(|sub| format!("{request}/{sub}"));
        let is_it = |name: &String| name == request || Some(name) == full.as_ref();
        self.requests.is_empty() || self.requests.iter().any(is_it)
    }

    /// Takes a device, if it goes with the others.
    pub(super) fn add(&mut self, request: &str, sub: Option<&str>, device: &Device) -> bool {
        if !self.is_about(request, sub) {
            return true;
        }
        let Some(attribute) = device.attribute(&self.attribute) else { return false };
        let is_first = self.devices == 0;
        let fits = match &mut self.rule {
            Rule::Match(all) if is_first => {
                *all = Some(attribute.clone());
                true
            }
            Rule::Match(all) => all.as_ref().is_some_and(|all| is_same(attribute, all)),
            // Upstream remembers one device of each request: of several, the one before.
            Rule::Distinct(others) => {
                let is_new =
                    is_known(attribute) && !others.values().any(|other| is_same(attribute, other));
                let fits = is_first || is_new;
                if fits {
                    others.insert(request.to_owned(), attribute.clone());
                }
                fits
            }
        };
        self.devices += usize::from(fits);
        fits
    }

    /// Gives up a device that it took.
    pub(super) fn remove(&mut self, request: &str, sub: Option<&str>) {
        if !self.is_about(request, sub) {
            return;
        }
        self.devices -= 1;
        if let Rule::Distinct(others) = &mut self.rule {
            others.remove(request);
        }
    }
}

fn is_known(a: &DeviceAttribute) -> bool {
    a.string.is_some() || a.int.is_some() || a.bool.is_some() || a.version.is_some()
}

/// Whether two have the same value; versions are compared as they are written.
fn is_same(a: &DeviceAttribute, b: &DeviceAttribute) -> bool {
    match a {
        DeviceAttribute { string: Some(text), .. } => b.string.as_ref() == Some(text),
        DeviceAttribute { int: Some(n), .. } => b.int == Some(*n),
        DeviceAttribute { bool: Some(yes), .. } => b.bool == Some(*yes),
        DeviceAttribute { version: Some(text), .. } => b.version.as_ref() == Some(text),
        _ => false,
    }
}
