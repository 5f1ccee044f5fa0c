//! Garbage collection: images on a disk that is too full, dead containers and sandboxes beyond the
//! limits, remains of deleted pods.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use pintle_cri::v1::{
    Container, ContainerFilter, ContainerState, ListContainersRequest, ListPodSandboxRequest,
    PodSandboxFilter, StopPodSandboxRequest,
};
use pintle_testbed::cri::RawCri;
use pintle_testbed::manifest::{condition, container, container_id, pod, restarts, script};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::{LONG, Options, TestNode, until};
use serde_json::json;
use xtask::image::set;

use crate::support::{lines_until, remove_all, shared, sharing};

/// Names of the images that the runtime has.
fn images(node: &TestNode) -> anyhow::Result<BTreeSet<String>> {
    let listed = node.runtime_node().ctr(&["images", "list", "--quiet"])?;
    let names = listed.lines().filter(|name| name.starts_with("pintle.test/"));
    Ok(names.map(str::to_owned).collect())
}

#[test]
fn image_gc_on_a_full_disk_deletes_unused_images_and_keeps_used_images() {
    let mut node = TestNode::usual();
    node.put("user.json", &pod("user", &[container("c", &["/box", "pause"])]));
    node.pod_until("user", "is ready", |p| condition(p, "Ready"));
    let before = images(&node).expect("images");
    assert!(before.contains(set::BOX) && before.contains(set::BUSYBOX), "{before:?}");
    node.stop_agent();
    // Any disk is fuller than this, and no images make it less full.
    let flags = ["high-threshold=1", "low-threshold=0"].map(|flag| format!("--image-gc-{flag}"));
    let young = "--minimum-image-ttl-duration=1ms".to_owned();
    node.add_flags(flags.into_iter().chain([young]).collect());
    node.start_agent();
    let left = until(LONG, "an unused image is gone", || {
        let left = images(&node)?;
        ensure!(!left.contains(set::BUSYBOX), "{left:?}");
        Ok(left)
    });
    assert!(left.contains(set::BOX), "a container is made of it: {left:?}");
    let told = until(LONG, "the agent says that this was not enough", || {
        let log = node.agent_log();
        ensure!(log.contains("FreeDiskSpaceFailed"), "{log}");
        Ok(log)
    });
    let words = "Failed to free sufficient space by deleting unused images (freed ";
    assert!(told.contains(words), "{told}");
    let metrics = node.metrics().expect("metrics");
    let collected = "kubelet_image_garbage_collected_total{reason=\"space\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(collected));
    let count: usize = count.and_then(|count| count.parse().ok()).expect("counted");
    assert!(
        count >= 1 && count >= before.difference(&left).count(),
        "{count}: {before:?} {left:?}"
    );
    // Sandboxes are still made: their image is the runtime's own.
    node.put("next.json", &pod("next", &[container("c", &["/box", "pause"])]));
    node.pod_until("next", "is ready", |p| condition(p, "Ready"));
}

/// The runtime's records of a pod: the number of sandboxes, and its dead containers.
fn records(cri: &RawCri, name: &str) -> anyhow::Result<(usize, Vec<Container>)> {
    let full = format!("{name}-{NODE_NAME}");
    let of_pod = BTreeMap::from([("io.kubernetes.pod.name".to_owned(), full)]);
    let filter = PodSandboxFilter { label_selector: of_pod.clone(), ..Default::default() };
    let request = ListPodSandboxRequest { filter: Some(filter) };
    let sandboxes = cri.block(cri.client.list_pod_sandbox(request))?.items;
    let filter = ContainerFilter { label_selector: of_pod, ..Default::default() };
    let request = ListContainersRequest { filter: Some(filter) };
    let mut containers = cri.block(cri.client.list_containers(request))?.containers;
    containers.retain(|container| container.state != ContainerState::ContainerRunning as i32);
    Ok((sandboxes.len(), containers))
}

/// Log files of the pod's container.
fn logs(node: &TestNode, pod: &Pod) -> Vec<String> {
    let meta = &pod.metadata;
    let [namespace, name, uid] =
        [&meta.namespace, &meta.name, &meta.uid].map(|text| text.as_deref().unwrap_or_default());
    let dir = node.pod_logs().join(format!("{namespace}_{name}_{uid}")).join("c");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Links to logs of these containers, as the agent sees them.
fn links(node: &TestNode, containers: &[String]) -> Vec<String> {
    let dir = format!("/proc/{}/root/var/log/containers", node.agent_pid());
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| containers.iter().any(|id| name.contains(id)));
    names
}

#[test]
fn crash_loop_keeps_dead_containers_up_to_the_limit_and_no_replaced_sandbox() {
    let limit = |count| format!("--maximum-dead-containers-per-container={count}");
    let mut node = TestNode::start(Options {
        config: json!({
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "featureGates": {"KubeletCrashLoopBackOffMax": true},
        }),
        flags: vec![limit(3)],
        ..Options::default()
    });
    let stay = shared(&node).join("stay");
    let text = "[ -e /shared/stay ] && echo up >> /shared/up && exec /box pause; exit 7";
    node.put("loop.json", &sharing(pod("loop", &[script("c", text)]), &node));
    node.pod_until("loop", "has crashed often", |p| restarts(p, "c") >= 6);
    std::fs::write(&stay, "").expect("the folder can be written");
    lines_until(&node, "up", 1);
    let cri = RawCri::connect(&node).expect("connected");
    // Its process may be ahead of what the runtime says of it.
    let running = until(LONG, "the runtime knows that it runs", || {
        let list = cri.client.list_containers(ListContainersRequest::default());
        let mut all = cri.block(list)?.containers.into_iter();
        let running = all.find(|c| c.state == ContainerState::ContainerRunning as i32);
        Ok(running.context("none does")?.id)
    });
    let stays = node.pod_until("loop", "stays up", |p| {
        condition(p, "Ready") && container_id(p, "c").ends_with(&running)
    });
    let dead = records(&cri, "loop").expect("a list").1;
    assert_eq!(dead.len(), 3, "{dead:#?}");
    let count = restarts(&stays, "c");
    let kept: Vec<_> = (count - 3..=count).map(|attempt| format!("{attempt}.log")).collect();
    let mut logs_kept = kept;
    logs_kept.sort();
    assert_eq!(logs(&node, &stays), logs_kept, "logs go with their containers");

    node.stop_agent();
    node.add_flags(vec![limit(0)]);
    node.start_agent();
    until(LONG, "no dead container is left", || {
        let (sandboxes, dead) = records(&cri, "loop")?;
        ensure!(dead.is_empty() && sandboxes == 1, "{sandboxes}: {dead:#?}");
        Ok(())
    });
    let now = node.pod_until("loop", "is ready", |p| condition(p, "Ready"));
    assert_eq!(container_id(&now, "c"), container_id(&stays, "c"));
    assert_eq!((restarts(&now, "c"), logs(&node, &now)), (count, vec![format!("{count}.log")]));

    // Its sandbox is stopped from outside: only one replacement is created.
    let sandboxes = cri.block(cri.client.list_pod_sandbox(ListPodSandboxRequest::default()));
    let old = sandboxes.expect("a list").items.remove(0).id;
    let stop = StopPodSandboxRequest { pod_sandbox_id: old.clone() };
    cri.block(cri.client.stop_pod_sandbox(stop)).expect("it is stopped");
    node.pod_until("loop", "runs in a new sandbox", |p| {
        condition(p, "Ready") && restarts(p, "c") > count
    });
    until(LONG * 2, "the old sandbox is gone", || {
        let items = cri.block(cri.client.list_pod_sandbox(ListPodSandboxRequest::default()))?.items;
        ensure!(items.len() == 1 && items[0].id != old, "{items:#?}");
        Ok(())
    });
    let last = node.pod("loop").expect("it is there");
    let (_, dead) = records(&cri, "loop").expect("a list");
    assert!(dead.is_empty() && condition(&last, "Ready"), "{dead:#?}");
    remove_all(&node);
}

#[test]
fn pod_removed_while_the_agent_is_down_leaves_no_sandbox_container_or_log() {
    let mut node = TestNode::usual();
    let crashing =
        pod("gone", &[script("c", "echo once; exit 1"), container("d", &["/box", "pause"])]);
    node.put("gone.json", &crashing);
    node.put("stays.json", &pod("stays", &[container("c", &["/box", "pause"])]));
    let gone = node.pod_until("gone", "was restarted", |p| restarts(p, "c") >= 1);
    let stays = node.pod_until("stays", "is ready", |p| condition(p, "Ready"));
    let cri = RawCri::connect(&node).expect("connected");
    assert!(!records(&cri, "gone").expect("a list").1.is_empty());
    let ids = ["c", "d"].map(|name| container_id(&gone, name));
    assert!(!links(&node, &ids).is_empty() && !logs(&node, &gone).is_empty());
    node.kill_agent();
    node.remove("gone.json");
    node.start_agent();
    until(LONG, "nothing of it is left", || {
        let (sandboxes, dead) = records(&cri, "gone")?;
        ensure!(sandboxes == 0 && dead.is_empty(), "{sandboxes}: {dead:#?}");
        let folders = std::fs::read_dir(node.pod_logs())?.flatten();
        let folders: Vec<_> =
            folders.map(|f| f.file_name().to_string_lossy().into_owned()).collect();
        ensure!(folders.len() == 1 && folders[0].contains("_stays-"), "{folders:?}");
        ensure!(links(&node, &ids).is_empty(), "{:?}", links(&node, &ids));
        Ok(())
    });
    let now = node.pod_until("stays", "is ready", |p| condition(p, "Ready"));
    assert_eq!(container_id(&now, "c"), container_id(&stays, "c"));
    assert_eq!(links(&node, &[container_id(&now, "c")]).len(), 1, "its log is still found");
    remove_all(&node);
}

#[test]
fn pressure_command_names_the_reason_why_each_image_is_kept() {
    let node = TestNode::usual();
    node.put("user.json", &pod("user", &[container("c", &["/box", "pause"])]));
    node.pod_until("user", "is ready", |p| condition(p, "Ready"));
    let told = node.cli(&["pressure"]).expect("an answer");
    let of = |image: &str| told.lines().find(|line| line.starts_with(image)).map(str::to_owned);
    assert!(of(set::BOX).is_some_and(|l| l.contains("stays: a container has it")), "{told}");
    assert!(of(set::BUSYBOX).is_some_and(|line| line.contains("minimum age")), "{told}");
    assert!(told.contains("The disk of the images is "), "{told}");
    remove_all(&node);
}
