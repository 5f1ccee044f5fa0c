//! The shadow daemon: watches, the shadow they feed, the log and the report of its result.
//!
//! Effects. Owner of the one thread that decides, and of the clock. Bounds: see `watch`, `shadow`.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pintle_api::{Access, ClientOptions};
use pintle_daemon::{logging, tasks};
use pintle_sched_core::Profile;
use pintle_scheduler_core::config;
use pintle_scheduler_core::shadow::{Followed, Shadow};
use pintle_scheduler_core::watch_event::WatchEvent;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::output;
use crate::watch::{self, WATCH_EVENTS_MAX};

/// Longest interval between two checks of waiting changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval of logging the result, if there is one.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Arguments of `shadow`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Credentials that may list and watch; nothing is written.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The KubeSchedulerConfiguration of the scheduler that is followed.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to write what came of it when told to end.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be used.
pub fn run(options: &Options) -> Result<()> {
    logging::init(logging::Format::Text, 0);
    tasks::log_panics();
    let mut followed = Followed { profile: Profile::default(), percentage: 0 };
    if let Some(path) = &options.config {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(shown)?;
        followed.profile = config::profile(&text, None).with_context(shown)?;
        followed.percentage = config::percentage(&text).with_context(shown)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, shadow(options, followed))
}

/// Follows the cluster of a kubeconfig until SIGTERM or SIGINT.
async fn shadow(options: &Options, followed: Followed) -> Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let access = Access::read(&options.kubeconfig).context("--kubeconfig")?;
    let report = options.report.as_deref().map(open).transpose()?;
    let user_agent = pintle_config::help::user_agent("kube-scheduler");
    let clients = access.clients(ClientOptions { user_agent, ..Default::default() });
    let (sender, watch_events) = mpsc::channel(WATCH_EVENTS_MAX);
    for (name, follows) in watch::follow_all(|| clients.urgent(), &sender, false) {
        tasks::singleton(name, follows);
    }
    let mut shadow = Shadow::new(followed);
    tokio::select! {
        () = follow(&mut shadow, watch_events) => {}
        _ = end.recv() => {}
        _ = interrupt.recv() => {}
    }
    match report {
        Some(report) => hand_over(&serde_json::to_string_pretty(&shadow.report)?, report),
        None => Ok(()),
    }
}

/// Opens the report file; its content stays until there is a report.
fn open(path: &Path) -> Result<(File, &Path)> {
    let file = File::options().create(true).write(true).truncate(false).open(path);
    let file = file.with_context(|| format!("--report={}", path.display()))?;
    Ok((file, path))
}

/// Writes the report; if that fails, prints it, because hours of work must not be lost to a full
/// disk.
fn hand_over(text: &str, (mut file, path): (File, &Path)) -> Result<()> {
    let mut write = || {
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        file.write_all(text.as_bytes())
    };
    if let Err(error) = write() {
        output::print(|out| writeln!(out, "{text}"))?;
        let place = path.display();
        anyhow::bail!("--report={place}: {error}; the report is on standard output");
    }
    Ok(())
}

async fn follow(shadow: &mut Shadow, mut watch_events: mpsc::Receiver<WatchEvent>) {
    let begun = Instant::now();
    let mut next = LOOK_EVERY;
    let mut ready = false;
    let mut said = (Duration::ZERO, 0);
    loop {
        let now = begun.elapsed();
        tokio::select! {
            one = watch_events.recv() => match one {
                Some(one) => shadow.handle(now, one),
                None => return,
            },
            () = tokio::time::sleep(next.saturating_sub(now)) => {
                next = shadow.settle(now).unwrap_or(now + LOOK_EVERY);
            }
        }
        if !ready && shadow.cache.is_complete() {
            ready = true;
            let (waiting, bound, nodes) = shadow.cache.counts();
            tracing::info!("following {nodes} nodes, {bound} pods on them, {waiting} without one");
        }
        let compared = shadow.report.bindings.all() + shadow.report.refusals.all();
        if now > said.0 + SAY_EVERY && compared != said.1 {
            said = (now, compared);
            say(shadow);
        }
    }
}

fn say(shadow: &Shadow) {
    let report = &shadow.report;
    tracing::info!(
        "compared {} bindings and {} refusals: {} other decisions",
        report.bindings.all(),
        report.refusals.all(),
        report.bindings.other + report.refusals.other
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_replaces_an_older_report_only_when_complete() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("report.json");
        std::fs::write(&path, "an older and longer one").expect("written");
        let report = open(&path).expect("it can be written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "an older and longer one");
        hand_over("{}", report).expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "{}");
        let error = open(&dir.path().join("none/report.json")).expect_err("no such folder");
        assert!(error.to_string().starts_with("--report="), "{error}");
    }
}
