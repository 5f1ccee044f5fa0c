//! Free capacity: how many more pods of each shape fit, and how fragmented the free resources are.
//!
//! Input: a cluster after the simulation and the programs of its pods. Output: shapes and shares.
//! Owner: pure functions. Bounds: `SHAPES_MAX` shapes, each one pass over the nodes.

use std::collections::HashMap;
use std::sync::Arc;

use pintle_sched_core::Plugin;
use pintle_sched_core::program::Program;
use pintle_sched_core::remedy::amount;
use pintle_sched_core::select::{self, Scratch};
use pintle_sched_core::snapshot::Cluster;
use serde::Serialize;

/// Shapes reported, the most frequent first.
const SHAPES_MAX: usize = 20;

/// Programs that are evaluated, the most frequent first.
const PROGRAMS_MAX: usize = 2000;

/// Pods of the same shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodShape {
    /// Requests of one pod.
    pub requests: String,
    /// Number of pods to place.
    pub pods: usize,
    /// Number of further pods that fit, by resources and node constraints.
    pub more: i64,
    /// Nodes with room for at least one.
    pub nodes: usize,
}

/// One resource over all nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fragmentation {
    /// The resource.
    pub resource: String,
    /// Allocatable on all nodes.
    pub allocatable: i64,
    /// Not requested.
    pub free: i64,
    /// Most that is free on one node.
    pub largest_free: i64,
    /// Free on nodes where the other resource, or pod slots, have run out, in percent of free.
    pub stranded_percent: f64,
}

/// Measures both.
#[must_use]
pub fn measure(
    cluster: &Cluster,
    programs: &[Arc<Program>],
) -> (Vec<PodShape>, Vec<Fragmentation>) {
    let mut counts: HashMap<*const Program, (usize, usize)> = HashMap::new();
    for (at, program) in programs.iter().enumerate() {
        counts.entry(Arc::as_ptr(program)).or_insert((at, 0)).1 += 1;
    }
    let mut most: Vec<(usize, usize)> = counts.into_values().collect();
    most.sort_unstable_by_key(|(at, count)| (std::cmp::Reverse(*count), *at));
    let mut scratch = Scratch::default();
    let mut shapes: Vec<PodShape> = Vec::new();
    for (at, pods) in most.iter().take(PROGRAMS_MAX) {
        let found = shape(cluster, &programs[*at], *pods, &mut scratch);
        // Pods that differ only in labels or spread have the same capacity.
        let same = |s: &&mut PodShape| {
            (&s.requests, s.more, s.nodes) == (&found.requests, found.more, found.nodes)
        };
        match shapes.iter_mut().find(same) {
            Some(known) => known.pods += found.pods,
            None => shapes.push(found),
        }
    }
    shapes.sort_by_key(|s| std::cmp::Reverse(s.pods));
    shapes.truncate(SHAPES_MAX);
    (shapes, fragmentation(cluster))
}

fn shape(cluster: &Cluster, program: &Program, pods: usize, scratch: &mut Scratch) -> PodShape {
    let view = cluster.view();
    let (_, detail) = select::decide_in_detail(view, program, &[], scratch);
    let (mut more, mut nodes) = (0i64, 0);
    for row in view.valid_rows().iter() {
        let passes = detail.passing.iter().all(|(plugin, rows)| {
            // The resource filter is skipped, because the number that fits is computed below.
            // Spread and affinity change with every pod.
            *plugin == Plugin::NodeResourcesFit || rows.get(row)
        });
        if !passes || detail.passing.is_empty() {
            continue;
        }
        let n = view.numbers(row);
        let r = &program.requests.plain;
        let mut fit = n.pods.saturating_sub(n.pods_used);
        for (asked, free) in [
            (r.cpu_milli, n.cpu.saturating_sub(n.cpu_used)),
            (r.mem_bytes, n.mem.saturating_sub(n.mem_used)),
            (r.eph_bytes, n.eph.saturating_sub(n.eph_used)),
        ] {
            if asked > 0 {
                fit = fit.min(free / asked);
            }
        }
        for (name, asked) in &program.scalars {
            let (all, used) = view.extended(*name, row);
            fit = fit.min(all.saturating_sub(used) / asked);
        }
        if !program.ports.is_empty() {
            fit = fit.min(1);
        }
        more = i64::saturating_add(more, fit.max(0));
        nodes += usize::from(fit > 0);
    }
    PodShape { requests: requests_text(program), pods, more, nodes }
}

fn requests_text(program: &Program) -> String {
    let r = &program.requests.plain;
    let fixed = [("cpu", r.cpu_milli), ("memory", r.mem_bytes), ("ephemeral-storage", r.eph_bytes)];
    let mut parts: Vec<String> = fixed
        .iter()
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{name} {}", amount(name, *value)))
        .collect();
    parts.extend(r.scalars.iter().map(|(name, value)| format!("{name} {value}")));
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

fn fragmentation(cluster: &Cluster) -> Vec<Fragmentation> {
    let view = cluster.view();
    let mut all = ["cpu", "memory"].map(|resource| Fragmentation {
        resource: resource.to_owned(),
        allocatable: 0,
        free: 0,
        largest_free: 0,
        stranded_percent: 0.0,
    });
    let mut stranded = [0i64; 2];
    for row in view.valid_rows().iter() {
        let n = view.numbers(row);
        let free =
            [n.cpu.saturating_sub(n.cpu_used).max(0), n.mem.saturating_sub(n.mem_used).max(0)];
        for (at, allocatable) in [n.cpu, n.mem].into_iter().enumerate() {
            all[at].allocatable = all[at].allocatable.saturating_add(allocatable);
            all[at].free = all[at].free.saturating_add(free[at]);
            all[at].largest_free = all[at].largest_free.max(free[at]);
            if free[1 - at] == 0 || n.pods_used >= n.pods {
                stranded[at] = stranded[at].saturating_add(free[at]);
            }
        }
    }
    for (one, stranded) in all.iter_mut().zip(stranded) {
        if one.free > 0 {
            let percent = 100.0 * stranded as f64 / one.free as f64;
            one.stranded_percent = (percent * 10.0).round() / 10.0;
        }
    }
    all.to_vec()
}
