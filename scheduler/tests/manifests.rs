//! Handwritten pods: manifests, dry runs, incomplete dumps; and the advice about them.
#![allow(missing_docs)]

use std::process::Command;

use serde_json::{Value, json};

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"}}})
}

fn pod(name: &str, spec: Value) -> Value {
    let mut all = json!({"containers": [{"name": "c", "image": "i"}]});
    merge(&mut all, &spec);
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}}, "spec": all})
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.iter()
                .for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from.clone(),
    }
}

fn asks(cpu: &str) -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]})
}

/// Runs `simulate`; returns success and the output.
fn run(text: &str, arguments: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("dump"), text).expect("a file");
    let output = Command::new(env!("CARGO_BIN_EXE_pintle-scheduler"))
        .args(["simulate", "--cluster", "dump"])
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .expect("runs");
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn simulated(all: &[Value], arguments: &[&str]) -> Value {
    let text: Vec<String> = all.iter().map(Value::to_string).collect();
    let (is_good, said) = run(&text.join("\n"), &[arguments, &["-o", "json"]].concat());
    assert!(is_good, "{said}");
    serde_json::from_str(&said).expect("JSON")
}

fn fields(found: &Value) -> Vec<&str> {
    let all = found["assumed"].as_array().expect("a list");
    all.iter().filter_map(|one| one["field"].as_str()).collect()
}

#[test]
fn manifest_gets_the_defaults_that_an_api_server_would_store() {
    let limits = json!({"containers": [{"name": "c", "image": "i",
        "resources": {"limits": {"cpu": "1500m"}}}]});
    let found = simulated(&[node("n1"), pod("a", limits.clone()), pod("b", limits)], &[]);
    assert_eq!(
        (&found["placed"][0]["pod"], &found["unplaced"][0]["pod"]),
        (&json!("shop/a"), &json!("shop/b"))
    );
    let requests = json!({"field": "spec.containers[].resources.requests",
        "value": "the limits, for resources without a request", "pods": 2,
        "examples": ["shop/a", "shop/b"]});
    assert!(found["assumed"].as_array().expect("a list").contains(&requests), "{found}");

    let host = json!({"hostNetwork": true, "containers":
        [{"name": "c", "image": "i", "ports": [{"containerPort": 8080}]}]});
    let mut bound = host.clone();
    bound["nodeName"] = json!("n1");
    let found = simulated(&[node("n1"), pod("old", bound), pod("new", host)], &[]);
    let says =
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.";
    assert_eq!(found["unplaced"][0]["message"], says);

    let anti = json!({"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["hash"]}]}}});
    let of = |name: &str, hash: &str, spec: &Value| {
        let mut pod = pod(name, spec.clone());
        pod["metadata"]["labels"] = json!({"app": "web", "hash": hash});
        pod
    };
    let old = of("old", "1", &json!({"nodeName": "n1"}));
    let found = simulated(&[node("n1"), old.clone(), of("new", "2", &anti)], &[]);
    assert_eq!(found["placed"][0]["pod"], "shop/new");
    let found = simulated(&[node("n1"), old, of("new", "1", &anti)], &[]);
    assert_eq!(found["unplaced"][0]["pod"], "shop/new");
}

#[test]
fn admission_is_applied_where_the_dump_has_its_objects() {
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": "vm"}, "handler": "vm", "overhead": {"podFixed": {"cpu": "500m"}}});
    let range = json!({"apiVersion": "v1", "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": "shop"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "3"}}]}});
    let mut in_vm = asks("1600m");
    in_vm["runtimeClassName"] = json!("vm");
    let all = [node("n1"), class, range, pod("vm", in_vm.clone()), pod("bare", json!({}))];
    let found = simulated(&all, &[]);
    assert_eq!(found["placed"], json!([]));
    let missing = |at: usize| found["unplaced"][at]["remedy"]["changes"][0]["missing"].clone();
    assert_eq!((missing(0), missing(1)), (json!(100), json!(1000)));
    assert!(fields(&found).contains(&"spec.overhead"));
    // A missing object is reported.
    let found = simulated(&[node("n1"), pod("vm", in_vm)], &[]);
    assert_eq!(found["placed"][0]["pod"], "shop/vm");
    let (_, text) =
        run(&format!("{}{}", node("n1"), pod("p", json!({"runtimeClassName": "vm"}))), &[]);
    assert!(text.contains("nothing, because RuntimeClass vm is not in the dump"), "{text}");
}

#[test]
fn pods_are_identified_by_namespace_and_name_not_by_uid() {
    let of = |name: &str, on: Option<&str>| {
        let mut spec = asks("1");
        spec["nodeName"] = json!(on);
        let mut pod = pod(name, spec);
        pod["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
        pod
    };
    let all = [node("n1"), of("a", Some("n1")), of("b", Some("n1")), of("c", None)];
    let found = simulated(&all, &[]);
    assert_eq!((&found["bound"], &found["unplaced"][0]["pod"]), (&json!(2), &json!("shop/c")));
}

#[test]
fn yaml_and_json_give_the_same_result() {
    let yaml = "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n  labels: {kubernetes.io/hostname: n1}\n\
        status:\n  allocatable: {cpu: 2, memory: 4Gi, pods: 10}\n---\napiVersion: v1\nkind: Pod\n\
        metadata:\n  creationTimestamp: null\n  labels:\n    app: a\n  name: a\n  namespace: shop\nspec:\n\
        \x20 containers:\n  - image: i\n    name: c\n    resources:\n      requests: {cpu: 1}\nstatus: {}\n";
    let (is_good, said) = run(yaml, &["-o", "json"]);
    assert!(is_good, "{said}");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said, simulated(&[node("n1"), pod("a", asks("1"))], &[]));
}

#[test]
fn invalid_manifests_are_rejected_with_all_their_errors() {
    let lower = json!({"containers": [{"name": "c", "image": "i", "ports":
        [{"containerPort": 80, "protocol": "tcp"}]}], "restartPolicy": "always"});
    let half = asks("1");
    let mut half = pod("half", half);
    half["spec"]["containers"][0]["resources"] =
        json!({"limits": {"acme.example/gpu": "500m"}, "requests": {"acme.example/gpu": "500m"}});
    let (is_good, said) = run(&format!("{}\n{}\n{half}", node("n1"), pod("lower", lower)), &[]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(!is_good && lines.len() == 4, "{said}");
    for (line, says) in lines.iter().zip([
        "dump:2:1: Pod shop/lower: spec.containers[0].ports[0].protocol: Unsupported value: \"tcp\"",
        "dump:2:1: Pod shop/lower: spec.restartPolicy: Unsupported value: \"always\"",
        "dump:3:1: Pod shop/half: spec.containers[0].resources.limits[acme.example/gpu]: Invalid value",
        "dump:3:1: Pod shop/half: spec.containers[0].resources.requests[acme.example/gpu]: Invalid",
    ]) {
        assert!(line.contains(says), "{says} in {said}");
    }
}

#[test]
fn a_dump_that_was_cut_is_refused_and_other_kinds_are_counted() {
    let list = json!({"kind": "List", "items": [node("n1")]}).to_string();
    let (is_good, said) = run(&list[..list.len() - 3], &[]);
    assert!(!is_good && said.contains("the file ends early, so the dump was cut"), "{said}");
    let (is_good, said) = run(&format!("{list}\nError from server (Timeout): too slow\n"), &[]);
    let says = "dump:2:1: file: holds an error message, \"Error from server (Timeout): too slow\": the \
        dump was cut";
    assert!(!is_good && said.contains(says), "{said}");
    let deployment =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
    let found = simulated(&[node("n1"), deployment.clone(), deployment], &[]);
    assert_eq!(found["notes"], json!(["2 objects of other kinds ignored: Deployment (2)"]));
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "shop"}, "spec": {"minAvailable": 1}});
    let slip = pod("p", json!({"nodeSelecter": {"disk": "ssd"}}));
    let notes = json!([
        "1 field that Kubernetes 1.36 does not have ignored: spec.nodeSelecter (Pod shop/p)",
        "1 disruption budget without a status: no disruption is allowed by shop/b"
    ]);
    assert_eq!(simulated(&[node("n1"), budget, slip], &[])["notes"], notes);
}

/// Returns the advice for a pod in a cluster of one node.
fn advice(of_node: Value, others: &[Value], spec: Value) -> String {
    let mut node = node("n1");
    merge(&mut node, &of_node);
    let all = [&[node], others, &[pod("new", spec)]].concat();
    let text: Vec<String> = all.iter().map(Value::to_string).collect();
    let (is_good, said) = run(&text.join("\n"), &[]);
    assert!(is_good, "{said}");
    let line = said.lines().find_map(|line| line.trim().strip_prefix("would fit: on node n1: "));
    line.unwrap_or_else(|| panic!("no advice in {said}")).to_owned()
}

#[test]
fn advice_names_all_needed_changes_and_no_useless_changes() {
    let tainted = |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    let cordoned = json!({"spec": {"unschedulable": true, "taints":
        [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}});
    let mut bound = asks("3");
    bound["nodeName"] = json!("n1");
    let over = [pod("over", bound)];
    let selector = |key: &str, value: &str| json!({"nodeSelector": {key: value}});
    let with = |key: &str| {
        json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}}]}}})
    };
    let mut big_and_tainted = asks("3");
    big_and_tainted["nodeSelector"] = json!({"disk": "ssd"});
    for (of_node, others, spec, says) in [
        (tainted("gpu"), &[][..], json!({}), "tolerate the taint gpu:NoSchedule"),
        (
            tainted("node.kubernetes.io/not-ready"),
            &[],
            json!({}),
            "wait until the node is ready (taint node.kubernetes.io/not-ready:NoSchedule)",
        ),
        (
            tainted("node.kubernetes.io/disk-pressure"),
            &[],
            json!({}),
            "free disk space on the node (taint node.kubernetes.io/disk-pressure:NoSchedule)",
        ),
        (cordoned, &[], json!({}), "uncordon it"),
        // Smaller requests of the pod do not make up for an overcommitted node.
        (json!({}), &over, asks("500m"), "free 1500m cpu or ask for none"),
        (json!({}), &over, asks("4"), "ask for 4 less cpu (more than the node has)"),
        (
            json!({"status": {"allocatable": {"pods": "0"}}}),
            &[],
            json!({}),
            "raise the node's allocatable number of pods, which is 0",
        ),
        (json!({}), &[], selector("disk", "ssd"), "meet node affinity: disk=ssd"),
        (
            json!({}),
            &[],
            selector("kubernetes.io/arch", "arm64"),
            "change its node affinity or selector, which needs kubernetes.io/arch=arm64",
        ),
        (
            json!({}),
            &[],
            selector("kubernetes.io/hostname", "n9"),
            "change its node affinity or selector, which needs kubernetes.io/hostname=n9",
        ),
        (
            json!({}),
            &[],
            with("kubernetes.io/hostname"),
            "relax its pod affinity, or place a pod it asks for nearby",
        ),
        (
            json!({}),
            &[],
            with("rack"),
            "relax its pod affinity, because the node lacks the label of its topology key",
        ),
        (
            tainted("gpu"),
            &[],
            big_and_tainted,
            "tolerate the taint gpu:NoSchedule, and meet node affinity: disk=ssd, and ask for 1 less cpu \
             (more than the node has)",
        ),
    ] {
        assert_eq!(advice(of_node.clone(), others, spec.clone()), says, "{of_node} {spec}");
    }
}

#[test]
fn a_node_that_is_drained_is_not_advised() {
    let mut spec = asks("1");
    spec["nodeName"] = json!("n1");
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": "n1"});
    let found = simulated(&[node("n1"), node("n2"), pod("p", spec)], &["--drain", "n1"]);
    assert_eq!(found["unplaced"][0]["remedy"]["node"], "n2", "{found}");
}
