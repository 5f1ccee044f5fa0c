//! Defaults and admission of objects that no API server has seen.

use serde_json::{Value, json};

use super::*;
use crate::simulate::dump::Dump;
use crate::simulate::load::load;

fn pod(metadata: Value, spec: Value) -> Pod {
    let mut all = json!({"name": "p", "namespace": "d"});
    all.as_object_mut().expect("an object").extend(metadata.as_object().expect("one").clone());
    serde_json::from_value(json!({"metadata": all, "spec": spec})).expect("a pod")
}

/// The specification with its defaults, and the fields that were assumed.
fn given(metadata: Value, spec: Value) -> (Value, Vec<String>) {
    let (mut pod, mut assumed) = (pod(metadata, spec), Assumed::default());
    of_pod(&mut pod, &mut assumed);
    let once = pod.clone();
    of_pod(&mut pod, &mut Assumed::default());
    assert_eq!(pod, once, "defaults that are given again change nothing");
    let fields = assumed.list().into_iter().map(|one| one.field).collect();
    (serde_json::to_value(pod.spec).expect("JSON"), fields)
}

#[test]
fn limits_are_requests_where_there_are_none() {
    let limits = json!({"limits": {"cpu": "2", "nvidia.com/gpu": "1"}, "requests": {"cpu": "1"}});
    let (spec, fields) = given(
        json!({}),
        json!({"containers": [{"name": "c", "resources": limits}],
            "initContainers": [{"name": "i", "resources": {"limits": {"memory": "1Gi"}}}]}),
    );
    let requests = |path: &str| spec.pointer(path).expect(path)["resources"]["requests"].clone();
    assert_eq!(requests("/containers/0"), json!({"cpu": "1", "nvidia.com/gpu": "1"}));
    assert_eq!(requests("/initContainers/0"), json!({"memory": "1Gi"}));
    assert_eq!(fields, [REQUESTS]);
    let (_, fields) = given(json!({}), json!({"containers": [{"name": "c"}]}));
    assert!(fields.is_empty());
}

#[test]
fn pod_level_requests_default_from_containers_and_limits() {
    let cpu =
        |cpu: &str| json!({"name": format!("c{cpu}"), "resources": {"requests": {"cpu": cpu}}});
    let (spec, fields) = given(
        json!({}),
        json!({"containers": [cpu("1"), cpu("500m")],
            "resources": {"limits": {"cpu": "4", "memory": "1Gi"}}}),
    );
    assert_eq!(spec["resources"]["requests"], json!({"cpu": "1500m", "memory": "1Gi"}));
    assert_eq!(fields, ["spec.resources.requests"]);
    let huge = json!({"name": "c", "resources": {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}}});
    let (spec, _) =
        given(json!({}), json!({"containers": [huge], "resources": {"limits": {"cpu": "4"}}}));
    assert_eq!(spec["resources"]["limits"]["hugepages-2Mi"], "4Mi");
    assert_eq!(spec["resources"]["requests"]["hugepages-2Mi"], "4Mi");
}

#[test]
fn ports_of_the_hosts_network_are_ports_of_the_host() {
    let containers = json!([{"name": "c", "ports": [{"containerPort": 80},
        {"containerPort": 81, "hostPort": 81, "protocol": ""}]}]);
    let ports = |is_host: bool| {
        let spec = json!({"hostNetwork": is_host, "containers": containers});
        let (spec, _) = given(json!({}), spec);
        let ports = spec["containers"][0]["ports"].as_array().expect("ports").clone();
        let of = |port: &Value| (port["hostPort"].as_i64(), port["protocol"].clone());
        (of(&ports[0]), of(&ports[1]))
    };
    assert_eq!(ports(true), ((Some(80), json!("TCP")), (Some(81), json!("TCP"))));
    assert_eq!(ports(false), ((None, json!("TCP")), (Some(81), json!("TCP"))));
}

#[test]
fn label_keys_become_requirements_of_new_pods_alone() {
    let term = json!({"topologyKey": "z", "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["hash", "none"], "mismatchLabelKeys": ["tenant"]});
    let spec = json!({"containers": [{"name": "c"}],
        "affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term],
            "preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 1, "podAffinityTerm": term}]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "labelSelector": {},
            "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["hash"]}]});
    let labels = json!({"app": "web", "hash": "1", "tenant": "a"});
    let (merged, fields) = given(json!({"labels": labels}), spec.clone());
    let expressions = json!([{"key": "hash", "operator": "In", "values": ["1"]},
        {"key": "tenant", "operator": "NotIn", "values": ["a"]}]);
    let anti = &merged["affinity"]["podAntiAffinity"];
    let required = &anti["requiredDuringSchedulingIgnoredDuringExecution"][0];
    let preferred = &anti["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
    assert_eq!(required["labelSelector"]["matchExpressions"], expressions);
    assert_eq!(preferred["labelSelector"]["matchExpressions"], expressions);
    let spread = &merged["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"];
    assert_eq!(*spread, json!([expressions[0]]));
    assert_eq!(fields, ["labelSelector"]);
    let (kept, fields) = given(json!({"labels": labels, "resourceVersion": "1"}), spec.clone());
    assert_eq!((kept["affinity"].clone(), fields.len()), (spec["affinity"].clone(), 0));
}

#[test]
fn nodes_namespaces_and_controllers_have_their_defaults() {
    let read = json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}});
    let mut node: Node = serde_json::from_value(read).expect("a node");
    of_node(&mut node);
    let status = node.status.expect("a status");
    assert_eq!(status.allocatable, status.capacity);
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("shop".to_owned());
    of_namespace(&mut namespace);
    let labels = namespace.metadata.labels.expect("labels");
    assert_eq!(labels["kubernetes.io/metadata.name"], "shop");
    let read = json!({"metadata": {"name": "r"}, "spec": {"template":
        {"metadata": {"labels": {"a": "b"}}}}});
    let mut controller: ReplicationController = serde_json::from_value(read).expect("one");
    of_controller(&mut controller);
    let selector = controller.spec.and_then(|spec| spec.selector).expect("a selector");
    assert_eq!(selector["a"], "b");
}

/// Admits a pod `p`: returns it with the assumptions, or the field and the message of its
/// rejection.
fn admitted(
    spec: Value,
    metadata: Value,
    others: &[Value],
) -> Result<(Value, Vec<String>), String> {
    let pod = serde_json::to_value(pod(metadata, spec)).expect("JSON");
    let mut text = pod.to_string();
    others.iter().for_each(|other| text.push_str(&other.to_string()));
    let mut dump = Dump::default();
    load("f", text.as_bytes(), &mut dump).expect("a dump");
    admission::admit(&mut dump).map_err(|refused| {
        assert_eq!((&*refused.place, &*refused.pod), ("f:1:1", "d/p"));
        format!("{}: {}", refused.field, refused.problem)
    })?;
    let spec = serde_json::to_value(&dump.pods[0].spec).expect("JSON");
    Ok((spec, dump.assumed.list().into_iter().map(|one| one.field).collect()))
}

fn runtime_class(fields: Value) -> Value {
    let mut all = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": "vm"}, "handler": "vm"});
    all.as_object_mut().expect("an object").extend(fields.as_object().expect("one").clone());
    all
}

fn limit_range(limits: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": "d"}, "spec": {"limits": limits}})
}

#[test]
fn a_runtime_class_gives_overhead_and_scheduling() {
    let class = runtime_class(json!({"overhead": {"podFixed": {"cpu": "500m"}},
        "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm",
            "operator": "Exists"}]}}));
    let spec = |more: Value| {
        let mut all = json!({"runtimeClassName": "vm", "containers": [{"name": "c"}]});
        all.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        all
    };
    let (got, fields) =
        admitted(spec(json!({})), json!({}), std::slice::from_ref(&class)).expect("taken");
    assert_eq!(got["overhead"], json!({"cpu": "500m"}));
    assert_eq!(got["nodeSelector"], json!({"vm": "yes"}));
    let keys: Vec<&Value> =
        got["tolerations"].as_array().expect("all").iter().map(|one| &one["key"]).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "vm"]);
    let all = ["spec.nodeSelector", "spec.overhead", "spec.priority", "spec.tolerations"];
    assert!(all.iter().all(|field| fields.iter().any(|one| one == field)), "{fields:?}");
    for (more, says) in [
        (
            json!({"overhead": {"cpu": "1"}}),
            "spec.overhead: must be the overhead that RuntimeClass vm",
        ),
        (
            json!({"nodeSelector": {"vm": "no"}}),
            "spec.nodeSelector: vm is \"no\", but RuntimeClass vm",
        ),
        (
            json!({"runtimeClassName": "", "overhead": {"cpu": "1"}}),
            "spec.overhead: must not be set",
        ),
    ] {
        let got = admitted(spec(more.clone()), json!({}), std::slice::from_ref(&class));
        assert!(got.as_ref().is_err_and(|said| said.starts_with(says)), "{more}: {got:?}");
        // A stored or running pod is never rejected.
        let stored = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
        admitted(spec(more.clone()), stored, std::slice::from_ref(&class)).expect("stored");
        let mut runs = more.clone();
        runs["nodeName"] = json!("n");
        admitted(spec(runs), json!({}), std::slice::from_ref(&class)).expect("runs");
    }
    let equal = spec(json!({"overhead": {"cpu": "0.5"}}));
    admitted(equal, json!({}), &[class]).expect("the same amount in another notation");
    let (got, fields) = admitted(spec(json!({})), json!({}), &[]).expect("not in the dump");
    assert!(got["overhead"].is_null() && fields.iter().any(|one| one == "spec.overhead"));
}

#[test]
fn limit_range_sets_defaults_and_rejects_values_outside_its_bounds() {
    let pod = |resources: Value| json!({"containers": [{"name": "c", "resources": resources}]});
    let range =
        limit_range(json!([{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "100m"},
        "defaultRequest": {"memory": "64Mi"}, "maxLimitRequestRatio": {"cpu": "4"}},
        {"type": "Pod", "max": {"cpu": "3"}}]));
    let (got, fields) =
        admitted(pod(json!({})), json!({}), std::slice::from_ref(&range)).expect("taken");
    let resources = &got["containers"][0]["resources"];
    assert_eq!(resources["limits"], json!({"cpu": "2"}));
    assert_eq!(resources["requests"], json!({"cpu": "2", "memory": "64Mi"}));
    assert!(fields.iter().any(|one| one == "spec.containers[].resources"));
    let of = |cpu: [&str; 2]| json!({"requests": {"cpu": cpu[0]}, "limits": {"cpu": cpu[1]}});
    for (resources, says) in [
        (of(["1", "3"]), "maximum cpu usage per Container is 2, but limit is 3 (LimitRange l)"),
        (of(["50m", "50m"]), "minimum cpu usage per Container is 100m, but request is 50m"),
        (
            of(["100m", "1"]),
            "cpu max limit to request ratio per Container is 4, but provided ratio",
        ),
    ] {
        let got = admitted(pod(resources), json!({}), std::slice::from_ref(&range));
        let start = format!("spec.containers[0].resources: {says}");
        assert!(got.as_ref().is_err_and(|said| said.starts_with(&start)), "{got:?}");
    }
    let two = json!({"containers": [{"name": "a", "resources": of(["2", "2"])},
        {"name": "b", "resources": of(["2", "2"])}]});
    let got = admitted(two, json!({}), std::slice::from_ref(&range));
    let says = "spec.containers: maximum cpu usage per Pod is 3, but limit is 4 (LimitRange l)";
    assert_eq!(got.map(drop), Err(says.to_owned()));
    let stored = json!({"resourceVersion": "1"});
    let (got, _) = admitted(pod(json!({})), stored, &[range]).expect("stored");
    assert!(got["containers"][0]["resources"]["limits"].is_null());
}

#[test]
fn tolerations_of_a_pod_stand_in_for_the_default_ones() {
    let count = |tolerations: Value| {
        let spec = json!({"containers": [{"name": "c"}], "tolerations": tolerations});
        let (got, _) = admitted(spec, json!({}), &[]).expect("taken");
        got["tolerations"].as_array().expect("all").len()
    };
    assert_eq!(count(json!([])), 2);
    assert_eq!(count(json!([{"operator": "Exists"}])), 1);
    let own = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
        "effect": "NoExecute", "tolerationSeconds": 5}]);
    assert_eq!(count(own), 2);
    assert_eq!(count(json!([{"key": "a", "operator": "Exists"}])), 3);
}
