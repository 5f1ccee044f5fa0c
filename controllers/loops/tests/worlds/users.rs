//! Users of a world: they create workloads, change any of their fields, delete pods and
//! workloads, and in the end want the state of the last change.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{
    DAEMON_SETS, DEPLOYMENTS, JOBS, Kind, NODES, PODS, REPLICA_SETS, REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
};
use pintle_api_types::request::{DeleteOptions, PatchForm, Propagation, Request, Target};
use pintle_api_types::rng::Rng;
use pintle_memory_api::Server;
use serde_json::{Value, json};

/// The namespace of all workloads.
pub(crate) const NAMESPACE: &str = "default";

/// The objects of the world before its first step.
pub(crate) fn beginning() -> Vec<Request> {
    // A new node has a taint until its controller has seen it.
    let ready = (0..3).map(|at| Request::Patch {
        target: Target::object(NODES, ObjectKey::new("", &format!("node-{at}"))),
        form: PatchForm::Merge,
        body: json!({"spec": {"taints": null}}),
    });
    (0..3).map(|at| create(NODES, "", node(at))).chain(ready).collect()
}

fn node(at: u64) -> Value {
    json!({"metadata": {"name": format!("node-{at}"), "labels": {"zone": (at % 2).to_string()}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

fn create(kind: Kind, namespace: &str, body: Value) -> Request {
    Request::Create { kind, namespace: namespace.to_owned(), below: None, body }
}

fn template(labels: &Value, image: u64) -> Value {
    json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": format!("image-{image}")}]}})
}

/// A workload of a kind.
fn workload(kind: Kind, name: &str, rng: &mut Rng) -> Value {
    let labels = json!({"app": format!("{}-{name}", kind.plural)});
    let mut template = template(&labels, rng.range(0, 3));
    let meta = json!({"name": name});
    match kind.plural {
        "jobs" => {
            template["spec"]["restartPolicy"] = json!("Never");
            let behaviour = *rng.pick(&["succeed", "succeed", "fail"]);
            template["metadata"]["labels"]["behaviour"] = json!(behaviour);
            json!({"metadata": meta, "spec": {"template": template,
                "completions": rng.range(1, 4), "parallelism": rng.range(1, 4),
                "backoffLimit": rng.range(0, 3)}})
        }
        "daemonsets" => json!({"metadata": meta, "spec": {"template": template,
            "selector": {"matchLabels": labels}}}),
        "replicationcontrollers" => json!({"metadata": meta, "spec": {"template": template,
            "replicas": rng.range(0, 5), "selector": labels}}),
        _ => json!({"metadata": meta, "spec": {"template": template, "replicas": rng.range(0, 5),
            "selector": {"matchLabels": labels}, "serviceName": "s"}}),
    }
}

/// The kinds of workloads that users create.
pub(crate) const WORKLOADS: &[Kind] =
    &[DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS, DAEMON_SETS, JOBS];

/// The next thing that a user does.
pub(crate) fn step(server: &Server, rng: &mut Rng) -> Request {
    let kind = *rng.pick(WORKLOADS);
    let existing: Vec<_> = server.objects(kind, NAMESPACE).map(|(key, _)| key.clone()).collect();
    let pods: Vec<_> = server.objects(PODS, NAMESPACE).map(|(key, _)| key.clone()).collect();
    match rng.range(0, 10) {
        0..=2 => {
            let name = format!("w{}", rng.range(0, 4));
            create(kind, NAMESPACE, workload(kind, &name, rng))
        }
        3 if !existing.is_empty() => {
            let options = DeleteOptions {
                propagation: Some(*rng.pick(&[Propagation::Background, Propagation::Foreground])),
                ..Default::default()
            };
            let target = Target::object(kind, rng.pick(&existing).clone());
            Request::Delete { target, options }
        }
        4 if !pods.is_empty() => {
            let target = Target::object(PODS, rng.pick(&pods).clone());
            Request::Delete { target, options: DeleteOptions::default() }
        }
        _ if !existing.is_empty() => change(kind, rng.pick(&existing), rng),
        _ => create(kind, NAMESPACE, workload(kind, "w0", rng)),
    }
}

/// A change of some field of a workload.
fn change(kind: Kind, key: &ObjectKey, rng: &mut Rng) -> Request {
    let body = match (kind.plural, rng.range(0, 4)) {
        ("jobs", 0) => json!({"spec": {"suspend": rng.chance(50)}}),
        ("jobs", _) => json!({"spec": {"parallelism": rng.range(0, 4)}}),
        ("daemonsets", _) | (_, 0) => {
            let image = format!("image-{}", rng.range(0, 3));
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
        }
        _ => json!({"spec": {"replicas": rng.range(0, 5)}}),
    };
    let target = Target::object(kind, key.clone());
    Request::Patch { target, form: PatchForm::Merge, body }
}
