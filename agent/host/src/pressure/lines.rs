//! Lines of memory: how little has to be left for an observation, and which source reports it.
//!
//! Pure. The kernel notifies when a cgroup's usage crosses a line, page cache included. Where cache
//! is dropped for growing memory, usage stays the same and the kernel sends nothing: there memory
//! alone is read, the more often the closer it is to the line. `pressure::memory_watch` listens;
//! the lookout of the agent reads.
// k8s: pkg/kubelet/eviction/memory_threshold_notifier.go UpdateThreshold (a line at the threshold alone)

use std::time::Duration;

use super::node::CgroupMemory;

/// Fastest growth of usage in bytes a second for which peeks are planned: at this rate the line is
/// not passed between two of them.
pub const FASTEST: u64 = 512 << 20;
/// The least and the most time between two peeks.
pub const PEEKS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// The kernel drops cache before the last bytes are used: this part of the capacity, and never more.
const UNUSED_PART: u64 = 32;

/// How little of one memory has to be left for a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryThreshold {
    /// An observation is due when no more than this is left.
    pub left: u64,
    /// The usage at which the kernel sends a notice.
    pub usage: u64,
    /// A line that moved by less may stay where it is.
    pub tolerance: u64,
    /// The cgroup cannot use this much before its cache is dropped.
    pub is_hidden: bool,
}

impl MemoryThreshold {
    /// The line of memory with `left` bytes left and `least` required. Half of the rest, so that
    /// the rate becomes known; but never beyond the threshold.
    pub fn of(memory: &CgroupMemory, left: u64, least: u64) -> Self {
        let line = if left > least { least.max(left / 2) } else { left / 2 };
        let usage = memory.usage.saturating_add(left - line);
        let most = memory.capacity - memory.capacity / UNUSED_PART;
        Self { left: line, usage, tolerance: (left - line) / 4, is_hidden: usage > most }
    }

    /// When to read whether the line is met, where the kernel sends no notice; `None` where it
    /// does, or where the next periodic observation is soon enough.
    pub fn peek_in(&self, left: u64) -> Option<Duration> {
        let millis = left.saturating_sub(self.left) / (FASTEST / 1_000);
        let after = Duration::from_millis(millis).max(PEEKS.0);
        Some(after).filter(|after| self.is_hidden && *after < PEEKS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(usage: u64) -> CgroupMemory {
        CgroupMemory { capacity: 1_024 * MIB, usage: usage * MIB, ..CgroupMemory::default() }
    }

    #[test]
    fn memory_watch_threshold_is_half_of_available_or_the_eviction_threshold() {
        for (left, least, line) in
            [(1_000, 0, 500), (1_000, 400, 500), (600, 400, 400), (401, 400, 400), (400, 400, 200)]
        {
            let line_of = MemoryThreshold::of(&memory(0), left * MIB, least * MIB);
            assert_eq!(line_of.left, line * MIB, "{left} {least}");
            assert_eq!(line_of.usage, (left - line) * MIB);
        }
        assert_eq!(MemoryThreshold::of(&memory(7), 0, 0).left, 0, "nothing is left");
    }

    #[test]
    fn memory_threshold_is_hidden_when_page_cache_fills_the_memory() {
        let of = |usage| MemoryThreshold::of(&memory(usage), 600 * MIB, 400 * MIB);
        assert!(!of(424).is_hidden, "without cache");
        assert!(of(900).is_hidden && of(1_024).is_hidden);
    }

    #[test]
    fn memory_is_polled_more_often_the_closer_it_is_to_the_threshold() {
        let of = |usage, left| {
            let memory = CgroupMemory { capacity: u64::MAX, usage, ..CgroupMemory::default() };
            MemoryThreshold::of(&memory, left, 100 * MIB).peek_in(left)
        };
        assert_eq!(of(0, 400 * MIB), None, "the kernel says it");
        let near = of(u64::MAX, 110 * MIB).expect("hidden");
        assert_eq!(near, PEEKS.0);
        let far = of(u64::MAX, 4_096 * MIB).expect("hidden");
        assert!(far > Duration::from_secs(3) && far < PEEKS.1, "{far:?}");
        assert_eq!(of(u64::MAX, 1 << 40), None, "the clock is soon enough");
    }
}
