//! Cache of compiled CEL selectors and of their results by device.
//!
//! Input: selector texts with their namespace. Output: results for devices. A result depends on the
//! expression and the device alone: it is cached, so that neither another node nor the next attempt
//! pays for it again, and an attempt that exhausted its budget gets further next time. Owner: the
//! devices. Bounds: a namespace has [`OF_NAMESPACE`] expressions of [`TEXT_OF_NAMESPACE`] bytes,
//! all have `KEPT_MAX` of `TEXT_MAX`, and results take `BLOCKS_MAX` words. A namespace over its
//! share loses its own oldest expression, so that none evicts another's.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/cel/cache.go

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use k8s_openapi::api::resource::v1::DeviceSelector;
use pintle_cel::{CelError, EvaluationLimits, Patterns, Selector, Unanswered};

use super::offer::{Device, DeviceNumber};
use super::search::SearchStop;

/// Cached expressions of a namespace; those of classes share one such quota.
const OF_NAMESPACE: usize = 64;
/// Bytes of their texts.
const TEXT_OF_NAMESPACE: usize = 1 << 16;
/// Cached expressions in all.
const KEPT_MAX: usize = 2_048;
/// Bytes of their texts; a compiled text may be a hundred times as large.
const TEXT_MAX: usize = 1 << 19;
/// Words of 64 bits with the results for 32 devices each.
const BLOCKS_MAX: usize = 1 << 17;
/// Cached errors of an expression.
const ERRORS_MAX: usize = 16;
/// Longest cached error, in bytes.
const ERROR_BYTES: usize = 1 << 12;
/// Work units of compiling a byte of an expression.
const READ_WORK: u64 = 100;
/// Label of budget steps spent on compiling.
const COMPILING: &str = "compiling CEL expressions";

/// An expression with its results.
#[derive(Debug)]
struct KnownExpression {
    selector: Result<Selector, CelError>,
    /// Time of the last use, in uses of all expressions.
    used: Cell<u64>,
    answers: RefCell<Answers>,
}

/// The text of an error of a selector, or of the device's value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
struct SelectorError(Box<str>);

impl SelectorError {
    fn of(error: &impl std::fmt::Display) -> Self {
        Self(error.to_string().into())
    }
}

/// Results by the number of the device: two bits each, devices of a slice side by side.
#[derive(Debug, Default)]
struct Answers {
    blocks: HashMap<u64, u64>,
    errors: HashMap<DeviceNumber, SelectorError>,
}

const NO: u64 = 1;
const YES: u64 = 2;
/// Devices of a word.
const OF_BLOCK: u64 = 32;

impl Answers {
    fn get(&self, device: DeviceNumber) -> Option<Result<bool, SelectorError>> {
        if let Some(error) = self.errors.get(&device) {
            return Some(Err(error.clone()));
        }
        let block = self.blocks.get(&(device / OF_BLOCK)).copied().unwrap_or(0);
        match block >> (2 * (device % OF_BLOCK)) & 3 {
            NO => Some(Ok(false)),
            YES => Some(Ok(true)),
            _ => None,
        }
    }

    fn put(&mut self, device: DeviceNumber, answer: &Result<bool, SelectorError>) {
        match answer {
            Ok(answer) => {
                let bits = if *answer { YES } else { NO };
                let block = self.blocks.entry(device / OF_BLOCK).or_default();
                *block |= bits << (2 * (device % OF_BLOCK));
            }
            Err(error) if error.0.len() <= ERROR_BYTES && self.errors.len() < ERRORS_MAX => {
                self.errors.insert(device, error.clone());
            }
            Err(_) => {}
        }
    }
}

/// The expressions of a namespace by their text.
type Share = HashMap<String, Rc<KnownExpression>>;

/// Expressions by namespace.
#[derive(Debug, Default)]
pub(crate) struct Selectors {
    known: RefCell<HashMap<String, Share>>,
    uses: Cell<u64>,
    patterns: Patterns,
    lists: bool,
}

/// Origin of selectors.
pub(super) struct SelectorOrigin<'a> {
    /// The namespace of the claim; empty for a class.
    pub(super) namespace: &'a str,
    /// Subject of error messages.
    pub(super) whose: &'a dyn Fn() -> String,
}

impl Selectors {
    /// Creates an empty cache; `lists` says if attributes may be lists.
    pub(super) fn new(lists: bool) -> Self {
        Self { lists, ..Self::default() }
    }

    /// May attributes be lists?
    pub(super) fn have_lists(&self) -> bool {
        self.lists
    }

    fn compiled(
        &self,
        namespace: &str,
        text: &str,
        limits: EvaluationLimits,
    ) -> Result<Rc<KnownExpression>, Unanswered> {
        self.uses.set(self.uses.get() + 1);
        let known = self.known.borrow();
        if let Some(found) = known.get(namespace).and_then(|share| share.get(text)) {
            found.used.set(self.uses.get());
            return Ok(Rc::clone(found));
        }
        drop(known);
        let paid = limits.budget.pay_at_once(READ_WORK * text.len() as u64, COMPILING);
        paid.map_err(Unanswered::Exhausted)?;
        let new = Rc::new(KnownExpression {
            selector: Selector::compile(text, self.lists),
            used: Cell::new(self.uses.get()),
            answers: RefCell::default(),
        });
        self.keep(namespace, text, Rc::clone(&new));
        Ok(new)
    }

    fn keep(&self, namespace: &str, text: &str, new: Rc<KnownExpression>) {
        let mut known = self.known.borrow_mut();
        let share = known.entry(namespace.to_owned()).or_default();
        while share.len() >= OF_NAMESPACE || bytes(share) + text.len() > TEXT_OF_NAMESPACE {
            if !drop_oldest(share) {
                break;
            }
        }
        share.insert(text.to_owned(), new);
        let is_over = |known: &HashMap<String, Share>| {
            known.values().map(Share::len).sum::<usize>() > KEPT_MAX
                || known.values().map(bytes).sum::<usize>() > TEXT_MAX
        };
        while is_over(&known) {
            // The largest share loses an expression.
            let Some(largest) = known.values_mut().max_by_key(|share| bytes(share)) else { break };
            drop_oldest(largest);
            known.retain(|_, share| !share.is_empty());
        }
    }

    /// Caches a result; over the limit, the least recently used expression loses its results.
    fn remember(
        &self,
        of: &KnownExpression,
        device: DeviceNumber,
        answer: &Result<bool, SelectorError>,
    ) {
        of.answers.borrow_mut().put(device, answer);
        if !device.is_multiple_of(OF_BLOCK) {
            return;
        }
        let known = self.known.borrow();
        let all = || known.values().flat_map(Share::values);
        let blocks = |known: &KnownExpression| known.answers.borrow().blocks.len();
        if all().map(|known| blocks(known)).sum::<usize>() > BLOCKS_MAX {
            let with_some = all().filter(|known| blocks(known) > 0);
            let oldest = with_some.min_by_key(|known| known.used.get());
            oldest.iter().for_each(|known| *known.answers.borrow_mut() = Answers::default());
        }
    }

    /// Does a device match all selectors?
    ///
    /// # Errors
    /// A selector fails on it, or exceeds its limits.
    // k8s: structured/internal/incubating/allocator_incubating.go selectorsMatch
    pub(super) fn all_match(
        &self,
        selectors: &[DeviceSelector],
        device: &Device,
        limits: EvaluationLimits,
        origin: &SelectorOrigin,
    ) -> Result<bool, SearchStop> {
        for (at, selector) in selectors.iter().enumerate() {
            let text = selector.cel.as_ref().map_or("", |cel| &cel.expression);
            let known = self.compiled(origin.namespace, text, limits).map_err(stopped)?;
            let selector = known.selector.as_ref().map_err(|error| {
                format!("{}: selector #{at}: CEL compile error: {error}", (origin.whose)())
            })?;
            let found = self.matches(&known, selector, device, limits).map_err(stopped)?;
            let fits = found.map_err(|error| {
                format!("{}: selector #{at}: CEL runtime error: {error}", (origin.whose)())
            })?;
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn matches(
        &self,
        known: &KnownExpression,
        selector: &Selector,
        device: &Device,
        limits: EvaluationLimits,
    ) -> Result<Result<bool, SelectorError>, Unanswered> {
        let value = match &device.value {
            Ok(value) => value,
            Err(error) => return Ok(Err(SelectorError::of(error))),
        };
        let answer = known.answers.borrow().get(device.number);
        if let Some(answer) = answer {
            return Ok(answer);
        }
        let answer = match selector.matches(value, &self.patterns, limits) {
            Ok(answer) => Ok(answer),
            Err(Unanswered::Error(error)) => Err(SelectorError::of(&error)),
            Err(ended) => return Err(ended),
        };
        self.remember(known, device.number, &answer);
        Ok(answer)
    }
}

fn bytes(share: &Share) -> usize {
    share.keys().map(String::len).sum()
}

/// Drops the least recently used expression; false if there was none.
fn drop_oldest(share: &mut Share) -> bool {
    let oldest = share.iter().min_by_key(|(_, known)| known.used.get());
    let oldest = oldest.map(|(text, _)| text.clone());
    oldest.is_some_and(|text| share.remove(&text).is_some())
}

fn stopped(why: Unanswered) -> SearchStop {
    match why {
        Unanswered::Late => SearchStop::Late,
        Unanswered::Exhausted(exhausted) => SearchStop::Exhausted(exhausted),
        Unanswered::Error(error) => SearchStop::Error(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use pintle_sched_core::attempt_budget::AttemptBudget;

    use super::*;

    fn compile(selectors: &Selectors, namespace: &str, text: &str) {
        let budget = AttemptBudget::unlimited();
        let limits = EvaluationLimits { budget: &budget, is_late: &|| false };
        let known = selectors.compiled(namespace, text, limits).expect("without limits");
        assert!(known.selector.is_ok(), "{text}");
    }

    fn is_kept(selectors: &Selectors, namespace: &str, text: &str) -> bool {
        selectors.known.borrow().get(namespace).is_some_and(|share| share.contains_key(text))
    }

    #[test]
    fn namespace_over_its_share_loses_its_own_oldest_expression() {
        let selectors = Selectors::new(false);
        compile(&selectors, "quiet", "true");
        for at in 0..OF_NAMESPACE + 1 {
            compile(&selectors, "loud", &format!("{at} == 0"));
            compile(&selectors, "loud", "1 == 1");
        }
        assert!(is_kept(&selectors, "quiet", "true"));
        assert!(is_kept(&selectors, "loud", "1 == 1"), "it is used all the time");
        assert!(!is_kept(&selectors, "loud", "0 == 0"));
        assert_eq!(selectors.known.borrow()["loud"].len(), OF_NAMESPACE);
    }

    #[test]
    fn texts_of_all_namespaces_are_limited_and_the_largest_share_gives_way() {
        let selectors = Selectors::new(false);
        let long = |at: usize| format!("'{}' != '{at}'", "x".repeat(9_000));
        compile(&selectors, "quiet", "true");
        for at in 0..80 {
            compile(&selectors, &format!("loud-{}", at % 20), &long(at));
        }
        let known = selectors.known.borrow();
        assert!(known.values().map(bytes).sum::<usize>() <= TEXT_MAX);
        assert!(known.values().all(|share| bytes(share) <= TEXT_OF_NAMESPACE));
        drop(known);
        assert!(is_kept(&selectors, "quiet", "true"));
    }

    #[test]
    fn answers_of_neighbouring_devices_do_not_mix() {
        let mut answers = Answers::default();
        for device in 0..100 {
            answers.put(device, &Ok(device % 3 == 0));
        }
        answers.put(100, &Err(SelectorError::of(&"why")));
        for device in 0..100 {
            assert_eq!(answers.get(device), Some(Ok(device % 3 == 0)));
        }
        assert_eq!(answers.get(100), Some(Err(SelectorError::of(&"why"))));
        assert_eq!(answers.get(101), None);
        assert_eq!(answers.blocks.len(), 4);
    }
}
