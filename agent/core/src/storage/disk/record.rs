//! `iscsi.json`: what the kubelet writes into a disk's folder before it is mounted, so that a later
//! agent can detach it without the API server.
//!
//! Input and output: the file's text, equal to the kubelet's byte for byte. While the disk is
//! mounted the mount hides the file, so that it is read after the unmount. Secrets are not in it.
// k8s: pkg/volume/iscsi/iscsi_util.go persistISCSIFile, loadISCSI

use serde::{Deserialize, Serialize};

use super::iscsi::{IscsiDisk, parse_folder};
use crate::labels::go_json;

/// The file's name.
pub const DISK_RECORD_FILE: &str = "iscsi.json";
/// Longest file that is read, in bytes.
pub const DISK_RECORD_BYTES_MAX: u64 = 64 << 10;

/// Exported fields of the kubelet's structure, in its order.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct DiskRecord {
    vol_name: String,
    portals: Vec<String>,
    iqn: String,
    lun: String,
    init_iface: String,
    iface: String,
    initiator_name: String,
    /// An interface that is embedded in the kubelet's structure, and empty here.
    metrics_provider: Option<()>,
}

/// The file's text.
pub fn text(disk: &IscsiDisk) -> String {
    let record = DiskRecord {
        vol_name: disk.name.clone(),
        portals: disk.portals.clone(),
        iqn: disk.iqn.clone(),
        lun: disk.lun.to_string(),
        init_iface: disk.base_iface.clone(),
        iface: disk.iface.clone(),
        initiator_name: disk.initiator.clone(),
        metrics_provider: None,
    };
    let mut text = go_json(&record);
    text.push('\n');
    text
}

/// The disk of a folder, from its file if it names the same target and LUN; otherwise from the
/// folder's name alone, as after a file that was lost.
pub fn disk_of(folder: &str, file: Option<&[u8]>) -> Option<IscsiDisk> {
    let parts = parse_folder(folder)?;
    let read = file.and_then(|text| serde_json::from_slice::<DiskRecord>(text).ok());
    let is_same = |record: &DiskRecord| {
        let first = record.portals.first().map(String::as_str);
        let lun = record.lun.parse().ok();
        first == Some(parts.portal)
            && (record.iqn.as_str(), record.iface.as_str()) == (parts.iqn, parts.iface)
            && lun == Some(parts.lun)
    };
    let record = read.filter(is_same).unwrap_or_else(|| DiskRecord {
        portals: vec![parts.portal.to_owned()],
        ..DiskRecord::default()
    });
    Some(IscsiDisk {
        name: record.vol_name,
        portals: record.portals,
        iqn: parts.iqn.to_owned(),
        lun: parts.lun,
        base_iface: record.init_iface,
        iface: parts.iface.to_owned(),
        initiator: record.initiator_name,
        has_discovery_auth: false,
        has_session_auth: false,
        node_name: String::new(),
    })
}
