//! Disks that one node alone may write to, and claims that one pod alone may use.
// k8s: pkg/scheduler/framework/plugins/volumerestrictions/volume_restrictions.go

use std::cmp::Ordering;

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
    /// Monitors are in order: there may be a million, and two lists are walked side by side.
    Rbd {
        monitors: Vec<String>,
        pool: String,
        image: String,
        reads: bool,
    },
}

impl Disk {
    /// Disks that conflict have the same name.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Gce(name, _) => format!("gce {name}"),
            Self::Aws(id) => format!("aws {id}"),
            Self::Iscsi(iqn, _) => format!("iscsi {iqn}"),
            Self::Rbd { pool, image, .. } => format!("rbd {pool} {image}"),
        }
    }
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
    let mut monitors = rbd.monitors.clone();
    monitors.sort_unstable();
    Some(Disk::Rbd {
        monitors,
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
        ) => pool == p && image == i && !(*reads && *r) && overlap(monitors, m),
        _ => false,
    }
}

/// Whether two lists in order have one in common.
// k8s: volume_restrictions.go haveOverlap
fn overlap(mut a: &[String], mut b: &[String]) -> bool {
    while let ([first, rest @ ..], [other, others @ ..]) = (a, b) {
        match first.cmp(other) {
            Ordering::Less => a = rest,
            Ordering::Greater => b = others,
            Ordering::Equal => return true,
        }
    }
    false
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use k8s_openapi::api::core::v1::RBDVolumeSource;

    use super::*;

    /// The disk of an image behind these monitors.
    fn rbd(monitors: impl Iterator<Item = String>) -> Disk {
        let monitors = monitors.collect();
        let rbd = RBDVolumeSource { monitors, image: "i".to_owned(), ..Default::default() };
        disk(&Volume { rbd: Some(rbd), ..Default::default() }).expect("a disk")
    }

    #[test]
    fn disks_behind_a_common_monitor_are_one_wherever_it_stands() {
        let of = |names: &[&str]| rbd(names.iter().map(|&name| name.to_owned()));
        for (a, b, want) in [
            (vec!["c", "a", "b"], vec!["z", "y", "b"], true),
            (vec!["a"], vec!["b", "a"], true),
            (vec!["a", "a"], vec!["b", "b"], false),
            (vec![], vec!["a"], false),
        ] {
            assert_eq!(conflict(&of(&a), &of(&b)), want, "{a:?} {b:?}");
        }
    }

    #[test]
    fn long_lists_of_monitors_are_compared_in_about_the_time_that_it_takes_to_read_them() {
        let list = |letter: char| (0..20_000).map(move |n| format!("{n:05}{letter}"));
        let began = Instant::now();
        let (a, b) = (rbd(list('a')), rbd(list('b')));
        let read = began.elapsed();
        let began = Instant::now();
        assert!(!conflict(&a, &b));
        assert!(began.elapsed() < read * 10);
    }
}
