//! `simulate`: what a scheduler would do with a dump of a cluster, with no cluster at all.
//!
//! Input: files of `kubectl get .. -o json` or `-o yaml`, and manifests. Output: a report on
//! standard output, progress on standard error. Owner: the command line; this file alone writes.
//! Bounds: the dump in memory once. Nothing is ever sent anywhere.

mod defaults;
mod dump;
mod ending;
pub mod load;
mod notes;
mod outcome;
pub mod place;
mod position;
pub(crate) mod priority;
pub mod progress;
mod read;
pub mod report;
mod valid;
mod yaml;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
pub(crate) use dump::{ObjectOrigin, object_name};
use load::Dump;
use pintle_sched_core::Profile;
use place::{Questions, Simulation};
use progress::Progress;
pub(crate) use read::read;

use crate::output;

/// Nodes that may be added: twenty times those of the largest cluster that Kubernetes supports.
const NODES_MAX: usize = 100_000;

/// A number that an option does not take.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NumberError {
    #[error("at most {0}")]
    TooLarge(usize),
    #[error("give a number from 0 to {0}")]
    NoNumber(usize),
}

/// Parses a number with an upper limit.
pub(crate) fn up_to<const MAX: usize>(text: &str) -> Result<usize, NumberError> {
    match text.parse() {
        Ok(number) if number <= MAX => Ok(number),
        Ok(_) => Err(NumberError::TooLarge(MAX)),
        Err(_) => Err(NumberError::NoNumber(MAX)),
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for people.
    Table,
    /// One JSON object.
    Json,
}

/// Nodes that go or come before anything is placed.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeChanges {
    /// Cordon this node and place its pods elsewhere.
    #[arg(long, value_name = "NODE")]
    pub(crate) drain: Vec<String>,
    /// Add so many nodes before placing.
    #[arg(long, value_name = "N", requires = "like", value_parser = up_to::<NODES_MAX>)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) add_nodes: Option<usize>,
    /// The node that added nodes are copies of.
    #[arg(long, value_name = "NODE", requires = "add_nodes")]
    pub(crate) like: Option<String>,
}

/// Arguments of `simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Nodes: kubectl get nodes -o json (JSON or YAML, lists or single objects; "-" is standard
    /// input).
    #[arg(long, value_name = "FILE")]
    nodes: Vec<PathBuf>,
    /// Pods, bound and pending: kubectl get pods -A -o json, or manifests.
    #[arg(long, value_name = "FILE")]
    pods: Vec<PathBuf>,
    /// Namespaces, for affinity terms that select them.
    #[arg(long, value_name = "FILE")]
    namespaces: Vec<PathBuf>,
    /// Anything: nodes, pods, namespaces, services, replica sets, disruption budgets, priority
    /// classes, limit ranges, runtime classes, in one file.
    #[arg(long, value_name = "FILE")]
    cluster: Vec<PathBuf>,
    /// KubeSchedulerConfiguration; the defaults of Kubernetes 1.36 without it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Profile of the configuration, and of the pods that are placed.
    #[arg(long, value_name = "NAME")]
    scheduler_name: Option<String>,
    /// Explain one pod, as namespace/name or name: every node, every score.
    #[arg(long, value_name = "POD")]
    why: Option<String>,
    #[command(flatten)]
    changes: NodeChanges,
    /// How to print.
    #[arg(long, short, value_enum, default_value = "table")]
    output: Format,
    /// Rows of a table at most; 0 is all.
    #[arg(long, value_name = "ROWS", default_value_t = 50)]
    limit: usize,
    /// Show the progress bar even when standard error is no terminal.
    #[arg(long)]
    progress: bool,
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be read or used, or a question names something that is not there.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let progress = Progress::new(options.progress || std::io::stderr().is_terminal());
    let files = [
        ("--nodes", &options.nodes),
        ("--pods", &options.pods),
        ("--namespaces", &options.namespaces),
        ("--cluster", &options.cluster),
    ];
    let files = files.into_iter().flat_map(|(flag, all)| all.iter().map(move |file| (flag, file)));
    let files: Vec<(&str, &PathBuf)> = files.collect();
    anyhow::ensure!(!files.is_empty(), "nothing to read: give --cluster, or --nodes and --pods");
    let mut dump = Dump::default();
    for (at, (flag, file)) in files.iter().enumerate() {
        progress.show("reading", at, files.len());
        let bytes = read(flag, file)?;
        load::load(&file.display().to_string(), &bytes, &mut dump)?;
    }
    anyhow::ensure!(
        !dump.nodes.is_empty(),
        "there is no Node in the dump: add nodes, as kubectl get nodes,pods -A -o json has them"
    );
    let profile = profile(options)?;
    let questions = Questions {
        why: options.why.clone(),
        drain: options.changes.drain.clone(),
        add_nodes: options.changes.add_nodes.unwrap_or(0),
        like: options.changes.like.clone(),
    };
    let simulation = Simulation::run(dump, profile, &questions, &progress)?;
    progress.clear();
    output::print(|out| write(&simulation, options.output, options.limit, out))
}

/// Prints the result.
pub(crate) fn write(
    simulation: &Simulation,
    format: Format,
    limit: usize,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, simulation)?;
            writeln!(out)
        }
        Format::Table => report::table(simulation, limit, out),
    }
}

fn profile(options: &Options) -> anyhow::Result<Profile> {
    let Some(path) = &options.config else {
        let scheduler_name = options.scheduler_name.clone();
        let default = Profile::default();
        return Ok(match scheduler_name {
            Some(scheduler_name) => Profile { scheduler_name, ..default },
            None => default,
        });
    };
    let text =
        String::from_utf8(read("--config", path)?).with_context(|| path.display().to_string())?;
    pintle_scheduler_core::config::profile(&text, options.scheduler_name.as_deref())
        .with_context(|| path.display().to_string())
}
