//! The components whose upstream tests can use another program, and the folders of the tests.
//!
//! A table. A package is called by its folder below that of its tests, behind the name that the
//! table gives these.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Plan;
use crate::repository;

/// A component of upstream's and the tests of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Suite {
    /// Its name here: of the patch, the lists and the folder of results.
    pub name: &'static str,
    /// Upstream's program.
    pub theirs: &'static str,
    /// Ours, and with which of its features it is built.
    pub ours: &'static str,
    /// Features of ours that tests need.
    pub features: &'static [&'static str],
    /// Environment variable with the program that the tests start.
    variable: &'static str,
    pub(super) tests: &'static [Tests],
}

/// Tests below a folder of upstream's module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tests {
    pub(super) path: &'static str,
    /// Prefix of the packages' names; empty for those that are named by their folder alone.
    pub(super) name: &'static str,
    pub(super) packages: Packages,
    /// They are long: they run when the focus begins with their name.
    pub(super) is_on_request: bool,
}

/// The packages of a folder that belong to a suite.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packages {
    All,
    /// All but the topmost, which has tests of something else.
    Below,
    /// Those of these names.
    Named(&'static [&'static str]),
}

/// Workloads of the scheduler: as tests they are short, and it counts that all pods are bound.
pub(super) const PERF: &str = "test/integration/scheduler_perf";

const fn all(path: &'static str, name: &'static str) -> Tests {
    Tests { path, name, packages: Packages::All, is_on_request: false }
}

/// The scheduler.
pub const SCHEDULER: Suite = Suite {
    name: "scheduler",
    theirs: "kube-scheduler",
    ours: "pintle-scheduler",
    features: &[],
    variable: "PINTLE_SCHEDULER",
    tests: &[
        all("test/integration/scheduler", ""),
        Tests {
            path: PERF,
            name: "scheduler_perf",
            packages: Packages::Below,
            is_on_request: true,
        },
        // Those that start a scheduler: with all features on, with the usual ones, and with those
        // that are final.
        Tests {
            path: "test/integration/dra",
            name: "dra",
            packages: Packages::Named(&["dra/all", "dra/default", "dra/ga"]),
            is_on_request: false,
        },
    ],
};

/// The controllers.
pub const CONTROLLERS: Suite = Suite {
    name: "controllers",
    theirs: "kube-controller-manager",
    ours: "pintle-controllers",
    features: &["pintle-controllers/suites"],
    variable: "PINTLE_CONTROLLERS",
    tests: &[
        all("test/integration/deployment", "deployment"),
        all("test/integration/replicaset", "replicaset"),
        all("test/integration/replicationcontroller", "replicationcontroller"),
        all("test/integration/job", "job"),
        all("test/integration/cronjob", "cronjob"),
        all("test/integration/daemonset", "daemonset"),
        all("test/integration/statefulset", "statefulset"),
        all("test/integration/garbagecollector", "garbagecollector"),
        all("test/integration/namespace", "namespace"),
        all("test/integration/quota", "quota"),
        all("test/integration/serviceaccount", "serviceaccount"),
    ],
};

/// All suites.
pub const SUITES: [&Suite; 2] = [&SCHEDULER, &CONTROLLERS];

impl Suite {
    /// The suite of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SUITES.into_iter().find(|suite| suite.name == name)
    }

    /// Results of the tests with upstream's own component.
    pub(super) fn list(&self) -> PathBuf {
        repository().join(format!("tests/upstream/{}.txt", self.name))
    }

    /// Tests that cannot use another program or are known to fail, each with the reason.
    pub(super) fn exceptions(&self) -> PathBuf {
        repository().join(format!("tests/upstream/{}-exceptions.txt", self.name))
    }

    /// The folder of logs and results.
    pub(super) fn results(&self) -> PathBuf {
        repository().join(format!("target/{}-suites", self.name))
    }

    /// The path of a package in upstream's module.
    pub(super) fn path_of(&self, package: &str) -> String {
        let below = |tests: &Tests| {
            let rest = package.strip_prefix(tests.name)?;
            let is_below = rest.is_empty() || rest.starts_with('/') || tests.name.is_empty();
            is_below.then(|| rest.trim_start_matches('/').to_owned())
        };
        // The folder without a name has whatever no other has.
        let mut named = self.tests.iter().filter(|tests| !tests.name.is_empty());
        let found = named.find_map(|tests| Some((tests, below(tests)?)));
        let nameless = || {
            let tests = self.tests.iter().find(|tests| tests.name.is_empty())?;
            Some((tests, if package == "." { String::new() } else { package.to_owned() }))
        };
        match found.or_else(nameless) {
            Some((tests, rest)) if rest.is_empty() => tests.path.to_owned(),
            Some((tests, rest)) => format!("{}/{rest}", tests.path),
            None => package.to_owned(),
        }
    }

    /// Returns whether a test runs: those on request run only if the plan's focus names them.
    pub(super) fn is_asked(&self, test: &str, plan: &Plan) -> bool {
        let is_long = |tests: &&Tests| tests.is_on_request && test.starts_with(tests.name);
        self.tests.iter().find(is_long).is_none_or(|tests| plan.focus.starts_with(tests.name))
    }

    /// Has the tests start this program, or upstream's own component in their process.
    pub(super) fn point(&self, cmd: &mut Command, program: Option<&Path>) {
        for suite in SUITES {
            cmd.env_remove(suite.variable);
        }
        if let Some(program) = program {
            cmd.env(self.variable, program);
        }
    }
}

impl Tests {
    /// Returns whether a test, `PACKAGE TEST`, is one of them.
    pub(super) fn has(&self, test: &str) -> bool {
        let package = test.split(' ').next().unwrap_or(test);
        match self.packages {
            Packages::All => true,
            Packages::Below => package != self.name,
            Packages::Named(names) => names.contains(&package),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_names_are_resolved_to_folders_by_the_name_of_their_tests() {
        let paths = [
            (".", "test/integration/scheduler"),
            ("a/b", "test/integration/scheduler/a/b"),
            ("scheduler_perf/dra", "test/integration/scheduler_perf/dra"),
            ("scheduler_perf", "test/integration/scheduler_perf"),
            ("dra/all", "test/integration/dra/all"),
        ];
        for (package, path) in paths {
            assert_eq!(SCHEDULER.path_of(package), path);
        }
        assert_eq!(CONTROLLERS.path_of("job"), "test/integration/job");
        assert_eq!(
            CONTROLLERS.path_of("replicationcontroller"),
            "test/integration/replicationcontroller"
        );
    }

    #[test]
    fn perf_workloads_run_only_if_named() {
        let plan = |focus: &str| Plan { focus: focus.to_owned(), ..Plan::of(&SCHEDULER) };
        assert!(!SCHEDULER.is_asked("scheduler_perf/misc TestA", &plan("misc")));
        assert!(SCHEDULER.is_asked("scheduler_perf/misc TestA", &plan("scheduler_perf/misc")));
        assert!(SCHEDULER.is_asked("filters TestA", &plan("")));
    }

    #[test]
    fn packages_that_no_scheduler_has_a_part_in_are_left_out() {
        let [_, perf, dra] = SCHEDULER.tests else { panic!("three folders") };
        assert!(dra.has("dra/ga TestDRA") && !dra.has("dra/stress TestDRA"));
        assert!(perf.has("scheduler_perf/misc TestA") && !perf.has("scheduler_perf TestA"));
    }
}
