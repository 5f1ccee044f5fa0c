//! Attach limits of nodes by CSI driver.
// k8s: pkg/scheduler/framework/plugins/nodevolumelimits/csi.go

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::CSINode;
use pintle_api_types::key::ObjectKey;
use pintle_sched_core::Cluster;
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};
use pintle_sched_core::bits::Bits;

use super::candidates::PURPOSE;
use super::in_tree::{self, Handle};
use super::users::{Gone, VolumeUser};
use super::{Volumes, class_of_claim, volume_name};

pub(super) const TOO_MANY: &str = "node(s) exceed max volume count";

/// Work of counting a volume on a node: its name is formatted and hashed.
const WORK_A_VOLUME: u64 = 16;

/// Volumes by their unique name, with their drivers.
pub(super) type Attached = HashMap<String, String>;

/// Volumes of a pod: by its claims, and inline.
pub(super) type Wanted<'a> = (&'a [ObjectKey], &'a [Handle]);

fn limits(node: &CSINode) -> impl Iterator<Item = (&str, i32)> {
    let drivers = node.spec.drivers.iter();
    drivers.filter_map(|d| Some((d.name.as_str(), d.allocatable.as_ref()?.count?)))
}

/// Does the node limit any of these drivers?
fn is_limited(node: &CSINode, new: &Attached) -> bool {
    limits(node).any(|(driver, _)| new.values().any(|d| d == driver))
}

/// Can the node attach more of any driver's volumes than before?
pub(super) fn raises(old: &CSINode, new: &CSINode) -> bool {
    let before = |driver: &str| limits(old).find(|(name, _)| *name == driver).map_or(0, |l| l.1);
    let drivers = new.spec.drivers.iter();
    // A driver without a limit attaches any number.
    let unlimited = |name: &str| {
        new.spec.drivers.iter().any(|d| d.name == name)
            && limits(new).all(|(limited, _)| limited != name)
    };
    drivers.map(|d| d.name.as_str()).any(|name| {
        let now = limits(new).find(|(driver, _)| *driver == name).map_or(0, |l| l.1);
        now > before(name) || unlimited(name)
    })
}

impl Volumes {
    /// Returns the volumes that CSI drivers attach for a pod.
    pub(super) fn attached_by(&self, wanted: Wanted) -> Attached {
        let mut new = Attached::new();
        self.attach(wanted, &mut new);
        new
    }

    /// Returns the nodes where these volumes would exceed a limit.
    pub(super) fn too_many(
        &self,
        cluster: &Cluster,
        new: &Attached,
        spent: &AttemptBudget,
    ) -> Result<Bits, Exhausted> {
        let mut rows = Bits::default();
        rows.reset(cluster.all_rows().words().len() * 64);
        if new.is_empty() {
            return Ok(rows);
        }
        let drivers: HashSet<&str> = new.values().map(String::as_str).collect();
        for (node, csi) in &self.csi_nodes {
            let Some(row) = cluster.row(node) else { continue };
            if !limits(csi).any(|(driver, _)| drivers.contains(driver)) {
                continue;
            }
            let attachments = self.attachments.on_node(node).count();
            let there = self.users.on_node(node, &Gone::new()).map(VolumeUser::len).sum::<usize>();
            spent.pay((new.len() + attachments + there) as u64 * WORK_A_VOLUME, PURPOSE)?;
            if self.is_over(node, csi, new, &Gone::new()) {
                rows.set(row);
            }
        }
        Ok(rows)
    }

    /// Would these volumes exceed a limit of the node, once the pods `gone` have left?
    pub(super) fn is_too_many(&self, node: &str, new: &Attached, gone: &Gone<'_>) -> bool {
        let csi = self.csi_nodes.get(node).filter(|csi| is_limited(csi, new));
        csi.is_some_and(|csi| self.is_over(node, csi, new, gone))
    }

    /// Returns the volumes attached to a node.
    fn attached(&self, node: &str) -> Attached {
        let mut found = Attached::new();
        for attachment in self.attachments.on_node(node) {
            let spec = &attachment.spec;
            let volume = spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|name| self.volume(name));
            let csi = volume.and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
            let Some(csi) = csi.filter(|_| !spec.attacher.is_empty()) else { continue };
            let name = format!("{}/{}", spec.attacher, csi.volume_handle);
            found.insert(name, spec.attacher.clone());
        }
        found
    }

    fn is_over(&self, node: &str, csi: &CSINode, new: &Attached, gone: &Gone<'_>) -> bool {
        let attached = self.attached(node);
        let mut there = Attached::new();
        for user in self.users.on_node(node, gone) {
            self.attach((&user.claims, &user.in_tree), &mut there);
        }
        let wanted = |driver: &str| {
            let fresh = new.iter().filter(|(name, _)| !there.contains_key(*name));
            fresh.filter(|(_, d)| *d == driver).count()
        };
        let used = |driver: &str| {
            let unused = attached.iter().filter(|(name, _)| !there.contains_key(*name));
            let unused = unused.filter(|(_, d)| *d == driver).count();
            there.values().filter(|d| *d == driver).count() + unused
        };
        let over = |(driver, most): (&str, i32)| {
            let wanted = wanted(driver);
            wanted > 0 && used(driver) + wanted > usize::try_from(most).unwrap_or(0)
        };
        limits(csi).any(over)
    }

    /// Adds volumes that CSI drivers attach. Volumes of migrated plugins count for the drivers that
    /// replaced them, on every node with a CSINode.
    // k8s: csi.go filterAttachableVolumes; nodevolumelimits/utils.go isCSIMigrationOn
    fn attach(&self, (claims, in_tree): Wanted, to: &mut Attached) {
        for (driver, handle) in in_tree {
            to.insert(format!("{driver}/{handle}"), (*driver).to_owned());
        }
        for key in claims {
            let found = self.claim(key).and_then(|claim| self.driver_and_handle(key, claim));
            if let Some((driver, handle)) = found.filter(|(_, handle)| !handle.is_empty()) {
                to.insert(format!("{driver}/{handle}"), driver.to_owned());
            }
        }
    }

    /// Returns the driver that attaches a claim's volume, and the volume's handle.
    // k8s: csi.go getCSIDriverInfo
    fn driver_and_handle<'a>(
        &'a self,
        key: &ObjectKey,
        claim: &'a PersistentVolumeClaim,
    ) -> Option<(&'a str, String)> {
        if let Some(volume) = volume_name(claim).and_then(|name| self.volume(name)) {
            return match volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) {
                Some(csi) => Some((&csi.driver, csi.volume_handle.clone())),
                None => in_tree::of_volume(volume),
            };
        }
        let class = self.classes.get(class_of_claim(claim))?;
        Some((in_tree::driver_of(&class.provisioner)?, format!("unbound {}", key.as_str())))
    }
}
