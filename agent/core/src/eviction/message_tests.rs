//! After upstream's helpers_test.go TestEvictionMessage.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::eviction::observed::DiskUse;
use crate::eviction::threshold::ThresholdLevel;

const MI: u64 = 1 << 20;

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "1"},
        "spec": {"containers": [
            {"name": "big", "resources": {"requests": {"memory": "100Mi",
                "ephemeral-storage": "10Mi"}}},
            {"name": "small", "resources": {"requests": {"memory": "100Mi"}}}],
            "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "debug"}]}
    }))
    .expect("a pod")
}

fn used() -> PodUse {
    let disk = |mi: u64| Some(DiskUse { bytes: mi * MI, inodes: 7 });
    let of = |mi: u64| ContainerUse { working_set: Some(mi * MI), layer: disk(mi), logs: disk(1) };
    let all = [("big", of(300)), ("small", of(50)), ("side", of(20)), ("debug", of(900))];
    let containers = all.map(|(name, used)| (name.to_owned(), used)).into();
    PodUse { working_set: Some(370 * MI), containers, ..PodUse::default() }
}

fn threshold(signal: Signal, level: &str) -> Threshold {
    let level = ThresholdLevel::parse(level).expect("a level");
    Threshold { signal, level, grace: Duration::ZERO, min_reclaim: None }
}

fn readings() -> BTreeMap<Signal, ResourceReading> {
    let of =
        |available, capacity| ResourceReading { available, capacity, ..ResourceReading::default() };
    [
        (Signal::MemoryAvailable, of(90 * MI, 4096 * MI)),
        (Signal::NodeFsAvailable, of(1536 * MI, 16_384 * MI)),
        (Signal::NodeFsInodesFree, of(12_000, 1_000_000)),
    ]
    .into()
}

#[test]
fn memory_eviction_message_and_annotations_equal_the_kubelets() {
    let thresholds = [threshold(Signal::MemoryAvailable, "100Mi")];
    let (told, notes) = message(Starved::Memory, &pod(), Some(&used()), &thresholds, &readings());
    assert_eq!(
        told,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. \
         Container big was using 300Mi, request is 100Mi, has larger consumption of memory. \
         Container side was using 20Mi, request is 0, has larger consumption of memory. "
    );
    let want = [
        ("offending_containers", "big,side"),
        ("offending_containers_usage", "300Mi,20Mi"),
        ("starved_resource", "memory"),
    ];
    assert_eq!(notes, want.map(|(name, value)| (name, value.to_owned())));
}

#[test]
fn pod_level_request_is_reported_before_container_requests() {
    let mut pod = pod();
    let whole = json!({"requests": {"memory": "200Mi"}});
    pod.spec.as_mut().expect("a spec").resources =
        Some(serde_json::from_value(whole).expect("resources"));
    let (told, notes) = message(Starved::Memory, &pod, Some(&used()), &[], &readings());
    let want = "The node was low on resource: memory. Pod web was using 370Mi, request is 200Mi, \
                has larger consumption of memory. Container big";
    assert!(told.starts_with(want), "{told}");
    let whole = [("offending_pod", "web"), ("offending_pod_usage", "370Mi")];
    assert_eq!(notes[..2], whole.map(|(name, value)| (name, value.to_owned())));
}

#[test]
fn disk_message_counts_layer_and_logs_and_resolves_percentages() {
    let thresholds = [threshold(Signal::NodeFsAvailable, "10%")];
    let (told, notes) =
        message(Starved::EphemeralStorage, &pod(), Some(&used()), &thresholds, &readings());
    let want = "The node was low on resource: ephemeral-storage. Threshold quantity: 1717986944, \
                available: 1536Mi. Container big was using 301Mi, request is 10Mi, has larger \
                consumption of ephemeral-storage. ";
    assert!(told.starts_with(want), "{told}");
    assert_eq!(notes[2].1, "ephemeral-storage");
}

#[test]
fn inode_message_names_no_container_and_missing_usage_yields_no_annotations() {
    let thresholds = [threshold(Signal::NodeFsInodesFree, "5%")];
    let (told, notes) = message(Starved::Inodes, &pod(), Some(&used()), &thresholds, &readings());
    let want = "The node was low on resource: inodes. Threshold quantity: 50k, available: 12k. ";
    // As upstream a percentage is in powers of two whatever it is a part of.
    assert_eq!(told, want.replace("50k", "50000"));
    assert_eq!(notes[0], ("offending_containers", String::new()));
    let (told, notes) = message(Starved::Inodes, &pod(), None, &[], &readings());
    assert_eq!((told.as_str(), notes), ("The node was low on resource: inodes. ", Notes::new()));
}
