//! Runs `mount` and its kin as child processes that cannot hang anybody for ever.
//!
//! Input: a program, its arguments, a time limit. Output: nothing, or what the program said. Blocks:
//! to be called on a thread that may. A child that does not even die of SIGKILL, because the kernel
//! waits for a server inside of it, is left behind and reaped by a later call.
//! Bounds: `OUTPUT_BYTES_MAX` of what it says; one abandoned child for each call that ran late.

use std::io::{self, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// What is kept of a program's words; a pipe holds no more either.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// First and longest pause between two looks at the child.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// How long a killed child is waited for.
const KILL_MAX: Duration = Duration::from_secs(1);

/// Children that would not die.
static ABANDONED: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    /// It could not be started.
    #[error("{0}")]
    Start(#[from] io::Error),
    /// It said no.
    #[error("{}", status_text(*status))]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// What it said on both its outputs.
        output: String,
    },
    /// It did not end in time.
    #[error("no end within {} s", limit.as_secs())]
    Late {
        /// The time it had.
        limit: Duration,
    },
}

impl ProgramError {
    /// What the program said.
    pub(super) fn output(&self) -> &str {
        match self {
            Self::Failed { output, .. } => output,
            Self::Start(_) | Self::Late { .. } => "",
        }
    }
}

/// As Go prints it, which is in the messages of the kubelet.
fn status_text(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit status {code}"),
        None => status.to_string(),
    }
}

/// Runs a program until it ends or its time is over.
pub(super) fn run(program: &str, args: &[&str], limit: Duration) -> Result<(), ProgramError> {
    let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    abandoned.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    drop(abandoned);
    let (output, said) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
    let mut child = command.spawn()?;
    // The command has the other end of the pipe as long as it is there.
    drop(command);
    let Some(status) = ended(&mut child, limit)? else {
        let _ = child.kill();
        if ended(&mut child, KILL_MAX)?.is_none() {
            ABANDONED.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        }
        return Err(ProgramError::Late { limit });
    };
    if status.success() {
        return Ok(());
    }
    // A daemon that it started may keep the pipe open: what is there is all.
    fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(io::Error::from)?;
    let mut bytes = Vec::new();
    let _ = output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    Err(ProgramError::Failed { status, output: String::from_utf8_lossy(&bytes).into_owned() })
}

fn ended(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() >= limit {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_why_it_failed_and_is_not_waited_for_for_ever() {
        let minute = Duration::from_secs(60);
        run("sh", &["-c", "true"], minute).expect("it did its work");
        let script = "echo out; echo err >&2; exit 32";
        let error = run("sh", &["-c", script], minute).expect_err("it failed");
        assert_eq!((error.to_string().as_str(), error.output()), ("exit status 32", "out\nerr\n"));
        // A child of its own keeps the pipe open: nobody waits for that.
        let error =
            run("sh", &["-c", "sleep 60 & echo no; exit 1"], minute).expect_err("it failed");
        assert_eq!(error.output(), "no\n");
        let error = run("sleep", &["60"], Duration::from_millis(50)).expect_err("too slow");
        assert!(matches!(error, ProgramError::Late { .. }), "{error}");
        let error = run("/nowhere/mount", &[], minute).expect_err("there is none");
        assert!(matches!(error, ProgramError::Start(_)), "{error}");
    }
}
