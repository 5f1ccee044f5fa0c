//! Every observable of a decision compared with the real scheduler's.
//!
//! Input: a cluster and a case in the form of tests/recorded/SCHEDULER-VECTORS.md. Output: the
//! differences.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::config::Plugin;
use pintle_sched_core::explain;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::preempt::{self, Budget};
use pintle_sched_core::select::{self, Detail, Outcome, PreFilterRefusal, Scratch};
use pintle_sched_core::{Cluster, Profile};
use serde_json::{Value, json};

/// Reports every observable of a case: what, ours, recorded.
pub(crate) fn compare(
    cluster: &mut Cluster,
    profile: &Profile,
    case: &Value,
    report: &mut dyn FnMut(&str, Value, Value),
) {
    let pod = pod(case);
    let program = cluster.compile(&pod).expect("recorded pod compiles");
    let mut scratch = Scratch::default();
    let (outcome, detail) = select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
    let plain = select::decide(cluster.view(), &program, &mut Scratch::default());
    report("fast path", json!(plain == outcome), json!(true));
    let nodes = cluster.view().node_count();
    if let Some(PreFilterRefusal::PreFilter(plugin, reason)) = &outcome.refusal {
        let theirs = &case["prefilter"];
        report("prefilter plugin", json!(plugin.name()), theirs["plugin"].clone());
        report("prefilter reasons", json!([reason]), theirs["reasons"].clone());
        report("prefilter status", json!("UnschedulableAndUnresolvable"), theirs["status"].clone());
        let text = explain::refused(nodes, &PreFilterRefusal::PreFilter(*plugin, reason.clone()));
        report("message", json!(text), case["message"].clone());
        return;
    }
    report("prefilter status", json!("Success"), case["prefilter"]["status"].clone());
    let mut subset: Option<Vec<&str>> = program
        .node_affinity
        .subset
        .as_ref()
        .map(|names| names.iter().map(|n| cluster.text(*n)).collect());
    if let Some(names) = &mut subset {
        names.sort_unstable();
    }
    report("prefilter nodes", json!(subset), sorted(&case["prefilter"]["nodes"]));
    let skipped = explain::skipped_filters(cluster.view(), &program);
    let names: Vec<_> = skipped.iter().map(|p| p.name()).collect();
    report("skipped filters", sorted(&json!(names)), sorted(&case["skipped_filter_plugins"]));
    let statuses = explain::statuses(cluster, &program, &detail, &mut scratch);
    report("feasible", json!(outcome.feasible), case["feasible"].clone());
    compare_statuses(cluster, &statuses, case, report);
    match &outcome.refusal {
        Some(PreFilterRefusal::Error(error)) => {
            report("error", json!(error), case["error"].clone())
        }
        _ => report("error", Value::Null, case.get("error").cloned().unwrap_or_default()),
    }
    if outcome.feasible == 0 {
        let text = explain::summary(nodes, statuses.iter().map(|(_, s)| s));
        report("message", json!(text), case["message"].clone());
    } else if outcome.refusal.is_none() {
        let (outcome, detail, scratch) = (&outcome, &detail, &scratch);
        let scored = ScoredDecision { outcome, detail, scratch };
        compare_scores(cluster, profile, scored, case, report);
    }
}

/// Reports what preemption would do for the pod of a case that fits nowhere: what, ours, recorded.
pub(crate) fn compare_preemption(
    cluster: &mut Cluster,
    budgets: &[Budget],
    case: &Value,
    report: &mut dyn FnMut(&str, Value, Value),
) {
    let pod = pod(case);
    let program = cluster.compile(&pod).expect("recorded pod compiles");
    let mut scratch = Scratch::default();
    let (outcome, detail) = select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
    report("feasible", json!(outcome.feasible), json!(0));
    let statuses = explain::statuses(cluster, &program, &detail, &mut scratch);
    compare_statuses(cluster, &statuses, case, report);
    let run = preempt::dry_run(cluster, &pod, &program, &statuses, budgets, &mut scratch);
    report("eligible", json!(run.ineligible.is_none()), case["eligible"].clone());
    report("eligible message", json!(run.ineligible), case["eligible_message"].clone());
    let name = |row: u32| cluster.node_name(row).to_owned();
    let mut potential: Vec<String> = run.potential.iter().map(|r| name(*r)).collect();
    potential.sort_unstable();
    report("potential nodes", json!(potential), sorted(&case["potential_nodes"]));
    let candidates: Value = run
        .candidates
        .iter()
        .map(|c| {
            let victims: Vec<_> = c.victims.iter().map(|id| cluster.pod_name(*id)).collect();
            (name(c.row), json!({"victims": victims, "pdb_violations": c.violations}))
        })
        .collect();
    report("candidates", candidates, case["candidates"].clone());
    let rejected = run.rejected.iter().map(|(row, s)| {
        let mut status = as_recorded(s);
        status.as_object_mut().expect("map").remove("absent");
        (name(*row), status)
    });
    report("rejected", rejected.collect(), case["rejected"].clone());
    let chosen = run.chosen.map(|at| name(run.candidates[at].row));
    match case.get("chosen") {
        Some(theirs) => {
            let theirs = theirs.as_str().filter(|c| !c.is_empty());
            report("chosen", json!(chosen), json!(theirs));
        }
        // Upstream chooses at random among nodes of equal score.
        None => {
            let tied = case["tied"].as_array().map_or(&[][..], Vec::as_slice);
            let is_one = chosen.as_ref().map_or(tied.is_empty(), |c| tied.contains(&json!(c)));
            report("chosen", json!(chosen), if is_one { json!(chosen) } else { json!(tied) });
        }
    }
    if let Some(reason) = case["postfilter"]["reasons"].get(1) {
        let nodes = cluster.view().node_count();
        report("postfilter", json!(preempt::summary(nodes, &run)), reason.clone());
    }
    let text = explain::summary(cluster.view().node_count(), statuses.iter().map(|(_, s)| s));
    report("message", json!(text), case["message"].clone());
}

/// The pod of a case.
pub(crate) fn pod(case: &Value) -> Pod {
    serde_json::from_value(case["pod"].clone()).expect("a pod")
}

/// Of two maps, the entries that are not the same.
pub(crate) fn only_differing(mut ours: Value, mut theirs: Value) -> (Value, Value) {
    if let (Some(a), Some(b)) = (ours.as_object_mut(), theirs.as_object_mut()) {
        let same = |k: &String| a.get(k) == b.get(k);
        let equal: Vec<String> = a.keys().filter(|k| same(k)).cloned().collect();
        for key in &equal {
            a.remove(key);
            b.remove(key);
        }
    }
    (ours, theirs)
}

pub(crate) fn sorted(list: &Value) -> Value {
    let mut list = match list {
        Value::Array(list) => list.clone(),
        other => return other.clone(),
    };
    list.sort_by_key(|v| v.to_string());
    Value::Array(list)
}

pub(crate) fn compare_statuses(
    cluster: &Cluster,
    statuses: &[(u32, Status)],
    case: &Value,
    report: &mut dyn FnMut(&str, Value, Value),
) {
    let ours: BTreeMap<&str, &Status> =
        statuses.iter().map(|(row, s)| (cluster.node_name(*row), s)).collect();
    for (node, theirs) in case["filter"].as_object().expect("filter map") {
        let ours = match ours.get(node.as_str()) {
            None => json!({"status": "Success"}),
            Some(status) => as_recorded(status),
        };
        let mut theirs = theirs.clone();
        scalars_in_any_order(&mut theirs);
        let mut ours = ours;
        scalars_in_any_order(&mut ours);
        report(&format!("filter {node}"), ours, theirs);
    }
}

/// Upstream walks extended resources in the order of a hash map: their reasons may be in any order.
fn scalars_in_any_order(status: &mut Value) {
    if let Some(reasons) = status["reasons"].as_array_mut() {
        let fixed = ["Too many pods", "Insufficient cpu", "Insufficient memory"];
        let at = reasons.iter().take_while(|r| {
            fixed.contains(&r.as_str().unwrap_or("")) || *r == "Insufficient ephemeral-storage"
        });
        let at = at.count();
        reasons[at..].sort_by_key(|r| r.to_string());
    }
}

pub(crate) fn as_recorded(status: &Status) -> Value {
    let code = match status.code {
        Code::Unschedulable => "Unschedulable",
        Code::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
    };
    match status.plugin {
        Some(plugin) => json!({
            "status": code, "plugin": plugin.name(), "reasons": status.reasons
        }),
        None => json!({"status": code, "reasons": status.reasons, "absent": true}),
    }
}

/// A decision and the scores that led to it.
struct ScoredDecision<'a> {
    outcome: &'a Outcome,
    detail: &'a Detail,
    scratch: &'a Scratch,
}

fn compare_scores(
    cluster: &Cluster,
    profile: &Profile,
    ScoredDecision { outcome, detail, scratch }: ScoredDecision<'_>,
    case: &Value,
    report: &mut dyn FnMut(&str, Value, Value),
) {
    let rows: Vec<u32> = scratch.feasible.iter().collect();
    let by_node = |of: &dyn Fn(u32) -> i64| -> Value {
        rows.iter().map(|r| (cluster.node_name(*r).to_owned(), json!(of(*r)))).collect()
    };
    for kind in ["raw", "normalized", "weighted"] {
        let mut ours = serde_json::Map::new();
        for plugin in Plugin::ALL {
            let Some(scores) = &detail.scores[plugin as usize] else { continue };
            let weight = profile.weight(plugin);
            let value = by_node(&|row| match kind {
                "raw" => scores.raw[row as usize],
                "normalized" => scores.normalised[row as usize],
                _ => scores.normalised[row as usize] * weight,
            });
            ours.insert(plugin.name().to_owned(), value);
        }
        for (plugin, theirs) in case[kind].as_object().expect("score map") {
            let ours = ours.remove(plugin).unwrap_or_default();
            report(&format!("{kind} {plugin}"), ours, theirs.clone());
        }
        report(&format!("{kind} of more plugins"), json!(ours.len()), json!(0));
    }
    let total = by_node(&|row| scratch.total[row as usize].into());
    report("total", total, case["total"].clone());
    let best = case["total"].as_object().expect("totals");
    let best = best.values().filter_map(Value::as_i64).max();
    report("best", json!(outcome.best), json!(best));
    let ties = case["total"].as_object().expect("totals").values();
    report("ties", json!(outcome.ties), json!(ties.filter(|t| t.as_i64() == best).count()));
}
