//! `vol_data.json`: what the kubelet writes beside a driver's volume, so that a later agent can take
//! it away without the API server.
//!
//! Input and output: the file's text, equal to the kubelet's byte for byte. An empty or broken file
//! is an error that says which; no folder of a volume is removed because of it.
// k8s: pkg/volume/csi/csi_util.go saveVolumeData, loadVolumeData

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::csi::{Volume, attachment_name};
use crate::labels::go_json;

/// Longest file that is read, in bytes.
pub const RECORD_BYTES_MAX: u64 = 64 << 10;

/// What is written beside a volume. Fields in the file's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// Name of the VolumeAttachment.
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment_id: String,
    /// The driver.
    pub driver_name: String,
    /// The node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Context of SELinux that it was mounted with.
    #[serde(rename = "seLinuxMountContext", skip_serializing_if = "String::is_empty")]
    pub se_linux_mount_context: String,
    /// Name of the volume on the disk.
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub spec_vol_id: String,
    /// The driver's name for the volume.
    pub volume_handle: String,
    /// `Persistent` or `Ephemeral`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
}

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is no JSON object of texts.
    #[error("not a record of a volume: {0}")]
    Json(#[from] serde_json::Error),
    /// It names no driver or no volume.
    #[error("not a record of a volume: {0} is missing")]
    Missing(&'static str),
}

impl Record {
    /// Beside a pod's volume.
    pub fn of_pod(volume: &Volume, node: &str) -> Self {
        Self {
            attachment_id: attachment_name(&volume.handle, &volume.driver, node),
            driver_name: volume.driver.clone(),
            node_name: node.to_owned(),
            se_linux_mount_context: String::new(),
            spec_vol_id: volume.name.clone(),
            volume_handle: volume.handle.clone(),
            volume_lifecycle_mode: volume.lifecycle.text().to_owned(),
        }
    }

    /// Beside what is staged.
    pub fn of_staging(volume: &Volume) -> Self {
        Self {
            driver_name: volume.driver.clone(),
            volume_handle: volume.handle.clone(),
            ..Self::default()
        }
    }

    /// With the SELinux label that the volume is mounted with, if there is one.
    #[must_use]
    pub fn labelled(self, label: Option<&str>) -> Self {
        Self { se_linux_mount_context: label.unwrap_or_default().to_owned(), ..self }
    }

    /// Beside a device.
    // k8s: pkg/volume/csi/csi_plugin.go NewBlockVolumeMapper
    pub fn of_device(volume: &Volume, node: &str) -> Self {
        let mut record = Self::of_pod(volume, node);
        record.volume_lifecycle_mode = String::new();
        record
    }

    /// The file's text, with the end of the line that Go's encoder writes.
    pub fn text(&self) -> String {
        let mut text = go_json(self);
        text.push('\n');
        text
    }

    /// Reads a file's text.
    pub fn parse(text: &[u8]) -> Result<Self, RecordError> {
        // Values are texts only, as Go decodes them; other keys are left aside.
        let map: BTreeMap<String, String> = serde_json::from_slice(text)?;
        let of = |key: &str| map.get(key).cloned().unwrap_or_default();
        let record = Self {
            attachment_id: of("attachmentID"),
            driver_name: of("driverName"),
            node_name: of("nodeName"),
            se_linux_mount_context: of("seLinuxMountContext"),
            spec_vol_id: of("specVolID"),
            volume_handle: of("volumeHandle"),
            volume_lifecycle_mode: of("volumeLifecycleMode"),
        };
        match (record.driver_name.is_empty(), record.volume_handle.is_empty()) {
            (true, _) => Err(RecordError::Missing("driverName")),
            (_, true) => Err(RecordError::Missing("volumeHandle")),
            _ => Ok(record),
        }
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
