//! `cargo xtask vectors`: compares the requests of upstream's controllers and ours for random
//! objects.
//!
//! Input: how many of each kind. Upstream's sync functions run in Go programs (`tests/upstream`)
//! and write their inputs and requests as lines; the tests of `pintle-controllers-loops` compare.
//! Volumes of in-tree plugins, translated to CSI, are compared by those of `pintle-api-types`.
//! Files are made in parts of 5,000 lines, because a line has up to 10 KB, and are removed
//! afterwards. The stage `vectors` of `cargo xtask test` makes lines here, too, and runs test
//! programs that are built already.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{self, cargo, timed};
use crate::upstream::Program;

const USAGE: &str = "\
usage: cargo xtask vectors [COUNT] [--only NAME]
  COUNT        syncs of each kind; otherwise 10000
  --only NAME  deployment, replicaset, statefulset, daemonset, job, cron, schedule, quota,
               namespace, collector or translation";

/// Syncs of each kind, unless the arguments set another number.
pub(super) const COUNT: u64 = 10_000;
/// Lines of one file.
pub(super) const PART: u64 = 5_000;
/// The first seed; those of the lines in the repository are below.
pub(super) const FIRST_SEED: u64 = 1_000_000;

/// A kind of vectors.
pub(super) struct VectorKind {
    pub(super) name: &'static str,
    pub(super) program: Program,
    /// The folder of the package of the test, as its test programs are named.
    pub(super) package: &'static str,
    /// The variable that names the file, or the folder with it.
    pub(super) variable: &'static str,
    /// The target of the test; the library has tests inside.
    pub(super) target: &'static str,
    /// A part of the test's name.
    pub(super) test: &'static str,
}

/// The target of tests inside of the library.
pub(super) const INSIDE: &str = "lib";
/// The package of the controllers.
const LOOPS: &str = "loops";
pub(super) const KINDS: [VectorKind; 11] = [
    VectorKind {
        name: "deployment",
        program: Program::ReplicaVectors,
        package: LOOPS,
        variable: "PINTLE_VECTORS",
        target: INSIDE,
        test: "sync_of_a_random_deployment_is_upstreams",
    },
    VectorKind {
        name: "replicaset",
        program: Program::ReplicaVectors,
        package: LOOPS,
        variable: "PINTLE_VECTORS_RS",
        target: INSIDE,
        test: "sync_of_a_random_set_is_upstreams",
    },
    VectorKind {
        name: "statefulset",
        program: Program::SetVectors,
        package: LOOPS,
        variable: "PINTLE_SET_VECTORS",
        target: "set_vectors",
        test: "stateful_sets_are_synced_as_upstream_does",
    },
    VectorKind {
        name: "daemonset",
        program: Program::SetVectors,
        package: LOOPS,
        variable: "PINTLE_SET_VECTORS",
        target: "set_vectors",
        test: "daemon_sets_are_synced_as_upstream_does",
    },
    VectorKind {
        name: "job",
        program: Program::JobVectors,
        package: LOOPS,
        variable: "PINTLE_JOB_VECTORS",
        target: INSIDE,
        test: "random_job_syncs_match_upstream",
    },
    VectorKind {
        name: "cron",
        program: Program::JobVectors,
        package: LOOPS,
        variable: "PINTLE_CRON_VECTORS",
        target: INSIDE,
        test: "random_cron_job_syncs_match_upstream",
    },
    VectorKind {
        name: "schedule",
        program: Program::JobVectors,
        package: LOOPS,
        variable: "PINTLE_SCHEDULE_VECTORS",
        target: INSIDE,
        test: "schedules_and_next_times_match_upstream",
    },
    VectorKind {
        name: "quota",
        program: Program::MetadataVectors,
        package: LOOPS,
        variable: "PINTLE_QUOTA_VECTORS",
        target: "metadata_vectors",
        test: "quotas_are_counted_as_upstream_does",
    },
    VectorKind {
        name: "namespace",
        program: Program::MetadataVectors,
        package: LOOPS,
        variable: "PINTLE_NAMESPACE_VECTORS",
        target: "metadata_vectors",
        test: "content_of_namespaces_is_deleted_as_upstream_does",
    },
    VectorKind {
        name: "collector",
        program: Program::JobVectors,
        package: LOOPS,
        variable: "PINTLE_COLLECTOR_VECTORS",
        target: "metadata_vectors",
        test: "nodes_are_examined_as_upstream_does",
    },
    VectorKind {
        name: "translation",
        program: Program::TranslationVectors,
        package: "types",
        variable: "PINTLE_TRANSLATION_VECTORS",
        target: INSIDE,
        test: "translation_of_a_random_volume_is_upstreams",
    },
];

/// Options from the arguments.
struct VectorOptions<'a> {
    count: u64,
    only: Option<&'a str>,
}

fn parse<'a>(mut args: &[&'a str]) -> Result<Option<VectorOptions<'a>>> {
    let mut asked = VectorOptions { count: COUNT, only: None };
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
    let folder = Folder::new()?;
    let mut failed = Vec::new();
    let is_asked = |kind: &&VectorKind| asked.only.is_none_or(|only| only == kind.name);
    for kind in KINDS.iter().filter(is_asked) {
        let seeds = FIRST_SEED..FIRST_SEED + asked.count;
        if let Err(error) = kind.compare(seeds, &folder, test) {
            shell::say("differ", &format!("{}: {error:#}", kind.name));
            failed.push(kind.name);
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("vectors that differ: {}", failed.join(", "))
}

/// A folder for lines, removed when it is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("pintle-vectors-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl VectorKind {
    /// Makes the lines of some seeds in parts, and passes each part to `compare`, for the test's
    /// variable.
    pub(super) fn compare(
        &self,
        seeds: Range<u64>,
        folder: &Folder,
        mut compare: impl FnMut(&Self, &Path) -> Result<()>,
    ) -> Result<()> {
        let program = self.program.ensure()?;
        let file = folder.0.join(format!("{}.jsonl", self.name));
        let mut first = seeds.start;
        while first < seeds.end {
            let part = first..seeds.end.min(first + PART);
            first = part.end;
            let text = format!("{} {} to {}", self.name, part.start, part.end);
            timed("make", &text, || self.make(&program, part, &file))?;
            let is_folder = self.program == Program::SetVectors;
            let given = if is_folder { &folder.0 } else { &file };
            timed("compare", &text, || compare(self, given))?;
            fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
        Ok(())
    }

    /// Writes the lines of some seeds to a file.
    fn make(&self, program: &Path, seeds: Range<u64>, file: &Path) -> Result<()> {
        let mut command = Command::new("nice");
        command.arg(program).env("TZ", "UTC").stderr(Stdio::null());
        let (first, count) = (seeds.start.to_string(), (seeds.end - seeds.start).to_string());
        match self.program {
            Program::SetVectors => {
                let questions: String = seeds
                    .map(|seed| format!("{{\"kind\": \"{}\", \"seed\": {seed}}}\n", self.name))
                    .collect();
                let path = file.with_extension("questions");
                fs::write(&path, questions)?;
                command.stdin(File::open(&path)?);
            }
            Program::ReplicaVectors | Program::MetadataVectors | Program::TranslationVectors => {
                command.args([self.name, &count, &first]);
            }
            _ => {
                command.args(["-what", self.name, "-n", &count, "-seed", &first]);
            }
        }
        let out = File::create(file).with_context(|| format!("create {}", file.display()))?;
        let status = command.stdout(out).status().context("run the program of the vectors")?;
        ensure!(status.success(), "the program of the vectors ended with {status}");
        Ok(())
    }
}

/// Runs the test that compares the lines.
fn test(kind: &VectorKind, given: &Path) -> Result<()> {
    let target = if kind.target == INSIDE { "--lib" } else { &format!("--test={}", kind.target) };
    let package = match kind.package {
        LOOPS => "pintle-controllers-loops",
        _ => "pintle-api-types",
    };
    let mut command = cargo(&["test", "-q", "-p", package, target, kind.test]);
    command.args(["--", "--nocapture"]).env(kind.variable, given);
    let text = shell::capture(&mut command)?;
    let ran = text.lines().any(|line| line.starts_with("test result: ok. 1 passed"));
    ensure!(ran, "no test of the name {} ran:\n{text}", kind.test);
    let counted = text.lines().filter(|line| line.contains("compared") || line.contains("lines"));
    counted.for_each(|line| shell::say("compared", line));
    Ok(())
}
