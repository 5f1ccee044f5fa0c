//! CPU time and memory of a process, as the kernel counts them.

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// Resources used by a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentLoad {
    /// User and system time, also of its children that have ended.
    pub(super) cpu_seconds: f64,
    /// Resident memory.
    pub(super) resident_mib: f64,
}

impl AgentLoad {
    /// Reads a process's files `stat` and `status`.
    pub(super) fn parse(stat: &str, status: &str) -> Result<Self> {
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("a clock tick")?;
        let cpu_seconds = ticks(stat)? as f64 / per_second as f64;
        Ok(Self { cpu_seconds, resident_mib: kib(status, "VmRSS:")? as f64 / 1024.0 })
    }
}

/// `utime stime cutime cstime`; the name in brackets before them may hold anything.
fn ticks(stat: &str) -> Result<u64> {
    let fields = stat.rsplit_once(')').context("a name in brackets")?.1;
    let times = fields.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
    Ok(times.sum::<Result<u64, _>>()?)
}

fn kib(status: &str, field: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("no {field} in the process's status"))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_includes_the_process_and_its_ended_children() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 9 0 555 1 1";
        assert_eq!(ticks(stat).expect("numbers"), 127);
        assert!(ticks("7 nothing").is_err());
    }

    #[test]
    fn memory_is_the_field_of_that_name() {
        assert_eq!(kib("VmHWM:\t 9 kB\nVmRSS:\t 2048 kB\n", "VmRSS:").expect("there"), 2048);
        assert!(kib("VmHWM:\t 9 kB\n", "VmRSS:").is_err());
    }
}
