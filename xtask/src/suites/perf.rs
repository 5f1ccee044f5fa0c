//! Workloads of upstream's `scheduler_perf`, with upstream's scheduler and with ours.
//!
//! Input: which workloads, and our program. Output: a table of pods a second as the suite itself
//! measures them. Both run in the same way, one after the other. Upstream's decides in the process
//! that also serves the API; beside ours, that process still follows all pods for its own caches.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::packages::{start, test_command};
use super::suite::PERF;
use super::{Plan, SCHEDULER, reports};
use crate::shell::say;
use crate::upstream::Patched;

/// The longest that a workload may take.
const WORKLOAD_MAX: &str = "15m";
/// Prefix of the runner's metric names.
const THROUGHPUT: &str = "SchedulingThroughput/";
/// Package and workload: those that take a minute or two on two cores.
const WORKLOADS: [(&str, &str); 8] = [
    ("misc", "SchedulingBasic/500Nodes"),
    ("misc", "PreemptionAsync/500Nodes"),
    ("misc", "Unschedulable/500Nodes/10Init/1kPods"),
    ("affinity", "SchedulingPodAntiAffinity/500Nodes"),
    ("affinity", "SchedulingPodAffinity/500Nodes"),
    ("affinity", "SchedulingPreferredPodAffinity/500Nodes"),
    ("topology_spreading", "TopologySpreading/500Nodes"),
    ("topology_spreading", "PreferredTopologySpreading/500Nodes"),
];

/// Runs the workloads whose name contains the plan's focus; fails if one did not run to its end.
pub fn run(plan: &Plan) -> Result<bool> {
    let patched = Patched::ensure(SCHEDULER.name)?;
    let chosen = WORKLOADS.iter().filter(|(_, name)| name.contains(&plan.focus));
    let chosen: Vec<_> = chosen.collect();
    ensure!(!chosen.is_empty(), "no workload is chosen");
    let mut text =
        format!("{:<45}  {:>14}  {:>10}  {:>6}\n", "pods a second", "kube-scheduler", "pintle", "");
    let mut is_good = true;
    for (package, name) in chosen {
        let theirs = workload(&patched, package, name, None)?;
        let ours = match &plan.program {
            Some(program) => workload(&patched, package, name, Some(program))?,
            None => None,
        };
        is_good &= theirs.is_some() && (ours.is_some() || plan.program.is_none());
        let cell = |of: Option<f64>| of.map_or_else(|| "-".to_owned(), |n| format!("{n:.0}"));
        let ratio = ours.zip(theirs).map_or_else(String::new, |(a, b)| format!("{:.1}x", a / b));
        text += &format!("{name:<45}  {:>14}  {:>10}  {ratio:>6}\n", cell(theirs), cell(ours));
    }
    fs::write(reports(&SCHEDULER)?.join("perf.txt"), &text)?;
    print!("{text}");
    Ok(is_good)
}

/// Average throughput of a workload; none if it failed or did not end.
fn workload(
    patched: &Patched,
    package: &str,
    name: &str,
    scheduler: Option<&Path>,
) -> Result<Option<f64>> {
    let path = format!("{PERF}/{package}");
    let program = patched.test_program(&path)?;
    let who = if scheduler.is_some() { "pintle" } else { "kube-scheduler" };
    let log = reports(&SCHEDULER)?.join(format!("perf-{}-{who}.log", name.replace('/', "_")));
    say("run", &format!("{name} with {who}; {}", log.display()));
    let mut cmd = test_command(patched, &program, &patched.package(&path))?;
    SCHEDULER.point(&mut cmd, scheduler);
    let pattern: Vec<String> = name.split('/').map(|part| format!("^{part}$")).collect();
    cmd.arg(format!("-test.bench=^BenchmarkPerfScheduling$/{}", pattern.join("/")));
    cmd.args(["-test.run=^$", "-test.benchtime=1ns", "-perf-scheduling-label-filter="]);
    cmd.arg(format!("-test.timeout={WORKLOAD_MAX}"));
    let status = start(&mut cmd, &log)?.wait().context("wait for the workload")?;
    let text = String::from_utf8_lossy(&fs::read(&log).context("read the log")?).into_owned();
    Ok(throughput(&text).filter(|_| status.success()))
}

/// Reads the average throughput from a benchmark's output.
fn throughput(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(&format!("{THROUGHPUT}Average")))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == format!("{THROUGHPUT}Average"))?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_average_is_the_number_before_its_label() {
        let line = "BenchmarkPerfScheduling/SchedulingBasic/500Nodes-2 \t 1\t 512.5 \
                    SchedulingThroughput/Average\t 700 SchedulingThroughput/Perc90\n";
        assert_eq!(throughput(&format!("x\n{line}PASS\n")), Some(512.5));
        assert_eq!(throughput("PASS\n"), None);
    }
}
