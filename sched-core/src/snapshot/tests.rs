//! Objects added, changed and deleted.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use serde_json::{Value, json};

use super::Cluster;
use super::objects::{OWN_KEYS, PodSpec};
use crate::intern::Str;
use crate::select::{PreFilterRefusal, Scratch};
use crate::{Profile, decide};

/// A node with room for 110 pods, and a hostname.
pub(crate) fn node(name: &str) -> Node {
    node_with(name, |_| ())
}

pub(crate) fn node_with(name: &str, change: impl FnOnce(&mut Value)) -> Node {
    let mut node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"}}});
    change(&mut node);
    serde_json::from_value(node).expect("node")
}

/// A small pod of workload "web" in namespace "ns".
pub(crate) fn pod(name: &str) -> Pod {
    pod_with(name, |_| ())
}

pub(crate) fn pod_with(name: &str, change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({"metadata": {"name": name, "uid": format!("uid-{name}"),
        "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]}});
    change(&mut pod);
    serde_json::from_value(pod).expect("pod")
}

/// The same pod on a node, as the API returns it once the kubelet runs it.
pub(crate) fn bound(name: &str, node: &str) -> Pod {
    pod_with(name, |pod| {
        pod["spec"]["nodeName"] = json!(node);
        pod["status"] = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"});
    })
}

fn cluster(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    nodes.iter().for_each(|name| _ = cluster.set_node(&node(name)).expect("node"));
    cluster
}

#[test]
fn pod_in_a_terminal_phase_uses_no_resources_of_its_node() {
    for phase in ["Succeeded", "Failed"] {
        let mut cluster = cluster(&["a"]);
        cluster.set_pod(&bound("p", "a")).expect("pod");
        assert_eq!(cluster.view().numbers(0).cpu_used, 100);
        let mut ended = bound("p", "a");
        ended.status.as_mut().expect("status").phase = Some(phase.to_owned());
        assert_eq!(cluster.set_pod(&ended), Ok(None));
        let n = cluster.view().numbers(0);
        assert_eq!((n.cpu_used, n.pods_used, cluster.pods().len()), (0, 0, 0), "{phase}");
        assert_eq!(cluster.set_pod(&ended), Ok(None), "one that was never seen alive");
    }
}

#[test]
fn confirming_an_assumed_pod_leaves_the_published_view_unchanged() {
    let mut cluster = cluster(&["a"]);
    let id = cluster.assume(&pod("p"), "a").expect("room");
    assert!(cluster.pods().get(id).assumed);
    let before = cluster.publish();
    assert_eq!(cluster.set_pod(&bound("p", "a")), Ok(Some(id)));
    assert_eq!(cluster.view().epoch(), before.epoch());
    assert_eq!(cluster.view().version(0), before.version(0));
    let row = cluster.pods().get(id);
    assert!(!row.assumed && row.start_ns < i64::MAX, "what only the pod table knows is updated");
    // Changes of counted fields do change it.
    cluster
        .set_pod(&pod_with("p", |p| {
            p["spec"]["nodeName"] = json!("a");
            p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }))
        .expect("pod");
    assert_ne!(cluster.view().version(0), before.version(0));
}

fn service(namespace: &str, name: &str, selector: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector}}))
    .expect("service")
}

#[test]
fn workload_event_leaves_programs_of_other_workloads_unchanged() {
    let mut cluster = cluster(&["a"]);
    let before = cluster.compile(&pod("p")).expect("pod");
    cluster.set_service(&service("other", "s", json!({"app": "web"})));
    let set = json!({"metadata": {"name": "r", "namespace": "other"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}}});
    cluster.set_replica_set(&serde_json::from_value::<ReplicaSet>(set).expect("set"));
    let same = cluster.compile(&pod("q")).expect("pod");
    assert!(Arc::ptr_eq(&before, &same), "the program is still shared");
    // A service that selects the pod changes its program, and its removal changes it back.
    cluster.set_service(&service("ns", "s", json!({"app": "web"})));
    let spread = cluster.compile(&pod("q")).expect("pod");
    assert_eq!((before.spread.soft.len(), spread.spread.soft.len()), (0, 2));
    cluster.remove_service("ns", "s");
    assert_eq!(*cluster.compile(&pod("q")).expect("pod"), *before);
}

type Remove = fn(&mut Cluster, &str, &str);

#[test]
fn removed_workload_no_longer_spreads_its_pods() {
    let mut cluster = cluster(&["a"]);
    let meta = json!({"name": "w", "namespace": "ns"});
    let labels = json!({"matchLabels": {"app": "web"}});
    let set = json!({"metadata": meta, "spec": {"selector": labels, "serviceName": "w"}});
    let controller = json!({"metadata": meta, "spec": {"selector": {"app": "web"}}});
    let read = |value: &Value| value.clone();
    cluster.set_replica_set(&serde_json::from_value(read(&set)).expect("set"));
    cluster.set_stateful_set(&serde_json::from_value(read(&set)).expect("set"));
    cluster.set_replication_controller(&serde_json::from_value(controller).expect("controller"));
    let owned = |kind: &str, version: &str| {
        pod_with("p", |p| {
            p["metadata"]["ownerReferences"] = json!([{"kind": kind, "apiVersion": version,
                "name": "w", "uid": "u", "controller": true}]);
        })
    };
    let remove: [(&str, &str, Remove); 3] = [
        ("ReplicaSet", "apps/v1", Cluster::remove_replica_set),
        ("StatefulSet", "apps/v1", Cluster::remove_stateful_set),
        ("ReplicationController", "v1", Cluster::remove_replication_controller),
    ];
    for (kind, version, remove) in remove {
        let spreads =
            |c: &mut Cluster| c.compile(&owned(kind, version)).expect("pod").spread.soft.len();
        assert_eq!(spreads(&mut cluster), 2, "{kind}");
        remove(&mut cluster, "ns", "w");
        assert_eq!(spreads(&mut cluster), 0, "{kind}");
    }
}

/// A pod that repels pods with `labels` on its node, in namespaces of a kind.
fn lonely(name: &str, labels: Value, namespaces: Value) -> Pod {
    pod_with(name, |p| {
        p["spec"]["affinity"]["podAntiAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels},
                "namespaceSelector": namespaces}]});
    })
}

#[test]
fn the_labels_of_a_namespace_count_until_it_is_removed() {
    let mut cluster = cluster(&["a", "b"]);
    let team = json!({"metadata": {"name": "ns", "labels": {"team": "x"}}});
    cluster.set_namespace(&serde_json::from_value::<Namespace>(team).expect("namespace"));
    let of_team = json!({"matchLabels": {"team": "x"}});
    cluster.assume(&lonely("l", json!({"app": "web"}), of_team), "a").expect("room");
    let program = cluster.compile(&pod("p")).expect("pod");
    let mut scratch = Scratch::default();
    // The term selects namespaces by label only.
    assert_eq!(decide(cluster.view(), &program, &mut scratch).feasible, 1);
    cluster.remove_namespace("ns");
    assert_eq!(decide(cluster.view(), &program, &mut scratch).feasible, 2);
}

/// A pod of a stateful set.
fn ordinal(at: usize) -> Pod {
    pod_with(&format!("db-{at}"), |p| {
        let labels = &mut p["metadata"]["labels"];
        labels[OWN_KEYS[0]] = json!(format!("db-{at}"));
        labels[OWN_KEYS[1]] = json!(at.to_string());
    })
}

#[test]
fn pods_of_a_stateful_set_share_a_program_and_a_class() {
    let mut cluster = cluster(&["a"]);
    let programs: Vec<_> = (0..5).map(|at| cluster.compile(&ordinal(at)).expect("pod")).collect();
    assert!(programs.iter().all(|p| Arc::ptr_eq(p, &programs[0])));
    (0..5).for_each(|at| _ = cluster.assume(&ordinal(at), "a").expect("room"));
    assert_eq!(cluster.class_ids.len(), 1);
}

#[test]
fn selector_of_one_ordinal_makes_later_programs_distinguish_ordinals() {
    let mut cluster = cluster(&["a", "b"]);
    let early = cluster.compile(&ordinal(1)).expect("pod");
    cluster.assume(&ordinal(0), "a").expect("room");
    let first = json!({OWN_KEYS[0]: "db-0"});
    let program = cluster.compile(&lonely("l", first.clone(), json!(null))).expect("pod");
    let mut scratch = Scratch::default();
    decide(cluster.view(), &program, &mut scratch);
    assert_eq!(scratch.feasible.iter().collect::<Vec<_>>(), [1], "db-0 is on the first");
    // And the other way round: the selected pod is kept away.
    cluster.remove_pod(&ordinal(0)).expect("there");
    cluster.assume(&lonely("l", first, json!(null)), "b").expect("room");
    let stale = decide(cluster.view(), &early, &mut scratch).refusal;
    assert_eq!(
        stale,
        Some(PreFilterRefusal::Stale),
        "it was compiled when ordinals did not matter"
    );
    for (at, rows) in [(0, &[0][..]), (1, &[0, 1])] {
        let program = cluster.compile(&ordinal(at)).expect("pod");
        decide(cluster.view(), &program, &mut scratch);
        assert_eq!(scratch.feasible.iter().collect::<Vec<_>>(), rows, "db-{at}");
    }
}

/// Everything that can grow, by name.
fn sizes(cluster: &Cluster) -> [(&'static str, usize); 9] {
    let view = cluster.view();
    let columns = view.keys.columns().map(|(_, column)| column.value_ids());
    [
        ("strings and label sets", cluster.interner.len()),
        ("classes", cluster.classes.len()),
        ("counters", view.counts.counters.len()),
        ("terms", view.counts.terms.len()),
        ("programs", cluster.programs.len()),
        ("label values", columns.sum()),
        ("bytes of labels", view.keys.heap_bytes()),
        ("taints", view.sparse.taints.len()),
        ("bytes of pods", cluster.heap_bytes().1),
    ]
}

/// One pod of a job of its own, with a selector and a term of its own.
fn job(at: usize) -> Pod {
    let mut job = lonely("job", json!({"job-name": format!("job-{at}")}), json!(null));
    job.metadata.uid = Some(format!("uid-{at}"));
    job.metadata.name = Some(format!("job-{at}-xyz"));
    let labels = job.metadata.labels.get_or_insert_default();
    labels.insert("job-name".into(), format!("job-{at}"));
    job
}

#[test]
fn names_of_deleted_jobs_and_nodes_are_freed() {
    let mut cluster = cluster(&["a", "b"]);
    let turn = |cluster: &mut Cluster, at: usize| {
        let pod = job(at);
        let program = cluster.compile(&pod).expect("pod");
        let row = decide(cluster.view(), &program, &mut Scratch::default()).first.expect("room");
        let node = cluster.node_name(row).to_owned();
        cluster.assume(&pod, &node).expect("room");
        cluster.remove_pod(&pod).expect("there");
        let name = format!("spot-{at}");
        let tainted = node_with(&name, |n| {
            n["spec"] = json!({"taints": [{"key": name, "effect": "NoSchedule"}]});
        });
        cluster.set_node(&tainted).expect("node");
        cluster.remove_node(&name).expect("there");
    };
    (0..1_500).for_each(|at| turn(&mut cluster, at));
    cluster.sweep();
    let before = sizes(&cluster);
    (1_500..4_500).for_each(|at| turn(&mut cluster, at));
    cluster.sweep();
    for ((name, before), (_, after)) in before.into_iter().zip(sizes(&cluster)) {
        assert!(after <= before * 2, "{name}: {before} after 1,500, {after} after 4,500");
    }
    cluster.sweep();
    assert_eq!((cluster.class_ids.len(), cluster.counter_ids.len()), (0, 0));
    assert!(cluster.vocabulary() < 40, "{} things are left", cluster.vocabulary());
}

#[test]
fn memory_stays_bounded_for_a_million_pods_with_a_thousand_alive() {
    let mut cluster = cluster(&["a"]);
    let read = cluster.read_pod(&pod("p")).expect("pod");
    let mut alive: std::collections::VecDeque<PodSpec> = Default::default();
    let mut flat = Vec::new();
    for at in 0..1_000_000 {
        let mut spec = read.clone();
        cluster.sweep_if_due();
        spec.key = cluster.interner.intern(&format!("uid-{at}"));
        spec.name = cluster.interner.intern(&format!("pod-{at}"));
        cluster.place_spec(&spec, "a", false);
        alive.push_back(spec);
        if alive.len() > 1_000 {
            let gone = alive.pop_front().expect("a thousand are there");
            let id = cluster.pods().find(gone.key).expect("it was placed");
            cluster.remove(id);
        }
        if at == 10_000 {
            cluster.sweep();
            flat = sizes(&cluster).into();
        }
    }
    cluster.sweep();
    for ((name, flat), (_, after)) in flat.into_iter().zip(sizes(&cluster)) {
        // A hash table keeps tombstones and may double once for them.
        assert!(after <= flat * 2, "{name}: {flat} after 10,000, {after} after a million");
    }
}

#[test]
fn vocabulary_stays_bounded_while_parsed_nodes_are_held() {
    let mut cluster = cluster(&["a"]);
    let read = cluster.read_pod(&pod("p")).expect("pod");
    let mut held: std::collections::VecDeque<_> = Default::default();
    let mut most = [0; 4];
    for at in 0..4_000 {
        held.push_back(cluster.read_node(&node(&format!("n-{at}"))).expect("node"));
        if held.len() > 50 {
            held.pop_front();
        }
        for pod in 0..30 {
            cluster.sweep_if_due();
            let mut spec = read.clone();
            spec.key = cluster.interner.intern(&format!("uid-{at}-{pod}"));
            spec.name = cluster.interner.intern(&format!("pod-{at}-{pod}"));
            let id = cluster.place_spec(&spec, "a", false);
            cluster.remove(id);
        }
        most[at / 1_000] = most[at / 1_000].max(cluster.vocabulary());
    }
    assert!(most[3] * 10 <= most[1] * 11, "{most:?} things at most");
}

#[test]
fn held_program_keeps_its_interned_references_through_sweeps() {
    let mut cluster = cluster(&["a"]);
    cluster.assume(&job(1), "a").expect("room");
    let program = cluster.compile(&job(1)).expect("pod");
    let spec = cluster.read_pod(&job(2)).expect("pod");
    let selector = cluster
        .compile(&pod_with("s", |p| {
            p["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "later"});
        }))
        .expect("pod");
    cluster.remove_pod(&job(1)).expect("there");
    cluster.sweep();
    // New objects take free indexes and must not be mistaken for the old ones.
    (100..140).for_each(|at| _ = cluster.compile(&job(at)).expect("pod"));
    cluster.sweep();
    let mut scratch = Scratch::default();
    assert_eq!(decide(cluster.view(), &program, &mut scratch).feasible, 1);
    cluster.assume(&job(1), "a").expect("room");
    assert_eq!(decide(cluster.view(), &program, &mut scratch).feasible, 0);
    cluster.set_node(&node("later")).expect("node");
    let found = decide(cluster.view(), &selector, &mut scratch).first;
    assert_eq!(found.map(|row| cluster.node_name(row)), Some("later"));
    cluster.place_spec(&spec, "later", true);
    let second = cluster.compile(&job(2)).expect("pod");
    decide(cluster.view(), &second, &mut scratch);
    assert_eq!(scratch.feasible.iter().collect::<Vec<_>>(), [0]);
}

fn with_images(name: &str, images: &[(&str, i64)]) -> Node {
    let list = images.iter().map(|(n, size)| json!({"names": [n], "sizeBytes": size}));
    let list: Vec<_> = list.collect();
    node_with(name, |n| n["status"]["images"] = json!(list))
}

#[test]
fn an_image_update_touches_the_images_that_changed() {
    let mut cluster = cluster(&[]);
    cluster.set_node(&with_images("a", &[("x", 1), ("y", 2), ("z", 3)])).expect("node");
    cluster.set_node(&with_images("b", &[("x", 9), ("y", 9)])).expect("node");
    let before = cluster.publish();
    cluster.set_node(&with_images("a", &[("x", 7), ("z", 8), ("w", 4)])).expect("node");
    let name = |cluster: &Cluster, text: &str| cluster.interner.find(text).expect("interned");
    let of = |cluster: &Cluster, text: &str| {
        let image = cluster.view().sparse.images.get(&name(cluster, text)).expect("there");
        (image.size_bytes, image.rows.len())
    };
    // The size is that of the first node that had it; of the only one, if that reports another.
    assert_eq!([of(&cluster, "x"), of(&cluster, "y")], [(1, 2), (2, 1)]);
    assert_eq!([of(&cluster, "z"), of(&cluster, "w")], [(8, 1), (4, 1)]);
    let at = |view: &super::View, id: Str| {
        std::ptr::from_ref(view.sparse.images.get(&id).expect("there"))
    };
    let x = name(&cluster, "x");
    assert_eq!(at(&before, x), at(cluster.view(), x), "x was not even copied");
    cluster.remove_node("a").expect("there");
    cluster.remove_node("b").expect("there");
    assert_eq!(cluster.view().sparse.images.iter().count(), 0);
}

#[test]
fn a_host_port_is_taken_by_address_and_freed_with_its_pod() {
    let mut cluster = cluster(&["a", "b"]);
    let on = |name: &str, ip: &str| {
        pod_with(name, |p| {
            p["spec"]["containers"][0]["ports"] =
                json!([{"containerPort": 80, "hostPort": 80, "hostIP": ip}]);
        })
    };
    cluster.assume(&on("p", "10.0.0.1"), "a").expect("room");
    let mut scratch = Scratch::default();
    let mut feasible = |cluster: &mut Cluster, ip: &str| {
        let program = cluster.compile(&on("q", ip)).expect("pod");
        decide(cluster.view(), &program, &mut scratch).feasible
    };
    let asked = ["10.0.0.1", "10.0.0.2", "0.0.0.0"];
    assert_eq!(asked.map(|ip| feasible(&mut cluster, ip)), [1, 2, 1]);
    cluster.forget(&on("p", "10.0.0.1")).expect("assumed");
    assert_eq!(asked.map(|ip| feasible(&mut cluster, ip)), [2, 2, 2]);
    assert_eq!(cluster.view().sparse.ports.iter().count(), 0);
}
