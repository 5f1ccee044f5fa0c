//! Usage and health of claims as metrics: each claim once, whichever pods use it.
//!
//! Input: the volumes of pods, measured. Output: Prometheus' text. Pure. Volumes without a claim have
//! no metrics, as in the kubelet.
// k8s: pkg/kubelet/metrics/collectors/volume_stats.go

use std::collections::BTreeMap;

use super::text::{FamilyText, labels};
use super::volumes::{CountedVolume, Volumes};

type Figure = fn(&CountedVolume) -> Option<u64>;

/// Name, help and figure of each family.
const FAMILIES: [(&str, &str, Figure); 7] = [
    ("capacity_bytes", "Capacity in bytes of the volume", |v| Some(v.fs.capacity_bytes)),
    ("available_bytes", "Number of available bytes in the volume", |v| Some(v.fs.available_bytes)),
    ("used_bytes", "Number of used bytes in the volume", |v| Some(v.usage.bytes)),
    ("inodes", "Maximum number of inodes in the volume", |v| Some(v.fs.inodes)),
    ("inodes_free", "Number of free inodes in the volume", |v| Some(v.fs.inodes_free)),
    ("inodes_used", "Number of used inodes in the volume", |v| Some(v.usage.inodes)),
    (
        "health_status_abnormal",
        "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is \
         unhealthy, 0 indicates volume is healthy",
        |v| v.is_abnormal.map(u64::from),
    ),
];

/// The families of claims' volumes in Prometheus' text format.
// k8s: pkg/kubelet/metrics/collectors/volume_stats.go CollectWithStability
pub(super) fn exposition(volumes: &Volumes) -> String {
    let claims: BTreeMap<(&str, &str), &CountedVolume> = volumes
        .values()
        .flatten()
        .filter_map(|volume| {
            let claim = volume.claim.as_ref()?;
            Some(((&*claim.namespace, &*claim.name), volume))
        })
        .collect();
    let mut text = FamilyText::default();
    for (name, help, figure) in FAMILIES {
        let samples: Vec<_> =
            claims.iter().filter_map(|(claim, volume)| Some((*claim, figure(volume)?))).collect();
        if samples.is_empty() {
            continue;
        }
        let name = format!("kubelet_volume_stats_{name}");
        text.help(&name, &format!("[ALPHA] {help}"));
        text.family(&name, "gauge");
        for ((namespace, claim), figure) in samples {
            let of = [("namespace", namespace), ("persistentvolumeclaim", claim)];
            // Figures of a float's precision, as upstream's.
            text.sample(&name, &labels(&of), figure as f64, None);
        }
    }
    text.into_string()
}

#[cfg(test)]
mod tests {
    use super::super::files::{FileSystem, FileUsage};
    use super::super::volumes::PvcRef;
    use super::*;
    use pintle_agent_core::types::UnixNanos;

    fn volume(claim: Option<&str>, bytes: u64, is_abnormal: Option<bool>) -> CountedVolume {
        CountedVolume {
            name: "v".to_owned(),
            is_ephemeral: false,
            usage: FileUsage { bytes, inodes: 2 },
            fs: FileSystem { capacity_bytes: 9, ..FileSystem::default() },
            at: UnixNanos(1),
            is_whole: true,
            claim: claim.map(|name| PvcRef { name: name.to_owned(), namespace: "ns".to_owned() }),
            is_abnormal,
        }
    }

    #[test]
    fn claim_shared_by_two_pods_has_one_sample_and_a_volume_without_claim_has_none() {
        let of_pod = vec![volume(Some("c"), 5, None), volume(None, 7, Some(true))];
        let volumes = [("a".into(), of_pod.clone()), ("b".into(), of_pod)].into();
        let text = exposition(&volumes);
        let line =
            "kubelet_volume_stats_used_bytes{namespace=\"ns\",persistentvolumeclaim=\"c\"} 5\n";
        assert_eq!(text.matches("kubelet_volume_stats_used_bytes{").count(), 1);
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("health_status"), "its health is unknown: {text}");
        assert_eq!(exposition(&Volumes::new()), "");
    }

    #[test]
    fn health_is_exported_only_for_claims_whose_driver_reports_it() {
        let of_pod = vec![
            volume(Some("bad"), 5, Some(true)),
            volume(Some("good"), 5, Some(false)),
            volume(Some("mute"), 5, None),
        ];
        let text = exposition(&[("a".into(), of_pod)].into());
        let family = text.lines().filter(|line| line.contains("health_status_abnormal{"));
        let label = "namespace=\"ns\",persistentvolumeclaim=";
        let name = "kubelet_volume_stats_health_status_abnormal";
        let expected =
            [format!("{name}{{{label}\"bad\"}} 1"), format!("{name}{{{label}\"good\"}} 0")];
        assert_eq!(family.collect::<Vec<_>>(), expected);
    }
}
