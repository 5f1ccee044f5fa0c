//! The long-lived processes of a cluster: started by one run of xtask, ended by another.
//!
//! Each has a name, a log and a file with its pid, its start time and the length of its log at the
//! start; a pid that another process has by now is ignored. They are in sessions of their own, so
//! that they outlive the terminal, and carry the cluster's mark, by which their children are found
//! at the end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use super::layout::Layout;
use crate::node::process;
use crate::shell;

/// How long a process may take to end before it is killed.
const END_WAIT: Duration = Duration::from_secs(10);
/// Polling period of a process' state.
const PERIOD: Duration = Duration::from_millis(20);
/// Lines of a log that an error shows from its start: a program that refuses its options names the
/// error first and prints some hundred lines of usage after it.
const FIRST_LINES: usize = 5;
/// Lines that an error shows from the log's end.
const LAST_LINES: usize = 15;

/// The processes of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Processes {
    layout: Layout,
}

impl Processes {
    pub(super) fn of(layout: &Layout) -> Self {
        Self { layout: layout.clone() }
    }

    /// Starts a command in the background under a name that no running process has.
    pub(super) fn start(&self, name: &str, cmd: &mut Command) -> Result<Child> {
        if let Some(pid) = self.pid(name) {
            bail!("{name} runs already, as {pid}");
        }
        let log = self.layout.log(name);
        fs::create_dir_all(log.parent().expect("a log has a folder"))?;
        let log = File::options().create(true).append(true).open(&log)?;
        let length = log.metadata()?.len();
        // A group of its own: Ctrl-C at the terminal is not for it.
        cmd.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        cmd.env(process::MARK, self.layout.mark());
        let child = cmd.spawn().with_context(|| format!("start {}", shell::line(cmd)))?;
        let pid = i32::try_from(child.id())?;
        let began = process::began(pid).with_context(|| format!("{name} ended at once"))?;
        let file = self.file(name);
        fs::create_dir_all(file.parent().expect("a pid file has a folder"))?;
        fs::write(file, format!("{pid} {began} {length}"))?;
        Ok(child)
    }

    /// The process of this name, while it runs.
    pub(super) fn pid(&self, name: &str) -> Option<i32> {
        let text = fs::read_to_string(self.file(name)).ok()?;
        let mut words = text.split(' ');
        let pid = words.next()?.parse().ok()?;
        (process::began(pid)? == words.next()?).then_some(pid)
    }

    /// Asks the process to end, and kills it if it does not; a missing process is no error.
    pub(super) fn stop(&self, name: &str) -> Result<()> {
        let begin = Instant::now();
        let mut signal = Signal::SIGTERM;
        while let Some(pid) = self.pid(name) {
            process::signal(pid, signal);
            if begin.elapsed() > 2 * END_WAIT {
                bail!("{name} ({pid}) does not end");
            }
            let limit = begin + END_WAIT;
            while signal == Signal::SIGTERM && self.pid(name).is_some() && Instant::now() < limit {
                thread::sleep(PERIOD);
            }
            signal = Signal::SIGKILL;
            thread::sleep(PERIOD);
        }
        match fs::remove_file(self.file(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Kills the process without asking.
    pub(super) fn kill(&self, name: &str) -> Result<()> {
        if let Some(pid) = self.pid(name) {
            process::signal(pid, Signal::SIGKILL);
        }
        self.stop(name)
    }

    /// Waits until `check` passes, as long as the process lives.
    pub(super) fn wait(
        &self,
        name: &str,
        limit: Duration,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let last = match check() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if self.pid(name).is_none() {
                bail!("{name} ended; its log:\n{}", self.log_excerpt(name));
            }
            if Instant::now() > deadline {
                let log = self.log_excerpt(name);
                return Err(last).with_context(|| format!("{name}; its log:\n{log}"));
            }
            thread::sleep(PERIOD);
        }
    }

    /// Kills every process that carries the cluster's mark; twice, because one may have started
    /// another while the first list was read.
    pub(super) fn kill_all(&self) {
        for _ in 0..2 {
            for pid in process::marked(&self.layout.mark()) {
                process::signal(pid, Signal::SIGKILL);
            }
        }
    }

    /// The first and the last lines that the latest process of this name logged.
    fn log_excerpt(&self, name: &str) -> String {
        let log = fs::read(self.layout.log(name)).unwrap_or_default();
        let file = fs::read_to_string(self.file(name)).unwrap_or_default();
        let start = file.split(' ').nth(2).and_then(|length| length.parse().ok()).unwrap_or(0);
        let own = String::from_utf8_lossy(log.get(start..).unwrap_or(&log));
        shell::ends(&own, FIRST_LINES, LAST_LINES)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.layout.dir().join("run").join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_found_until_it_ends_and_a_reused_pid_is_ignored() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let processes = Processes { layout: Layout::in_folder("t", dir.path()) };
        let mut child =
            processes.start("sleeper", Command::new("sleep").arg("1000")).expect("sleep starts");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert_eq!(processes.pid("sleeper"), Some(pid));
        assert!(processes.start("sleeper", &mut Command::new("true")).is_err());

        processes.stop("sleeper").expect("it ends");
        assert_eq!(processes.pid("sleeper"), None);
        child.wait().expect("reaped");

        fs::write(processes.file("sleeper"), format!("{} 1", std::process::id())).expect("written");
        assert_eq!(processes.pid("sleeper"), None, "another process has this pid");
    }

    #[test]
    fn an_early_end_shows_the_error_above_the_usage_and_no_line_of_an_earlier_start() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let processes = Processes { layout: Layout::in_folder("t", dir.path()) };
        let error_of = |script: &str| {
            let mut command = Command::new("sh");
            let mut child =
                processes.start("part", command.args(["-c", script])).expect("sh starts");
            child.wait().expect("reaped");
            let wait = processes.wait("part", END_WAIT, || bail!("not ready"));
            format!("{:#}", wait.expect_err("the process has ended"))
        };
        assert!(error_of("echo first; sleep 0.1").contains("first"));

        let text = error_of("sleep 0.1; echo Error: no such flag; seq 200");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(&lines[..3], ["part ended; its log:", "Error: no such flag", "1"], "{text}");
        assert_eq!(lines.last(), Some(&"200"), "{text}");
        assert_eq!(lines.len(), 1 + FIRST_LINES + 1 + LAST_LINES, "{text}");
    }
}
