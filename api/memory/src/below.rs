//! Subresources that are created below an object, and objects that are answered and not stored.
//!
//! Input: TokenRequest of a service account, Binding of a pod, reviews. Output: the server's
//! answers. A token is no signed one, but a text of what the real one claims, with a number.
//! Evictions are in [`crate::evict`]. Pure.

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, Subresource, Target};
use serde_json::{Value, json};

use crate::server::Server;
use crate::{errors, meta};

/// Life of a token by default, in seconds.
const TOKEN_SECONDS: i64 = 3600;

impl Server {
    pub(crate) fn create_below(
        &mut self,
        kind: Kind,
        namespace: &str,
        below: &Subresource,
        body: &Value,
        now: Timestamp,
    ) -> Answer {
        let target = Target::object(kind, ObjectKey::new(namespace, &below.name));
        let named = json!({"metadata": {"name": below.name}});
        self.check_namespace_for_create(kind, namespace, &named)?;
        match (kind.plural, below.sub) {
            ("serviceaccounts", "token") => self.create_token(&target, body, now),
            ("pods", "binding") => self.bind(&target, body, now),
            ("pods", "eviction") => self.evict(&target, body, now),
            _ => Err(errors::no_such_path()),
        }
    }

    // k8s: pkg/registry/core/serviceaccount/storage/token.go Create
    fn create_token(&mut self, target: &Target, body: &Value, now: Timestamp) -> Answer {
        let account = meta::text(self.existing(target)?, "uid").to_owned();
        let bound = body["spec"]["boundObjectRef"]["uid"].as_str().unwrap_or("nothing");
        let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS);
        let mut answer = body.clone();
        answer["kind"] = "TokenRequest".into();
        answer["apiVersion"] = "authentication.k8s.io/v1".into();
        meta::set(&mut answer, "name", target.key.name().into());
        meta::set(&mut answer, "namespace", target.key.namespace().into());
        meta::set(&mut answer, "creationTimestamp", meta::time(now).into());
        meta::child(&mut answer, "spec").insert("expirationSeconds".to_owned(), seconds.into());
        let until = meta::time(now + SignedDuration::from_secs(seconds));
        self.tokens += 1;
        let token = format!("token-{}-of-{account}-bound-to-{bound}-until-{until}", self.tokens);
        answer["status"] = json!({"token": token, "expirationTimestamp": until});
        Ok(answer)
    }

    // k8s: pkg/registry/core/pod/storage/storage.go setPodNodeAndMetadata
    fn bind(&mut self, target: &Target, body: &Value, now: Timestamp) -> Answer {
        let node = body["target"]["name"].as_str().unwrap_or_default().to_owned();
        let name = target.key.name();
        let mut pod = Value::clone(self.existing(target)?);
        let current = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let why = if meta::is_deleting(&pod) {
            format!("pod {name} is being deleted, cannot be assigned to a host")
        } else if !current.is_empty() {
            format!("pod {name} is already assigned to node {current:?}")
        } else {
            String::new()
        };
        if !why.is_empty() {
            return Err(errors::conflict("pods/binding", name, &why));
        }
        meta::child(&mut pod, "spec").insert("nodeName".to_owned(), node.into());
        let scheduled = json!({"type": "PodScheduled", "status": "True",
            "lastTransitionTime": meta::time(now)});
        let status = meta::child(&mut pod, "status");
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        if let Some(conditions) = conditions.as_array_mut() {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(scheduled);
        }
        self.write(kind::PODS, pod);
        Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "code": 201}))
    }
}

/// The answer to a review, which is not stored: every access is allowed.
pub(crate) fn review(kind: Kind, body: &Value) -> Option<Value> {
    let is_review = ["authorization.k8s.io", "authentication.k8s.io"].contains(&kind.group);
    is_review.then(|| {
        let mut answer = body.clone();
        let verdict = if kind.plural == "tokenreviews" { "authenticated" } else { "allowed" };
        answer["status"] = json!({verdict: true});
        answer
    })
}
