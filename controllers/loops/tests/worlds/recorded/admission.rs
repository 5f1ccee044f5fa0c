//! Admission by ResourceQuota: creations beyond a quota are refused, others are counted at once.
//!
//! Input: requests to the server in memory. Output: its answers, 403 for an object that its
//! namespace's quotas leave no room for. Counted are objects, and the requests and limits of pods;
//! scopes are not known here. The usage in the status is that of the quota controller and grows
//! with each creation, as in the real API server.
// k8s: staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go CheckRequest

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, RESOURCE_QUOTAS};
use pintle_api_types::quantity::Amount;
use pintle_api_types::request::{Answer, ApiError, PatchForm, Request, Target};
use pintle_memory_api::{Identity, Server};
use serde_json::{Value, json};

/// The usage that an object adds to a resource.
fn usage(kind: Kind, object: &Value, resource: &str) -> Amount {
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    let counted = resource.strip_prefix("count/").unwrap_or(resource);
    let is_count = counted == format!("{}{group}", kind.plural);
    if is_count {
        return Amount::from_millis(1_000);
    }
    let (part, name) = match resource.split_once('.') {
        Some((part @ ("requests" | "limits"), name)) => (part, name),
        _ => ("requests", resource),
    };
    let containers = object["spec"]["containers"].as_array().into_iter().flatten();
    let amounts = containers.filter_map(|one| one["resources"][part][name].as_str());
    match kind.plural {
        "pods" => amounts.filter_map(Amount::parse).fold(Amount::ZERO, |sum, one| sum + one),
        _ => Amount::ZERO,
    }
}

/// A quota with one more object.
struct Charge {
    used: Value,
    /// The resources that exceed the quota, as the refusal lists them; empty if none.
    excess: String,
}

fn charge(kind: Kind, object: &Value, quota: &Value) -> Charge {
    let mut used = quota["status"]["used"].clone();
    let parse = |value: &Value| value.as_str().and_then(Amount::parse).unwrap_or_default();
    let (mut requested, mut had, mut limited) = (Vec::new(), Vec::new(), Vec::new());
    for (resource, hard) in quota["status"]["hard"].as_object().into_iter().flatten() {
        let more = usage(kind, object, resource);
        let before = parse(&used[resource]);
        if more.is_zero() {
            continue;
        }
        if before + more > parse(hard) {
            requested.push(format!("{resource}={}", more.canonical()));
            had.push(format!("{resource}={}", before.canonical()));
            limited.push(format!("{resource}={}", parse(hard).canonical()));
        }
        used[resource] = (before + more).canonical().into();
    }
    if requested.is_empty() {
        return Charge { used, excess: String::new() };
    }
    let [requested, had, limited] = [requested, had, limited].map(|all| all.join(","));
    Charge { used, excess: format!("requested: {requested}, used: {had}, limited: {limited}") }
}

/// Answers a request as a server with quotas does.
pub(super) fn handle(
    server: &mut Server,
    identity: &Identity,
    request: &Request,
    now: Timestamp,
) -> Answer {
    let Request::Create { kind, namespace, below: None, body } = request else {
        return server.handle(identity, request, now);
    };
    let quotas: Vec<(ObjectKey, Value)> = server
        .objects(RESOURCE_QUOTAS, namespace)
        .map(|(key, quota)| (key.clone(), Value::clone(quota)))
        .collect();
    let mut charges = Vec::new();
    for (key, quota) in quotas.into_iter().filter(|_| !namespace.is_empty()) {
        let Charge { used, excess } = charge(*kind, body, &quota);
        if !excess.is_empty() {
            return Err(refusal(*kind, body, key.name(), &excess));
        }
        if used != quota["status"]["used"] {
            charges.push((key, used));
        }
    }
    let answer = server.handle(identity, request, now)?;
    for (key, used) in charges {
        let target = Target::status(RESOURCE_QUOTAS, key);
        let body = json!({"status": {"used": used}});
        let patch = Request::Patch { target, form: PatchForm::Merge, body };
        server.handle(&Identity::Admin, &patch, now)?;
    }
    Ok(answer)
}

fn refusal(kind: Kind, body: &Value, quota: &str, why: &str) -> ApiError {
    let metadata = &body["metadata"];
    let name = match (metadata["name"].as_str(), metadata["generateName"].as_str()) {
        (Some(name), _) => name.to_owned(),
        (None, prefix) => format!("{}bcdfg", prefix.unwrap_or_default()),
    };
    let plural = kind.plural;
    let message = format!("{plural} \"{name}\" is forbidden: exceeded quota: {quota}, {why}");
    ApiError { code: 403, reason: "Forbidden".into(), message, ..ApiError::default() }
}
