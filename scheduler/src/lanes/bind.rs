//! One binding: sent once; where the answer is lost, the pod says what became of it.
// k8s: pkg/scheduler/framework/plugins/defaultbinder/default_binder.go Bind

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::cycle::command::{Ended, PodRef};

/// Longest wait for one answer, the wait for the request's turn included.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// How often a pod is asked where it is, and the pause between.
const ASK_MAX: u32 = 10;
const ASK_AGAIN: Duration = Duration::from_millis(500);

pub(super) async fn bind(client: kube::Client, pod: &PodRef, node: &str) -> Ended {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let binding = json!({
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": &*pod.uid},
        "target": {"kind": "Node", "name": node},
    });
    let pods = Api::<Pod>::namespaced(client, namespace);
    let params = PostParams::default();
    let sent = pods.create_subresource::<Value, Value>("binding", name, &params, &binding);
    match tokio::time::timeout(ANSWER_MAX, sent).await {
        Ok(Ok(_)) => Ended::Bound,
        // The API server has decided. A server that is in trouble may have bound it all the same.
        Ok(Err(kube::Error::Api(status))) if status.code < 500 => failed(&status.message),
        Ok(Err(error)) => ask(&pods, pod, node, error.to_string()).await,
        Err(_) => ask(&pods, pod, node, "no answer in time".to_owned()).await,
    }
}

/// Where the pod is: an answer that is lost says nothing.
async fn ask(pods: &Api<Pod>, pod: &PodRef, node: &str, error: String) -> Ended {
    for _ in 0..ASK_MAX {
        match tokio::time::timeout(ANSWER_MAX, pods.get_opt(pod.key.name())).await {
            Ok(Ok(Some(found))) => {
                let is_it = found.metadata.uid.as_deref() == Some(&*pod.uid);
                let at = found.spec.and_then(|spec| spec.node_name).unwrap_or_default();
                return if is_it && at == node { Ended::Bound } else { failed(&error) };
            }
            Ok(Ok(None)) => return failed(&error),
            Ok(Err(_)) | Err(_) => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
    failed(&error)
}

fn failed(error: &str) -> Ended {
    Ended::Failed(format!("running Bind plugin \"DefaultBinder\": {error}"))
}
