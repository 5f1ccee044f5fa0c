//! Faults of calls of the fake runtime.
//!
//! A rule names a method, optionally text that the subject must contain (`namespace/pod/container`,
//! an id, an image) and a number of times, and the fault: delay, fail before or after the effect,
//! hang before or after it. The newest rule that matches wins. A hang lasts until its rule is
//! lifted, then the call continues: a frozen shim that thaws. Owner: `FakeRuntime`, behind a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::{Code, Status};

use crate::{Method, Observer};

/// The fault of a call.
#[derive(Clone, Debug)]
pub(super) enum CallFault {
    /// The call takes that much longer.
    Delay(Duration),
    /// Fails and has no effect.
    Fail(Code, String),
    /// Waits, then continues as usual.
    Hang(Arc<Gate>),
    /// Takes effect, then fails: the answer is lost.
    FailAfter(Code, String),
    /// Takes effect, then waits: the answer is late.
    HangAfter(Arc<Gate>),
}

/// Holds calls back until it is opened, for good.
#[derive(Debug)]
pub(super) struct Gate(Semaphore);

impl Gate {
    pub(super) fn shut() -> Arc<Self> {
        Arc::new(Self(Semaphore::new(0)))
    }

    async fn opened(&self) {
        // No permit is ever added: this ends when the semaphore is closed, even if that was before.
        _ = self.0.acquire().await;
    }
}

#[derive(Debug)]
struct FaultRule {
    number: u64,
    method: Method,
    matching: String,
    times: Option<u32>,
    fault: CallFault,
}

/// All rules of a runtime.
#[derive(Debug, Default)]
pub(super) struct FaultRules {
    next: u64,
    rules: Vec<FaultRule>,
}

impl FaultRules {
    pub(super) fn add(
        &mut self,
        method: Method,
        matching: String,
        times: Option<u32>,
        fault: CallFault,
    ) -> u64 {
        self.next += 1;
        self.rules.push(FaultRule { number: self.next, method, matching, times, fault });
        self.next
    }

    /// The fault of this call, if any; counts it.
    pub(super) fn take(&mut self, method: Method, names: &[&str]) -> Option<CallFault> {
        let rule = self.rules.iter_mut().rev().find(|rule| {
            rule.method == method
                && rule.times != Some(0)
                && (rule.matching.is_empty() || names.iter().any(|n| n.contains(&rule.matching)))
        })?;
        if let Some(times) = &mut rule.times {
            *times -= 1;
        }
        Some(rule.fault.clone())
    }

    /// Removes a rule and lets the calls that hang on it go on.
    pub(super) fn lift(&mut self, number: u64) {
        self.rules.retain(|rule| {
            if rule.number == number {
                release(&rule.fault);
            }
            rule.number != number
        });
    }

    pub(super) fn lift_all(&mut self) {
        self.rules.drain(..).for_each(|rule| release(&rule.fault));
    }
}

fn release(fault: &CallFault) {
    if let CallFault::Hang(gate) | CallFault::HangAfter(gate) = fault {
        gate.0.close();
    }
}

impl CallFault {
    /// The part that comes before the effect.
    pub(super) async fn before(&self) -> Result<(), Status> {
        match self {
            CallFault::Delay(time) => tokio::time::sleep(*time).await,
            CallFault::Hang(gate) => gate.opened().await,
            CallFault::Fail(code, message) => return Err(Status::new(*code, message.clone())),
            CallFault::FailAfter(..) | CallFault::HangAfter(_) => {}
        }
        Ok(())
    }

    /// The part that comes after the effect.
    pub(super) async fn after(&self) -> Result<(), Status> {
        match self {
            CallFault::FailAfter(code, message) => Err(Status::new(*code, message.clone())),
            CallFault::HangAfter(gate) => {
                gate.opened().await;
                Ok(())
            }
            CallFault::Delay(_) | CallFault::Fail(..) | CallFault::Hang(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(text: &str) -> CallFault {
        CallFault::Fail(Code::Unknown, text.into())
    }

    fn taken(faults: &mut FaultRules, method: Method, name: &str) -> Option<String> {
        match faults.take(method, &[name]) {
            Some(CallFault::Fail(_, text)) => Some(text),
            _ => None,
        }
    }

    #[test]
    fn fault_rule_applies_a_limited_number_of_times_to_its_method_and_name() {
        let mut faults = FaultRules::default();
        faults.add(Method::StartContainer, "web".into(), Some(2), fail("a"));
        assert_eq!(taken(&mut faults, Method::StopContainer, "shop/web/main"), None);
        assert_eq!(taken(&mut faults, Method::StartContainer, "shop/api/main"), None);
        assert_eq!(taken(&mut faults, Method::StartContainer, "shop/web/main"), Some("a".into()));
        assert_eq!(taken(&mut faults, Method::StartContainer, "shop/web/main"), Some("a".into()));
        assert_eq!(taken(&mut faults, Method::StartContainer, "shop/web/main"), None);
    }

    #[test]
    fn newest_fault_rule_wins_until_it_is_lifted() {
        let mut faults = FaultRules::default();
        faults.add(Method::Version, String::new(), None, fail("old"));
        let newer = faults.add(Method::Version, String::new(), None, fail("new"));
        assert_eq!(taken(&mut faults, Method::Version, ""), Some("new".into()));
        faults.lift(newer);
        assert_eq!(taken(&mut faults, Method::Version, ""), Some("old".into()));
        faults.lift_all();
        assert_eq!(taken(&mut faults, Method::Version, ""), None);
    }
}

/// An observer that panics with the end of the first call, as a library below might.
#[derive(Debug, Default)]
pub struct PanicsOnce(AtomicBool);

impl Observer for PanicsOnce {
    fn call_ended(&self, _: Method, _: Option<Code>, _: Duration) {
        assert!(self.0.swap(true, Ordering::Relaxed), "of a library");
    }
}
