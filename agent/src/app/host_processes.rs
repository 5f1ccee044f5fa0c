//! Cgroups of the host's processes: `kubeletCgroups` holds the agent, `systemCgroups` the other
//! processes outside of any cgroup.
//!
//! Owner: one task, at the start and each minute, because others move processes, too; the files are
//! the pool's (`blocking`), as there may be thousands of processes. Effects: makes the cgroups,
//! moves processes, keeps the agent's `oom_score_adj`. In a process namespace of its own the agent
//! leaves its place alone, because another program has put it there.
// k8s: pkg/kubelet/cm/container_manager_linux.go setupNode, ensureSystemCgroups,
//      ensureProcessInContainerWithOOMScore

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pintle_agent_config::Config;
use pintle_agent_core::cgroup::CgroupLimits;
use pintle_agent_core::cgroup::names::{CgroupDriver, CgroupSetup};
use pintle_agent_core::types::with_causes;
use pintle_agent_host::cgroup::Cgroups;
use pintle_agent_host::cgroup::tree::CgroupTree;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::tasks;

/// How often processes are read.
const EVERY: Duration = Duration::from_secs(60);
/// How often the root is emptied before the next turn: processes fork meanwhile.
const ROUNDS: usize = 11;

/// Makes the cgroups; from then on processes are kept in them.
pub(super) async fn start(config: &Config, setup: &CgroupSetup) -> Result<()> {
    let kubelet = &config.kubelet;
    let name = |set: &str| set.trim_matches('/').to_owned();
    let (own, others) = (name(&kubelet.kubelet_cgroups), name(&kubelet.system_cgroups));
    if others.is_empty() && !kubelet.system_cgroups.is_empty() {
        bail!("systemCgroups: system container cannot be root (\"/\")");
    }
    let oom_score_adj = kubelet.oom_score_adj;
    let cgroups = match own.is_empty() && others.is_empty() {
        true => None,
        false => {
            // The names are paths, whatever program makes the cgroups.
            let driver = CgroupDriver::Cgroupfs;
            let top = CgroupSetup { root: "/".to_owned(), driver, ..setup.clone() };
            Some(Cgroups::of(&top).context("kubeletCgroups or systemCgroups")?)
        }
    };
    if let Some(cgroups) = &cgroups {
        for name in [&own, &others].into_iter().filter(|name| !name.is_empty()) {
            let made = cgroups.create_pod(name, &CgroupLimits::default()).await;
            made.with_context(|| format!("kubeletCgroups or systemCgroups: /{name}"))?;
        }
    }
    let tree = cgroups.as_ref().map(Cgroups::tree);
    tasks::singleton("host processes", async move {
        loop {
            let (tree, own, others) = (tree.clone(), own.clone(), others.clone());
            let work = move || {
                if let Some(tree) = &tree {
                    keep(tree, &own, &others);
                }
                if is_on_host() {
                    keep_score(oom_score_adj);
                }
            };
            if let Err(error) = blocking::run(JobPlace::own("host processes"), work).await {
                tracing::warn!(%error, "cgroups of the host's processes are not looked after");
            }
            tokio::time::sleep(EVERY).await;
        }
    });
    Ok(())
}

fn keep(cgroups: &CgroupTree, own: &str, others: &str) {
    if !others.is_empty() {
        for _ in 0..ROUNDS {
            let left: Vec<i32> =
                cgroups.root_pids().into_iter().filter(|pid| is_movable(*pid)).collect();
            if left.is_empty() {
                break;
            }
            for pid in left {
                if let Err(error) = cgroups.adopt(others, pid) {
                    let error = with_causes(&error);
                    tracing::debug!(pid, error, "systemCgroups: a process cannot be moved");
                }
            }
        }
    }
    if !own.is_empty() && is_on_host() {
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        if let Err(error) = cgroups.adopt(own, pid) {
            let error = with_causes(&error);
            tracing::warn!(error, "kubeletCgroups: the agent cannot be moved");
        }
    }
}

/// Not the first process, and none of the kernel's own, which run no program.
// k8s: pkg/kubelet/cm/container_manager_linux.go isKernelPid
fn is_movable(pid: i32) -> bool {
    let exe = fs::read_link(format!("/proc/{pid}/exe"));
    pid != 1 && !matches!(exe, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

// k8s: pkg/kubelet/cm/container_manager_linux.go isProcessRunningInHost
fn is_on_host() -> bool {
    let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/pid")).ok();
    of("1") == of("self")
}

fn keep_score(wanted: i32) {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let now = fs::read_to_string(SCORE).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if now != Some(wanted)
        && let Err(error) = fs::write(SCORE, wanted.to_string())
    {
        tracing::debug!(%error, "oomScoreAdj");
    }
}
