//! Tables of planned volumes: one pod in, its volumes or the refusal out.

use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    let meta = json!({"name": "p", "namespace": "ns", "uid": "u1"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
}

fn planned(spec: Value) -> PodVolumes {
    let node = NodeFacts { memory_allocatable_bytes: 1 << 30, ..NodeFacts::default() };
    PodVolumes::plan(Path::new("/root"), &node, &pod(spec), &Claims::default())
}

fn container(resources: Value) -> Value {
    json!([{"name": "c", "resources": resources}])
}

#[test]
fn a_memory_volume_takes_the_smallest_of_node_pod_and_volume() {
    let limited = json!({"limits": {"memory": "64Mi"}});
    let table = [
        (None, json!({}), 1 << 30),
        (Some("16Mi"), json!({}), 16 << 20),
        (Some("0"), json!({}), 1 << 30),
        (Some("2Gi"), json!({}), 1 << 30),
        (None, limited.clone(), 64 << 20),
        (Some("128Mi"), limited.clone(), 64 << 20),
        (Some("8Mi"), limited, 8 << 20),
        (None, json!({"requests": {"memory": "64Mi"}}), 1 << 30),
    ];
    for (limit, resources, expected) in table {
        let mut source = json!({"medium": "Memory"});
        if let Some(limit) = limit {
            source["sizeLimit"] = json!(limit);
        }
        let pod = planned(json!({
            "containers": container(resources.clone()),
            "volumes": [{"name": "m", "emptyDir": source}]}));
        let VolumeKind::EmptyDir(dir) = &pod.volumes[0].kind else { panic!("an emptyDir") };
        assert_eq!(dir.medium, Medium::Memory(Some(expected)), "{limit:?} {resources}");
    }
}

#[test]
fn huge_pages_need_a_request_of_their_size() {
    let both = json!({"requests": {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}});
    let small = json!({"requests": {"hugepages-2Mi": "4Mi"}});
    let table = [
        ("HugePages", small.clone(), Ok(2 << 20)),
        ("HugePages-2Mi", both.clone(), Ok(2 << 20)),
        ("HugePages-1Gi", both.clone(), Ok(1 << 30)),
        ("HugePages", both, Err("multiple huge page sizes")),
        ("HugePages-1Gi", small, Err("no resource request for huge pages")),
        ("HugePages", json!({}), Err("no resource request for huge pages")),
    ];
    for (medium, resources, expected) in table {
        let pod = planned(json!({
            "containers": container(resources),
            "volumes": [{"name": "h", "emptyDir": {"medium": medium}}]}));
        let VolumeKind::EmptyDir(dir) = &pod.volumes[0].kind else { panic!("an emptyDir") };
        let Medium::HugePages(found) = &dir.medium else { panic!("huge pages") };
        match expected {
            Ok(bytes) => assert_eq!(found, &Ok(bytes), "{medium}"),
            Err(part) => {
                let error = found.as_ref().expect_err("refused").to_string();
                assert!(error.contains(part), "{error}");
            }
        }
    }
}

#[test]
fn token_owner_is_the_user_that_all_containers_share() {
    let user = |uid: Option<i64>| json!({"runAsUser": uid});
    let table = [
        (vec![Some(1), Some(1)], None, Some(1)),
        (vec![Some(1), Some(2)], None, None),
        (vec![Some(1), None], None, None),
        (vec![Some(1), None], Some(1), Some(1)),
        (vec![None, None], Some(7), Some(7)),
    ];
    for (users, of_pod, expected) in table {
        let containers: Vec<Value> = users
            .iter()
            .enumerate()
            .map(|(n, uid)| json!({"name": format!("c{n}"), "securityContext": user(*uid)}))
            .collect();
        let pod = pod(json!({"containers": containers, "securityContext": user(of_pod)}));
        assert_eq!(fs_user(&pod), expected, "{users:?} {of_pod:?}");
    }
}

#[test]
fn files_that_show_the_same_field_share_its_text() {
    let items: Vec<_> = (0..3)
        .map(|n| json!({"path": n.to_string(), "fieldRef": {"fieldPath": "metadata.name"}}))
        .collect();
    let downward = json!({"items": items});
    let volumes = json!([
        {"name": "a", "downwardAPI": downward},
        {"name": "b", "projected": {"sources": [{"downwardAPI": downward}]}},
    ]);
    let planned = planned(json!({"volumes": volumes, "containers": []}));
    let sources = planned.volumes.iter().flat_map(|volume| match &volume.kind {
        VolumeKind::Payload { sources, .. } => sources.list.iter(),
        other => unreachable!("{other:?}"),
    });
    let text = |source: &PayloadSource| match source {
        PayloadSource::Field { data: Ok(data), .. } => Arc::clone(data),
        other => unreachable!("{other:?}"),
    };
    let texts: Vec<_> = sources.map(text).collect();
    assert_eq!((texts.len(), &*texts[0]), (6, &b"p"[..]));
    assert!(texts.iter().all(|text| Arc::ptr_eq(text, &texts[0])));
}

#[test]
fn only_volumes_written_by_the_agent_have_nested_mount_points() {
    let mounts = json!([{"name": "cm", "mountPath": "/cm"}, {"name": "e", "mountPath": "/cm/x"},
        {"name": "cm", "mountPath": "/cm/x/y"}]);
    let pod = planned(json!({
        "containers": [{"name": "c", "volumeMounts": mounts}],
        "volumes": [{"name": "cm", "configMap": {"name": "m"}}, {"name": "e", "emptyDir": {}}]}));
    let nested = |at: usize| -> Vec<&str> {
        pod.volumes[at].nested.iter().flat_map(|list| list.iter()).map(String::as_str).collect()
    };
    assert_eq!((nested(0), nested(1)), (vec!["x"], vec![]));
}

/// Where each volume asks each container, this takes many minutes.
#[test]
fn plan_of_many_volumes_and_many_containers_sums_container_resources_once() {
    let resources = json!({"limits": {"memory": "64Mi", "hugepages-2Mi": "2Mi"},
        "requests": {"memory": "64Mi", "hugepages-2Mi": "2Mi"}});
    let container = |at| json!({"name": format!("c{at}"), "resources": resources.clone()});
    let medium = |at: usize| if at.is_multiple_of(2) { "Memory" } else { "HugePages" };
    let volume = |at: usize| json!({"name": format!("v{at}"), "emptyDir": {"medium": medium(at)}});
    let pod = planned(json!({
        "containers": (0..2_000).map(container).collect::<Value>(),
        "volumes": (0..20_000).map(volume).collect::<Value>()}));
    let medium = |at: usize| match &pod.volumes[at].kind {
        VolumeKind::EmptyDir(dir) => dir.medium.clone(),
        _ => panic!("an emptyDir"),
    };
    assert_eq!(medium(19_998), Medium::Memory(Some(1 << 30)));
    assert_eq!(medium(19_999), Medium::HugePages(Ok(2 << 20)));
}

#[test]
fn a_volume_wanted_as_a_device_is_refused_unless_it_is_a_claim() {
    let pod = planned(json!({
        "containers": [
            {"name": "c", "volumeDevices": [
                {"name": "raw", "devicePath": "/dev/x"},
                {"name": "odd", "devicePath": "/dev/y"}]},
            {"name": "d", "volumeMounts": [{"name": "files", "mountPath": "/files"}]}],
        "volumes": [
            {"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}},
            {"name": "odd", "emptyDir": {}},
            {"name": "files", "emptyDir": {}}]}));
    assert_eq!(pod.volumes[0].kind, VolumeKind::Claim("raw".to_owned()));
    let odd = VolumeKind::Unsupported("volumeDevices of a volume that is no claim");
    assert_eq!(pod.volumes[1].kind, odd);
    assert!(matches!(pod.volumes[2].kind, VolumeKind::EmptyDir(_)));
}

#[test]
fn a_volume_that_no_plugin_serves_is_planned_only_for_containers_that_use_it() {
    let of = |mounts: Value| {
        let pod = planned(json!({
            "containers": [{"name": "c", "volumeMounts": mounts}],
            "volumes": [{"name": "v", "flexVolume": {"driver": "x/y"}}]}));
        pod.volumes.len()
    };
    assert_eq!(of(json!([{"name": "v", "mountPath": "/v"}])), 1);
    assert_eq!(of(json!([])), 0);
}

#[test]
fn network_disk_of_a_pod_is_planned_for_containers_that_use_it() {
    let iqn = "iqn.2020-01.x:y";
    let pod = planned(json!({
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "disk", "mountPath": "/disk"}, {"name": "odd", "mountPath": "/odd"},
            {"name": "port", "mountPath": "/port"}]}],
        "volumes": [
            {"name": "disk", "iscsi": {"targetPortal": "x", "iqn": iqn, "lun": 0, "readOnly": true}},
            {"name": "odd", "iscsi": {"targetPortal": "x", "iqn": "-x", "lun": 0}},
            {"name": "port", "fc": {"targetWWNs": ["50"], "lun": 1}},
            {"name": "unused", "iscsi": {"targetPortal": "x", "iqn": iqn, "lun": 1}}]}));
    let names: Vec<&str> = pod.volumes.iter().map(|volume| volume.disk_name()).collect();
    assert_eq!(names, ["disk", "odd", "port"]);
    let dir = |at: usize| pod.volumes[at].host_dir(&pod.dirs);
    let volumes = pod.dirs.pod().join("volumes");
    assert_eq!(dir(0), Some(volumes.join("kubernetes.io~iscsi/disk")));
    assert_eq!(dir(2), Some(volumes.join("kubernetes.io~fc/port")));
    assert!(pod.volumes[0].is_read_only() && pod.volumes[0].is_made_for_the_pod());
    assert!(matches!(&pod.volumes[1].kind, VolumeKind::Untranslatable(why) if why.contains("iqn")));
    let staged = pod.volumes.iter().filter(|volume| volume.kind.staged().is_some()).count();
    assert_eq!(staged, 2);
}

#[test]
fn in_tree_volume_of_a_pod_is_planned_for_its_driver_under_a_name_without_slashes() {
    let managed = |uri: &str| json!({"diskName": "d", "diskURI": uri, "kind": "Managed"});
    let pod = planned(json!({
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "aws", "mountPath": "/aws"},
            {"name": "azure", "mountPath": "/azure", "subPath": "below"},
            {"name": "odd", "mountPath": "/odd"}]}],
        "volumes": [
            {"name": "aws", "awsElasticBlockStore": {"volumeID": "vol-1"}},
            {"name": "azure", "azureDisk": managed("/subscriptions/s/disks/d")},
            {"name": "odd", "azureDisk": managed("..")},
            {"name": "unused", "cinder": {"volumeID": "x"}}]}));
    let names: Vec<&str> = pod.volumes.iter().map(|volume| volume.disk_name()).collect();
    assert_eq!(names, ["ebs.csi.aws.com-vol-1", "/subscriptions/s/disks/d", "odd"]);
    let volumes = pod.dirs.pod().join("volumes/kubernetes.io~csi");
    let dir = pod.volumes[0].host_dir(&pod.dirs);
    assert_eq!(dir, Some(volumes.join("ebs.csi.aws.com-vol-1/mount")));
    let dir = pod.volumes[1].host_dir(&pod.dirs);
    assert_eq!(dir, Some(volumes.join("~subscriptions~s~disks~d/mount")));
    let why = "failed to translate in-tree pv to CSI: it has no name".to_owned();
    assert_eq!(pod.volumes[2].kind, VolumeKind::Untranslatable(why));
    let is_migrated = |kind: &VolumeKind| match kind {
        VolumeKind::Csi(volume) => Some(volume.is_migrated),
        _ => None,
    };
    let migrated: Vec<_> = pod.volumes.iter().map(|volume| is_migrated(&volume.kind)).collect();
    assert_eq!(migrated, [Some(true), Some(true), None]);
}
