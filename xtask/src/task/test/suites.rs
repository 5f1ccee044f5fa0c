//! The stage `suites`: upstream's own tests of controllers, pointed at ours.
//!
//! Output: whether their results are those of upstream's controllers. A run that may sample has
//! [`SAMPLED`] of the short packages, chosen by the tree of the commit. All of them take half an
//! hour, because the tests wait for what they would see.

use anyhow::{Result, ensure};

use super::report::TestCounts;
use super::{TestRun, sample};
use crate::node::agent;
use crate::shell;
use crate::suites::{self, CONTROLLERS, Plan};

/// Packages that take less than a minute and a half each.
const SHORT: [&str; 4] = ["cronjob", "namespace", "serviceaccount", "statefulset"];
/// How many of them are in a sample.
const SAMPLED: usize = 2;
/// Packages at once.
const JOBS: usize = 2;

pub(super) fn run(run: &TestRun) -> Result<TestCounts> {
    let mut plan = Plan::of(&CONTROLLERS);
    plan.jobs = JOBS;
    if run.may_sample {
        let tree = sample::git(&["rev-parse", "HEAD^{tree}"]).unwrap_or_default();
        plan.packages = drawn(&tree);
        shell::say("suites", &plan.packages.join(", "));
    }
    plan.program = Some(agent::build_with_features(CONTROLLERS.ours, CONTROLLERS.features)?);
    ensure!(suites::run(&plan)?, "upstream's tests do not come to what they come to upstream");
    Ok(TestCounts::PASSED)
}

/// The packages of a sample.
fn drawn(tree: &str) -> Vec<String> {
    let mut packages = SHORT.map(|package| (sample::lot(tree, package), package));
    packages.sort_unstable();
    packages[..SAMPLED].iter().map(|(_, package)| (*package).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn drawn_packages_differ_between_trees_and_are_stable_for_a_tree() {
        assert_eq!(drawn("a"), drawn("a"));
        let seen: BTreeSet<String> = (0..40).flat_map(|n| drawn(&n.to_string())).collect();
        assert_eq!(seen.len(), SHORT.len());
    }
}
