//! Tables of claims: a pod and the API server's answers in, a volume or the kubelet's sentence out.

use serde_json::{Value, json};

use super::*;

fn pod(volume: Value) -> Pod {
    let mut volume = volume;
    volume["name"] = json!("data");
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
            "volumes": [volume]},
    }))
    .expect("a pod")
}

fn claiming() -> Pod {
    pod(json!({"persistentVolumeClaim": {"claimName": "c"}}))
}

fn claim(metadata: Value, volume: &str, phase: &str) -> PersistentVolumeClaim {
    let mut metadata = metadata;
    metadata["name"] = json!("c");
    metadata["namespace"] = json!("ns");
    metadata["uid"] = json!("claim-uid");
    let (spec, status) = (json!({"volumeName": volume}), json!({"phase": phase}));
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
        .expect("a claim")
}

fn volume(spec: Value) -> PersistentVolume {
    serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("a volume")
}

fn bound(spec: Value) -> PersistentVolume {
    let mut spec = spec;
    spec["claimRef"] = json!({"uid": "claim-uid"});
    volume(spec)
}

fn claimed(volume: PersistentVolume, is_read_only: bool) -> ClaimedVolume {
    ClaimedVolume {
        claim: "c".to_owned(),
        is_read_only,
        capacity: None,
        volume,
        is_migrated: false,
    }
}

#[test]
fn unusable_claim_is_refused_with_the_error_text_of_the_kubelet() {
    let deleted = "2026-01-01T00:00:00Z";
    let protected = json!(["kubernetes.io/pvc-protection"]);
    let table = [
        (
            Err(FetchError("persistentvolumeclaims \"c\" not found".to_owned())),
            Err("failed to fetch PVC from API server: persistentvolumeclaims \"c\" not found"),
        ),
        (Ok(claim(json!({}), "", "Pending")), Err("PVC is not bound")),
        (Ok(claim(json!({}), "pv", "Lost")), Err("PVC is not bound")),
        (Ok(claim(json!({}), "", "Bound")), Err("PVC has empty pvc.Spec.VolumeName")),
        (
            Ok(claim(json!({"deletionTimestamp": deleted}), "pv", "Bound")),
            Err("PVC is being deleted"),
        ),
        (
            Ok(claim(
                json!({"deletionTimestamp": deleted, "finalizers": protected}),
                "pv",
                "Bound",
            )),
            Ok("pv"),
        ),
        (Ok(claim(json!({}), "pv", "Bound")), Ok("pv")),
    ];
    let pod = claiming();
    let wanted = &of(&pod)[0];
    for (answer, expected) in table {
        let found = BoundClaim::of(&pod, wanted, answer.clone());
        match expected {
            Ok(name) => assert_eq!(found.expect("bound").volume, name),
            Err(why) => {
                let text = found.expect_err(why).to_string();
                assert_eq!(text, format!("error processing PVC ns/c: {why}"), "{answer:?}");
            }
        }
    }
}

#[test]
fn a_claim_of_an_ephemeral_volume_has_to_be_the_pods_own() {
    let pod = pod(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}));
    let wanted = &of(&pod)[0];
    assert_eq!((wanted.claim.as_str(), wanted.is_ephemeral), ("p-data", true));
    let owner = |uid: &str, controller: bool| {
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid,
            "controller": controller}]})
    };
    for (metadata, is_own) in [
        (owner("u1", true), true),
        (owner("u2", true), false),
        (owner("u1", false), false),
        (json!({}), false),
    ] {
        let found = BoundClaim::of(&pod, wanted, Ok(claim(metadata.clone(), "pv", "Bound")));
        let text = found.as_ref().err().map(ToString::to_string);
        let refused = "PVC ns/p-data was not created for pod ns/p (pod is not owner)";
        assert_eq!(text.as_deref(), (!is_own).then_some(refused), "{metadata}");
    }
}

#[test]
fn a_volume_has_to_be_bound_to_the_claim_and_of_the_mode_that_containers_want() {
    let other = json!({"claimRef": {"uid": "other"}});
    let table = [
        (
            Err(FetchError("persistentvolumes \"pv\" is forbidden".to_owned())),
            "error processing PVC ns/c: failed to fetch PV pv from API server: persistentvolumes \
             \"pv\" is forbidden",
        ),
        (
            Ok(volume(json!({}))),
            "error processing PVC ns/c: found PV object pv but it has a nil pv.Spec.ClaimRef \
             indicating it is not yet bound to the claim",
        ),
        (
            Ok(volume(other)),
            "error processing PVC ns/c: found PV object pv but its pv.Spec.ClaimRef.UID other does \
             not point to claim.UID claim-uid",
        ),
        (
            Ok(bound(json!({"volumeMode": "Block"}))),
            "volume data has volumeMode Block, but is specified in volumeMounts",
        ),
        (Ok(bound(json!({"volumeMode": "Filesystem"}))), ""),
    ];
    let pod = claiming();
    let wanted = of(&pod).remove(0);
    let claim = BoundClaim::of(&pod, &wanted, Ok(claim(json!({}), "pv", "Bound"))).expect("bound");
    for (answer, expected) in table {
        let found = claim.resolve(&pod, &wanted, answer);
        let text = found.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(text, expected);
    }
    let device = ClaimRef { is_mounted: false, is_device: true, ..wanted };
    let text = claim.resolve(&pod, &device, Ok(bound(json!({})))).expect_err("a file system");
    assert_eq!(
        text.to_string(),
        "volume data has volumeMode Filesystem, but is specified in volumeDevices"
    );
    claim.resolve(&pod, &device, Ok(bound(json!({"volumeMode": "Block"})))).expect("a device");
}

#[test]
fn a_volume_that_no_container_uses_is_not_resolved() {
    let mut pod = claiming();
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[0].volume_mounts = None;
    assert_eq!(of(&pod), []);
    let planned = super::super::PodVolumes::plan(
        std::path::Path::new("/root"),
        &crate::types::NodeFacts::default(),
        &pod,
        &Claims::default(),
    );
    assert_eq!(planned.volumes, []);
}

#[test]
fn volume_kind_follows_its_source_and_read_only_follows_the_pod() {
    let nfs = json!({"nfs": {"server": "fd00::1", "path": "/e", "readOnly": true},
        "mountOptions": ["nfsvers=4.1", "hard"]});
    let local = json!({"local": {"path": "/mnt/x"}});
    let disk = json!({"local": {"path": "/dev/x", "fsType": "xfs"}, "volumeMode": "Block"});
    let kind = |spec: &Value, is_read_only| claimed(volume(spec.clone()), is_read_only).kind();
    let mounted = |read_only| {
        let options = vec!["hard".to_owned(), "nfsvers=4.1".to_owned()];
        VolumeKind::Nfs(Nfs { source: "[fd00::1]:/e".to_owned(), read_only, options })
    };
    assert_eq!(kind(&nfs, false), mounted(false), "the source's own field has no effect");
    assert_eq!(kind(&nfs, true), mounted(true));
    let local_of = |path: &str, fs_type: &str, read_only, is_block| {
        let (path, fs_type) = (PathBuf::from(path), fs_type.to_owned());
        let options = Vec::new();
        VolumeKind::Local(Local { path, fs_type, options, read_only, is_block, size: None })
    };
    assert_eq!(kind(&local, true), local_of("/mnt/x", "ext4", true, false));
    assert_eq!(kind(&disk, false), local_of("/dev/x", "xfs", false, true));
    let folder = json!({"hostPath": {"path": "/h", "type": "Directory"}});
    let host_path = |kind| VolumeKind::HostPath { path: PathBuf::from("/h"), kind };
    assert_eq!(kind(&folder, false), host_path(Ok(HostPathType::Directory)));
    let block = json!({"hostPath": {"path": "/h"}, "volumeMode": "Block"});
    assert_eq!(kind(&block, false), VolumeKind::Unsupported("hostPath as a block device"));
    let driver =
        json!({"csi": {"driver": "d", "volumeHandle": "h"}, "accessModes": ["ReadWriteOnce"]});
    let VolumeKind::Csi(volume) = kind(&driver, true) else { panic!("a driver's") };
    assert_eq!((volume.name.as_str(), volume.is_read_only), ("pv", true));
    let flex = json!({"flexVolume": {"driver": "x/y"}});
    assert_eq!(kind(&flex, false), VolumeKind::Unsupported("flexVolume"));
    let iqn = "iqn.2020-01.x:y";
    let disk = json!({"iscsi": {"targetPortal": "x", "iqn": iqn, "lun": 0},
        "accessModes": ["ReadWriteOncePod"], "mountOptions": ["sync", "noatime"]});
    let VolumeKind::NetworkDisk(volume) = kind(&disk, true) else { panic!("a disk") };
    assert_eq!((&*volume.name, volume.is_read_only), ("pv", true));
    assert_eq!(volume.mount_options, ["noatime", "sync"]);
    assert_eq!(volume.access_modes, [csi::AccessMode::ReadWriteOncePod]);
    let odd = json!({"iscsi": {"targetPortal": "x", "iqn": "y", "lun": 0}});
    assert!(matches!(kind(&odd, false), VolumeKind::Untranslatable(_)));
}

#[test]
fn options_of_an_annotation_win_and_all_are_sorted_without_repeats() {
    let mut volume = volume(json!({"mountOptions": ["soft", "", "hard", "soft"]}));
    assert_eq!(claimed(volume.clone(), false).mount_options(), ["hard", "soft"]);
    let annotation = (OPTIONS_ANNOTATION.to_owned(), "b,a,,b".to_owned());
    volume.metadata.annotations = Some([annotation].into());
    assert_eq!(claimed(volume, false).mount_options(), ["a", "b"]);
}

#[test]
fn volume_of_another_node_or_with_unsupported_mount_options_is_refused() {
    let affinity = |values: Value| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": values}]}]}})
    };
    let labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), "n1".to_owned())]);
    let local = json!({"local": {"path": "/x"}, "nodeAffinity": affinity(json!(["n1"]))});
    let foreign = json!({"local": {"path": "/x"}, "nodeAffinity": affinity(json!(["n2"]))});
    let options = json!({"hostPath": {"path": "/x"}, "mountOptions": ["ro"]});
    let table = [
        (local, None),
        (foreign, Some(("MountVolume.NodeAffinity check", "no matching NodeSelectorTerms"))),
        (
            options,
            Some((
                "MountVolume.MountOptionSupport check",
                "Mount options are not supported for this volume type",
            )),
        ),
    ];
    for (spec, expected) in table {
        let refusal = claimed(volume(spec.clone()), false).refusal(&labels);
        let expected = expected.map(|(step, why)| (step, why.to_owned()));
        assert_eq!(refusal, expected, "{spec}");
    }
}

#[test]
fn volume_with_read_write_once_pod_as_its_only_mode_is_exclusive() {
    for (modes, is_exclusive) in [
        (json!(["ReadWriteOncePod"]), true),
        (json!(["ReadWriteOncePod", "ReadOnlyMany"]), false),
        (json!(["ReadWriteOnce"]), false),
    ] {
        let claimed = claimed(volume(json!({"accessModes": modes})), false);
        assert_eq!(claimed.is_for_one_pod(), is_exclusive, "{modes}");
    }
}

#[test]
fn group_of_a_volume_is_added_to_the_pod_unless_the_pod_has_it() {
    let mut pod = claiming();
    let mut volume = volume(json!({}));
    let annotation = (GROUP_ANNOTATION.to_owned(), "4242".to_owned());
    volume.metadata.annotations = Some([annotation].into());
    let mut claims = Claims::default();
    claims.insert("data", claimed(volume.clone(), false));
    claims.insert("again", claimed(volume, false));
    assert_eq!(claims.extra_groups(&pod), [4242]);
    let security = json!({"supplementalGroups": [4242]});
    let spec = pod.spec.as_mut().expect("a spec");
    spec.security_context = serde_json::from_value(security).expect("a context");
    assert_eq!(claims.extra_groups(&pod), [0_i64; 0]);
}

#[test]
fn in_tree_volume_of_a_claim_is_migrated_to_its_csi_driver_or_refused() {
    let pod = claiming();
    let wanted = &of(&pod)[0];
    let resolve = |id: &str| {
        let source = json!({"volumeID": id, "fsType": "xfs"});
        let spec = json!({"awsElasticBlockStore": source, "mountOptions": ["noatime"]});
        let bound_to =
            BoundClaim { volume: "pv".to_owned(), uid: "claim-uid".to_owned(), capacity: None };
        bound_to.resolve(&pod, wanted, Ok(bound(spec)))
    };
    let found = resolve("aws://zone/vol-1").expect("its driver has it");
    let VolumeKind::Csi(volume) = found.kind() else { panic!("{:?}", found.kind()) };
    assert_eq!((&*volume.driver, &*volume.handle), ("ebs.csi.aws.com", "vol-1"));
    assert_eq!((&*volume.name, &*volume.fs_type), ("pv", "xfs"));
    assert!(volume.is_migrated, "metrics say so");
    assert_eq!(found.refusal(&BTreeMap::new()), None, "drivers take mount options");
    let text = resolve("aws://zone/disk").expect_err("no name of a disk").to_string();
    let want = "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS \
                Volume ID Invalid format for AWS volume (aws://zone/disk)";
    assert_eq!(text, want);
}
