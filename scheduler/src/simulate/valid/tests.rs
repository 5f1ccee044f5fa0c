//! Objects that the API server rejects, a table for each kind.

use serde_json::{Value, json};

use super::*;

fn messages(flaws: &Flaws) -> Vec<String> {
    flaws.found.iter().map(|flaw| format!("{}: {}", flaw.field, flaw.problem)).collect()
}

fn of_pod(spec: Value) -> Vec<String> {
    let mut all = json!({"containers": [{"name": "c"}]});
    let fields = all.as_object_mut().expect("an object");
    fields.extend(spec.as_object().expect("an object").clone());
    let read: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": all})).expect("a pod");
    messages(&pod(&read))
}

/// Checks that each specification has exactly these messages, given by their beginnings.
fn check(rows: &[(Value, &[&str])]) {
    for (spec, wanted) in rows {
        let found = of_pod(spec.clone());
        let is_same = found.len() == wanted.len();
        let is_same = is_same && found.iter().zip(*wanted).all(|(a, b)| a.starts_with(b));
        assert!(is_same, "{spec}: {found:#?}");
    }
}

fn container(fields: Value) -> Value {
    let mut all = json!({"name": "c"});
    all.as_object_mut().expect("an object").extend(fields.as_object().expect("one").clone());
    json!({"containers": [all]})
}

#[test]
fn containers_have_names_and_policies_of_the_api() {
    check(&[
        (json!({}), &[]),
        (json!({"containers": []}), &["spec.containers: Required value"]),
        (json!({"containers": [{"name": ""}]}), &["spec.containers[0].name: Required value"]),
        (
            container(json!({"name": "C"})),
            &["spec.containers[0].name: Invalid value: \"C\": must be"],
        ),
        (
            json!({"initContainers": [{"name": "c", "restartPolicy": "always"}]}),
            &[
                "spec.initContainers[0].name: Duplicate value: \"c\"",
                "spec.initContainers[0].restartPolicy: Unsupported value: \"always\": supported \
                 values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            json!({"restartPolicy": "always", "dnsPolicy": "default", "preemptionPolicy": "never"}),
            &[
                "spec.restartPolicy: Unsupported value: \"always\"",
                "spec.dnsPolicy: Unsupported value: \"default\"",
                "spec.preemptionPolicy: Unsupported value: \"never\"",
            ],
        ),
        (
            container(json!({"imagePullPolicy": "always"})),
            &["spec.containers[0].imagePullPolicy: "],
        ),
        (
            json!({"nodeSelector": {"a b": "c", "d": "-"}, "nodeName": "N1"}),
            &[
                "spec.nodeSelector: Invalid value: \"a b\"",
                "spec.nodeSelector[d]: Invalid value: \"-\"",
                "spec.nodeName: Invalid value: \"N1\"",
            ],
        ),
        (
            json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]}),
            &["spec.schedulingGates[1]: Duplicate value: \"a\""],
        ),
        (
            json!({"resourceClaims": [{"name": "a", "resourceClaimName": "x"}, {"name": "b"}]}),
            &["spec.resourceClaims[1]: Invalid value: \"b\": must specify one of"],
        ),
    ]);
}

#[test]
fn ports_have_ranges_and_protocols_and_are_not_repeated() {
    let ports = |ports: Value| container(json!({"ports": ports}));
    let path = "spec.containers[0].ports";
    let says = |rest: &str| format!("{path}{rest}");
    check(&[
        (ports(json!([{"containerPort": 1, "hostPort": 65535, "protocol": "SCTP"}])), &[]),
        (
            ports(json!([{"containerPort": 0}, {"containerPort": 65536, "hostPort": -1}])),
            &[
                &says("[0].containerPort: Required value"),
                &says(
                    "[1].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
                ),
                &says("[1].hostPort: Invalid value: -1: must be between"),
            ],
        ),
        (
            ports(json!([{"containerPort": 1, "protocol": "tcp"}])),
            &[&says(
                "[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\"",
            )],
        ),
        (
            ports(json!([{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"},
                {"containerPort": 3, "name": "Web"}])),
            &[&says("[1].name: Duplicate value: \"a\""), &says("[2].name: Invalid value: \"Web\"")],
        ),
        (
            ports(
                json!([{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80},
                {"containerPort": 2, "hostPort": 80, "protocol": "UDP"}]),
            ),
            &[&says("[1].hostPort: Duplicate value: \"TCP//80\"")],
        ),
        (
            json!({"hostNetwork": true, "containers": [{"name": "c", "ports":
                [{"containerPort": 1, "hostPort": 2}]}]}),
            &[&says("[0].hostPort: Invalid value: 2: must match `containerPort`")],
        ),
    ]);
}

#[test]
fn amounts_are_quantities_that_a_container_may_ask_for() {
    let of = |requests: Value, limits: Value| {
        container(json!({"resources": {"requests": requests, "limits": limits}}))
    };
    let requests = |rest: &str| format!("spec.containers[0].resources.requests{rest}");
    let limits = |rest: &str| format!("spec.containers[0].resources.limits{rest}");
    let gpu = "acme.example/gpu";
    check(&[
        (of(json!({"cpu": "1", gpu: "2"}), json!({"cpu": "2", gpu: "2"})), &[]),
        (
            of(json!({"cpu": "-3"}), json!({"memory": "lots"})),
            &[
                &limits("[memory]: Invalid value: \"lots\": is not a quantity"),
                &requests("[cpu]: Invalid value: \"-3\": must be greater than or equal to 0"),
            ],
        ),
        (
            of(json!({gpu: "500m"}), json!({gpu: "500m"})),
            &[
                &limits("[acme.example/gpu]: Invalid value: \"500m\": must be an integer"),
                &requests("[acme.example/gpu]: Invalid value: \"500m\": must be an integer"),
            ],
        ),
        (of(json!({gpu: "1"}), json!({})), &[&limits(": Required value: a limit of acme")]),
        (
            of(json!({gpu: "1"}), json!({gpu: "2"})),
            &[&requests(
                "[acme.example/gpu]: Invalid value: \"1\": must be equal to the limit of 2",
            )],
        ),
        (
            of(json!({"cpu": "2"}), json!({"cpu": "1"})),
            &[&requests(
                "[cpu]: Invalid value: \"2\": must be less than or equal to the limit of 1",
            )],
        ),
        (
            of(json!({"cpus": "1"}), json!({})),
            &[&requests("[cpus]: Invalid value: \"cpus\": must be")],
        ),
        (of(json!({"pods": "1"}), json!({})), &[&requests("[pods]: Invalid value: \"pods\"")]),
        (
            of(json!({"requests.a/b": "1"}), json!({"requests.a/b": "1"})),
            &[&limits("[requests.a/b]: Invalid value"), &requests("[requests.a/b]: Invalid value")],
        ),
        (
            of(json!({"hugepages-2Mi": "2Mi"}), json!({"hugepages-2Mi": "2Mi"})),
            &["spec.containers[0].resources: Forbidden: huge pages require cpu or memory"],
        ),
        (
            json!({"overhead": {"memory": "-1Gi"}}),
            &["spec.overhead[memory]: Invalid value: \"-1Gi\""],
        ),
        (
            json!({"resources": {"requests": {"ephemeral-storage": "1"}}}),
            &["spec.resources.requests[ephemeral-storage]: Unsupported value"],
        ),
        (
            json!({"resources": {"requests": {"cpu": "1"}}, "containers":
                [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}),
            &[
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to \
               the containers' requests of 2",
            ],
        ),
    ]);
}

#[test]
fn tolerations_with_inconsistent_operator_effect_or_value_are_rejected() {
    let of = |toleration: Value| json!({"tolerations": [toleration]});
    check(&[
        (of(json!({"operator": "Exists"})), &[]),
        (of(json!({"key": "a", "operator": "Gt", "value": "5"})), &[]),
        (
            of(json!({"key": "a", "operator": "exists"})),
            &["spec.tolerations[0].operator: Unsupported value: \"exists\""],
        ),
        (
            of(json!({"value": "a"})),
            &["spec.tolerations[0].operator: Invalid value: \"\": operator"],
        ),
        (
            of(json!({"key": "a", "operator": "Exists", "value": "b"})),
            &["spec.tolerations[0].operator: Invalid value: \"b\": value must be empty"],
        ),
        (of(json!({"key": "a", "operator": "Lt", "value": "b"})), &["spec.tolerations[0].value: "]),
        (
            of(json!({"key": "a", "effect": "noschedule"})),
            &["spec.tolerations[0].effect: Unsupported"],
        ),
        (
            of(json!({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1})),
            &[
                "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute'",
            ],
        ),
        (of(json!({"key": "a b"})), &["spec.tolerations[0].key: Invalid value"]),
    ]);
}

#[test]
fn node_affinity_with_invalid_operator_values_or_weight_is_rejected() {
    let term =
        |operator: &str, values: Value| json!({"key": "a", "operator": operator, "values": values});
    let of_nodes = |terms: Value| {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    };
    let one = |term: Value| of_nodes(json!([{"matchExpressions": [term]}]));
    let field = |term: Value| of_nodes(json!([{"matchFields": [term]}]));
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution\
        .nodeSelectorTerms";
    let says = |rest: &str| format!("{path}{rest}");
    let expression = |rest: &str| says(&format!("[0].matchExpressions[0]{rest}"));
    check(&[
        (one(term("Gt", json!(["1"]))), &[]),
        (of_nodes(json!([])), &[&says(": Required value: must have at least one")]),
        (
            one(term("In", json!([]))),
            &[&expression(".values: Required value: must be specified when")],
        ),
        (
            one(term("Exists", json!(["1"]))),
            &[&expression(".values: Forbidden: may not be specified")],
        ),
        (one(term("Lt", json!(["1", "2"]))), &[&expression(".values: Required value: must be")]),
        (
            one(term("in", json!(["1"]))),
            &[&expression(
                ".operator: Unsupported value: \"in\": supported values: \"In\", \"NotIn\", \"Exists\", \
                 \"DoesNotExist\", \"Gt\", \"Lt\"",
            )],
        ),
        (one(term("In", json!(["a b"]))), &[&expression(".values[0]: Invalid value: \"a b\"")]),
        (
            field(json!({"key": "metadata.name", "operator": "In", "values": ["a", "b"]})),
            &[&says("[0].matchFields[0].values: Required value: must be only one value")],
        ),
        (
            field(json!({"key": "spec.x", "operator": "Gt", "values": ["1"]})),
            &[&says("[0].matchFields[0].operator: Unsupported"), &says("[0].matchFields[0].key: ")],
        ),
        (
            json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 0, "preference": {}}, {"weight": 101, "preference": {}}]}}}),
            &[
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: \
                 Invalid value: 0: must be in the range 1-100",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[1].weight: ",
            ],
        ),
    ]);
}

#[test]
fn terms_about_pods_have_keys_selectors_and_namespaces() {
    let against = |term: Value| {
        json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    };
    let says = |rest: &str| {
        format!(
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]{rest}"
        )
    };
    let selector = |operator: &str, values: Value| {
        json!({"topologyKey": "z", "labelSelector": {"matchExpressions":
            [{"key": "a", "operator": operator, "values": values}]}})
    };
    check(&[
        (against(json!({"topologyKey": "zone", "labelSelector": {}})), &[]),
        (against(json!({"topologyKey": ""})), &[&says(".topologyKey: Required value")]),
        (against(json!({"topologyKey": "a b"})), &[&says(".topologyKey: Invalid value")]),
        (
            against(selector("Gt", json!(["1"]))),
            &[&says(".labelSelector.matchExpressions[0].operator: Unsupported value: \"Gt\"")],
        ),
        (
            against(selector("NotIn", json!([]))),
            &[&says(".labelSelector.matchExpressions[0].values: Required value")],
        ),
        (
            against(json!({"topologyKey": "z", "namespaces": ["A"], "matchLabelKeys": ["a"]})),
            &[
                &says(".namespaces[0]: Invalid value"),
                &says(".matchLabelKeys: Forbidden: must not be"),
            ],
        ),
        (
            against(json!({"topologyKey": "z", "labelSelector": {}, "matchLabelKeys": ["a"],
                "mismatchLabelKeys": ["a"]})),
            &[&says(
                ".matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and mis",
            )],
        ),
        (
            json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 200, "podAffinityTerm": {"topologyKey": "z"}}]}}}),
            &[
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: ",
            ],
        ),
    ]);
}

#[test]
fn spreading_has_a_skew_domains_and_policies() {
    let of = |fields: Value| {
        let mut all =
            json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
        all.as_object_mut().expect("an object").extend(fields.as_object().expect("one").clone());
        json!({"topologySpreadConstraints": [all]})
    };
    let says = |rest: &str| format!("spec.topologySpreadConstraints[0].{rest}");
    check(&[
        (of(json!({"minDomains": 2})), &[]),
        (
            of(json!({"maxSkew": 0})),
            &[&says("maxSkew: Invalid value: 0: must be greater than zero")],
        ),
        (of(json!({"minDomains": 0})), &[&says("minDomains: Invalid value: 0: must be greater")]),
        (
            of(json!({"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"})),
            &[&says("minDomains: Invalid value: 2: can only be used if whenUnsatisfiable")],
        ),
        (
            of(json!({"whenUnsatisfiable": "Never"})),
            &[&says("whenUnsatisfiable: Unsupported value")],
        ),
        (
            of(json!({"nodeTaintsPolicy": "honor", "nodeAffinityPolicy": "ignore"})),
            &[
                &says(
                    "nodeAffinityPolicy: Unsupported value: \"ignore\": supported values: \"Honor\"",
                ),
                &says("nodeTaintsPolicy: Unsupported value: \"honor\""),
            ],
        ),
        (
            of(json!({"labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions":
                [{"key": "a", "operator": "In", "values": ["b"]}]}, "matchLabelKeys": ["a"]})),
            &[&says(
                "matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and label",
            )],
        ),
        (
            json!({"topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]}),
            &[&says("{topologyKey, whenUnsatisfiable}: Duplicate value: \"{z, DoNotSchedule}\"")],
        ),
    ]);
}

#[test]
fn stored_objects_with_values_that_were_valid_earlier_are_accepted() {
    let of = |metadata: Value| {
        let read: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": {
            "containers": [{"name": "c"}],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "z", "labelSelector": {"matchExpressions":
                    [{"key": "a", "operator": "In", "values": ["a b"]}]}}]}}}}))
        .expect("a pod");
        messages(&pod(&read)).len()
    };
    assert_eq!(of(json!({"name": "p"})), 1);
    assert_eq!(of(json!({"name": "p", "resourceVersion": "7"})), 0);
}

#[test]
fn nodes_have_taints_and_amounts_of_the_api() {
    let of_node = |value: Value| {
        let mut all = json!({"metadata": {"name": "n"}});
        all.as_object_mut().expect("an object").extend(value.as_object().expect("one").clone());
        messages(&node(&serde_json::from_value(all).expect("a node")))
    };
    let taints = |taints: Value| json!({"spec": {"taints": taints}});
    for (value, says) in [
        (taints(json!([{"key": "a", "effect": "NoExecute"}])), &[][..]),
        (
            taints(json!([{"key": "a", "effect": "noExecute"}, {"key": "a b", "effect": ""}])),
            &[
                "spec.taints[0].effect: Unsupported value",
                "spec.taints[1].key: Invalid value",
                "spec.taints[1].effect: Required value",
            ],
        ),
        (
            taints(
                json!([{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]),
            ),
            &["spec.taints[1]: Duplicate value: \"a:NoExecute\""],
        ),
        (
            json!({"status": {"allocatable": {"cpu": "4", "pods": "-1", "a.b/c": "1500m"}}}),
            &[
                "status.allocatable.a.b/c: Invalid value: \"1500m\": must be an integer",
                "status.allocatable.pods: Invalid value: \"-1\": must be greater",
            ],
        ),
        (
            json!({"metadata": {"name": "N", "labels": {"a": "b c"}}}),
            &["metadata.name", "metadata.labels[a]"],
        ),
    ] {
        let said = of_node(value.clone());
        let is_same =
            said.len() == says.len() && said.iter().zip(says).all(|(a, b)| a.starts_with(b));
        assert!(is_same, "{value}: {said:#?}");
    }
}

#[test]
fn budgets_and_classes_are_those_of_the_api() {
    let of_budget = |spec: Value| {
        let read = json!({"metadata": {"name": "b"}, "spec": spec});
        messages(&budget(&serde_json::from_value(read).expect("a budget")))
    };
    for (spec, says) in [
        (json!({"minAvailable": "50%"}), ""),
        (json!({"minAvailable": 1, "maxUnavailable": 1}), "spec: Forbidden: minAvailable and"),
        (json!({"minAvailable": -1}), "spec.minAvailable: Invalid value: -1"),
        (json!({"maxUnavailable": "half"}), "spec.maxUnavailable: Invalid value: \"half\""),
        (json!({"maxUnavailable": "101%"}), "spec.maxUnavailable: Invalid value: \"101%\""),
        (
            json!({"unhealthyPodEvictionPolicy": "x"}),
            "spec.unhealthyPodEvictionPolicy: Unsupported",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.selector.matchExpressions[0].values: Required value",
        ),
    ] {
        let said = of_budget(spec.clone()).join("\n");
        assert!(said.starts_with(says) && said.is_empty() == says.is_empty(), "{spec}: {said}");
    }
    let of_class = |name: &str, value: i32, policy: Option<&str>| {
        let read = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy});
        messages(&priority_class(&serde_json::from_value(read).expect("a class"))).join("\n")
    };
    assert_eq!(of_class("high", 1_000_000_000, None), "");
    assert!(of_class("high", 1_000_000_001, None).starts_with("value: Forbidden: maximum allowed"));
    assert_eq!(of_class("system-node-critical", 2_000_001_000, None), "");
    assert!(of_class("system-node-critical", 1, None).starts_with("value: Forbidden"));
    assert!(of_class("system-mine", 1, None).starts_with("metadata.name: Forbidden"));
    assert!(of_class("high", 1, Some("never")).starts_with("preemptionPolicy: Unsupported value"));
}
