//! The stages with tests that race with a real kernel, a real runtime and a real API server.
//!
//! A few failed tests of a program run once more, alone: a test that passes then is flaky, which is
//! a bug to be fixed.

use std::collections::BTreeSet;
use std::thread;

use anyhow::{Result, bail, ensure};

use super::programs::{Choice, StageProgram};
use super::report::TestCounts;
use super::skips::Skips;
use super::{TestRun, prepare, sample};
use crate::cluster::{Agent, Cluster};
use crate::conformance::{self, Selection};
use crate::shell;

/// Failed tests of a stage that are worth a second try; more of them are no accident.
const RETRIED_MAX: usize = 4;
/// Half of the tests of the stage `cluster`, by their names.
const EVICTION: &str = "eviction";
/// Names the cluster that the tests of the stage `cluster` share.
const NAMED_CLUSTER: &str = "PINTLE_TEST_CLUSTER";
/// Tests of upstream's suite that run at once: they wait for most of their time.
const SUITE_PROCS: usize = 6;

pub(super) fn e2e(run: &TestRun) -> Result<TestCounts> {
    twice("e2e", run)
}

pub(super) fn hostile(run: &TestRun) -> Result<TestCounts> {
    twice("hostile", run)
}

/// The agent in a real cluster, which tests share: one at a time has it, and leaves it as it found
/// it. As they wait for most of their time, there are two, for half of the tests each.
pub(super) fn cluster(run: &TestRun) -> Result<TestCounts> {
    if run.filter.is_some() {
        // Perhaps none is chosen; those that are start their own.
        return twice("cluster", run);
    }
    run.programs(Choice::Stage("cluster"))?;
    let half = |purpose: &str, is_chosen: fn(&str) -> bool| {
        let cluster = Cluster::of_this_run(purpose)?.with_nodes(1)?;
        let name = cluster.layout().name().to_owned();
        let (env, skips) = ([(NAMED_CLUSTER, &*name)], Skips::of(purpose));
        on(&cluster, run, || tried_again("cluster", run, is_chosen, &env, &skips))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| half("eviction", |name| name.contains(EVICTION)));
        let mut counts = half("test", |name| !name.contains(EVICTION))?;
        let other = other.join().map_err(|_| anyhow::anyhow!("the other half panicked"))?;
        counts.add(other?);
        Ok(counts)
    })
}

/// Claims of a node of a real cluster, which its tests share.
pub(super) fn storage(run: &TestRun) -> Result<TestCounts> {
    if run.filter.is_some() {
        return twice("storage", run);
    }
    let cluster = Cluster::of_this_run("storage")?.with_nodes(1)?;
    let name = cluster.layout().name().to_owned();
    let (env, skips) = ([(NAMED_CLUSTER, &*name)], Skips::of("storage"));
    on(&cluster, run, || tried_again("storage", run, |_| true, &env, &skips))
}

/// The scheduler beside an API server and kube-scheduler, without any node.
pub(super) fn scheduler(run: &TestRun) -> Result<TestCounts> {
    twice("scheduler", run)
}

/// The controllers beside an API server and kube-controller-manager, without any node.
pub(super) fn controllers(run: &TestRun) -> Result<TestCounts> {
    twice("controllers", run)
}

/// The agent on cgroup v2 with systemd, a guest for each test.
pub(super) fn uml(run: &TestRun) -> Result<TestCounts> {
    twice("uml", run)
}

/// Nodes of the agent that kubeadm makes.
pub(super) fn kubeadm(run: &TestRun) -> Result<TestCounts> {
    twice("kubeadm", run)
}

/// Upstream's tests of a node that end soon, on a cluster of our agent.
pub(super) fn conformance(run: &TestRun) -> Result<TestCounts> {
    let cluster = Cluster::of_this_run("ci")?;
    conformance::prepare()?;
    let extent = sample::CONFORMANCE.extent(run);
    let names = extent.choose(conformance::fast_names()?);
    let mut marked = BTreeSet::new();
    let counts = on(&cluster, run, || fast(&cluster, &names, &mut marked));
    extent.conclude(counts, marked)
}

/// Starts a cluster with the agent under test, and removes it afterwards.
fn on(
    cluster: &Cluster,
    run: &TestRun,
    work: impl FnOnce() -> Result<TestCounts>,
) -> Result<TestCounts> {
    let agent = Agent::Pintle(Some(run.agent()?));
    for node in cluster.nodes() {
        cluster.choose_agent(node, &agent)?;
    }
    let result = cluster.up().and_then(|()| work());
    let result = result.and_then(|counts| cluster.replay_agents().map(|()| counts));
    cluster.down()?;
    result
}

/// The first run must run all chosen tests. Failed tests run once more, because these tests share a
/// small machine with five others and have limits of their own.
fn fast(cluster: &Cluster, names: &[String], marked: &mut BTreeSet<String>) -> Result<TestCounts> {
    let first = conformance::run(cluster, &Selection::exactly(names, SUITE_PROCS))?;
    let passed = first.passed.len();
    let mut counts = TestCounts { passed, failed: first.failed.len(), ..TestCounts::default() };
    if first.is_suite_broken {
        bail!("the suite itself failed; {passed} tests passed");
    }
    let chosen = names.len();
    ensure!(first.ran() == chosen, "{} of the {chosen} chosen tests ran", first.ran());
    marked.extend(first.failed.iter().cloned());
    if !first.failed.is_empty() && first.failed.len() <= RETRIED_MAX {
        let again = conformance::run(cluster, &Selection::exactly(&first.failed, 1))?;
        if !again.is_suite_broken {
            forgive(&mut counts, &first.failed, &again.passed);
        }
    }
    Ok(counts)
}

/// Runs a stage and repeats its failed tests.
fn twice(stage: &'static str, run: &TestRun) -> Result<TestCounts> {
    tried_again(stage, run, |_| true, &[], &run.skips)
}

/// The same for the tests accepted by `is_chosen`, with variables of the environment.
fn tried_again(
    stage: &'static str,
    run: &TestRun,
    is_chosen: fn(&str) -> bool,
    env: &[(&str, &str)],
    skips: &Skips,
) -> Result<TestCounts> {
    prepare::node_tools()?;
    let programs = run.programs(Choice::Stage(stage))?;
    let agent = match stage {
        // These have no node, and need not wait for the agent.
        "scheduler" | "controllers" => None,
        _ => Some(run.agent()?.to_string_lossy().into_owned()),
    };
    let mut env = env.to_vec();
    env.extend(agent.as_deref().map(|agent| ("PINTLE_AGENT", agent)));
    let chosen = chosen(stage, run, &programs, is_chosen)?;
    let args: Vec<&str> = chosen.iter().map(String::as_str).collect();
    let mut total = TestCounts::default();
    for program in &programs {
        let first = program.run(&args, &env, skips)?;
        let mut counts = first.counts;
        if first.is_whole && !first.failed.is_empty() && first.failed.len() <= RETRIED_MAX {
            let mut args = vec!["--exact", "--test-threads=1"];
            args.extend(first.failed.iter().map(String::as_str));
            let again = program.run(&args, &env, skips)?;
            forgive(&mut counts, &first.failed, &again.passed);
        }
        total.add(counts);
    }
    Ok(total)
}

/// Arguments that select the filter's tests, else the tests accepted by `is_chosen`; in a run of
/// everything half of these. A program ignores names of other programs' tests.
fn chosen(
    stage: &str,
    run: &TestRun,
    programs: &[StageProgram],
    is_chosen: fn(&str) -> bool,
) -> Result<Vec<String>> {
    if let Some(filter) = &run.filter {
        return Ok(vec![filter.clone()]);
    }
    let mut all = Vec::new();
    for program in programs {
        all.extend(program.list()?);
    }
    let names = all.iter().filter(|name| is_chosen(name)).cloned().collect();
    let names = sample::half(stage, run, names);
    ensure!(!names.is_empty(), "the stage {stage} has no test");
    if names.len() == all.len() {
        // Attacks have one more test, of all of them together.
        return Ok(Vec::new());
    }
    Ok(["--exact".to_owned()].into_iter().chain(names).collect())
}

/// Counts failed tests as flaky if the second run names them among the passed ones.
fn forgive(counts: &mut TestCounts, failed: &[String], passed: &[String]) {
    for name in failed.iter().filter(|name| passed.contains(name)) {
        shell::say("flaky", name);
        counts.passed += 1;
        counts.flaky += 1;
        counts.failed -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_test_is_flaky_only_if_its_second_run_passes() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<String>>();
        let failed = names(&["a", "b", "c"]);
        let first = TestCounts { passed: 5, failed: 3, ..TestCounts::default() };
        // The second run: a passed, b failed again, c did not run at all.
        let mut counts = first;
        forgive(&mut counts, &failed, &names(&["a", "x"]));
        assert_eq!(counts, TestCounts { passed: 6, failed: 2, skipped: 0, flaky: 1 });
        // A second run that did not reach its tests forgives nothing.
        let mut counts = first;
        forgive(&mut counts, &failed, &[]);
        assert_eq!(counts, first);
    }
}
