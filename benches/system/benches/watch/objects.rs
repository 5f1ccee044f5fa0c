//! Pods and nodes as a busy cluster's API server writes them, with managed fields and statuses, and
//! the types that a scheduler would read them into.

use pintle_api_types::pruned_object;
use pintle_api_types::symbol::Symbol;
use pintle_api_types::symbol_map::SymbolMap;
use serde::Deserialize;
use serde_json::{Value, json};

/// Fields that a manager owns: a tree as deep as that of a deployment's pods.
fn managed(manager: &str, containers: &[&str]) -> Value {
    let own = json!({
        ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
        "f:env": {
            ".": {},
            "k:{\"name\":\"POD_NAME\"}": {
                ".": {}, "f:name": {}, "f:valueFrom": {".": {}, "f:fieldRef": {}},
            },
        },
        "f:livenessProbe": {
            ".": {}, "f:failureThreshold": {},
            "f:httpGet": {".": {}, "f:path": {}, "f:port": {}, "f:scheme": {}},
            "f:periodSeconds": {},
        },
        "f:resources": {
            ".": {}, "f:limits": {".": {}, "f:cpu": {}, "f:memory": {}},
            "f:requests": {".": {}, "f:cpu": {}, "f:memory": {}},
        },
        "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
        "f:volumeMounts": {
            ".": {},
            "k:{\"mountPath\":\"/etc/config\"}": {".": {}, "f:mountPath": {}, "f:name": {}},
        },
    });
    let each = containers.iter().map(|name| (format!("k:{{\"name\":\"{name}\"}}"), own.clone()));
    let each: serde_json::Map<_, _> = each.collect();
    json!({
        "manager": manager, "operation": "Update", "apiVersion": "v1",
        "time": "2026-03-04T05:06:07Z", "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {
                "f:generateName": {},
                "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}},
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"8b1f\"}": {}},
            },
            "f:spec": {
                "f:containers": each, "f:dnsPolicy": {}, "f:enableServiceLinks": {},
                "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {},
            },
        },
    })
}

fn uid(at: usize) -> String {
    format!("{:08x}-5c1b-4a7e-9d3f-{:012x}", at.wrapping_mul(0x9e37_79b9) as u32, at * 7919)
}

fn container(name: &str) -> Value {
    json!({
        "name": name, "image": format!("registry.example.com/team/{name}:v1.42.7"),
        "imagePullPolicy": "IfNotPresent", "args": ["--listen=:8080", "--log-level=info"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {
                "name": "POD_NAME",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
            },
            {"name": "GOMAXPROCS", "value": "2"},
        ],
        "resources": {
            "limits": {"cpu": "500m", "memory": "512Mi"},
            "requests": {"cpu": "250m", "memory": "256Mi"},
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
            "failureThreshold": 3,
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/config"},
            {
                "name": "kube-api-access-x7k2p", "readOnly": true,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": true,
        },
    })
}

fn container_status(name: &str, at: usize) -> Value {
    let image = format!("registry.example.com/team/{name}");
    json!({
        "name": name, "state": {"running": {"startedAt": "2026-03-04T05:06:09Z"}},
        "lastState": {}, "ready": true, "restartCount": 0, "image": format!("{image}:v1.42.7"),
        "imageID": format!("{image}@sha256:{:064x}", 77),
        "containerID": format!("containerd://{at:064x}"), "started": true,
        "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}],
    })
}

const CONTAINERS: [&str; 2] = ["server", "proxy"];

/// A pod of a deployment.
pub(crate) fn pod(at: usize) -> Value {
    json!({"metadata": pod_metadata(at), "spec": pod_spec(at), "status": pod_status(at)})
}

fn pod_metadata(at: usize) -> Value {
    let app = at / 20;
    json!({
        "name": format!("app-{app}-6d4cf56db9-{at:05}"),
        "generateName": format!("app-{app}-6d4cf56db9-"),
        "namespace": format!("team-{}", app % 40), "uid": uid(at),
        "resourceVersion": (900_000 + at).to_string(), "generation": 1,
        "creationTimestamp": "2026-03-04T05:06:07Z",
        "labels": {
            "app": format!("app-{app}"), "pod-template-hash": "6d4cf56db9", "tier": "backend",
        },
        "annotations": {
            "prometheus.io/scrape": "true", "prometheus.io/port": "8080",
            "checksum/config": format!("{:064x}", app),
        },
        "ownerReferences": [
            {
                "apiVersion": "apps/v1", "kind": "ReplicaSet",
                "name": format!("app-{app}-6d4cf56db9"), "uid": uid(app + 1_000_000),
                "controller": true, "blockOwnerDeletion": true,
            },
        ],
        "managedFields": [
            managed("kube-controller-manager", &CONTAINERS), managed("kubelet", &CONTAINERS),
        ],
    })
}

fn pod_spec(at: usize) -> Value {
    let (app, node) = (at / 20, at % 500);
    let tolerated = |key: &str| {
        json!({
            "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 300,
        })
    };
    let tolerations = ["not-ready", "unreachable"].map(tolerated);
    let containers = CONTAINERS.map(container);
    json!({
        "volumes": [
            {
                "name": "config",
                "configMap": {"name": format!("app-{app}"), "defaultMode": 420},
            },
            {
                "name": "kube-api-access-x7k2p",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {
                            "configMap": {
                                "name": "kube-root-ca.crt",
                                "items": [{"key": "ca.crt", "path": "ca.crt"}],
                            },
                        },
                    ],
                    "defaultMode": 420,
                },
            },
        ],
        "containers": containers, "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "nodeSelector": {"kubernetes.io/os": "linux"}, "serviceAccountName": "default",
        "serviceAccount": "default", "nodeName": format!("node-{node:04}"),
        "securityContext": {"fsGroup": 1000}, "schedulerName": "default-scheduler",
        "tolerations": tolerations,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": format!("app-{app}")}},
            },
        ],
        "priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
    })
}

fn pod_status(at: usize) -> Value {
    let node = at % 500;
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "True", "observedGeneration": 1, "lastProbeTime": null,
            "lastTransitionTime": "2026-03-04T05:06:09Z",
        })
    };
    let conditions =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
            .map(condition);
    let statuses = CONTAINERS.map(|name| container_status(name, at));
    json!({
        "phase": "Running", "observedGeneration": 1, "conditions": conditions,
        "hostIP": "10.0.0.7", "hostIPs": [{"ip": "10.0.0.7"}],
        "podIP": format!("10.244.{}.{}", node % 256, at % 256),
        "podIPs": [{"ip": "10.244.1.2"}], "startTime": "2026-03-04T05:06:07Z",
        "containerStatuses": statuses, "qosClass": "Burstable",
    })
}

/// A node of a cloud, with fifty images.
pub(crate) fn node(at: usize) -> Value {
    let images: Vec<_> = (0..50)
        .map(|n| {
            json!({
                "names": [
                    format!("registry.example.com/team/app-{n}@sha256:{n:064x}"),
                    format!("registry.example.com/team/app-{n}:v1.42.7"),
                ],
                "sizeBytes": 40_000_000 + n,
            })
        })
        .collect();
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "False", "lastHeartbeatTime": "2026-03-04T05:06:07Z",
            "lastTransitionTime": "2026-03-04T05:06:07Z", "reason": format!("KubeletHasNo{kind}"),
            "message": format!("kubelet has no {kind}"),
        })
    };
    let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(condition);
    let zone = format!("eu-1{}", ["a", "b", "c"][at % 3]);
    let room = json!({
        "cpu": "16", "ephemeral-storage": "101430960Ki", "hugepages-1Gi": "0",
        "hugepages-2Mi": "0", "memory": "65843212Ki", "pods": "110",
    });
    json!({
        "metadata": {
            "name": format!("node-{at:04}"), "uid": uid(at),
            "resourceVersion": (800_000 + at).to_string(),
            "creationTimestamp": "2026-03-04T05:06:07Z",
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": format!("node-{at:04}"),
                "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m5.4xlarge",
                "topology.kubernetes.io/region": "eu-1", "topology.kubernetes.io/zone": zone,
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": [
                managed("kubelet", &["a"]), managed("kube-controller-manager", &["b"]),
            ],
        },
        "spec": {
            "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"],
            "providerID": format!("cloud://{at}"),
            "taints": [{"key": "dedicated", "value": "batch", "effect": "PreferNoSchedule"}],
        },
        "status": {
            "capacity": room, "allocatable": room, "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": "10.0.0.7"},
                {"type": "Hostname", "address": format!("node-{at:04}")},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": uid(at), "systemUUID": uid(at + 1), "bootID": uid(at + 2),
                "kernelVersion": "6.12.0", "osImage": "Linux",
                "containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": "v1.36.2",
                "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
            },
            "images": images,
        },
    })
}

/// Fields of a pod that a scheduler reads.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct SchedPod {
    pub(crate) metadata: SchedMeta,
    pub(crate) spec: SchedPodSpec,
    #[serde(default)]
    pub(crate) status: SchedPodStatus,
}
pruned_object!(SchedPod);

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SchedMeta {
    pub(crate) name: Box<str>,
    #[serde(default)]
    pub(crate) namespace: Symbol,
    pub(crate) uid: Box<str>,
    pub(crate) resource_version: Box<str>,
    #[serde(default)]
    pub(crate) labels: SymbolMap,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(crate) struct SchedPodSpec {
    pub(crate) node_name: Symbol,
    pub(crate) scheduler_name: Symbol,
    pub(crate) priority: i32,
    pub(crate) node_selector: SymbolMap,
    pub(crate) tolerations: Box<[SchedTaint]>,
    pub(crate) containers: Box<[SchedContainer]>,
    pub(crate) init_containers: Box<[SchedContainer]>,
    pub(crate) topology_spread_constraints: Box<[SchedSpread]>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedContainer {
    pub(crate) image: Symbol,
    pub(crate) resources: SchedResources,
    pub(crate) ports: Box<[SchedPort]>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SchedResources {
    pub(crate) requests: SymbolMap,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedPort {
    pub(crate) host_port: u16,
    pub(crate) protocol: Symbol,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedSpread {
    pub(crate) max_skew: i32,
    pub(crate) topology_key: Symbol,
    pub(crate) when_unsatisfiable: Symbol,
    pub(crate) label_selector: SchedSelector,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedSelector {
    pub(crate) match_labels: SymbolMap,
}

/// A taint, or a toleration.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SchedTaint {
    pub(crate) key: Symbol,
    pub(crate) operator: Symbol,
    pub(crate) value: Symbol,
    pub(crate) effect: Symbol,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedPodStatus {
    pub(crate) phase: Symbol,
    pub(crate) nominated_node_name: Symbol,
}

/// Fields of a node that a scheduler reads.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct SchedNode {
    pub(crate) metadata: SchedMeta,
    #[serde(default)]
    pub(crate) spec: SchedNodeSpec,
    #[serde(default)]
    pub(crate) status: SchedNodeStatus,
}
pruned_object!(SchedNode);

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SchedNodeSpec {
    pub(crate) unschedulable: bool,
    pub(crate) taints: Box<[SchedTaint]>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SchedNodeStatus {
    pub(crate) allocatable: SymbolMap,
    pub(crate) images: Box<[SchedImage]>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedImage {
    pub(crate) names: Box<[Symbol]>,
    pub(crate) size_bytes: i64,
}
