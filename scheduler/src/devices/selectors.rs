//! Expressions that were read once.
//!
//! Input: the text of selectors. Output: what they say of a device. Owner: the devices. Bounds:
//! `KEPT_MAX` expressions are kept, and the patterns in them as [`Patterns`] says.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/cel/cache.go

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use k8s_openapi::api::resource::v1::DeviceSelector;

use super::cel::{Patterns, Selector, Unanswered};
use super::offer::Device;
use super::search::Stop;

/// Expressions that are kept; once there are more, all are forgotten.
const KEPT_MAX: usize = 256;

/// Expressions by their text.
#[derive(Debug, Default)]
pub(crate) struct Selectors {
    known: RefCell<HashMap<String, Rc<Result<Selector, String>>>>,
    patterns: Patterns,
    lists: bool,
}

impl Selectors {
    /// None yet; of devices whose attributes may be lists, or may not.
    pub(super) fn new(lists: bool) -> Self {
        Self { lists, ..Self::default() }
    }

    /// Whether attributes may be lists.
    pub(super) fn have_lists(&self) -> bool {
        self.lists
    }

    fn compiled(&self, text: &str) -> Rc<Result<Selector, String>> {
        if let Some(known) = self.known.borrow().get(text) {
            return Rc::clone(known);
        }
        let new = Rc::new(Selector::compile(text, self.lists));
        let mut kept = self.known.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(text.to_owned(), Rc::clone(&new));
        new
    }

    /// Whether a device meets all of these, which `whose` has.
    ///
    /// # Errors
    /// When one has no answer for it, or none in time.
    // k8s: structured/internal/incubating/allocator_incubating.go selectorsMatch
    pub(super) fn all_match(
        &self,
        selectors: &[DeviceSelector],
        device: &Device,
        is_late: &dyn Fn() -> bool,
        whose: impl Fn() -> String,
    ) -> Result<bool, Stop> {
        for (at, selector) in selectors.iter().enumerate() {
            let text = selector.cel.as_ref().map_or("", |cel| &cel.expression);
            let compiled = self.compiled(text);
            let selector = compiled.as_ref().as_ref().map_err(|error| {
                format!("{}: selector #{at}: CEL compile error: {error}", whose())
            })?;
            let found = device.value.as_ref().map_err(|error| Unanswered::Error(error.clone()));
            let found = found.and_then(|device| selector.matches(device, &self.patterns, is_late));
            let fits = found.map_err(|why| match why {
                Unanswered::Late => Stop::Late,
                Unanswered::Error(error) => {
                    Stop::Error(format!("{}: selector #{at}: CEL runtime error: {error}", whose()))
                }
            })?;
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
