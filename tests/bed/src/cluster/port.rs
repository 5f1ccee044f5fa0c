//! Requests to the agent's HTTPS port, with the credentials that a test chooses.

use std::fs;

use anyhow::{Context, Result};
use http_body_util::{BodyExt as _, Limited};
use hyper::{Method, Request};
use kube::client::Body;
use pintle_api::{Access, ClientOptions};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use xtask::cluster::layout::address;

use super::{NODE, TestCluster};

/// The port.
const PORT: u16 = 10250;
/// Most of an answer that is read, in bytes.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Credentials of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// None.
    Nobody,
    /// A bearer token.
    Token(String),
    /// A user of the cluster, by the certificate.
    User(&'static str),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReply {
    /// The status code.
    pub status: u16,
    /// The body as text.
    pub body: String,
}

impl TestCluster {
    /// Requests one path after the other; the answers are in the same order.
    pub fn ask_port(&self, who: &Who, paths: &[(Method, String)]) -> Result<Vec<PortReply>> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(&file, self.port_kubeconfig(who).to_string())?;
        self.cluster().in_control_network(|| {
            let access = Access::read(file.path())?;
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = access.client(ClientOptions::default());
                let mut answers = Vec::with_capacity(paths.len());
                for (method, path) in paths {
                    let answer = ask(&client, method, path).await;
                    answers.push(answer.with_context(|| format!("{method} {path}"))?);
                }
                Ok(answers)
            })
        })?
    }

    fn port_kubeconfig(&self, who: &Who) -> Value {
        let pki = |file: String| self.cluster().layout().pki(&file);
        let user = match who {
            Who::Nobody => json!({}),
            Who::Token(token) => json!({"token": token}),
            Who::User(user) => json!({
                "client-certificate": pki(format!("{user}.crt")),
                "client-key": pki(format!("{user}.key")),
            }),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            // The agent's certificate is its own word.
            "clusters": [{"name": "node", "cluster": {
                "server": format!("https://{}:{PORT}", address(NODE)),
                "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "who", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "node", "user": "who"}}],
            "current-context": "it",
        })
    }
}

async fn ask(client: &kube::Client, method: &Method, path: &str) -> Result<PortReply> {
    let request = Request::builder().method(method).uri(path).body(Body::empty())?;
    let answer = client.send(request).await?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), BODY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("read the answer: {error}"))?;
    Ok(PortReply { status, body: String::from_utf8_lossy(&body.to_bytes()).into_owned() })
}
