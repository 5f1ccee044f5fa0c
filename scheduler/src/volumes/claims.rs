//! What a pod's volumes leave it of the nodes, as four plugins of single nodes.

use pintle_sched_core::Plugin;
use pintle_sched_core::bits::Bits;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::program::Program;
use pintle_sched_core::select::RowPlugin;
use pintle_sched_core::snapshot::View;

use super::binding::{Binding, Choice};
use super::{limits, restrictions, zone};

/// Rows that the plugins take out.
#[derive(Clone, Debug)]
pub struct Claims {
    /// A claim of the pod is for one pod, and has one.
    pub(super) one_pod: bool,
    /// Nodes with pods that have its disks.
    pub(super) disks: Bits,
    /// Nodes that cannot attach as many.
    pub(super) too_many: Bits,
    /// Nodes in other zones than its volumes.
    pub(super) outside: Bits,
    pub(super) binding: Binding,
}

/// The plugins, in the order in which they run.
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
    /// The plugins, in the order in which they run.
    pub fn plugins(&self) -> [OfPlugin<'_>; 4] {
        PLUGINS.map(|plugin| OfPlugin(plugin, self))
    }

    /// Which volumes the pod would have on a node, if it can have any there.
    pub fn choice(&self, row: u32) -> Option<Choice> {
        self.binding.at(row).ok()
    }

    /// Why a plugin takes a node out.
    fn rejection(&self, plugin: Plugin, row: u32) -> Option<Status> {
        let soft = Code::Unschedulable;
        let hard = Code::UnschedulableAndUnresolvable;
        let says = |code, reasons: Vec<&str>| {
            let reasons = reasons.into_iter().map(str::to_owned).collect();
            Some(Status { plugin: Some(plugin), code, reasons })
        };
        match plugin {
            Plugin::VolumeRestrictions if self.disks.get(row) => {
                says(soft, vec![restrictions::DISK_CONFLICT])
            }
            Plugin::VolumeRestrictions if self.one_pod => says(soft, vec![restrictions::ONE_POD]),
            Plugin::NodeVolumeLimits if self.too_many.get(row) => {
                says(soft, vec![limits::TOO_MANY])
            }
            Plugin::VolumeBinding => says(hard, self.binding.at(row).err()?),
            Plugin::VolumeZone if self.outside.get(row) => says(hard, vec![zone::CONFLICT]),
            _ => None,
        }
    }

    /// Whether any plugin of the view's profile takes a node out.
    pub fn rejects(&self, view: &View, row: u32) -> bool {
        let on = PLUGINS.into_iter().filter(|plugin| view.profile().filters(*plugin));
        on.into_iter().any(|plugin| self.rejection(plugin, row).is_some())
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
