//! Pods of many kinds for a hand-over, and what of each must stay when another agent takes the node.
//!
//! Each container writes a line for each of its starts into a folder of the host, and waits there
//! for a file if its pod is to be in the middle of something. Input: a kind; output: its manifest,
//! and the facts of its pod that a hand-over must not change.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::cluster::NODE;
use pintle_testbed::manifest::{With, condition, container, phase, pod, script};
use serde_json::{Value, json};

/// Ends at once on SIGTERM.
const RUNS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A pod that a hand-over must leave as it is.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// The pod's name.
    pub name: &'static str,
    /// The phase in which it stays.
    pub phase: &'static str,
    /// It is ready there.
    pub is_ready: bool,
    /// Changes the manifest of a pod with one running container `c`.
    build: fn(Value, &SharedFolder) -> Value,
}

const fn ready(name: &'static str, build: fn(Value, &SharedFolder) -> Value) -> Steady {
    Steady { name, phase: "Running", is_ready: true, build }
}

/// All of them.
pub const STEADY: [Steady; 19] = [
    ready("plain", |pod, _| pod),
    ready("guaranteed", |pod, _| resources(pod, json!({"limits": small("50m")}))),
    ready("burstable", |pod, _| resources(pod, json!({"requests": small("20m")}))),
    ready("resized", |pod, _| resources(pod, json!({"limits": small("50m")}))),
    ready("init", |pod, shared| {
        pod.with_spec("initContainers", json!([shared.script("i", "true")]))
    }),
    ready("sidecar", |pod, shared| {
        let side = shared.script("s", RUNS).with("restartPolicy", json!("Always"));
        let after = shared.script("i", "sleep 0.3");
        pod.with_spec("initContainers", json!([side, after]))
    }),
    ready("http-probed", |mut pod, _| {
        let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1});
        let serve = container("c", &["/box", "serve", "http=8080"]);
        pod["spec"]["containers"][0] = serve
            .with("readinessProbe", probe.clone())
            .with("livenessProbe", probe.clone())
            .with("startupProbe", probe);
        pod
    }),
    ready("exec-probed", |pod, _| {
        let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
        field(pod, "readinessProbe", probe)
    }),
    ready("hooked", |pod, _| {
        let hook = |text: &str| json!({"exec": {"command": ["sh", "-c", text]}});
        field(pod, "lifecycle", json!({"postStart": hook("true"), "preStop": hook("true")}))
    }),
    ready("host-network", |pod, _| pod.with_spec("hostNetwork", json!(true))),
    ready("shared-pids", |pod, _| pod.with_spec("shareProcessNamespace", json!(true))),
    ready("memory-volume", |pod, _| volume(pod, json!({"emptyDir": {"medium": "Memory"}}))),
    ready("disk-volume", |pod, _| volume(pod, json!({"emptyDir": {}}))),
    ready("tells-itself", |pod, _| {
        let name = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
        volume(pod, json!({"downwardAPI": {"items": name}}))
    }),
    ready("grouped", |pod, _| {
        let security = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000});
        volume(pod, json!({"emptyDir": {}})).with_spec("securityContext", security)
    }),
    Steady {
        name: "unready",
        phase: "Running",
        is_ready: false,
        build: |pod, _| {
            let probe = json!({"exec": {"command": ["false"]}, "periodSeconds": 1});
            field(pod, "readinessProbe", probe)
        },
    },
    Steady {
        name: "half-done",
        phase: "Running",
        is_ready: false,
        build: |mut pod, shared| {
            let containers = json!([shared.script("c", RUNS), shared.script("d", "true")]);
            pod["spec"]["containers"] = containers;
            pod.with_spec("restartPolicy", json!("OnFailure"))
        },
    },
    Steady {
        name: "done",
        phase: "Succeeded",
        is_ready: false,
        build: |pod, shared| ends(pod, shared.script("c", "echo well > /dev/termination-log")),
    },
    Steady {
        name: "failed",
        phase: "Failed",
        is_ready: false,
        build: |pod, shared| ends(pod, shared.script("c", "exit 7")),
    },
];

impl Steady {
    /// The manifest.
    pub fn manifest(self, shared: &SharedFolder) -> Value {
        (self.build)(shared.pod(self.name, shared.script("c", RUNS)), shared)
    }

    /// True if the pod is where it stays.
    pub fn is_there(self, found: &Pod) -> bool {
        let all_started = phase(found) != "Pending" && !facts(found).containers.is_empty();
        let half = self.name != "half-done" || facts(found).containers["d"].state == "terminated";
        all_started
            && half
            && phase(found) == self.phase
            && condition(found, "Ready") == self.is_ready
    }
}

/// A pod in the middle of something: one for each hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// Its init container waits for a file.
    Init,
    /// Its hook after the start waits for a file.
    Hook,
    /// Its startup probe waits for a file.
    Startup,
    /// It is deleted, and its container takes some seconds to end.
    End,
}

pub const MOVING: [Moving; 4] = [Moving::Init, Moving::Hook, Moving::Startup, Moving::End];

impl Moving {
    /// The pod's name at the hand-over with this number.
    pub fn name(self, number: usize) -> String {
        format!("mid-{self:?}-{number}").to_lowercase()
    }

    /// The manifest.
    pub fn manifest(self, shared: &SharedFolder, number: usize) -> Value {
        let name = self.name(number);
        let wait = format!("until [ -e /shared/go-{number} ]; do sleep 0.1; done");
        let command = json!({"exec": {"command": ["sh", "-c", wait]}});
        let usual = shared.script("c", RUNS);
        match self {
            Self::Init => shared
                .pod(&name, usual)
                .with_spec("initContainers", json!([shared.script("i", &wait)])),
            Self::Hook => shared.pod(&name, usual.with("lifecycle", json!({"postStart": command}))),
            Self::Startup => {
                let file = json!(["test", "-e", format!("/shared/go-{number}")]);
                let probe = json!({"exec": {"command": file}, "periodSeconds": 1,
                    "failureThreshold": 600});
                shared.pod(&name, usual.with("startupProbe", probe))
            }
            Self::End => {
                let slow = format!(
                    "trap 'echo >> /shared/term-{number}; sleep 5; exit 0' TERM; \
                    while :; do sleep 0.1; done"
                );
                let pod = shared.pod(&name, shared.script("c", &slow));
                pod.with_spec("terminationGracePeriodSeconds", json!(60))
            }
        }
    }
}

/// The folder that pods and the test share.
pub struct SharedFolder(tempfile::TempDir);

impl SharedFolder {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder that the node sees too");
        // Some containers are not root.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("its owner");
        Self(dir)
    }

    /// A pod on the node, which has the folder.
    pub fn pod(&self, name: &str, container: Value) -> Value {
        pod(name, &[container])
            .with_spec("nodeName", json!(NODE))
            .with_spec("automountServiceAccountToken", json!(false))
            .with_spec("volumes", json!([{"name": "shared", "hostPath": {"path": self.path()}}]))
    }

    /// A container that writes a line for each of its starts.
    pub fn script(&self, container: &str, text: &str) -> Value {
        let name =
            json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
        script(container, &format!("echo >> /shared/$POD.{container}; {text}"))
            .with("env", name)
            .with("volumeMounts", json!([{"name": "shared", "mountPath": "/shared"}]))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Lets the pods of a hand-over go on.
    pub fn go(&self, number: usize) {
        fs::write(self.file(&format!("go-{number}")), "").expect("written");
    }

    /// How many lines a file has.
    pub fn lines(&self, name: &str) -> usize {
        fs::read_to_string(self.file(name)).map_or(0, |text| text.lines().count())
    }
}

fn small(cpu: &str) -> Value {
    json!({"cpu": cpu, "memory": "48Mi"})
}

fn field(mut pod: Value, name: &str, value: Value) -> Value {
    pod["spec"]["containers"][0][name] = value;
    pod
}

fn resources(pod: Value, resources: Value) -> Value {
    field(pod, "resources", resources)
}

fn ends(mut pod: Value, container: Value) -> Value {
    pod["spec"]["containers"][0] = container;
    pod.with_spec("restartPolicy", json!("Never"))
}

/// Mounts a volume beside the shared folder.
fn volume(mut pod: Value, source: Value) -> Value {
    let volume = json!({"name": "v"}).as_object().expect("an object").clone();
    let source = source.as_object().expect("an object").clone();
    let volume = Value::Object(volume.into_iter().chain(source).collect());
    let push = |list: &mut Value, item| list.as_array_mut().expect("a list").push(item);
    push(&mut pod["spec"]["volumes"], volume);
    let mount = json!({"name": "v", "mountPath": "/v"});
    push(&mut pod["spec"]["containers"][0]["volumeMounts"], mount);
    pod
}

/// What a container is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFacts {
    pub id: String,
    pub restarts: i32,
    pub is_ready: bool,
    pub is_started: Option<bool>,
    pub state: &'static str,
    pub began: String,
}

/// What of a pod a hand-over must not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub uid: String,
    pub phase: String,
    /// Its addresses, as JSON.
    pub addresses: String,
    /// Type, status and time of the last change of each condition.
    pub conditions: BTreeMap<String, (String, String)>,
    pub containers: BTreeMap<String, ContainerFacts>,
    /// Resources that the status reports, as JSON.
    pub resources: String,
}

/// Reads them.
pub fn facts(pod: &Pod) -> Facts {
    let status = pod.status.clone().unwrap_or_default();
    let conditions = status.conditions.clone().unwrap_or_default();
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let mut resources = BTreeMap::new();
    let containers = lists.into_iter().flatten().flatten().map(|c| {
        let state = serde_json::to_value(&c.state).unwrap_or_default();
        let names = ["running", "terminated", "waiting"];
        let state_name = names.into_iter().find(|name| state[name].is_object()).unwrap_or("none");
        resources.insert(c.name.clone(), (c.allocated_resources.clone(), c.resources.clone()));
        let facts = ContainerFacts {
            id: c.container_id.clone().unwrap_or_default(),
            restarts: c.restart_count,
            is_ready: c.ready,
            is_started: c.started,
            state: state_name,
            began: state[state_name]["startedAt"].to_string(),
        };
        (c.name.clone(), facts)
    });
    let containers = containers.collect();
    Facts {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        phase: status.phase.unwrap_or_default(),
        addresses: serde_json::to_string(&status.pod_ips).unwrap_or_default(),
        conditions: conditions
            .into_iter()
            .map(|c| {
                let time = serde_json::to_string(&c.last_transition_time).unwrap_or_default();
                (c.type_, (c.status, time))
            })
            .collect(),
        containers,
        resources: serde_json::to_string(&resources).unwrap_or_default(),
    }
}
