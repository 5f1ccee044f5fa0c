//! A pod's certificate that cannot be requested: its volume has the error.

use std::sync::Arc;
use std::time::Duration;

use pintle_agent_config::modes::ChangeDetectionStrategy;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::payload::CertificateRequest;
use pintle_agent_host::volume::content::ContentSource as _;
use pintle_memory_http::SharedServer;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::node::own::OwnNode;
use crate::objects::{Objects, Settings};

#[test]
fn reason_that_a_certificate_cannot_be_requested_is_reported() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        let server = SharedServer::new(1);
        let (own, node) = watch::channel(OwnNode::default());
        let (sender, _inputs) = mpsc::channel(64);
        let settings = Settings {
            strategy: ChangeDetectionStrategy::Watch,
            resync: Duration::from_secs(60),
            trust_bundles: false,
            claims: pintle_agent_core::volume::ClaimViews::default(),
            pod_certificates: true,
            recorder: Recorder::default(),
            node: Some(node),
        };
        let objects = Objects::new(server.client(), settings, sender);
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "sa"}});
        let (uid, pod) = (PodUid::from("u"), serde_json::from_value(pod).expect("a pod"));
        objects.register(&uid, &pod);
        let content = objects.content(&uid, &pod);
        let request =
            CertificateRequest { key_type: "RSA4096".to_owned(), ..CertificateRequest::default() };
        let told = async |why: &str| {
            let until = async {
                while !content.certificate(&request).await.is_err_and(|error| {
                    let error = error.to_string();
                    error.starts_with("credential bundle is not issued yet") && error.contains(why)
                }) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let within = tokio::time::timeout(Duration::from_secs(30), until).await;
            assert!(within.is_ok(), "{:?}", content.certificate(&request).await.err());
        };
        told("").await;
        told(": while fetching service account: ").await;
        let account = json!({"metadata": {"name": "sa", "uid": "s"}});
        server.put("/api/v1/namespaces/ns/serviceaccounts/sa", account);
        told(": while getting node object").await;
        own.send_replace(OwnNode::Present { node: Arc::default(), lists: 1 });
        told("use ECDSAP256, ECDSAP384 or ED25519").await;
    });
}
