//! Label selectors in a canonical form, with keys and values ("words") of any type.
//!
//! Input: a `LabelSelector` or a map of labels. Output: [`Selector`], which can be compared, hashed
//! and matched with labels. Its words are strings or interned symbols: with symbols a caller that
//! matches thousands of pods compares numbers. Pure values. The form is canonical, because equal
//! selectors share their cached results, however they are written.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/helpers.go LabelSelectorAsSelector

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::symbol::Symbol;
use crate::symbol_map::SymbolMap;

/// Converts strings into the keys and values of a selector; equal strings give equal words.
pub trait SelectorWords {
    /// A word.
    type Word: Ord + Clone;

    /// The word for a text.
    fn word(&mut self, text: &str) -> Self::Word;
}

/// Texts are their own words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Texts;

impl SelectorWords for Texts {
    type Word = String;

    fn word(&mut self, text: &str) -> String {
        text.to_owned()
    }
}

/// The condition of a requirement on the value of its key.
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
pub struct Requirement<W> {
    /// The label key.
    pub key: W,
    /// The operator.
    pub op: LabelOp,
    /// The values, sorted, without repetition.
    pub values: Box<[W]>,
}

impl<W: Ord + Clone> Requirement<W> {
    fn new(key: W, op: LabelOp, mut values: Vec<W>) -> Self {
        values.sort_unstable();
        values.dedup();
        Self { key, op, values: values.into() }
    }

    /// True if the value of the key satisfies the requirement. `value` is `None` if no label has
    /// the key.
    fn holds(&self, value: Option<&W>) -> bool {
        match (self.op, value) {
            (LabelOp::In, value) => value.is_some_and(|v| self.values.binary_search(v).is_ok()),
            (LabelOp::NotIn, value) => value.is_none_or(|v| self.values.binary_search(v).is_err()),
            (LabelOp::Exists, value) => value.is_some(),
            (LabelOp::NotExists, value) => value.is_none(),
        }
    }
}

/// A selector: nothing, or all that satisfies every requirement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector<W> {
    /// Selects nothing: the meaning of an absent selector.
    Nothing,
    /// Selects objects that satisfy all of these; everything when there are none.
    All(Box<[Requirement<W>]>),
}

/// An operator that the API does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid label selector operator")]
pub struct SelectorError(pub String);

impl<W: Ord + Clone> Selector<W> {
    /// Converts the API's form: an absent selector selects nothing, an empty one everything.
    ///
    /// # Errors
    /// When an operator is unknown.
    pub fn from_api(
        selector: Option<&LabelSelector>,
        words: &mut impl SelectorWords<Word = W>,
    ) -> Result<Self, SelectorError> {
        let Some(selector) = selector else { return Ok(Self::Nothing) };
        let mut requirements = equalities(selector.match_labels.as_ref(), words);
        for expression in selector.match_expressions.iter().flatten() {
            let op = match expression.operator.as_str() {
                "In" => LabelOp::In,
                "NotIn" => LabelOp::NotIn,
                "Exists" => LabelOp::Exists,
                "DoesNotExist" => LabelOp::NotExists,
                other => return Err(SelectorError(other.to_owned())),
            };
            let values = expression.values.iter().flatten().map(|v| words.word(v)).collect();
            requirements.push(Requirement::new(words.word(&expression.key), op, values));
        }
        Ok(Self::canonical(requirements))
    }

    /// A selector of the objects with all these labels; without labels, of all objects.
    pub fn from_labels(
        labels: Option<&BTreeMap<String, String>>,
        words: &mut impl SelectorWords<Word = W>,
    ) -> Self {
        Self::canonical(equalities(labels, words))
    }

    fn canonical(mut requirements: Vec<Requirement<W>>) -> Self {
        requirements.sort_unstable();
        requirements.dedup();
        Self::All(requirements.into())
    }

    /// A selector with the requirements of both. `Nothing` has no requirements here, as upstream:
    /// merged with itself it selects everything.
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

    /// True if it selects everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }

    /// True if it selects an object with these labels, which must be sorted by key.
    #[must_use]
    pub fn matches(&self, labels: &[(W, W)]) -> bool {
        self.matches_by(|key| {
            labels.binary_search_by(|label| label.0.cmp(key)).ok().map(|at| &labels[at].1)
        })
    }

    /// True if it selects an object; `value_of` returns the value of its label with a key.
    fn matches_by<'a>(&self, value_of: impl Fn(&W) -> Option<&'a W>) -> bool
    where
        W: 'a,
    {
        match self {
            Self::Nothing => false,
            Self::All(requirements) => requirements.iter().all(|r| r.holds(value_of(&r.key))),
        }
    }

    /// A label that every selected object has, if a requirement allows a single value of a key. An
    /// index of selectors uses it as its key.
    #[must_use]
    pub fn anchor(&self) -> Option<(W, W)> {
        let Self::All(requirements) = self else { return None };
        requirements
            .iter()
            .find(|r| r.op == LabelOp::In && r.values.len() == 1)
            .map(|r| (r.key.clone(), r.values[0].clone()))
    }
}

impl Selector<Symbol> {
    /// True if it selects an object with these labels.
    pub fn matches_labels(&self, labels: &SymbolMap) -> bool {
        self.matches_by(|key| labels.get(key))
    }
}

/// Symbols are their own words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Symbols;

impl SelectorWords for Symbols {
    type Word = Symbol;

    fn word(&mut self, text: &str) -> Symbol {
        Symbol::of(text)
    }
}

fn equalities<T: SelectorWords>(
    labels: Option<&BTreeMap<String, String>>,
    words: &mut T,
) -> Vec<Requirement<T::Word>> {
    let pairs = labels.into_iter().flatten();
    pairs
        .map(|(k, v)| {
            let value = words.word(v);
            Requirement::new(words.word(k), LabelOp::In, vec![value])
        })
        .collect()
}

/// True if a selector matches an object with these labels. An absent selector matches no object, an
/// empty one matches every object. The error names an unknown operator.
pub fn matches(
    selector: Option<&LabelSelector>,
    labels: &BTreeMap<String, String>,
) -> Result<bool, SelectorError> {
    let selector = Selector::from_api(selector, &mut Texts)?;
    Ok(selector.matches_by(|key| labels.get(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selector(json: serde_json::Value) -> Selector<String> {
        let api: Option<LabelSelector> = serde_json::from_value(json).expect("selector");
        Selector::from_api(api.as_ref(), &mut Texts).expect("operators")
    }

    #[test]
    fn all_requirements_of_a_selector_must_match() {
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
        let sorted: Vec<_> = labels.clone().into_iter().collect();
        for (json, want) in table {
            let parsed: Option<LabelSelector> =
                serde_json::from_value(json.clone()).expect("a selector");
            assert_eq!(matches(parsed.as_ref(), &labels), Ok(want), "{json}");
            assert_eq!(selector(json.clone()).matches(&sorted), want, "{json}");
        }
    }

    #[test]
    fn absent_selector_selects_nothing_and_empty_selector_everything() {
        assert!(!selector(json!(null)).matches(&[]));
        assert!(selector(json!({})).matches(&[]));
        assert!(selector(json!({})).is_everything());
        assert!(!selector(json!(null)).is_everything());
    }

    #[test]
    fn an_operator_that_the_api_does_not_have_is_named() {
        let json = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
        let api: LabelSelector = serde_json::from_value(json).expect("a selector");
        let said = matches(Some(&api), &BTreeMap::new()).expect_err("unknown");
        assert_eq!(said.to_string(), "\"Like\" is not a valid label selector operator");
    }

    #[test]
    fn operators_treat_an_absent_key_as_upstream_does() {
        let labels = vec![("app".to_owned(), "web".to_owned())];
        for (json, with, without) in [
            (json!({"key": "app", "operator": "In", "values": ["web", "api"]}), true, false),
            (json!({"key": "app", "operator": "NotIn", "values": ["web"]}), false, true),
            (json!({"key": "app", "operator": "Exists"}), true, false),
            (json!({"key": "app", "operator": "DoesNotExist"}), false, true),
        ] {
            let s = selector(json!({ "matchExpressions": [json] }));
            assert_eq!((s.matches(&labels), s.matches(&[])), (with, without), "{s:?}");
        }
    }

    #[test]
    fn spelling_does_not_make_selectors_differ() {
        let a = selector(json!({"matchLabels": {"a": "1"}}));
        let b = selector(json!({"matchExpressions": [
            {"key": "a", "operator": "In", "values": ["1", "1"]}]}));
        assert_eq!(a, b);
        assert_eq!(Selector::Nothing.merged(&a), a);
        assert_eq!(a.anchor(), Some(("a".to_owned(), "1".to_owned())));
    }
}
