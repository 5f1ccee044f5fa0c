//! Objects and changes of objects that pass the real server's validation, mostly.
//!
//! Input: a kind and chance. Output: bodies and [`Edit`]s. Pure.

use pintle_api_types::kind::{self, Kind};
use pintle_api_types::rng::Rng;
use serde_json::{Map, Value, json};

use super::generate::{Edit, budgets, custom};

const APPS: [&str; 2] = ["x", "y"];

/// A new object.
pub fn create(kind: Kind, name: &str, rng: &mut Rng) -> Value {
    let mut metadata = json!({ "name": name });
    if rng.chance(5) {
        metadata = json!({"generateName": format!("{name}-")});
    }
    if rng.chance(40) {
        metadata["labels"] = json!({"app": rng.pick(&APPS)});
    }
    if rng.chance(15) {
        metadata["labels"]["tier"] = "t".into();
    }
    if rng.chance(20) {
        metadata["annotations"] = json!({"a": "1"});
    }
    if rng.chance(20) {
        metadata["finalizers"] = json!(["e.x/f"]);
    }
    if rng.chance(5) {
        metadata["resourceVersion"] = "12".into();
    }
    if rng.chance(10) {
        metadata["ownerReferences"] = owners();
    }
    let mut body = json!({"apiVersion": kind.api_version(), "kind": kind.kind,
        "metadata": metadata});
    for (field, value) in content(kind, name, rng) {
        body[field] = value;
    }
    body
}

fn owners() -> Value {
    json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o",
        "uid": "11111111-1111-4111-8111-111111111111", "controller": true}])
}

fn content(kind: Kind, name: &str, rng: &mut Rng) -> Vec<(&'static str, Value)> {
    let replicas = rng.range(0, 4);
    let labels = json!({"app": name});
    let with = |extra: Value| {
        let mut spec = json!({"selector": {"matchLabels": labels.clone()}});
        spec["template"] = template(&labels, "Always");
        for (field, value) in extra.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        vec![("spec", spec)]
    };
    match (kind.group, kind.plural) {
        ("", "pods") => {
            let mut spec = pod_spec("Always");
            if rng.chance(60) {
                spec["nodeName"] = "n".into();
            }
            if rng.chance(20) {
                spec["terminationGracePeriodSeconds"] = json!(rng.range(0, 60));
            }
            vec![("spec", spec), ("status", json!({"phase": "Running"}))]
        }
        ("", "configmaps") => vec![("data", json!({"k": "v"}))],
        ("apps", "deployments") if rng.chance(30) => {
            with(json!({"strategy": {"type": "Recreate"}}))
        }
        ("apps", "deployments" | "replicasets") => with(match rng.chance(60) {
            true => json!({ "replicas": replicas }),
            false => json!({}),
        }),
        ("apps", "statefulsets") => with(json!({"serviceName": "s", "replicas": replicas})),
        ("apps", "daemonsets") => with(json!({})),
        ("", "replicationcontrollers") => {
            let template = template(&labels, "Always");
            vec![("spec", json!({"replicas": replicas, "template": template}))]
        }
        ("batch", "jobs") => {
            let template = json!({"spec": pod_spec("Never")});
            let mut spec = json!({ "template": template });
            if rng.chance(30) {
                spec["completions"] = 2.into();
                spec["completionMode"] = "Indexed".into();
            }
            if rng.chance(30) {
                spec["template"]["metadata"] = json!({"labels": {"mine": "1"}});
            }
            vec![("spec", spec)]
        }
        ("batch", "cronjobs") => {
            let job = json!({"spec": {"template": {"spec": pod_spec("OnFailure")}}});
            vec![("spec", json!({"schedule": "* * * * *", "jobTemplate": job}))]
        }
        ("coordination.k8s.io", _) => {
            vec![("spec", json!({"holderIdentity": "me", "leaseDurationSeconds": 15}))]
        }
        ("", "persistentvolumeclaims") => vec![(
            "spec",
            json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "c",
                "resources": {"requests": {"storage": "1Gi"}}}),
        )],
        ("apps", "controllerrevisions") => {
            vec![("revision", 1.into()), ("data", json!({"spec": {"a": "b"}}))]
        }
        ("", "nodes") => vec![("status", json!({"capacity": {"cpu": "4", "pods": "10"}}))],
        _ if kind == budgets() => vec![(
            "spec",
            json!({"minAvailable": replicas, "selector": {"matchLabels": {"app": "x"}}}),
        )],
        _ if kind == custom() => {
            vec![("spec", json!({ "replicas": replicas })), ("status", json!({"a": 1}))]
        }
        _ => Vec::new(),
    }
}

fn template(labels: &Value, restart: &str) -> Value {
    json!({"metadata": {"labels": labels}, "spec": pod_spec(restart)})
}

fn pod_spec(restart: &str) -> Value {
    json!({"restartPolicy": restart, "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i:1",
            "resources": {"limits": {"cpu": "1"}}}]})
}

/// A change that a user or a controller might make.
pub fn edit(kind: Kind, sub: &str, rng: &mut Rng) -> Edit {
    let of = |pointer: &str, value: Value| Edit { pointer: pointer.to_owned(), value };
    let number = rng.range(0, 4);
    if sub == "scale" {
        return of("/spec/replicas", number.into());
    }
    match rng.range(0, 10) {
        0 => of("/metadata/labels/app", json!(rng.pick(&APPS))),
        1 => of("/metadata/annotations/a", number.to_string().into()),
        // A DaemonSet's annotation comes back, but its field manager has lost it: another version.
        2 if kind != kind::DAEMON_SETS => of("/metadata/annotations", Value::Null),
        3 => of("/metadata/finalizers", Value::Null),
        4 => of("/metadata/finalizers", json!(["e.x/f", "e.x/g"])),
        5 if rng.chance(50) => of("/metadata/ownerReferences", owners()),
        5 => of("/metadata/generation", 17.into()),
        6 | 7 => status(kind, rng).map_or_else(
            || of("/metadata/labels/tier", "t".into()),
            |status| of("/status", status),
        ),
        _ => spec(kind, rng),
    }
}

fn spec(kind: Kind, rng: &mut Rng) -> Edit {
    let of = |pointer: &str, value: Value| Edit { pointer: pointer.to_owned(), value };
    let number = rng.range(0, 4);
    let image = format!("i:{number}");
    match (kind.group, kind.plural) {
        ("", "pods") => of("/spec/activeDeadlineSeconds", 50.into()),
        ("", "configmaps") => of("/data/k", number.to_string().into()),
        ("apps", "daemonsets") if rng.chance(50) => of("/spec/minReadySeconds", number.into()),
        ("apps", "daemonsets") => {
            of("/spec/template/spec/containers", json!([{"name": "c", "image": image}]))
        }
        ("apps", "controllerrevisions") => of("/revision", (number + 1).into()),
        ("apps", _) if rng.chance(30) => of("/spec/minReadySeconds", number.into()),
        ("apps", "deployments" | "statefulsets") if rng.chance(40) => {
            let container = json!({"name": "c", "image": image});
            of("/spec/template/spec/containers", json!([container]))
        }
        ("apps", "deployments") if rng.chance(30) => {
            let template = json!({"app": "other"});
            of("/spec/selector/matchLabels", template)
        }
        (
            "apps" | "",
            "deployments" | "replicasets" | "statefulsets" | "replicationcontrollers",
        ) => of("/spec/replicas", number.into()),
        ("batch", "jobs") => of("/spec/parallelism", number.into()),
        ("batch", "cronjobs") => of("/spec/suspend", rng.chance(50).into()),
        ("coordination.k8s.io", _) => of("/spec/holderIdentity", image.into()),
        ("", "nodes") => of("/spec/unschedulable", true.into()),
        ("", "serviceaccounts") => of("/automountServiceAccountToken", false.into()),
        ("", "namespaces" | "persistentvolumeclaims") => {
            of("/metadata/labels/b", number.to_string().into())
        }
        _ if kind == budgets() => of("/spec/minAvailable", number.into()),
        _ => of("/spec/replicas", number.into()),
    }
}

/// A status that the kind's controller might write.
fn status(kind: Kind, rng: &mut Rng) -> Option<Value> {
    let (high, low) = (rng.range(1, 4), rng.range(0, 2));
    let condition = json!([{"type": "Ready", "status": "True", "reason": "", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    Some(match (kind.group, kind.plural) {
        ("", "pods") => {
            let phases = ["Pending", "Running", "Succeeded", "Failed"];
            json!({"phase": rng.pick(&phases), "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready",
                    "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        }
        ("apps", "deployments") => json!({"replicas": high, "updatedReplicas": low,
            "readyReplicas": low, "availableReplicas": low, "observedGeneration": 1,
            "unavailableReplicas": high - low}),
        ("apps", "replicasets") => json!({"replicas": high, "readyReplicas": low,
            "terminatingReplicas": 0, "availableReplicas": low, "observedGeneration": low}),
        ("", "replicationcontrollers") => json!({"replicas": high, "readyReplicas": low}),
        ("apps", "statefulsets") => json!({"replicas": high, "readyReplicas": low,
            "availableReplicas": low, "currentReplicas": low, "currentRevision": "r",
            "updateRevision": ""}),
        ("apps", "daemonsets") => json!({"desiredNumberScheduled": high, "numberReady": low}),
        ("batch", "jobs") => json!({"active": low, "ready": 0, "terminating": 0}),
        ("batch", "cronjobs") => json!({"lastScheduleTime": "2026-01-01T00:00:00Z"}),
        ("", "nodes") => json!({"conditions": condition, "capacity": {"cpu": "8"}}),
        ("", "persistentvolumeclaims") => json!({"phase": "Bound"}),
        _ if kind == budgets() => json!({"currentHealthy": high, "desiredHealthy": low,
            "disruptionsAllowed": low, "expectedPods": high, "observedGeneration": 1}),
        _ if kind == custom() => json!({"a": low, "conditions": []}),
        _ => return None,
    })
}

/// Applies an edit; with `keeps_null`, null is a value instead of a removal.
pub fn set(object: &mut Value, edit: &Edit, keeps_null: bool) {
    let mut at = object;
    let mut parts = edit.pointer.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let fields = at.as_object_mut().expect("made an object above");
        if parts.peek().is_none() && edit.value.is_null() && !keeps_null {
            fields.remove(part);
            return;
        }
        at = fields.entry(part).or_insert(Value::Null);
    }
    *at = edit.value.clone();
}

/// The edits as operations of a JSON patch.
pub fn operations(edits: &[Edit], rng: &mut Rng) -> Value {
    let operation = |edit: &Edit, rng: &mut Rng| match (edit.value.is_null(), rng.range(0, 3)) {
        (true, _) => json!({"op": "remove", "path": edit.pointer}),
        (_, 0) => json!({"op": "replace", "path": edit.pointer, "value": edit.value}),
        (_, 1) => json!({"op": "test", "path": edit.pointer, "value": edit.value}),
        _ => json!({"op": "add", "path": edit.pointer, "value": edit.value}),
    };
    edits.iter().map(|edit| operation(edit, rng)).collect()
}
