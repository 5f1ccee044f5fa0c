//! How many volumes of a driver a node can attach.
// k8s: pkg/scheduler/framework/plugins/nodevolumelimits/csi.go

use std::collections::HashMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::CSINode;
use pintle_api::informer::ObjectKey;
use pintle_sched_core::Cluster;
use pintle_sched_core::bits::Bits;

use super::in_tree::{self, Handle};
use super::users::Gone;
use super::{Volumes, class_of_claim, volume_name};

pub(super) const TOO_MANY: &str = "node(s) exceed max volume count";

/// Volumes by their unique name, with their drivers.
type Attached = HashMap<String, String>;

/// Volumes that a pod has by its claims, and those that it names itself.
pub(super) type Wanted<'a> = (&'a [ObjectKey], &'a [Handle]);

fn limits(node: &CSINode) -> impl Iterator<Item = (&str, i32)> {
    let drivers = node.spec.drivers.iter();
    drivers.filter_map(|d| Some((d.name.as_str(), d.allocatable.as_ref()?.count?)))
}

/// Whether a node has a limit for any of these volumes.
fn is_limited(node: &CSINode, new: &Attached) -> bool {
    limits(node).any(|(driver, _)| new.values().any(|d| d == driver))
}

/// Whether a node can attach more of any driver's volumes than before.
pub(super) fn raises(old: &CSINode, new: &CSINode) -> bool {
    let before = |driver: &str| limits(old).find(|(name, _)| *name == driver).map_or(0, |l| l.1);
    let drivers = new.spec.drivers.iter();
    // One without a limit takes any number.
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
    /// Nodes where these volumes would be too many.
    pub(super) fn too_many(&self, cluster: &Cluster, wanted: Wanted) -> Bits {
        let mut rows = Bits::default();
        rows.reset(cluster.all_rows().words().len() * 64);
        let mut new = Attached::new();
        self.attach(wanted, &mut new);
        if new.is_empty() {
            return rows;
        }
        let attachments = self.attached(None);
        for (node, csi) in &self.csi_nodes {
            let is_over =
                || self.is_over((node, csi), &new, attachments.get(&**node), &Gone::new());
            if let Some(row) = cluster.row(node)
                && is_limited(csi, &new)
                && is_over()
            {
                rows.set(row);
            }
        }
        rows
    }

    /// Whether these volumes would be too many on a node that these pods have left.
    pub(super) fn is_too_many(&self, node: &str, wanted: Wanted, gone: &Gone<'_>) -> bool {
        let Some(csi) = self.csi_nodes.get(node) else { return false };
        let mut new = Attached::new();
        self.attach(wanted, &mut new);
        if !is_limited(csi, &new) {
            return false;
        }
        let attachments = self.attached(Some(node));
        self.is_over((node, csi), &new, attachments.get(node), gone)
    }

    /// What is attached by node, or to this one alone.
    fn attached(&self, node: Option<&str>) -> HashMap<&str, Attached> {
        let mut found: HashMap<&str, Attached> = HashMap::new();
        for attachment in self.attachments.values() {
            let spec = &attachment.spec;
            if node.is_some_and(|node| node != spec.node_name) {
                continue;
            }
            let volume = spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|name| self.volume(name));
            let csi = volume.and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
            let Some(csi) = csi.filter(|_| !spec.attacher.is_empty()) else { continue };
            let name = format!("{}/{}", spec.attacher, csi.volume_handle);
            found.entry(&spec.node_name).or_default().insert(name, spec.attacher.clone());
        }
        found
    }

    fn is_over(
        &self,
        (node, csi): (&str, &CSINode),
        new: &Attached,
        attached: Option<&Attached>,
        gone: &Gone<'_>,
    ) -> bool {
        let mut there = Attached::new();
        for user in self.users.on_node(node, gone) {
            self.attach((&user.claims, &user.in_tree), &mut there);
        }
        let wanted = |driver: &str| {
            let fresh = new.iter().filter(|(name, _)| !there.contains_key(*name));
            fresh.filter(|(_, d)| *d == driver).count()
        };
        let used = |driver: &str| {
            let unused = attached.into_iter().flatten();
            let unused = unused.filter(|(name, _)| !there.contains_key(*name));
            let unused = unused.filter(|(_, d)| *d == driver).count();
            there.values().filter(|d| *d == driver).count() + unused
        };
        let over = |(driver, most): (&str, i32)| {
            let wanted = wanted(driver);
            wanted > 0 && used(driver) + wanted > usize::try_from(most).unwrap_or(0)
        };
        limits(csi).any(over)
    }

    /// Adds volumes that drivers attach. Those of plugins that have moved are counted for the drivers
    /// that took their place, on every node of which anything is known.
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

    /// Who attaches the volume of a claim, and its name there.
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
