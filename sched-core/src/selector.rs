//! Label selectors over interned labels.
//!
//! Input: a `LabelSelector` or a map of labels. Output: a canonical selector that can be compared,
//! hashed and matched against an interned label set.
//! Owner: pure values. Why canonical: equal selectors share one counter, whatever their spelling.
// k8s: apimachinery/pkg/apis/meta/v1/helpers.go LabelSelectorAsSelector

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::intern::{Interner, Str};

/// What a requirement asks of the value of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LabelOp {
    /// Present and one of the values.
    In,
    /// Absent or none of the values.
    NotIn,
    /// Present.
    Exists,
    /// Absent.
    NotExists,
}

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// The label key.
    pub key: Str,
    /// The operator.
    pub op: LabelOp,
    /// The values, sorted, without repetition.
    pub values: Box<[Str]>,
}

impl Requirement {
    fn new(key: Str, op: LabelOp, mut values: Vec<Str>) -> Self {
        values.sort_unstable();
        values.dedup();
        Self { key, op, values: values.into() }
    }

    fn matches(&self, labels: &[(Str, Str)]) -> bool {
        let value = labels.binary_search_by_key(&self.key, |l| l.0).ok().map(|at| labels[at].1);
        match (self.op, value) {
            (LabelOp::In, Some(v)) => self.values.contains(&v),
            (LabelOp::NotIn, Some(v)) => !self.values.contains(&v),
            (LabelOp::Exists, value) => value.is_some(),
            (LabelOp::NotExists, value) => value.is_none(),
            (LabelOp::In, None) => false,
            (LabelOp::NotIn, None) => true,
        }
    }
}

/// A selector: nothing, or all that satisfies every requirement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// Selects nothing: what an absent selector means.
    Nothing,
    /// Selects what satisfies all of these; everything when there are none.
    All(Box<[Requirement]>),
}

/// An operator that the API does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a valid label selector operator")]
pub struct SelectorError(pub String);

impl Selector {
    /// From the API's form; absent selects nothing, empty selects everything.
    ///
    /// # Errors
    /// When an operator is unknown.
    pub fn from_api(
        selector: Option<&LabelSelector>,
        interner: &mut Interner,
    ) -> Result<Self, SelectorError> {
        let Some(selector) = selector else { return Ok(Self::Nothing) };
        let mut requirements = equalities(selector.match_labels.as_ref(), interner);
        for expression in selector.match_expressions.iter().flatten() {
            let op = match expression.operator.as_str() {
                "In" => LabelOp::In,
                "NotIn" => LabelOp::NotIn,
                "Exists" => LabelOp::Exists,
                "DoesNotExist" => LabelOp::NotExists,
                other => return Err(SelectorError(other.to_owned())),
            };
            let values = expression.values.iter().flatten().map(|v| interner.intern(v)).collect();
            requirements.push(Requirement::new(interner.intern(&expression.key), op, values));
        }
        Ok(Self::canonical(requirements))
    }

    /// Selects what carries all these labels.
    pub fn from_labels(labels: Option<&BTreeMap<String, String>>, interner: &mut Interner) -> Self {
        Self::canonical(equalities(labels, interner))
    }

    fn canonical(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_unstable();
        requirements.dedup();
        Self::All(requirements.into())
    }

    /// Both this selector's requirements and those of `other`. Requirements of `Nothing` are none:
    /// upstream merges them so.
    // k8s: podtopologyspread/common.go mergeLabelSetWithSelector
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let list = |s: &Self| match s {
            Self::Nothing => Vec::new(),
            Self::All(requirements) => requirements.to_vec(),
        };
        let mut all = list(self);
        all.extend(list(other));
        Self::canonical(all)
    }

    /// Whether it selects everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }

    /// Whether it selects these labels, sorted by key.
    #[must_use]
    pub fn matches(&self, labels: &[(Str, Str)]) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(requirements) => requirements.iter().all(|r| r.matches(labels)),
        }
    }

    /// A label that everything selected carries, when the selector names one value of a key:
    /// what matchers are indexed by.
    #[must_use]
    pub fn anchor(&self) -> Option<(Str, Str)> {
        let Self::All(requirements) = self else { return None };
        requirements
            .iter()
            .find(|r| r.op == LabelOp::In && r.values.len() == 1)
            .map(|r| (r.key, r.values[0]))
    }
}

fn equalities(
    labels: Option<&BTreeMap<String, String>>,
    interner: &mut Interner,
) -> Vec<Requirement> {
    let pairs = labels.into_iter().flatten();
    pairs
        .map(|(k, v)| {
            let value = interner.intern(v);
            Requirement::new(interner.intern(k), LabelOp::In, vec![value])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: &str, interner: &mut Interner) -> Selector {
        let api: Option<LabelSelector> = serde_json::from_str(json).expect("selector");
        Selector::from_api(api.as_ref(), interner).expect("operators")
    }

    #[test]
    fn absent_selects_nothing_and_empty_selects_everything() {
        let mut interner = Interner::default();
        assert!(!selector("null", &mut interner).matches(&[]));
        assert!(selector("{}", &mut interner).matches(&[]));
    }

    #[test]
    fn operators_treat_an_absent_key_as_upstream_does() {
        let mut i = Interner::default();
        let labels = vec![(i.intern("app"), i.intern("web"))];
        for (json, with, without) in [
            (r#"{"key":"app","operator":"In","values":["web","api"]}"#, true, false),
            (r#"{"key":"app","operator":"NotIn","values":["web"]}"#, false, true),
            (r#"{"key":"app","operator":"Exists"}"#, true, false),
            (r#"{"key":"app","operator":"DoesNotExist"}"#, false, true),
        ] {
            let s = selector(&format!(r#"{{"matchExpressions":[{json}]}}"#), &mut i);
            assert_eq!((s.matches(&labels), s.matches(&[])), (with, without), "{json}");
        }
    }

    #[test]
    fn spelling_does_not_make_selectors_differ() {
        let mut i = Interner::default();
        let a = selector(r#"{"matchLabels":{"a":"1"}}"#, &mut i);
        let b = selector(
            r#"{"matchExpressions":[{"key":"a","operator":"In","values":["1","1"]}]}"#,
            &mut i,
        );
        assert_eq!(a, b);
        assert_eq!(Selector::Nothing.merged(&a), a);
        assert_eq!(a.anchor(), Some((i.intern("a"), i.intern("1"))));
    }
}
