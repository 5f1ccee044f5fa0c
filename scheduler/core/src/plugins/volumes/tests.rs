//! Nodes that volumes allow, and upstream's messages.

use pintle_sched_core::attempt_budget::{AttemptBudget, Limits};
use pintle_sched_core::hint::HintEvent;
use pintle_sched_core::{Cluster, Profile};
use serde_json::{Value, json};

use super::bind::{BindProgress, WriteTarget};
use super::*;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).expect("an object of its kind"))
}

fn set(volumes: &mut Volumes, thing: WatchedObject) -> Option<HintEvent> {
    volumes.set(thing)
}

fn claim(name: &str, change: impl FnOnce(&mut Value)) -> WatchedObject {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("c-{name}"),
            "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "resources": {"requests": {"storage": "5Gi"}}},
    });
    change(&mut value);
    WatchedObject::PersistentVolumeClaim(object(value))
}

fn bound_claim(name: &str, volume: &str) -> WatchedObject {
    claim(name, |claim| {
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
        claim["spec"]["volumeName"] = json!(volume);
    })
}

fn volume(
    name: &str,
    size: &str,
    nodes: &[&str],
    change: impl FnOnce(&mut Value),
) -> WatchedObject {
    let mut value = json!({
        "metadata": {"name": name, "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "capacity": {"storage": size}},
        "status": {"phase": "Available"},
    });
    if !nodes.is_empty() {
        value["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "host", "operator": "In", "values": nodes}]}]}});
    }
    change(&mut value);
    WatchedObject::PersistentVolume(object(value))
}

fn class(name: &str, mode: &str, provisioner: &str) -> WatchedObject {
    WatchedObject::StorageClass(object(
        json!({"metadata": {"name": name}, "provisioner": provisioner,
        "volumeBindingMode": mode}),
    ))
}

fn pod(claims: &[&str]) -> k8s_openapi::api::core::v1::Pod {
    let volumes = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    *object(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p"},
        "spec": {"containers": [], "volumes": volumes.collect::<Vec<_>>()}}))
}

/// Nodes a, b and c, the first two in zone z.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    for name in ["a", "b", "c"] {
        let mut labels = json!({"host": name});
        if name != "c" {
            labels["topology.kubernetes.io/zone"] = json!("z");
        }
        let node = json!({"metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}}});
        cluster.set_node(&serde_json::from_value(node).expect("a node")).expect("a node");
    }
    cluster
}

fn known(things: Vec<WatchedObject>) -> Volumes {
    let mut volumes = Volumes::default();
    set(&mut volumes, class("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"));
    for thing in things {
        set(&mut volumes, thing);
    }
    volumes
}

/// Returns the rejection of each node; empty for a node that passes.
fn reasons(volumes: &mut Volumes, claims: &[&str]) -> [String; 3] {
    let mut cluster = cluster();
    let found = volumes.look(&pod(claims), &mut cluster, &Rc::default()).expect("some node may do");
    let claims = found.expect("it has volumes");
    let program = cluster.compile(&pod(&[])).expect("a pod");
    [0, 1, 2].map(|row| {
        let plugins = claims.plugins();
        let mut all = plugins.iter().map(|plugin| {
            pintle_sched_core::select::RowPlugin::filter(plugin, cluster.view(), &program, row)
        });
        all.find_map(|status| status).map(|s| s.reasons.join(", ")).unwrap_or_default()
    })
}

const NO_MATCH: &str = "node(s) didn't find available persistent volumes to bind";
const AFFINITY: &str = "node(s) didn't match PersistentVolume's node affinity";

fn refused(volumes: &mut Volumes, claims: &[&str]) -> String {
    let found = volumes.look(&pod(claims), &mut cluster(), &Rc::default());
    found.expect_err("no node can do").reason
}

#[test]
fn a_pod_without_volumes_is_left_alone() {
    assert!(
        known(vec![]).look(&pod(&[]), &mut cluster(), &Rc::default()).expect("nothing").is_none()
    );
}

#[test]
fn unusable_claims_and_volumes_are_reported_with_a_reason() {
    let mut volumes = known(vec![
        claim("unbound", |claim| claim["spec"]["storageClassName"] = json!("none")),
        claim("leaving", |c| c["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z")),
        claim("lost", |claim| {
            claim["status"] = json!({"phase": "Lost"});
            claim["spec"]["volumeName"] = json!("v");
        }),
        bound_claim("away", "v"),
    ]);
    for (name, words) in [
        ("x", "persistentvolumeclaim \"x\" not found"),
        ("unbound", "pod has unbound immediate PersistentVolumeClaims"),
        ("leaving", "persistentvolumeclaim \"leaving\" is being deleted"),
        ("lost", "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"v\""),
        ("away", "persistentvolume \"v\" not found"),
    ] {
        assert_eq!(refused(&mut volumes, &[name]), words);
    }
}

#[test]
fn ephemeral_claim_must_be_owned_by_its_pod() {
    let mut pod = pod(&[]);
    let volume = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]);
    pod.spec.as_mut().expect("a spec").volumes = serde_json::from_value(volume).expect("volumes");
    let mut volumes = known(vec![]);
    let look = |volumes: &mut Volumes| volumes.look(&pod, &mut cluster(), &Rc::default());
    let waiting = "waiting for ephemeral volume controller to create the persistentvolumeclaim \
        \"p-v\"";
    assert_eq!(look(&mut volumes).expect_err("none").reason, waiting);
    set(&mut volumes, claim("p-v", |_| ()));
    let other = "PVC ns/p-v was not created for pod ns/p (pod is not owner)";
    assert_eq!(look(&mut volumes).expect_err("another's").reason, other);
    set(
        &mut volumes,
        claim("p-v", |claim| {
            claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
            "name": "p", "uid": "p", "controller": true}]);
        }),
    );
    assert!(look(&mut volumes).expect("its own").is_some());
}

#[test]
fn bound_volumes_have_to_be_within_reach() {
    let mut volumes = known(vec![
        bound_claim("here", "v"),
        volume("v", "5Gi", &["a", "b"], |_| ()),
        bound_claim("there", "w"),
        volume("w", "5Gi", &["b", "c"], |_| ()),
    ]);
    assert_eq!(reasons(&mut volumes, &["here"]), ["", "", AFFINITY]);
    assert_eq!(reasons(&mut volumes, &["here", "there"]), [AFFINITY, "", AFFINITY]);
}

#[test]
fn the_smallest_volume_that_does_is_chosen() {
    let mut volumes = known(vec![
        claim("small", |_| ()),
        claim("large", |c| c["spec"]["resources"]["requests"]["storage"] = json!("20Gi")),
        volume("v10", "10Gi", &["a"], |_| ()),
        volume("v20", "20Gi", &["a", "b"], |_| ()),
        volume("v30", "30Gi", &["a"], |_| ()),
        volume("v4", "4Gi", &["c"], |_| ()),
        volume("taken", "5Gi", &["c"], |v| v["status"]["phase"] = json!("Bound")),
        volume("block", "5Gi", &["c"], |v| v["spec"]["volumeMode"] = json!("Block")),
        volume("many", "5Gi", &["c"], |v| v["spec"]["accessModes"] = json!(["ReadOnlyMany"])),
        volume("class", "5Gi", &["c"], |v| v["spec"]["storageClassName"] = json!("other")),
        volume("given", "5Gi", &["c"], |v| {
            v["spec"]["claimRef"] = json!({"namespace": "ns", "name": "other", "uid": "o"});
        }),
    ]);
    // The smaller claim takes the volume of 20 on b, so that none is left for the larger one.
    assert_eq!(reasons(&mut volumes, &["large", "small"]), ["", NO_MATCH, NO_MATCH]);
    let mut cluster = cluster();
    let claims = volumes
        .look(&pod(&["large", "small"]), &mut cluster, &Rc::default())
        .expect("some")
        .expect("it");
    let choice = claims.choice(0).expect("it fits");
    let chosen: Vec<&str> = choice.bindings.iter().map(|(volume, _)| volume.as_str()).collect();
    assert_eq!(chosen, ["v10", "v20"]);
}

#[test]
fn volume_pre_bound_to_a_claim_is_its_only_candidate() {
    let mut volumes = known(vec![
        claim("mine", |_| ()),
        volume("any", "5Gi", &["a"], |_| ()),
        volume("given", "50Gi", &["b"], |v| {
            v["spec"]["claimRef"] = json!({"namespace": "ns", "name": "mine"});
        }),
    ]);
    assert_eq!(reasons(&mut volumes, &["mine"]), [NO_MATCH, "", NO_MATCH]);
}

#[test]
fn volumes_are_provisioned_only_in_allowed_topologies_with_enough_capacity() {
    let made = |change: &dyn Fn(&mut Value)| {
        let mut value = json!({"metadata": {"name": "made"}, "provisioner": "csi.x",
            "volumeBindingMode": "WaitForFirstConsumer"});
        change(&mut value);
        WatchedObject::StorageClass(object(value))
    };
    let wants = |c: &mut Value| c["spec"]["storageClassName"] = json!("made");
    let mut volumes = known(vec![made(&|_| ()), claim("c", wants)]);
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
    set(
        &mut volumes,
        made(&|class| {
            class["allowedTopologies"] =
                json!([{"matchLabelExpressions": [{"key": "host", "values": ["a", "b"]}]}]);
        }),
    );
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", NO_MATCH]);
    let driver = json!({"metadata": {"name": "csi.x"}, "spec": {"storageCapacity": true}});
    set(&mut volumes, WatchedObject::CSIDriver(object(driver)));
    let full = "node(s) did not have enough free storage";
    assert_eq!(reasons(&mut volumes, &["c"]), [full, full, NO_MATCH]);
    let room = |size: &str| {
        WatchedObject::CSIStorageCapacity(object(
            json!({"metadata": {"name": "r", "namespace": "x"},
            "storageClassName": "made", "capacity": size,
            "nodeTopology": {"matchLabels": {"host": "b"}}}),
        ))
    };
    assert!(set(&mut volumes, room("1Gi")).is_some(), "there is room where there was none");
    assert_eq!(reasons(&mut volumes, &["c"]), [full, full, NO_MATCH]);
    assert!(set(&mut volumes, room("10Gi")).is_some(), "there is more");
    assert!(set(&mut volumes, room("9Gi")).is_none(), "there is less");
    assert_eq!(reasons(&mut volumes, &["c"]), [full, "", NO_MATCH]);
    // It is being provisioned on a node already.
    set(
        &mut volumes,
        claim("c", |c| {
            wants(c);
            c["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "b"});
        }),
    );
    assert_eq!(reasons(&mut volumes, &["c"]), [NO_MATCH, "", NO_MATCH]);
}

#[test]
fn read_write_once_pod_claims_and_exclusive_disks_are_not_shared() {
    let one = |c: &mut Value| {
        c["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
        c["spec"]["volumeName"] = json!("v");
        c["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    };
    let mut volumes = known(vec![claim("c", one), volume("v", "5Gi", &[], |_| ())]);
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
    volumes.users.put("other", &pod(&["c"]), "a");
    assert_eq!(reasons(&mut volumes, &["c"]), [restrictions::ONE_POD; 3]);
    volumes.users.take("other");
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
    let disk = |reads: bool| {
        let mut pod = pod(&[]);
        let disks = json!([{"name": "d", "gcePersistentDisk": {"pdName": "d", "readOnly": reads}}]);
        pod.spec.as_mut().expect("a spec").volumes = serde_json::from_value(disks).expect("disks");
        pod
    };
    let mut taken = |there: bool, wanted: bool| {
        volumes.users.put("other", &disk(there), "b");
        let claims =
            volumes.look(&disk(wanted), &mut cluster(), &Rc::default()).expect("some").expect("it");
        claims.disks.iter().collect::<Vec<_>>()
    };
    assert_eq!((taken(true, true), taken(true, false)), (vec![], vec![1]));
}

#[test]
fn node_accepts_only_as_many_volumes_as_its_csi_driver_can_attach() {
    let csi = |v: &mut Value| {
        let handle = v["metadata"]["name"].clone();
        v["spec"]["csi"] = json!({"driver": "csi.x", "volumeHandle": handle});
    };
    let mut volumes = known(vec![
        bound_claim("c1", "v1"),
        bound_claim("c2", "v2"),
        bound_claim("c3", "v3"),
        volume("v1", "5Gi", &[], csi),
        volume("v2", "5Gi", &[], csi),
        volume("v3", "5Gi", &[], csi),
    ]);
    let node = |count: i32| {
        WatchedObject::CSINode(object(json!({"metadata": {"name": "a"}, "spec": {"drivers": [
            {"name": "csi.x", "nodeID": "a", "allocatable": {"count": count}}]}})))
    };
    assert!(set(&mut volumes, node(2)).is_some());
    assert!(set(&mut volumes, node(2)).is_none(), "nothing changed");
    assert_eq!(reasons(&mut volumes, &["c1", "c2"]), ["", "", ""]);
    volumes.users.put("other", &pod(&["c1"]), "a");
    assert_eq!(reasons(&mut volumes, &["c1", "c2"]), ["", "", ""], "one is there already");
    assert_eq!(reasons(&mut volumes, &["c2", "c3"]), [limits::TOO_MANY, "", ""]);
    let attached = json!({"metadata": {"name": "x"}, "spec": {"attacher": "csi.x",
        "nodeName": "a", "source": {"persistentVolumeName": "v3"}}, "status": {"attached": true}});
    set(&mut volumes, WatchedObject::VolumeAttachment(object(attached)));
    assert_eq!(reasons(&mut volumes, &["c2"]), [limits::TOO_MANY, "", ""]);
    let key = ObjectKey::new("", "x");
    assert!(volumes.gone(WatchedKind::VolumeAttachment, &key).is_some(), "there is room again");
    assert_eq!(reasons(&mut volumes, &["c2"]), ["", "", ""]);
}

#[test]
fn a_volume_of_a_zone_stays_there() {
    let zone = |v: &mut Value| {
        v["metadata"]["labels"] = json!({"failure-domain.beta.kubernetes.io/zone": "y__x"});
    };
    let mut volumes = known(vec![bound_claim("c", "v"), volume("v", "5Gi", &[], zone)]);
    // A node without a zone matches all.
    assert_eq!(reasons(&mut volumes, &["c"]), [zone::CONFLICT, zone::CONFLICT, ""]);
    set(
        &mut volumes,
        volume("v", "5Gi", &[], |v| {
            v["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z"});
        }),
    );
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
}

#[test]
fn assumed_volume_counts_until_it_is_observed_or_reverted() {
    let mut volumes =
        known(vec![claim("c", |_| ()), claim("d", |_| ()), volume("v", "5Gi", &["a"], |_| ())]);
    let mut cluster = cluster();
    let claims =
        volumes.look(&pod(&["c"]), &mut cluster, &Rc::default()).expect("some").expect("it");
    let choice = claims.choice(0).expect("it fits");
    let mut writes = volumes.assume(&choice, "a");
    let WriteTarget::Volume { name, claim: to, marks } = &writes[0].target else {
        panic!("{writes:?}")
    };
    assert_eq!((name.as_str(), to.uid.as_deref(), *marks), ("v", Some("c-c"), true));
    assert_eq!(reasons(&mut volumes, &["d"]), [NO_MATCH; 3], "it is taken");
    volumes.revert(&writes);
    assert_eq!(reasons(&mut volumes, &["d"]), ["", NO_MATCH, NO_MATCH]);
    volumes.assume(&choice, "a");
    (writes[0].version, writes[0].is_written) = ("7".to_owned(), true);
    let given = |version: &str, uid: &str| {
        volume("v", "5Gi", &["a"], |v| {
            v["metadata"]["resourceVersion"] = json!(version);
            v["spec"]["claimRef"] = json!({"namespace": "ns", "name": "c", "uid": uid});
        })
    };
    let mut progress = |volumes: &mut Volumes| volumes.progress(&mut cluster, &writes, "a");
    assert_eq!(progress(&mut volumes), BindProgress::Waits, "the write was not observed");
    set(&mut volumes, given("7", "c-c"));
    assert_eq!(progress(&mut volumes), BindProgress::Waits, "its claim is not bound");
    set(&mut volumes, bound_claim("c", "v"));
    assert_eq!(progress(&mut volumes), BindProgress::Bound);
    set(&mut volumes, given("8", ""));
    let reset = BindProgress::Failed("ClaimRef got reset for pv \"v\"".to_owned());
    assert_eq!(progress(&mut volumes), reset);
}

#[test]
fn node_names_in_the_affinity_of_a_volume_are_ignored() {
    let named = |expressions: Value| {
        volume("v", "5Gi", &[], move |v| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": ["a"]});
            v["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms":
                [{"matchFields": [field], "matchExpressions": expressions}]}});
        })
    };
    let mut volumes = known(vec![bound_claim("c", "v"), named(json!([]))]);
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
    let host = json!([{"key": "host", "operator": "In", "values": ["b"]}]);
    let mut volumes = known(vec![bound_claim("c", "v"), named(host)]);
    assert_eq!(reasons(&mut volumes, &["c"]), [AFFINITY, "", AFFINITY]);
}

fn chosen(volumes: &mut Volumes, claims: &[&str]) -> (Vec<String>, Vec<String>) {
    let found =
        volumes.look(&pod(claims), &mut cluster(), &Rc::default()).expect("some").expect("it");
    let choice = found.choice(0).expect("it fits");
    let bindings = choice.bindings.into_iter().map(|(volume, _)| volume).collect();
    (bindings, choice.provisions.iter().map(|key| key.name().to_owned()).collect())
}

#[test]
fn a_claim_that_is_named_twice_gets_two_volumes() {
    let given = |v: &mut Value| v["spec"]["claimRef"] = json!({"namespace": "ns", "name": "c"});
    let mut volumes = known(vec![
        claim("c", |_| ()),
        volume("any", "6Gi", &["a"], |_| ()),
        volume("given", "50Gi", &["a"], given),
    ]);
    let both = vec!["given".to_owned(), "any".to_owned()];
    assert_eq!(chosen(&mut volumes, &["c", "c"]), (both, vec![]));
}

#[test]
fn claims_with_a_selected_node_come_first_in_the_order_of_the_pod() {
    let made = |size: &'static str, selected: bool| {
        move |claim: &mut Value| {
            claim["spec"]["storageClassName"] = json!("made");
            claim["spec"]["resources"]["requests"]["storage"] = json!(size);
            if selected {
                claim["metadata"]["annotations"] =
                    json!({"volume.kubernetes.io/selected-node": "a"});
            }
        }
    };
    let mut volumes = known(vec![
        class("made", "WaitForFirstConsumer", "csi.x"),
        claim("a", made("9Gi", false)),
        claim("b", made("1Gi", false)),
        claim("c", made("8Gi", true)),
        claim("d", made("2Gi", true)),
    ]);
    let order = ["c", "d", "b", "a"].map(str::to_owned).to_vec();
    assert_eq!(chosen(&mut volumes, &["a", "b", "c", "d"]), (vec![], order));
}

#[test]
fn room_for_a_volume_is_counted_in_whole_bytes() {
    let driver = json!({"metadata": {"name": "csi.x"}, "spec": {"storageCapacity": true}});
    let room = json!({"metadata": {"name": "r", "namespace": "x"}, "storageClassName": "made",
        "capacity": "1100m", "nodeTopology": {}});
    let mut volumes = known(vec![
        class("made", "WaitForFirstConsumer", "csi.x"),
        claim("c", |c| {
            c["spec"]["storageClassName"] = json!("made");
            c["spec"]["resources"]["requests"]["storage"] = json!("1500m");
        }),
        WatchedObject::CSIDriver(object(driver)),
        WatchedObject::CSIStorageCapacity(object(room)),
    ]);
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
}

#[test]
fn pod_on_a_deleted_node_does_not_block_a_read_write_once_pod_claim() {
    let one = |c: &mut Value| c["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    let mut volumes = known(vec![
        claim("c", one),
        volume("v", "5Gi", &[], |v| v["spec"]["accessModes"] = json!(["ReadWriteOncePod"])),
    ]);
    volumes.users.put("other", &pod(&["c"]), "gone");
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
    volumes.users.put("other", &pod(&["c", "c"]), "b");
    assert_eq!(reasons(&mut volumes, &["c"]), [restrictions::ONE_POD; 3]);
    volumes.users.take("other");
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
}

#[test]
fn invalid_zone_in_the_zone_set_of_a_volume_is_ignored() {
    let zone = |v: &mut Value| {
        v["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z___y"});
    };
    let mut volumes = known(vec![bound_claim("c", "v"), volume("v", "5Gi", &[], zone)]);
    assert_eq!(reasons(&mut volumes, &["c"]), ["", "", ""]);
}

/// Returns the message for a pod under a profile with these plugins alone.
fn told(volumes: &mut Volumes, plugins: &[&str], claims: &[&str]) -> String {
    let enabled = ["PrioritySort", "DefaultBinder"].iter().chain(plugins);
    let enabled: Vec<Value> = enabled.map(|name| json!({"name": name})).collect();
    let plugins = json!({"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}});
    let file = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration", "profiles": [{"plugins": plugins}]});
    let profile = crate::config::profile(&file.to_string(), None).expect("a configuration");
    let mut cluster = cluster();
    cluster.use_profile(&std::sync::Arc::new(profile));
    match volumes.look(&pod(claims), &mut cluster, &Rc::default()) {
        Err(refused) => refused.reason,
        Ok(claims) => {
            let claims = claims.expect("it has volumes");
            let program = cluster.compile(&pod(&[])).expect("a pod");
            let on = claims.plugins();
            let on = on.iter().filter(|plugin| {
                let plugin = pintle_sched_core::select::RowPlugin::plugin(*plugin);
                cluster.view().profile().filters(plugin)
            });
            let mut statuses = on.map(|plugin| {
                pintle_sched_core::select::RowPlugin::filter(plugin, cluster.view(), &program, 0)
            });
            let status = statuses.find_map(|status| status);
            status.map(|status| status.reasons.join(", ")).unwrap_or_default()
        }
    }
}

#[test]
fn each_volume_plugin_reports_its_own_reason_if_earlier_plugins_are_disabled() {
    let mut volumes = known(vec![
        claim("none", |c| c["spec"]["storageClassName"] = json!("none")),
        claim("classless", |c| c["spec"]["storageClassName"] = json!("")),
        class("now", "Immediate", "csi.x"),
        claim("now", |c| c["spec"]["storageClassName"] = json!("now")),
        claim("waits", |_| ()),
        bound_claim("away", "v"),
    ]);
    let classless = "PersistentVolumeClaim had no pv name and storageClass name";
    for (plugin, claim, words) in [
        ("VolumeZone", "x", "persistentvolumeclaim \"x\" not found"),
        ("VolumeZone", "none", "storageclass.storage.k8s.io \"none\" not found"),
        ("VolumeZone", "classless", classless),
        ("VolumeZone", "now", "PersistentVolume had no name"),
        ("VolumeZone", "away", "persistentvolume \"v\" not found"),
        ("VolumeZone", "waits", ""),
        ("NodeVolumeLimits", "x", "looking up PVC ns/x: persistentvolumeclaim \"x\" not found"),
        ("NodeVolumeLimits", "away", ""),
        ("VolumeBinding", "waits", NO_MATCH),
    ] {
        assert_eq!(told(&mut volumes, &[plugin], &[claim]), words, "{plugin} of {claim}");
    }
    // Without VolumeBinding nothing is bound.
    set(&mut volumes, volume("v", "5Gi", &[], |_| ()));
    assert_eq!(chosen(&mut volumes, &["waits"]).0, ["v"]);
    assert_eq!(told(&mut volumes, &["VolumeZone"], &["waits"]), "");
}

fn csi_node(name: &str, moved: &str, limit: Option<i32>) -> WatchedObject {
    let allocatable = json!({"count": limit});
    WatchedObject::CSINode(object(json!({"metadata": {"name": name,
        "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": moved}},
        "spec": {"drivers": [{"name": "ebs.csi.aws.com", "nodeID": "n",
            "allocatable": allocatable}]}})))
}

fn aws(name: &str, id: &str, zone: &str) -> WatchedObject {
    volume(name, "5Gi", &[], |volume| {
        volume["metadata"]["labels"] = json!({"failure-domain.beta.kubernetes.io/zone": zone});
        volume["spec"]["awsElasticBlockStore"] = json!({"volumeID": id});
    })
}

#[test]
fn migrated_in_tree_volume_uses_the_topology_of_its_csi_driver() {
    let mut volumes = known(vec![bound_claim("d", "d"), aws("d", "aws://z/vol-1", "nowhere")]);
    assert_eq!(
        reasons(&mut volumes, &["d"]),
        ["node(s) had no available volume zone"; 2]
            .into_iter()
            .chain([""])
            .map(str::to_owned)
            .collect::<Vec<_>>()[..]
    );
    // On b the plugin is migrated, and no node has the driver's label.
    let happened =
        set(&mut volumes, csi_node("b", "kubernetes.io/cinder,kubernetes.io/aws-ebs", None));
    assert!(happened.is_some_and(|event| event.may_help(Plugin::VolumeBinding)));
    assert_eq!(reasons(&mut volumes, &["d"])[1], AFFINITY);
    let happened = set(&mut volumes, csi_node("b", "kubernetes.io/cinder", None));
    assert!(happened.is_some_and(|event| event.may_help(Plugin::VolumeBinding)));
    assert_ne!(reasons(&mut volumes, &["d"])[1], AFFINITY);
}

#[test]
fn disk_counts_once_per_driver_under_all_its_names() {
    let mut volumes = known(vec![
        bound_claim("one", "one"),
        bound_claim("two", "two"),
        aws("one", "aws://z/vol-1", "z"),
        aws("two", "vol-2", "z"),
        csi_node("c", "", Some(1)),
    ]);
    let by_itself = json!({"metadata": {"name": "q", "namespace": "ns", "uid": "q"}, "spec": {
        "containers": [], "volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": "vol-1"}}]}});
    volumes.users.put("q", &object(by_itself), "c");
    assert_eq!(reasons(&mut volumes, &["one"])[2], "");
    assert_eq!(reasons(&mut volumes, &["two"])[2], "node(s) exceed max volume count");
}

/// Chooses on three nodes for a pod with these claims, within a budget of `work` units.
fn choose_within(volumes: &mut Volumes, claims: &[&str], work: u64) -> Result<(), Refused> {
    let limits = Limits { work, bytes: u64::MAX };
    let spent = Rc::new(AttemptBudget::new(limits, || false));
    let found = volumes.look(&pod(claims), &mut cluster(), &spent);
    let claims = found?.expect("it has claims");
    (0..3).for_each(|row| _ = claims.choice(row));
    let refused = |reason: String| Refused { plugin: Plugin::VolumeBinding, reason };
    spent.exhausted().map_or(Ok(()), |exhausted| Err(refused(exhausted.to_string())))
}

#[test]
fn claim_that_is_named_a_thousand_times_is_paid_for_once() {
    let mut things = vec![claim("c", |_| ())];
    things.extend((0..1_000).map(|at| volume(&format!("v{at}"), "5Gi", &["z"], |_| ())));
    let mut volumes = known(things);
    let once = 1_000 * 12 + 3 * 1_100;
    assert_eq!(choose_within(&mut volumes, &["c"], once), Ok(()));
    assert_eq!(choose_within(&mut volumes, &["c"; 1_000], once), Ok(()));
    let why =
        "the work limit of one scheduling attempt was exceeded while matching volumes to claims";
    let refused = choose_within(&mut volumes, &["c"; 1_000], 13_000).expect_err("it is long");
    assert_eq!(refused.reason, why);
}

#[test]
fn equal_claims_share_one_candidate_list_and_visit_each_volume_once() {
    let names: Vec<String> = (0..500).map(|at| format!("c{at}")).collect();
    let mut things: Vec<WatchedObject> = names.iter().map(|name| claim(name, |_| ())).collect();
    things.extend((0..1_000).map(|at| volume(&format!("v{at:04}"), "5Gi", &["a"], |_| ())));
    let mut volumes = known(things);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (bindings, _) = chosen(&mut volumes, &names);
    let want: Vec<String> = (0..500).map(|at| format!("v{at:04}")).collect();
    assert_eq!(bindings, want, "the first of equals, each once");
    assert_eq!(choose_within(&mut volumes, &names, 1_000 * 12 + 500 * 40), Ok(()));
}
