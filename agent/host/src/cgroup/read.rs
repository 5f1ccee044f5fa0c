//! Reads the numbers of a pod's cgroup back: limits before a resize, memory in use.
//!
//! Input: the cgroup's name. Output: numbers in the units of `resize::steps`, v2's weight as v1's
//! shares. Effects: reads a handful of files.
// k8s: pkg/kubelet/cm/cgroup_v1_manager_linux.go, cgroup_v2_manager_linux.go GetCgroupConfig

use std::fs;
use std::io;
use std::path::PathBuf;

use pintle_agent_core::resize::steps::PodFigures;

use super::execute::{CgroupError, Cgroups};
use super::formulas::{cpu_weight, weight_to_shares};
use super::tree::CgroupTree;
use super::unit;

impl Cgroups {
    /// The CPU quota that is read back after this one was written: systemd rounds to whole
    /// percents.
    pub fn rounded_quota(&self, quota_us: i64, period_us: u64) -> i64 {
        if self.by_systemd() { unit::rounded_quota(quota_us, period_us) } else { quota_us }
    }
}

impl CgroupTree {
    /// Memory limit, CPU quota and shares of a cgroup.
    pub fn figures(&self, name: &str) -> Result<PodFigures, CgroupError> {
        if self.is_v2() {
            let (path, text) = self.text(name, "memory", "memory.max")?;
            let memory_limit = match text.as_str() {
                "max" => i64::MAX,
                text => number(&path, text)?,
            };
            let (path, text) = self.text(name, "cpu", "cpu.max")?;
            let cpu_quota_us = match text.split_whitespace().next().unwrap_or_default() {
                "max" => -1,
                quota => number(&path, quota)?,
            };
            let (path, text) = self.text(name, "cpu", "cpu.weight")?;
            let cpu_shares = weight_to_shares(number(&path, &text)?.unsigned_abs());
            return Ok(PodFigures { memory_limit, cpu_quota_us, cpu_shares });
        }
        let read = |controller: &str, file: &str| {
            let (path, text) = self.text(name, controller, file)?;
            number(&path, &text)
        };
        Ok(PodFigures {
            memory_limit: read("memory", "memory.limit_in_bytes")?,
            cpu_quota_us: read("cpu", "cpu.cfs_quota_us")?,
            cpu_shares: read("cpu", "cpu.shares")?.unsigned_abs(),
        })
    }

    /// The shares that are read back after these were written.
    pub fn rounded_shares(&self, shares: u64) -> u64 {
        if self.is_v2() { weight_to_shares(cpu_weight(shares)) } else { shares }
    }

    /// Memory in use in a cgroup, in bytes.
    pub fn memory_usage(&self, name: &str) -> Result<i64, CgroupError> {
        let file = if self.is_v2() { "memory.current" } else { "memory.usage_in_bytes" };
        let (path, text) = self.text(name, "memory", file)?;
        number(&path, &text)
    }

    fn text(
        &self,
        name: &str,
        controller: &str,
        file: &str,
    ) -> Result<(PathBuf, String), CgroupError> {
        let dir = self.dir(name, controller).ok_or(CgroupError::NotMounted)?;
        let path = dir.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok((path, text.trim().to_owned())),
            Err(source) => Err(CgroupError::Read { path, source }),
        }
    }
}

fn number(path: &std::path::Path, text: &str) -> Result<i64, CgroupError> {
    text.parse().map_err(|_| {
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number"));
        CgroupError::Read { path: path.to_owned(), source }
    })
}
