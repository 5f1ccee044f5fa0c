//! Out-of-tree plugins of a profile, moved out of its plugin sets.
//!
//! Input: a profile of the configuration file, the registry. Output: the out-of-tree plugins that
//! are enabled at each extension point, and a profile that names in-tree plugins only. Pure.

use super::points::{order, weight};
use super::{FileProfile, PluginRef, PluginSet};
use crate::framework::{EnabledPlugins, Registry};

/// Extension points, each with the in-tree plugin that may be disabled only if an out-of-tree plugin
/// replaces it.
const REPLACED: [(&str, &str); 2] = [("queueSort", "PrioritySort"), ("bind", "DefaultBinder")];

/// Removes the out-of-tree plugins and their arguments from a profile and returns them.
pub(super) fn take(from: &mut FileProfile, registry: &Registry) -> EnabledPlugins {
    let mut chosen = EnabledPlugins::default();
    let points = &mut from.plugins;
    from.filter_order = order(&points.multi_point, &points.filter);
    from.pre_filter_order = order(&points.multi_point, &points.pre_filter);
    chosen.orders.insert("filter", from.filter_order.clone());
    chosen.orders.insert("preFilter", from.pre_filter_order.clone());
    chosen.multi_point = enabled(&mut points.multi_point, registry);
    points.multi_point.disabled.retain(|plugin| !registry.has(&plugin.name));
    for (point, set) in [
        ("preEnqueue", &mut points.pre_enqueue),
        ("queueSort", &mut points.queue_sort),
        ("preFilter", &mut points.pre_filter),
        ("filter", &mut points.filter),
        ("postFilter", &mut points.post_filter),
        ("preScore", &mut points.pre_score),
        ("score", &mut points.score),
        ("reserve", &mut points.reserve),
        ("permit", &mut points.permit),
        ("preBind", &mut points.pre_bind),
        ("bind", &mut points.bind),
        ("postBind", &mut points.post_bind),
    ] {
        let own = enabled(set, registry);
        let off = set.disabled.iter().map(|plugin| plugin.name.clone());
        let off: Vec<String> = off.collect();
        set.disabled.retain(|plugin| !registry.has(&plugin.name));
        if !own.is_empty()
            && let Some((_, replaced)) = REPLACED.iter().find(|(at, _)| *at == point)
        {
            from.replaced.push(replaced);
            set.disabled.retain(|plugin| plugin.name != "*" && plugin.name != *replaced);
        }
        chosen.disabled.insert(point, off);
        chosen.enabled.insert(point, own);
    }
    let (own, rest) = std::mem::take(&mut from.plugin_config)
        .into_iter()
        .partition::<Vec<_>, _>(|config| registry.has(&config.name));
    from.plugin_config = rest;
    chosen.args = own.into_iter().map(|config| (config.name, config.args)).collect();
    chosen
}

/// Removes the enabled out-of-tree plugins from a set and returns their names and weights.
fn enabled(set: &mut PluginSet, registry: &Registry) -> Vec<(String, i64)> {
    let all = std::mem::take(&mut set.enabled).into_iter();
    let (own, rest): (Vec<PluginRef>, Vec<PluginRef>) =
        all.partition(|plugin| registry.has(&plugin.name));
    set.enabled = rest;
    own.into_iter().map(|plugin| (plugin.name.clone(), weight(&plugin))).collect()
}
