//! Pods as large as the API lets them be: a status takes as long as they are. With a search of each
//! item of one list in another, these take many minutes.

use k8s_openapi::api::core::v1::{Container, VolumeMount};
use serde_json::json;

use super::settled_phase;
use super::testing::{DerivedPod, container, exited};
use crate::observed::ObservedMount;

fn world() -> DerivedPod {
    DerivedPod::new(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"restartPolicy": "Never", "containers": []}
    }))
}

fn named(prefix: &str, count: usize) -> Vec<Container> {
    let one = |at| Container { name: format!("{prefix}{at}"), ..Container::default() };
    (0..count).map(one).collect()
}

#[test]
fn very_many_containers_are_each_found_at_once() {
    const COUNT: usize = 40_000;
    let mut world = world();
    world.pod.spec.as_mut().expect("a spec").containers = named("c", COUNT);
    let done = (0..COUNT).rev().map(|at| exited(&format!("c{at}"), &format!("id{at}"), 0));
    let mut world = world.with(done.collect());
    world.derive();
    assert_eq!(settled_phase(&world.input()), Some("Succeeded"));
    let status = world.derive();
    let statuses = status.container_statuses.expect("statuses");
    let ended = statuses.iter().filter(|status| {
        let end = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        end.is_some_and(|end| end.exit_code == 0)
    });
    assert_eq!(ended.count(), COUNT);
}

#[test]
fn many_init_containers_without_a_record_check_once_for_a_main_container() {
    const COUNT: usize = 2_000;
    let mut world = world();
    let spec = world.pod.spec.as_mut().expect("a spec");
    spec.containers = named("main", COUNT);
    spec.init_containers = Some([named("i", COUNT), named("j", COUNT)].concat());
    let done = (0..COUNT).map(|at| exited(&format!("i{at}"), &format!("id{at}"), 0));
    let status = world.with(done.collect()).derive();
    let waiting = status
        .init_container_statuses
        .into_iter()
        .flatten()
        .filter(|status| status.state.as_ref().is_some_and(|state| state.waiting.is_some()));
    assert_eq!(waiting.count(), COUNT);
}

#[test]
fn very_many_mounts_are_each_found_at_once() {
    const COUNT: usize = 200_000;
    let mut world = world();
    let mount = |at: usize| VolumeMount {
        name: "v".to_owned(),
        mount_path: format!("/{at:06}"),
        read_only: Some(true),
        recursive_read_only: at.is_multiple_of(2).then(|| "IfPossible".to_owned()),
        ..VolumeMount::default()
    };
    let mut main = Container { name: "c".to_owned(), ..Container::default() };
    main.volume_mounts = Some((0..COUNT).map(mount).collect());
    world.pod.spec.as_mut().expect("a spec").containers = vec![main];
    let mut running = container("c", "id");
    let made = |at: usize| ObservedMount {
        container_path: format!("/{at:06}"),
        host_path: "/v".to_owned(),
        readonly: true,
        recursive_read_only: at.is_multiple_of(4),
    };
    running.mounts = (0..COUNT).map(made).collect();
    let status = world.with(vec![running]).derive();
    let [status] = &*status.container_statuses.expect("statuses") else { panic!("one status") };
    let on = status.volume_mounts.iter().flatten();
    let on = on.filter(|mount| mount.recursive_read_only.as_deref() == Some("Enabled"));
    assert_eq!(on.count(), COUNT / 4);
}
