//! Runs `mount` and similar programs as child processes with a time limit, so that no caller hangs.
//!
//! Input: the path that the work is for, a program, its arguments, a time limit. Output: nothing,
//! or the program's output. No thread waits: the kernel reports the child's exit (tokio waits on
//! its pidfd). A child may survive even SIGKILL while it waits in the kernel for a server. A
//! separate task then waits for it, and no other child is started for the same path until it has
//! exited. Bounds: `OUTPUT_BYTES_MAX` of its output; one child for each path.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Bytes that are kept of a program's output; a pipe holds no more either.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// How long a killed child is waited for.
const KILL_MAX: Duration = Duration::from_secs(1);

/// Paths for which a child runs.
static BUSY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The failure of a program.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    /// The program could not be started.
    #[error("{0}")]
    Start(#[from] io::Error),
    /// The program failed.
    #[error("{}", status_text(*status))]
    Failed {
        /// Its exit status.
        status: ExitStatus,
        /// Its stdout and stderr.
        output: String,
    },
    /// An earlier child for the same path has not exited.
    #[error("an earlier attempt has not ended yet")]
    Busy,
    /// The program did not exit in time.
    #[error("no end within {} s", limit.as_secs())]
    Late {
        /// Its time limit.
        limit: Duration,
    },
}

impl ProgramError {
    /// The program's output.
    pub(super) fn output(&self) -> &str {
        match self {
            Self::Failed { output, .. } => output,
            Self::Start(_) | Self::Busy | Self::Late { .. } => "",
        }
    }
}

/// The exit status as Go prints it, for the kubelet's messages.
fn status_text(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit status {code}"),
        None => status.to_string(),
    }
}

/// A failed mount in the kubelet's words.
// k8s: k8s.io/mount-utils mount_linux.go doMount
pub(super) fn mount_failure(args: &[&str], error: &ProgramError) -> String {
    format!(
        "mount failed: {error}\nMounting command: mount\nMounting arguments: {}\nOutput: {}\n",
        args.join(" "),
        error.output()
    )
}

/// Runs a program until it ends or its time is over. Dropping the future leaves it to that limit.
pub(super) async fn run(
    about: &Path,
    program: &str,
    args: &[&str],
    limit: Duration,
) -> Result<(), ProgramError> {
    output(about, program, args, limit).await.map(drop)
}

/// As `run`; returns the output of the program.
pub(super) async fn output(
    about: &Path,
    program: &str,
    args: &[&str],
    limit: Duration,
) -> Result<String, ProgramError> {
    let busy = BusyPath::take(about).ok_or(ProgramError::Busy)?;
    let (output, said) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
    let child = command.spawn()?;
    // The command holds the other end of the pipe until it is dropped.
    drop(command);
    let (answer, ended) = oneshot::channel();
    tokio::spawn(wait(child, limit, answer, busy));
    let ended = ended.await.map_err(|_| io::Error::other("nothing waits for the program"))?;
    let Some(status) = ended? else { return Err(ProgramError::Late { limit }) };
    // A daemon that the program started may keep the pipe open: read only what is there.
    fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(io::Error::from)?;
    let mut bytes = Vec::new();
    let _ = output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    let output = String::from_utf8_lossy(&bytes).into_owned();
    if status.success() { Ok(output) } else { Err(ProgramError::Failed { status, output }) }
}

/// Waits for a child, sends its exit status or the time-out, and reaps it.
async fn wait(
    mut child: Child,
    limit: Duration,
    answer: oneshot::Sender<io::Result<Option<ExitStatus>>>,
    busy: BusyPath,
) {
    let ended = match timeout(limit, child.wait()).await {
        Ok(ended) => ended.map(Some),
        Err(_) => {
            let _ = child.start_kill();
            if timeout(KILL_MAX, child.wait()).await.is_err() {
                let _ = answer.send(Ok(None));
                let _ = child.wait().await;
                return;
            }
            Ok(None)
        }
    };
    drop(busy);
    let _ = answer.send(ended);
}

/// A path for which a child runs.
struct BusyPath(PathBuf);

impl BusyPath {
    fn take(path: &Path) -> Option<Self> {
        let is_new = BUSY.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
        is_new.then(|| Self(path.to_owned()))
    }
}

impl Drop for BusyPath {
    fn drop(&mut self) {
        BUSY.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_failure_has_its_output_and_a_slow_program_times_out() {
        let minute = Duration::from_secs(60);
        let sh = async |script: &str| run(Path::new("sh"), "sh", &["-c", script], minute).await;
        sh("true").await.expect("it did its work");
        let error = sh("echo out; echo err >&2; exit 32").await.expect_err("it failed");
        assert_eq!((error.to_string().as_str(), error.output()), ("exit status 32", "out\nerr\n"));
        // A child of the program keeps the pipe open; `run` does not wait for it.
        let error = sh("sleep 60 & echo no; exit 1").await.expect_err("it failed");
        assert_eq!(error.output(), "no\n");
        let brief = Duration::from_millis(50);
        let late = run(Path::new("late"), "sleep", &["60"], brief).await.expect_err("too slow");
        assert!(matches!(late, ProgramError::Late { .. }), "{late}");
        let none = run(Path::new("none"), "/nowhere/mount", &[], minute).await;
        assert!(matches!(none, Err(ProgramError::Start(_))), "{none:?}");
    }

    #[tokio::test]
    async fn programs_for_a_path_run_one_at_a_time_even_after_a_caller_gave_up() {
        let about = Path::new("one");
        let limit = Duration::from_millis(300);
        let given_up = timeout(Duration::from_millis(20), run(about, "sleep", &["60"], limit));
        assert!(given_up.await.is_err());
        let second = run(about, "true", &[], limit).await;
        assert!(matches!(second, Err(ProgramError::Busy)), "{second:?}");
        // It is killed at its own time limit; after that another child may start.
        while matches!(run(about, "true", &[], limit).await, Err(ProgramError::Busy)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
