//! Filters of a pod's volumes by node, as four plugins.

use std::collections::HashSet;

use pintle_api_types::key::ObjectKey;
use pintle_sched_core::attempt_budget::Exhausted;
use pintle_sched_core::bits::Bits;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::program::Program;
use pintle_sched_core::select::RowPlugin;
use pintle_sched_core::snapshot::View;
use pintle_sched_core::{Cluster, Plugin};

use super::binding::{Binding, Choice};
use super::limits::Attached;
use super::restrictions::Disks;
use super::users::VolumeUser;
use super::{Volumes, limits, restrictions, zone};

/// Rows that the volume plugins reject.
#[derive(Clone, Debug)]
pub struct Claims {
    /// ReadWriteOncePod claims already used by a pod.
    pub(super) one_pod: Vec<ObjectKey>,
    /// Its disks, and nodes with pods that use them.
    pub(super) own_disks: Disks,
    pub(super) disks: Bits,
    /// Volumes that CSI drivers attach for it.
    pub(super) wanted: Attached,
    /// Error about a claim that does not exist, for NodeVolumeLimits if no earlier plugin rejected
    /// the pod for it.
    pub(super) unknown: Option<String>,
    /// Nodes that would exceed an attach limit.
    pub(super) too_many: Bits,
    /// Nodes outside the zones of its volumes.
    pub(super) outside: Bits,
    pub(super) binding: Binding,
}

/// The plugins.
const PLUGINS: [Plugin; 4] = [
    Plugin::VolumeRestrictions,
    Plugin::NodeVolumeLimits,
    Plugin::VolumeBinding,
    Plugin::VolumeZone,
];

/// One of the plugins.
#[derive(Clone, Copy, Debug)]
pub struct OfPlugin<'a>(Plugin, &'a Claims);

impl Claims {
    /// The plugins.
    pub fn plugins(&self) -> [OfPlugin<'_>; 4] {
        PLUGINS.map(|plugin| OfPlugin(plugin, self))
    }

    /// Returns the volumes that the pod would have on a node, if it can have any there.
    pub fn choice(&self, row: u32) -> Option<Choice> {
        self.binding.at(row).ok()
    }

    /// Returns a plugin's rejection of a node.
    fn rejection(&self, plugin: Plugin, row: u32) -> Option<Status> {
        let soft = Code::Unschedulable;
        let hard = Code::UnschedulableAndUnresolvable;
        let says = |code, reasons| Some(says(plugin, code, reasons));
        match plugin {
            Plugin::VolumeRestrictions if self.disks.get(row) => {
                says(soft, vec![restrictions::DISK_CONFLICT])
            }
            Plugin::VolumeRestrictions if !self.one_pod.is_empty() => {
                says(soft, vec![restrictions::ONE_POD])
            }
            Plugin::NodeVolumeLimits if self.unknown.is_some() => {
                says(hard, self.unknown.iter().map(String::as_str).collect())
            }
            Plugin::NodeVolumeLimits if self.too_many.get(row) => {
                says(soft, vec![limits::TOO_MANY])
            }
            Plugin::VolumeBinding => says(hard, self.binding.at(row).err()?),
            Plugin::VolumeZone if self.outside.get(row) => says(hard, vec![zone::CONFLICT]),
            _ => None,
        }
    }

    /// Returns a plugin's rejection of a node without the pods of these uids.
    fn rejection_without(
        &self,
        plugin: Plugin,
        volumes: &Volumes,
        cluster: &Cluster,
        row: u32,
        gone: &HashSet<&str>,
    ) -> Option<Status> {
        let node = cluster.node_name(row);
        let stays = || match plugin {
            _ if self.pay_for_node(volumes, node).is_err() => true,
            Plugin::VolumeRestrictions => {
                let is_used = |claim| volumes.users.is_used(claim, cluster, gone);
                let disks = restrictions::is_taken(&volumes.users, node, &self.own_disks, gone);
                disks || self.one_pod.iter().any(is_used)
            }
            Plugin::NodeVolumeLimits => {
                self.unknown.is_some() || volumes.is_too_many(node, &self.wanted, gone)
            }
            _ => true,
        };
        self.rejection(plugin, row).filter(|_| stays())
    }

    /// Charges a comparison of its volumes with those on a node.
    fn pay_for_node(&self, volumes: &Volumes, node: &str) -> Result<(), Exhausted> {
        let there =
            volumes.users.on_node(node, &HashSet::new()).map(VolumeUser::len).sum::<usize>();
        self.binding.pay((1 + self.wanted.len() + there) as u64)
    }

    /// Returns the rejection by the volumes in use on a node now, without those of the pods `gone`:
    /// nominated pods may have been added since PreFilter.
    // k8s: pkg/scheduler/framework/runtime/framework.go addGENominatedPods
    pub fn rejection_beside(
        &self,
        volumes: &Volumes,
        cluster: &Cluster,
        row: u32,
        gone: &HashSet<&str>,
    ) -> Option<Status> {
        let node = cluster.node_name(row);
        let on = |plugin| cluster.view().profile().filters(plugin);
        let says = |plugin, reason| Some(says(plugin, Code::Unschedulable, vec![reason]));
        let disks = || restrictions::is_taken(&volumes.users, node, &self.own_disks, gone);
        if on(Plugin::VolumeRestrictions) && disks() {
            return says(Plugin::VolumeRestrictions, restrictions::DISK_CONFLICT);
        }
        if on(Plugin::NodeVolumeLimits) && volumes.is_too_many(node, &self.wanted, gone) {
            return says(Plugin::NodeVolumeLimits, limits::TOO_MANY);
        }
        None
    }
}

fn says(plugin: Plugin, code: Code, reasons: Vec<&str>) -> Status {
    let reasons = reasons.into_iter().map(str::to_owned).collect();
    Status { plugin: Some(plugin), code, reasons }
}

impl OfPlugin<'_> {
    /// Returns the rejection of a node without the pods of these uids.
    pub fn rejection_without(
        &self,
        volumes: &Volumes,
        cluster: &Cluster,
        row: u32,
        gone: &HashSet<&str>,
    ) -> Option<Status> {
        self.1.rejection_without(self.0, volumes, cluster, row, gone)
    }
}

impl RowPlugin for OfPlugin<'_> {
    fn plugin(&self) -> Plugin {
        self.0
    }

    fn filter(&self, _: &View, _: &Program, row: u32) -> Option<Status> {
        self.1.rejection(self.0, row)
    }

    fn score(&self, _: &View, _: &Program, _: u32) -> Option<i64> {
        None
    }
}
