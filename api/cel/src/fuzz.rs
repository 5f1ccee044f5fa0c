//! The fuzz target of expressions: any text, about one device.
//!
//! Input: bytes. Output: nothing; a panic is a finding. Bounds: a tenth of a second of work and 64
//! MiB, as they are charged: an expression that uses more without being charged hits the fuzzer's
//! own limits of time and memory.

use std::rc::Rc;

use pintle_sched_core::attempt_budget::{self, AttemptBudget};

use super::account::Account;
use super::{
    COST_MAX, EvaluationLimits, Map, Patterns, Quantity, Selector, SemanticVersion, Unanswered,
    Value, eval,
};

/// Budget of one input.
const ALLOWED: attempt_budget::Limits =
    attempt_budget::Limits { work: 10_000_000, bytes: 64 << 20 };

/// A device with a value of each kind.
fn device() -> Option<Value> {
    let map = |map: Map| Value::Map(Rc::new(map));
    let attributes = map(Map::of([
        ("model", "a100".into()),
        ("cores", Value::Int(8)),
        ("healthy", true.into()),
        ("links", Value::List(Rc::new([Value::Int(1), Value::Int(2)]))),
        ("firmware", Value::Version(Rc::new(SemanticVersion::parse("1.2.3").ok()?))),
    ]));
    let memory = Value::Quantity(Quantity::parse("40Gi")?);
    let capacity = map(Map::of([("memory", memory)]));
    let by_domain = |all| map(Map::of([("d.example", all)]).or(map(Map::default())));
    Some(map(Map::of([
        ("driver", "d.example".into()),
        ("allowMultipleAllocations", false.into()),
        ("attributes", by_domain(attributes)),
        ("capacity", by_domain(capacity)),
    ])))
}

/// Compiles any bytes as an expression and evaluates it.
pub fn fuzz(bytes: &[u8]) {
    let (Ok(text), Some(device)) = (std::str::from_utf8(bytes), device()) else { return };
    for lists in [false, true] {
        let Ok(selector) = Selector::compile(text, lists) else { continue };
        let budget = AttemptBudget::new(ALLOWED, || false);
        let limits = EvaluationLimits { budget: &budget, is_late: &|| false };
        // Without the handler around it: a panic aborts the program here.
        let account = Account::new(limits);
        let patterns = Patterns::default();
        let found = eval::evaluate(&selector.tree, &device, &patterns, &account);
        match found {
            Err(Unanswered::Exhausted(exhausted)) => {
                assert_eq!(budget.exhausted(), Some(exhausted));
            }
            Err(Unanswered::Late) => panic!("it has all the time that it wants"),
            Ok(_) => {
                assert!(budget.exhausted().is_none() && account.cost() <= COST_MAX);
                // The same result is expected with the caches of the first run.
                let again = AttemptBudget::new(ALLOWED, || false);
                let limits = EvaluationLimits { budget: &again, is_late: &|| false };
                let account = Account::new(limits);
                let found = eval::evaluate(&selector.tree, &device, &patterns, &account);
                assert!(found.is_ok(), "{found:?}");
            }
            Err(Unanswered::Error(_)) => {}
        }
    }
}
