//! When quotas are counted again, and what is written then.
// k8s: pkg/controller/resourcequota/resource_quota_controller_test.go

use super::*;

#[test]
fn status_is_written_only_when_it_changes() {
    let spec = container(json!({"cpu": "1"}), json!({}));
    for (status, writes) in [
        (json!({"hard": {"cpu": "2"}, "used": {"cpu": "1000m"}}), 0),
        (json!({"hard": {"cpu": "2"}, "used": {"cpu": "2"}}), 1),
        (json!({"hard": {"cpu": "3"}, "used": {"cpu": "1"}}), 1),
        (json!({"hard": {"cpu": "2"}}), 1),
        (json!({"hard": {"cpu": "2"}, "used": {"cpu": "1", "memory": "1"}}), 1),
        (json!({}), 1),
    ] {
        let events = vec![
            pod("a", spec.clone(), json!({})),
            quota(json!({"hard": {"cpu": "2"}}), status.clone()),
        ];
        let driven = QuotaWorld::new(&[], events).sync(0);
        assert_eq!(driven.requests.len(), writes, "{status}");
    }
}

#[test]
fn kind_that_is_not_listed_keeps_its_last_count() {
    let hard = json!({"count/jobs.batch": "9", "pods": "5"});
    let status = json!({"hard": hard, "used": {"count/jobs.batch": "7", "pods": "3"}});
    let mut world = QuotaWorld::new(&[JOBS], vec![quota(json!({ "hard": hard }), status)]);
    let driven = world.sync(0);
    let [Request::Replace { body, .. }] = &*driven.requests else { panic!("no update") };
    let expected = json!({"count/jobs.batch": "7", "pods": "0"});
    assert_eq!(texts(&body["status"]["used"]), expect(expected));
    assert!(driven.reasons.iter().any(|reason| reason.contains("jobs.batch are not listed")));
    assert_eq!(world.apply(WatchEvent::ListComplete(JOBS)), [1, 0]);
}

// k8s: resource_quota_controller_test.go TestAddQuota and update_filter_test.go
#[test]
fn changes_that_free_resources_wake_the_quotas_that_count_them() {
    let status = json!({"hard": {"cpu": "2", "services.nodeports": "3"}, "used": {}});
    let spec = json!({"hard": {"cpu": "2", "services.nodeports": "3"}});
    let newer = |version: &str, mut object: Value| {
        object["metadata"]["resourceVersion"] = version.into();
        object
    };
    let running = |version: &str, phase: &str, cpu: &str| {
        let value = json!({"spec": container(json!({"cpu": cpu}), json!({})),
            "status": {"phase": phase}});
        object(PODS, "a", newer(version, value))
    };
    let service = |version: &str, kind: &str| {
        object(SERVICES, "s", newer(version, json!({"spec": {"type": kind}})))
    };
    let of_quota =
        |version: &str, value: Value| object(RESOURCE_QUOTAS, "q", newer(version, value));
    let config_map = |name: &str| {
        let text = json!({"metadata": {"name": name, "namespace": "n"}}).to_string();
        Decoded::typed(CONFIG_MAPS, &text).expect("metadata")
    };
    let mut world = QuotaWorld::new(&[], vec![quota(spec.clone(), status.clone())]);
    for (event, woken) in [
        (running("2", "Pending", "1"), [0, 1]),
        (running("3", "Running", "1"), [0, 0]),
        (running("4", "Running", "2"), [1, 0]),
        (running("5", "Succeeded", "2"), [1, 0]),
        (running("6", "Succeeded", "2"), [0, 0]),
        (service("7", "ClusterIP"), [0, 1]),
        (service("8", "NodePort"), [1, 0]),
        (service("9", "NodePort"), [0, 0]),
        (WatchEvent::Set(config_map("c")), [0, 0]),
        (WatchEvent::Deleted(config_map("c")), [0, 0]),
        (of_quota("10", json!({"spec": spec, "status": {"used": {"cpu": "9"}}})), [0, 1]),
        (of_quota("11", json!({"spec": {"hard": {"cpu": "3"}}})), [1, 0]),
    ] {
        let text = format!("{event:?}");
        assert_eq!(world.apply(event), woken, "{text}");
    }
}

/// An object of the kind is created before the quota, and its watch shows it after the count.
#[test]
fn quota_counted_before_a_late_watch_event_is_raised() {
    let hard = json!({"configmaps": "9", "pods": "5"});
    let status = json!({"hard": hard, "used": {"configmaps": "1", "pods": "3"}});
    let quota = quota(json!({ "hard": hard }), status);
    let config_map = |name: &str| {
        let text = json!({"metadata": {"name": name, "namespace": "n", "uid": name}}).to_string();
        set(Decoded::typed(CONFIG_MAPS, &text))
    };
    let mut world = QuotaWorld::new(&[], vec![quota]);
    assert_eq!(world.apply(config_map("a")), [0, 1]);
    assert!(world.raise().requests.is_empty(), "it was charged");
    assert_eq!(world.apply(config_map("b")), [0, 1]);
    let driven = world.raise();
    let [Request::Replace { body, .. }] = &*driven.requests else { panic!("no update") };
    // Pods that admission has charged and no watch has shown yet keep their charge.
    let expected = json!({"configmaps": "2", "pods": "3"});
    assert_eq!(texts(&body["status"]["used"]), expect(expected));
    assert_eq!(body["status"]["hard"], hard);
}

#[test]
fn quota_whose_limits_are_new_is_counted_not_raised() {
    for status in [json!({}), json!({"hard": {"pods": "4"}, "used": {"pods": "0"}})] {
        let events = vec![
            quota(json!({"hard": {"pods": "5"}}), status),
            pod("a", container(json!({}), json!({})), json!({})),
        ];
        let mut world = QuotaWorld::new(&[], events);
        assert!(world.raise().requests.is_empty());
        assert_eq!(world.sync(0).requests.len(), 1);
    }
}

#[test]
fn first_list_of_a_kind_has_quotas_counted_once() {
    let hard = json!({"configmaps": "9"});
    let status = json!({"hard": hard, "used": {"configmaps": "1"}});
    let mut world = QuotaWorld::new(&[CONFIG_MAPS], vec![quota(json!({ "hard": hard }), status)]);
    let text = json!({"metadata": {"name": "a", "namespace": "n", "uid": "a"}}).to_string();
    let listed = Decoded::typed(CONFIG_MAPS, &text).expect("metadata");
    assert_eq!(world.apply(WatchEvent::Listed(listed)), [0, 0]);
    assert_eq!(world.apply(WatchEvent::ListComplete(CONFIG_MAPS)), [1, 0]);
}

#[test]
fn late_device_class_wakes_the_quotas_of_its_resource() {
    let quota = quota(json!({"hard": {"requests.example.com/gpu": "9"}}), json!({}));
    let mut world = QuotaWorld::new(&[], vec![quota]);
    let class = |name: &str, resource: &str| {
        object(DEVICE_CLASSES, name, json!({"spec": {"extendedResourceName": resource}}))
    };
    assert_eq!(world.apply(class("other", "example.com/other")), [0, 0]);
    assert_eq!(world.apply(class("gpu", "example.com/gpu")), [1, 0]);
}
