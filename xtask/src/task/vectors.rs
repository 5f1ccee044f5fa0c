//! `cargo xtask vectors`: syncs of random objects by upstream's controllers, and whether ours ask for
//! the same.
//!
//! Input: how many of each kind. Upstream's sync functions run in Go programs (`tests/upstream`) and
//! write what they read and did as lines; the tests of `pintle-controllers-loops` compare. Files are
//! made in parts of 5,000 lines, because a line has up to 10 KB, and are removed afterwards.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{self, cargo, timed};
use crate::upstream::Program;

const USAGE: &str = "\
usage: cargo xtask vectors [COUNT] [--only NAME]
  COUNT        syncs of each kind; otherwise 10000
  --only NAME  deployment, replicaset, statefulset, daemonset, job, cron or schedule";

/// Syncs of each kind, unless another number is asked for.
const COUNT: u64 = 10_000;
/// Lines of one file.
const PART: u64 = 5_000;
/// Where seeds begin: those of the lines in the repository are below.
const FIRST_SEED: u64 = 1_000_000;

/// A kind of vectors.
struct VectorKind {
    name: &'static str,
    program: Program,
    /// The variable that names the file, or the folder with it.
    variable: &'static str,
    /// The target of the tests and a part of the test's name.
    test: (&'static str, &'static str),
}

const UNIT: &str = "--lib";
const KINDS: [VectorKind; 7] = [
    VectorKind {
        name: "deployment",
        program: Program::ReplicaVectors,
        variable: "PINTLE_VECTORS",
        test: (UNIT, "sync_of_a_random_deployment_is_upstreams"),
    },
    VectorKind {
        name: "replicaset",
        program: Program::ReplicaVectors,
        variable: "PINTLE_VECTORS_RS",
        test: (UNIT, "sync_of_a_random_set_is_upstreams"),
    },
    VectorKind {
        name: "statefulset",
        program: Program::SetVectors,
        variable: "PINTLE_SET_VECTORS",
        test: ("--test=set_vectors", "stateful_sets_are_synced_as_upstream_does"),
    },
    VectorKind {
        name: "daemonset",
        program: Program::SetVectors,
        variable: "PINTLE_SET_VECTORS",
        test: ("--test=set_vectors", "daemon_sets_are_synced_as_upstream_does"),
    },
    VectorKind {
        name: "job",
        program: Program::JobVectors,
        variable: "PINTLE_JOB_VECTORS",
        test: (UNIT, "sync_of_a_random_job_does_what_upstream_does"),
    },
    VectorKind {
        name: "cron",
        program: Program::JobVectors,
        variable: "PINTLE_CRON_VECTORS",
        test: (UNIT, "sync_of_a_random_cron_job_does_what_upstream_does"),
    },
    VectorKind {
        name: "schedule",
        program: Program::JobVectors,
        variable: "PINTLE_SCHEDULE_VECTORS",
        test: (UNIT, "schedules_and_their_next_times_are_those_of_upstream"),
    },
];

/// What the arguments ask for.
struct Asked<'a> {
    count: u64,
    only: Option<&'a str>,
}

fn parse<'a>(mut args: &[&'a str]) -> Result<Option<Asked<'a>>> {
    let mut asked = Asked { count: COUNT, only: None };
    loop {
        args = match args {
            [] => return Ok(Some(asked)),
            ["help" | "--help" | "-h", ..] => return Ok(None),
            ["--only", name, rest @ ..] => {
                ensure!(KINDS.iter().any(|kind| kind.name == *name), "no vectors of {name:?}");
                asked.only = Some(name);
                rest
            }
            [count, rest @ ..] => {
                let Ok(count) = count.parse() else { bail!("{count:?} is no number\n{USAGE}") };
                asked.count = count;
                rest
            }
        };
    }
}

/// Compares as many syncs as the arguments ask for.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let Some(asked) = parse(args)? else {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    let folder = std::env::temp_dir().join(format!("pintle-vectors-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
    let mut failed = Vec::new();
    let is_asked = |kind: &&VectorKind| asked.only.is_none_or(|only| only == kind.name);
    for kind in KINDS.iter().filter(is_asked) {
        if let Err(error) = compare(kind, asked.count, &folder) {
            shell::say("differ", &format!("{}: {error:#}", kind.name));
            failed.push(kind.name);
        }
    }
    fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("vectors that differ: {}", failed.join(", "))
}

/// Makes the lines of a kind in parts and compares each.
fn compare(kind: &VectorKind, count: u64, folder: &Path) -> Result<()> {
    let program = kind.program.ensure()?;
    let file = folder.join(format!("{}.jsonl", kind.name));
    let mut first = 0;
    while first < count {
        let part = PART.min(count - first);
        let text = format!("{} {first} to {}", kind.name, first + part);
        timed("make", &text, || make(kind, &program, first, part, &file))?;
        timed("compare", &text, || test(kind, &file))?;
        fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        first += part;
    }
    Ok(())
}

/// Writes the lines of some seeds to a file.
fn make(kind: &VectorKind, program: &Path, first: u64, count: u64, file: &Path) -> Result<()> {
    let mut command = Command::new("nice");
    command.arg(program).env("TZ", "UTC").stderr(Stdio::null());
    let seed = FIRST_SEED + first;
    match kind.program {
        Program::SetVectors => {
            let questions: String = (seed..seed + count)
                .map(|seed| format!("{{\"kind\": \"{}\", \"seed\": {seed}}}\n", kind.name))
                .collect();
            let path = file.with_extension("questions");
            fs::write(&path, questions)?;
            command.stdin(File::open(&path)?);
        }
        Program::ReplicaVectors => {
            command.args([kind.name, &count.to_string(), &seed.to_string()]);
        }
        _ => {
            command.args(["-what", kind.name]);
            command.args(["-n", &count.to_string(), "-seed", &seed.to_string()]);
        }
    }
    let out = File::create(file).with_context(|| format!("create {}", file.display()))?;
    let status = command.stdout(out).status().context("run the program of the vectors")?;
    ensure!(status.success(), "the program of the vectors ended with {status}");
    Ok(())
}

/// Runs the test that compares a file.
fn test(kind: &VectorKind, file: &Path) -> Result<()> {
    let (target, name) = kind.test;
    let given: PathBuf = match kind.program {
        Program::SetVectors => file.parent().context("the file is in a folder")?.to_owned(),
        _ => file.to_owned(),
    };
    let mut command = cargo(&["test", "-q", "-p", "pintle-controllers-loops", target, name]);
    command.args(["--", "--nocapture"]).env(kind.variable, given);
    let text = shell::capture(&mut command)?;
    let ran = text.lines().any(|line| line.starts_with("test result: ok. 1 passed"));
    ensure!(ran, "no test of the name {name} ran:\n{text}");
    let counted = text.lines().filter(|line| line.contains("compared") || line.contains("lines"));
    counted.for_each(|line| shell::say("compared", line));
    Ok(())
}
