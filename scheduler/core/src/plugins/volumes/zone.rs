//! VolumeZone: zones of volumes, from their labels.
// k8s: pkg/scheduler/framework/plugins/volumezone/volume_zone.go

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume};
use pintle_sched_core::Cluster;
use pintle_sched_core::bits::Bits;

pub(super) const CONFLICT: &str = "node(s) had no available volume zone";

/// Zone and region labels, with their current names.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];
/// Separator between the zones of a volume.
const SEPARATOR: &str = "__";

fn requirement(key: &str, operator: &str, values: Option<Vec<String>>) -> NodeSelectorRequirement {
    NodeSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values }
}

fn term(all: Vec<NodeSelectorRequirement>) -> NodeSelectorTerm {
    NodeSelectorTerm { match_expressions: Some(all), match_fields: None }
}

/// Returns the nodes outside the zones of any of these volumes. A node without zone labels matches
/// all volumes.
pub(super) fn outside<'a>(
    cluster: &mut Cluster,
    volumes: impl Iterator<Item = &'a PersistentVolume>,
) -> Bits {
    let exists = |(key, _): &(&str, &str)| term(vec![requirement(key, "Exists", None)]);
    let somewhere = cluster.rows_matching(&LABELS.iter().map(exists).collect::<Vec<_>>());
    let mut outside = Bits::default();
    outside.reset(somewhere.words().len() * 64);
    for volume in volumes {
        let labels = volume.metadata.labels.iter().flatten();
        for (key, value) in labels {
            let Some((key, today)) = LABELS.iter().find(|(label, _)| label == key) else {
                continue;
            };
            let values: Vec<String> =
                value.split(SEPARATOR).map(|zone| zone.trim().to_owned()).collect();
            // Upstream ignores an invalid zone list with an empty name.
            // k8s: cloud-provider/volume/helpers/zones.go LabelZonesToSet
            if values.iter().any(|value| value.is_empty()) {
                continue;
            }
            // A part that is no valid label value matches no node: each part has terms of its own.
            let terms = values.into_iter().flat_map(|value| {
                let is = |key| requirement(key, "In", Some(vec![value.clone()]));
                let by_today = vec![requirement(key, "DoesNotExist", None), is(today)];
                [term(vec![is(key)]), term(by_today)]
            });
            let inside = cluster.rows_matching(&terms.collect::<Vec<_>>());
            let mut wrong = somewhere.clone();
            wrong.and_not(&inside);
            outside.or(&wrong);
        }
    }
    outside
}
