//! Mounts of containers from pods as users write them, and the rules of sub-paths as properties.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::types::NodeFacts;

fn pod(spec: Value) -> Pod {
    let meta = json!({"name": "p", "namespace": "ns", "uid": "u1"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
}

fn mounts(mount: Value, supports_rro: bool) -> Result<Vec<PlannedMount>, String> {
    let mut full = json!({"name": "e", "mountPath": "/e"});
    for (key, value) in mount.as_object().expect("an object") {
        full[key] = value.clone();
    }
    let spec = json!({
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}},
            {"name": "i", "image": {"reference": "img:1"}}],
        "containers": [{"name": "c", "volumeMounts": [full]}]});
    let pod = pod(spec);
    let volumes = PodVolumes::plan(
        Path::new("/root"),
        &NodeFacts::default(),
        &pod,
        &crate::volume::Claims::default(),
    );
    let env = BTreeMap::from([("N".to_owned(), "x".to_owned()), ("E".to_owned(), String::new())]);
    let container = &pintle_api_types::pod::spec(&pod).containers[0];
    volumes.mounts(container, &env, supports_rro).map_err(|e| e.to_string())
}

#[test]
fn mounts_carry_path_mode_and_propagation() {
    let one = |mount| mounts(mount, true).expect("planned").remove(0);
    assert_eq!(one(json!({"mountPath": "rel"})).container_path, "/rel");
    assert!(!one(json!({})).readonly);
    assert!(one(json!({"readOnly": true})).readonly);
    assert!(one(json!({"name": "s"})).readonly, "payload volumes are read-only in any case");
    let both = one(json!({"mountPropagation": "Bidirectional"}));
    assert_eq!(both.propagation, Propagation::Bidirectional);
    let sub = one(json!({"subPathExpr": "a/$(N)-$$(N)"}));
    assert_eq!(sub.host_path, Path::new("/root/pods/u1/volume-subpaths/e/c/0"));
    let part = sub.sub_path.expect("a part");
    assert_eq!(part.path, "a/x-$(N)");
    assert_eq!(part.volume_root, Path::new("/root/pods/u1/volumes/kubernetes.io~empty-dir/e"));
    let image = one(json!({"name": "i", "subPath": "bin"}));
    assert_eq!(image.image, Some(("img:1".to_owned(), "bin".to_owned())));
    assert_eq!(image.host_path, Path::new(""));
    assert!(one(json!({"readOnly": true, "recursiveReadOnly": "Enabled"})).recursive_read_only);
}

#[test]
fn mounts_that_cannot_be_are_refused_in_the_kubelets_words() {
    let rro = "failed to resolve recursive read-only mode: volume \"e\" requested recursive \
               read-only mode, but it is";
    let table = [
        (json!({"name": "x"}), "cannot find volume \"x\" to mount into container \"c\"".to_owned()),
        (
            json!({"subPath": "/abs"}),
            "error SubPath `/abs` must not be an absolute path".to_owned(),
        ),
        (
            json!({"subPath": "a/../b"}),
            "unable to provision SubPath `a/../b`: must not contain '..'".to_owned(),
        ),
        (json!({"subPathExpr": "$(X)/$(E)/$(X)"}), "missing value for E, X".to_owned()),
        (json!({"recursiveReadOnly": "Enabled"}), format!("{rro} not read-only")),
        (
            json!({"readOnly": true, "recursiveReadOnly": "Enabled"}),
            format!("{rro} not supported by the runtime"),
        ),
        (
            json!({"readOnly": true, "recursiveReadOnly": "IfPossible", "mountPropagation": "HostToContainer"}),
            format!("{rro} not compatible with propagation \"HostToContainer\""),
        ),
    ];
    for (mount, expected) in table {
        assert_eq!(mounts(mount.clone(), false).expect_err("refused"), expected, "{mount}");
    }
}

#[test]
fn sub_path_too_long_after_variable_expansion_is_refused() {
    let env = BTreeMap::from([("N".to_owned(), "x".repeat(10))]);
    let long = Err(MountError::LongSubPath);
    assert_eq!(expanded("$(N)$(N)", &env, 20), Ok("x".repeat(20)));
    assert_eq!(expanded("$(N)$(N)", &env, 19), long);
    let mount =
        VolumeMount { sub_path_expr: Some("$(N)$(N)".to_owned()), ..VolumeMount::default() };
    let mut room = 50;
    let paths: Vec<_> = (0..3).map(|_| sub_path_of(&mount, &env, &mut room)).collect();
    assert_eq!(paths, [Ok("x".repeat(20)), Ok("x".repeat(20)), long]);
}
