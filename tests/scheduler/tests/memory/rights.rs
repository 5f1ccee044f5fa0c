//! Rights of every controller, asked of both servers.
//!
//! Input: the identities of the table in `api/memory`. Output: the requests that one server allows
//! and the other refuses. The real server is asked by SubjectAccessReview, nothing is changed.

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{DeleteOptions, PatchForm, Request, Subresource, Target};
use pintle_memory_api::{Identity, Server};
use serde_json::{Value, json};

use super::generate::budgets;
use super::real;

/// Reviews at the same time.
const AT_ONCE: usize = 8;
const NAMESPACE: &str = "default";
const NAME: &str = "x";
const VERBS: [&str; 7] = ["get", "list", "create", "update", "patch", "delete", "deletecollection"];
const SUBRESOURCES: [&str; 5] = ["", "status", "scale", "finalize", "token"];

/// A request that an identity may be allowed to make.
#[derive(Clone, Debug)]
struct Question {
    identity: Identity,
    verb: &'static str,
    kind: Kind,
    sub: &'static str,
}

fn kinds() -> [Kind; 24] {
    [
        kind::PODS,
        kind::NODES,
        kind::NAMESPACES,
        kind::SERVICES,
        kind::ENDPOINTS,
        kind::EVENTS,
        kind::CONFIG_MAPS,
        kind::SECRETS,
        kind::SERVICE_ACCOUNTS,
        kind::RESOURCE_QUOTAS,
        kind::REPLICATION_CONTROLLERS,
        kind::PERSISTENT_VOLUMES,
        kind::PERSISTENT_VOLUME_CLAIMS,
        kind::DEPLOYMENTS,
        kind::REPLICA_SETS,
        kind::STATEFUL_SETS,
        kind::DAEMON_SETS,
        kind::CONTROLLER_REVISIONS,
        kind::JOBS,
        kind::CRON_JOBS,
        kind::LEASES,
        budgets(),
        Kind::interned("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true),
        Kind::interned("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", false),
    ]
}

/// Every question that the servers answer differently.
pub async fn differences(client: &kube::Client) -> Result<Vec<String>> {
    let server = Server::new(1);
    let mut questions = Vec::new();
    for identity in server.identities() {
        for kind in kinds() {
            for sub in SUBRESOURCES {
                let verbs = VERBS.iter().filter(|verb| can_be_asked(verb, sub));
                questions.extend(verbs.map(|verb| {
                    let identity = identity.clone();
                    Question { identity, verb, kind, sub }
                }));
            }
        }
    }
    println!("{} questions", questions.len());
    let asked = stream::iter(questions).map(|question| async move {
        let is_allowed = ask_real(client, &question).await?;
        let differs = is_allowed != ask_model(&question);
        Ok(differs.then(|| format!("really {is_allowed}: {question:?}")))
    });
    let results: Vec<Result<Option<String>>> = asked.buffer_unordered(AT_ONCE).collect().await;
    results.into_iter().filter_map(Result::transpose).collect()
}

fn can_be_asked(verb: &str, sub: &str) -> bool {
    match sub {
        "" => true,
        "token" => verb == "create",
        _ => ["get", "update", "patch"].contains(&verb),
    }
}

async fn ask_real(client: &kube::Client, question: &Question) -> Result<bool> {
    let Question { identity, verb, kind, sub } = question;
    let mut groups = vec!["system:authenticated"];
    if matches!(identity, Identity::Controller(_)) {
        groups.extend(["system:serviceaccounts", "system:serviceaccounts:kube-system"]);
    }
    // A namespace is in itself, and creations and lists name no object.
    let name = if ["list", "create", "deletecollection"].contains(verb) { "" } else { NAME };
    let namespace = match kind.is_namespaced {
        true => NAMESPACE,
        false if *kind == kind::NAMESPACES => name,
        false => "",
    };
    let name = if *sub == "token" { NAME } else { name };
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": identity.user(), "groups": groups, "resourceAttributes": {
            "namespace": namespace, "verb": verb, "group": kind.group, "version": kind.version,
            "resource": kind.plural, "subresource": sub, "name": name}}});
    let reviews = Kind::interned(
        "authorization.k8s.io",
        "v1",
        "subjectaccessreviews",
        "SubjectAccessReview",
        false,
    );
    let (kind, namespace) = (reviews, String::new());
    let request = Request::Create { kind, namespace, below: None, body };
    let answer = real::ask(client, &request).await?.context("a review")?;
    Ok(answer["status"]["allowed"] == true)
}

/// A new server a question, because it performs an allowed request.
fn ask_model(question: &Question) -> bool {
    let request = request(question);
    let answer = Server::empty(1).handle(&question.identity, &request, Timestamp::UNIX_EPOCH);
    !answer.is_err_and(|error| error.message.contains(" cannot "))
}

fn request(question: &Question) -> Request {
    let Question { verb, kind, sub, .. } = question;
    let (kind, sub) = (*kind, *sub);
    let namespace = if kind.is_namespaced { NAMESPACE } else { "" }.to_owned();
    let target = Target { kind, key: ObjectKey::new(&namespace, NAME), sub };
    let (labels, body) = (String::new(), Value::Null);
    match *verb {
        "get" => Request::Read { target, only_metadata: false },
        "list" => Request::List { kind, namespace, labels, only_metadata: false },
        "update" => Request::Replace { target, body },
        "patch" => Request::Patch { target, form: PatchForm::Merge, body },
        "delete" => Request::Delete { target, options: DeleteOptions::default() },
        "deletecollection" => Request::DeleteCollection { kind, namespace, propagation: None },
        _ => {
            let below = (!sub.is_empty()).then(|| Subresource { name: NAME.to_owned(), sub });
            Request::Create { kind, namespace, below, body }
        }
    }
}
