//! After upstream's eviction_manager_test.go TestLocalStorageEviction and its neighbours.

use serde_json::{Value, json};

use super::*;
use crate::eviction::observed::{DiskUse, VolumeUse};

const MI: u64 = 1 << 20;

fn pod(spec: &Value) -> Pod {
    let meta = json!({"name": "p", "namespace": "ns", "uid": "p"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
}

fn limited(limit: Option<&str>, size: Option<&str>) -> Pod {
    let limits = limit.map_or(json!({}), |limit| json!({"ephemeral-storage": limit}));
    pod(&json!({
        "containers": [{"name": "c", "resources": {"limits": limits}}, {"name": "free"}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": size}}],
    }))
}

fn used(layer: u64, logs: u64, volume: u64, own: u64) -> PodUse {
    let of = |mi: u64| DiskUse { bytes: mi * MI, inodes: 1 };
    let container =
        ContainerUse { layer: Some(of(layer)), logs: Some(of(logs)), ..ContainerUse::default() };
    PodUse {
        containers: [("c".to_owned(), container)].into(),
        volumes: [("v".to_owned(), VolumeUse { disk: of(volume), in_memory: false })].into(),
        own_files: of(own),
        ..PodUse::default()
    }
}

fn told(pod: &Pod, used: &PodUse, images_apart: bool) -> Option<(&'static str, String)> {
    let layout = DiskLayout { images_apart, ..DiskLayout::default() };
    excess(pod, used, layout).map(|excess| (excess.signal, excess.message))
}

#[test]
fn emptydir_over_its_size_limit_is_reported_before_other_limits() {
    let pod = limited(Some("10Mi"), Some("5Mi"));
    assert_eq!(told(&pod, &used(1, 1, 5, 0), false), None);
    let (signal, message) = told(&pod, &used(20, 1, 6, 0), false).expect("too much");
    assert_eq!(signal, "emptydirfs.limit");
    assert_eq!(message, "Usage of EmptyDir volume \"v\" exceeds the limit \"5Mi\". ");
}

#[test]
fn pods_total_disk_usage_counts_against_the_sum_of_its_limits() {
    let pod = limited(Some("10Mi"), None);
    assert_eq!(told(&pod, &used(3, 3, 3, 1), true), None);
    let (signal, message) = told(&pod, &used(3, 3, 3, 2), true).expect("too much");
    assert_eq!(signal, "ephemeralpodfs.limit");
    let want = "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ";
    assert_eq!(message, want);
}

#[test]
fn container_disk_limit_counts_the_layer_only_on_the_disk_of_the_logs() {
    let mut pod = limited(Some("10Mi"), None);
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[1].resources = Some(
        serde_json::from_value(json!({"limits": {"ephemeral-storage": "1Gi"}})).expect("limits"),
    );
    let (signal, message) = told(&pod, &used(6, 5, 0, 0), false).expect("too much");
    assert_eq!(signal, "ephemeralcontainerfs.limit");
    assert_eq!(message, "Container c exceeded its local ephemeral storage limit \"10Mi\". ");
    assert_eq!(told(&pod, &used(6, 5, 0, 0), true), None, "layers lie elsewhere");
    assert!(told(&pod, &used(0, 11, 0, 0), true).is_some());
}

#[test]
fn pod_without_a_disk_limit_is_not_checked() {
    assert!(!is_limited(&limited(None, None)));
    assert!(!is_limited(&limited(None, Some("0"))));
    assert!(is_limited(&limited(Some("1Mi"), None)) && is_limited(&limited(None, Some("1Mi"))));
    assert_eq!(told(&limited(None, None), &used(900, 900, 900, 900), false), None);
    assert_eq!(told(&limited(None, Some("0")), &used(0, 0, 900, 0), false), None);
    assert_eq!(told(&limited(Some("1Mi"), Some("1Mi")), &PodUse::default(), false), None);
}
