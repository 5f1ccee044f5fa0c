//! Amounts that node-allocatable devices take, in a pod's status: written before the pod is bound,
//! cleared when it gets another node.
//!
//! Input: a pod, the amounts of its claims. Output: a patch of its status. Owner: the task that
//! writes its claims. Bounds: the retries of any status write.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/nodeallocatabledynamicresources.go

use k8s_openapi::api::core::v1::NodeAllocatableResourceClaimStatus;
use pintle_scheduler_core::pod_fields::PodRef;
use serde_json::{Value, json};

use super::devices::ClaimWriteError;
use super::{path_of, status};

/// Writes the entries.
///
/// # Errors
/// The write failed.
// k8s: patchNodeAllocatableResourceClaimStatus
pub(super) async fn say(
    client: &kube::Client,
    pod: &PodRef,
    statuses: &[NodeAllocatableResourceClaimStatus],
) -> Result<(), ClaimWriteError> {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let written = write(client, pod, json!(statuses)).await;
    written.map_err(|error| {
        let why = match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        };
        ClaimWriteError::Shares { pod: format!("{namespace}/{name}"), why }
    })
}

/// Clears the entries; a deleted pod needs no write.
// k8s: clearNodeAllocatableResourceClaimStatus
pub(super) async fn clear(client: &kube::Client, pod: &PodRef) {
    let is_gone =
        |error: &kube::Error| matches!(error, kube::Error::Api(s) if [404, 409].contains(&s.code));
    match write(client, pod, Value::Null).await {
        Err(error) if !is_gone(&error) => {
            let pod = pod.key.as_str();
            tracing::warn!(%error, pod, "its status still says what devices took of a node");
        }
        _ => {}
    }
}

async fn write(client: &kube::Client, pod: &PodRef, statuses: Value) -> kube::Result<()> {
    // The list is replaced as a whole. A pod with the same name and another uid is another pod.
    let patch = json!({"metadata": {"uid": &*pod.uid},
        "status": {"nodeAllocatableResourceClaimStatuses": statuses}});
    status::send(client, &(path_of(&pod.key) + "/status"), &patch).await
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt as _;
    use hyper::{Request, Response};
    use kube::client::Body;
    use pintle_api_types::key::ObjectKey;

    use super::*;

    /// Paths and bodies of requests.
    type Sent = Arc<Mutex<Vec<(String, String)>>>;

    /// A server with these answers, and the requests it got.
    fn server(codes: &[u16]) -> (kube::Client, Sent) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let (seen, codes) = (Arc::clone(&sent), codes.to_vec());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, codes) = (Arc::clone(&seen), codes.clone());
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await?.to_bytes();
                let text = String::from_utf8_lossy(&body).into_owned();
                let count = {
                    let mut seen = seen.lock().expect("not poisoned");
                    seen.push((path, text));
                    seen.len()
                };
                let code = codes.get(count - 1).copied().unwrap_or(200);
                let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": "Why", "message": "why not", "code": code});
                let answer = if code == 200 { json!({}) } else { refusal };
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(answer)?)
            }
        });
        (kube::Client::new(service, "default"), sent)
    }

    fn pod() -> PodRef {
        PodRef { key: ObjectKey::new("ns", "p"), uid: "u".into() }
    }

    fn statuses() -> Vec<NodeAllocatableResourceClaimStatus> {
        let one = json!([{"resourceClaimName": "c", "containers": ["main"],
            "resources": {"memory": "1Gi", "cpu": "2"}}]);
        serde_json::from_value(one).expect("statuses")
    }

    #[tokio::test]
    async fn the_status_is_replaced_and_taken_away_as_upstream_does() {
        let (client, sent) = server(&[]);
        say(&client, &pod(), &statuses()).await.expect("written");
        clear(&client, &pod()).await;
        let path = "/api/v1/namespaces/ns/pods/p/status";
        // Equals upstream's patch of two statuses, except for the uid.
        let one = r#"[{"containers":["main"],"resourceClaimName":"c","resources":{"cpu":"2","memory":"1Gi"}}]"#;
        let text = |value: &str| {
            format!(
                r#"{{"metadata":{{"uid":"u"}},"status":{{"nodeAllocatableResourceClaimStatuses":{value}}}}}"#
            )
        };
        let want = [one, "null"].map(|value| (path.to_owned(), text(value)));
        assert_eq!(*sent.lock().expect("not poisoned"), want);
    }

    #[tokio::test]
    async fn failed_status_write_is_reported_and_a_deleted_pod_is_not_retried() {
        let (client, sent) = server(&[503, 422]);
        let failed = say(&client, &pod(), &statuses()).await;
        let why = "updating pod ns/p NodeAllocatableResourceClaimStatuses: why not";
        assert_eq!(failed.expect_err("refused").to_string(), why);
        assert_eq!(sent.lock().expect("not poisoned").len(), 2, "it was tried again once");
        let (client, sent) = server(&[404]);
        clear(&client, &pod()).await;
        assert_eq!(sent.lock().expect("not poisoned").len(), 1);
    }
}
