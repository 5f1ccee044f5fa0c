//! A controller manager under measurement: how it is started, what it costs, when it is at rest.
//!
//! Input: a program and a cluster. Output: processor time and memory of its process. Both programs
//! get the same flags, so the same loops run in both.

use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use pintle_system_benches::load::memory_mib;
use xtask::cluster::Cluster;

/// A manager that uses no more CPU seconds than this in that time is at rest.
const REST_FOR: Duration = Duration::from_secs(3);
const REST_SECONDS: f64 = 0.15;
/// Limit until it is at rest.
const REST_MAX: Duration = Duration::from_secs(300);
/// The loops that both have.
const LOOPS: &str = "replicationcontroller,resourcequota,namespace,serviceaccount,\
    garbage-collector-controller,daemonset,job,deployment,replicaset,statefulset,cronjob,\
    ttl-after-finished-controller,root-ca-certificate-publisher-controller";

/// A program to be measured.
#[derive(Clone, Debug)]
pub(crate) struct ManagerSide {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
}

/// Its process, which ends with this.
pub(crate) struct ManagerProcess {
    child: Child,
    pub(crate) begun: Instant,
}

/// Resident memory in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// Without pages of files.
    pub(crate) anonymous: f64,
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ManagerProcess {
    pub(crate) fn start(cluster: &Cluster, side: &ManagerSide) -> Result<Self> {
        let layout = cluster.layout();
        let mut cmd = cluster.control_command(&side.program)?;
        let config = layout.kubeconfig("controllers");
        for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            cmd.arg(format!("--{flag}={}", config.display()));
        }
        for (flag, file) in [
            ("requestheader-client-ca-file", "front.crt"),
            ("root-ca-file", "ca.crt"),
            ("service-account-private-key-file", "accounts.key"),
        ] {
            cmd.arg(format!("--{flag}={}", layout.pki(file).display()));
        }
        cmd.args(["--use-service-account-credentials=true", "--leader-elect=false"]);
        // The client's rate limit is not part of the measurement.
        cmd.args(["--kube-api-qps=500", "--kube-api-burst=1000"]);
        cmd.arg(format!("--controllers={LOOPS}"));
        let log = layout.dir().join(format!("{}.log", side.name));
        cmd.stderr(fs::OpenOptions::new().create(true).append(true).open(log)?);
        let begun = Instant::now();
        Ok(Self { child: cmd.spawn()?, begun })
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Seconds of the processor so far: by its clock, since an idle minute takes few ticks.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let clock = clock_getcpuclockid(Pid::from_raw(self.pid()))?;
        Ok(Duration::from(clock_gettime(clock)?).as_secs_f64())
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        let of = |field| memory_mib(self.pid(), field);
        Ok(Memory { resident: of("VmRSS:")?, anonymous: of("RssAnon:")? })
    }

    /// The most that was resident since [`ManagerProcess::forget_peak`].
    pub(crate) fn peak(&self) -> Result<f64> {
        memory_mib(self.pid(), "VmHWM:")
    }

    pub(crate) fn forget_peak(&self) -> Result<()> {
        // See proc_pid_clear_refs(5).
        Ok(fs::write(format!("/proc/{}/clear_refs", self.pid()), "5")?)
    }

    /// Waits until it has nothing left to do; returns its CPU time until then.
    pub(crate) fn rest(&self) -> Result<f64> {
        let begun = Instant::now();
        let mut before = self.cpu()?;
        loop {
            std::thread::sleep(REST_FOR);
            let now = self.cpu()?;
            if now - before <= REST_SECONDS {
                return Ok(before);
            }
            ensure!(begun.elapsed() < REST_MAX, "the manager does not come to rest");
            before = now;
        }
    }
}
