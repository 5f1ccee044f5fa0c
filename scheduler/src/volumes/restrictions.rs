//! Disks that one node alone may write to, and claims that one pod alone may use.
// k8s: pkg/scheduler/framework/plugins/volumerestrictions/volume_restrictions.go

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Volume};
use pintle_sched_core::Cluster;
use pintle_sched_core::bits::Bits;

use super::users::{Gone, Users};

pub(super) const DISK_CONFLICT: &str = "node(s) had no available disk";
pub(super) const ONE_POD: &str = "node(s) unavailable due to PersistentVolumeClaim with \
    ReadWriteOncePod access mode already in-use by another pod";

/// A disk that a pod names itself, and whether it only reads there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Gce(String, bool),
    Aws(String),
    Iscsi(String, bool),
    Rbd { monitors: Vec<String>, pool: String, image: String, reads: bool },
}

/// The disk of a volume.
pub(super) fn disk(volume: &Volume) -> Option<Disk> {
    if let Some(gce) = &volume.gce_persistent_disk {
        return Some(Disk::Gce(gce.pd_name.clone(), gce.read_only.unwrap_or(false)));
    }
    if let Some(aws) = &volume.aws_elastic_block_store {
        return Some(Disk::Aws(aws.volume_id.clone()));
    }
    if let Some(iscsi) = &volume.iscsi {
        return Some(Disk::Iscsi(iscsi.iqn.clone(), iscsi.read_only.unwrap_or(false)));
    }
    let rbd = volume.rbd.as_ref()?;
    Some(Disk::Rbd {
        monitors: rbd.monitors.clone(),
        pool: rbd.pool.clone().unwrap_or_default(),
        image: rbd.image.clone(),
        reads: rbd.read_only.unwrap_or(false),
    })
}

/// Whether two pods on a node cannot both have them.
// k8s: volume_restrictions.go isVolumeConflict
fn conflict(a: &Disk, b: &Disk) -> bool {
    match (a, b) {
        (Disk::Gce(a, a_reads), Disk::Gce(b, b_reads))
        | (Disk::Iscsi(a, a_reads), Disk::Iscsi(b, b_reads)) => a == b && !(*a_reads && *b_reads),
        (Disk::Aws(a), Disk::Aws(b)) => a == b,
        (
            Disk::Rbd { monitors, pool, image, reads },
            Disk::Rbd { monitors: m, pool: p, image: i, reads: r },
        ) => {
            let overlap = monitors.iter().any(|monitor| m.contains(monitor));
            overlap && pool == p && image == i && !(*reads && *r)
        }
        _ => false,
    }
}

/// Nodes where pods have disks that these cannot be used beside.
pub(super) fn taken(cluster: &Cluster, users: &Users, disks: &[Disk]) -> Bits {
    let mut rows = Bits::default();
    rows.reset(cluster.all_rows().words().len() * 64);
    if disks.is_empty() {
        return rows;
    }
    for user in users.all() {
        let clash = disks.iter().any(|disk| user.disks.iter().any(|other| conflict(disk, other)));
        if clash && let Some(row) = cluster.row(&user.node) {
            rows.set(row);
        }
    }
    rows
}

/// Whether a pod on a node, other than these, has a disk that these cannot be used beside.
pub(super) fn is_taken(users: &Users, node: &str, disks: &[Disk], gone: &Gone<'_>) -> bool {
    let mut there = users.on_node(node, gone).flat_map(|user| &user.disks);
    there.any(|other| disks.iter().any(|disk| conflict(disk, other)))
}

/// Whether one pod alone may use a claim.
pub(super) fn is_for_one_pod(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
}
