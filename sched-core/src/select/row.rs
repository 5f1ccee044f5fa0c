//! Filters a single node: which plugin rejects it?
//!
//! Input: a view, a program, a row. Output: the first filter that rejects it, in the order of the
//! profile. Owner: pure functions over scratch memory. Bounds: the filters over all columns;
//! nothing is scored and no words are made.

use super::{RowPlugin, Scratch, refusal};
use crate::bits::Bits;
use crate::config::{Plugin, Profile, Rank};
use crate::filter::status::Status;
use crate::filter::{self, COLUMN_FILTERS};
use crate::program::Program;
use crate::snapshot::view::View;

/// The rejection of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejector {
    /// It is not filtered: the node does not exist, or PreFilter excludes it.
    Nobody,
    /// The filter of this plugin.
    Column(Plugin),
    /// A row plugin, with this status.
    OfRows(Status),
}

/// Returns the first plugin that rejects the row, if one does. Nothing is scored, and other rows
/// are only touched as far as the filters need.
pub fn rejector(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    row: u32,
    scratch: &mut Scratch,
) -> Option<Rejector> {
    let mut mask = Bits::default();
    mask.reset(view.rows);
    if refusal(view, program).is_none() && view.valid.get(row) {
        mask.set(row);
    }
    if let Some(names) = &program.node_affinity.subset {
        filter::node::keep_named(view, names, &mut mask);
    }
    if !mask.get(row) {
        return Some(Rejector::Nobody);
    }
    in_order(&view.profile, plugins).into_iter().find_map(|(rank, asked)| match asked {
        RankedFilter::Column(plugin) => {
            filter::apply(plugin, view, program, &mut scratch.filter, &mut mask);
            (!mask.get(row)).then_some(Rejector::Column(plugin))
        }
        RankedFilter::Rows(plugin) => {
            plugin.filter_at(rank, view, program, row).map(Rejector::OfRows)
        }
    })
}

/// A filter.
pub(super) enum RankedFilter<'a> {
    /// A filter that has a column.
    Column(Plugin),
    /// A row plugin, at one of its ranks.
    Rows(&'a dyn RowPlugin),
}

/// Returns all filters in the order of a profile; of equal ranks, columns first.
pub(super) fn in_order<'a>(
    profile: &Profile,
    plugins: &[&'a dyn RowPlugin],
) -> Vec<(Rank, RankedFilter<'a>)> {
    let columns =
        COLUMN_FILTERS.map(|plugin| (profile.filter_rank(plugin), RankedFilter::Column(plugin)));
    let of_rows = plugins.iter().filter(|plugin| plugin.is_asked(profile)).flat_map(|plugin| {
        plugin.ranks(profile).into_iter().map(move |rank| (rank, RankedFilter::Rows(*plugin)))
    });
    let mut all: Vec<(Rank, RankedFilter<'a>)> = columns.into_iter().chain(of_rows).collect();
    all.sort_by_key(|(rank, _)| *rank);
    all
}
