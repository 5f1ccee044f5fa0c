//! The stages that need nothing but a compiler: formatting, style, lints, documentation, models.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::programs::Choice;
use super::report::TestCounts;
use super::{TestRun, programs, whole};
use crate::node::agent;
use crate::repository;
use crate::shell::{self, cargo};

/// Names the program that cargo compiles the workspace's crates with.
const COMPILER: &str = "RUSTC_WORKSPACE_WRAPPER";

pub(super) fn fmt(_: &TestRun) -> Result<TestCounts> {
    check(cargo(&["fmt", "--all", "--check"]))
}

pub(super) fn tidy(_: &TestRun) -> Result<TestCounts> {
    ended_well(xtask_tidy::run()?, "something is over a hard limit")
}

/// The lints of all crates. Where clippy compiles them, as in CI, earlier stages have linted what they
/// compiled: cargo repeats the warnings of crates that it need not compile again.
pub(super) fn clippy(_: &TestRun) -> Result<TestCounts> {
    if std::env::var_os(COMPILER).is_some_and(|program| is_clippy(Path::new(&program))) {
        return compiled_warnings();
    }
    let all = ["clippy", "--locked", "--quiet", "--workspace", "--all-targets"];
    let mut cmd = cargo(&all);
    cmd.args(["--", "-D", "warnings"]);
    check(cmd)
}

fn is_clippy(program: &Path) -> bool {
    program.file_stem().is_some_and(|name| name == "clippy-driver")
}

/// Warnings of what the stages compile, and of the benchmarks, which no stage does.
fn compiled_warnings() -> Result<TestCounts> {
    let (all, sim) = (Choice::All.args()?, Choice::Stage("sim").args()?);
    let benches = crate::task::targets("bench")?.into_iter().map(|target| target.name);
    let benches: Vec<String> = benches.flat_map(|name| ["--bench".to_owned(), name]).collect();
    let mut commands = [
        cargo(&["build", "--locked", "--workspace"]),
        cargo(&["test", "--locked", "--workspace", "--no-run"]),
        cargo(&["test", "--locked", "--workspace", "--no-run", "--config", agent::OPTIMIZED]),
        cargo(&["check", "--locked", "--workspace"]),
    ];
    commands[1].args(all);
    commands[2].args(sim);
    commands[3].args(benches);
    for cmd in &mut commands {
        cmd.args(["--quiet", "--message-format=json"])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        let out = cmd.output().with_context(|| format!("cannot start: {}", shell::line(cmd)))?;
        let warnings = warnings(&String::from_utf8_lossy(&out.stdout));
        warnings.iter().for_each(|warning| eprintln!("{warning}"));
        let is_clean = out.status.success() && warnings.is_empty();
        ensure!(is_clean, "{}, with {} warnings: {}", out.status, warnings.len(), shell::line(cmd));
    }
    Ok(TestCounts::PASSED)
}

/// The warnings in cargo's messages, as people read them.
fn warnings(messages: &str) -> Vec<String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_compiler = messages.filter(|message| message["reason"] == "compiler-message");
    of_compiler.filter_map(|all| all["message"]["rendered"].as_str().map(str::to_owned)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_the_messages_of_the_compiler() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","fresh":true}"#,
            "\n",
            r#"{"reason":"compiler-message","message":{"rendered":"warning: unused"}}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(warnings(messages), ["warning: unused"]);
        assert!(is_clippy(Path::new("/usr/bin/clippy-driver")));
        assert!(!is_clippy(Path::new("sccache")));
    }
}
