//! Supervision of a run of xtask: it ends every process of the run, whatever ends the run.
//!
//! The command is a child of this process and carries the run's mark in its environment, which all
//! its descendants inherit: compilers, test programs, API servers, containerd, shims, agents. On
//! SIGTERM, SIGINT or SIGHUP all of them get SIGTERM, then SIGKILL, and their leftovers are
//! removed: nodes and clusters with their containers, namespaces, mounts and cgroups. If the
//! supervisor itself is killed, so is the command (`die_with_supervisor`); the next supervised run
//! finds the rest of that run by the mark and removes it. The mark names the supervisor by process
//! number and start time, so that a reused number protects nothing.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};

use crate::cluster;
use crate::node::{self, cgroups, process};
use crate::shell::{self, say};
use crate::uml;

/// Marks the processes of a supervised run: `PID-START` of its supervisor.
pub const MARK: &str = "PINTLE_RUN";
/// How long the processes of a run may take to end before they are killed.
const END_WAIT: Duration = Duration::from_secs(5);
/// Polling period of their end.
const PERIOD: Duration = Duration::from_millis(20);
/// Rounds of killing: a process may start another one while the list of them is made.
const ROUNDS_MAX: usize = 50;
/// Added to a signal's number in the exit code, as shells do.
const SIGNALLED: i32 = 128;

/// Runs this task of xtask under supervision and returns its exit code. Returns none in a process that
/// is supervised already: the caller then does the work itself.
pub fn rerun(task: &str, args: &[&str]) -> Result<Option<ExitCode>> {
    if std::env::var_os(MARK).is_some() {
        return die_with_supervisor().map(|()| None);
    }
    let program = std::env::current_exe().context("find this program")?;
    run(Command::new(program).arg(task).args(args)).map(Some)
}

/// Has the kernel kill this process when its supervisor is gone.
fn die_with_supervisor() -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("ask for the end of the supervisor")?;
    let supervisor = std::env::var(MARK).context(MARK)?;
    // It may have ended before the kernel knew.
    ensure!(is_running(&supervisor), "the supervisor has ended");
    Ok(())
}

/// Runs the command under supervision, and returns its exit code once no process of the run is
/// left. First it cleans up after runs that were killed.
pub fn run(cmd: &mut Command) -> Result<ExitCode> {
    remove_abandoned();
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD];
    let signals = SigSet::from_iter(signals);
    let pid = i32::try_from(std::process::id())?;
    let began = process::began(pid).context("this process has a start")?;
    let run = format!("{pid}-{began}");
    cmd.env(MARK, &run);
    let mut child = cmd.spawn().with_context(|| format!("start {}", shell::line(cmd)))?;
    // After the spawn, because children inherit blocked signals: SIGTERM would end none of them.
    signals.thread_block().context("block signals")?;
    let ended = follow(&mut child, &signals)?;
    end(&run);
    if let Err(signal) = ended {
        say("ended", &format!("{signal}: nothing of this run is left running"));
    }
    let _ = child.wait();
    let code = match ended {
        Ok(status) => status.code().unwrap_or(SIGNALLED + status.signal().unwrap_or(0)),
        Err(signal) => SIGNALLED + signal as i32,
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// Waits until the child has ended, or until a signal arrives.
fn follow(child: &mut Child, signals: &SigSet) -> Result<std::result::Result<ExitStatus, Signal>> {
    loop {
        // It may have ended before its signal was blocked.
        if let Some(status) = child.try_wait()? {
            return Ok(Ok(status));
        }
        match signals.wait().context("wait for a signal")? {
            Signal::SIGCHLD => {}
            signal => return Ok(Err(signal)),
        }
    }
}

/// Ends the processes of runs that lost their supervisor, then removes abandoned nodes, clusters
/// and cgroups.
fn remove_abandoned() {
    let mut runs: Vec<String> = process::all().into_iter().filter_map(run_of).collect();
    runs.sort();
    runs.dedup();
    for run in runs.into_iter().filter(|run| !is_running(run)) {
        say("leftover", &format!("the run {run} was killed; its processes are ended"));
        end(&run);
    }
    sweep();
}

/// Removes nodes, clusters and cgroups of processes that are gone.
fn sweep() {
    node::sweep();
    cluster::sweep();
    for swept in [cgroups::sweep(), uml::sweep()] {
        if let Err(error) = swept {
            say("leftover", &format!("{error:#}"));
        }
    }
}

/// Ends all processes of a run, first with SIGTERM, and removes their leftovers.
fn end(run: &str) {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let left = || process::with_variable(MARK, run).into_iter().filter(move |pid| *pid != own);
    let deadline = Instant::now() + END_WAIT;
    left().for_each(|pid| process::signal(pid, Signal::SIGTERM));
    while left().next().is_some() && Instant::now() < deadline {
        thread::sleep(PERIOD);
    }
    for _ in 0..ROUNDS_MAX {
        let pids: Vec<i32> = left().collect();
        if pids.is_empty() {
            break;
        }
        pids.into_iter().for_each(|pid| process::signal(pid, Signal::SIGKILL));
        thread::sleep(PERIOD);
    }
    sweep();
}

/// The run to which a process belongs.
fn run_of(pid: i32) -> Option<String> {
    let env = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{MARK}=");
    let value = env.split(|b| *b == 0).find_map(|v| v.strip_prefix(prefix.as_bytes()))?;
    String::from_utf8(value.to_vec()).ok()
}

/// Returns whether the supervisor that a mark names still runs.
fn is_running(run: &str) -> bool {
    let Some((pid, began)) = run.split_once('-') else { return false };
    pid.parse().ok().and_then(process::began).is_some_and(|found| found == began)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_with_a_reused_pid_belongs_to_an_ended_run() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let began = process::began(pid).expect("it runs");
        assert!(is_running(&format!("{pid}-{began}")));
        for gone in [format!("{pid}-1{began}"), format!("{}-{began}", i32::MAX), String::new()] {
            assert!(!is_running(&gone), "{gone}");
        }
    }
}
