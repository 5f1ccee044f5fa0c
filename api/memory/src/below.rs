//! What is created below an object, and objects that are answered and not stored.
//!
//! Input: TokenRequest of a service account, Binding and Eviction of a pod, reviews. Output: the
//! server's answers. Tokens are not signed. An eviction asks the budgets that select the pod. Pure.

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Subresource, Target};
use serde_json::{Value, json};

use crate::server::Server;
use crate::{errors, meta};

/// Life of a token whose request does not say.
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
        match (kind.plural, below.sub) {
            ("serviceaccounts", "token") => self.create_token(&target, body, now),
            ("pods", "binding") => self.bind(&target, body, now),
            ("pods", "eviction") => self.evict(&target, body, now),
            _ => Err(errors::no_such_path()),
        }
    }

    // k8s: pkg/registry/core/serviceaccount/storage/token.go Create
    fn create_token(&mut self, target: &Target, body: &Value, now: Timestamp) -> Answer {
        let account = self.existing(target)?;
        let uid = meta::text(account, "uid").to_owned();
        let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS);
        let mut answer = body.clone();
        answer["kind"] = "TokenRequest".into();
        answer["apiVersion"] = "authentication.k8s.io/v1".into();
        meta::set(&mut answer, "name", target.key.name().into());
        meta::set(&mut answer, "namespace", target.key.namespace().into());
        meta::set(&mut answer, "creationTimestamp", meta::time(now).into());
        meta::child(&mut answer, "spec").insert("expirationSeconds".to_owned(), seconds.into());
        let until = meta::time(now + SignedDuration::from_secs(seconds));
        let token = format!("token-of-{uid}-until-{until}");
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
        self.store.write(kind::PODS, pod);
        Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "code": 201}))
    }

    // k8s: pkg/registry/core/pod/storage/eviction.go Create
    fn evict(&mut self, target: &Target, body: &Value, now: Timestamp) -> Answer {
        let pod = Value::clone(self.existing(target)?);
        self.ask_budgets(target, &pod)?;
        let stated = &body["deleteOptions"];
        let options = DeleteOptions {
            uid: stated["preconditions"]["uid"].as_str().map(str::to_owned),
            grace_seconds: stated["gracePeriodSeconds"].as_i64(),
            ..DeleteOptions::default()
        };
        self.delete(target, &options, now)?;
        Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "code": 201}))
    }

    /// Takes one allowed disruption of the budget that selects a running pod.
    fn ask_budgets(&mut self, target: &Target, pod: &Value) -> Result<(), ApiError> {
        let is_over =
            ["Succeeded", "Failed", "Pending"].iter().any(|phase| pod["status"]["phase"] == *phase);
        if is_over || meta::is_deleting(pod) {
            return Ok(());
        }
        let budgets =
            Kind::interned("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true);
        let labels = meta::labels(pod);
        let selecting = self.store.objects(budgets, target.key.namespace()).find(|(_, budget)| {
            let selector = serde_json::from_value(budget["spec"]["selector"].clone()).ok();
            pintle_api_types::selector::matches(selector.as_ref(), &labels).unwrap_or(false)
        });
        let Some((_, budget)) = selecting else { return Ok(()) };
        let mut budget = Value::clone(budget);
        let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        if allowed <= 0 {
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            return Err(ApiError {
                code: 429,
                reason: "TooManyRequests".to_owned(),
                message: message.to_owned(),
                causes: vec!["DisruptionBudget".to_owned()],
                ..ApiError::default()
            });
        }
        meta::child(&mut budget, "status")
            .insert("disruptionsAllowed".to_owned(), (allowed - 1).into());
        self.store.write(budgets, budget);
        Ok(())
    }
}

/// The answer to a review, which is not stored: everything that is asked about is allowed.
pub(crate) fn review(kind: Kind, body: &Value) -> Option<Value> {
    let is_review = ["authorization.k8s.io", "authentication.k8s.io"].contains(&kind.group);
    is_review.then(|| {
        let mut answer = body.clone();
        let verdict = if kind.plural == "tokenreviews" { "authenticated" } else { "allowed" };
        answer["status"] = json!({verdict: true});
        answer
    })
}
