//! How many OOM kills of a pod become hints: each costs a read of the pod, and a pod can have its
//! processes killed as fast as it likes.
//!
//! Pure. The end of a container's first process is no matter of pace: the crash loop bounds it.
//! Bounds: `BURST` hints in `PERIOD` for each pod.

use std::collections::HashMap;
use std::time::Duration;

use pintle_agent_core::types::Mono;
use pintle_ebpf::Slot;

/// Hints of a pod within `PERIOD`.
const BURST: u32 = 5;
const PERIOD: Duration = Duration::from_secs(10);

/// The kills of each pod.
#[derive(Debug, Default)]
pub(super) struct OomPace(HashMap<Slot, (Mono, u32)>);

impl OomPace {
    /// True if this kill becomes a hint.
    pub(super) fn passes(&mut self, slot: Slot, is_init: bool, now: Mono) -> bool {
        let (since, count) = self.0.entry(slot).or_insert((now, 0));
        if now.since(*since) >= PERIOD {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        is_init || *count <= BURST
    }

    /// The pod is not followed any more.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.0.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_oom_kills_in_one_pod_trigger_only_a_few_reads() {
        let mut pace = OomPace::default();
        let at = |ms: u64| Mono::default().plus(Duration::from_millis(ms));
        let passed = (0..1000).filter(|ms| pace.passes(Slot(1), false, at(*ms))).count();
        assert_eq!(passed, 5);
        assert!(pace.passes(Slot(1), true, at(1000)), "the container itself");
        assert!(pace.passes(Slot(2), false, at(1000)), "another pod");
        assert!(pace.passes(Slot(1), false, at(10_000)), "later");
        pace.forget(Slot(1));
        assert_eq!(pace.0.len(), 1);
    }
}
