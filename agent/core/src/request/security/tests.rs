//! Tables of security settings: precedence, refusals, and their messages.

use super::profiles::APPARMOR_ANNOTATION;
use super::*;
use serde_json::{Value, json};

fn pod(of_pod: Value, more: Value) -> Pod {
    let mut spec = json!({"containers": [], "securityContext": of_pod});
    for (name, field) in more.as_object().expect("an object") {
        spec[name] = field.clone();
    }
    let meta = json!({"name": "p", "namespace": "ns", "uid": "u"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
}

fn container(own: Value) -> Container {
    serde_json::from_value(json!({"name": "c", "securityContext": own})).expect("a container")
}

fn built(of_pod: Value, own: Value) -> v1::LinuxContainerSecurityContext {
    let policy =
        SecurityPolicy { seccomp_dir: "/root/seccomp".to_owned(), ..SecurityPolicy::default() };
    let pod = pod(of_pod, json!({}));
    container_security(&pod, &container(own), &ImageUser::Id(0), &policy, &[9]).expect("rights")
}

#[test]
fn the_containers_settings_win_over_the_pods() {
    let got = built(
        json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4, 5],
            "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0:c1"}}),
        json!({"runAsUser": 10, "privileged": true, "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false, "seLinuxOptions": {"type": "t"},
            "capabilities": {"add": ["NET_ADMIN"]}}),
    );
    assert_eq!(got.run_as_user, Some(int64(10)));
    assert_eq!(got.run_as_group, Some(int64(2)));
    assert_eq!(got.supplemental_groups, [3, 4, 5, 9]);
    assert_eq!(got.supplemental_groups_policy(), v1::SupplementalGroupsPolicy::Strict);
    assert_eq!(got.selinux_options.map(|o| (o.r#type, o.level)), Some(("t".into(), "".into())));
    assert!(got.privileged && got.readonly_rootfs && got.no_new_privs);
    assert_eq!(got.capabilities.map(|c| c.add_capabilities), Some(vec!["NET_ADMIN".to_owned()]));
}

#[test]
fn paths_of_proc_are_hidden_unless_unmasked() {
    let usual = built(json!({}), json!({}));
    assert_eq!((usual.masked_paths.len(), usual.readonly_paths.len()), (12, 5));
    let open = built(json!({}), json!({"procMount": "Unmasked"}));
    assert!(open.masked_paths.is_empty() && open.readonly_paths.is_empty());
}

#[test]
fn seccomp_follows_container_then_pod_then_node() {
    let of = |of_pod: Value, own: Value, default: bool| {
        let policy = SecurityPolicy {
            seccomp_dir: "/root/seccomp".to_owned(),
            seccomp_default: default,
            ..SecurityPolicy::default()
        };
        let wrap = |profile: Value| json!({ "seccompProfile": profile });
        let (pod, container) = (pod(wrap(of_pod), json!({})), container(wrap(own)));
        let user = ImageUser::Id(0);
        container_security(&pod, &container, &user, &policy, &[]).map(|got| {
            let got = got.seccomp.expect("a profile");
            (got.profile_type(), got.localhost_ref)
        })
    };
    let local = json!({"type": "Localhost", "localhostProfile": "a/b.json"});
    let default = json!({"type": "RuntimeDefault"});
    let none = String::new();
    for (of_pod, own, node, want) in [
        (json!(null), json!(null), false, (ProfileType::Unconfined, none.clone())),
        (json!(null), json!(null), true, (ProfileType::RuntimeDefault, none.clone())),
        (default.clone(), json!(null), false, (ProfileType::RuntimeDefault, none.clone())),
        (default, json!({"type": "Unconfined"}), true, (ProfileType::Unconfined, none)),
        (local, json!(null), false, (ProfileType::Localhost, "/root/seccomp/a/b.json".into())),
    ] {
        assert_eq!(of(of_pod.clone(), own, node), Ok(want), "{of_pod}");
    }
    let nameless = of(json!(null), json!({"type": "Localhost"}), false);
    assert_eq!(nameless, Err(SecurityError::SeccompProfile));
}

#[test]
fn apparmor_follows_container_then_annotation_then_pod_in_both_spellings() {
    let of = |of_pod: Value, note: Option<&str>, own: Value| {
        let wrap = |profile: Value| json!({ "appArmorProfile": profile });
        let mut pod = pod(wrap(of_pod), json!({}));
        pod.metadata.annotations =
            note.map(|note| [(format!("{APPARMOR_ANNOTATION}c"), note.to_owned())].into());
        let policy = SecurityPolicy::default();
        let own = container(wrap(own));
        #[allow(deprecated)]
        container_security(&pod, &own, &ImageUser::Id(0), &policy, &[]).map(|got| {
            let new = got.apparmor.map(|new| (new.profile_type(), new.localhost_ref));
            (new, got.apparmor_profile)
        })
    };
    let local = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
    let default = json!({"type": "RuntimeDefault"});
    assert_eq!(of(json!(null), None, json!(null)), Ok((None, String::new())));
    for (of_pod, note, own, new, old) in [
        (default.clone(), None, json!(null), (ProfileType::RuntimeDefault, ""), "runtime/default"),
        (
            default.clone(),
            Some("unconfined"),
            json!(null),
            (ProfileType::Unconfined, ""),
            "unconfined",
        ),
        (default, Some("localhost/n"), json!(null), (ProfileType::Localhost, "n"), "localhost/n"),
        (json!(null), Some("unconfined"), local("o"), (ProfileType::Localhost, "o"), "localhost/o"),
    ] {
        let want = (Some((new.0, new.1.to_owned())), old.to_owned());
        assert_eq!(of(of_pod, note, own), Ok(want));
    }
    let unknown = of(json!(null), None, json!({"type": "X"}));
    assert_eq!(unknown, Err(SecurityError::AppArmorType("X".to_owned())));
}

#[test]
fn root_is_refused_where_the_spec_forbids_it() {
    let of = |of_pod: Value, own: Value, user: ImageUser| {
        verify_non_root(&pod(of_pod, json!({})), &container(own), &user).map_err(|e| e.to_string())
    };
    let forbid = json!({"runAsNonRoot": true});
    let tail = "(pod: \"p_ns(u)\", container: c)";
    let refused = |text: &str| Err(format!("{text} {tail}"));
    let id = ImageUser::Id;
    let name = || ImageUser::Name("app".to_owned());
    for (of_pod, own, user, want) in [
        (json!({}), json!({}), id(0), Ok(())),
        (forbid.clone(), json!({"runAsNonRoot": false}), id(0), Ok(())),
        (forbid.clone(), json!({"runAsUser": 5}), name(), Ok(())),
        (forbid.clone(), json!({}), id(7), Ok(())),
        (
            forbid.clone(),
            json!({"runAsUser": 0}),
            id(7),
            refused("container's runAsUser breaks non-root policy"),
        ),
        (
            forbid.clone(),
            json!({}),
            id(0),
            refused("container has runAsNonRoot and image will run as root"),
        ),
        (
            forbid,
            json!({}),
            name(),
            refused(
                "container has runAsNonRoot and image has non-numeric user (app), cannot verify \
                 user is non-root",
            ),
        ),
    ] {
        assert_eq!(of(of_pod, own.clone(), user), want, "{own}");
    }
}

#[test]
fn the_images_user_is_used_where_the_spec_names_none() {
    let image = |uid: Option<i64>, username: &str| v1::Image {
        uid: uid.map(int64),
        username: username.to_owned(),
        ..Default::default()
    };
    assert_eq!(ImageUser::of(None), ImageUser::Id(0));
    assert_eq!(ImageUser::of(Some(&image(None, ""))), ImageUser::Id(0));
    assert_eq!(ImageUser::of(Some(&image(Some(7), "x"))), ImageUser::Id(7));
    let named = ImageUser::of(Some(&image(None, "app")));
    let policy = SecurityPolicy::default();
    let bare = pod(json!({}), json!({}));
    let got = container_security(&bare, &container(json!({})), &named, &policy, &[]);
    let got = got.expect("rights");
    assert_eq!((got.run_as_user, got.run_as_username.as_str()), (None, "app"));
}

#[test]
fn namespaces_follow_the_pods_wishes() {
    use v1::NamespaceMode::{Container as Own, Node, Pod as Shared};
    let of = |more: Value| {
        let got = namespaces(&pod(json!({}), more), None).expect("namespaces");
        (got.network(), got.pid(), got.ipc())
    };
    assert_eq!(of(json!({})), (Shared, Own, Shared));
    assert_eq!(of(json!({"shareProcessNamespace": true})), (Shared, Shared, Shared));
    let host = json!({"hostNetwork": true, "hostPID": true, "hostIPC": true});
    assert_eq!(of(host), (Node, Node, Node));
}

#[test]
fn pod_with_a_user_namespace_needs_an_id_range() {
    let own = pod(json!({}), json!({"hostUsers": false}));
    let refused = namespaces(&own, None).expect_err("no range").to_string();
    assert_eq!(
        refused,
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    );
    let range = IdRange { host_id: 65536, length: 65536 };
    let users = namespaces(&own, Some(range)).expect("namespaces").userns_options.expect("users");
    assert_eq!(users.mode(), v1::NamespaceMode::Pod);
    let mapped = v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 };
    assert_eq!((users.uids, users.gids), (vec![mapped], vec![mapped]));
}

#[test]
fn the_sandbox_is_privileged_when_any_container_is() {
    let of = |more: Value| sandbox_security(&pod(json!({"fsGroup": 3}), more), &[9]).expect("ok");
    let privileged = json!([{"name": "x", "securityContext": {"privileged": true}}]);
    assert!(!of(json!({})).privileged);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        assert!(of(json!({ list: privileged })).privileged, "{list}");
    }
    assert_eq!(of(json!({})).supplemental_groups, [3, 9]);
}
