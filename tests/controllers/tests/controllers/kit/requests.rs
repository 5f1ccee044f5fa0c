//! Requests of one namespace: JSON objects in, JSON objects out.
//!
//! Input: a kind's name and an object's name. Output: the object, or `null` where there is none;
//! any other refusal is an error with the server's message. Kinds without a namespace ignore it.

use anyhow::{Context, Result, bail};
use http_body_util::BodyExt as _;
use hyper::Request;
use kube::client::Body;
use serde_json::{Value, json};

/// Kind, group and version, plural, whether it has a namespace.
const KINDS: [(&str, &str, &str, bool); 27] = [
    ("Namespace", "v1", "namespaces", false),
    ("Node", "v1", "nodes", false),
    ("Pod", "v1", "pods", true),
    ("Service", "v1", "services", true),
    ("ConfigMap", "v1", "configmaps", true),
    ("Secret", "v1", "secrets", true),
    ("ServiceAccount", "v1", "serviceaccounts", true),
    ("ResourceQuota", "v1", "resourcequotas", true),
    ("ReplicationController", "v1", "replicationcontrollers", true),
    ("Event", "v1", "events", true),
    ("PersistentVolumeClaim", "v1", "persistentvolumeclaims", true),
    ("Deployment", "apps/v1", "deployments", true),
    ("ReplicaSet", "apps/v1", "replicasets", true),
    ("StatefulSet", "apps/v1", "statefulsets", true),
    ("DaemonSet", "apps/v1", "daemonsets", true),
    ("ControllerRevision", "apps/v1", "controllerrevisions", true),
    ("Job", "batch/v1", "jobs", true),
    ("CronJob", "batch/v1", "cronjobs", true),
    ("Lease", "coordination.k8s.io/v1", "leases", true),
    ("Role", "rbac.authorization.k8s.io/v1", "roles", true),
    ("CustomResourceDefinition", "apiextensions.k8s.io/v1", "customresourcedefinitions", false),
    ("APIService", "apiregistration.k8s.io/v1", "apiservices", false),
    ("Crate", "cases.pintle.test/v1", "crates", true),
    ("Parcel", "parcels.pintle.test/v1", "parcels", true),
    ("Chest", "chests.pintle.test/v1", "chests", true),
    ("Basket", "baskets.pintle.test/v1", "baskets", true),
    ("CrateOfV2", "cases.pintle.test/v2", "crates", true),
];
const NOT_FOUND: u16 = 404;

/// How an object is deleted.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeleteHow {
    /// The propagation policy; the kind's default without one.
    pub propagation: Option<&'static str>,
    /// The grace period in seconds.
    pub grace: Option<u32>,
}

impl DeleteHow {
    /// At once.
    pub const NOW: Self = Self { propagation: None, grace: Some(0) };

    /// With this propagation policy.
    pub const fn with(propagation: &'static str) -> Self {
        Self { propagation: Some(propagation), grace: None }
    }
}

/// A client and a namespace.
#[derive(Clone)]
pub struct NamespaceClient {
    client: kube::Client,
    /// The namespace.
    pub namespace: String,
}

impl NamespaceClient {
    /// Requests with this client.
    pub fn new(client: kube::Client, namespace: String) -> Self {
        Self { client, namespace }
    }

    /// The same in another namespace.
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self::new(self.client.clone(), namespace.to_owned())
    }

    /// The object; `null` where there is none.
    pub async fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.send("GET", &path(kind, &self.namespace, name), &Value::Null).await
    }

    /// All objects of the kind, each with its kind and version.
    pub async fn list(&self, kind: &str) -> Result<Vec<Value>> {
        self.list_with(kind, "").await
    }

    /// Those with this label selector.
    pub async fn list_with(&self, kind: &str, selector: &str) -> Result<Vec<Value>> {
        let selector = selector.replace('=', "%3D").replace(',', "%2C");
        let path = format!("{}?labelSelector={selector}", path(kind, &self.namespace, ""));
        let mut list = self.send("GET", &path, &Value::Null).await?;
        let Value::Array(mut items) = list["items"].take() else { return Ok(Vec::new()) };
        for item in &mut items {
            item["kind"] = kind.into();
            item["apiVersion"] = list["apiVersion"].clone();
        }
        Ok(items)
    }

    /// Creates an object of these fields.
    pub async fn create(&self, kind: &str, name: &str, fields: Value) -> Result<Value> {
        let mut object = fields;
        object["kind"] = kind.into();
        object["apiVersion"] = version(kind).into();
        object["metadata"]["name"] = name.into();
        let created = self.send("POST", &path(kind, &self.namespace, ""), &object).await?;
        anyhow::ensure!(!created.is_null(), "create {kind} {name}: not found");
        Ok(created)
    }

    /// Changes an object by a merge patch.
    pub async fn patch(&self, kind: &str, name: &str, patch: Value) -> Result<Value> {
        self.send("PATCH", &path(kind, &self.namespace, name), &patch).await
    }

    /// Changes its status by a merge patch.
    pub async fn patch_status(&self, kind: &str, name: &str, status: Value) -> Result<Value> {
        let path = format!("{}/status", path(kind, &self.namespace, name));
        self.send("PATCH", &path, &json!({"status": status})).await
    }

    /// Sends an object to a subresource.
    pub async fn create_sub(&self, kind: &str, name: &str, sub: &str, body: &Value) -> Result<()> {
        let path = format!("{}/{sub}", path(kind, &self.namespace, name));
        self.send("POST", &path, body).await.map(drop)
    }

    /// Deletes an object; a missing object is no error.
    pub async fn delete(&self, kind: &str, name: &str, how: DeleteHow) -> Result<()> {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(policy) = how.propagation {
            options["propagationPolicy"] = policy.into();
        }
        if let Some(grace) = how.grace {
            options["gracePeriodSeconds"] = grace.into();
        }
        self.send("DELETE", &path(kind, &self.namespace, name), &options).await.map(drop)
    }

    /// Removes an object's finalizers.
    pub async fn remove_finalizers(&self, kind: &str, name: &str) -> Result<Value> {
        self.patch(kind, name, json!({"metadata": {"finalizers": null}})).await
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let form = if method == "PATCH" { "merge-patch+json" } else { "json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", format!("application/{form}"))
            .header("Accept", "application/json")
            .body(Body::from(body))?;
        let answer = self.client.send(request).await.with_context(|| format!("{method} {path}"))?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await?.to_bytes();
        if status.as_u16() == NOT_FOUND {
            return Ok(Value::Null);
        }
        let answer = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if !status.is_success() {
            bail!("{method} {path}: {status} {}", answer["message"].as_str().unwrap_or_default());
        }
        Ok(answer)
    }
}

fn version(kind: &str) -> &'static str {
    row(kind).1
}

fn path(kind: &str, namespace: &str, name: &str) -> String {
    let (_, version, plural, has_namespace) = *row(kind);
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let below = if has_namespace { format!("/namespaces/{namespace}") } else { String::new() };
    let name = if name.is_empty() { String::new() } else { format!("/{name}") };
    format!("{root}/{version}{below}/{plural}{name}")
}

fn row(kind: &str) -> &'static (&'static str, &'static str, &'static str, bool) {
    let row = KINDS.iter().find(|row| row.0 == kind);
    row.unwrap_or_else(|| panic!("{kind} is in the table of kinds"))
}
