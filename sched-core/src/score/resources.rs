//! Scores of utilisation and balance, row by row: every strategy, any resources, any size.
//!
//! Input: exact numbers of a node and a pod's requests. Output: a score 0..=100.
//! Owner: pure functions. Bounds: one pass over the configured resources.
//! Why in addition to the kernels: they cover the default strategy with narrow numbers; everything
//! else, and wide rows, is computed here. Arithmetic wraps as Go's does.
// k8s: pkg/scheduler/framework/plugins/noderesources/

pub use crate::balance::{SCORE_MAX, balance_default};
use crate::balance::{balance, fraction};
use crate::bits::Bits;
use crate::chunk::Numbers;
use crate::config::{Profile, Strategy};
use crate::intern::Str;
use crate::program::Program;
use crate::requests::{PodRequests, Resources};
use crate::snapshot::Cluster;
use crate::snapshot::view::View;

/// A configured resource, resolved once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedResource {
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
    resource: ResolvedResource,
    pod: i64,
    plain: bool,
) -> Option<(i64, i64)> {
    let (all, used) = match resource {
        ResolvedResource::Cpu => (n.cpu, if plain { n.cpu_used } else { n.cpu_nonzero }),
        ResolvedResource::Mem => (n.mem, if plain { n.mem_used } else { n.mem_nonzero }),
        ResolvedResource::Eph => (n.eph, n.eph_used),
        ResolvedResource::Scalar(name) => {
            if pod == 0 {
                return None;
            }
            let (all, used) = view.scalar(name?, row);
            (all?, used)
        }
    };
    (all != 0).then_some((all, used.wrapping_add(pod)))
}

/// One resource of a profile with the pod's request, resolved once a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScoredResource {
    resource: ResolvedResource,
    pod: i64,
    weight: i64,
}

fn wanted(program: &Program, requests: &Resources, name: &str, weight: i64) -> ScoredResource {
    let resource = match name {
        "cpu" => ResolvedResource::Cpu,
        "memory" => ResolvedResource::Mem,
        "ephemeral-storage" => ResolvedResource::Eph,
        name => ResolvedResource::Scalar(scalar_of(program, name)),
    };
    ScoredResource { resource, pod: requests.amount(name), weight }
}

/// Resolves an extended resource of a program by name.
fn scalar_of(program: &Program, name: &str) -> Option<Str> {
    // A resource that the pod does not request is left out of the score, so that the pod's own
    // list, sorted by the same names, is enough.
    let at = program.requests.plain.scalar_at(name)?;
    program.scalar_ids.get(at).copied()
}

/// The resources of the utilisation score.
pub(crate) fn fit_wanted(profile: &Profile, program: &Program) -> Vec<ScoredResource> {
    let resources = profile.fit_resources.iter();
    resources.map(|(name, w)| wanted(program, &program.requests.score, name, *w)).collect()
}

/// The resources of the balance score.
pub(crate) fn balance_wanted(profile: &Profile, program: &Program) -> Vec<ScoredResource> {
    let resources = profile.balanced_resources.iter();
    resources.map(|name| wanted(program, &program.requests.plain, name, 1)).collect()
}

/// Utilisation score of one row.
#[must_use]
pub fn fit_score(view: &View, program: &Program, row: u32) -> i64 {
    fit_score_of(view, &fit_wanted(&view.profile, program), row)
}

/// Utilisation score of one row, with resolved resources.
pub(crate) fn fit_score_of(view: &View, wanted: &[ScoredResource], row: u32) -> i64 {
    let strategy = &view.profile.strategy;
    let n = view.numbers(row);
    let (mut sum, mut weights) = (0i64, 0i64);
    for w in wanted {
        let Some((all, used)) = amounts(view, row, &n, w.resource, w.pod, false) else { continue };
        let score = match strategy {
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
        if score > 0 || !matches!(strategy, Strategy::RequestedToCapacityRatio(_)) {
            sum = sum.wrapping_add(score.wrapping_mul(w.weight));
            weights += w.weight;
        }
    }
    match (strategy, weights) {
        (_, 0) => 0,
        (Strategy::RequestedToCapacityRatio(_), _) => (sum as f64 / weights as f64).round() as i64,
        _ => sum / weights,
    }
}

impl Cluster {
    /// Returns the utilisation of these rows with these requests added, by the resources of the
    /// profile.
    #[must_use]
    pub fn fullness(&self, rows: &Bits, pods: &[&PodRequests]) -> i64 {
        fullness(self.view(), rows, pods, |name| self.interner.find(name))
    }
}

/// Utilisation of these rows with these requests added, as if they were one node, by the resources
/// of the view's profile: 0..=100. `scalar` has the ids of extended resources.
// k8s: resource_allocation.go scorePlacement, most_allocated.go mostResourceScorer
#[must_use]
pub fn fullness(
    view: &View,
    rows: &Bits,
    pods: &[&PodRequests],
    scalar: impl Fn(&str) -> Option<Str>,
) -> i64 {
    let (mut sum, mut weights) = (0i64, 0i64);
    for (name, weight) in &view.profile.fit_resources {
        let resource = match name.as_str() {
            "cpu" => ResolvedResource::Cpu,
            "memory" => ResolvedResource::Mem,
            "ephemeral-storage" => ResolvedResource::Eph,
            name => ResolvedResource::Scalar(scalar(name)),
        };
        let asked = pods.iter().map(|pod| pod.score.amount(name));
        let asked = asked.fold(0i64, i64::wrapping_add);
        let (mut all, mut used) = (0i64, asked);
        for row in rows.iter() {
            let n = view.numbers(row);
            let Some((has, with)) = amounts(view, row, &n, resource, asked, false) else {
                continue;
            };
            all = all.wrapping_add(has);
            used = used.wrapping_add(with.wrapping_sub(asked));
        }
        if all != 0 {
            let score = used.min(all).wrapping_mul(SCORE_MAX).wrapping_div(all);
            sum = sum.wrapping_add(score.wrapping_mul(*weight));
            weights += weight;
        }
    }
    if weights == 0 { 0 } else { sum / weights }
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

/// Returns true if the balance score is skipped, because the pod requests none of its resources.
#[must_use]
pub fn balance_skips(profile: &Profile, program: &Program) -> bool {
    profile.balanced_resources.iter().all(|name| program.requests.plain.amount(name) == 0)
}

/// Balance score of one row.
#[must_use]
pub fn balance_score(view: &View, program: &Program, row: u32) -> i64 {
    balance_score_of(view, &balance_wanted(&view.profile, program), row)
}

/// Balance score of one row, with resolved resources.
pub(crate) fn balance_score_of(view: &View, wanted: &[ScoredResource], row: u32) -> i64 {
    let n = view.numbers(row);
    let amounts = wanted.iter().filter_map(|w| {
        let (all, used) = amounts(view, row, &n, w.resource, w.pod, true)?;
        Some((all, used, used.wrapping_sub(w.pod)))
    });
    let with = balance(amounts.clone().map(|(all, used, _)| fraction(used, all)));
    let without = balance(amounts.map(|(all, _, before)| fraction(before, all)));
    50 + (50 + with - without) / 2
}

/// Like [`fit_score`], in plain integers if the profile is the default one.
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

/// Like [`balance_score`], without resolving names if the profile is the default one.
#[must_use]
pub fn balance_score_default(view: &View, program: &Program, n: &Numbers, row: u32) -> i64 {
    if !view.balance_is_default || n.cpu == 0 || n.mem == 0 {
        return balance_score(view, program, row);
    }
    let r = &program.requests.plain;
    let of = |cpu: i64, mem: i64| balance([fraction(cpu, n.cpu), fraction(mem, n.mem)].into_iter());
    let with = of(n.cpu_used.wrapping_add(r.cpu_milli), n.mem_used.wrapping_add(r.mem_bytes));
    50 + (50 + with - of(n.cpu_used, n.mem_used)) / 2
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Cluster;
    use crate::snapshot::tests::{node_with, pod_with};

    /// A node of 4 CPU, 10,000 bytes and 8 GPU, of which a pod has 1, 2,000 and 2; and a pod that
    /// asks for `more`.
    fn scores(profile: Profile, more: Value) -> (i64, i64) {
        let mut cluster = Cluster::new(profile);
        let node = node_with("n", |n| {
            n["status"]["allocatable"] =
                json!({"cpu": "4", "memory": "10k", "example.com/gpu": "8", "pods": "9"});
        });
        cluster.set_node(&node).expect("node");
        let asking = |name: &str, requests: Value| {
            pod_with(name, |p| p["spec"]["containers"][0]["resources"]["requests"] = requests)
        };
        let first = json!({"cpu": "1", "memory": "2k", "example.com/gpu": "2"});
        cluster.assume(&asking("there", first), "n").expect("room");
        let program = cluster.compile(&asking("new", more)).expect("pod");
        (fit_score(cluster.view(), &program, 0), balance_score(cluster.view(), &program, 0))
    }

    fn profile(strategy: Strategy, resources: &[(&str, i64)]) -> Profile {
        let fit_resources = resources.iter().map(|(name, w)| ((*name).to_owned(), *w)).collect();
        Profile { strategy, fit_resources, ..Profile::default() }
    }

    // Each value is computed from least_allocated.go, most_allocated.go and
    // requested_to_capacity_ratio.go with a pencil. With the pod, 2 of 4 CPU are in use (50 %),
    // 7,000 of 10,000 bytes (70 %) and 4 of 8 GPU (50 %).
    #[test]
    fn every_strategy_gives_the_scores_that_upstream_computes() {
        let pair = |cpu, mem| vec![("cpu", cpu), ("memory", mem)];
        let ratio = |shape: &[(i64, i64)]| Strategy::RequestedToCapacityRatio(shape.to_vec());
        let asked = || json!({"cpu": "1", "memory": "5k", "example.com/gpu": "2"});
        let huge = || json!({"cpu": "9", "memory": "5k"});
        for (strategy, resources, more, want) in [
            (Strategy::LeastAllocated, pair(1, 1), asked(), (50 + 30) / 2),
            (Strategy::LeastAllocated, pair(3, 1), asked(), (3 * 50 + 30) / 4),
            (Strategy::LeastAllocated, pair(1, 1), huge(), 30 / 2),
            (Strategy::MostAllocated, pair(1, 1), asked(), (50 + 70) / 2),
            (Strategy::MostAllocated, pair(3, 1), asked(), (3 * 50 + 70) / 4),
            // More than the capacity counts as all of it.
            (Strategy::MostAllocated, pair(1, 1), huge(), (100 + 70) / 2),
            (Strategy::MostAllocated, vec![("example.com/gpu", 5), ("memory", 1)], asked(), 53),
            // A resource that the pod does not request is left out.
            (Strategy::MostAllocated, vec![("example.com/gpu", 5), ("memory", 1)], huge(), 70),
            // Another one that the node lacks too.
            (Strategy::MostAllocated, vec![("ephemeral-storage", 5), ("memory", 1)], huge(), 70),
            (ratio(&[(0, 0), (100, 10)]), pair(3, 1), asked(), 55),
            (ratio(&[(0, 10), (100, 0)]), pair(3, 1), asked(), 45),
            // 80 - 60 * 10 / 60 for the CPU, 80 - 60 * 30 / 60 for the memory.
            (ratio(&[(0, 0), (40, 8), (100, 2)]), pair(1, 1), asked(), (70 + 50) / 2),
            // Before the first point and beyond the last one the function is flat.
            (ratio(&[(60, 4), (65, 9)]), pair(1, 1), asked(), (40 + 90) / 2),
            (ratio(&[(0, 0), (100, 7)]), pair(1, 1), huge(), 60), // (70 + 49) / 2 = 59.5
            // 100 - 70 * 50 / 60 is 100 - 58: Go divides towards zero. The rest is rounded.
            (ratio(&[(0, 10), (60, 3)]), vec![("cpu", 1)], asked(), 42),
            (ratio(&[(0, 10), (60, 3)]), pair(1, 2), asked(), 34), // (42 + 2 * 30) / 3
            // A resource with score zero is left out of the mean.
            (ratio(&[(50, 0), (100, 10)]), pair(1, 1), asked(), 40),
        ] {
            let (found, _) = scores(profile(strategy.clone(), &resources), more.clone());
            assert_eq!(found, want, "{strategy:?} {resources:?} {more}");
        }
    }

    // From balanced_allocation.go. With the pod the fractions are 0.5, 0.7, 0.5: deviation 0.0943
    // of three, 0.1 of the first two; without it 0.25, 0.2, 0.25: 0.0236 and 0.025.
    #[test]
    fn the_balance_of_any_number_of_resources_is_upstreams() {
        let asked = || json!({"cpu": "1", "memory": "5k", "example.com/gpu": "2"});
        let without_gpu = || json!({"cpu": "1", "memory": "5k"});
        let all = ["cpu", "memory", "example.com/gpu"];
        for (resources, more, want) in [
            (&all[..], asked(), 50 + (50 + 90 - 97) / 2),
            (&all[..2], asked(), 50 + (50 + 90 - 97) / 2),
            (&all[..], without_gpu(), 50 + (50 + 90 - 97) / 2),
            // One resource is always in balance.
            (&all[..1], asked(), 75),
            (&all[2..], asked(), 75),
            // More than the capacity counts as all of it: 1.0 and 0.7.
            (&all[..2], json!({"cpu": "9", "memory": "5k"}), 50 + (50 + 85 - 97) / 2),
        ] {
            let balanced_resources = resources.iter().map(|r| (*r).to_owned()).collect();
            let profile = Profile { balanced_resources, ..Profile::default() };
            assert_eq!(scores(profile, more.clone()).1, want, "{resources:?} {more}");
        }
    }
}
