//! Labels of volumes: the containers' options, the host's labels, the volumes that get one.

use serde_json::{Value, json};

use super::*;

const CONTEXTS: &str = "# of the policy\nprocess = \"system_u:system_r:container_t:s0\"\n\
                        file = \"system_u:object_r:container_file_t:s0\"\n";

fn pod(security: Value, containers: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"securityContext": security, "containers": containers}}))
    .expect("a pod")
}

fn container(name: &str, volume: &str, options: Value) -> Value {
    json!({"name": name, "volumeMounts": [{"name": volume, "mountPath": "/m"}],
        "securityContext": {"seLinuxOptions": options}})
}

fn levels(pod: &Pod) -> Vec<String> {
    options_of(pod, "data").into_iter().map(|parts| parts.level).collect()
}

#[test]
fn options_are_those_of_the_containers_that_mount_the_volume_and_else_the_pods() {
    let of_pod = json!({"seLinuxOptions": {"level": "s0:c1"}});
    let none = json!({"name": "n", "volumeMounts": [{"name": "data", "mountPath": "/m"}]});
    let own = container("a", "data", json!({"level": "s0:c2"}));
    let other = container("b", "other", json!({"level": "s0:c3"}));
    let cases = [
        (json!({}), json!([none]), vec![]),
        (of_pod.clone(), json!([none, none]), vec!["s0:c1"]),
        (of_pod.clone(), json!([own]), vec!["s0:c2"]),
        (of_pod.clone(), json!([none, own, other]), vec!["s0:c1", "s0:c2"]),
        (of_pod, json!([other]), vec![]),
    ];
    for (security, containers, expected) in cases {
        assert_eq!(levels(&pod(security, containers.clone())), expected, "{containers}");
    }
}

#[test]
fn label_of_host_files_is_parsed_from_the_selinux_contexts() {
    let files = file_label(CONTEXTS).expect("a label");
    assert_eq!((&*files.user, &*files.kind, &*files.level), ("system_u", "container_file_t", "s0"));
    for text in ["", "process = \"a:b:c:d\"", "# file = \"a:b:c:d\"", "file = \"a:b\""] {
        assert_eq!(file_label(text), None, "{text:?}");
    }
}

fn volume(modes: &[AccessMode], levels: &[&str]) -> Volume {
    let csi = json!({"metadata": {"name": "pv"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "h"}}});
    let csi = serde_json::from_value(csi).expect("a volume");
    let label = |level: &&str| LabelParts { level: (*level).to_owned(), ..LabelParts::default() };
    let volume = Volume::of_claim(&csi, false, None).expect("of a driver");
    let labels = levels.iter().map(label).collect();
    Volume { access_modes: modes.to_vec(), labels, ..volume }
}

fn settings(has_all_modes: bool) -> LabelSettings {
    LabelSettings { files: file_label(CONTEXTS), has_all_modes }
}

fn driver(mounts_for_selinux: bool) -> DriverSpec {
    DriverSpec { mounts_for_selinux, ..DriverSpec::default() }
}

#[test]
fn read_write_once_pod_volume_gets_a_mount_label_and_other_volumes_need_the_gate() {
    const ONE: [AccessMode; 1] = [AccessMode::ReadWriteOncePod];
    const MANY: [AccessMode; 1] = [AccessMode::ReadWriteMany];
    let level = ["s0:c1,c2"];
    let label = Some("system_u:object_r:container_file_t:s0:c1,c2");
    let cases = [
        (&ONE, false, true, None, label),
        (&MANY, false, true, None, None),
        (&MANY, true, true, None, label),
        (&ONE, false, false, None, None),
        (&ONE, false, true, Some("Recursive"), None),
        (&ONE, false, true, Some("MountOption"), label),
    ];
    for (modes, has_all_modes, mounts, policy, expected) in cases {
        let found =
            settings(has_all_modes).mount_label(&volume(modes, &level), &driver(mounts), policy);
        assert_eq!(found.expect("one label").as_deref(), expected, "{modes:?} {policy:?}");
    }
    let off = LabelSettings::default().mount_label(&volume(&ONE, &level), &driver(true), None);
    assert_eq!(off, Ok(None), "SELinux is off");
    let block = Volume { is_block: true, ..volume(&ONE, &level) };
    assert_eq!(settings(false).mount_label(&block, &driver(true), None), Ok(None));
}

#[test]
fn containers_with_several_labels_are_a_conflict_where_the_label_would_be_used() {
    let several = volume(&[AccessMode::ReadWriteOncePod], &["s0:c1", "s0:c2"]);
    let found = settings(false).mount_label(&several, &driver(true), None);
    let text = "multiple SELinux labels found: system_u:object_r:container_file_t:s0:c1,\
                system_u:object_r:container_file_t:s0:c2";
    assert_eq!(found.expect_err("a conflict").to_string(), text);
    let shared = Volume { access_modes: vec![AccessMode::ReadWriteMany], ..several };
    assert_eq!(settings(false).mount_label(&shared, &driver(true), None), Ok(None));
    let none = volume(&[AccessMode::ReadWriteOncePod], &[""]);
    assert_eq!(settings(false).mount_label(&none, &driver(true), None), Ok(None), "no level");
}

#[test]
fn option_is_quoted() {
    assert_eq!(mount_option("u:r:t:s0:c1,c2"), "context=\"u:r:t:s0:c1,c2\"");
}
