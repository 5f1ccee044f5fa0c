//! Constraints among the devices of a claim.
//!
//! Input: devices, added and removed as the search tries them. Output: does the device meet the
//! constraint with those already added? Owner: one search. Bounds: the constraints of a claim, 32
//! of them.
// k8s: structured/internal/{incubating/{allocator_incubating,constraint},experimental/constraint}.go

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint};

use super::offer::Device;

/// A constraint, and the values of its devices so far.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    /// Names of the requests it applies to; empty for all.
    requests: Vec<String>,
    attribute: String,
    rule: ConstraintRule,
    devices: usize,
}

#[derive(Clone, Debug)]
enum ConstraintRule {
    /// All devices have the same value.
    Match(Option<DeviceAttribute>),
    /// The last device of each request has a different value.
    Distinct(BTreeMap<String, DeviceAttribute>),
    /// All devices have a value in common: one of these.
    Common(Option<Values>),
    /// The last device of each request shares no value with those of others.
    Disjoint(BTreeMap<String, Option<Values>>),
}

/// Values of an attribute: a single one, or those of a list.
#[derive(Clone, Debug)]
enum Values {
    Ints(BTreeSet<i64>),
    Bools(BTreeSet<bool>),
    Texts(BTreeSet<String>),
    /// As they are written.
    Versions(BTreeSet<String>),
}

impl Values {
    // k8s: structured/internal/experimental/allocator_experimental.go attributeAsSet
    fn of(attribute: &DeviceAttribute) -> Option<Self> {
        fn all<T: Clone + Ord>(list: Option<&Vec<T>>) -> Option<BTreeSet<T>> {
            list.filter(|all| !all.is_empty()).map(|all| all.iter().cloned().collect())
        }
        fn one<T: Clone + Ord>(value: Option<&T>) -> Option<BTreeSet<T>> {
            value.map(|value| BTreeSet::from([value.clone()]))
        }
        let of = attribute;
        let lists = all(of.ints.as_ref()).map(Self::Ints);
        let lists = lists.or_else(|| all(of.bools.as_ref()).map(Self::Bools));
        let lists = lists.or_else(|| all(of.strings.as_ref()).map(Self::Texts));
        let lists = lists.or_else(|| all(of.versions.as_ref()).map(Self::Versions));
        let found = lists.or_else(|| one(of.int.as_ref()).map(Self::Ints));
        let found = found.or_else(|| one(of.bool.as_ref()).map(Self::Bools));
        let found = found.or_else(|| one(of.string.as_ref()).map(Self::Texts));
        found.or_else(|| one(of.version.as_ref()).map(Self::Versions))
    }

    /// Returns the values that both attributes have, if any.
    fn common(&self, other: &Self) -> Option<Self> {
        fn both<T: Clone + Ord>(a: &BTreeSet<T>, b: &BTreeSet<T>) -> Option<BTreeSet<T>> {
            Some(a & b).filter(|both| !both.is_empty())
        }
        match (self, other) {
            (Self::Ints(a), Self::Ints(b)) => both(a, b).map(Self::Ints),
            (Self::Bools(a), Self::Bools(b)) => both(a, b).map(Self::Bools),
            (Self::Texts(a), Self::Texts(b)) => both(a, b).map(Self::Texts),
            (Self::Versions(a), Self::Versions(b)) => both(a, b).map(Self::Versions),
            _ => None,
        }
    }
}

impl Constraint {
    /// Reads a constraint; `lists` says if attributes may be lists. `None` for an unknown kind of
    /// constraint.
    pub(super) fn read(constraint: &DeviceConstraint, lists: bool) -> Option<Self> {
        let (all, distinct) = (&constraint.match_attribute, &constraint.distinct_attribute);
        let (attribute, rule) = match (all, distinct) {
            (Some(name), _) if lists => (name, ConstraintRule::Common(None)),
            (Some(name), _) => (name, ConstraintRule::Match(None)),
            (None, Some(name)) if lists => (name, ConstraintRule::Disjoint(BTreeMap::new())),
            (None, Some(name)) => (name, ConstraintRule::Distinct(BTreeMap::new())),
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

    /// Adds a device, if it meets the constraint with the others.
    pub(super) fn add(&mut self, request: &str, sub: Option<&str>, device: &Device) -> bool {
        if !self.is_about(request, sub) {
            return true;
        }
        let Some(attribute) = device.attribute(&self.attribute) else { return false };
        let is_first = self.devices == 0;
        let fits = match &mut self.rule {
            ConstraintRule::Match(all) if is_first => {
                *all = Some(attribute.clone());
                true
            }
            ConstraintRule::Match(all) => all.as_ref().is_some_and(|all| is_same(attribute, all)),
            // Upstream remembers one device of each request: the last of several.
            ConstraintRule::Distinct(others) => {
                let is_new =
                    is_known(attribute) && !others.values().any(|other| is_same(attribute, other));
                let fits = is_first || is_new;
                if fits {
                    others.insert(request.to_owned(), attribute.clone());
                }
                fits
            }
            ConstraintRule::Common(common) => {
                let own = Values::of(attribute);
                let both = match &*common {
                    _ if is_first => own,
                    Some(common) => own.and_then(|own| common.common(&own)),
                    None => None,
                };
                let fits = both.is_some();
                // Upstream restores no value when a device is removed, except for the first device.
                if fits {
                    *common = both;
                }
                fits
            }
            ConstraintRule::Disjoint(others) => {
                let own = Values::of(attribute);
                let shares = |own: &Values| {
                    others.values().flatten().any(|other| other.common(own).is_some())
                };
                let fits = is_first || own.as_ref().is_some_and(|own| !shares(own));
                if fits {
                    others.insert(request.to_owned(), own);
                }
                fits
            }
        };
        self.devices += usize::from(fits);
        fits
    }

    /// Removes a device.
    pub(super) fn remove(&mut self, request: &str, sub: Option<&str>) {
        if !self.is_about(request, sub) {
            return;
        }
        self.devices -= 1;
        match &mut self.rule {
            ConstraintRule::Distinct(others) => _ = others.remove(request),
            ConstraintRule::Disjoint(others) => _ = others.remove(request),
            ConstraintRule::Match(_) | ConstraintRule::Common(_) => {}
        }
    }
}

fn is_known(a: &DeviceAttribute) -> bool {
    a.string.is_some() || a.int.is_some() || a.bool.is_some() || a.version.is_some()
}

/// Do two attributes have the same value? Versions are compared as text.
fn is_same(a: &DeviceAttribute, b: &DeviceAttribute) -> bool {
    match a {
        DeviceAttribute { string: Some(text), .. } => b.string.as_ref() == Some(text),
        DeviceAttribute { int: Some(n), .. } => b.int == Some(*n),
        DeviceAttribute { bool: Some(yes), .. } => b.bool == Some(*yes),
        DeviceAttribute { version: Some(text), .. } => b.version.as_ref() == Some(text),
        _ => false,
    }
}
