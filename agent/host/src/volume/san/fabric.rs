//! Finds a disk of a Fibre Channel fabric by the kernel's links, and takes its devices away.
//!
//! Input: the disk's address. Output: the device to use, a multipath device where there is one.
//! Effects: hosts of the fabric scan for the LUN that was asked for; at the end devices are flushed
//! and deleted. The adapters keep their sessions, so there is nothing to log in to.
// k8s: pkg/volume/fc/fc_util.go searchDisk, DetachDisk

use std::path::PathBuf;
use std::time::Duration;

use pintle_agent_core::storage::disk::fc::FcAddress;

use super::{SanHost, on_disk};
use crate::volume::error::{Cause, IoFailure};
use crate::volume::program;

/// How long links may take after a scan. The kubelet looks once, and fails until its next sync.
const LINK_WAIT: Duration = Duration::from_secs(5);
/// Pause before links are looked for again.
const LINK_PAUSE: Duration = Duration::from_millis(200);
/// Longest flush of a device.
const FLUSH_MAX: Duration = Duration::from_secs(60);

impl SanHost {
    /// The device of a disk; hosts scan for it unless a multipath device is there.
    pub(super) async fn attach_fc(&self, address: &FcAddress) -> Result<PathBuf, Cause> {
        let scanned = self.clone();
        let (own, text) = (address.clone(), address.scan());
        let share = share(address);
        let known = on_disk(&share, move || -> Result<Option<PathBuf>, Cause> {
            let found = scanned.fabric_device(&own)?.filter(|device| is_map(device));
            if found.is_none() {
                scanned.scan_hosts(&text)?;
            }
            Ok(found)
        });
        if let Some(device) = known.await? {
            return Ok(device);
        }
        let deadline = tokio::time::Instant::now() + LINK_WAIT.min(self.link_wait);
        loop {
            let (host, own) = (self.clone(), address.clone());
            if let Some(device) = on_disk(&share, move || host.fabric_device(&own)).await? {
                return Ok(device);
            }
            if tokio::time::Instant::now() > deadline {
                return Err(Cause::Text("no fc disk found".to_owned()));
            }
            tokio::time::sleep(LINK_PAUSE).await;
        }
    }

    /// The device of the disk, as the kernel's links have it now.
    pub(super) fn fabric_device(&self, address: &FcAddress) -> Result<Option<PathBuf>, IoFailure> {
        Ok(self.preferred(self.links(address.links_dir(), |link| address.is_link(link))))
    }

    /// Deletes the devices of a disk that is not mounted any more: of the device that was mounted,
    /// or after a crash of what the folder names.
    pub(super) async fn detach_fc(
        &self,
        folder: &str,
        mounted: Option<PathBuf>,
    ) -> Result<(), Cause> {
        let address = FcAddress::parse_folder(folder);
        let share = address.as_ref().map_or_else(|| folder.to_owned(), share);
        let host = self.clone();
        let devices = on_disk(&share, move || -> Result<Vec<String>, Cause> {
            let found = match (mounted, address) {
                (Some(mounted), _) => std::fs::canonicalize(mounted).ok(),
                (None, Some(address)) => host.fabric_device(&address)?,
                (None, None) => None,
            };
            Ok(found.map(|device| host.paths_of(&device)).unwrap_or_default())
        });
        let devices = devices.await?;
        for name in &devices {
            let device = self.dev.join(name);
            let path = device.to_string_lossy();
            let args = ["--flushbufs", &path];
            let flushed = program::run(&device, "blockdev", &args, FLUSH_MAX).await;
            if let Err(error) = flushed {
                tracing::warn!(device = %path, %error, "a device is removed without a flush");
            }
        }
        self.delete_devices(&share, devices).await
    }
}

/// Jobs of one disk take turns.
fn share(address: &FcAddress) -> String {
    match address {
        FcAddress::Ports { wwns, lun } => format!("{}-lun-{lun}", wwns.join("-")),
        FcAddress::Identifiers(wwids) => wwids.join("-"),
    }
}

fn is_map(device: &std::path::Path) -> bool {
    device.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dm-"))
}
