//! Plugin sets of a profile: the plugins that run at each point, as far as this scheduler supports
//! it.
//!
//! Input: the sets of one profile. Output: filters and weights, or an error that names the set.
//! Pure.
// k8s: pkg/scheduler/apis/config/v1/default_plugins.go mergePluginSet

use pintle_sched_core::{Plugin, Profile};

use super::{ConfigError, FileProfile, PluginRef, PluginSet, Points, field};

/// Upstream's plugins without columns here; naming them is valid.
const OTHER_PLUGINS: [&str; 6] = [
    "PrioritySort",
    "DefaultBinder",
    "DefaultPreemption",
    "GangScheduling",
    "TopologyPlacementGenerator",
    "PodGroupPodsCount",
];

/// Plugins that every scheduler needs.
const NEEDED: [&str; 2] = ["PrioritySort", "DefaultBinder"];

/// Applies the multiPoint set.
pub(super) fn multi_point(
    profile: &mut Profile,
    from: &FileProfile,
    path: &str,
) -> Result<(), ConfigError> {
    let defaults = Profile::default();
    let set = &from.plugins.multi_point;
    check(set, path)?;
    let off = |name: &str| set.disabled.iter().any(|p| p.name == "*" || p.name == name);
    let on = |name: &str| set.enabled.iter().find(|p| p.name == name);
    for which in Plugin::ALL {
        let at = which as usize;
        if off(which.name()) {
            profile.filters[at] = false;
            profile.weights[at] = 0;
        }
        if let Some(plugin) = on(which.name()) {
            profile.filters[at] = defaults.filters[at];
            if defaults.weights[at] != 0 {
                profile.weights[at] = weight(plugin);
            }
        }
    }
    profile.gangs = !off("GangScheduling") || on("GangScheduling").is_some();
    profile.preemption = !off("DefaultPreemption") || on("DefaultPreemption").is_some();
    let points = [&from.plugins.queue_sort, &from.plugins.bind];
    let is_there = |name: &str| {
        let mut enabled = points.iter().flat_map(|set| &set.enabled);
        enabled.any(|plugin| plugin.name == name) || from.replaced.contains(&name)
    };
    for name in NEEDED {
        if off(name) && on(name).is_none() && !is_there(name) {
            return Err(field(path, &format!("{name} cannot be disabled: nothing replaces it")));
        }
    }
    Ok(())
}

/// Returns true if the arguments of a default plugin are in effect: it is not disabled by multiPoint,
/// or the profile names it.
// k8s: pkg/scheduler/apis/config/v1/defaults.go setDefaults_KubeSchedulerProfile
pub(super) fn takes_arguments(name: &str, profile: &FileProfile) -> bool {
    let all = &profile.plugins.multi_point;
    let is_off = all.disabled.iter().any(|p| p.name == "*" || p.name == name);
    let mut enabled = profile.plugins.sets().into_iter().flat_map(|(_, set)| &set.enabled);
    let is_given = profile.plugin_config.iter().any(|config| config.name == name);
    !is_off || is_given || enabled.any(|plugin| plugin.name == name)
}

/// Returns the plugins of a point in their order: first those enabled both at the point and by
/// multiPoint, in the point's order; then the rest of multiPoint; then the rest of the point.
// k8s: pkg/scheduler/framework/runtime/framework.go expandMultiPointPlugins
pub(super) fn order(everywhere: &PluginSet, point: &PluginSet) -> Vec<String> {
    let is_off = |set: &PluginSet, name: &str| {
        set.disabled.iter().any(|plugin| plugin.name == "*" || plugin.name == name)
    };
    let defaults = Plugin::ALL.into_iter().map(Plugin::name);
    let mut all: Vec<&str> = defaults.filter(|name| !is_off(everywhere, name)).collect();
    for plugin in &everywhere.enabled {
        if !all.contains(&plugin.name.as_str()) {
            all.push(&plugin.name);
        }
    }
    all.retain(|name| !is_off(point, name));
    let named = point.enabled.iter().map(|plugin| plugin.name.as_str());
    let (first, last) = named.partition::<Vec<_>, _>(|name| all.contains(name));
    all.retain(|name| !first.contains(name));
    first.into_iter().chain(all).chain(last).map(str::to_owned).collect()
}

/// Points where plugins can be chosen one by one.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Point {
    Filter,
    Score,
}

pub(super) fn one_point(
    profile: &mut Profile,
    set: &PluginSet,
    point: Point,
    path: &str,
) -> Result<(), ConfigError> {
    let defaults = Profile::default();
    check(set, path)?;
    for which in Plugin::ALL {
        let at = which as usize;
        let name = which.name();
        if set.disabled.iter().any(|p| p.name == "*" || p.name == name) {
            match point {
                Point::Filter => profile.filters[at] = false,
                Point::Score => profile.weights[at] = 0,
            }
        }
    }
    for plugin in &set.enabled {
        let at = Plugin::from_name(&plugin.name).map(|which| which as usize);
        match (point, at) {
            (Point::Filter, Some(at)) if defaults.filters[at] => profile.filters[at] = true,
            (Point::Score, Some(at)) if defaults.weights[at] != 0 => {
                profile.weights[at] = weight(plugin);
            }
            _ => {
                let does = if point == Point::Filter { "filter" } else { "score" };
                return Err(field(path, &format!("plugin {:?} does not {does}", plugin.name)));
            }
        }
    }
    Ok(())
}

// k8s: pkg/scheduler/framework/runtime/framework.go getScoreWeights: zero means one
pub(super) fn weight(plugin: &PluginRef) -> i64 {
    match plugin.weight.unwrap_or(0) {
        0 => 1,
        weight => weight.into(),
    }
}

/// Checks that every enabled plugin is known and enabled once.
fn check(set: &PluginSet, path: &str) -> Result<(), ConfigError> {
    for (at, plugin) in set.enabled.iter().enumerate() {
        if plugin.name == "*" {
            return Err(field(path, "\"*\" can be disabled, not enabled"));
        }
        known(&plugin.name, path)?;
        if set.enabled[..at].iter().any(|p| p.name == plugin.name) {
            return Err(field(path, &format!("plugin {:?} is enabled twice", plugin.name)));
        }
    }
    Ok(())
}

/// Applies the sets of the other points. A plugin runs at all of these points or at none, so a set
/// that changes a single point is rejected; a set that names the defaults changes nothing.
pub(super) fn other_points(
    profile: &mut Profile,
    points: &Points,
    path: &str,
) -> Result<(), ConfigError> {
    let none: &[&str] = &[];
    for (name, set, defaults) in [
        ("preEnqueue", &points.pre_enqueue, &["SchedulingGates"][..]),
        ("queueSort", &points.queue_sort, &["PrioritySort"][..]),
        ("postFilter", &points.post_filter, &["DynamicResources", "DefaultPreemption"][..]),
        ("reserve", &points.reserve, &["VolumeBinding", "DynamicResources"][..]),
        ("permit", &points.permit, none),
        ("preBind", &points.pre_bind, &["VolumeBinding", "DynamicResources"][..]),
        ("bind", &points.bind, &["DefaultBinder"][..]),
        ("postBind", &points.post_bind, none),
        ("placementGenerate", &points.placement_generate, none),
        ("placementScore", &points.placement_score, none),
    ] {
        let path = format!("{path}.{name}");
        check(set, &path)?;
        let off = |p: &str| set.disabled.iter().any(|d| d.name == "*" || d.name == p);
        let on = |p: &str| set.enabled.iter().any(|e| e.name == p);
        for plugin in defaults.iter().filter(|p| off(p) && !on(p)) {
            if *plugin != "DefaultPreemption" {
                let problem = format!("disabling {plugin} at this point alone cannot be honoured");
                return Err(field(&path, &problem));
            }
            profile.preemption = false;
        }
        let more = set.enabled.iter().find(|e| !defaults.contains(&e.name.as_str()));
        // Disabling an unknown plugin is valid: it does not run at this point anyway.
        let mut others = set.disabled.iter().filter(|d| name != "postBind" && is_known(&d.name));
        let other = others.find(|d| match d.name.as_str() {
            "*" => defaults.is_empty(),
            plugin => !defaults.contains(&plugin),
        });
        if let Some(plugin) = more.or(other) {
            let problem = format!(
                "{:?}: what runs at this point cannot be chosen apart; use multiPoint, filter or score",
                plugin.name
            );
            return Err(field(&path, &problem));
        }
    }
    Ok(())
}

/// Plugins with filters that read state of their own PreFilter.
// k8s: pkg/scheduler/framework/plugins/* PreFilter
pub(super) const PREPARE_FILTERS: [&str; 11] = [
    "DynamicResources",
    "InterPodAffinity",
    "NodeAffinity",
    "NodeDeclaredFeatures",
    "NodePorts",
    "NodeResourcesFit",
    "NodeVolumeLimits",
    "PodTopologySpread",
    "VolumeBinding",
    "VolumeRestrictions",
    "VolumeZone",
];
/// Plugins with scores that read state of their own PreScore.
// k8s: pkg/scheduler/framework/plugins/* PreScore
pub(super) const PREPARE_SCORES: [&str; 7] = [
    "InterPodAffinity",
    "NodeAffinity",
    "NodeResourcesBalancedAllocation",
    "NodeResourcesFit",
    "PodTopologySpread",
    "TaintToleration",
    "VolumeBinding",
];

/// Checks a PreFilter or PreScore set. A set with all preparing plugins is the default; a set that
/// removes the preparation of an enabled filter or score is rejected.
pub(super) fn preparation(
    set: &PluginSet,
    preparing: &[&str],
    does: impl Fn(usize) -> bool,
    path: &str,
) -> Result<(), ConfigError> {
    check(set, path)?;
    let off = |name: &str| set.disabled.iter().any(|d| d.name == "*" || d.name == name);
    let on = |name: &str| set.enabled.iter().any(|e| e.name == name);
    for which in Plugin::ALL.into_iter().filter(|which| does(*which as usize)) {
        let name = which.name();
        if preparing.contains(&name) && off(name) && !on(name) {
            let problem =
                format!("{name} cannot do without; disable it where it filters or scores");
            return Err(field(path, &problem));
        }
    }
    for plugin in &set.enabled {
        let does = Plugin::from_name(&plugin.name).is_some_and(|which| does(which as usize));
        if !does || !preparing.contains(&plugin.name.as_str()) {
            let problem = format!("{:?} has nothing to prepare here", plugin.name);
            return Err(field(path, &problem));
        }
    }
    Ok(())
}

pub(super) fn is_known(name: &str) -> bool {
    name == "*" || Plugin::from_name(name).is_some() || OTHER_PLUGINS.contains(&name)
}

fn known(name: &str, path: &str) -> Result<(), ConfigError> {
    match is_known(name) {
        true => Ok(()),
        false => Err(field(path, &format!("plugin {name:?} is not known"))),
    }
}
