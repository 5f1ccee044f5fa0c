//! A process with its output in a file, to be read when it has ended.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

use crate::shell;

/// It ends with this, if not before.
pub(super) struct Logged {
    child: Child,
    log: PathBuf,
}

impl Logged {
    pub(super) fn start(cmd: &mut Command, log: &Path) -> Result<Self> {
        let out = File::create(log).with_context(|| format!("create {}", log.display()))?;
        cmd.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = cmd.spawn().with_context(|| format!("start {}", shell::line(cmd)))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Waits for its end; returns its exit status and its output.
    pub(super) fn end(&mut self) -> Result<(ExitStatus, String)> {
        let status = self.child.wait()?;
        Ok((status, fs::read_to_string(&self.log).unwrap_or_default()))
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_output_of_a_process_is_returned_at_its_end() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut cmd = Command::new("sh");
        cmd.args(["-c", "echo out; echo err >&2; exit 3"]);
        let mut process = Logged::start(&mut cmd, &dir.path().join("log")).expect("started");
        let (status, text) = process.end().expect("ended");
        assert_eq!((status.code(), &*text), (Some(3), "out\nerr\n"));
    }
}
