//! The sidecars of CSI drivers, and the controller of snapshots, of the module `csi-sidecars`.
//!
//! Input: that Go module. Output: which package each program is, and the definitions of the kinds
//! that snapshots are. node-driver-registrar and livenessprobe are no modules; `tests/csi-driver`
//! stands in for both.

use std::path::PathBuf;

use anyhow::Result;

use super::{Program, module_file_of};

/// The module that defines the kinds of snapshots.
const CLIENT: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";
/// The kinds of snapshots.
const KINDS: [&str; 3] = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sidecar {
    /// Creates and deletes volumes of claims.
    Provisioner,
    /// Attaches volumes to nodes.
    Attacher,
    /// Expands and modifies volumes.
    Resizer,
    /// Takes and deletes snapshots.
    Snapshotter,
    /// Binds snapshots to their content; one a cluster.
    SnapshotController,
}

impl Sidecar {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Provisioner,
        Self::Attacher,
        Self::Resizer,
        Self::Snapshotter,
        Self::SnapshotController,
    ];

    /// The program's name, which is its image's, too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Provisioner => "csi-provisioner",
            Self::Attacher => "csi-attacher",
            Self::Resizer => "csi-resizer",
            Self::Snapshotter => "csi-snapshotter",
            Self::SnapshotController => "snapshot-controller",
        }
    }

    pub(super) fn package(self) -> &'static str {
        match self {
            Self::Provisioner => {
                "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"
            }
            Self::Attacher => "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
            Self::Resizer => "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
            Self::Snapshotter => {
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"
            }
            Self::SnapshotController => {
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
            }
        }
    }
}

/// Files that define the kinds of snapshots.
pub(crate) fn snapshot_definitions() -> Result<Vec<PathBuf>> {
    let (dir, _) = Program::Sidecar(Sidecar::SnapshotController).module();
    let file = |kind| format!("config/crd/snapshot.storage.k8s.io_{kind}.yaml");
    KINDS.iter().map(|kind| module_file_of(&dir, CLIENT, &file(kind))).collect()
}
