//! Placements of a pod group: one set of nodes for each domain of its topology, and their scores.
//!
//! Input: a group's topology constraint, nodes, the nodes of its pods. Output: placements by
//! domain, scores. Owner: pure functions. Bounds: the nodes; a bit each for each domain.
// k8s: pkg/scheduler/framework/plugins/topologyaware/topology_placement.go,
//      pkg/scheduler/framework/plugins/podgrouppodscount/podgroup_pods_count.go

use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_sched_core::bits::Bits;
use pintle_sched_core::filter::status::Status;
use pintle_sched_core::program::Program;
use pintle_sched_core::select::RowPlugin;
use pintle_sched_core::snapshot::View;
use pintle_sched_core::{Plugin, Profile};

use crate::cache::ClusterCache;

/// Reason why the domain of placed pods is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    /// A pod's node does not exist.
    #[error("getting node for pod {pod}: nodeinfo not found for node name {node:?}")]
    NoNode {
        /// The pod.
        pod: String,
        /// Its node.
        node: Rc<str>,
    },
    /// A pod's node is in no domain.
    #[error("no topology domain found for pod {0}")]
    None(String),
    /// The pods are in several domains.
    #[error("more than 1 domain found for pod group: {0}, {1}")]
    Several(String, String),
}

/// Candidate nodes of a group.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The domain.
    pub name: String,
    /// The rows of its nodes.
    pub rows: Bits,
    /// The number of its nodes.
    pub nodes: usize,
}

impl RowPlugin for Placement {
    fn plugin(&self) -> Plugin {
        Plugin::NodeName
    }
    // The restriction to its nodes applies whatever plugins are enabled.
    fn always(&self) -> bool {
        true
    }
    fn filter(&self, _: &View, _: &Program, row: u32) -> Option<Status> {
        (!self.rows.get(row)).then(Status::absent)
    }
    fn score(&self, _: &View, _: &Program, _: u32) -> Option<i64> {
        None
    }
}

/// Returns the domain of a group's placed pods. `placed` has the name and the node of each.
///
/// # Errors
/// When a node has no domain, or the pods are in several.
// k8s: topology_placement.go getScheduledPodsTopologyDomain
pub fn domain_of(
    cache: &ClusterCache,
    key: &str,
    placed: &[(String, Rc<str>)],
) -> Result<Option<String>, DomainError> {
    let mut found: Option<String> = None;
    for (pod, node) in placed {
        let labels = cache
            .labels_of(node)
            .ok_or_else(|| DomainError::NoNode { pod: pod.clone(), node: Rc::clone(node) })?;
        let domain = labels.get(key).ok_or_else(|| DomainError::None(pod.clone()));
        let domain = (*domain?).to_owned();
        match &found {
            Some(other) if *other != domain => {
                return Err(DomainError::Several(other.clone(), domain));
            }
            _ => found = Some(domain),
        }
    }
    Ok(found)
}

/// Returns a placement for each domain, or only for `only`.
#[must_use]
pub fn placements(cache: &ClusterCache, key: &str, only: Option<&str>) -> Vec<Placement> {
    let mut found: BTreeMap<String, Placement> = BTreeMap::new();
    let rows = cache.cluster.view().row_count();
    for (node, domain) in cache.domains(key) {
        let Some(row) = cache.cluster.row(node) else { continue };
        if only.is_some_and(|only| only != domain) {
            continue;
        }
        let of = found.entry(domain.to_owned()).or_insert_with(|| Placement {
            name: domain.to_owned(),
            rows: Bits::with_rows(rows),
            nodes: 0,
        });
        of.rows.set(row);
        of.nodes += 1;
    }
    found.into_values().collect()
}

/// Returns the score of each placement. `known` has, for each, the number of the group's pods that
/// would get nodes, and how full the nodes would be, 0..=100.
#[must_use]
pub fn scores(profile: &Profile, known: &[(usize, i64)]) -> Vec<i64> {
    let most = known.iter().map(|(pods, _)| *pods).max().unwrap_or(0).max(1);
    let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let one = |(pods, full): &(usize, i64)| {
        let counted = whole(*pods).saturating_mul(100) / whole(most);
        counted + full.saturating_mul(profile.weight(Plugin::NodeResourcesFit))
    };
    known.iter().map(one).collect()
}
