//! Identity of static pods: name, uid, annotations, and taking over those that already run.
//!
//! A static pod's uid is a hash of its manifest, so a changed manifest is another pod. The Go
//! kubelet hashes its own memory layout, which no other program can compute; when a pod of that
//! name from the same kind of source runs under such a foreign uid and its manifest has not changed
//! since, that uid is adopted, and no container restarts. Our own uids carry a check sum, so that
//! an older version of a manifest that we started ourselves is never taken for a foreign one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};

use super::SourceKind;
use crate::observed::{ObservedPod, RunState};
use pintle_api_types::ids::{PodUid, UnixNanos};
use pintle_api_types::pod::{self, containers, hash};

/// Hex digits of our own uids that are a check sum of the others.
const CHECK_DIGITS: usize = 4;

/// The place where a static pod was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestOrigin {
    /// File or URL.
    pub kind: SourceKind,
    /// Path or URL.
    pub place: String,
    /// When the manifest was last changed; `NEVER` when that is not known.
    pub changed_at: UnixNanos,
}

impl ManifestOrigin {
    fn text(&self) -> String {
        match self.kind {
            SourceKind::File => format!("file:{}", self.place),
            _ => format!("url:{}", self.place),
        }
    }
}

/// Makes a decoded manifest the static pod of this node.
// k8s: pkg/kubelet/config/common.go applyDefaults
pub(super) fn identify(pod: &mut Pod, origin: &ManifestOrigin, node_name: &str) {
    let given = pod.metadata.uid.take().filter(|uid| !uid.is_empty());
    let uid = given.unwrap_or_else(|| own_uid(pod, origin, node_name));
    let name = format!("{}-{}", pod::name(pod), node_name.to_lowercase());
    pod.metadata.name = Some(name);
    if pod::namespace(pod).is_empty() {
        pod.metadata.namespace = Some("default".to_owned());
    }
    set_uid(pod, uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if origin.kind == SourceKind::File {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    pod.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() });
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::ANNOTATION_SOURCE.to_owned(), origin.kind.as_str().to_owned());
}

/// Sets another uid of the pod, and the hash annotation for it.
pub(super) fn set_uid(pod: &mut Pod, uid: String) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::ANNOTATION_HASH.to_owned(), uid.clone());
    pod.metadata.uid = Some(uid);
}

fn own_uid(pod: &Pod, origin: &ManifestOrigin, node_name: &str) -> String {
    let hash = hash::static_pod_uid(pod, node_name, &origin.text());
    let body = &hash[..hash.len() - CHECK_DIGITS];
    format!("{body}{}", check_digits(body))
}

fn check_digits(body: &str) -> String {
    let sum = body.bytes().fold(0x7069u16, |sum, byte| {
        sum.rotate_left(5).wrapping_mul(0x4e6d).wrapping_add(u16::from(byte))
    });
    format!("{sum:04x}")
}

/// True for a uid that this agent made.
pub fn is_own_uid(uid: &str) -> bool {
    uid.len() == 32
        && uid.is_ascii()
        && check_digits(&uid[..32 - CHECK_DIGITS]) == uid[32 - CHECK_DIGITS..]
}

/// An equal toleration is enough; a toleration of the same key and effect is replaced.
// k8s: pkg/apis/core/helper/helpers.go AddOrUpdateTolerationInPod
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let same = |other: &Toleration| {
        other.key.as_deref().unwrap_or_default().is_empty()
            && other.effect == wanted.effect
            && other.operator == wanted.operator
            && other.value.as_deref().unwrap_or_default().is_empty()
    };
    match tolerations.iter_mut().find(|other| same(other)) {
        Some(old) => *old = wanted,
        None => tolerations.push(wanted),
    }
}

/// The uid of a running pod that is this static pod under another agent's uid.
///
/// All must hold: same namespace and name; a ready sandbox with annotations that name the same kind
/// of source; its uid is not one of ours; the manifest is not newer than the pod's first sight;
/// every main container and sidecar exists with our hash, at least one of them runs, and nothing
/// runs that the manifest does not know.
pub fn adoptable(pod: &Pod, changed_at: UnixNanos, running: &ObservedPod) -> Option<PodUid> {
    let same_name = running.name == pod::name(pod) && running.namespace == pod::namespace(pod);
    let sandbox = running.newest_sandbox().filter(|sandbox| sandbox.ready && same_name)?;
    let source = sandbox.annotations.get(pod::ANNOTATION_SOURCE).map(String::as_str);
    if source != pod::annotation(pod, pod::ANNOTATION_SOURCE)
        || is_own_uid(running.uid.as_str())
        || !unchanged_since(changed_at, &sandbox.annotations)
        || !same_containers(pod, running)
    {
        return None;
    }
    Some(running.uid.clone())
}

/// True when the manifest was last written before the pod was first seen, or when that is unknown.
fn unchanged_since(changed_at: UnixNanos, annotations: &BTreeMap<String, String>) -> bool {
    let seen = annotations.get(pod::ANNOTATION_SEEN);
    let seen = seen.and_then(|seen| seen.parse::<jiff::Timestamp>().ok());
    !changed_at.is_set() || seen.is_some_and(|seen| changed_at.to_timestamp() <= seen)
}

fn same_containers(pod: &Pod, running: &ObservedPod) -> bool {
    let spec = pod::spec(pod);
    let known = running.containers.iter().all(|instance| {
        let found = containers::find(spec, &instance.name);
        found.is_some_and(|(_, container)| instance.hash == Some(hash::container_hash(container)))
    });
    let lasting = spec.containers.iter().map(|container| &container.name);
    let complete = lasting.clone().all(|name| running.latest(name).is_some());
    let runs = |name: &String| {
        running.latest(name).is_some_and(|instance| instance.state == RunState::Running)
    };
    known && complete && lasting.clone().any(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::testing;
    use serde_json::json;

    fn origin() -> ManifestOrigin {
        ManifestOrigin {
            kind: SourceKind::File,
            place: "/m/web.yaml".into(),
            changed_at: UnixNanos(10),
        }
    }

    fn web() -> Pod {
        let mut pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "c", "image": "busybox:latest"}]}
        }))
        .expect("a pod");
        identify(&mut pod, &origin(), "Node");
        pod
    }

    fn running(uid: &str) -> ObservedPod {
        let mut observed = ObservedPod::empty(uid.into(), "default", "web-node");
        let mut sandbox = testing::sandbox();
        sandbox.annotations.insert(pod::ANNOTATION_SOURCE.into(), "file".into());
        let seen = "2026-11-21T02:29:55.722523766Z".to_owned();
        sandbox.annotations.insert(pod::ANNOTATION_SEEN.into(), seen);
        observed.sandboxes.push(sandbox);
        let mut container = testing::container("c", "1");
        container.hash = Some(0x6047_fbf3);
        observed.containers.push(container);
        observed
    }

    #[test]
    fn a_static_pod_gets_the_nodes_name_a_uid_and_its_annotations() {
        let pod = web();
        let uid = pod.metadata.uid.clone().expect("a uid");
        assert!(is_own_uid(&uid), "{uid}");
        assert_eq!((pod::name(&pod), pod::namespace(&pod)), ("web-node", "default"));
        assert_eq!(pod::annotation(&pod, pod::ANNOTATION_HASH), Some(&*uid));
        assert_eq!(pod::annotation(&pod, pod::ANNOTATION_SOURCE), Some("file"));
        let spec = pod::spec(&pod);
        assert_eq!(spec.node_name.as_deref(), Some("Node"));
        assert_eq!(spec.tolerations.as_ref().map(Vec::len), Some(1));
        assert!(pod::is_static(&pod) && pod::is_critical(&pod));
    }

    #[test]
    fn uids_of_the_go_kubelet_are_foreign() {
        assert!(!is_own_uid("c24b8781d9043778ac24afcda74ec59d"));
        assert!(!is_own_uid("4af1cdbcca19c224c1ba02493adc56a0"));
        assert!(!is_own_uid("27995fb6-f160-45a2-ba3d-8e87cf8ec145"));
        assert!(!is_own_uid(""));
    }

    #[test]
    fn a_pod_of_the_go_kubelet_is_adopted_with_its_uid() {
        let foreign = "4af1cdbcca19c224c1ba02493adc56a0";
        assert_eq!(adoptable(&web(), UnixNanos(10), &running(foreign)), Some(foreign.into()));
    }

    #[test]
    fn running_pod_that_may_differ_from_the_manifest_is_not_adopted() {
        let foreign = "4af1cdbcca19c224c1ba02493adc56a0";
        let newer = UnixNanos(i64::MAX / 2);
        assert_eq!(adoptable(&web(), newer, &running(foreign)), None, "changed since");
        let own = web().metadata.uid.expect("a uid");
        assert_eq!(adoptable(&web(), UnixNanos(10), &running(&own)), None, "our own");
        type Change = fn(&mut ObservedPod);
        let changes: [(&str, Change); 6] = [
            ("name", |o| o.name = "other".into()),
            ("hash", |o| o.containers[0].hash = Some(1)),
            ("container", |o| o.containers[0].name = "d".into()),
            ("stopped", |o| o.containers[0].state = RunState::Exited),
            ("sandbox", |o| o.sandboxes[0].ready = false),
            ("source", |o| {
                o.sandboxes[0].annotations.insert(pod::ANNOTATION_SOURCE.into(), "api".into());
            }),
        ];
        for (what, change) in changes {
            let mut other = running(foreign);
            change(&mut other);
            assert_eq!(adoptable(&web(), UnixNanos(10), &other), None, "{what}");
        }
    }
}
