//! Labels and annotations of sandboxes and containers, written and read.
//!
//! They are the only memory that survives an agent: a restarted agent, or the kubelet that takes
//! over, finds its pods by the labels and decides by the annotations if a container still fits its
//! spec. So names, spelling and JSON must be the kubelet's byte for byte. Reading is tolerant: an
//! absent or unreadable value is `None`, never an error.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerPort, HTTPHeader, LifecycleHandler, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use pintle_api_types::ids::{PodUid, is_path_component};
use pintle_api_types::pod;

/// Label: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's uid.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Annotation: hash of the container's name and image, hexadecimal.
pub const HASH: &str = "io.kubernetes.container.hash";
/// Annotation: how often the container was restarted before this attempt.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: `terminationMessagePath`.
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `terminationMessagePolicy`.
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the preStop hook as JSON.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports as JSON.
pub const PORTS: &str = "io.kubernetes.container.ports";
/// Annotation: the pod's `deletionGracePeriodSeconds` when the container was created.
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: the pod's `terminationGracePeriodSeconds`.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Labels of a sandbox: the pod's own, and its identity.
// k8s: pkg/kubelet/kuberuntime/labels.go newPodLabels
pub fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(identity_labels(pod));
    labels
}

/// Annotations of a sandbox: the pod's own.
// k8s: pkg/kubelet/kuberuntime/labels.go newPodAnnotations
pub fn sandbox_annotations(pod: &Pod) -> BTreeMap<String, String> {
    pod.metadata.annotations.clone().unwrap_or_default()
}

/// Labels of a container.
// k8s: pkg/kubelet/kuberuntime/labels.go newContainerLabels
pub fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from(identity_labels(pod));
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

fn identity_labels(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.to_owned(), pod::name(pod).to_owned()),
        (POD_NAMESPACE.to_owned(), pod::namespace(pod).to_owned()),
        (POD_UID.to_owned(), pod::uid(pod).to_string()),
    ]
}

/// Annotations of a container; `extra` are those of device plugins, which never win.
// k8s: pkg/kubelet/kuberuntime/labels.go newContainerAnnotations
pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
    extra: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut annotations = extra.clone();
    let mut set = |name: &str, value: String| {
        annotations.insert(name.to_owned(), value);
    };
    set(HASH, pod::hash::container_hash_text(container));
    set(RESTART_COUNT, restart_count.to_string());
    set(TERMINATION_PATH, container.termination_message_path.clone().unwrap_or_default());
    set(TERMINATION_POLICY, container.termination_message_policy.clone().unwrap_or_default());
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        set(DELETION_GRACE, seconds.to_string());
    }
    if let Some(seconds) = pod::spec(pod).termination_grace_period_seconds {
        set(TERMINATION_GRACE, seconds.to_string());
    }
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(hook) = hook {
        set(PRE_STOP, go_json(&GoHandler::from(hook)));
    }
    if let Some(ports) = container.ports.as_deref().filter(|ports| !ports.is_empty()) {
        set(PORTS, go_json(&ports.iter().map(GoPort::from).collect::<Vec<_>>()));
    }
    annotations
}

/// The pod of a sandbox or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Uid.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The pod named by the labels; `None` for objects that no Kubernetes agent made.
// k8s: pkg/kubelet/kuberuntime/labels.go getPodSandboxInfoFromLabels
pub fn identity(labels: &BTreeMap<String, String>) -> Option<PodIdentity> {
    let label = |name: &str| labels.get(name).filter(|value| !value.is_empty());
    let (uid, namespace, name) = (label(POD_UID)?, label(POD_NAMESPACE)?, label(POD_NAME)?);
    // They name directories that are removed with the pod.
    match PodUid::parse(uid).filter(|_| is_path_component(namespace) && is_path_component(name)) {
        Some(uid) => Some(PodIdentity { uid, namespace: namespace.clone(), name: name.clone() }),
        None => {
            strange(&format!("pod {namespace:?}/{name:?} of uid {uid:?}"));
            None
        }
    }
}

/// The uid that the labels name, alone.
pub fn pod_uid(labels: &BTreeMap<String, String>) -> Option<PodUid> {
    PodUid::parse(labels.get(POD_UID)?)
}

/// The container's name, by label or else as the runtime has it; `None` for one that is no name.
pub fn container_name(labels: &BTreeMap<String, String>, known: Option<&str>) -> Option<String> {
    let name = labels.get(CONTAINER_NAME).map(String::as_str).or(known)?;
    if !is_path_component(name) {
        strange(&format!("container {name:?}"));
        return None;
    }
    Some(name.to_owned())
}

/// Logged once, because such an object is in each list.
fn strange(what: &str) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::warn!("{what}: the runtime's labels name no pod that can be; it is left alone");
    });
}

/// The content of a container's annotations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerNotes {
    /// Hash of name and image.
    pub hash: Option<u32>,
    /// Restarts before this attempt; 0 when unreadable.
    pub restart_count: u32,
    /// Path of the container's termination message; empty for none.
    pub termination_path: String,
    /// The termination message policy: with fallback to the log or not.
    pub termination_policy: String,
    /// The hook to run before a stop.
    pub pre_stop: Option<LifecycleHandler>,
    /// The ports, for hooks that name one.
    pub ports: Vec<ContainerPort>,
    /// The pod's `deletionGracePeriodSeconds`.
    pub deletion_grace_seconds: Option<i64>,
    /// The pod's `terminationGracePeriodSeconds`.
    pub termination_grace_seconds: Option<i64>,
}

/// Reads a container's annotations. With it a container can be stopped properly although its pod
/// is gone from all sources.
// k8s: pkg/kubelet/kuberuntime/labels.go getContainerInfoFromAnnotations
pub fn container_notes(annotations: &BTreeMap<String, String>) -> ContainerNotes {
    let text = |name: &str| annotations.get(name).map(String::as_str);
    let number = |name: &str| text(name).and_then(|value| value.parse().ok());
    ContainerNotes {
        hash: text(HASH).and_then(|value| u32::from_str_radix(value, 16).ok()),
        restart_count: text(RESTART_COUNT).and_then(|value| value.parse().ok()).unwrap_or(0),
        termination_path: text(TERMINATION_PATH).unwrap_or_default().to_owned(),
        termination_policy: text(TERMINATION_POLICY).unwrap_or_default().to_owned(),
        pre_stop: text(PRE_STOP).and_then(|value| serde_json::from_str(value).ok()),
        ports: text(PORTS).and_then(|value| serde_json::from_str(value).ok()).unwrap_or_default(),
        deletion_grace_seconds: number(DELETION_GRACE),
        termination_grace_seconds: number(TERMINATION_GRACE),
    }
}

/// JSON as Go's encoding/json writes it: serde's, with a few more characters escaped.
pub(crate) fn go_json(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("plain structs of text and numbers serialise");
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // Outside of strings JSON has none of these.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => out.push(c),
        }
    }
    out
}

// The structs below repeat the API's in the order of the Go types' fields; serde writes that order.

#[derive(Serialize)]
struct GoPort<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(rename = "hostPort", skip_serializing_if = "is_zero")]
    host_port: i32,
    #[serde(rename = "containerPort")]
    container_port: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    protocol: &'a str,
    #[serde(rename = "hostIP", skip_serializing_if = "str::is_empty")]
    host_ip: &'a str,
}

impl<'a> From<&'a ContainerPort> for GoPort<'a> {
    fn from(port: &'a ContainerPort) -> Self {
        Self {
            name: port.name.as_deref().unwrap_or_default(),
            host_port: port.host_port.unwrap_or(0),
            container_port: port.container_port,
            protocol: port.protocol.as_deref().unwrap_or_default(),
            host_ip: port.host_ip.as_deref().unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
struct GoHandler<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<GoExec<'a>>,
    #[serde(rename = "httpGet", skip_serializing_if = "Option::is_none")]
    http_get: Option<GoHttpGet<'a>>,
    #[serde(rename = "tcpSocket", skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<GoTcp<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sleep: Option<GoSleep>,
}

#[derive(Serialize)]
struct GoExec<'a> {
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    command: &'a [String],
}

#[derive(Serialize)]
struct GoHttpGet<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    port: &'a IntOrString,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    scheme: &'a str,
    #[serde(rename = "httpHeaders", skip_serializing_if = "<[HTTPHeader]>::is_empty")]
    headers: &'a [HTTPHeader],
}

#[derive(Serialize)]
struct GoTcp<'a> {
    port: &'a IntOrString,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
}

#[derive(Serialize)]
struct GoSleep {
    seconds: i64,
}

impl<'a> From<&'a LifecycleHandler> for GoHandler<'a> {
    fn from(hook: &'a LifecycleHandler) -> Self {
        let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
        Self {
            exec: hook
                .exec
                .as_ref()
                .map(|exec| GoExec { command: exec.command.as_deref().unwrap_or_default() }),
            http_get: hook.http_get.as_ref().map(|get| GoHttpGet {
                path: text(&get.path),
                port: &get.port,
                host: text(&get.host),
                scheme: text(&get.scheme),
                headers: get.http_headers.as_deref().unwrap_or_default(),
            }),
            tcp_socket: hook
                .tcp_socket
                .as_ref()
                .map(|socket| GoTcp { port: &socket.port, host: text(&socket.host) }),
            sleep: hook.sleep.as_ref().map(|sleep| GoSleep { seconds: sleep.seconds }),
        }
    }
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let meta = json!({"name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "x"},
            "annotations": {"a": "b"}, "deletionGracePeriodSeconds": 7});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
    }

    fn container(extra: serde_json::Value) -> Container {
        let mut value = json!({"name": "main", "image": "busybox:latest",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
        for (name, field) in extra.as_object().expect("an object") {
            value[name] = field.clone();
        }
        serde_json::from_value(value).expect("a container")
    }

    fn annotations(extra: serde_json::Value) -> BTreeMap<String, String> {
        let pod = pod(json!({"containers": [], "terminationGracePeriodSeconds": 30}));
        container_annotations(&pod, &container(extra), 3, &BTreeMap::new())
    }

    #[test]
    fn labels_name_the_pod_and_override_the_users() {
        let mut pod = pod(json!({"containers": []}));
        pod.metadata
            .labels
            .get_or_insert_default()
            .insert(POD_NAME.to_owned(), "forged".to_owned());
        let labels = sandbox_labels(&pod);
        assert_eq!(labels["app"], "x");
        assert_eq!(labels[POD_NAME], "p");
        let want = PodIdentity {
            uid: PodUid::from("u"),
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
        };
        assert_eq!(identity(&labels), Some(want.clone()));
        assert_eq!(identity(&container_labels(&pod, &container(json!({})))), Some(want));
        assert_eq!(identity(&BTreeMap::new()), None);
    }

    #[test]
    fn container_annotations_equal_the_kubelets() {
        let want = [
            (HASH, "582b8eef"),
            (RESTART_COUNT, "3"),
            (TERMINATION_PATH, "/dev/termination-log"),
            (TERMINATION_POLICY, "File"),
            (DELETION_GRACE, "7"),
            (TERMINATION_GRACE, "30"),
        ];
        let want = want.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(annotations(json!({})), BTreeMap::from(want));
    }

    #[test]
    fn pre_stop_hooks_are_encoded_as_in_go() {
        let table = [
            (
                json!({"exec": {"command": ["sh", "-c", "a && b > c"]}}),
                r#"{"exec":{"command":["sh","-c","a \u0026\u0026 b \u003e c"]}}"#,
            ),
            (
                json!({"httpGet": {"httpHeaders": [{"name": "X", "value": "y"}], "scheme": "HTTP",
                    "port": "web", "path": "/p"}}),
                concat!(
                    r#"{"httpGet":{"path":"/p","port":"web","scheme":"HTTP","#,
                    r#""httpHeaders":[{"name":"X","value":"y"}]}}"#
                ),
            ),
            (
                json!({"tcpSocket": {"port": 80, "host": "h"}}),
                r#"{"tcpSocket":{"port":80,"host":"h"}}"#,
            ),
            (json!({"sleep": {"seconds": 0}}), r#"{"sleep":{"seconds":0}}"#),
        ];
        for (hook, want) in table {
            let written = annotations(json!({"lifecycle": {"preStop": hook}}));
            assert_eq!(written[PRE_STOP], want);
        }
    }

    #[test]
    fn container_annotations_round_trip() {
        let notes = container_notes(&annotations(json!({
            "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
            "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1", "name": "web"}]
        })));
        assert_eq!((notes.hash, notes.restart_count), (Some(0x582b_8eef), 3));
        assert_eq!(
            notes.pre_stop.and_then(|hook| hook.exec).and_then(|e| e.command),
            Some(vec!["x".to_owned()])
        );
        assert_eq!(notes.ports[0].name.as_deref(), Some("web"));
        assert_eq!(notes.deletion_grace_seconds, Some(7));
        assert_eq!(notes.termination_grace_seconds, Some(30));
    }

    #[test]
    fn unreadable_annotations_count_as_absent() {
        let bad = [HASH, RESTART_COUNT, PRE_STOP, PORTS, DELETION_GRACE];
        let bad = bad.map(|name| (name.to_owned(), "not a value".to_owned()));
        assert_eq!(container_notes(&BTreeMap::from(bad)), ContainerNotes::default());
    }
}
