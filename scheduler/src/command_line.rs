//! The command line: a daemon compatible with kube-scheduler, and commands that answer questions.
//!
//! Input: the arguments of the process. Output: its output and exit code. Owner: `main`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pintle_config::given;
use pintle_scheduler_core::framework::Registry;

use crate::{daemon, explain, output, run, shadow, simulate};

/// Kubernetes scheduler that looks at every node for every pod.
#[derive(Parser)]
#[command(name = "pintle-scheduler", version)]
struct Cli {
    #[command(subcommand)]
    command: SchedulerSubcommand,
}

#[derive(Subcommand)]
enum SchedulerSubcommand {
    /// Place the pending pods of a dump and tell where, why, and what would make the rest fit.
    Simulate(Box<simulate::Options>),
    /// Follow a cluster that kube-scheduler schedules and compare its decisions; writes nothing.
    Shadow(shadow::Options),
    /// Say why a pod of a live cluster has no place, or why it is where it is.
    Explain(explain::ExplainOptions),
    /// Place pods on a live cluster as it is now, without doing it.
    WhatIf(explain::WhatIfOptions),
}

/// Runs the command line, with these plugins linked in.
pub fn command_line(registry: Registry) -> ExitCode {
    pintle_heap::give_back_soon();
    let args: Vec<String> = match given::texts(std::env::args_os()) {
        Ok(args) => args,
        Err(errors) => return complain(errors),
    };
    // A known word is a command of pintle; anything else is the flags of kube-scheduler.
    match args.get(1).map(String::as_str) {
        Some(word) if !word.starts_with('-') => match Cli::try_parse_from(&args) {
            Ok(cli) => ended(command(cli.command)),
            Err(error) if error.use_stderr() => complain([mistake(&error)]),
            Err(help) => ended(output::print(|out| write!(out, "{}", help.render()))),
        },
        _ => match daemon::parse(&args[1.min(args.len())..], &registry) {
            Ok(daemon::SchedulerAction::Print(text)) => {
                ended(output::print(|out| out.write_all(text.as_bytes())))
            }
            Ok(daemon::SchedulerAction::Run(settings)) => ended(run::run(&settings, &registry)),
            Err(errors) => complain(errors),
        },
    }
}

fn command(command: SchedulerSubcommand) -> anyhow::Result<()> {
    match command {
        SchedulerSubcommand::Simulate(options) => simulate::run(&options),
        SchedulerSubcommand::Shadow(options) => shadow::run(&options),
        SchedulerSubcommand::Explain(options) => explain::explain(&options),
        SchedulerSubcommand::WhatIf(options) => explain::what_if(&options),
    }
}

fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The user reads errors of files, without a backtrace.
        Err(error) => complain([format!("{error:#}")]),
    }
}

/// Returns a sentence about invalid arguments: the parser's first paragraph.
fn mistake(error: &clap::Error) -> String {
    let text = error.to_string();
    let first: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let what = first.join(" ");
    format!("{}; --help tells what there is", what.trim_start_matches("error: "))
}

fn complain(errors: impl IntoIterator<Item = impl std::fmt::Display>) -> ExitCode {
    for error in errors {
        let text = error.to_string();
        let text = text.lines().map(output::plain).collect::<Vec<_>>().join("\n");
        // Logging is not set up yet; a closed standard error is ignored.
        let _ = writeln!(std::io::stderr(), "pintle-scheduler: {text}");
    }
    ExitCode::FAILURE
}
