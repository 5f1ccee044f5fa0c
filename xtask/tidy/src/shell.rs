//! Running other programs: one way to start them, one shape of error.
//!
//! Input: a `std::process::Command`. Output: its exit checked, its text returned where asked. Every
//! error names the whole command line, because the reader of a failed task wants to repeat it. No
//! function waits longer than the program itself but `capture_retried`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Waits between the tries of a command that failed for a passing reason, in seconds.
const RETRY_WAITS_S: [u64; 5] = [2, 5, 10, 30, 60];
/// Output of programs that the network or a lock made fail, in small letters.
const TRANSIENT: [&str; 13] = [
    "timed out",
    "timeout",
    "connection reset",
    "connection refused",
    "temporary failure",
    "could not resolve",
    "no such host",
    "network is unreachable",
    "unexpected eof",
    "bad gateway",
    "service unavailable",
    "failed to fetch",
    "could not get lock",
];

/// One line of progress on stderr, aligned so that a run reads as a column of verbs.
pub fn say(verb: &str, text: &str) {
    eprintln!("{verb:>12}  {text}");
}

/// Prints the start of a task, runs it, and prints its duration.
pub fn timed<T>(verb: &str, text: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(verb, text);
    let begin = Instant::now();
    let out = work().with_context(|| text.to_owned())?;
    say("", &format!("done in {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(out)
}

/// Runs with this terminal's output; fails unless it exits with 0.
pub fn run(cmd: &mut Command) -> Result<()> {
    let status = cmd.status().with_context(|| format!("cannot start: {}", line(cmd)))?;
    if !status.success() {
        bail!("{status}: {}", line(cmd));
    }
    Ok(())
}

/// Runs without a terminal and returns stdout; the error carries the end of stderr.
pub fn capture(cmd: &mut Command) -> Result<String> {
    let out = cmd
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start: {}", line(cmd)))?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        bail!("{}: {}\n{}", out.status, line(cmd), tail(&text, 20));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Like `capture`, for programs that read from the network or need a package manager's lock: it
/// retries a few times while that is the reason of the failure.
pub fn capture_retried(cmd: &mut Command) -> Result<String> {
    retried(|| capture(cmd))
}

/// The same for work of several commands.
pub fn retried<T>(work: impl FnMut() -> Result<T>) -> Result<T> {
    retried_after(&RETRY_WAITS_S, work)
}

fn retried_after<T>(waits_s: &[u64], mut work: impl FnMut() -> Result<T>) -> Result<T> {
    for wait_s in waits_s {
        match work() {
            Err(error) if is_transient(&error) => {
                let why = tail(&format!("{error:#}"), 1);
                say("retry", &format!("in {wait_s} s: {why}"));
                thread::sleep(Duration::from_secs(*wait_s));
            }
            result => return result,
        }
    }
    work()
}

/// Returns whether a retry may succeed: by the messages of curl, apt, Go and the C library.
fn is_transient(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}").to_lowercase();
    TRANSIENT.iter().any(|words| text.contains(words))
}

/// Like `capture`, with stderr on this terminal: for programs that show their progress there.
pub fn capture_shown(cmd: &mut Command) -> Result<String> {
    let out = cmd.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let out = out.with_context(|| format!("cannot start: {}", line(cmd)))?;
    if !out.status.success() {
        bail!("{}: {}", out.status, line(cmd));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// `cargo` as it runs us, in the repository.
pub fn cargo(args: &[&str]) -> Command {
    in_repository(Command::new(cargo_program()), args)
}

/// The same, for compiling beside tests that run.
pub fn gentle_cargo(args: &[&str]) -> Command {
    let mut cmd = Command::new("nice");
    cmd.args(["-n", "5"]).arg(cargo_program());
    in_repository(cmd, args)
}

fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn in_repository(mut cmd: Command, args: &[&str]) -> Command {
    cmd.args(args).current_dir(crate::repository());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_running_package) {
            cmd.env_remove(name);
        }
    }
    cmd
}

/// Returns whether `cargo run` and `cargo test` set the variable to describe the package. Build
/// scripts that watch such variables (ring's does) would run again, and everything above them be
/// compiled again.
fn is_of_running_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// The command as one would type it.
pub fn line(cmd: &Command) -> String {
    let mut text = cmd.get_program().to_string_lossy().into_owned();
    for arg in cmd.get_args() {
        let _ = write!(text, " {}", arg.to_string_lossy());
    }
    text
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The `first` and the `last` lines of a text, and between them how many lines are left out.
pub fn ends(text: &str, first: usize, last: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    let Some(omitted) = all.len().checked_sub(first + last).filter(|count| *count > 0) else {
        return all.join("\n");
    };
    let (head, tail) = (all[..first].join("\n"), all[first + omitted..].join("\n"));
    format!("{head}\n[lines left out: {omitted}]\n{tail}")
}

/// The first of `names` found on PATH or in the folders that only root's PATH has.
pub fn which(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/local/sbin", "/usr/sbin", "/sbin"]);
    let dirs: Vec<&Path> = dirs.map(Path::new).collect();
    names.iter().flat_map(|n| dirs.iter().map(move |d| d.join(n))).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_failed_command_has_its_command_line_and_the_end_of_its_stderr() {
        let mut cmd = Command::new("sh");
        cmd.args(["-c", "echo the reason >&2; exit 3"]);
        let text = format!("{:#}", capture(&mut cmd).expect_err("it exits with 3"));
        assert!(text.contains("sh -c"), "{text}");
        assert!(text.contains("the reason"), "{text}");
    }

    #[test]
    fn only_commands_that_fail_for_a_transient_reason_are_retried() {
        let tries = |why: &'static str, good: usize| {
            let mut count = 0;
            let result = retried_after(&[0; 2], || {
                count += 1;
                if count >= good { Ok(()) } else { Err(anyhow::anyhow!(why)) }
            });
            (count, result.is_ok())
        };
        assert_eq!(tries("E: Failed to fetch http://x", 2), (2, true));
        assert_eq!(tries("dial tcp: i/o timeout", 9), (3, false));
        assert_eq!(tries("undefined: x", 2), (1, false));
    }

    #[test]
    fn tail_keeps_the_last_lines_only() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
    }

    #[test]
    fn ends_omits_the_middle_of_a_long_text_only() {
        assert_eq!(ends("a\nb\nc\nd\n", 1, 2), "a\n[lines left out: 1]\nc\nd");
        assert_eq!(ends("a\nb\nc\n", 1, 2), "a\nb\nc");
        assert_eq!(ends("", 1, 2), "");
    }
}
