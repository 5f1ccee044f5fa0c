//! The stages that need nothing but a compiler: formatting, style, lints, documentation, models.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use super::report::TestCounts;
use super::{TestRun, programs, whole};
use crate::repository;
use crate::shell::{self, cargo};

pub(super) fn fmt(_: &TestRun) -> Result<TestCounts> {
    check(cargo(&["fmt", "--all", "--check"]))
}

pub(super) fn tidy(_: &TestRun) -> Result<TestCounts> {
    ended_well(xtask_tidy::run()?, "something is over a hard limit")
}

pub(super) fn clippy(_: &TestRun) -> Result<TestCounts> {
    let all = ["clippy", "--locked", "--quiet", "--workspace", "--all-targets"];
    let mut cmd = cargo(&all);
    cmd.args(["--", "-D", "warnings"]);
    check(cmd)
}

/// The documentation of all crates: links that lead nowhere, markup that is broken.
pub(super) fn doc(_: &TestRun) -> Result<TestCounts> {
    let mut cmd = cargo(&["doc", "--locked", "--quiet", "--no-deps", "--workspace"]);
    cmd.env("RUSTDOCFLAGS", "-D warnings").env_remove("CARGO_ENCODED_RUSTDOCFLAGS");
    check(cmd)
}

/// Every crate with a `cfg(loom)` dependency and models in `tests/loom.rs`, that target only: under
/// that configuration other tests would use the checked types outside of a model. Only the models
/// and the checker are optimised: they run for long, everything else just has to be there.
pub(super) fn loom(run: &TestRun) -> Result<TestCounts> {
    let mut total = TestCounts::default();
    let packages = loom_packages()?;
    ensure!(!packages.is_empty(), "no crate has a loom model");
    for package in packages {
        let mut cmd = cargo(&["test", "--locked", "--test", "loom", "--package", &package]);
        for optimised in ["loom", &package] {
            cmd.args(["--config", &format!("profile.dev.package.{optimised}.opt-level=3")]);
        }
        cmd.args(["--target-dir", "target/loom"]);
        cmd.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
        total.add(whole(programs::watch(&mut cmd, &run.skips)?, &package));
    }
    Ok(total)
}

fn loom_packages() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository())?.flatten() {
        let text = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap_or_default();
        let name = text.lines().find_map(|l| l.strip_prefix("name = "));
        let (true, Some(name)) = (text.contains("cfg(loom)"), name) else { continue };
        if entry.path().join("tests/loom.rs").exists() {
            found.push(name.trim_matches('"').to_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// A stage that is one yes or no.
fn check(mut cmd: Command) -> Result<TestCounts> {
    shell::run(&mut cmd)?;
    Ok(TestCounts::PASSED)
}

/// The same for another task of xtask.
pub(super) fn ended_well(code: ExitCode, otherwise: &str) -> Result<TestCounts> {
    ensure!(code == ExitCode::SUCCESS, "{otherwise}");
    Ok(TestCounts::PASSED)
}
