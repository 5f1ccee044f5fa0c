//! One node alone: who rejects it.
//!
//! Input: a view, a program, a row. Output: the first filter that rejects it, in the order of the
//! profile. Owner: pure functions over scratch memory. Bounds: the filters over all columns; nothing
//! is scored and no words are made.

use super::{RowPlugin, Scratch, refusal};
use crate::bits::Bits;
use crate::config::Plugin;
use crate::filter::status::Status;
use crate::filter::{self, COLUMN_FILTERS};
use crate::program::Program;
use crate::snapshot::view::View;

/// Who rejects one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejector {
    /// It is not even looked at: there is no such node, or another one is asked for.
    Nobody,
    /// The filter of this plugin.
    Column(Plugin),
    /// A plugin of single nodes, with these words.
    OfRows(Status),
}

/// Who rejects one row first, if anybody does. Nothing is scored, no other row is looked at longer
/// than the filters need for this one.
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
    if let Some(names) = &program.subset {
        filter::node::keep_named(view, names, &mut mask);
    }
    if !mask.get(row) {
        return Some(Rejector::Nobody);
    }
    for plugin in Plugin::ALL.into_iter().chain(Plugin::OTHERS) {
        if COLUMN_FILTERS.contains(&plugin) {
            filter::apply(plugin, view, program, scratch, &mut mask);
            if !mask.get(row) {
                return Some(Rejector::Column(plugin));
            }
        }
        let asked = |p: &&&dyn RowPlugin| p.plugin() == plugin && p.is_asked(&view.profile);
        let mut of_rows = plugins.iter().filter(asked);
        if let Some(status) = of_rows.find_map(|p| p.filter(view, program, row)) {
            return Some(Rejector::OfRows(status));
        }
    }
    None
}
