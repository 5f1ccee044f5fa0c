//! Scores of utilisation and balance, row by row: every strategy, any resources, any size.
//!
//! Input: exact numbers of a node and a pod's requests. Output: a score 0..=100.
//! Owner: pure functions. Bounds: one pass over the configured resources.
//! Why beside the kernels: they cover the default strategy with narrow numbers; everything else,
//! and wide rows, comes here. Arithmetic wraps as Go's does.
// k8s: pkg/scheduler/framework/plugins/noderesources/

use crate::config::{Profile, Strategy};
use crate::intern::Str;
use crate::program::Program;
use crate::snapshot::chunk::Numbers;
use crate::snapshot::view::View;

/// Most a plugin gives.
pub const SCORE_MAX: i64 = 100;

/// A configured resource, looked up once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// CPU.
    Cpu,
    /// Memory.
    Mem,
    /// Ephemeral storage.
    Eph,
    /// An extended resource, `None` when no object names it.
    Scalar(Option<Str>),
}

/// Allocatable and requested amount of one resource with the pod, `None` when the resource is left
/// out of the score.
// k8s: resource_allocation.go calculateResourceAllocatableRequest
fn amounts(
    view: &View,
    row: u32,
    n: &Numbers,
    resource: Resource,
    pod: i64,
    plain: bool,
) -> Option<(i64, i64)> {
    let (all, used) = match resource {
        Resource::Cpu => (n.cpu, if plain { n.cpu_used } else { n.cpu_nonzero }),
        Resource::Mem => (n.mem, if plain { n.mem_used } else { n.mem_nonzero }),
        Resource::Eph => (n.eph, n.eph_used),
        Resource::Scalar(name) => {
            if pod == 0 {
                return None;
            }
            let (all, used) = view.scalar(name?, row);
            (all?, used)
        }
    };
    (all != 0).then_some((all, used.wrapping_add(pod)))
}

/// The resources of a list of names.
pub(crate) fn resource(view_find: impl Fn(&str) -> Option<Str>, name: &str) -> Resource {
    match name {
        "cpu" => Resource::Cpu,
        "memory" => Resource::Mem,
        "ephemeral-storage" => Resource::Eph,
        name => Resource::Scalar(view_find(name)),
    }
}

/// Looks an extended resource of a program up by name.
fn scalar_of(program: &Program, name: &str) -> Option<Str> {
    // A resource that the pod does not ask for is left out of the score, so that the pod's own
    // list, whose names are sorted alike, is enough.
    let at = program.requests.plain.scalars.iter().position(|(n, _)| n == name)?;
    program.scalar_ids.get(at).copied()
}

/// Utilisation score of one row.
#[must_use]
pub fn fit_score(view: &View, program: &Program, row: u32) -> i64 {
    let profile: &Profile = &view.profile;
    let n = view.numbers(row);
    let (mut sum, mut weights) = (0i64, 0i64);
    for (name, weight) in &profile.fit_resources {
        let resource = resource(|name| scalar_of(program, name), name);
        let pod = program.requests.score.amount(name);
        let Some((all, used)) = amounts(view, row, &n, resource, pod, false) else { continue };
        let score = match &profile.strategy {
            Strategy::LeastAllocated if used > all => 0,
            Strategy::LeastAllocated => {
                all.wrapping_sub(used).wrapping_mul(SCORE_MAX).wrapping_div(all)
            }
            Strategy::MostAllocated => used.min(all).wrapping_mul(SCORE_MAX).wrapping_div(all),
            Strategy::RequestedToCapacityRatio(shape) => {
                let utilisation = if used > all {
                    SCORE_MAX
                } else {
                    used.wrapping_mul(SCORE_MAX).wrapping_div(all)
                };
                broken_linear(shape, utilisation)
            }
        };
        if score > 0 || !matches!(profile.strategy, Strategy::RequestedToCapacityRatio(_)) {
            sum = sum.wrapping_add(score.wrapping_mul(*weight));
            weights += weight;
        }
    }
    match (&profile.strategy, weights) {
        (_, 0) => 0,
        (Strategy::RequestedToCapacityRatio(_), _) => (sum as f64 / weights as f64).round() as i64,
        _ => sum / weights,
    }
}

// k8s: pkg/scheduler/framework/plugins/helper/shape_score.go BuildBrokenLinearFunction
fn broken_linear(shape: &[(i64, i64)], utilisation: i64) -> i64 {
    // Configured scores go to 10, plugin scores to 100.
    let score = |at: usize| shape[at].1 * 10;
    for (at, point) in shape.iter().enumerate() {
        if utilisation <= point.0 {
            if at == 0 {
                return score(0);
            }
            let (x0, y0) = (shape[at - 1].0, score(at - 1));
            return y0 + (score(at) - y0) * (utilisation - x0) / (point.0 - x0);
        }
    }
    score(shape.len() - 1)
}

/// How even the fractions are, 0..=100.
// k8s: balanced_allocation.go balancedResourceScorer
fn balance(parts: &[f64]) -> i64 {
    let std = match parts {
        [] | [_] => 0.0,
        [a, b] => ((a - b) / 2.0).abs(),
        many => {
            let mut total = 0.0;
            many.iter().for_each(|f| total += f);
            let mean = total / many.len() as f64;
            let mut sum = 0.0;
            for f in many {
                sum += (f - mean) * (f - mean);
            }
            (sum / many.len() as f64).sqrt()
        }
    };
    ((1.0 - std) * SCORE_MAX as f64) as i64
}

fn fraction(used: i64, all: i64) -> f64 {
    let fraction = used as f64 / all as f64;
    if fraction > 1.0 { 1.0 } else { fraction }
}

/// Balance of CPU and memory of a node as it is: the column the kernel compares with.
#[must_use]
pub fn balance_default(n: &Numbers) -> u8 {
    let parts: Vec<f64> = [(n.cpu_used, n.cpu), (n.mem_used, n.mem)]
        .iter()
        .filter(|(_, all)| *all != 0)
        .map(|(used, all)| fraction(*used, *all))
        .collect();
    balance(&parts) as u8
}

/// Whether the balance score is skipped: the pod asks for none of its resources.
#[must_use]
pub fn balance_skips(profile: &Profile, program: &Program) -> bool {
    profile.balanced_resources.iter().all(|name| program.requests.plain.amount(name) == 0)
}

/// Balance score of one row.
#[must_use]
pub fn balance_score(view: &View, program: &Program, row: u32) -> i64 {
    let n = view.numbers(row);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for name in &view.profile.balanced_resources {
        let pod = program.requests.plain.amount(name);
        let resource = resource(|name| scalar_of(program, name), name);
        if let Some((all, used)) = amounts(view, row, &n, resource, pod, true) {
            with.push(fraction(used, all));
            without.push(fraction(used.wrapping_sub(pod), all));
        }
    }
    50 + (50 + balance(&with) - balance(&without)) / 2
}

/// As [`fit_score`], in plain integers where the profile is the default one.
#[must_use]
pub fn fit_score_default(view: &View, program: &Program, n: &Numbers, row: u32) -> i64 {
    if !view.fit_is_default {
        return fit_score(view, program, row);
    }
    let r = &program.requests.score;
    let part = |all: i64, used: i64| match all {
        0 => (0, 0),
        _ if used > all => (0, 1),
        _ => (all.wrapping_sub(used).wrapping_mul(SCORE_MAX).wrapping_div(all), 1),
    };
    let (cpu, a) = part(n.cpu, n.cpu_nonzero.wrapping_add(r.cpu_milli));
    let (mem, b) = part(n.mem, n.mem_nonzero.wrapping_add(r.mem_bytes));
    if a + b == 0 { 0 } else { cpu.wrapping_add(mem) / (a + b) }
}

/// As [`balance_score`], without looking names up where the profile is the default one.
#[must_use]
pub fn balance_score_default(view: &View, program: &Program, n: &Numbers, row: u32) -> i64 {
    if !view.balance_is_default || n.cpu == 0 || n.mem == 0 {
        return balance_score(view, program, row);
    }
    let r = &program.requests.plain;
    let of = |cpu: i64, mem: i64| balance(&[fraction(cpu, n.cpu), fraction(mem, n.mem)]);
    let with = of(n.cpu_used.wrapping_add(r.cpu_milli), n.mem_used.wrapping_add(r.mem_bytes));
    50 + (50 + with - of(n.cpu_used, n.mem_used)) / 2
}
