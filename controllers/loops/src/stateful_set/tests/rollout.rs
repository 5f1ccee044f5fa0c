//! Rolling updates, partitions, OnDelete and the limit of unavailable pods.

use pintle_api_types::kind::PODS;
use serde_json::json;

use super::*;

#[test]
fn rollout_replaces_pods_from_the_highest_ordinal_down() {
    let mut world = world(set(3));
    settle(&mut world);
    let first = status(&world)["currentRevision"].clone();
    set_image(&mut world, "two");
    for ordinal in [2, 1, 0] {
        let name = format!("web-{ordinal}");
        let driven = sync(&mut world);
        assert_eq!(actions(&driven), [format!("delete pods {name}"), "status".to_owned()]);
        world.remove(PODS, &name);
        assert_eq!(actions(&sync(&mut world))[0], format!("create pods {name}"));
        assert_eq!(image_of(&world, &name), "two");
        assert_eq!(status(&world)["currentRevision"], first);
        world.run_pod(&name);
    }
    settle(&mut world);
    assert_ne!(status(&world)["currentRevision"], first);
    assert_eq!(status(&world)["currentRevision"], status(&world)["updateRevision"]);
    assert_eq!(status(&world)["currentReplicas"], 3);
}

#[test]
fn rollout_waits_for_an_updated_pod_to_be_available() {
    let mut world = world(set(2));
    settle(&mut world);
    set_image(&mut world, "two");
    sync(&mut world);
    world.remove(PODS, "web-1");
    sync(&mut world);
    let driven = sync(&mut world);
    assert!(driven.reasons.contains(&"pod web-1 is not running and ready".to_owned()));
    assert!(actions(&driven).iter().all(|action| action == "status"));
}

#[test]
fn pods_below_the_partition_keep_the_current_revision() {
    let mut world = world(set(3));
    settle(&mut world);
    edit(&mut world, |set| set["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 2.into());
    set_image(&mut world, "two");
    settle(&mut world);
    let images = ["web-0", "web-1", "web-2"].map(|pod| image_of(&world, pod).to_owned());
    assert_eq!(images, ["one", "one", "two"]);
    world.remove(PODS, "web-0");
    settle(&mut world);
    assert_eq!(image_of(&world, "web-0"), "one");
    assert_eq!(status(&world)["updatedReplicas"], 1);
    edit(&mut world, |set| set["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 0.into());
    settle(&mut world);
    assert_eq!(image_of(&world, "web-0"), "two");
}

#[test]
fn partition_counts_from_the_first_ordinal() {
    let mut shifted = set(2);
    shifted["spec"]["ordinals"] = json!({"start": 5});
    shifted["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 1.into();
    let mut world = world(shifted);
    settle(&mut world);
    set_image(&mut world, "two");
    settle(&mut world);
    assert_eq!((image_of(&world, "web-5"), image_of(&world, "web-6")), ("one", "two"));
}

#[test]
fn rollout_completes_at_zero_replicas_so_that_later_pods_are_new() {
    let mut world = world(set(2));
    settle(&mut world);
    edit(&mut world, |set| {
        set["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 5.into();
        set["spec"]["replicas"] = 0.into();
    });
    set_image(&mut world, "two");
    settle(&mut world);
    assert_eq!(status(&world)["currentRevision"], status(&world)["updateRevision"]);
    edit(&mut world, |set| set["spec"]["replicas"] = 2.into());
    settle(&mut world);
    assert_eq!(image_of(&world, "web-0"), "two");
}

#[test]
fn on_delete_strategy_replaces_no_pod_and_keeps_the_current_revision() {
    let mut manual = set(2);
    manual["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    let mut world = world(manual);
    settle(&mut world);
    let first = status(&world)["currentRevision"].clone();
    set_image(&mut world, "two");
    settle(&mut world);
    assert_eq!(image_of(&world, "web-0"), "one");
    for pod in ["web-0", "web-1"] {
        world.remove(PODS, pod);
        settle(&mut world);
        assert_eq!(image_of(&world, pod), "two");
    }
    assert_eq!(status(&world)["currentRevision"], first);
    assert_eq!(status(&world)["updatedReplicas"], 2);
}

#[test]
fn old_pod_that_never_becomes_ready_is_reported_with_a_remedy() {
    let mut world = world(set(2));
    settle(&mut world);
    set_image(&mut world, "broken");
    sync(&mut world);
    world.remove(PODS, "web-1");
    sync(&mut world);
    set_image(&mut world, "one");
    let driven = sync(&mut world);
    let reason = driven.reasons.iter().find(|reason| reason.starts_with("pod web-1"));
    let reason = reason.expect("a reason");
    assert!(reason.ends_with("kubectl delete pod web-1 -n n"), "{reason}");
}

#[test]
fn several_pods_are_replaced_at_once_with_the_gate() {
    let mut fast = set(4);
    fast["spec"]["podManagementPolicy"] = "Parallel".into();
    for (limit, deleted) in [
        (json!(null), 1),
        (json!(1), 1),
        (json!(2), 2),
        (json!("50%"), 2),
        (json!("10%"), 1),
        (json!("100%"), 4),
    ] {
        let mut world = world(fast.clone());
        settle(&mut world);
        edit(&mut world, |set| {
            set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = limit.clone();
        });
        set_image(&mut world, "two");
        let mut controller = super::super::StatefulSets { workers: 1, has_max_unavailable: true };
        let driven = world.sync(&mut controller, "web");
        let deletes = actions(&driven).into_iter().filter(|one| one.starts_with("delete pods"));
        assert_eq!(deletes.count(), deleted, "{limit}");
        let again = world.sync(&mut controller, "web");
        assert!(!actions(&again).iter().any(|one| one.starts_with("delete")), "{limit}");
    }
}

#[test]
fn unavailable_pods_also_below_the_partition_use_up_the_limit() {
    // k8s: TestStatefulSetControlRollingUpdateWithMaxUnavailableInOrderedModeVerifyInvariant
    for terminating in
        [&[][..], &[5], &[3], &[4], &[5, 4], &[5, 3], &[4, 3], &[5, 4, 3], &[2], &[1]]
    {
        let mut parallel = set(6);
        parallel["spec"]["podManagementPolicy"] = "Parallel".into();
        parallel["spec"]["updateStrategy"]["rollingUpdate"] =
            json!({"partition": 3, "maxUnavailable": 2});
        let mut world = world(parallel);
        settle(&mut world);
        set_image(&mut world, "two");
        for ordinal in terminating {
            world.edit(PODS, &format!("web-{ordinal}"), |pod| {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            });
        }
        let mut controller = super::super::StatefulSets { workers: 1, has_max_unavailable: true };
        let driven = world.sync(&mut controller, "web");
        let deleted: Vec<_> =
            actions(&driven).into_iter().filter(|one| one.starts_with("delete pods")).collect();
        assert_eq!(deleted.len(), 2_usize.saturating_sub(terminating.len()), "{terminating:?}");
        let is_above = |one: &String| one.as_str() > "delete pods web-2";
        assert!(deleted.iter().all(is_above), "{deleted:?}");
    }
}

#[test]
fn ordered_set_deletes_several_pods_but_creates_one_at_a_time() {
    let mut fast = set(6);
    fast["spec"]["updateStrategy"]["rollingUpdate"] = json!({"partition": 3, "maxUnavailable": 2});
    let mut world = world(fast);
    settle(&mut world);
    set_image(&mut world, "two");
    let mut controller = super::super::StatefulSets { workers: 1, has_max_unavailable: true };
    let driven = world.sync(&mut controller, "web");
    assert_eq!(actions(&driven), ["delete pods web-5", "delete pods web-4", "status"]);
    world.run_kubelets();
    assert_eq!(actions(&world.sync(&mut controller, "web"))[0], "create pods web-4");
    assert_eq!(actions(&world.sync(&mut controller, "web")), ["status"]);
    world.run_kubelets();
    assert_eq!(actions(&world.sync(&mut controller, "web"))[0], "create pods web-5");
}

#[test]
fn rollout_waits_for_min_ready_seconds_and_on_delete_ignores_them() {
    for (strategy, waits) in [("RollingUpdate", true), ("OnDelete", false)] {
        let mut slow = set(2);
        slow["spec"]["updateStrategy"]["type"] = strategy.into();
        let mut world = world(slow);
        settle(&mut world);
        edit(&mut world, |set| set["spec"]["minReadySeconds"] = 3600.into());
        set_image(&mut world, "two");
        let driven = sync(&mut world);
        let deletes = actions(&driven).iter().any(|one| one.starts_with("delete"));
        assert!(!deletes, "{strategy}");
        let reason = "pod web-0 is not ready for long enough".to_owned();
        assert!(driven.reasons.contains(&reason), "both wait for the pods that are there");
        world.now += jiff::SignedDuration::from_secs(3600);
        let deletes = actions(&sync(&mut world)).iter().any(|one| one.starts_with("delete"));
        assert_eq!(deletes, waits, "{strategy}");
    }
}
