//! Why one row fails: the first failing plugin, its code and its reasons in upstream's words.
//!
//! Input: view, program, the masks of all filters, a row. Output: a `Status`.
//! Owner: pure functions. Bounds: one row; callers that need all rows loop over them.

use super::interpod;
use super::spread::HardSpread;
use crate::bits::Bits;
use crate::chunk::Numbers;
use crate::columns::domain_counts::DomainCounts;
use crate::config::Plugin;
use crate::intern::Str;
use crate::program::Program;
use crate::snapshot::view::View;

/// Kind of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub enum Code {
    /// Removal of pods from the node may help: preemption is tried.
    Unschedulable,
    /// Removal of pods from the node cannot help.
    UnschedulableAndUnresolvable,
}

/// Rejection of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// The rejecting plugin; `None` for a node that was not filtered.
    pub plugin: Option<Plugin>,
    /// Whether preemption may help.
    pub code: Code,
    /// Reasons in upstream's order.
    pub reasons: Vec<String>,
}

impl Status {
    fn new(plugin: Plugin, code: Code, reason: &str) -> Self {
        Self { plugin: Some(plugin), code, reasons: vec![reason.to_owned()] }
    }

    /// Returns the status of a node outside the names to which node affinity restricts the pod.
    #[must_use]
    pub fn absent() -> Self {
        Self {
            plugin: None,
            code: Code::UnschedulableAndUnresolvable,
            reasons: vec!["node(s) didn't satisfy plugin(s) [NodeAffinity]".to_owned()],
        }
    }
}

use Code::{Unschedulable as Soft, UnschedulableAndUnresolvable as Hard};

/// Rows that pass parts of a filter, for filters with different reasons by part, if the pod has
/// such parts.
#[derive(Debug, Default)]
pub(crate) struct PassingParts {
    /// The affinity of the profile.
    pub(crate) added_affinity: Bits,
    /// The anti-affinity of the pod itself.
    pub(crate) anti_affinity: Bits,
}

/// A pod's filters over all rows.
#[derive(Clone, Copy)]
pub(crate) struct FilterState<'a> {
    pub(crate) view: &'a View,
    pub(crate) program: &'a Program,
    pub(crate) spread: &'a HardSpread,
    pub(crate) passing: &'a PassingParts,
}

/// Returns the status of a row that a plugin rejects.
pub(crate) fn of(
    plugin: Plugin,
    FilterState { view, program, spread, passing }: FilterState<'_>,
    row: u32,
    text: impl Fn(Str) -> String,
) -> Status {
    match plugin {
        Plugin::NodeUnschedulable => Status::new(plugin, Hard, "node(s) were unschedulable"),
        Plugin::NodeName => {
            Status::new(plugin, Hard, "node(s) didn't match the requested node name")
        }
        Plugin::TaintToleration => Status::new(plugin, Hard, "node(s) had untolerated taint(s)"),
        // The profile's affinity is checked first.
        Plugin::NodeAffinity
            if program.node_affinity.added.is_some() && !passing.added_affinity.get(row) =>
        {
            Status::new(plugin, Hard, "node(s) didn't match scheduler-enforced node affinity")
        }
        Plugin::NodeAffinity => {
            Status::new(plugin, Hard, "node(s) didn't match Pod's node affinity/selector")
        }
        Plugin::NodePorts => {
            Status::new(plugin, Soft, "node(s) didn't have free ports for the requested pod ports")
        }
        Plugin::NodeResourcesFit => {
            let scalar = |_, name| view.scalar(name, row);
            resources(program, &view.numbers(row), scalar, text)
                .expect("the filter rejected this row")
        }
        Plugin::PodTopologySpread => {
            let value = |at: usize| view.keys.column(program.spread.hard[at].key).value(row);
            let allows = |at: usize, value: u32| {
                spread.domains[at].allows(&program.spread.hard[at], value as usize)
            };
            spread_status(program, value, allows).expect("the filter rejected this row")
        }
        Plugin::InterPodAffinity => interpod_status(view, program, row, &passing.anti_affinity),
        Plugin::NodeDeclaredFeatures => {
            Status::new(plugin, Hard, "node(s) didn't match Pod's required features")
        }
        other => Status::new(other, Hard, "node(s) were rejected"),
    }
}

/// Evaluates the resource filter. `scalar` gets the index and the name of an extended resource, the
/// program's `scalars` before its `delegated`, and returns its allocatable and requested amount.
// k8s: noderesources/fit.go fitsRequest
pub(crate) fn resources(
    program: &Program,
    n: &Numbers,
    scalar: impl Fn(usize, Str) -> (Option<i64>, i64),
    text: impl Fn(Str) -> String,
) -> Option<Status> {
    let r = &program.requests.plain;
    let (mut reasons, mut code) = (Vec::new(), Soft);
    if n.pods_used >= n.pods {
        reasons.push("Too many pods".to_owned());
    }
    let mut check = |asked: i64, all: i64, used: i64, name: &dyn Fn() -> String| {
        if asked > 0 && asked > all.wrapping_sub(used) {
            reasons.push(format!("Insufficient {}", name()));
            if asked > all {
                code = Hard;
            }
        }
    };
    check(r.cpu_milli, n.cpu, n.cpu_used, &|| "cpu".into());
    check(r.mem_bytes, n.mem, n.mem_used, &|| "memory".into());
    check(r.eph_bytes, n.eph, n.eph_used, &|| "ephemeral-storage".into());
    for (at, (name, amount)) in program.scalars.iter().enumerate() {
        let (all, used) = scalar(at, *name);
        check(*amount, all.unwrap_or(0), used, &|| text(*name));
    }
    for (at, (name, amount)) in program.delegated.iter().enumerate() {
        if let (Some(all @ 1..), used) = scalar(program.scalars.len() + at, *name) {
            check(*amount, all, used, &|| text(*name));
        }
    }
    let plugin = Some(Plugin::NodeResourcesFit);
    (!reasons.is_empty()).then_some(Status { plugin, code, reasons })
}

/// Evaluates the spread filter for a row, given its value for each constraint, and a function that
/// returns true if the constraint allows the pod there.
pub(crate) fn spread_status(
    program: &Program,
    value: impl Fn(usize) -> u32,
    allows: impl Fn(usize, u32) -> bool,
) -> Option<Status> {
    let plugin = Plugin::PodTopologySpread;
    for at in 0..program.spread.hard.len() {
        let value = value(at);
        if value == 0 {
            let reason =
                "node(s) didn't match pod topology spread constraints (missing required label)";
            return Some(Status::new(plugin, Hard, reason));
        }
        if !allows(at, value) {
            let reason = "node(s) didn't match pod topology spread constraints";
            return Some(Status::new(plugin, Soft, reason));
        }
    }
    None
}

/// The three rules of pod affinity that reject a node, in upstream's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodRule {
    Affinity,
    Anti,
    Existing,
}

pub(crate) fn pod_rule(rule: PodRule) -> Status {
    let plugin = Plugin::InterPodAffinity;
    match rule {
        PodRule::Affinity => Status::new(plugin, Hard, "node(s) didn't match pod affinity rules"),
        PodRule::Anti => Status::new(plugin, Soft, "node(s) didn't match pod anti-affinity rules"),
        PodRule::Existing => {
            Status::new(plugin, Soft, "node(s) didn't satisfy existing pods anti-affinity rules")
        }
    }
}

fn interpod_status(view: &View, program: &Program, row: u32, unrepelled: &Bits) -> Status {
    let count = |key, counts: &DomainCounts| {
        let value = view.keys.column(key).value(row);
        (value != 0).then(|| counts.get(value))
    };
    if let Some((counter, keys)) = &program.pods.required {
        let counter = view.counts.counters.get(counter.0);
        let counts: Vec<_> = keys.iter().map(|k| count(*k, counter.domain(*k))).collect();
        let first = program.pods.meets_own && interpod::no_pod_matches(view, program);
        let unmet = counts.iter().any(|c| c.is_none_or(|c| c == 0 && !first));
        if unmet {
            return pod_rule(PodRule::Affinity);
        }
    }
    if !program.pods.anti.is_empty() && !unrepelled.get(row) {
        return pod_rule(PodRule::Anti);
    }
    pod_rule(PodRule::Existing)
}
