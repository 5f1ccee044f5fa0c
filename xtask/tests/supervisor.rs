//! A run of xtask that is ended, or killed and followed by another one, leaves no process behind,
//! in any session.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::node::process;
use xtask::supervisor::MARK;

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Starts a process that outlives its parent, in a session and with a name of its own, then waits.
const SCRIPT: &str = "setsid sh -c 'trap \"\" TERM; sleep 1000 & wait' & sleep 1000 & \
                      echo up > \"$1\"; wait";

/// Held by each test: every starting run ends the processes of killed ones, also those of another
/// test.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A supervised run with processes in the background.
struct SupervisedRun {
    supervisor: Child,
    name: String,
}

impl SupervisedRun {
    fn start(dir: &Path) -> Self {
        let up = dir.join("up");
        let mut cmd = xtask(&["sh", "-c", SCRIPT, "sh"]);
        let supervisor = cmd.arg(&up).stderr(Stdio::null()).spawn().expect("xtask starts");
        let pid = i32::try_from(supervisor.id()).expect("a pid");
        let name = format!("{pid}-{}", process::began(pid).expect("it runs"));
        let run = Self { supervisor, name };
        until("the run is up", || up.exists() && run.processes().len() >= 4);
        run
    }

    fn send(&mut self, signal: Signal) -> std::process::ExitStatus {
        let pid = i32::try_from(self.supervisor.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it is there");
        self.supervisor.wait().expect("it ends")
    }

    fn processes(&self) -> Vec<i32> {
        process::with_variable(MARK, &self.name)
    }
}

impl Drop for SupervisedRun {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        self.processes().into_iter().for_each(|pid| process::signal(pid, Signal::SIGKILL));
    }
}

fn xtask(command: &[&str]) -> Command {
    let mut cmd = Command::new(env!("CARGO_BIN_EXE_xtask"));
    cmd.args(["run", "--"]).args(command).stdin(Stdio::null());
    cmd
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn run_ended_by_a_signal_ends_all_its_processes() {
    let _alone = alone();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut run = SupervisedRun::start(dir.path());
        let status = run.send(signal);
        assert_eq!(status.code(), Some(128 + signal as i32), "{signal}");
        assert_eq!(run.processes(), [0; 0], "{signal}");
    }
}

#[test]
fn processes_of_a_killed_run_are_ended_by_the_next_run() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a folder");
    let mut run = SupervisedRun::start(dir.path());
    let other_dir = tempfile::tempdir().expect("a folder");
    let other = SupervisedRun::start(other_dir.path());
    assert_eq!(run.send(Signal::SIGKILL).signal(), Some(Signal::SIGKILL as i32));
    assert!(!run.processes().is_empty(), "nothing was left: the next run proves nothing");
    assert!(xtask(&["true"]).status().expect("it starts").success());
    assert_eq!(run.processes(), [0; 0]);
    assert!(other.processes().len() >= 4, "a run whose supervisor lives is not touched");
}

#[test]
fn the_end_of_the_command_is_the_end_of_the_run() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run");
    let script = "echo \"$PINTLE_RUN\" > \"$1\"; setsid sleep 1000 & exit 7";
    let mut cmd = xtask(&["sh", "-c", script, "sh"]);
    assert_eq!(cmd.arg(&file).status().expect("it starts").code(), Some(7));
    let name = fs::read_to_string(&file).expect("the run's name");
    assert_eq!(process::with_variable(MARK, name.trim()), [0; 0]);
}
