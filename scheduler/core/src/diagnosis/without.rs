//! Row filters of a node from which pods were removed in a dry run.
//!
//! Input: a pod without a node, the pods removed. Output: the reason the node still rejects it.
//! Owner: pure but for state of out-of-tree plugins. Bounds: one node.

use pintle_sched_core::config::Rank;
use pintle_sched_core::filter::status::Status;
use pintle_sched_core::select::RowPlugin;
use pintle_sched_core::snapshot::Cluster;
use pintle_sched_core::snapshot::pods::PodId;

use super::Asking;
use crate::framework::Attempt;
use crate::framework::pods::WholePods;
use crate::plugins::dynamicresources::known::Devices;
use crate::plugins::dynamicresources::row::OfDevices;
use crate::plugins::volumes::{Claims, OfPlugin, Volumes};

/// A row filter that can be run without some pods of the node.
enum Looks<'a> {
    AtVolumes(OfPlugin<'a>),
    AtDevices(OfDevices<'a>),
    OfOthers(&'a Attempt),
}

/// State of the plugins that decide by node.
#[derive(Clone, Copy)]
pub(super) struct NodePluginState<'a> {
    pub volumes: &'a Volumes,
    pub devices: &'a Devices,
    /// Kept only for out-of-tree plugins.
    pub pods: Option<&'a WholePods>,
}

impl<'a> NodePluginState<'a> {
    pub(super) fn of(
        volumes: &'a Volumes,
        devices: &'a Devices,
        pods: Option<&'a WholePods>,
    ) -> Self {
        Self { volumes, devices, pods }
    }
}

impl Asking {
    /// Returns the first rejection of a row by row filters without these pods, of filters that come
    /// before this rank.
    pub(super) fn without(
        &self,
        state: NodePluginState<'_>,
        cluster: &Cluster,
        row: u32,
        gone: &[PodId],
        before: Rank,
    ) -> Option<Status> {
        let NodePluginState { volumes, devices, pods } = state;
        let profile = cluster.view().profile();
        let rank = |plugin: &dyn RowPlugin| profile.filter_rank(plugin.plugin());
        let of_claims = self.claims.iter().flat_map(Claims::plugins);
        let of_claims = of_claims.filter(|plugin| plugin.is_asked(profile));
        let of_claims = of_claims.map(|plugin| (rank(&plugin), Looks::AtVolumes(plugin)));
        let of_devices = self.devices.iter().map(|claims| claims.among(devices));
        let of_devices = of_devices.map(|plugin| (rank(&plugin), Looks::AtDevices(plugin)));
        let of_others = self.attempt.iter().flat_map(|attempt| {
            attempt.ranks(profile).into_iter().map(move |rank| (rank, Looks::OfOthers(attempt)))
        });
        let mut all: Vec<(Rank, Looks<'_>)> =
            of_claims.chain(of_devices).chain(of_others).collect();
        all.retain(|(rank, _)| *rank < before);
        all.sort_by_key(|(rank, _)| *rank);
        let text = |id: &PodId| cluster.text(cluster.pods().get(*id).key);
        all.into_iter().find_map(|(rank, looks)| match looks {
            Looks::AtVolumes(plugin) => {
                let uids = gone.iter().map(text).collect();
                plugin.rejection_without(volumes, cluster, row, &uids)
            }
            Looks::AtDevices(plugin) => plugin.rejection_without(cluster, row, gone),
            Looks::OfOthers(attempt) => {
                let whole = gone.iter().filter_map(|id| pods?.get(text(id))).collect::<Vec<_>>();
                let numbers = cluster.numbers_without(row, gone);
                attempt.rejection_without(cluster.view(), row, numbers, &whole, rank)
            }
        })
    }
}
