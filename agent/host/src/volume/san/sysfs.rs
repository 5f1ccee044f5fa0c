//! What the kernel says of sessions, SCSI hosts, block devices and multipath maps, and what is
//! written to it: scans and deletions.
//!
//! Input: `/sys`, `/dev/disk` and the list of mounts. Output: sessions of a target, devices behind
//! links. All of it is read at each call, because another agent or the administrator may have
//! changed it. Nothing of a disk is read.
// k8s: pkg/volume/util/device_util_linux.go

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_agent_core::storage::disk::session::{LunDevice, Session, portal};

use super::{SanHost, on_disk};
use crate::volume::error::{Cause, Context, IoFailure};

/// Pause before a multipath device is looked for again.
const MAP_PAUSE: Duration = Duration::from_millis(200);

impl SanHost {
    /// The sessions of a target. What goes while it is read is left out.
    // k8s: pkg/volume/util/device_util_linux.go GetISCSIPortalHostMapForTarget
    pub(super) fn sessions_of(&self, iqn: &str) -> Result<Vec<Session>, IoFailure> {
        let hosts = self.sys.join("class/iscsi_host");
        let mut found = Vec::new();
        for host in names(&hosts)? {
            let Some(number) = host.strip_prefix("host").and_then(|n| n.parse().ok()) else {
                continue;
            };
            let device = hosts.join(&host).join("device");
            let children = names(&device)?;
            for name in children.iter().filter(|name| name.starts_with("session")) {
                let dir = device.join(name);
                let target = dir.join("iscsi_session").join(name).join("targetname");
                if text(&target).as_deref() == Some(iqn) {
                    found.push(session(&dir, number)?);
                }
            }
        }
        Ok(found)
    }

    /// Has the kernel look for one LUN of a session, and for no other.
    // k8s: pkg/volume/iscsi/iscsi_util.go scanOneLun
    pub(super) fn scan_lun(&self, host: u32, lun: u16) -> Result<(), IoFailure> {
        let path = self.sys.join(format!("class/scsi_host/host{host}/scan"));
        put(&path, &format!("0 0 {lun}"))
    }

    /// Has the hosts of the fabric scan; all hosts where the kernel names none as such.
    pub(super) fn scan_hosts(&self, scan: &str) -> Result<(), IoFailure> {
        let mut hosts = names(&self.sys.join("class/fc_host"))?;
        if hosts.is_empty() {
            hosts = names(&self.sys.join("class/scsi_host"))?;
        }
        for host in hosts {
            // A host that cannot scan is not the one that has it.
            let _ = put(&self.sys.join("class/scsi_host").join(host).join("scan"), scan);
        }
        Ok(())
    }

    /// The devices behind links of `/dev/disk`, in the order of the links.
    pub(super) fn links(&self, dir: &str, is_own: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let dir = self.dev.join("disk").join(dir);
        let mut links = names(&dir).unwrap_or_default();
        links.retain(|link| is_own(link));
        links.sort();
        let mut devices: Vec<PathBuf> =
            links.iter().filter_map(|link| fs::canonicalize(dir.join(link)).ok()).collect();
        devices.dedup();
        devices
    }

    /// The multipath device over one of these, or else the first of them.
    pub(super) fn preferred(&self, devices: Vec<PathBuf>) -> Option<PathBuf> {
        let map = devices.iter().find_map(|device| self.map_of(&name_of(device)));
        map.or_else(|| devices.into_iter().next())
    }

    /// As `preferred`; a multipath device is waited for.
    // k8s: pkg/volume/iscsi/iscsi_util.go waitForMultiPathToExist
    pub(super) async fn preferred_within(
        &self,
        limit: Duration,
        share: &str,
        devices: Vec<PathBuf>,
    ) -> Result<PathBuf, Cause> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let (host, own) = (self.clone(), devices.clone());
            let look = move || -> Result<Option<PathBuf>, Cause> {
                Ok(own.iter().find_map(|device| host.map_of(&name_of(device))))
            };
            if let Some(map) = on_disk(share, look).await? {
                return Ok(map);
            }
            if tokio::time::Instant::now() + MAP_PAUSE > deadline {
                let first = devices.into_iter().next();
                return first.ok_or_else(|| Cause::Text("the disk has no path".to_owned()));
            }
            tokio::time::sleep(MAP_PAUSE).await;
        }
    }

    /// The multipath device over a block device; itself if it is one.
    // k8s: pkg/volume/util/device_util_linux.go FindMultipathDeviceForDevice
    pub(super) fn map_of(&self, device: &str) -> Option<PathBuf> {
        if device.starts_with("dm-") {
            return Some(self.dev.join(device));
        }
        let block = self.sys.join("block");
        let mut maps = names(&block).unwrap_or_default();
        maps.retain(|name| name.starts_with("dm-"));
        maps.sort();
        let is_over = |map: &String| block.join(map).join("slaves").join(device).exists();
        maps.into_iter().find(is_over).map(|map| self.dev.join(map))
    }

    /// The block devices below a device: those of a map, or itself.
    // k8s: pkg/volume/util/device_util_linux.go FindSlaveDevicesOnMultipath
    pub(super) fn paths_of(&self, device: &Path) -> Vec<String> {
        let name = name_of(device);
        if !name.starts_with("dm-") {
            return vec![name];
        }
        names(&self.sys.join("block").join(name).join("slaves")).unwrap_or_default()
    }

    /// True when a file system of the device, or the device itself, is mounted anywhere that this
    /// process sees.
    pub(super) fn is_mounted(&self, device: &str) -> Result<bool, IoFailure> {
        let Some(number) = text(&self.sys.join("block").join(device).join("dev")) else {
            return Ok(false);
        };
        let path = Path::new("/proc/thread-self/mountinfo");
        let mounts = fs::read_to_string(path).on("read", path)?;
        Ok(shows(&mounts, &number, device))
    }

    /// Takes a block device from the kernel; one that is gone is fine.
    // k8s: pkg/volume/iscsi/iscsi_util.go deleteDevice
    pub(super) fn delete_device(&self, device: &str) -> Result<(), IoFailure> {
        let path = self.sys.join("block").join(device).join("device/delete");
        match put(&path, "1") {
            Err(failure) if failure.errno == nix::errno::Errno::ENOENT => Ok(()),
            done => done,
        }
    }
}

/// A session in its directory.
fn session(dir: &Path, host: u32) -> Result<Session, IoFailure> {
    let mut found = Session { host, ..Session::default() };
    for name in names(dir)? {
        if name.starts_with("connection") {
            let own = dir.join(&name).join("iscsi_connection").join(&name);
            let pairs = [("address", "port"), ("persistent_address", "persistent_port")];
            for (address, port) in pairs {
                if let (Some(address), Some(port)) =
                    (text(&own.join(address)), text(&own.join(port)))
                {
                    found.portals.push(portal(&address, &port));
                }
            }
        } else if name.starts_with("target") {
            let target = dir.join(&name);
            for address in names(&target)? {
                let lun = address.rsplit(':').next().and_then(|lun| lun.parse().ok());
                let devices = names(&target.join(&address).join("block")).unwrap_or_default();
                if let (Some(lun), true) = (lun, address.matches(':').count() == 3) {
                    let devices = devices.into_iter().map(|device| LunDevice { lun, device });
                    found.luns.extend(devices);
                }
            }
        }
    }
    Ok(found)
}

/// True when a line of mountinfo shows the device: by its number, or as a node of a device file
/// system that is bound on a file.
fn shows(mounts: &str, number: &str, device: &str) -> bool {
    mounts.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let of_device = fields.get(2) == Some(&number);
        let kind = fields.iter().skip_while(|field| **field != "-").nth(1);
        let is_node = fields.get(3).and_then(|root| root.strip_prefix('/')) == Some(device);
        of_device || (is_node && kind == Some(&"devtmpfs"))
    })
}

fn name_of(device: &Path) -> String {
    device.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Names in a folder; none in one that is gone.
fn names(dir: &Path) -> Result<Vec<String>, IoFailure> {
    let entries = match fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.on("read", dir)?,
    };
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// A file's text without the blanks around it.
fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn put(path: &Path, text: &str) -> Result<(), IoFailure> {
    let mut file = OpenOptions::new().write(true).open(path).on("open", path)?;
    file.write_all(text.as_bytes()).on("write", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_device_are_found_by_number_and_by_node() {
        let mounts = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                      23 1 8:16 / /k/disk rw - ext4 /dev/sdb rw\n\
                      24 1 0:5 /sdc /k/dev/u rw shared:2 - devtmpfs udev rw\n\
                      25 1 0:30 /sdd /k/x rw - tmpfs tmpfs rw\n";
        assert!(shows(mounts, "8:16", "sdb"));
        assert!(shows(mounts, "8:32", "sdc"));
        assert!(!shows(mounts, "8:48", "sdd"), "a folder of that name is no device");
        assert!(!shows(mounts, "8:17", "sdb1"));
    }
}
