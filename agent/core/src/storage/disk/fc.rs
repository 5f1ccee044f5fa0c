//! A LUN behind ports of a Fibre Channel fabric, or a disk by its identifiers.
//!
//! Input: the validated source. Output: its folder, and which links of the kernel lead to it. Links
//! are compared as texts, never by a pattern that a name is part of. Pure.
// k8s: pkg/volume/fc/fc.go, fc_util.go

use serde::{Deserialize, Serialize};

/// The link in `/dev/disk/by-id` before the identifier.
const BY_ID: &str = "scsi-";

/// A disk of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FcDisk {
    /// What it is found by.
    pub address: FcAddress,
    /// `[wwn wwn]:lun` or `[wwid wwid]`, as the source has them.
    pub node_name: String,
}

/// What a disk is found by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FcAddress {
    /// A LUN behind any of these ports.
    Ports {
        /// Names of the ports.
        wwns: Vec<String>,
        /// Number of the LUN.
        lun: u16,
    },
    /// Any of these identifiers, with underscores for blanks.
    Identifiers(Vec<String>),
}

impl FcDisk {
    /// Its folder below the plugin's.
    // k8s: pkg/volume/fc/fc_util.go makePDNameInternal
    pub fn folder(&self) -> String {
        match &self.address {
            FcAddress::Ports { wwns, lun } => format!("{}-lun-{lun}", wwns.join("-")),
            FcAddress::Identifiers(wwids) => wwids.join("-"),
        }
    }
}

impl FcAddress {
    /// Reads the folder of a disk.
    // k8s: pkg/volume/fc/fc_util.go parsePDName
    pub fn parse_folder(folder: &str) -> Option<Self> {
        let texts = |text: &str| text.split('-').map(str::to_owned).collect::<Vec<_>>();
        if folder.is_empty() {
            return None;
        }
        match folder.rsplit_once("-lun-") {
            Some((wwns, lun)) => Some(Self::Ports { wwns: texts(wwns), lun: lun.parse().ok()? }),
            None => Some(Self::Identifiers(texts(folder))),
        }
    }

    /// The folder of `/dev/disk` with links to it.
    pub fn links_dir(&self) -> &'static str {
        match self {
            Self::Ports { .. } => "by-path",
            Self::Identifiers(_) => "by-id",
        }
    }

    /// True for a link that leads to it.
    // k8s: pkg/volume/fc/fc_util.go findDisk, findDiskWWIDs
    pub fn is_link(&self, link: &str) -> bool {
        match self {
            Self::Ports { wwns, lun } => wwns.iter().any(|wwn| {
                let port = format!("fc-0x{wwn}-lun-{lun}");
                let before = link.strip_suffix(&port);
                before.is_some_and(|b| b.is_empty() || (b.starts_with("pci-") && b.ends_with('-')))
            }),
            Self::Identifiers(wwids) => {
                link.strip_prefix(BY_ID).is_some_and(|id| wwids.iter().any(|wwid| wwid == id))
            }
        }
    }

    /// What is written to a host's `scan` to find it: only the LUN that was asked for, where it is
    /// known. The kubelet has every LUN scanned.
    // k8s: pkg/volume/fc/fc_util.go scsiHostRescan
    pub fn scan(&self) -> String {
        match self {
            Self::Ports { lun, .. } => format!("- - {lun}"),
            Self::Identifiers(_) => "- - -".to_owned(),
        }
    }
}

/// `[wwn wwn]:lun`, or `[wwid wwid]` with underscores and with blanks.
pub(super) fn node_names(folder: &str) -> Vec<String> {
    match FcAddress::parse_folder(folder) {
        Some(FcAddress::Ports { wwns, lun }) => vec![format!("[{}]:{lun}", wwns.join(" "))],
        Some(FcAddress::Identifiers(wwids)) => {
            let joined = wwids.join(" ");
            let whole = folder.to_owned();
            let texts = [joined.replace('_', " "), whole.replace('_', " "), joined, whole];
            let mut names: Vec<String> = texts.iter().map(|text| format!("[{text}]")).collect();
            names.sort();
            names.dedup();
            names
        }
        None => Vec::new(),
    }
}
