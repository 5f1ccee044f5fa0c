//! VolumeRestrictions: disks with a single writer node, and claims for a single pod.
// k8s: pkg/scheduler/framework/plugins/volumerestrictions/volume_restrictions.go

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Volume};
use pintle_sched_core::Cluster;
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};
use pintle_sched_core::bits::Bits;

use super::candidates::PURPOSE;
use super::users::{Gone, VolumeUsers};

pub(super) const DISK_CONFLICT: &str = "node(s) had no available disk";
pub(super) const ONE_POD: &str = "node(s) unavailable due to PersistentVolumeClaim with \
    ReadWriteOncePod access mode already in-use by another pod";

/// A disk named in a pod's spec. The flag says if it is read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodDisk {
    Gce(String, bool),
    Aws(String),
    Iscsi(String, bool),
    /// There may be a million monitors.
    Rbd {
        monitors: Vec<String>,
        pool: String,
        image: String,
        reads: bool,
    },
}

impl PodDisk {
    /// Returns the name; disks that conflict have the same name.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Gce(name, _) => format!("gce {name}"),
            Self::Aws(id) => format!("aws {id}"),
            Self::Iscsi(iqn, _) => format!("iscsi {iqn}"),
            Self::Rbd { pool, image, .. } => format!("rbd {pool} {image}"),
        }
    }
}

impl PodDisk {
    /// Is it read-only? An AWS disk never is.
    fn is_read_only(&self) -> bool {
        match self {
            Self::Gce(_, reads) | Self::Iscsi(_, reads) | Self::Rbd { reads, .. } => *reads,
            Self::Aws(_) => false,
        }
    }
}

/// Returns the disk of a volume.
pub(super) fn disk(volume: &Volume) -> Option<PodDisk> {
    if let Some(gce) = &volume.gce_persistent_disk {
        return Some(PodDisk::Gce(gce.pd_name.clone(), gce.read_only.unwrap_or(false)));
    }
    if let Some(aws) = &volume.aws_elastic_block_store {
        return Some(PodDisk::Aws(aws.volume_id.clone()));
    }
    if let Some(iscsi) = &volume.iscsi {
        return Some(PodDisk::Iscsi(iscsi.iqn.clone(), iscsi.read_only.unwrap_or(false)));
    }
    let rbd = volume.rbd.as_ref()?;
    Some(PodDisk::Rbd {
        monitors: rbd.monitors.clone(),
        pool: rbd.pool.clone().unwrap_or_default(),
        image: rbd.image.clone(),
        reads: rbd.read_only.unwrap_or(false),
    })
}

/// Monitors of an image: of all its disks, and of writable ones.
#[derive(Clone, Debug, Default)]
struct Monitors {
    all: HashSet<String>,
    written: HashSet<String>,
}

/// Disks of a pod, by the property that conflicting disks share, because each of two pods may name
/// very many.
#[derive(Clone, Debug, Default)]
pub(super) struct Disks {
    /// By name; true if it is written to.
    plain: HashMap<String, bool>,
    rbd: HashMap<String, Monitors>,
}

impl Disks {
    pub(super) fn of(disks: Vec<PodDisk>) -> Self {
        let mut found = Self::default();
        for disk in disks {
            let (name, writes) = (disk.name(), !disk.is_read_only());
            let PodDisk::Rbd { monitors, .. } = disk else {
                *found.plain.entry(name).or_default() |= writes;
                continue;
            };
            let known = found.rbd.entry(name).or_default();
            if writes {
                known.written.extend(monitors.iter().cloned());
            }
            known.all.extend(monitors);
        }
        found
    }

    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.rbd.is_empty()
    }

    /// Does this disk conflict with those of a pod on the same node?
    // k8s: volume_restrictions.go isVolumeConflict, haveOverlap
    fn conflict_with(&self, other: &PodDisk) -> bool {
        let reads = other.is_read_only();
        let PodDisk::Rbd { monitors, .. } = other else {
            return self.plain.get(&other.name()).is_some_and(|writes| *writes || !reads);
        };
        self.rbd.get(&other.name()).is_some_and(|own| {
            let own = if reads { &own.written } else { &own.all };
            monitors.iter().any(|monitor| own.contains(monitor))
        })
    }
}

/// Returns the nodes where pods use conflicting disks.
pub(super) fn taken(
    cluster: &Cluster,
    users: &VolumeUsers,
    disks: &Disks,
    spent: &AttemptBudget,
) -> Result<Bits, Exhausted> {
    let mut rows = Bits::default();
    rows.reset(cluster.all_rows().words().len() * 64);
    if disks.is_empty() {
        return Ok(rows);
    }
    for user in users.all() {
        spent.pay(1 + 16 * user.disks.len() as u64, PURPOSE)?;
        if user.disks.iter().any(|other| disks.conflict_with(other))
            && let Some(row) = cluster.row(&user.node)
        {
            rows.set(row);
        }
    }
    Ok(rows)
}

/// Does a pod on the node, other than those `gone`, have a conflicting disk?
pub(super) fn is_taken(users: &VolumeUsers, node: &str, disks: &Disks, gone: &Gone<'_>) -> bool {
    if disks.is_empty() {
        return false;
    }
    let mut there = users.on_node(node, gone).flat_map(|user| &user.disks);
    there.any(|other| disks.conflict_with(other))
}

/// Is the claim ReadWriteOncePod?
pub(super) fn is_for_one_pod(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::RBDVolumeSource;
    use pintle_sched_core::Profile;
    use pintle_sched_core::attempt_budget::Limits;
    use serde_json::json;

    use super::*;

    /// Returns the disk of an image at these monitors.
    fn rbd(monitors: impl Iterator<Item = String>) -> PodDisk {
        let monitors = monitors.collect();
        let rbd = RBDVolumeSource { monitors, image: "i".to_owned(), ..Default::default() };
        disk(&Volume { rbd: Some(rbd), ..Default::default() }).expect("a disk")
    }

    #[test]
    fn rbd_disks_with_a_common_monitor_conflict_at_any_list_position() {
        let of = |names: &[&str]| rbd(names.iter().map(|&name| name.to_owned()));
        for (a, b, want) in [
            (vec!["c", "a", "b"], vec!["z", "y", "b"], true),
            (vec!["a"], vec!["b", "a"], true),
            (vec!["a", "a"], vec!["b", "b"], false),
            (vec![], vec!["a"], false),
        ] {
            let own = Disks::of(vec![of(&a)]);
            assert_eq!(own.conflict_with(&of(&b)), want, "{a:?} {b:?}");
        }
    }

    #[test]
    fn disks_conflict_unless_both_are_only_read() {
        for (own_reads, other_reads) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let rbd = |reads| PodDisk::Rbd {
                monitors: vec!["m".to_owned()],
                pool: String::new(),
                image: "i".to_owned(),
                reads,
            };
            let gce = |reads| PodDisk::Gce("d".to_owned(), reads);
            let want = !(own_reads && other_reads);
            assert_eq!(Disks::of(vec![rbd(own_reads)]).conflict_with(&rbd(other_reads)), want);
            assert_eq!(Disks::of(vec![gce(own_reads)]).conflict_with(&gce(other_reads)), want);
            let both = Disks::of(vec![gce(true), gce(own_reads)]);
            assert_eq!(both.conflict_with(&gce(other_reads)), want, "one of two writes");
        }
        let aws = |id: &str| PodDisk::Aws(id.to_owned());
        assert!(Disks::of(vec![aws("a")]).conflict_with(&aws("a")));
        assert!(!Disks::of(vec![aws("a")]).conflict_with(&aws("b")));
        assert!(!Disks::of(vec![aws("a")]).conflict_with(&PodDisk::Gce("a".to_owned(), false)));
    }

    #[test]
    fn disks_of_two_pods_are_compared_once_each() {
        let (mut users, cluster) = (VolumeUsers::default(), Cluster::new(Profile::default()));
        let volume = |at: usize| {
            json!({"name": format!("v{at}"), "awsElasticBlockStore":
            {"volumeID": format!("d{at}")}})
        };
        let volumes: Vec<_> = (0..2_000).map(volume).collect();
        let pod =
            json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}});
        users.put("uid", &serde_json::from_value(pod).expect("a pod"), "n");
        let own = Disks::of((2_000..4_000).map(|at| PodDisk::Aws(format!("d{at}"))).collect());
        let spent = AttemptBudget::new(Limits { work: 2_000 * 20, bytes: u64::MAX }, || false);
        assert!(taken(&cluster, &users, &own, &spent).is_ok_and(|rows| rows.is_empty()));
        let spent = AttemptBudget::new(Limits { work: 1_000, bytes: u64::MAX }, || false);
        assert!(taken(&cluster, &users, &own, &spent).is_err(), "each of theirs is paid for");
    }
}
