//! Each rule's message, as users know it from the API server.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::pod::defaults;

/// Violations of a pod with that spec, with its name and defaults set.
fn violations(spec: Value) -> Vec<String> {
    let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
    violations_of(pod)
}

fn violations_of(pod: Value) -> Vec<String> {
    let mut pod: Pod = serde_json::from_value(pod).expect("a pod");
    defaults::apply(&mut pod);
    super::pod(&pod).iter().map(ToString::to_string).collect()
}

/// A spec with one container that has these fields too.
fn with(fields: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    let own = container.as_object_mut().expect("an object");
    own.extend(fields.as_object().expect("an object").clone());
    json!({"containers": [container]})
}

fn volumes(volumes: Value) -> Value {
    json!({"containers": [{"name": "c", "image": "i"}], "volumes": volumes})
}

fn check(cases: Vec<(Value, &[&str])>) {
    for (spec, want) in cases {
        assert_eq!(violations(spec.clone()), want, "{spec}");
    }
}

#[test]
fn a_usual_pod_is_valid() {
    check(vec![
        (with(json!({})), &[]),
        (
            json!({
                "hostNetwork": true, "priorityClassName": "system-node-critical",
                "initContainers": [
                    {"name": "i", "image": "i"},
                    {"name": "s", "image": "i", "restartPolicy": "Always",
                     "startupProbe": {"httpGet": {"port": 80}}}],
                "containers": [{
                    "name": "c", "image": "host:5000/i:1@sha256:0",
                    "ports": [{"containerPort": 80, "name": "http"}],
                    "env": [{"name": "a.b-c", "value": "x"},
                            {"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                            {"name": "R", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
                    "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": 1, "memory": "1Gi"}},
                    "livenessProbe": {"exec": {"command": ["true"]}},
                    "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                    "volumeMounts": [{"name": "h", "mountPath": "/h", "subPath": "a/b"}]}],
                "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "h", "hostPath": {"path": "/tmp", "type": "Directory"}}]
            }),
            &[],
        ),
    ]);
}

#[test]
fn names_images_and_policies() {
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
                 '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
                 '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    check(vec![
        (json!({"containers": []}), &["spec.containers: Required value"]),
        (with(json!({"image": ""})), &["spec.containers[0].image: Required value"]),
        (
            with(json!({"image": " i"})),
            &["spec.containers[0].image: Invalid value: \" i\": must not have leading or \
                    trailing whitespace"],
        ),
        (
            with(json!({"name": "A"})),
            &[&format!("spec.containers[0].name: Invalid value: \"A\": {label}")],
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]}),
            &["spec.containers[1].name: Duplicate value: \"c\""],
        ),
        (
            with(json!({"imagePullPolicy": "Sometimes"})),
            &["spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": \
                    supported values: \"Always\", \"IfNotPresent\", \"Never\""],
        ),
        (
            json!({"restartPolicy": "always", "containers": [{"name": "c", "image": "i"}]}),
            &["spec.restartPolicy: Unsupported value: \"always\": supported values: \
                    \"Always\", \"OnFailure\", \"Never\""],
        ),
    ]);
    let bad = violations_of(json!({"metadata": {"name": "Web_1", "namespace": "ns"},
                                   "spec": with(json!({}))}));
    assert!(bad[0].starts_with(
        "metadata.name: Invalid value: \"Web_1\": a lowercase RFC 1123 \
                subdomain"
    ));
}

#[test]
fn ports() {
    let ports = |ports: Value| with(json!({ "ports": ports }));
    check(vec![
        (
            ports(json!([{"containerPort": 70000}])),
            &["spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be \
                    between 1 and 65535, inclusive"],
        ),
        (
            ports(json!([{"containerPort": 0}])),
            &["spec.containers[0].ports[0].containerPort: Required value"],
        ),
        (
            ports(json!([{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}])),
            &["spec.containers[0].ports[1].name: Duplicate value: \"a\""],
        ),
        (
            ports(json!([{"containerPort": 1, "name": "a--b"}])),
            &["spec.containers[0].ports[0].name: Invalid value: \"a--b\": must not contain \
                    consecutive hyphens"],
        ),
        (
            ports(json!([{"containerPort": 1, "protocol": "ICMP"}])),
            &["spec.containers[0].ports[0].protocol: Unsupported value: \"ICMP\": \
                    supported values: \"SCTP\", \"TCP\", \"UDP\""],
        ),
        (
            ports(
                json!([{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}]),
            ),
            &["spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//5\""],
        ),
        (
            json!({"hostNetwork": true, "containers": [
                {"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 81}]}]}),
            &["spec.containers[0].ports[0].containerPort: Invalid value: 80: must match \
                    `hostPort` when `hostNetwork` is true"],
        ),
    ]);
}

#[test]
fn environment() {
    let env = |variable: Value| with(json!({ "env": [variable] }));
    check(vec![
        (
            env(json!({"name": "", "value": "x"})),
            &["spec.containers[0].env[0].name: Required value"],
        ),
        (
            env(json!({"name": "a=b"})),
            &["spec.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment \
                    variable name must consist only of printable ASCII characters other than \
                    '='"],
        ),
        (
            env(
                json!({"name": "E", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
            ),
            &["spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be \
                    specified when `value` is not empty"],
        ),
        (
            env(json!({"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}})),
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \
                    \"metadata.labels\": supported values: \"metadata.name\", \
                    \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \
                    \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \
                    \"status.podIP\", \"status.podIPs\""],
        ),
        (
            env(json!({"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}})),
            &["spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported \
                    value: \"cpu\": supported values: \"limits.cpu\", \
                    \"limits.ephemeral-storage\", \"limits.memory\", \"requests.cpu\", \
                    \"requests.ephemeral-storage\", \"requests.memory\""],
        ),
    ]);
}

#[test]
fn volumes_and_mounts() {
    let mounts = |mount: Value| with(json!({ "volumeMounts": [mount] }));
    check(vec![
        (
            mounts(json!({"name": "v", "mountPath": "/v"})),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""],
        ),
        (
            volumes(json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}])),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            volumes(json!([{"name": "v"}, {"name": "v"}])),
            &["spec.volumes[1].name: Duplicate value: \"v\""],
        ),
        (
            volumes(json!([{"name": "v", "hostPath": {"path": "/a/../b"}}])),
            &["spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain \
                '..'"],
        ),
        (
            volumes(json!([{"name": "v", "hostPath": {"path": "/a", "type": "Dir"}}])),
            &["spec.volumes[0].hostPath.type: Unsupported value: \"Dir\": supported \
                    values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \
                    \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\""],
        ),
        (
            volumes(json!([{"name": "v", "downwardAPI": {"items": [
                    {"path": "/a", "fieldRef": {"fieldPath": "metadata.name"}}]}}])),
            &["spec.volumes[0].downwardAPI.items[0].path: Invalid value: \"/a\": must be a \
                    relative path"],
        ),
    ]);
    let mounted = json!({"volumes": [{"name": "v"}], "containers": [{"name": "c", "image": "i",
        "volumeMounts": [
            {"name": "v", "mountPath": "/v", "subPath": "../x"},
            {"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"},
            {"name": "v", "mountPath": "/w", "recursiveReadOnly": "Enabled"}]}]});
    check(vec![(
        mounted,
        &[
            "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"../x\": must not \
                contain '..'",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/v\": must be \
                unique",
            "spec.containers[0].volumeMounts[1].mountPropagation: Forbidden: Bidirectional \
                mount propagation is available only to privileged containers",
            "spec.containers[0].volumeMounts[2].recursiveReadOnly: Forbidden: may only be \
                specified when readOnly is true",
        ],
    )]);
}

#[test]
fn probes_and_hooks() {
    check(vec![
        (
            with(json!({"livenessProbe": {}})),
            &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        ),
        (
            with(json!({"livenessProbe": {"exec": {"command": ["x"]}, "tcpSocket": {"port": 1}}})),
            &["spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more \
                    than 1 handler type"],
        ),
        (
            with(
                json!({"livenessProbe": {"exec": {"command": ["x"]}, "successThreshold": 2, "periodSeconds": -1}}),
            ),
            &[
                "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be \
                    greater than or equal to 0",
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must \
                    be 1",
            ],
        ),
        (
            with(
                json!({"readinessProbe": {"tcpSocket": {"port": 0}, "terminationGracePeriodSeconds": 1}}),
            ),
            &[
                "spec.containers[0].readinessProbe.tcpSocket.port: Invalid value: 0: must be \
                    between 1 and 65535, inclusive",
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid \
                    value: 1: must not be set for readinessProbes",
            ],
        ),
        (
            with(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}})),
            &["spec.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: 31: must \
                    be non-negative and less than terminationGracePeriodSeconds (30)"],
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}], "initContainers": [
                {"name": "i", "image": "i", "lifecycle": {}, "readinessProbe": {"tcpSocket": {"port": 1}}}]}),
            &[
                "spec.initContainers[0].lifecycle: Forbidden: may not be set for init \
                    containers without restartPolicy=Always",
                "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init \
                    containers without restartPolicy=Always",
            ],
        ),
    ]);
}

#[test]
fn amounts_of_resources() {
    let resources = |own: Value| with(json!({ "resources": own }));
    check(vec![
        (
            resources(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
            &["spec.containers[0].resources.requests: Invalid value: \"2\": must be less \
                    than or equal to cpu limit of 1"],
        ),
        (
            resources(json!({"requests": {"x.io/gpu": "1"}})),
            &["spec.containers[0].resources.requests[x.io/gpu]: Required value: Limit must \
                    be set for non overcommitable resources"],
        ),
        (
            resources(json!({"limits": {"x.io/gpu": "500m"}})),
            &[
                "spec.containers[0].resources.limits[x.io/gpu]: Invalid value: \"500m\": \
                    must be an integer",
                "spec.containers[0].resources.requests[x.io/gpu]: Invalid value: \"500m\": \
                    must be an integer",
            ],
        ),
        (
            resources(json!({"requests": {"memory": "-1"}})),
            &["spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must \
                    be greater than or equal to 0"],
        ),
        (
            resources(json!({"limits": {"disk": "1"}})),
            &[
                "spec.containers[0].resources.limits[disk]: Invalid value: \"disk\": must be \
                    a standard resource for containers",
                "spec.containers[0].resources.requests[disk]: Invalid value: \"disk\": must \
                    be a standard resource for containers",
            ],
        ),
    ]);
}

#[test]
fn security_dns_and_tolerations() {
    let spec = |field: &str, value: Value| {
        let mut spec = with(json!({}));
        spec[field] = value;
        spec
    };
    check(vec![
        (
            with(json!({"securityContext": {"runAsUser": -1}})),
            &["spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be \
                    between 0 and 2147483647, inclusive"],
        ),
        (
            with(
                json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}}),
            ),
            &["spec.containers[0].securityContext: Invalid value: cannot set \
                    `allowPrivilegeEscalation` to false and `privileged` to true"],
        ),
        (
            spec("securityContext", json!({"seccompProfile": {"type": "Localhost"}})),
            &["spec.securityContext.seccompProfile.localhostProfile: Required value: must \
                    be set when seccomp type is Localhost"],
        ),
        (
            spec("dnsPolicy", json!("None")),
            &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is \
                None"],
        ),
        (
            spec("dnsConfig", json!({"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "x"]})),
            &[
                "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\", \"1.1.1.2\", \
                    \"1.1.1.3\", \"x\"]: must not have more than 3 nameservers",
                "spec.dnsConfig.nameservers[3]: Invalid value: \"x\": must be a valid IP \
                    address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        ),
        (
            spec(
                "tolerations",
                json!([{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 1}]),
            ),
            &["spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be \
                    'NoExecute' when `tolerationSeconds` is set"],
        ),
        (
            spec("tolerations", json!([{"operator": "Equal", "value": "x"}])),
            &["spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be \
                    Exists when `key` is empty, which means \"match all values and all \
                    keys\""],
        ),
        (
            spec("activeDeadlineSeconds", json!(0)),
            &["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and \
                    2147483647, inclusive"],
        ),
        (
            spec("ephemeralContainers", json!([{"name": "e", "image": "i"}])),
            &["spec.ephemeralContainers: Forbidden: cannot be set on create"],
        ),
    ]);
}

#[test]
fn all_violations_are_reported_together() {
    let spec = json!({"containers": [{"name": "", "image": ""}, {"name": "B", "image": "i"}],
                      "dnsPolicy": "x", "activeDeadlineSeconds": -1});
    assert_eq!(violations(spec).len(), 5);
}

#[test]
fn fields_that_the_kubelet_does_not_use_are_validated_too() {
    let spec = |own: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let fields = own.as_object().expect("an object").clone();
        spec.as_object_mut().expect("an object").extend(fields);
        spec
    };
    check(vec![
        (spec(json!({"preemptionPolicy": ""})), &["spec.preemptionPolicy: Required value"]),
        (
            spec(json!({"os": {"name": "plan9"}})),
            &["spec.os.name: Unsupported value: \"plan9\": supported values: \"linux\", \
               \"windows\""],
        ),
        (
            spec(json!({"nodeName": "n", "schedulingGates": [{"name": "a"}]})),
            &[
                "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
            ],
        ),
        (
            with(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": ""}]})),
            &["spec.containers[0].resizePolicy: Required value"],
        ),
        (
            volumes(json!([{"name": "v", "downwardAPI": {"items": [
                {"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}])),
            &["spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: \
               \"spec.nodeName\": supported values: \"metadata.annotations\", \
               \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \
               \"metadata.uid\""],
        ),
    ]);
    check(vec![
        (
            with(json!({"resources": {"limits": {"cpu": "1", "hugepages-2Mi": "3Mi"}}})),
            &[
                "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is \
                 not positive integer multiple of hugepages-2Mi",
                "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi \
                 is not positive integer multiple of hugepages-2Mi",
            ],
        ),
        (
            with(json!({"env": [{"name": "E", "valueFrom": {"fieldRef": {
                "apiVersion": "v2", "fieldPath": "metadata.name"}}}]})),
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \
               \"metadata.name\": error converting fieldPath: unsupported pod version: v2"],
        ),
    ]);
    let divided = |divisor: &str| {
        with(json!({"env": [{"name": "E", "valueFrom": {"resourceFieldRef": {
            "resource": "limits.cpu", "divisor": divisor}}}]}))
    };
    let found = ["0", "1", "1m", "2"].map(|divisor| violations(divided(divisor)).len());
    assert_eq!(found, [0, 0, 0, 1]);
    let searches = json!({"containers": [{"name": "c", "image": "i"}],
        "dnsConfig": {"searches": [".", "_a.b_c", "a.b.", "-0", "a_", ""]}});
    assert_eq!(violations(searches).len(), 3);
    let owned = violations_of(json!({
        "metadata": {"name": "p", "namespace": "ns", "finalizers": ["x"], "generation": -1,
                     "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": ""}]},
        "spec": spec(json!({}))
    }));
    assert_eq!(owned.len(), 3, "{owned:?}");
}
