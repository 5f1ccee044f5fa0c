//! A profile's choice of out-of-tree plugins.
//!
//! Input: the plugin sets of a file, split by `config`. Output: for each point the names of the
//! plugins that run there, in their order, with weights. Owner: plain data.
// k8s: pkg/scheduler/framework/runtime/framework.go expandMultiPointPlugins

use std::collections::BTreeMap;

use pintle_sched_core::config::{RANK_LAST, Rank};
use serde_json::Value;

/// An enabled plugin, and its weight if it scores.
pub(super) type Enabled = (String, i64);

/// The out-of-tree plugins that one profile enables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnabledPlugins {
    /// Enabled at all of their points.
    pub multi_point: Vec<(String, i64)>,
    /// Enabled at single points, by the point's name in the file.
    pub enabled: BTreeMap<&'static str, Vec<(String, i64)>>,
    /// Disabled at single points; `*` is all of them.
    pub disabled: BTreeMap<&'static str, Vec<String>>,
    /// All plugins, in-tree ones included, at points where order matters, in their order; by the
    /// point's name.
    pub orders: BTreeMap<&'static str, Vec<String>>,
    /// Arguments by plugin.
    pub args: BTreeMap<String, Value>,
}

impl EnabledPlugins {
    /// Returns true if no plugin is enabled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.multi_point.is_empty() && self.enabled.values().all(Vec::is_empty)
    }

    /// Returns every plugin that is enabled anywhere, once.
    pub(super) fn names(&self) -> Vec<&str> {
        let all = self.multi_point.iter().chain(self.enabled.values().flatten());
        let mut names: Vec<&str> = all.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the plugins that were enabled at this point by name.
    pub(super) fn named_at(&self, point: &str) -> &[Enabled] {
        self.enabled.get(point).map_or(&[], Vec::as_slice)
    }

    /// Returns the plugins for a point: first those enabled both at the point and by multiPoint, in
    /// the point's order; then the rest of multiPoint; then the rest of the point.
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

    /// Returns the rank of a plugin at a point where order matters.
    pub(super) fn rank(&self, point: &str, name: &str) -> Rank {
        let order = self.orders.get(point).map_or(&[][..], Vec::as_slice);
        let ranked = (1..RANK_LAST).zip(order).find(|(_, at)| *at == name);
        ranked.map_or(RANK_LAST - 1, |(rank, _)| rank)
    }
}
