//! Filters: each takes rows out of a mask.
//!
//! Input: a view, a program, a mask of candidate rows. Output: the rows that pass.
//! Owner: pure functions over scratch memory. Bounds: a few words a node for bit filters, a few
//! bytes a node for numbers; nothing walks pods.
//! The reason why a row fails is not kept: `status` derives it for single rows on demand.

pub mod interpod;
pub mod node;
mod rows;
pub mod spread;
pub mod status;

use crate::bits::Bits;
use crate::config::{Plugin, Profile};
use crate::program::Program;
use crate::snapshot::view::View;

/// Scratch memory of the column filters.
#[derive(Debug, Default)]
pub struct FilterScratch {
    pub(crate) node: node::NodeScratch,
    pub(crate) spread: spread::HardSpread,
}

/// Filters that work on columns, in the order of the default profile.
pub const COLUMN_FILTERS: [Plugin; 9] = [
    Plugin::NodeUnschedulable,
    Plugin::NodeName,
    Plugin::TaintToleration,
    Plugin::NodeAffinity,
    Plugin::NodePorts,
    Plugin::NodeResourcesFit,
    Plugin::PodTopologySpread,
    Plugin::InterPodAffinity,
    Plugin::NodeDeclaredFeatures,
];

/// Returns them in the order of a profile.
pub(crate) fn in_order(profile: &Profile) -> [Plugin; COLUMN_FILTERS.len()] {
    let mut all = COLUMN_FILTERS;
    all.sort_by_key(|plugin| profile.filter_rank(*plugin));
    all
}

/// Removes from `mask` the rows that one plugin rejects.
pub(crate) fn apply(
    plugin: Plugin,
    view: &View,
    program: &Program,
    scratch: &mut FilterScratch,
    mask: &mut Bits,
) {
    if !view.profile.filters(plugin) {
        return;
    }
    match plugin {
        Plugin::NodeUnschedulable if !program.tolerates_unschedulable => {
            mask.and_not(&view.unschedulable);
        }
        Plugin::NodeName => {
            if let Some(name) = program.node_name {
                node::keep_named(view, &[name], mask);
            }
        }
        Plugin::TaintToleration => node::taints(view, program, mask),
        Plugin::NodeAffinity => node::affinity(view, program, &mut scratch.node, mask),
        Plugin::NodePorts => node::ports(view, program, mask),
        Plugin::NodeResourcesFit => node::resources(view, program, &mut scratch.node, mask),
        Plugin::PodTopologySpread if !program.spread.hard.is_empty() => {
            scratch.spread.prepare(view, program, &mut scratch.node);
            scratch.spread.filter(view, program, &mut scratch.node, mask);
        }
        Plugin::InterPodAffinity => interpod::filter(view, program, &mut scratch.node, mask),
        Plugin::NodeDeclaredFeatures => node::features(view, program, mask),
        _ => {}
    }
}
