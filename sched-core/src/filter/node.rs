//! Filters by the node alone: name, taints, labels, ports, free resources, features.
//!
//! Input: view, program, mask. Output: the mask without the rejected rows.
//! Owner: pure functions. Bounds: one pass over the distinct taints, requirements and ports of the
//! pod, each a pass over words; the resource filter streams the number columns once.

use crate::bits::Bits;
use crate::chunk::{BYTES_NARROW_MAX, CHUNK_ROWS, CPU_NARROW_MAX, Numbers};
use crate::columns::keys::{KeyColumn, RareLabel, Values};
use crate::columns::taints::{Effect, NodeTaint};
use crate::intern::Str;
use crate::program::{NodeOp, NodeRequirement, NodeTerm, Program};
use crate::simd;
use crate::snapshot::view::View;

/// Scratch of the node filters.
#[derive(Debug, Default)]
pub struct NodeScratch {
    pub(crate) term: Bits,
    pub(crate) requirement: Bits,
    pub(crate) any: Bits,
    pub(crate) wanted: Vec<bool>,
}

/// Keeps the nodes of these names.
pub(crate) fn keep_named(view: &View, names: &[Str], mask: &mut Bits) {
    let rows: Vec<u32> = names.iter().filter_map(|n| view.row_of(*n)).collect();
    let kept: Vec<u32> = rows.into_iter().filter(|row| mask.get(*row)).collect();
    mask.words_mut().fill(0);
    kept.into_iter().for_each(|row| mask.set(row));
}

/// Returns true if a taint keeps pods away.
pub(crate) fn is_hard(taint: &NodeTaint) -> bool {
    matches!(taint.effect, Effect::NoSchedule | Effect::NoExecute)
}

/// Returns true if a taint keeps this pod away.
pub(crate) fn keeps_away(taint: &NodeTaint, program: &Program) -> bool {
    is_hard(taint) && !program.tolerations.iter().any(|t| t.tolerates(taint))
}

// k8s: tainttoleration/taint_toleration.go Filter
pub(crate) fn taints(view: &View, program: &Program, mask: &mut Bits) {
    for (taint, rows) in view.sparse.taints.iter() {
        if !rows.is_empty() && keeps_away(taint, program) {
            rows.clear_from(mask);
        }
    }
}

/// Returns true if the program restricts nodes by labels at all, the profile's addition included.
pub(crate) fn has_affinity(program: &Program) -> bool {
    has_own_affinity(program) || program.node_affinity.added.is_some()
}

/// Returns true if the pod itself restricts nodes by labels.
pub(crate) fn has_own_affinity(program: &Program) -> bool {
    !program.node_affinity.selector.is_empty() || program.node_affinity.required.is_some()
}

// k8s: nodeaffinity/node_affinity.go Filter
pub(crate) fn affinity(view: &View, program: &Program, scratch: &mut NodeScratch, mask: &mut Bits) {
    own_affinity(view, program, scratch, mask);
    added_affinity(view, program, scratch, mask);
}

/// The profile's required affinity.
pub(crate) fn added_affinity(
    view: &View,
    program: &Program,
    scratch: &mut NodeScratch,
    mask: &mut Bits,
) {
    if let Some(terms) = &program.node_affinity.added {
        any_term(view, terms, scratch, mask);
    }
}

/// The pod's own node selector and required affinity.
pub(crate) fn own_affinity(
    view: &View,
    program: &Program,
    scratch: &mut NodeScratch,
    mask: &mut Bits,
) {
    for requirement in &program.node_affinity.selector {
        keep(view, requirement, scratch, mask);
    }
    if let Some(terms) = &program.node_affinity.required {
        any_term(view, terms, scratch, mask);
    }
}

fn any_term(view: &View, terms: &[NodeTerm], scratch: &mut NodeScratch, mask: &mut Bits) {
    let mut any = std::mem::take(&mut scratch.any);
    any.reset(view.rows);
    for term in terms {
        let mut rows = std::mem::take(&mut scratch.term);
        rows.copy_from(mask, view.rows);
        matching(view, term, scratch, &mut rows);
        any.or(&rows);
        scratch.term = rows;
    }
    mask.and(&any);
    scratch.any = any;
}

/// Keeps the rows that meet every requirement of a term.
pub(crate) fn matching(view: &View, term: &NodeTerm, scratch: &mut NodeScratch, rows: &mut Bits) {
    for requirement in &term.0 {
        keep(view, requirement, scratch, rows);
    }
}

fn keep(view: &View, r: &NodeRequirement, scratch: &mut NodeScratch, mask: &mut Bits) {
    let Some(key) = r.key else { return keep_by_name(view, &r.op, mask) };
    let column = view.keys.find(key).map(|k| view.keys.column(k));
    let rows = &mut scratch.requirement;
    let Some(column) = column else {
        return keep_rare(view, view.keys.rare(key), &r.op, rows, mask);
    };
    match &r.op {
        NodeOp::Exists => mask.and(&column.present),
        NodeOp::NotExists => mask.and_not(&column.present),
        NodeOp::In(values) => {
            rows.reset(view.rows);
            rows_of(column, values, &mut scratch.wanted, rows);
            mask.and(rows);
        }
        NodeOp::NotIn(values) => {
            rows.reset(view.rows);
            rows_of(column, values, &mut scratch.wanted, rows);
            mask.and_not(rows);
        }
        NodeOp::Above(limit) => numbers(column, |n| n > *limit, scratch, view.rows, mask),
        NodeOp::Below(limit) => numbers(column, |n| n < *limit, scratch, view.rows, mask),
    }
}

/// Like `keep`, for a key that few nodes carry, or none.
fn keep_rare(view: &View, all: &[RareLabel], op: &NodeOp, rows: &mut Bits, mask: &mut Bits) {
    rows.reset(view.rows);
    for label in all {
        let is_meant = match op {
            NodeOp::Exists | NodeOp::NotExists => true,
            NodeOp::In(values) | NodeOp::NotIn(values) => values.contains(&label.value),
            NodeOp::Above(limit) => label.number.is_some_and(|n| n > *limit),
            NodeOp::Below(limit) => label.number.is_some_and(|n| n < *limit),
        };
        if is_meant {
            rows.set(label.row);
        }
    }
    match op {
        NodeOp::NotIn(_) | NodeOp::NotExists => mask.and_not(rows),
        _ => mask.and(rows),
    }
}

fn keep_by_name(view: &View, op: &NodeOp, mask: &mut Bits) {
    match op {
        NodeOp::In(names) => keep_named(view, names, mask),
        NodeOp::NotIn(names) => {
            let rows = names.iter().filter_map(|n| view.row_of(*n));
            rows.for_each(|row| mask.clear(row));
        }
        NodeOp::Exists => {}
        NodeOp::NotExists | NodeOp::Above(_) | NodeOp::Below(_) => mask.words_mut().fill(0),
    }
}

fn rows_of(column: &KeyColumn, values: &[Str], wanted: &mut Vec<bool>, rows: &mut Bits) {
    let ids = values.iter().filter_map(|v| column.find(*v));
    if column.is_narrow() {
        ids.for_each(|id| rows.or(&column.rows[id as usize]));
        return;
    }
    let ids: Vec<u32> = ids.collect();
    match ids.as_slice() {
        [] => {}
        [one] => {
            if let Values::Wide(values) = &column.values {
                simd::rows_equal(values, *one, rows.words_mut());
            }
        }
        many => {
            wanted.clear();
            wanted.resize(column.value_ids(), false);
            many.iter().for_each(|id| wanted[*id as usize] = true);
            column.rows_where(wanted, rows);
        }
    }
}

fn numbers(
    column: &KeyColumn,
    ok: impl Fn(i64) -> bool,
    scratch: &mut NodeScratch,
    rows: usize,
    mask: &mut Bits,
) {
    let found = &mut scratch.requirement;
    found.reset(rows);
    scratch.wanted.clear();
    scratch.wanted.resize(column.value_ids(), false);
    let fitting = column.numbers.iter().filter(|(_, n)| ok(**n));
    fitting.for_each(|(value, _)| scratch.wanted[*value as usize] = true);
    column.rows_where(&scratch.wanted, found);
    mask.and(found);
}

// k8s: nodeports/node_ports.go Fits
pub(crate) fn ports(view: &View, program: &Program, mask: &mut Bits) {
    for port in &program.ports {
        let users = view.sparse.ports.get(&(port.protocol, port.port));
        let clashing = users.into_iter().flat_map(|u| u.clashing(port.ip, view.wildcard_ip));
        clashing.for_each(|(_, rows)| rows.clear_from(mask));
    }
}

pub(crate) fn features(view: &View, program: &Program, mask: &mut Bits) {
    for feature in &program.features {
        let mut have = Bits::with_rows(view.rows);
        if let Some(rows) = view.sparse.features.get(feature) {
            rows.add_to(&mut have);
        }
        mask.and(&have);
    }
}

/// Returns the request for the kernel, if comparing it with the columns is exact.
fn narrow_request(program: &Program) -> Option<simd::FitRequest> {
    let r = &program.requests.plain;
    let fits = (0..CPU_NARROW_MAX / 2).contains(&r.cpu_milli)
        && (0..BYTES_NARROW_MAX).contains(&r.mem_bytes)
        && (0..BYTES_NARROW_MAX).contains(&r.eph_bytes);
    fits.then_some(simd::FitRequest {
        cpu: r.cpu_milli as i32,
        mem: r.mem_bytes as f64,
        eph: r.eph_bytes as f64,
    })
}

// k8s: noderesources/fit.go fitsRequest
pub(crate) fn resources(
    view: &View,
    program: &Program,
    scratch: &mut NodeScratch,
    mask: &mut Bits,
) {
    let narrow = narrow_request(program);
    let by_row = &mut scratch.requirement;
    by_row.copy_from(mask, view.rows);
    if let Some(request) = narrow {
        by_row.and(&view.wide_rows);
        for (chunk, words) in view.chunks.iter().zip(mask.words_mut().chunks_mut(CHUNK_ROWS / 64)) {
            simd::fit(chunk, request, words);
        }
    }
    if !by_row.is_empty() {
        for row in by_row.iter() {
            mask.clear(row);
            if fits_numbers(program, &view.numbers(row)) {
                mask.set(row);
            }
        }
    }
    for (name, amount) in &program.scalars {
        let Some(column) = view.sparse.scalars.get(name) else {
            mask.words_mut().fill(0);
            return;
        };
        column.keep_fitting(*amount, mask);
    }
    for (name, amount) in &program.delegated {
        // A resource that no node offers may come from devices.
        let Some(column) = view.sparse.scalars.get(name) else { continue };
        let short = |row| {
            let all = column.allocatable(row).unwrap_or(0);
            all > 0 && *amount > all.wrapping_sub(column.used(row))
        };
        let short: Vec<u32> = mask.iter().filter(|row| short(*row)).collect();
        short.into_iter().for_each(|row| mask.clear(row));
    }
}

/// Returns true if all resources of one row fit: what [`resources`] finds for it.
pub(crate) fn fits_row(view: &View, program: &Program, n: &Numbers, row: u32) -> bool {
    let free = |name| {
        let (all, used) = view.scalar(name, row);
        all.map(|all| (all, all.wrapping_sub(used)))
    };
    fits_numbers(program, n)
        && program.scalars.iter().all(|(name, asked)| free(*name).is_some_and(|f| *asked <= f.1))
        && program.delegated.iter().all(|(name, asked)| {
            // A resource that the node does not offer may come from devices.
            free(*name).is_none_or(|(all, free)| all <= 0 || *asked <= free)
        })
}

/// Returns true if the built-in resources fit.
pub(crate) fn fits_numbers(program: &Program, n: &Numbers) -> bool {
    let r = &program.requests.plain;
    let short = |asked: i64, all: i64, used: i64| asked > 0 && asked > all.wrapping_sub(used);
    n.pods_used < n.pods
        && !short(r.cpu_milli, n.cpu, n.cpu_used)
        && !short(r.mem_bytes, n.mem, n.mem_used)
        && !short(r.eph_bytes, n.eph, n.eph_used)
}
