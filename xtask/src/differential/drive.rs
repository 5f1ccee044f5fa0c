//! One case on one node: created, changed, observed, deleted.
//!
//! A wait that times out does not fail the run: the current state is recorded all the same, because
//! the reader wants to see how it differs from the other node's.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::access::NodeAccess;
use super::api::{ApiConnection, KeptObjects, SeenObject};
use super::case::{Case, CaseStep, Patch};
use super::flat::{self, Lines};
use super::look::CasePlaces;

/// The pod met all expectations of a step.
pub(super) const CAME: &str = "came";
/// Limit of a step's wait.
const STEP_MAX: Duration = Duration::from_secs(90);
/// Limit for a pod's deletion.
const GONE_MAX: Duration = Duration::from_secs(60);
/// How long a pod must be unchanged before it is observed, and the limit for that.
const QUIET: (Duration, Duration) = (Duration::from_millis(1200), Duration::from_secs(6));
/// Subject of a patch of the node.
const NODE: &str = "node";
/// How often a pod is nudged.
const NUDGE: Duration = Duration::from_secs(1);
/// How often to check for an account or a namespace that a controller creates.
const PERIOD: Duration = Duration::from_millis(100);

/// A case on a node.
pub(super) struct CaseSide<'a> {
    access: &'a dyn NodeAccess,
    api: &'a ApiConnection,
    case: &'a Case,
    node: &'a str,
    namespace: String,
    name: String,
}

impl<'a> CaseSide<'a> {
    /// The namespace's name contains `round` and a number of this run, so that the pod of another
    /// round or run is not mistaken for this one's.
    pub(super) fn new(
        api: &'a ApiConnection,
        case: &'a Case,
        round: &str,
        node: &'a str,
        access: &'a dyn NodeAccess,
    ) -> Self {
        let name = flat::show(&case.pod["metadata"]["name"]);
        let name = if case.is_static { format!("{name}-{node}") } else { name };
        let run = std::process::id() % 1000;
        let namespace = format!("{}-{run}{round}-{node}", case.name);
        Self { access, api, case, node, namespace, name }
    }

    /// Runs the whole case; returns its observations.
    pub(super) fn run(&self) -> Result<Lines> {
        let seen = self.live();
        if self.case.steps.iter().any(|step| step.patch.as_ref().is_some_and(|p| p.of == NODE)) {
            let clean = json!({"spec": {"taints": null}});
            self.api.send("PATCH", &self.node_path(), Some(&clean)).context("clean the node")?;
        }
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let removed = self.api.send("DELETE", &path, None).context("remove the namespace");
        seen.and_then(|seen| removed.map(|_| seen))
    }

    fn live(&self) -> Result<Lines> {
        self.prepare()?;
        let mut lines = Lines::new();
        let mut last = SeenObject { object: Value::Null, is_gone: true, at: Instant::now() };
        for (at, step) in self.case.steps.iter().enumerate() {
            match &step.patch {
                Some(patch) => self.patch(patch)?,
                None if step.is_deletion => self.delete()?,
                None => self.create()?,
            }
            let (seen, missing) = self.wait(step);
            let suffix = if at == 0 { String::new() } else { format!("@{}", at + 1) };
            let result = missing.map_or_else(|| CAME.to_owned(), |m| m.join(", "));
            lines.insert((format!("wait{suffix}"), "missing".to_owned()), result);
            let look = CasePlaces { node: self.access, api: self.api, suffix: &suffix };
            look.at(&seen, &mut lines).context("look at the pod")?;
            // An object that is gone by now is described by its last state.
            last = if seen.object.is_null() { last } else { seen };
        }
        if !last.is_gone {
            self.delete()?;
        }
        let ended = self.ended()?;
        let look = CasePlaces { node: self.access, api: self.api, suffix: "@end" };
        look.at_end(&last, &ended, &mut lines).context("look at what is left")?;
        Ok(lines)
    }

    /// Creates the namespace, waits for the objects that controllers add, and creates the case's
    /// others.
    fn prepare(&self) -> Result<()> {
        let meta = json!({"name": self.namespace, "labels": {"pintle.test/differential": "yes"}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta});
        self.retry(|| self.api.send("POST", "/api/v1/namespaces", Some(&namespace)))?;
        for object in &self.case.objects {
            let path = self.collection(object)?;
            self.retry(|| match self.api.send("POST", &path, Some(object)) {
                // The other side has created this cluster-scoped object.
                Err(error) if format!("{error:#}").contains("AlreadyExists") => Ok(Value::Null),
                other => other,
            })?;
        }
        for path in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            let path = self.path(path);
            self.retry(|| self.api.send("GET", &path, None))?;
        }
        Ok(())
    }

    /// Until it works: a namespace of an earlier run may be going, an account not there yet.
    fn retry(&self, mut work: impl FnMut() -> Result<Value>) -> Result<()> {
        let deadline = Instant::now() + STEP_MAX;
        loop {
            match work() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(PERIOD),
            }
        }
    }

    /// Path of the collection in which objects of this kind are created.
    fn collection(&self, object: &Value) -> Result<String> {
        let kind = object["kind"].as_str().context("an object has a kind")?.to_lowercase();
        let plural = if kind.ends_with('s') { format!("{kind}es") } else { format!("{kind}s") };
        let version = object["apiVersion"].as_str().context("an object has an apiVersion")?;
        let group = match version {
            "v1" => "/api/v1".to_owned(),
            other => format!("/apis/{other}"),
        };
        Ok(match kind.as_str() {
            "runtimeclass" | "priorityclass" => format!("{group}/{plural}"),
            _ => format!("{group}/namespaces/{}/{plural}", self.namespace),
        })
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.node)
    }

    fn create(&self) -> Result<()> {
        let mut pod = self.case.pod.clone();
        if self.case.is_static {
            pod["metadata"]["namespace"] = json!(self.namespace);
            return self.access.put_manifest(&self.case.name, &pod);
        }
        if self.case.is_direct {
            pod["spec"]["nodeName"] = json!(self.node);
        } else {
            pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] = json!(self.node);
        }
        self.api.send("POST", &self.path("pods"), Some(&pod)).map(drop)
    }

    fn patch(&self, patch: &Patch) -> Result<()> {
        let path = match patch.subresource.as_str() {
            "" if patch.of == NODE => self.node_path(),
            "" => self.path(&patch.of),
            sub => self.path(&format!("{}/{sub}", patch.of)),
        };
        let answer = self.api.send("PATCH", &path, Some(&patch.body))?;
        if answer["kind"] == "Pod" {
            // The state before the patch must not count as the one that the step waits for.
            let is_seen = |kept: &KeptObjects| {
                let version_seen = version(&self.seen(kept)?.object);
                (version_seen >= version(&answer)).then_some(())
            };
            self.api.wait(STEP_MAX, is_seen).context("the watch never showed the change")?;
        }
        Ok(())
    }

    /// Waits for the step's state at rest; returns the pod, and what was still missing.
    fn wait(&self, step: &CaseStep) -> (SeenObject, Option<Vec<String>>) {
        let came = self.come(step);
        let rest = |kept: &KeptObjects| {
            let seen = self.seen(kept)?;
            let is_at_rest = seen.at.elapsed() >= QUIET.0 && !is_ending(&seen.object["status"]);
            is_at_rest.then(|| seen.clone())
        };
        let seen = self.api.wait(QUIET.1, rest);
        let absent = || SeenObject { object: Value::Null, is_gone: true, at: Instant::now() };
        let now = |kept: &KeptObjects| Some(self.seen(kept).cloned().unwrap_or_else(absent));
        let seen = seen.or_else(|| self.api.wait(Duration::ZERO, now)).unwrap_or_else(absent);
        let missing = match came {
            Some(()) => None,
            None => self.api.wait(Duration::ZERO, |kept| Some(self.missing(kept, step))),
        };
        (seen, missing.filter(|m| !m.is_empty()))
    }

    /// Waits until the pod meets all expectations of the step.
    fn come(&self, step: &CaseStep) -> Option<()> {
        let check = |kept: &KeptObjects| self.missing(kept, step).is_empty().then_some(());
        if !step.is_nudged {
            return self.api.wait(STEP_MAX, check);
        }
        let deadline = Instant::now() + STEP_MAX;
        while Instant::now() < deadline {
            if self.api.wait(NUDGE, check).is_some() {
                return Some(());
            }
            let now = format!("{:?}", Instant::now());
            let body = json!({"metadata": {"annotations": {super::look::NUDGE: now}}});
            // A pod that is not there, or no longer, is waited for all the same.
            let _ = self.api.send("PATCH", &self.path(&format!("pods/{}", self.name)), Some(&body));
        }
        None
    }

    fn seen<'k>(&self, kept: &'k KeptObjects) -> Option<&'k SeenObject> {
        kept.pods.get(&(self.namespace.clone(), self.name.clone()))
    }

    /// Expectations of the step that the pod does not meet.
    fn missing(&self, kept: &KeptObjects, step: &CaseStep) -> Vec<String> {
        let Some(pod) = self.seen(kept) else { return vec!["the pod".to_owned()] };
        if step.is_gone && !pod.is_gone {
            return vec!["its end".to_owned()];
        }
        let mut paths = flat::paths(&pod.object["status"]);
        paths.extend(flat::paths(&json!({"metadata": pod.object["metadata"]})));
        let uid = &pod.object["metadata"]["uid"];
        let words = [(self.namespace.as_str(), "<ns>"), (uid.as_str().unwrap_or("-"), "<uid>")];
        let shown = |text: &String| words.iter().fold(text.clone(), |t, (w, p)| t.replace(w, p));
        let is_there = |path: &String, value| paths.get(path).map(shown).as_ref() == Some(value);
        let lines = step.wait.iter().filter(|(path, value)| !is_there(path, value));
        let lines = lines.map(|(path, value)| format!("{path}: {value}"));
        let about = |object: &Value| {
            object["metadata"]["namespace"] == self.namespace.as_str()
                && (self.case.is_static || object["involvedObject"]["uid"] == *uid)
        };
        let has = |reason: &str| {
            kept.events.values().any(|e| about(&e.object) && e.object["reason"] == reason)
        };
        let events = step.events.iter().filter(|reason| !has(reason));
        lines.chain(events.map(|reason| format!("event {reason}"))).collect()
    }

    fn delete(&self) -> Result<()> {
        if self.case.is_static {
            return self.access.remove_manifest(&self.case.name);
        }
        let path = self.path(&format!("pods/{}", self.name));
        let body = match self.case.grace_seconds {
            Some(grace) => json!({"gracePeriodSeconds": grace}),
            None => json!({}),
        };
        self.api.send("DELETE", &path, Some(&body)).map(drop)
    }

    /// The pod's last object, gone or not.
    fn ended(&self) -> Result<SeenObject> {
        let gone = |kept: &KeptObjects| self.seen(kept).filter(|s| s.is_gone).cloned();
        let last = |kept: &KeptObjects| self.seen(kept).cloned();
        let ended = self.api.wait(GONE_MAX, gone).or_else(|| self.api.wait(QUIET.0, last));
        // The watch of events may be behind the watch of pods.
        let at_rest = |_: &KeptObjects| {
            ended.as_ref().is_none_or(|pod| pod.at.elapsed() >= QUIET.0).then_some(())
        };
        self.api.wait(QUIET.1, at_rest);
        ended.context("the pod was never seen")
    }
}

/// Returns whether the pod has ended and its sandbox has not.
fn is_ending(status: &Value) -> bool {
    let paths = flat::paths(status);
    let ready = paths.get("conditions[PodReadyToStartContainers].status");
    matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"))
        && ready.is_some_and(|ready| ready == "True")
}

/// The object's version; later ones are greater.
fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}
