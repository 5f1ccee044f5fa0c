//! Sessions of an iSCSI target as the kernel has them, and which of them end with a disk.
//!
//! Input: what sysfs says of the sessions of one target, the portals of the disk that goes, and the
//! other disks of the node. Output: the host to scan, the devices to delete, the portals to log out
//! from. A session ends when no other disk of its target is on the node, or when it has no device
//! left at all, so it is never taken from a disk in use, whichever agent attached that. Pure.
// k8s: pkg/volume/util/device_util_linux.go, pkg/volume/iscsi/iscsi_util.go isSessionBusy

use super::iscsi::{IscsiDisk, parse_folder};

/// A session of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Number of its SCSI host.
    pub host: u32,
    /// Its portal as it is, and as it was asked for.
    pub portals: Vec<String>,
    /// Its LUNs with their block devices.
    pub luns: Vec<LunDevice>,
}

/// A LUN that the kernel has for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunDevice {
    /// Number of the LUN.
    pub lun: u16,
    /// Its block device, such as `sda`.
    pub device: String,
}

/// `address:port`, with brackets around an address of IPv6.
// Go: net.JoinHostPort
pub fn portal(address: &str, port: &str) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// The SCSI host of the session with a portal.
pub fn host_of(sessions: &[Session], portal: &str) -> Option<u32> {
    let has = |session: &&Session| session.portals.iter().any(|own| own == portal);
    sessions.iter().find(has).map(|session| session.host)
}

/// The block devices of a LUN, one for each session.
pub fn devices_of(sessions: &[Session], lun: u16) -> Vec<&str> {
    let luns = sessions.iter().flat_map(|session| &session.luns);
    luns.filter(|found| found.lun == lun).map(|found| found.device.as_str()).collect()
}

/// The portals to log out from once a disk's devices are deleted. `others` are the folders of the
/// node's other disks.
pub fn logouts<'a>(disk: &'a IscsiDisk, others: &[String], sessions: &[Session]) -> Vec<&'a str> {
    let is_same = |folder: &String| parse_folder(folder).is_some_and(|of| of.iqn == disk.iqn);
    let is_shared = others.iter().any(is_same);
    let is_idle = |portal: &str| {
        let mut own = sessions.iter().filter(|s| s.portals.iter().any(|of| of == portal));
        own.all(|session| session.luns.is_empty())
    };
    let portals = disk.distinct_portals().into_iter();
    portals.filter(|portal| !is_shared || is_idle(portal)).collect()
}
