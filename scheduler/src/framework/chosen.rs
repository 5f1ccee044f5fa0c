//! What a profile says of plugins that are none of upstream's.
//!
//! Input: the sets of a file, split by `config`. Output: for each point the names that run there, in
//! their order, with weights. Owner: plain data.
// k8s: pkg/scheduler/framework/runtime/framework.go expandMultiPointPlugins

use std::collections::BTreeMap;

use pintle_sched_core::config::{RANK_LAST, Rank};
use serde_json::Value;

/// A plugin that is enabled, and its weight where it scores.
pub(super) type Enabled = (String, i64);

/// The plugins that one profile enables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen {
    /// Wherever they can run.
    pub multi_point: Vec<(String, i64)>,
    /// At single points, by the point's name in the file.
    pub enabled: BTreeMap<&'static str, Vec<(String, i64)>>,
    /// Not at these points; `*` is all of them.
    pub disabled: BTreeMap<&'static str, Vec<String>>,
    /// Who runs at a point whose order matters, if it can, upstream's plugins among them, in the order in
    /// which they run; by the point's name.
    pub orders: BTreeMap<&'static str, Vec<String>>,
    /// Arguments by plugin.
    pub args: BTreeMap<String, Value>,
}

impl Chosen {
    /// Whether no plugin is enabled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.multi_point.is_empty() && self.enabled.values().all(Vec::is_empty)
    }

    /// Every plugin that is enabled anywhere, once.
    pub(super) fn names(&self) -> Vec<&str> {
        let all = self.multi_point.iter().chain(self.enabled.values().flatten());
        let mut names: Vec<&str> = all.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Who was enabled at this point by name.
    pub(super) fn named_at(&self, point: &str) -> &[Enabled] {
        self.enabled.get(point).map_or(&[], Vec::as_slice)
    }

    /// Who runs at a point, if it can: those that are named there and everywhere else first, in the
    /// point's order; then the rest of those that run everywhere; then the rest of the point's.
    pub(super) fn at(&self, point: &str) -> Vec<Enabled> {
        let named = self.named_at(point);
        let disabled = self.disabled.get(point).map_or(&[][..], Vec::as_slice);
        let is_off = |name: &str| disabled.iter().any(|off| off == "*" || off == name);
        let is_named = |name: &str| named.iter().any(|(at, _)| at == name);
        let is_among = |name: &str| self.multi_point.iter().any(|(at, _)| at == name);
        let everywhere = |name: &str| is_among(name) && !is_off(name);
        let first = named.iter().filter(|(name, _)| everywhere(name));
        let rest = self.multi_point.iter().filter(|(name, _)| !is_off(name) && !is_named(name));
        let last = named.iter().filter(|(name, _)| !everywhere(name));
        first.chain(rest).chain(last).cloned().collect()
    }

    /// Its place among all plugins of a point whose order matters.
    pub(super) fn rank(&self, point: &str, name: &str) -> Rank {
        let order = self.orders.get(point).map_or(&[][..], Vec::as_slice);
        let ranked = (1..RANK_LAST).zip(order).find(|(_, at)| *at == name);
        ranked.map_or(RANK_LAST - 1, |(rank, _)| rank)
    }
}
