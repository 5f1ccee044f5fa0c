//! The steps of a recording's user, from their sentences.
//!
//! Known: `create|delete|strategic patch|merge patch RESOURCE/NAME[/SUBRESOURCE]`, `kubectl rollout
//! undo deployment/NAME`, and `fake kubelet: POD PHASE[, exit N][, with condition TYPE=STATUS]` or
//! `fake kubelet: POD becomes [not ]ready`. Any other sentence panics. Names of pods that the
//! recorded server completed are those of ours that were created at the same place of their row.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CONFIG_MAPS, DEPLOYMENTS, Kind, NODES, PODS, REPLICA_SETS, SECRETS};
use pintle_api_types::request::{
    DeleteOptions, PatchForm, Propagation, Request, Subresource, Target,
};
use serde_json::{Value, json};

use super::normal::family;
use super::play::{Player, create};
use super::pods::Report;

/// The kind of a resource's name; those that only some objects are followed of have the same name.
pub(super) fn kind_of(plural: &str) -> Option<Kind> {
    let special = [CONFIG_MAPS, SECRETS].into_iter().find(|kind| kind.plural == plural);
    special.or_else(|| Kind::all_known().find(|kind| kind.plural == plural))
}

/// The subresources that steps are about.
fn subresource(name: Option<&str>) -> &'static str {
    match name {
        None => "",
        Some("scale") => "scale",
        Some("status") => "status",
        Some(other) => panic!("steps about the subresource {other} cannot be played"),
    }
}

impl Player<'_> {
    pub(super) fn do_step(&mut self, at: usize) {
        let step = &self.recording["steps"][at];
        let what = step["what"].as_str().expect("a sentence");
        if let Some(name) = what.strip_prefix("kubectl rollout undo deployment/") {
            return self.undo(name);
        }
        if let Some(report) = what.strip_prefix("fake kubelet: ") {
            return self.report_step(report);
        }
        // Code 0 or none means a step that is no single request.
        let is_expected = step["code"].as_u64().is_none_or(|code| code < 400);
        let request = self.request_of(what, &step["object"]);
        let answer = self.ask(request);
        let is_same = answer.is_ok() == is_expected;
        assert!(is_same, "{what}: ours {:?}, recorded {}", answer.err(), step["code"]);
        self.mark_nodes_ready();
    }

    fn request_of(&self, what: &str, object: &Value) -> Request {
        // The additional step of a new node applies to every node.
        let (what, _) = what.split_once(", then ").unwrap_or((what, ""));
        let (verb, path) = what.rsplit_once(' ').expect("verb and path");
        let mut parts = path.split('/');
        let plural = parts.next().unwrap_or_default();
        let kind = kind_of(plural).unwrap_or_else(|| panic!("{what}: no such kind is known"));
        let name = self.our_name(kind, parts.next().expect("a name"));
        let sub = parts.next();
        let namespace = if kind.is_namespaced { self.namespace } else { "" };
        let key = ObjectKey::new(namespace, &name);
        let body =
            if object.is_null() { json!({"metadata": {"name": name}}) } else { object.clone() };
        let target = |sub| Target { kind, key: key.clone(), sub };
        match (verb, sub) {
            ("create", None) => create(kind, namespace, body),
            ("create", Some("eviction")) => {
                let below = Some(Subresource { name: name.clone(), sub: "eviction" });
                let mut body = body;
                body["metadata"]["name"] = name.into();
                Request::Create { kind, namespace: namespace.to_owned(), below, body }
            }
            ("strategic patch", sub) => Request::Patch {
                target: target(subresource(sub)),
                form: PatchForm::Strategic,
                body,
            },
            ("merge patch", sub) => {
                Request::Patch { target: target(subresource(sub)), form: PatchForm::Merge, body }
            }
            ("delete", None) => {
                let options = delete_options(object);
                Request::Delete { target: target(""), options }
            }
            _ => panic!("{what}: such a step cannot be played"),
        }
    }

    /// A sentence of the kubelet about one pod.
    fn report_step(&mut self, sentence: &str) {
        let (name, rest) = sentence.split_once(' ').expect("a pod and what becomes of it");
        let key = ObjectKey::new(self.namespace, &self.our_name(PODS, name));
        let mut report =
            Report { phase: "Running", is_ready: false, exit_code: 0, condition: None };
        for part in rest.split(", ") {
            match part {
                "becomes ready" | "ready" => report.is_ready = true,
                "becomes not ready" | "not ready" => report.is_ready = false,
                "Running" | "Succeeded" => report.phase = part,
                "Failed" => {
                    report.phase = part;
                    report.exit_code = 1;
                }
                _ if part.starts_with("exit ") => {
                    report.exit_code = part[5..].parse().expect("an exit code");
                }
                _ => {
                    let condition = part.strip_prefix("with condition ");
                    let condition = condition.and_then(|text| text.split_once('='));
                    assert!(condition.is_some(), "fake kubelet: {part:?} cannot be played");
                    report.condition = condition;
                }
            }
        }
        self.report(key, &report);
    }

    /// Nodes are ready as soon as they exist.
    pub(super) fn mark_nodes_ready(&mut self) {
        const NOT_READY: &str = "node.kubernetes.io/not-ready";
        let is_not_ready = |taint: &Value| taint["key"] == NOT_READY;
        let nodes: Vec<_> = self
            .server
            .objects(NODES, "")
            .map(|(key, node)| (key.clone(), Value::clone(node)))
            .collect();
        for (key, node) in nodes {
            let Some(taints) = node["spec"]["taints"].as_array() else { continue };
            if !taints.iter().any(is_not_ready) {
                continue;
            }
            let others: Vec<_> = taints.iter().filter(|taint| !is_not_ready(taint)).collect();
            let body = json!({"spec": {"taints": others}});
            let target = Target::object(NODES, key.clone());
            let patch = Request::Patch { target, form: PatchForm::Merge, body };
            self.ask(patch).expect("the node is there");
            let body = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
                "capacity": {"cpu": "64", "memory": "256Gi", "pods": "500"},
                "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "500"}}});
            let target = Target::status(NODES, key);
            let patch = Request::Patch { target, form: PatchForm::Merge, body };
            self.ask(patch).expect("the node is there");
        }
    }

    /// Our name of a pod for which the recorded server made another one.
    fn our_name(&self, kind: Kind, recorded: &str) -> String {
        let writes = self.recording["writes"].as_array().expect("writes");
        let prefix = family(recorded);
        let is_creation = |write: &&Value| {
            let is_generated = write["body"]["metadata"]["name"].as_str().is_none_or(str::is_empty);
            let name = write["name"].as_str().unwrap_or_default();
            let is_pod = write["verb"] == "create" && write["resource"] == "pods";
            is_pod && is_generated && write["code"] == 201 && family(name) == prefix
        };
        let mut created = writes.iter().filter(is_creation);
        let at = created.position(|write| write["name"] == recorded);
        let Some(at) = at.filter(|_| kind == PODS) else { return recorded.to_owned() };
        let ours = self.writes.iter().filter_map(|write| match (&write.request, &write.answer) {
            (Request::Create { kind, .. }, Ok(pod)) if *kind == PODS => {
                pod["metadata"]["name"].as_str()
            }
            _ => None,
        });
        let mut ours = ours.filter(|name| family(name) == prefix);
        ours.nth(at).expect("as many pods were created").to_owned()
    }

    /// `kubectl rollout undo`: restores the template and annotations of the last but one revision.
    fn undo(&mut self, name: &str) {
        let key = ObjectKey::new(self.namespace, name);
        let live = self.server.object(DEPLOYMENTS, &key).expect("it is there");
        let mut whole = Value::clone(live);
        let uid = whole["metadata"]["uid"].clone();
        let revision = |set: &Value| {
            let text = &set["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
            text.as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or_default()
        };
        let sets = self.server.objects(REPLICA_SETS, self.namespace);
        let is_own = |set: &Value| set["metadata"]["ownerReferences"][0]["uid"] == uid;
        let mut sets: Vec<_> =
            sets.filter(|(_, set)| is_own(set)).map(|(_, set)| Value::clone(set)).collect();
        sets.sort_by_key(|set| revision(set));
        let last = &sets[sets.len() - 2];
        let mut template = last["spec"]["template"].clone();
        let labels = template["metadata"]["labels"].as_object_mut().expect("labels");
        labels.remove("pod-template-hash");
        whole["spec"]["template"] = template;
        let target = Target::object(DEPLOYMENTS, key);
        self.ask(Request::Replace { target, body: whole }).expect("it is not refused");
    }
}

fn delete_options(body: &Value) -> DeleteOptions {
    let propagation = match body["propagationPolicy"].as_str() {
        Some("Orphan") => Propagation::Orphan,
        Some("Foreground") => Propagation::Foreground,
        _ => Propagation::Background,
    };
    let grace_seconds = body["gracePeriodSeconds"].as_i64();
    DeleteOptions { propagation: Some(propagation), grace_seconds, ..Default::default() }
}
