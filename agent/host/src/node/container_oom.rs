//! The kernel log's lines about a process killed for the memory limit of a container or pod.
//!
//! Input: the log's lines, in order. Output: a kill with the facts that users need: the victim, its
//! resident memory, the limit. Pure; `oom` reads the log. Bounds: one kill at a time. Under load
//! the kernel leaves out all but the last line of a kill: then there is none here.

use super::oom::{CgroupKillLine, killed};

/// A process that was killed in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerKill {
    /// Path of its cgroup, which contains the container's id.
    pub cgroup: String,
    /// Name.
    pub process: String,
    /// On the node.
    pub pid: i64,
    /// Its resident memory, in bytes.
    pub resident: u64,
    /// The limit that was met, in bytes: the container's, or its pod's.
    pub limit: Option<u64>,
}

/// Reads line by line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The kill being reported: all but its resident memory.
    open: ContainerKill,
}

impl Lines {
    /// A kill, once its last line is read.
    pub(super) fn take(&mut self, line: &str) -> Option<ContainerKill> {
        if line.contains("invoked oom-killer:") {
            self.open = ContainerKill::default();
        } else if let Some(limit) = limit_of(line) {
            self.open.limit = Some(limit);
        } else if let Some(verdict) =
            CgroupKillLine::of(line).filter(|verdict| verdict.limit != "/")
        {
            verdict.cgroup.clone_into(&mut self.open.cgroup);
        }
        let kill = killed(line)?;
        let mut open = std::mem::take(&mut self.open);
        (open.process, open.pid, open.resident) = (kill.process, kill.pid, resident(line)?);
        (!open.cgroup.is_empty()).then_some(open)
    }
}

/// `memory: usage 49152kB, limit 49152kB, failcnt 7`; with swap it has another first word.
fn limit_of(line: &str) -> Option<u64> {
    kib(line.strip_prefix("memory: usage ")?.split_once(", limit ")?.1)
}

/// `total-vm:8kB, anon-rss:1kB, file-rss:2kB, shmem-rss:0kB, …` behind the name, which is
/// arbitrary.
fn resident(line: &str) -> Option<u64> {
    let (_, sizes) = line.rsplit_once(" anon-rss:")?;
    let others = ["file-rss:", "shmem-rss:"]
        .map(|size| sizes.split_once(size).and_then(|(_, rest)| kib(rest)).unwrap_or_default());
    Some(kib(sizes)?.saturating_add(others[0]).saturating_add(others[1]))
}

/// `12kB` and more.
fn kib(text: &str) -> Option<u64> {
    text.split_once("kB")?.0.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    const FIRST: &str = "hog invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0";
    const LIMIT: &str = "memory: usage 49152kB, limit 49152kB, failcnt 12";
    const LAST: &str = "Memory cgroup out of memory: Killed process 4242 (hog) total-vm:300000kB, \
                        anon-rss:45056kB, file-rss:1024kB, shmem-rss:0kB, UID:0 pgtables:128kB";

    fn verdict(limit: &str) -> String {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,\
             {limit},task_memcg=/kubepods/podu/c1,task=hog,pid=4242,uid=0"
        )
    }

    fn told(lines: &[&str]) -> Vec<ContainerKill> {
        let mut read = Lines::default();
        lines.iter().filter_map(|line| read.take(line)).collect()
    }

    #[test]
    fn container_oom_kill_is_reported_with_its_resident_size_and_limit() {
        let verdict = verdict("oom_memcg=/kubepods/podu/c1");
        let swap = "memory+swap: usage 49152kB, limit 9007199254740988kB, failcnt 0";
        let kill = ContainerKill {
            cgroup: "/kubepods/podu/c1".into(),
            process: "hog".into(),
            pid: 4242,
            resident: 46_080 << 10,
            limit: Some(48 << 20),
        };
        let lines = [FIRST, LIMIT, swap, "Tasks state:", &verdict, LAST];
        assert_eq!(told(&lines), from_ref(&kill));
        // Other processes killed with it are not reported.
        assert_eq!(told(&[&lines[..], &[LAST]].concat()), from_ref(&kill));
        let unlimited = ContainerKill { limit: None, ..kill };
        assert_eq!(told(&[&lines[..], &[FIRST, &verdict, LAST]].concat())[1..], [unlimited]);
    }

    #[test]
    fn node_oom_kill_or_incomplete_kill_is_no_container_oom_kill() {
        let (own, root) = (verdict("oom_memcg=/kubepods/podu/c1"), verdict("oom_memcg=/"));
        let sizeless = "Memory cgroup out of memory: Killed process 4242 (hog) total-vm:3kB";
        for (what, lines) in [
            ("without a beginning", vec![LAST]),
            ("of the node", vec![FIRST, "oom-kill:constraint=CONSTRAINT_NONE,global_oom", LAST]),
            ("of the root's limit", vec![FIRST, LIMIT, &root, LAST]),
            ("without sizes", vec![FIRST, LIMIT, &own, sizeless]),
            ("begun again", vec![FIRST, LIMIT, &own, FIRST, LAST]),
        ] {
            assert_eq!(told(&lines), [], "{what}");
        }
    }
}
