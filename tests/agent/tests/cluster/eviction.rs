//! Node-pressure eviction: which pods are evicted and which stay.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, container, phase, pod, restarts, script};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

/// Memory of all pods together, and the eviction threshold for it.
const POD_MEMORY_MIB: u64 = 800;
const LEFT_MIB: u64 = 400;

pub fn bound(name: &str, containers: &[Value]) -> Value {
    pod(name, containers)
        .with_spec("nodeName", json!(NODE))
        .with_spec("automountServiceAccountToken", json!(false))
}

fn pausing(name: &str) -> Value {
    bound(name, &[container("c", &["/box", "pause"])])
}

fn reason(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.reason.as_deref()
}

pub fn message(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.message.as_deref()).unwrap_or_default()
}

pub fn is_evicted(pod: &Pod) -> bool {
    phase(pod) == "Failed" && reason(pod) == Some("Evicted")
}

pub fn under(node: &Node, pressure: &str) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == pressure && c.status == "True"))
}

/// The node evicted the pod, and its `DisruptionTarget` condition says so to its controller.
fn assert_disrupted(pod: &Pod) {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone());
    let conditions = conditions.unwrap_or_default();
    let found = conditions.iter().find(|c| c.type_ == "DisruptionTarget");
    let reason = found.and_then(|c| c.reason.as_deref());
    assert_eq!(reason, Some("TerminationByKubelet"), "{conditions:?}");
}

/// Configuration of a node with `POD_MEMORY_MIB` for pods and a short pressure transition period.
pub fn little_memory(test: &TestCluster) -> Value {
    let node = test.node_until("is there", |_| true);
    let capacity = node.status.and_then(|status| status.capacity).unwrap_or_default();
    let memory: u64 = capacity["memory"].0.trim_end_matches("Ki").parse().expect("a number");
    json!({
        "enforceNodeAllocatable": ["pods"],
        "systemReserved": {"memory": format!("{}Ki", memory - POD_MEMORY_MIB * 1024)},
        "evictionHard": {"memory.available": format!("{LEFT_MIB}Mi")},
        "evictionPressureTransitionPeriod": "5s",
    })
}

#[test]
fn pods_over_a_local_storage_limit_are_evicted_with_a_message_naming_the_limit() {
    let test = TestCluster::take();
    test.configure_agent(&json!({"volumeStatsAggPeriod": "1s"}));
    let write = |path: &str| format!("head -c 8388608 /dev/zero > {path}/file; exec sleep 3600");
    let limit = |of: Value, limit: &str| {
        of.with("resources", json!({"limits": {"ephemeral-storage": limit}}))
    };
    // The pod's limit, the sum of its containers', comes first where both are met.
    let other = limit(container("other", &["/box", "pause"]), "1Gi");
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let volume = |limit: Value| json!([{"name": "v", "emptyDir": limit}]);
    let pods = [
        (
            bound("volume", &[script("c", &write("/v")).with("volumeMounts", mount.clone())])
                .with_spec("volumes", volume(json!({"sizeLimit": "4Mi"}))),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"4Mi\". ",
        ),
        (
            bound("layer", &[limit(script("c", &write("/tmp")), "4Mi"), other]),
            "Container c exceeded its local ephemeral storage limit \"4Mi\". ",
        ),
        (
            bound(
                "sum",
                &[limit(script("c", &write("/v")), "4Mi").with("volumeMounts", mount.clone())],
            )
            .with_spec("volumes", volume(json!({}))),
            "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. ",
        ),
    ];
    test.apply(&pausing("bystander"));
    for (manifest, _) in &pods {
        test.apply(manifest);
    }
    for (manifest, said) in &pods {
        let name = manifest["metadata"]["name"].as_str().expect("a name");
        let evicted = test.pod_until(name, "is evicted", is_evicted);
        assert_eq!(message(&evicted), *said, "{name}");
    }
    let bystander = test.pod_until("bystander", "is ready", |p| condition(p, "Ready"));
    assert_eq!(restarts(&bystander, "c"), 0);
    let events = test.kubectl(&["get", "events", "-o", "json"]).expect("events");
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let told = |name: &str| {
        let of = |e: &&Value| e["reason"] == "Evicted" && e["involvedObject"]["name"] == name;
        events["items"].as_array().expect("a list").iter().filter(of).count()
    };
    assert_eq!([told("volume"), told("layer"), told("sum"), told("bystander")], [1, 1, 1, 0]);
}

#[test]
fn memory_hog_is_evicted_before_an_oom_kill_and_no_other_pod_is_evicted() {
    let test = TestCluster::take();
    test.empty_nodes();
    test.configure_agent(&little_memory(&test));
    let asks = |name: &str, mib: u64| {
        let holds = container("c", &["/box", "hog", "40"])
            .with("resources", json!({"requests": {"memory": format!("{mib}Mi")}}));
        bound(name, &[holds])
    };
    test.apply(&asks("modest", 100));
    test.apply(&asks("above", 10));
    for name in ["modest", "above"] {
        test.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    test.apply(&bound("hog", &[container("c", &["/box", "grow", "100"])]));
    let hog = test.pod_until("hog", "is evicted", is_evicted);
    let start = "The node was low on resource: memory. Threshold quantity: 400Mi, available: ";
    assert!(message(&hog).starts_with(start), "{}", message(&hog));
    let end = ", request is 0, has larger consumption of memory. ";
    assert!(message(&hog).ends_with(end), "{}", message(&hog));
    assert_disrupted(&hog);
    // The kernel did not kill it before the agent did.
    let ends = test.kubectl(&["get", "pod", "hog", "-o", "json"]).expect("the pod");
    assert!(!ends.contains("OOMKilled"), "{ends}");
    test.node_until("is under pressure", |node| under(node, "MemoryPressure"));
    // Rejected while the pressure lasts: it has no requests.
    test.apply(&pausing("late"));
    let late = test.pod_until("late", "is refused", |p| phase(p) == "Failed");
    let refused = "Pod was rejected: The node had condition: [MemoryPressure]. ";
    assert_eq!(message(&late), refused);
    test.node_until("is well", |node| !under(node, "MemoryPressure"));
    for name in ["modest", "above"] {
        let pod = test.pod_until(name, "is ready", |p| condition(p, "Ready"));
        assert_eq!(restarts(&pod, "c"), 0, "{name}");
    }
    test.apply(&pausing("later"));
    test.pod_until("later", "is ready", |p| condition(p, "Ready"));
}

#[test]
fn only_the_largest_pod_is_evicted_when_that_relieves_memory_pressure() {
    let test = TestCluster::take();
    test.empty_nodes();
    test.configure_agent(&little_memory(&test));
    for name in ["first", "second"] {
        test.apply(&bound(name, &[container("c", &["/box", "hog", "100"])]));
        test.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    // Together with either of the others it is too much; it is the largest when usage is read.
    test.apply(&bound("third", &[container("c", &["/box", "hog", "250"])]));
    let evicted = until(LONG, "one is evicted", || {
        let pods = test.pods()?;
        let evicted = pods.iter().filter(|pod| is_evicted(pod)).count();
        ensure!(evicted > 0, "no pod");
        Ok(evicted)
    });
    assert_eq!(evicted, 1);
    test.node_until("is well", |node| !under(node, "MemoryPressure"));
    let pods = test.pods().expect("pods");
    let names = |pods: &[&Pod]| -> Vec<String> {
        pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect()
    };
    let gone: Vec<&Pod> = pods.iter().filter(|pod| is_evicted(pod)).collect();
    assert_eq!(names(&gone), ["third"], "the largest of those that ask for nothing");
}
