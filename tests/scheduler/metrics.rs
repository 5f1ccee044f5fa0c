//! What kube-scheduler's port says of a cluster, and ours beside it.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::Api;
use pintle_tests::wait::{LONG, until};
use serde_json::{Value, json};

use crate::shadow::create;
use crate::stand::{PORT, Stand};

/// Pods that declare something of every kind.
pub async fn declaring(client: &kube::Client, namespace: &str) -> Result<()> {
    let overhead = json!({"podFixed": {"cpu": "250m", "memory": "10Mi"}});
    let class = json!({"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": overhead});
    create(&Api::<RuntimeClass>::all(client.clone()), class).await?;
    let one = |name: &str, requests: Value, limits: Value| {
        json!({"name": name, "image": "i",
            "resources": {"requests": requests, "limits": limits}})
    };
    let with = |mut object: Value, field: &str, value: Value| {
        object[field] = value;
        object
    };
    let plain = one("a", json!({"cpu": "300m", "memory": "64Mi"}), json!({"cpu": "1"}));
    let small = one("b", json!({"cpu": "1500u", "ephemeral-storage": "1G"}), json!({}));
    let huge = json!({"hugepages-2Mi": "4Mi", "memory": "1Gi"});
    let huge = one("c", json!({"cpu": "2"}), huge);
    let nothing = one("d", json!({"cpu": "0"}), json!({}));
    let sidecar = with(small.clone(), "restartPolicy", json!("Always"));
    let init = one("e", json!({"cpu": "3", "memory": "1536Ki"}), json!({"cpu": "3"}));
    let volumes = json!({"example.com/thing": "3"});
    let volumes = one("f", volumes.clone(), volumes);
    let of_pod = json!({"requests": {"cpu": "4", "memory": "2Gi"}, "limits": {"cpu": "5"}});
    let specs = [
        json!({"containers": [plain]}),
        json!({"containers": [plain, small, huge, nothing]}),
        json!({"containers": [plain, huge], "initContainers": [sidecar, init]}),
        json!({"containers": [plain, nothing], "runtimeClassName": "heavy"}),
        json!({"containers": [huge], "runtimeClassName": "heavy", "schedulerName": "else"}),
        json!({"containers": [volumes], "schedulingGates": [{"name": "g"}]}),
        json!({"containers": [plain, nothing], "resources": of_pod}),
        json!({"containers": [plain], "priorityClassName": "system-node-critical"}),
        json!({"containers": [plain], "nodeName": "ours-selectors"}),
    ];
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for (at, spec) in specs.into_iter().enumerate() {
        let pod = json!({"metadata": {"name": format!("declares-{at}")}, "spec": spec});
        create(&pods, pod).await.with_context(|| format!("pod {at}"))?;
    }
    Ok(())
}

/// Both say the same of all pods, to whoever may ask, byte by byte.
pub fn resources_alike(stand: &Stand, port: u16) {
    let path = "/metrics/resources";
    for port in [PORT, port] {
        let refused = stand.get_from(port, path, None);
        assert!(refused.starts_with("HTTP/1.1 403"), "{port}: {refused}");
    }
    until(LONG, "both know all pods", || {
        let [theirs, ours] =
            [PORT, port].map(|port| samples(&stand.get_from(port, path, Some("admin"))));
        let difference = theirs.iter().zip(&ours).find(|(theirs, ours)| theirs != ours);
        ensure!(difference.is_none(), "{difference:?}");
        ensure!(theirs.len() == ours.len(), "{} lines, ours {}", theirs.len(), ours.len());
        let has = |word: &str| theirs.iter().filter(|line| line.contains(word)).count();
        for word in [
            "unit=\"cores\"",
            "unit=\"bytes\"",
            "unit=\"\"",
            "node=\"\"",
            "hugepages-2Mi",
            "e+0",
            "scheduler=\"else\"",
            "priority=\"2000001000\"",
            "kube_pod_resource_limit{",
        ] {
            ensure!(has(word) > 0, "nothing of {word}");
        }
        println!("{path}: {} lines, {} of them of declares-*", theirs.len(), has("declares-"));
        Ok(())
    });
}

/// The lines of an answer that has a body, also of one that comes in pieces.
fn samples(answer: &str) -> Vec<String> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return body.lines().map(str::to_owned).collect();
    }
    let (mut rest, mut whole) = (body, String::new());
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let (Some(piece), true) = (more.get(..size), size > 0) else { break };
        whole.push_str(piece);
        rest = more.get(size + 2..).unwrap_or_default();
    }
    whole.lines().map(str::to_owned).collect()
}
