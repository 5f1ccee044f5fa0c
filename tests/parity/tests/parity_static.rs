//! Static pods against those of the Go kubelet.
//!
//! The recording holds the kubelet's two manifests, its /pods answer, the mirror pods and its CRI
//! calls. Read by our source, the same manifests must give the same names, annotations and
//! defaulted specs, the same container hashes, and, since the pods run, the same uids.
//! `PINTLE_RECORDED=DIR` takes another folder; a folder without a file has to say so
//! (`pintle_testbed::recorded`).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::{
    AppliedSettings, Evidence, ObservedContainer, ObservedPod, ObservedSandbox, RunState,
};
use pintle_agent_core::source::manifest::decode_pod;
use pintle_agent_core::source::static_pod;
use pintle_agent_core::source::static_pod::ManifestOrigin;
use pintle_agent_core::source::{PodSources, SourceKind, SourceReading, SourceUpdate};
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_api_types::pod;
use pintle_api_types::pod::hash;
use pintle_testbed::recorded;
use serde_json::Value;

const NODE: &str = "localhost";
const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: static-web
  namespace: kube-system
  labels: {tier: cp}
spec:
  containers:
  - name: c
    image: busybox:latest
    imagePullPolicy: Never
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]
    resources: {requests: {cpu: 50m}}
"#;
const HOST: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: static-host}
spec:
  hostNetwork: true
  priorityClassName: system-node-critical
  containers:
  - name: c
    image: busybox:latest
    imagePullPolicy: Never
    command: [sleep, "3600"]
    volumeMounts: [{name: h, mountPath: /h}]
  volumes: [{name: h, hostPath: {path: /tmp}}]
"#;

fn recording() -> Option<Value> {
    recorded::json("static-pods.json")
}

fn read(text: &str) -> Pod {
    let origin = ManifestOrigin {
        kind: SourceKind::File,
        place: "/m/pod.yaml".into(),
        changed_at: UnixNanos(1),
    };
    decode_pod(text.as_bytes(), &origin, NODE).expect("a valid manifest")
}

/// The pods of our source, and the recorded ones of the same names.
fn pairs(recording: &Value) -> Vec<(Pod, Value)> {
    let recorded = recording["pods_endpoint"].as_array().expect("a list of pods");
    let pairs = [WEB, HOST].into_iter().map(|text| {
        let pod = read(text);
        let same = recorded.iter().find(|other| other["metadata"]["name"] == pod::name(&pod));
        (pod.clone(), same.unwrap_or_else(|| panic!("{} is recorded", pod::name(&pod))).clone())
    });
    pairs.collect()
}

#[test]
fn names_annotations_and_defaulted_specs_are_the_recorded_ones() {
    let Some(recording) = recording() else { return };
    for (pod, recorded) in pairs(&recording) {
        let spec = serde_json::to_value(&pod.spec).expect("a spec is JSON");
        assert_eq!(spec, recorded["spec"], "{}", pod::name(&pod));
        let metadata = serde_json::to_value(&pod.metadata).expect("metadata is JSON");
        assert_eq!(metadata["namespace"], recorded["metadata"]["namespace"]);
        assert_eq!(metadata["labels"], recorded["metadata"]["labels"]);
        // A merged pod has the third annotation, too.
        let mut keys: Vec<_> = keys(&metadata["annotations"]);
        keys.push(pod::ANNOTATION_SEEN.to_owned());
        keys.sort();
        assert_eq!(keys, self::keys(&recorded["metadata"]["annotations"]));
        let uid = metadata["uid"].as_str().expect("a uid");
        assert_eq!(uid.len(), recorded["metadata"]["uid"].as_str().map_or(0, str::len));
        assert_eq!(metadata["annotations"][pod::ANNOTATION_HASH], uid);
    }
}

fn keys(object: &Value) -> Vec<String> {
    object.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

#[test]
fn container_hashes_are_the_recorded_ones() {
    let Some(recording) = recording() else { return };
    let mut compared = 0;
    for (pod, _) in pairs(&recording) {
        for call in calls(&recording, &pod, "CreateContainer") {
            let config = &call["request"]["config"];
            let name = config["metadata"]["name"].as_str().expect("a name");
            let found = pod::containers::find(pod::spec(&pod), name);
            let (_, container) = found.expect("the manifest has the container");
            let recorded = &config["annotations"]["io.kubernetes.container.hash"];
            assert_eq!(recorded, &Value::from(hash::container_hash_text(container)));
            compared += 1;
        }
    }
    assert!(compared >= 2, "only {compared} containers");
}

#[test]
fn static_pods_of_the_go_kubelet_are_adopted_under_their_uids() {
    let Some(recording) = recording() else { return };
    for (pod, recorded) in pairs(&recording) {
        let running = running(&recording, &pod);
        let lookup = |pod: &Pod, changed_at: UnixNanos| -> Option<PodUid> {
            static_pod::adoptable(pod, changed_at, &running)
        };
        let mut sources = PodSources::new([SourceKind::File]);
        let pods = vec![(Arc::new(pod.clone()), UnixNanos(1))];
        let reading = SourceReading { pods, ..SourceReading::default() };
        let updates = sources.set(SourceKind::File, reading, UnixNanos(1), &lookup);
        let SourceUpdate::Add(taken) = &updates[0] else {
            panic!("an addition first: {updates:?}");
        };
        let metadata = serde_json::to_value(&taken.metadata).expect("metadata is JSON");
        assert_eq!(metadata["uid"], recorded["metadata"]["uid"]);
        let own = &metadata["annotations"];
        let theirs = &recorded["metadata"]["annotations"];
        for key in [pod::ANNOTATION_HASH, pod::ANNOTATION_SOURCE] {
            assert_eq!(own[key], theirs[key], "{key}");
        }
    }
}

fn calls<'a>(recording: &'a Value, pod: &Pod, method: &'a str) -> Vec<&'a Value> {
    let name = pod::name(pod).to_owned();
    let calls = recording["cri_calls"].as_array().into_iter().flatten();
    calls.filter(|call| call["pod"] == name && call["method"] == method).collect()
}

/// The pod as our agent would find it in the runtime.
fn running(recording: &Value, pod: &Pod) -> ObservedPod {
    let call = calls(recording, pod, "RunPodSandbox")[0];
    let config = &call["request"]["config"];
    let uid = config["metadata"]["uid"].as_str().expect("a uid");
    let mut observed = ObservedPod::empty(uid.into(), pod::namespace(pod), pod::name(pod));
    observed.sandboxes.push(ObservedSandbox {
        id: "s".into(),
        ready: true,
        attempt: 0,
        created_at: UnixNanos(1),
        ips: Vec::new(),
        host_network: pod::uses_host_network(pod),
        labels: texts(&config["labels"]),
        annotations: texts(&config["annotations"]),
        runtime_handler: String::new(),
    });
    for call in calls(recording, pod, "CreateContainer") {
        let config = &call["request"]["config"];
        let hash = config["annotations"]["io.kubernetes.container.hash"].as_str();
        observed.containers.push(ObservedContainer {
            id: "c".into(),
            name: config["metadata"]["name"].as_str().expect("a name").to_owned(),
            sandbox_id: "s".into(),
            state: RunState::Running,
            restart_count: 0,
            hash: hash.and_then(|hash| u32::from_str_radix(hash, 16).ok()),
            created_at: UnixNanos(1),
            started_at: UnixNanos(2),
            finished_at: UnixNanos::NEVER,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            log_path: String::new(),
            annotations: BTreeMap::new(),
            mounts: Vec::new(),
            applied: AppliedSettings::default(),
            evidence: Evidence::default(),
        });
    }
    observed
}

fn texts(object: &Value) -> BTreeMap<String, String> {
    let fields = object.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// Fields that admission adds on the server, beyond defaulting.
const ADMISSION_FIELDS: [&str; 5] =
    ["serviceAccount", "serviceAccountName", "preemptionPolicy", "priority", "tolerations"];

#[test]
fn defaults_match_the_api_server_and_its_accepted_pods_are_valid() {
    let Some(recordings) = recorded::pods() else { return };
    let mut compared = 0;
    for (name, recording) in &recordings {
        let manifest = recording["manifest"].clone();
        let mut pod: Pod = serde_json::from_value(manifest).expect("a recording has a manifest");
        pod::defaults::apply(&mut pod);
        let spec = serde_json::to_value(&pod.spec).expect("a spec is JSON");
        let wanted = &recording["pod_when_seen"]["spec"];
        assert_eq!(without_admission(&spec), without_admission(wanted), "{name}");
        assert_eq!(pod::validate::pod(&pod), [], "{name}");
        compared += 1;
    }
    println!("{compared} specs");
    assert!(compared > 0, "recordings without a single pod");
}

/// The spec without what admission sets or adds: an account, its token, tolerations, priority.
fn without_admission(spec: &Value) -> Value {
    let mut spec = spec.clone();
    let fields = spec.as_object_mut().expect("a spec is an object");
    fields.retain(|name, _| !ADMISSION_FIELDS.contains(&name.as_str()));
    let is_token = |item: &Value| {
        item["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"))
    };
    drop_items(&mut spec, "volumes", &is_token);
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            drop_items(container, "volumeMounts", &is_token);
        }
    }
    spec
}

/// Removes items of a list, and a list that is empty then.
fn drop_items(object: &mut Value, list: &str, is_gone: &dyn Fn(&Value) -> bool) {
    let Some(items) = object.get_mut(list).and_then(Value::as_array_mut) else { return };
    items.retain(|item| !is_gone(item));
    if items.is_empty() {
        object.as_object_mut().expect("an object").remove(list);
    }
}
