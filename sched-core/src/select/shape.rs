//! Cached results by a pod's requests (its shape): feasibility, and the weighted scores of
//! utilisation and balance.
//!
//! Input: views, programs. Output: a bitset and a column by row. Owner: the scratch of one decider.
//! Bounds: `SHAPES_MAX` shapes and `BYTES_MAX` bytes; the least recently used shape is dropped. A
//! decision recomputes the rows that changed since the shape was last used, or all of them if that
//! is longer ago than the cluster remembers (`snapshot::changes`). Why with the decider and not
//! with the cluster: the writer would pay for every shape with every placement, even for shapes no
//! longer in use (docs/adr/0106).

use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;

use super::{Scratch, layered, numbers};
use crate::bits::Bits;
use crate::chunk::CHUNK_ROWS;
use crate::config::{Plugin, Profile};
use crate::filter::node;
use crate::intern::{FastHasher, Str};
use crate::program::Program;
use crate::requests::PodRequests;
use crate::score::resources;
use crate::simd;
use crate::simd::narrow::Scores;
use crate::snapshot::view::View;

/// Cached shapes of a decider.
const SHAPES_MAX: usize = 64;
/// Bytes of all cached shapes of a decider, except the last two.
const BYTES_MAX: usize = 64 << 20;

/// Inputs of a column in addition to the nodes.
#[derive(Debug)]
struct ShapeKey {
    profile: Arc<Profile>,
    requests: PodRequests,
    scalars: Box<[(Str, i64)]>,
    delegated: Box<[(Str, i64)]>,
}

impl ShapeKey {
    fn is(&self, view: &View, program: &Program) -> bool {
        Arc::ptr_eq(&self.profile, &view.profile)
            && self.requests == program.requests
            && self.scalars == program.scalars
            && self.delegated == program.delegated
    }
}

/// Scores by row, a byte each if the profile's weights allow it.
#[derive(Debug)]
pub(super) enum Column {
    Bytes(Vec<u8>),
    Shorts(Vec<u16>),
}

impl Column {
    pub(super) fn as_scores(&self) -> Scores<'_> {
        match self {
            Self::Bytes(scores) => Scores::Bytes(scores),
            Self::Shorts(scores) => Scores::Shorts(scores),
        }
    }

    fn resize(&mut self, rows: usize) {
        match self {
            Self::Bytes(scores) => scores.resize(rows, 0),
            Self::Shorts(scores) => scores.resize(rows, 0),
        }
    }
}

/// One shape.
#[derive(Debug)]
pub(super) struct Shape {
    hash: u64,
    key: ShapeKey,
    /// Weights of utilisation and balance.
    weights: (i64, i64),
    /// The decision that last used it.
    used: u64,
    /// The stamp of the rows that it was computed for.
    stamp: u64,
    /// Rows where the pod fits.
    pub(super) fits: Bits,
    /// Weighted scores by row, meaningful where it fits.
    pub(super) scores: Column,
}

/// Counts of results reused from earlier decisions about the same shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Decisions that reused results, and computed only the rows that changed since.
    pub taken: u64,
    /// Decisions that computed all rows.
    pub computed: u64,
    /// The shape was useless: more rows changed since than the cluster remembers.
    pub outdated: u64,
    /// The shape was dropped for another one.
    pub displaced: u64,
}

/// The cached shapes of a decider.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    shapes: Vec<Shape>,
    /// Counts since the last query.
    pub(super) handed: Handed,
    decisions: u64,
    /// The shape of the current decision.
    current: Option<usize>,
}

impl Shapes {
    /// Returns the shape of the current decision, if there is one.
    pub(super) fn current(&self) -> Option<&Shape> {
        self.current.map(|at| &self.shapes[at])
    }

    /// Ends the use of the current shape.
    pub(super) fn leave(&mut self) {
        self.current = None;
    }

    /// Returns an index for a new shape, given the rows of the table.
    fn place(&mut self, rows: usize) -> usize {
        let most = (BYTES_MAX / (rows * 2 + rows / 8 + 1)).clamp(2, SHAPES_MAX);
        while self.shapes.len() >= most {
            let oldest = self.shapes.iter().enumerate().min_by_key(|(_, shape)| shape.used);
            let at = oldest.map(|(at, _)| at).expect("two at least");
            self.shapes.swap_remove(at);
            self.handed.displaced += 1;
        }
        self.shapes.len()
    }
}

/// Returns the weights of the scores that a shape has, if all totals fit in as many bits.
fn weights(view: &View, program: &Program) -> Option<(i64, i64)> {
    let profile = &view.profile;
    if !layered::is_narrow(profile) {
        return None;
    }
    let balance = Plugin::NodeResourcesBalancedAllocation;
    let skips = resources::balance_skips(profile, program);
    let balance = if skips { 0 } else { profile.weight(balance) };
    let fit = profile.weight(Plugin::NodeResourcesFit);
    Some((fit, balance))
}

/// Makes the program's shape the current one, up to date with the view.
pub(super) fn enter(view: &View, program: &Program, scratch: &mut Scratch) {
    let mut shapes = std::mem::take(&mut scratch.shapes);
    shapes.decisions += 1;
    shapes.current = find(&mut shapes, view, program, scratch);
    scratch.shapes = shapes;
}

fn find(
    shapes: &mut Shapes,
    view: &View,
    program: &Program,
    scratch: &mut Scratch,
) -> Option<usize> {
    let hash = BuildHasherDefault::<FastHasher>::default().hash_one(&program.requests);
    let same = |shape: &Shape| shape.hash == hash && shape.key.is(view, program);
    let at = match shapes.shapes.iter().position(same) {
        Some(at) => {
            match shapes.shapes[at].refresh(view, program, scratch) {
                true => shapes.handed.taken += 1,
                false => {
                    shapes.handed.outdated += 1;
                    shapes.handed.computed += 1;
                }
            }
            at
        }
        None => {
            shapes.handed.computed += 1;
            let weights = weights(view, program)?;
            let at = shapes.place(view.rows);
            let mut shape = Shape::new(view, program, hash, weights);
            shape.compute(view, program, scratch);
            shapes.shapes.push(shape);
            at
        }
    };
    shapes.shapes[at].used = shapes.decisions;
    Some(at)
}

impl Shape {
    fn new(view: &View, program: &Program, hash: u64, weights: (i64, i64)) -> Self {
        let key = ShapeKey {
            profile: Arc::clone(&view.profile),
            requests: program.requests.clone(),
            scalars: program.scalars.clone(),
            delegated: program.delegated.clone(),
        };
        let fits = Bits::default();
        let scores = match (weights.0 + weights.1) * resources::SCORE_MAX {
            0..256 => Column::Bytes(Vec::new()),
            _ => Column::Shorts(Vec::new()),
        };
        Self { hash, key, weights, used: 0, stamp: 0, fits, scores }
    }

    /// Recomputes the changed rows; returns false if they are not known.
    fn refresh(&mut self, view: &View, program: &Program, scratch: &mut Scratch) -> bool {
        let rows = view.chunks.len() * CHUNK_ROWS;
        if rows < self.scores.as_scores().rows() {
            // It is another cluster, because the table of rows never shrinks.
            self.compute(view, program, scratch);
            return false;
        }
        self.scores.resize(rows);
        self.fits.grow(view.rows);
        let is_known = view.changes.since(self.stamp, |row| self.row(view, program, row));
        if is_known {
            self.stamp = view.changes.stamp();
        } else {
            self.compute(view, program, scratch);
        }
        is_known
    }

    /// Computes one row.
    fn row(&mut self, view: &View, program: &Program, row: u32) {
        let n = view.numbers(row);
        let filters = view.profile.filters(Plugin::NodeResourcesFit);
        if filters && !node::fits_row(view, program, &n, row) {
            return self.fits.clear(row);
        }
        self.fits.set(row);
        let (mut score, (fit, balance)) = (0, self.weights);
        if fit != 0 {
            let of = resources::fit_score_default(view, program, &n, row) as u8;
            score += fit * i64::from(of);
        }
        if balance != 0 {
            let of = resources::balance_score_default(view, program, &n, row) as u8;
            score += balance * i64::from(of);
        }
        let fits = "weights were looked at";
        match &mut self.scores {
            Column::Bytes(scores) => scores[row as usize] = u8::try_from(score).expect(fits),
            Column::Shorts(scores) => scores[row as usize] = u16::try_from(score).expect(fits),
        }
    }

    /// Computes all rows.
    fn compute(&mut self, view: &View, program: &Program, scratch: &mut Scratch) {
        self.stamp = view.changes.stamp();
        self.fits.copy_from(&view.valid, view.rows);
        if view.profile.filters(Plugin::NodeResourcesFit) {
            node::resources(view, program, &mut scratch.filter.node, &mut self.fits);
        }
        let (fit, balance) = self.weights;
        // The kernels process the rows of a mask.
        std::mem::swap(&mut scratch.feasible, &mut self.fits);
        numbers(view, program, scratch, fit != 0, balance != 0);
        std::mem::swap(&mut scratch.feasible, &mut self.fits);
        self.scores.resize(view.chunks.len() * CHUNK_ROWS);
        match &mut self.scores {
            Column::Bytes(scores) => {
                let weights = (fit as u8, balance as u8);
                simd::combine_bytes(&scratch.fit, &scratch.balance, weights, scores);
            }
            Column::Shorts(scores) => {
                let weights = (fit as u16, balance as u16);
                simd::combine_shorts(&scratch.fit, &scratch.balance, weights, scores);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Cluster;
    use crate::config::Strategy;
    use crate::select::{decide, decide_in_detail};
    use crate::snapshot::tests::{node_with, pod_with};

    /// A deterministic random generator.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % end
        }
    }

    fn pod(name: &str, shape: u64) -> k8s_openapi::api::core::v1::Pod {
        pod_with(name, |p| {
            let gpu = if shape.is_multiple_of(3) { "1" } else { "0" };
            p["metadata"]["uid"] = json!(name);
            p["spec"]["containers"][0]["resources"]["requests"] = json!({
                "cpu": format!("{}m", 100 + shape * 130), "memory": format!("{}Mi", shape * 90),
                "example.com/gpu": gpu});
        })
    }

    /// One change of a cluster: a node is added, changed or deleted, a pod is added or deleted.
    fn change(cluster: &mut Cluster, dice: &mut Dice, at: u64) {
        let name = format!("n{}", dice.below(90));
        match dice.below(8) {
            0 => {
                let (cpu, gpu) = (dice.below(9), dice.below(4));
                // Some are beyond what the columns hold.
                let mem = if dice.below(5) == 0 { "80Ti" } else { "3Gi" };
                let node = node_with(&name, |n| {
                    let list = &mut n["status"]["allocatable"];
                    (list["cpu"], list["memory"]) = (json!(cpu.to_string()), json!(mem));
                    if gpu != 0 {
                        list["example.com/gpu"] = json!(gpu.to_string());
                    }
                });
                cluster.set_node(&node).expect("node");
            }
            1 => _ = cluster.remove_node(&name),
            2..=5 => {
                let pod = pod(&format!("p{at}"), dice.below(7));
                _ = cluster.assume(&pod, &name);
            }
            _ => _ = cluster.remove_pod(&pod(&format!("p{}", dice.below(at + 1)), 0)),
        }
    }

    fn assert_kept_equals_fresh(cluster: &mut Cluster, kept: &mut Scratch, shape: u64) {
        let program = cluster.compile(&pod("asks", shape)).expect("pod");
        let short = decide(cluster.view(), &program, kept);
        kept.totals(cluster.view(), &program);
        let mut fresh = Scratch::default();
        let (long, _) = decide_in_detail(cluster.view(), &program, &[], &mut fresh);
        assert_eq!(short, long);
        if short.feasible > 0 {
            assert_eq!((&kept.feasible, &kept.ties), (&fresh.feasible, &fresh.ties));
        }
        for row in fresh.feasible.iter() {
            assert_eq!(kept.total[row as usize], fresh.total[row as usize], "row {row}");
        }
    }

    #[test]
    fn kept_shapes_equal_fresh_ones_after_any_deltas() {
        let most = Profile { strategy: Strategy::MostAllocated, ..Profile::default() };
        let profiles = [Arc::new(Profile::default()), Arc::new(most)];
        let (mut kept, mut dice) = (Scratch::default(), Dice(7));
        let mut cluster = Cluster::new(Profile::default());
        let mut fork = cluster.clone();
        for at in 0..6_000 {
            change(&mut cluster, &mut dice, at);
            if dice.below(40) == 0 {
                // Two copies diverge, and one decider sees both.
                std::mem::swap(&mut cluster, &mut fork);
            }
            if dice.below(400) == 0 {
                fork = cluster.clone();
            }
            // Sometimes there are more changes than the cluster remembers.
            if at % 3_000 > 1_600 && dice.below(3) == 0 {
                cluster.use_profile(&profiles[dice.below(2) as usize]);
                assert_kept_equals_fresh(&mut cluster, &mut kept, dice.below(7));
            }
        }
        let shapes = &kept.shapes.shapes;
        assert!(shapes.len() > 7 && shapes.iter().any(|s| s.fits.count() > 20), "{}", shapes.len());
    }

    #[test]
    fn least_recently_used_shape_is_displaced_first() {
        let mut cluster = Cluster::new(Profile::default());
        cluster.set_node(&node_with("n", |_| ())).expect("node");
        let mut scratch = Scratch::default();
        for shape in 0..SHAPES_MAX as u64 * 2 {
            for shape in [1, shape + 2] {
                let program = cluster.compile(&pod("asks", shape)).expect("pod");
                decide(cluster.view(), &program, &mut scratch);
            }
        }
        let asked = |shape: &Shape| shape.key.requests.plain.cpu_milli;
        let shapes = &scratch.shapes.shapes;
        assert_eq!(shapes.len(), SHAPES_MAX);
        assert!(shapes.iter().any(|s| asked(s) == 230), "asked for again and again");
        assert!(!shapes.iter().any(|s| asked(s) == 360), "asked for once, long ago");
        let (all, asks) = (2 * SHAPES_MAX as u64, 4 * SHAPES_MAX as u64);
        let handed = scratch.take_handed();
        let computed = all + 1;
        let displaced = computed - SHAPES_MAX as u64;
        let taken = asks - computed;
        assert_eq!(handed, Handed { taken, computed, outdated: 0, displaced });
        assert_eq!(scratch.take_handed(), Handed::default(), "the counts were taken");
    }

    #[test]
    fn a_shape_that_too_much_has_happened_to_is_of_no_use() {
        let mut cluster = Cluster::new(Profile::default());
        cluster.set_node(&node_with("n", |_| ())).expect("node");
        let mut scratch = Scratch::default();
        let mut asks = |cluster: &mut Cluster| {
            let program = cluster.compile(&pod("asks", 1)).expect("pod");
            decide(cluster.view(), &program, &mut scratch);
            scratch.take_handed()
        };
        let (taken, computed) = (Handed { taken: 1, ..Handed::default() }, 1);
        assert_eq!(asks(&mut cluster), Handed { computed, ..Handed::default() });
        cluster.assume(&pod("one", 1), "n").expect("it is there");
        assert_eq!(asks(&mut cluster), taken, "one row is computed again");
        for _ in 0..1_200 {
            cluster.remove_pod(&pod("one", 1)).expect("it is there");
            cluster.assume(&pod("one", 1), "n").expect("it is there");
        }
        assert_eq!(asks(&mut cluster), Handed { computed, outdated: 1, ..Handed::default() });
        assert_eq!(asks(&mut cluster), taken);
    }

    #[test]
    fn detailed_decision_reuses_no_shape() {
        let mut cluster = Cluster::new(Profile::default());
        cluster.set_node(&node_with("n", |_| ())).expect("node");
        let (mut scratch, program) = (Scratch::default(), cluster.compile(&pod("asks", 1)));
        let program = program.expect("pod");
        decide_in_detail(cluster.view(), &program, &[], &mut scratch);
        assert_eq!(scratch.take_handed(), Handed::default());
    }
}
