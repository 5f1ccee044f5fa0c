//! The real scheduler's recorded decisions, reproduced to the bit.
//!
//! Every case: PreFilter status, skipped plugins, the status and the reasons of every node, raw,
//! normalised and weighted scores of every plugin, totals, the message of an unschedulable pod.

#[path = "sched/compare.rs"]
mod compare;
#[path = "sched/recorded.rs"]
mod recorded;

use compare::{as_recorded, compare, compare_statuses, only_differing, pod, sorted};
use pintle_sched_core::explain;
use pintle_sched_core::preempt::{self, Budget};
use pintle_sched_core::select::{self, Scratch};
use pintle_sched_core::{Cluster, Profile};
use serde_json::{Value, json};

/// Differences of one case, as far as they are worth printing.
const DIFFERENCES_SHOWN: usize = 30;

#[test]
fn parity_of_every_recorded_vector() {
    let Some(recordings) = recorded::load("scheduler-vectors.jsonl.gz") else { return };
    let (mut cases, mut differences) = (0, Vec::new());
    for recording in &recordings {
        let mut cluster = recording.cluster(Profile::default());
        for case in &recording.cases {
            cases += 1;
            let name = format!("seed {} {}", recording.seed, case["scenario"]);
            compare((&mut cluster, &Profile::default()), case, &mut |what, ours, theirs| {
                if ours != theirs {
                    let (ours, theirs) = only_differing(ours, theirs);
                    differences.push(format!("{name} {what}: ours {ours}, recorded {theirs}"));
                }
            });
        }
    }
    println!("{} clusters, {cases} cases, {} differences", recordings.len(), differences.len());
    let shown: Vec<_> = differences.iter().take(DIFFERENCES_SHOWN).cloned().collect();
    assert!(differences.is_empty(), "{}", shown.join("\n"));
    assert!(cases > 0, "a recording without a single case");
}

#[test]
fn parity_of_every_recorded_preemption() {
    let Some(recordings) = recorded::load("scheduler-preemption.jsonl.gz") else { return };
    let (mut cases, mut differences) = (0, Vec::new());
    for recording in &recordings {
        let mut cluster = recording.cluster(Profile::default());
        let budgets = cluster.budgets(&recording.poddisruptionbudgets);
        for case in &recording.cases {
            cases += 1;
            let name = format!("seed {} {}", recording.seed, case["scenario"]);
            compare_preemption(&mut cluster, &budgets, case, &mut |what, ours, theirs| {
                if ours != theirs {
                    let (ours, theirs) = only_differing(ours, theirs);
                    differences.push(format!("{name} {what}: ours {ours}, recorded {theirs}"));
                }
            });
        }
    }
    println!(
        "{} clusters, {cases} preemptions, {} differences",
        recordings.len(),
        differences.len()
    );
    let shown: Vec<_> = differences.iter().take(DIFFERENCES_SHOWN).cloned().collect();
    assert!(differences.is_empty(), "{}", shown.join("\n"));
    assert!(cases > 0, "a recording without a single case");
}

fn compare_preemption(
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
    let theirs = case["chosen"].as_str().filter(|c| !c.is_empty());
    report("chosen", json!(chosen), json!(theirs));
    if let Some(reason) = case["postfilter"]["reasons"].get(1) {
        let nodes = cluster.view().node_count();
        report("postfilter", json!(preempt::summary(nodes, &run)), reason.clone());
    }
    let text = explain::summary(cluster.view().node_count(), statuses.iter().map(|(_, s)| s));
    report("message", json!(text), case["message"].clone());
}
