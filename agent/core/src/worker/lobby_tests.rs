//! Pods that wait before they start, through the whole core: for the node's object, for the name of
//! another pod, for the room of a pod that ends.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::admit;
use crate::worker::testing::{Host, of_folder, plain, small_settings};
use crate::worker::{Command, PodsInput, ReadFailure, Settings, WorkerStage};

/// A node with an object that the agent has not seen yet.
fn unseen() -> Host {
    Host::with(Settings { has_node_object: true, ..small_settings() })
}

fn labelled(disk: &str) -> Arc<admit::AdmissionNode> {
    let mut node = (*small_settings().admission).clone();
    node.labels.insert("disk".to_owned(), disk.to_owned());
    Arc::new(node)
}

/// A pod for nodes with this disk.
fn selective(uid: &str, disk: &str) -> Pod {
    let mut pod = plain(uid, "100m");
    let spec = pod.spec.get_or_insert_default();
    spec.node_selector = Some([("disk".to_owned(), disk.to_owned())].into());
    pod
}

#[test]
fn pods_of_the_api_wait_until_the_node_was_seen_and_static_ones_do_not() {
    let mut host = unseen();
    host.want(selective("a", "ssd"));
    host.want(of_folder(plain("static", "100m"), "static"));
    assert_eq!((host.take().as_str(), host.stage("a")), ("StartContainer static", None));
    assert!(!host.pods.knows_all(), "what is there of it is not left over");
    host.send(PodsInput::Admission(labelled("ssd")));
    assert_eq!(host.take(), "StartContainer a");
    assert!(host.pods.knows_all());
}

#[test]
fn pod_that_waits_for_the_node_object_may_be_updated_or_removed() {
    let mut host = unseen();
    host.want(selective("a", "hdd"));
    host.want(selective("a", "ssd"));
    host.want(selective("b", "ssd"));
    host.remove("b");
    host.send(PodsInput::Admission(labelled("ssd")));
    assert_eq!(host.take(), "StartContainer a");
}

#[test]
fn a_pod_that_waits_for_the_node_is_no_orphan() {
    let mut host = unseen();
    host.want(plain("a", "100m"));
    let record = crate::observed::ObservedPod::empty("a".into(), "ns", "a");
    host.records.insert("a".into(), record);
    host.send(PodsInput::Lost);
    assert_eq!(host.stage("a"), None);
    host.send(PodsInput::Admission(labelled("ssd")));
    assert_eq!(host.take(), "StartContainer a");
}

#[test]
fn containers_of_a_pod_removed_while_waiting_are_stopped_before_orphan_cleanup() {
    let mut host = unseen();
    host.want(plain("a", "100m"));
    let mut record = crate::observed::ObservedPod::empty("a".into(), "ns", "a");
    record.containers.push(crate::status::testing::container("c", "c1"));
    host.records.insert("a".into(), record);
    host.send(PodsInput::Lost);
    // The list of running pods may take its time, and fail.
    let commands = host.pods.handle(host.now, PodsInput::Removed { uid: "a".into() });
    assert!(!host.pods.knows_all(), "its volumes are in use");
    let list = commands.iter().find_map(|command| match command {
        Command::List { stamp } => Some(*stamp),
        _ => None,
    });
    let stamp = list.expect("a list that begins now");
    host.send(PodsInput::Listed { stamp, result: Err(ReadFailure("unavailable".to_owned())) });
    assert!(!host.pods.knows_all());
    host.wait(Duration::from_secs(5));
    assert_eq!(host.take(), "KillPod a");
    assert!(host.pods.knows_all());
}

#[test]
fn node_labels_are_fetched_again_before_a_pod_fails_node_affinity() {
    for (fresh, told) in [(Some("ssd"), "StartContainer a"), (None, "NodeAffinity a")] {
        let mut host = unseen();
        host.send(PodsInput::Admission(labelled("hdd")));
        host.want(selective("a", "ssd"));
        assert_eq!(host.take(), "", "it is not failed for what may be old");
        let ticket = host.node_reads.pop().expect("a read of the node");
        host.send(PodsInput::NodeFetched { ticket, node: fresh.map(labelled) });
        assert_eq!(host.take(), told, "{fresh:?}");
    }
    let mut host = Host::new();
    host.want(selective("a", "ssd"));
    assert_eq!(host.take(), "NodeAffinity a", "there is no object to be read");
}

#[test]
fn node_read_begun_before_a_pod_arrived_does_not_decide_its_admission() {
    let mut host = unseen();
    host.send(PodsInput::Admission(labelled("hdd")));
    host.want(selective("a", "ssd"));
    host.want(selective("b", "ssd"));
    let ticket = host.node_reads.pop().expect("a read of the node");
    assert_eq!(host.node_reads.pop(), None, "one at a time");
    host.send(PodsInput::NodeFetched { ticket, node: Some(labelled("hdd")) });
    assert_eq!(host.take(), "NodeAffinity a");
    let ticket = host.node_reads.pop().expect("another read");
    host.send(PodsInput::NodeFetched { ticket, node: Some(labelled("ssd")) });
    assert_eq!(host.take(), "StartContainer b");
}

#[test]
fn static_pod_starts_when_the_earlier_pod_of_its_name_has_ended() {
    let mut host = Host::new();
    host.want(of_folder(plain("old", "100m"), "x"));
    host.take();
    host.lingers = true;
    host.remove("old");
    host.want(of_folder(plain("new", "100m"), "x"));
    assert_eq!(host.stage("new"), Some(WorkerStage::Waiting));
    host.finish("old");
    assert_eq!(host.stage("new"), Some(WorkerStage::Syncing), "{}", host.take());
}

/// Deaths of agents can leave two pods of one name; only the first of them holds the name.
#[test]
fn static_pod_waits_for_every_leftover_pod_of_its_name() {
    for (new, left) in [("m", ["a", "z"]), ("m", ["z", "a"])] {
        let mut host = Host::new();
        for uid in ["a", "z"] {
            host.want(of_folder(plain(uid, "100m"), uid));
            host.records.get_mut(uid).expect("a pod in the runtime").name = "x".to_owned();
        }
        host.lingers = true;
        host.restart(vec![of_folder(plain(new, "100m"), "x")]);
        for uid in left {
            assert_eq!(
                host.stage(new),
                Some(WorkerStage::Waiting),
                "{uid} is left: {}",
                host.take()
            );
            host.finish(uid);
        }
        assert_eq!(host.stage(new), Some(WorkerStage::Syncing), "{}", host.take());
    }
}

#[test]
fn static_pod_does_not_wait_for_the_cleanup_of_a_finished_pod_of_its_name() {
    let mut host = Host::new();
    let mut old = of_folder(plain("old", "100m"), "x");
    old.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
    host.want(old);
    host.end("old", "c", 0);
    assert_eq!(host.stage("old"), Some(WorkerStage::Finished));
    host.lingers = true;
    host.remove("old");
    host.want(of_folder(plain("new", "100m"), "x"));
    assert_eq!(host.stage("new"), Some(WorkerStage::Syncing), "{}", host.take());
}

#[test]
fn api_pod_does_not_wait_for_an_earlier_pod_of_its_name() {
    let mut host = Host::new();
    let named = |uid: &str| {
        let mut pod = plain(uid, "100m");
        pod.metadata.name = Some("web-0".to_owned());
        pod
    };
    host.want(named("old"));
    host.stubborn = true;
    host.remove("old");
    host.take();
    host.want(named("new"));
    assert_eq!(host.take(), "StartContainer new");
}

#[test]
fn new_pod_waits_a_limited_time_for_the_room_of_a_force_deleted_pod() {
    for stubborn in [false, true] {
        let mut host = Host::new();
        host.want(plain("old", "800m"));
        host.take();
        host.lingers = !stubborn;
        host.stubborn = stubborn;
        host.remove("old");
        host.want(plain("new", "800m"));
        assert_eq!(host.stage("new"), Some(WorkerStage::Waiting), "{}", host.take());
        host.take();
        match stubborn {
            false => host.finish("old"),
            true => host.wait(Duration::from_secs(11)),
        }
        assert_eq!(host.stage("new"), Some(WorkerStage::Syncing), "{stubborn}: {}", host.take());
        assert_eq!(host.status("new")["phase"], json!("Running"));
    }
}
