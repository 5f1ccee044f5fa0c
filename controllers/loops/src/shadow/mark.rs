//! The effect of a write, in a form in which our writes and changes in the cluster are comparable.
//!
//! Input: a request, or a change. Output: [`WriteMark`]s with the content that counts. A created
//! pod is known by its owner and template hash, since its name is random; other objects by name.
//! Pure.

use std::fmt;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{
    CONFIG_MAPS, CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, JOBS, Kind, NAMESPACES, REPLICA_SETS,
    REPLICATION_CONTROLLERS, ROOT_CA_CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, STATEFUL_SETS,
    TOKEN_SECRETS,
};
use pintle_api_types::request::{Request, Target};
use pintle_controllers_core::kinds::Pod;
use pintle_controllers_core::meta::Meta;
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::Value;

/// Labels that say which template or index a pod has.
const HASHES: [&str; 3] =
    ["pod-template-hash", "controller-revision-hash", "batch.kubernetes.io/job-completion-index"];
/// Fields that are times of writing: a second more or less is no difference.
const TIMES: [&str; 6] = [
    "lastTransitionTime",
    "lastUpdateTime",
    "lastProbeTime",
    "completionTime",
    "startTime",
    "lastSuccessfulTime",
];

/// The ConfigMap that each namespace gets.
const ROOT_CA: &str = "kube-root-ca.crt";

/// The kind of write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Create,
    Scale,
    Status,
    Update,
    Delete,
    DeleteAll,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Scale => "scale",
            Self::Status => "update the status of",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::DeleteAll => "delete all",
        })
    }
}

/// A write, by what is done to what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriteMark {
    pub(super) action: Action,
    pub(super) kind: Kind,
    /// Create: the key, or the owner's UID and the hash. Delete: the UID. Otherwise the key, or the
    /// namespace.
    pub(super) object: String,
}

impl WriteMark {
    fn new(action: Action, kind: Kind, object: impl Into<String>) -> Self {
        let kind = plain(kind);
        Self { action, kind, object: object.into() }
    }

    /// The reason that counts are kept by.
    pub(super) fn reason(&self) -> String {
        format!("{} {}", self.action, self.kind.plural)
    }
}

/// The kind without a field selector: of secrets and ConfigMaps some are followed apart.
fn plain(kind: Kind) -> Kind {
    match kind {
        kind if kind == ROOT_CA_CONFIG_MAPS => CONFIG_MAPS,
        kind if kind == TOKEN_SECRETS => SECRETS,
        kind => kind,
    }
}

/// Another watch reports the same change.
fn is_seen_twice(kind: Kind, meta: &Meta, action: Action, tables: &Tables) -> bool {
    match action {
        Action::Create => kind == CONFIG_MAPS && &*meta.name == ROOT_CA,
        Action::Delete => plain(kind) != kind && tables.metadata.contains_key(&plain(kind)),
        _ => false,
    }
}

/// A write with what it says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Deed {
    pub(super) mark: WriteMark,
    /// The number of replicas, the status.
    pub(super) content: Option<Value>,
    /// The object, for people.
    pub(super) name: String,
    /// Its place in the tables.
    pub(super) key: ObjectKey,
}

/// The effect of a request; `None` when it cannot be compared.
pub(super) fn of_request(request: &Request, tables: &Tables) -> Option<Deed> {
    match request {
        Request::Create { kind, namespace, below: None, body } => {
            let name = text(&body["metadata"]["name"]);
            let key = ObjectKey::new(namespace, name);
            let object = match name {
                "" => format!("{}/{}", owner_of(body), hash_of(body)),
                _ => key.to_string(),
            };
            let shown = match name {
                "" => text(&body["metadata"]["generateName"]).to_owned() + "*",
                _ => name.to_owned(),
            };
            let mark = WriteMark::new(Action::Create, *kind, object);
            let name = ObjectKey::new(namespace, &shown).to_string();
            Some(Deed { mark, content: None, name, key })
        }
        Request::Replace { target, body } => Some(of_replace(target, body, tables)),
        Request::Patch { target, .. } => {
            let action = if target.sub == "status" { Action::Status } else { Action::Update };
            Some(on_object(action, target, None))
        }
        Request::Delete { target, options } => {
            let known = tables.meta(target.kind, &target.key);
            let known = known.map(|meta| meta.uid.as_str().to_owned());
            let uid = options.uid.clone().or(known).unwrap_or_default();
            let mark = WriteMark::new(Action::Delete, target.kind, uid);
            let name = target.key.to_string();
            Some(Deed { mark, content: None, name, key: target.key.clone() })
        }
        Request::DeleteCollection { kind, namespace, .. } => {
            let mark = WriteMark::new(Action::DeleteAll, *kind, namespace.as_str());
            let key = ObjectKey::new("", namespace);
            Some(Deed { mark, content: None, name: namespace.clone(), key })
        }
        _ => None,
    }
}

fn of_replace(target: &Target, body: &Value, tables: &Tables) -> Deed {
    match target.sub {
        "status" => on_object(Action::Status, target, Some(plain_status(&body["status"]))),
        "finalize" => {
            let mark = WriteMark::new(Action::Delete, target.kind, text(&body["metadata"]["uid"]));
            let name = target.key.to_string();
            Deed { mark, content: None, name, key: target.key.clone() }
        }
        _ => {
            let before = tables.value(target.kind, &target.key);
            let before = before.map(|before| before["spec"]["replicas"].clone());
            let replicas = &body["spec"]["replicas"];
            match before {
                Some(before) if before != *replicas && replicas.is_i64() => {
                    on_object(Action::Scale, target, Some(replicas.clone()))
                }
                _ => on_object(Action::Update, target, None),
            }
        }
    }
}

fn on_object(action: Action, target: &Target, content: Option<Value>) -> Deed {
    let key = target.key.clone();
    let mark = WriteMark::new(action, target.kind, key.as_str());
    Deed { mark, content, name: key.to_string(), key }
}

/// The effects of a change, if controllers make such writes: alternatives of one mark first.
pub(super) fn of_change(change: &Change, tables: &Tables) -> Vec<Deed> {
    let Some(kind) = change.kind() else { return Vec::new() };
    let is_twice = |meta, action| is_seen_twice(kind, meta, action, tables);
    match (change.old_meta(), change.new_meta()) {
        (None, Some(new)) if is_twice(new, Action::Create) => Vec::new(),
        (None, Some(new)) => created(kind, new),
        (Some(old), new) => {
            if !old.is_deleting() && new.is_none_or(Meta::is_deleting) {
                let delete = deed(Action::Delete, kind, old.uid.as_str(), old);
                return if is_twice(old, Action::Delete) { Vec::new() } else { vec![delete] };
            }
            // A terminating object is deleted when its last finalizer is removed.
            let removed = || vec![deed(Action::Update, kind, old.key().as_str(), old)];
            new.map_or_else(removed, |new| changed(change, kind, old, new))
        }
        (None, None) => Vec::new(),
    }
}

/// The pod that a change deletes.
pub(super) fn victim(change: &Change) -> Option<&Pod> {
    match change {
        Change::Pod(delta) => delta.old.as_deref().map(|pod| &**pod),
        _ => None,
    }
}

/// Neither pod is to be deleted rather than the other.
// k8s: pkg/controller/controller_utils.go ActivePodsWithRanks.Less
pub(super) fn is_tie(one: &Pod, other: &Pod) -> bool {
    let rank = |pod: &Pod| {
        let ready = pod.status.conditions.iter().find(|found| &*found.kind == "Ready");
        let ready = ready.map(|found| (found.status.clone(), found.last_transition_time));
        let cost = pod.metadata.annotation("controller.kubernetes.io/pod-deletion-cost");
        let (node, phase) = (pod.spec.node_name.clone(), pod.status.phase.clone());
        (node, phase, ready, cost.map(str::to_owned), pod.metadata.creation_timestamp)
    };
    rank(one) == rank(other)
}

fn deed(action: Action, kind: Kind, object: &str, meta: &Meta) -> Deed {
    let key = meta.key();
    Deed { mark: WriteMark::new(action, kind, object), content: None, name: key.to_string(), key }
}

fn created(kind: Kind, new: &Meta) -> Vec<Deed> {
    let by_name = deed(Action::Create, kind, new.key().as_str(), new);
    let Some(owner) = new.controller() else { return vec![by_name] };
    let hash = HASHES.iter().find_map(|label| new.labels.get(label));
    let hash = hash.map(|hash| hash.to_string()).unwrap_or_default();
    vec![by_name, deed(Action::Create, kind, &format!("{}/{hash}", owner.uid), new)]
}

fn changed(change: &Change, kind: Kind, old: &Meta, new: &Meta) -> Vec<Deed> {
    let mut deeds = Vec::new();
    let is_marked = old.finalizers != new.finalizers
        || old.owner_references != new.owner_references
        || old.labels != new.labels
        || old.annotations != new.annotations;
    let key = new.key();
    let (before, after) = (change.old_value(), change.new_value());
    let mut is_updated = is_marked;
    if let (Some(before), Some(after)) = (before, after) {
        let replicas = &after["spec"]["replicas"];
        if before["spec"]["replicas"] != *replicas {
            let scale = deed(Action::Scale, kind, key.as_str(), new);
            deeds.push(Deed { content: Some(replicas.clone()), ..scale });
        } else {
            is_updated |= before["spec"] != after["spec"]
                || before["metadata"]["annotations"] != after["metadata"]["annotations"];
        }
        if before["status"] != after["status"] {
            let status = deed(Action::Status, kind, key.as_str(), new);
            deeds.push(Deed { content: Some(plain_status(&after["status"])), ..status });
        }
    }
    if is_updated {
        deeds.push(deed(Action::Update, kind, key.as_str(), new));
    }
    deeds
}

/// The controller that certainly made a change; `None` when other clients make such changes too.
pub(super) fn author(change: &Change, deed: &Deed, tables: &Tables) -> Option<&'static str> {
    let meta = change.new_meta().or(change.old_meta())?;
    match deed.mark.action {
        Action::Create => match meta.controller() {
            Some(owner) => controller_of(&owner.kind),
            None if deed.mark.kind == SERVICE_ACCOUNTS && &*meta.name == "default" => {
                Some("serviceaccount-controller")
            }
            None if change.kind() == Some(ROOT_CA_CONFIG_MAPS) => {
                Some("root-ca-certificate-publisher-controller")
            }
            None => None,
        },
        Action::Scale if deed.mark.kind == REPLICA_SETS => {
            meta.controller().and_then(|owner| controller_of(&owner.kind))
        }
        Action::Delete if !is_namespace_going(&meta.namespace, tables) => {
            let owners = &meta.owner_references;
            let all_gone = owners.iter().all(|owner| !tables.has_uid(owner.uid.as_str()));
            (!owners.is_empty() && all_gone).then_some("garbage-collector-controller")
        }
        _ => None,
    }
}

/// The controller of the objects that such an owner has.
pub(super) fn controller_of(kind: &str) -> Option<&'static str> {
    [
        (DEPLOYMENTS, "deployment-controller"),
        (REPLICA_SETS, "replicaset-controller"),
        (REPLICATION_CONTROLLERS, "replicationcontroller-controller"),
        (STATEFUL_SETS, "statefulset-controller"),
        (DAEMON_SETS, "daemonset-controller"),
        (JOBS, "job-controller"),
        (CRON_JOBS, "cronjob-controller"),
    ]
    .into_iter()
    .find(|(known, _)| known.kind == kind)
    .map(|(_, name)| name)
}

/// True if the namespace is terminating or deleted.
pub(super) fn is_namespace_going(namespace: &str, tables: &Tables) -> bool {
    let key = ObjectKey::new("", namespace);
    tables.meta(NAMESPACES, &key).is_none_or(Meta::is_deleting)
}

fn owner_of(body: &Value) -> &str {
    let owners = body["metadata"]["ownerReferences"].as_array();
    let owner = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    owner.map(|owner| text(&owner["uid"])).unwrap_or_default()
}

fn hash_of(body: &Value) -> &str {
    let labels = &body["metadata"]["labels"];
    HASHES.iter().map(|label| text(&labels[*label])).find(|hash| !hash.is_empty()).unwrap_or("")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A status without times, and without what is empty.
fn plain_status(status: &Value) -> Value {
    match status {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| !TIMES.contains(&name.as_str()));
            let fields = fields.map(|(name, value)| (name.clone(), plain_status(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(plain_status).collect()),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(is) => !is,
    }
}
