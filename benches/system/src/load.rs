//! Cost of a process, as the kernel counts it: CPU time, memory, context switches.

use std::collections::HashMap;
use std::fs;
use std::ops::{Div, Mul, Sub};

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// Seconds on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// In the program itself.
    pub user: f64,
    /// In the kernel for it.
    pub system: f64,
}

impl Cpu {
    /// Of a process so far, without that of its children.
    pub fn of(pid: i32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (user, system) = ticks(&stat)?;
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("a clock tick")? as f64;
        Ok(Self { user: user / per_second, system: system / per_second })
    }

    /// Of this process so far.
    pub fn own() -> Result<Self> {
        Self::of(i32::try_from(std::process::id())?)
    }

    /// Both together.
    pub fn seconds(self) -> f64 {
        self.user + self.system
    }
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { user: self.user - before.user, system: self.system - before.system }
    }
}

impl Mul<f64> for Cpu {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self { user: self.user * times, system: self.system * times }
    }
}

impl Div<f64> for Cpu {
    type Output = Self;

    fn div(self, parts: f64) -> Self {
        Self { user: self.user / parts, system: self.system / parts }
    }
}

/// `utime stime`; the name in brackets before them may hold anything.
fn ticks(stat: &str) -> Result<(f64, f64)> {
    let fields = stat.rsplit_once(')').context("a name in brackets")?.1;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    let mut next = || times.next().context("a time");
    Ok((next()??, next()??))
}

/// A thread of a process.
#[derive(Clone, Debug, Default)]
pub struct ProcessThread {
    /// Its name.
    pub name: String,
    /// Nanoseconds on a CPU.
    pub spent: u64,
    /// Times that it went to sleep of itself.
    pub sleeps: u64,
}

/// Threads by their ids.
pub type Threads = HashMap<String, ProcessThread>;

/// The threads of a process.
pub fn threads(pid: i32) -> Threads {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |dir: fs::DirEntry| {
        let read = |file| fs::read_to_string(dir.path().join(file)).ok();
        let name = read("comm")?.trim().to_owned();
        let spent = read("schedstat")?.split(' ').next()?.parse().ok()?;
        let sleeps = number(&read("status")?, "voluntary_ctxt_switches:")? as u64;
        Some((
            dir.file_name().to_string_lossy().into_owned(),
            ProcessThread { name, spent, sleeps },
        ))
    };
    threads.filter_map(of).collect()
}

/// A field of a process's memory in MiB, for example `VmRSS:`.
pub fn memory_mib(pid: i32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(number(&status, field).with_context(|| format!("no {field}"))? / 1024.0)
}

fn number(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{number, ticks};

    #[test]
    fn times_and_fields_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 9 0 555 1 1";
        assert_eq!(ticks(stat).expect("numbers"), (100.0, 20.0));
        assert!(ticks("7 nothing").is_err());
        let status =
            "VmRSS:\t 2048 kB\nnonvoluntary_ctxt_switches:\t1\nvoluntary_ctxt_switches:\t7\n";
        assert_eq!(number(status, "VmRSS:"), Some(2048.0));
        assert_eq!(number(status, "voluntary_ctxt_switches:"), Some(7.0));
        assert_eq!(number(status, "VmHWM:"), None);
    }
}
