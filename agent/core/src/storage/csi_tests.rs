//! What a PersistentVolume or a pod's spec becomes, by tables; names and hashes as the kubelet's.

use k8s_openapi::api::core::v1::{CSIVolumeSource, PersistentVolume};
use serde_json::{from_value, json};

use super::*;

fn volume(spec: serde_json::Value) -> PersistentVolume {
    from_value(json!({"metadata": {"name": "pv-1"}, "spec": spec})).expect("a volume")
}

fn csi(more: serde_json::Value) -> PersistentVolume {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"},
        "claimRef": {"namespace": "ns", "name": "claim"},
        "csi": {"driver": "d.example", "volumeHandle": "h-1"},
    });
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    volume(spec)
}

#[test]
fn volume_of_a_claim_has_the_csi_attributes_of_its_persistent_volume() {
    let made = Volume::of_claim(
        &csi(json!({
            "mountOptions": ["ro"],
            "csi": {
                "driver": "d.example", "volumeHandle": "h-1", "fsType": "ext4",
                "volumeAttributes": {"a": "b"},
                "nodeStageSecretRef": {"name": "s", "namespace": "n"},
            },
        })),
        true,
        Some("1Gi"),
    )
    .expect("a driver's volume");
    assert_eq!(made.name, "pv-1");
    let size = made.size.expect("both sizes");
    assert_eq!((size.volume_bytes(), size.claimed_bytes), (2 << 30, 1 << 30));
    assert_eq!((&*size.namespace, &*size.name), ("ns", "claim"));
    assert_eq!(made.fs_type, "ext4");
    assert!(made.is_read_only && !made.is_block);
    assert_eq!(made.secrets.stage.map(|key| key.name), Some("s".to_owned()));
    assert_eq!(made.secrets.publish, None);
    assert_eq!(made.attributes["a"], "b");
}

#[test]
fn claim_without_access_modes_counts_as_read_write_once() {
    let made = Volume::of_claim(&csi(json!({"accessModes": null})), false, None).expect("a volume");
    assert_eq!(made.access_mode(), AccessMode::ReadWriteOnce);
    assert!(!made.is_given_to_group(GroupPolicy::default()));
}

#[test]
fn volume_of_another_plugin_is_none() {
    let other = volume(json!({"hostPath": {"path": "/data"}}));
    assert_eq!(Volume::of_claim(&other, false, None), None);
}

#[test]
fn fs_group_is_applied_according_to_the_fs_group_policy() {
    let made = |fs_type: &str, modes: &[&str], read_only| {
        let source = json!({"driver": "d", "volumeHandle": "h", "fsType": fs_type});
        let volume = csi(json!({"csi": source, "accessModes": modes}));
        Volume::of_claim(&volume, read_only, None).expect("a volume")
    };
    let default = GroupPolicy::parse("ReadWriteOnceWithFSType");
    let rows = [
        (made("ext4", &["ReadWriteOnce"], false), default, true),
        (made("ext4", &["ReadWriteOncePod"], false), default, true),
        (made("ext4", &["ReadWriteMany"], false), default, false),
        (made("", &["ReadWriteOnce"], false), default, false),
        (made("ext4", &["ReadWriteOnce"], true), default, false),
        (made("", &["ReadWriteMany"], false), GroupPolicy::File, true),
        (made("", &["ReadWriteMany"], true), GroupPolicy::File, false),
        (made("ext4", &["ReadWriteOnce"], false), GroupPolicy::None, false),
    ];
    for (volume, policy, given) in rows {
        assert_eq!(volume.is_given_to_group(policy), given, "{volume:?} {policy:?}");
    }
}

#[test]
fn names_are_those_of_the_kubelet() {
    let uid = PodUid::parse("8c1e4b9a-1111-4222-8333-123456789abc").expect("a uid");
    let source = CSIVolumeSource { driver: "d".to_owned(), ..CSIVolumeSource::default() };
    let inline = Volume::of_pod(&source, "data", &uid, "ns");
    // printf '%s' 8c1e4b9a-1111-4222-8333-123456789abcdata | sha256sum
    assert_eq!(
        inline.handle,
        format!("csi-{}", sha256(&["8c1e4b9a-1111-4222-8333-123456789abcdata"]))
    );
    assert_eq!(
        inline.id(&uid).as_str(),
        "kubernetes.io/csi/8c1e4b9a-1111-4222-8333-123456789abc-data"
    );
    let shared = Volume::of_claim(&csi(json!({})), false, None).expect("a volume");
    assert_eq!(shared.id(&uid).as_str(), "kubernetes.io/csi/d.example^h-1");
    assert_eq!(
        sha256(&["abc"]),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!(attachment_name("a", "b", "c"), format!("csi-{}", sha256(&["abc"])));
}
