//! Messages: why each node was rejected, and upstream's summary sentence.
//!
//! Input: a cluster, a program, the details of a decision. Output: statuses by row and sentences.
//! Owner: pure functions. Bounds: one status a node.

use std::collections::BTreeMap;

use crate::config::Plugin;
use crate::filter;
use crate::filter::status::{self, FilterState, PassingParts, Status};
use crate::program::Program;
use crate::select::{self, Detail, PreFilterRefusal, Rejector, RowPlugin, Scratch};
use crate::snapshot::{Cluster, View};

/// Returns the status of every rejected row, ascending.
#[must_use]
pub fn statuses(
    cluster: &Cluster,
    program: &Program,
    detail: &Detail,
    scratch: &mut Scratch,
) -> Vec<(u32, Status)> {
    let view = cluster.view();
    let mut inside = view.valid.as_ref().clone();
    if let Some(names) = &program.node_affinity.subset {
        filter::node::keep_named(view, names, &mut inside);
    }
    let passing = prepare(view, program, scratch);
    let text = |id| cluster.text(id).to_owned();
    let mut found = Vec::new();
    for row in view.valid.iter() {
        if !inside.get(row) {
            found.push((row, Status::absent()));
            continue;
        }
        // Another rejecting filter comes after the row plugin, which sees no other rows.
        if let Ok(at) = detail.rejected.binary_search_by_key(&row, |(row, _)| *row) {
            found.push((row, detail.rejected[at].1.clone()));
            continue;
        }
        let rejecting = detail.passing.iter().find(|(_, passing)| !passing.get(row));
        if let Some((plugin, _)) = rejecting {
            let (spread, passing) = (&scratch.filter.spread, &passing);
            let state = FilterState { view, program, spread, passing };
            found.push((row, status::of(*plugin, state, row, text)));
        }
    }
    found
}

/// Computes what the reasons of a status need over all rows.
pub(crate) fn prepare(view: &View, program: &Program, scratch: &mut Scratch) -> PassingParts {
    let mut passing = PassingParts::default();
    if program.node_affinity.added.is_some() {
        passing.added_affinity.copy_from(&view.valid, view.rows);
        let added = &mut passing.added_affinity;
        filter::node::added_affinity(view, program, &mut scratch.filter.node, added);
    }
    if !program.pods.anti.is_empty() {
        passing.anti_affinity.copy_from(&view.valid, view.rows);
        let anti = &mut passing.anti_affinity;
        filter::interpod::reject_anti(view, program, &mut scratch.filter.node, anti);
    }
    scratch.filter.spread.prepare(view, program, &mut scratch.filter.node);
    passing
}

/// Returns the status of one row, if it is rejected: the same as in [`statuses`], without the
/// others.
#[must_use]
pub fn status_of_row(
    cluster: &Cluster,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    row: u32,
    scratch: &mut Scratch,
) -> Option<Status> {
    let view = cluster.view();
    let rejector = select::rejector(view, program, plugins, row, scratch)?;
    Some(match rejector {
        Rejector::Nobody => Status::absent(),
        Rejector::OfRows(status) => status,
        Rejector::Column(plugin) => {
            let passing = prepare(view, program, scratch);
            let text = |id| cluster.text(id).to_owned();
            let (spread, passing) = (&scratch.filter.spread, &passing);
            status::of(plugin, FilterState { view, program, spread, passing }, row, text)
        }
    })
}

/// "0/N nodes are available: ...", reasons counted and sorted as upstream sorts them.
// k8s: pkg/scheduler/framework/types.go FitError.Error
#[must_use]
pub fn summary<'a>(nodes: usize, statuses: impl Iterator<Item = &'a Status>) -> String {
    if nodes == 0 {
        // k8s: pkg/scheduler/schedule_one.go ErrNoNodesAvailable
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for status in statuses {
        for reason in &status.reasons {
            *counts.entry(reason).or_default() += 1;
        }
    }
    let mut parts: Vec<String> = counts.iter().map(|(r, n)| format!("{n} {r}")).collect();
    parts.sort_unstable();
    let mut text = format!("0/{nodes} nodes are available");
    if !parts.is_empty() {
        text.push_str(": ");
        text.push_str(&parts.join(", "));
        text.push('.');
    } else {
        text.push(':');
    }
    text
}

/// Returns the summary of a pod rejected in PreFilter.
#[must_use]
pub fn refused(nodes: usize, refusal: &PreFilterRefusal) -> String {
    match refusal {
        PreFilterRefusal::Error(error) => error.clone(),
        PreFilterRefusal::PreFilter(_, reason) => {
            format!("0/{nodes} nodes are available: {reason}.")
        }
        PreFilterRefusal::Stale => {
            "the pod has to be compiled again: selectors have changed".to_owned()
        }
    }
}

/// Returns the filter plugins that skip this pod in PreFilter, in profile order.
#[must_use]
pub fn skipped_filters(view: &View, program: &Program) -> Vec<Plugin> {
    use Plugin::{
        DynamicResources, InterPodAffinity, NodeAffinity, NodeDeclaredFeatures, NodePorts,
        NodeVolumeLimits, PodTopologySpread, VolumeBinding, VolumeRestrictions, VolumeZone,
    };
    let skips = |plugin: &Plugin| match plugin {
        NodeAffinity => !filter::node::has_affinity(program),
        NodePorts => program.ports.is_empty(),
        PodTopologySpread => program.spread.hard.is_empty(),
        InterPodAffinity => filter::interpod::skips(view, program),
        NodeDeclaredFeatures => program.features.is_empty(),
        VolumeRestrictions | NodeVolumeLimits | VolumeBinding | VolumeZone | DynamicResources => {
            true
        }
        _ => false,
    };
    Plugin::ALL.into_iter().filter(|p| view.profile.filters(*p) && skips(p)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::status::Code;

    #[test]
    fn reasons_are_counted_and_sorted_as_text() {
        let status = |reasons: &[&str]| Status {
            plugin: None,
            code: Code::Unschedulable,
            reasons: reasons.iter().map(|r| (*r).to_owned()).collect(),
        };
        let all = [status(&["b", "a"]), status(&["b"]), status(&["c"])];
        assert_eq!(summary(12, all.iter()), "0/12 nodes are available: 1 a, 1 c, 2 b.");
        assert_eq!(summary(0, [].iter()), "no nodes available to schedule pods");
    }
}
