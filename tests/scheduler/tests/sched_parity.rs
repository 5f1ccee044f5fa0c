//! The real scheduler's recorded decisions, reproduced to the bit.
//!
//! Every case: PreFilter status, skipped plugins, the status and the reasons of every node, raw,
//! normalised and weighted scores of every plugin, totals, the message of an unschedulable pod.

#[path = "sched/compare.rs"]
mod compare;
#[path = "sched/recorded.rs"]
mod recorded;

use compare::{compare, compare_preemption, only_differing};
use pintle_sched_core::Profile;

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
            compare(&mut cluster, &Profile::default(), case, &mut |what, ours, theirs| {
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
