//! Reading dumps of a cluster: lists, single objects, arrays, watch events, streams of any of them.
//!
//! Input: bytes of JSON. Output: typed objects with where they came from.
//! Owner: pure functions over bytes; reading files is the caller's. Bounds: the input's size; at most
//! `NESTING_MAX` lists within lists.
//! An object that cannot be used is an error that names file, object, field, line and column: a dump
//! that is silently half read gives wrong answers.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::position::{offset, path_at, position, sniff};
use super::valid::{self, Flaw};

/// Longest name of a node or pod.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go DNS1123SubdomainMaxLength
const NAME_BYTES_MAX: usize = 253;
/// Lists within lists that are followed.
const NESTING_MAX: usize = 8;

/// Everything a simulation uses of a dump.
#[derive(Debug, Default)]
pub struct Dump {
    /// Nodes in their order.
    pub nodes: Vec<Node>,
    /// Pods in their order.
    pub pods: Vec<Pod>,
    /// Namespaces.
    pub namespaces: Vec<Namespace>,
    /// Services.
    pub services: Vec<Service>,
    /// Replica sets.
    pub replica_sets: Vec<ReplicaSet>,
    /// Stateful sets.
    pub stateful_sets: Vec<StatefulSet>,
    /// Replication controllers.
    pub replication_controllers: Vec<ReplicationController>,
    /// Disruption budgets.
    pub budgets: Vec<PodDisruptionBudget>,
    /// Priority classes, for pods that have no priority yet.
    pub priority_classes: Vec<PriorityClass>,
    /// Objects of other kinds, by kind, not looked at.
    pub ignored: BTreeMap<String, usize>,
    /// Nodes and pods that came again, not as news of a watch, each as its name, where it is now and
    /// where it was first.
    pub again: Vec<String>,
    /// Where nodes and pods are, by kind and name.
    known: HashMap<(&'static str, String), usize>,
    /// Places of nodes and of pods that a watch says are gone.
    gone: [HashSet<usize>; 2],
    /// What comes is news of a watch.
    is_news: bool,
    /// Where each node and pod starts, for messages: file and line.
    pub node_places: Vec<String>,
    /// As above, pods.
    pub pod_places: Vec<String>,
}

impl Dump {
    fn node(&mut self, node: Node, place: String) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let all = (&mut self.nodes, &mut self.node_places);
        let again = keep(all, &mut self.known, ("Node", name), (node, place));
        self.again.extend(again.filter(|_| !self.is_news));
    }

    fn pod(&mut self, pod: Pod, place: String) {
        let all = (&mut self.pods, &mut self.pod_places);
        let again = keep(all, &mut self.known, ("Pod", pod_name(&pod)), (pod, place));
        self.again.extend(again.filter(|_| !self.is_news));
    }

    /// A watch tells that an object is gone; only nodes and pods are found again.
    fn forget(&mut self, text: &str) {
        let gone: Named = serde_json::from_str(text).unwrap_or_default();
        let name = gone.metadata.name.unwrap_or_default();
        let (kind, name) = match gone.kind.as_deref() {
            Some("Node") => ("Node", name),
            Some("Pod") => {
                let namespace = gone.metadata.namespace.as_deref().unwrap_or("default");
                ("Pod", format!("{namespace}/{name}"))
            }
            _ => return,
        };
        if let Some(at) = self.known.remove(&(kind, name)) {
            self.gone[usize::from(kind == "Pod")].insert(at);
        }
    }

    /// Leaves out what is gone, once for all of it.
    fn settle(&mut self) {
        let [nodes, pods] = std::mem::take(&mut self.gone);
        if nodes.is_empty() && pods.is_empty() {
            return;
        }
        leave_out(&mut self.nodes, &nodes);
        leave_out(&mut self.node_places, &nodes);
        leave_out(&mut self.pods, &pods);
        leave_out(&mut self.pod_places, &pods);
        let name = |node: &Node| node.metadata.name.clone().unwrap_or_default();
        let nodes = self.nodes.iter().enumerate().map(|(at, node)| (("Node", name(node)), at));
        let pods = self.pods.iter().enumerate().map(|(at, pod)| (("Pod", pod_name(pod)), at));
        self.known = nodes.chain(pods).collect();
    }
}

/// A stream tells of an object as often as it changes: the last one counts. Says where it is if it was
/// there before.
fn keep<T>(
    (all, places): (&mut Vec<T>, &mut Vec<String>),
    known: &mut HashMap<(&'static str, String), usize>,
    (kind, name): (&'static str, String),
    (object, place): (T, String),
) -> Option<String> {
    let Some(&at) = known.get(&(kind, name.clone())) else {
        known.insert((kind, name), all.len());
        all.push(object);
        places.push(place);
        return None;
    };
    all[at] = object;
    let before = std::mem::replace(&mut places[at], place);
    Some(format!("{kind} {name} ({}, before that {before})", places[at]))
}

fn leave_out<T>(all: &mut Vec<T>, gone: &HashSet<usize>) {
    let mut at = 0..;
    all.retain(|_| at.next().is_none_or(|at| !gone.contains(&at)));
}

/// namespace/name.
pub(crate) fn pod_name(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or(""))
}

/// Why a dump cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {object}: {field}{problem}")]
pub struct LoadError {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// Kind, namespace and name, or its number in the file.
    pub object: String,
    /// Path of the field with a colon, or nothing.
    pub field: String,
    /// What is wrong.
    pub problem: String,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default, borrow)]
    items: Option<Vec<&'a RawValue>>,
    #[serde(default, rename = "type")]
    event: Option<String>,
    #[serde(default, borrow)]
    object: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct Named {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
}

struct Loader<'a> {
    file: &'a str,
    bytes: &'a [u8],
    count: usize,
    /// Byte, line and start of that line, as far as places were asked for.
    seen: (usize, usize, usize),
    dump: &'a mut Dump,
}

/// Adds the objects in `bytes`, called `file` in messages, to `dump`.
///
/// # Errors
/// The first object that cannot be used.
pub fn load(file: &str, bytes: &[u8], dump: &mut Dump) -> Result<(), LoadError> {
    // Some shells put a byte order mark before what they redirect.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut loader = Loader { file, bytes, count: 0, seen: (0, 1, 0), dump };
    let mut stream = serde_json::Deserializer::from_slice(bytes).into_iter::<&RawValue>();
    loop {
        let start = stream.byte_offset();
        match stream.next() {
            None => break,
            Some(Ok(raw)) => loader.document(raw, None, 0)?,
            Some(Err(_)) if loader.count == 0 && !looks_like_json(&bytes[start..]) => {
                let problem = "is no JSON in UTF-8: write it with -o json, as kubectl get nodes,pods -A \
                    -o json; of a manifest kubectl create --dry-run=client -o json -f FILE makes it";
                return Err(loader.error(start, "file".into(), String::new(), problem.to_owned()));
            }
            Some(Err(error)) => return Err(loader.syntax(start, &error)),
        }
    }
    if loader.count == 0 {
        let problem = "holds no objects; expected the output of kubectl get -o json".to_owned();
        return Err(loader.error(0, "file".into(), String::new(), problem));
    }
    dump.settle();
    Ok(())
}

impl<'a> Loader<'a> {
    fn document(
        &mut self,
        raw: &'a RawValue,
        kind: Option<&str>,
        depth: usize,
    ) -> Result<(), LoadError> {
        let text = raw.get();
        let at = text.as_ptr() as usize - self.bytes.as_ptr() as usize;
        if depth > NESTING_MAX {
            let problem = format!("lists are nested more than {NESTING_MAX} deep");
            return Err(self.error(at, self.number(), String::new(), problem));
        }
        if text.starts_with('[') {
            let items: Vec<&RawValue> =
                serde_json::from_str(text).map_err(|e| self.typed(at, text, None, &e))?;
            return items.into_iter().try_for_each(|item| self.document(item, kind, depth + 1));
        }
        if !text.starts_with('{') {
            let problem = "is not an object".to_owned();
            return Err(self.error(at, self.number(), String::new(), problem));
        }
        let head: Head<'a> =
            serde_json::from_str(text).map_err(|e| self.typed(at, text, None, &e))?;
        if let (Some(event), Some(object)) = (&head.event, head.object) {
            // A watch: what was deleted is not there, a bookmark is no object.
            return match event.as_str() {
                "DELETED" => {
                    self.dump.forget(object.get());
                    Ok(())
                }
                "BOOKMARK" | "ERROR" => Ok(()),
                _ => {
                    let before = std::mem::replace(&mut self.dump.is_news, true);
                    let read = self.document(object, None, depth + 1);
                    self.dump.is_news = before;
                    read
                }
            };
        }
        let own = head.kind.as_deref();
        let is_list = own.is_some_and(|k| k.ends_with("List"));
        if let Some(items) = head.items {
            let kind = own.and_then(|k| k.strip_suffix("List")).filter(|k| !k.is_empty());
            let kind = kind.map(str::to_owned);
            // An empty list still is an answer.
            self.count += usize::from(items.is_empty());
            return items
                .into_iter()
                .try_for_each(|item| self.document(item, kind.as_deref(), depth + 1));
        }
        if is_list {
            self.count += 1;
            return Ok(());
        }
        let Some(kind) = own.or(kind) else {
            let problem = "is missing".to_owned();
            return Err(self.error(at, self.named(text, None), "kind: ".into(), problem));
        };
        self.object(at, text, kind)
    }

    fn object(&mut self, at: usize, text: &str, kind: &str) -> Result<(), LoadError> {
        match kind {
            "Node" => {
                let node: Node = self.parse(at, text, kind)?;
                let name = node.metadata.name.as_deref();
                self.require_name(at, text, kind, name)?;
                self.require_valid(at, (kind, name.unwrap_or_default()), valid::node(&node))?;
                let place = self.place(at);
                self.dump.node(node, place);
            }
            "Pod" => {
                let pod: Pod = self.parse(at, text, kind)?;
                self.require_name(at, text, kind, pod.metadata.name.as_deref())?;
                self.require_valid(at, (kind, &pod_name(&pod)), valid::pod(&pod))?;
                let place = self.place(at);
                self.dump.pod(pod, place);
            }
            "Namespace" => {
                let object = self.parse(at, text, kind)?;
                self.dump.namespaces.push(object);
            }
            "Service" => {
                let object = self.parse(at, text, kind)?;
                self.dump.services.push(object);
            }
            "ReplicaSet" => {
                let object = self.parse(at, text, kind)?;
                self.dump.replica_sets.push(object);
            }
            "StatefulSet" => {
                let object = self.parse(at, text, kind)?;
                self.dump.stateful_sets.push(object);
            }
            "ReplicationController" => {
                let object = self.parse(at, text, kind)?;
                self.dump.replication_controllers.push(object);
            }
            "PodDisruptionBudget" => {
                let object = self.parse(at, text, kind)?;
                self.dump.budgets.push(object);
            }
            "PriorityClass" => {
                let object = self.parse(at, text, kind)?;
                self.dump.priority_classes.push(object);
            }
            _ => *self.dump.ignored.entry(kind.to_owned()).or_default() += 1,
        }
        self.count += 1;
        Ok(())
    }

    fn parse<T: DeserializeOwned>(
        &self,
        at: usize,
        text: &str,
        kind: &str,
    ) -> Result<T, LoadError> {
        // The list may have named the kind for its items; the types insist on their own.
        match serde_json::from_str(text) {
            Ok(object) => Ok(object),
            Err(error) if missing_type(&error) => {
                let mut value: serde_json::Value =
                    serde_json::from_str(text).map_err(|e| self.typed(at, text, Some(kind), &e))?;
                let version = match kind {
                    "ReplicaSet" | "StatefulSet" => "apps/v1",
                    "PodDisruptionBudget" => "policy/v1",
                    "PriorityClass" => "scheduling.k8s.io/v1",
                    _ => "v1",
                };
                if let Some(object) = value.as_object_mut() {
                    object.entry("apiVersion").or_insert_with(|| version.into());
                    object.entry("kind").or_insert_with(|| kind.into());
                }
                let text = value.to_string();
                serde_json::from_str(&text).map_err(|e| self.retyped(at, &text, kind, &e))
            }
            Err(error) => Err(self.typed(at, text, Some(kind), &error)),
        }
    }

    fn require_name(
        &self,
        at: usize,
        text: &str,
        kind: &str,
        name: Option<&str>,
    ) -> Result<(), LoadError> {
        let problem = match name {
            Some(name) if name.len() > NAME_BYTES_MAX => {
                format!("has {} bytes, more than the {NAME_BYTES_MAX} of a name", name.len())
            }
            Some(name) if !name.is_empty() => return Ok(()),
            _ => "is missing".to_owned(),
        };
        let object = match name {
            Some(_) => format!("{kind} ({})", self.number()),
            None => self.named(text, Some(kind)),
        };
        Err(self.error(at, object, "metadata.name: ".into(), problem))
    }

    /// What the API would not take would be judged as if it did.
    fn require_valid(
        &self,
        at: usize,
        (kind, name): (&str, &str),
        found: Result<(), Flaw>,
    ) -> Result<(), LoadError> {
        found.map_err(|(field, problem)| {
            self.error(at, format!("{kind} {name}"), format!("{field}: "), problem)
        })
    }

    fn number(&self) -> String {
        format!("object {}", self.count + 1)
    }

    /// Kind, namespace and name of an object, or its number.
    fn named(&self, text: &str, kind: Option<&str>) -> String {
        let head: Named = serde_json::from_str(text).unwrap_or_default();
        let kind = head.kind.as_deref().or(kind);
        match (kind, head.metadata.namespace, head.metadata.name) {
            (Some(kind), Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
            (Some(kind), None, Some(name)) => format!("{kind} {name}"),
            (None, _, Some(name)) => format!("object {name}"),
            (Some(kind), _, None) => format!("{kind} ({})", self.number()),
            _ => self.number(),
        }
    }

    /// File, line and column of an object; objects are asked for in their order.
    fn place(&mut self, at: usize) -> String {
        let (from, mut line, mut start) = self.seen;
        for (offset, _) in self.bytes[from..at].iter().enumerate().filter(|(_, b)| **b == b'\n') {
            line += 1;
            start = from + offset + 1;
        }
        self.seen = (at, line, start);
        format!("{}:{line}:{}", self.file, at - start + 1)
    }

    fn error(&self, at: usize, object: String, field: String, problem: String) -> LoadError {
        let (line, column) = position(self.bytes, at);
        LoadError { file: self.file.to_owned(), line, column, object, field, problem }
    }

    /// An error of a typed parse of the object at `at`.
    fn typed(
        &self,
        at: usize,
        text: &str,
        kind: Option<&str>,
        error: &serde_json::Error,
    ) -> LoadError {
        let inner = offset(text.as_bytes(), error.line(), error.column());
        let path = path_at(text.as_bytes(), inner);
        let field = if path.is_empty() { path } else { format!("{path}: ") };
        self.error(at + inner, self.named(text, kind), field, plain(error))
    }

    /// As `typed`, when the text was rewritten: only the object's own position is known.
    fn retyped(&self, at: usize, text: &str, kind: &str, error: &serde_json::Error) -> LoadError {
        let inner = offset(text.as_bytes(), error.line(), error.column());
        let path = path_at(text.as_bytes(), inner);
        let field = if path.is_empty() { path } else { format!("{path}: ") };
        self.error(at, self.named(text, Some(kind)), field, plain(error))
    }

    /// An error of the JSON itself.
    fn syntax(&self, start: usize, error: &serde_json::Error) -> LoadError {
        let at = offset(self.bytes, error.line(), error.column());
        let path = path_at(&self.bytes[start.min(at)..], at.saturating_sub(start));
        let field = if path.is_empty() { path } else { format!("{path}: ") };
        let object = sniff(&self.bytes[start..at]).unwrap_or_else(|| self.number());
        let mut found = self.error(at, object, field, plain(error));
        (found.line, found.column) = (error.line(), error.column());
        found
    }
}

fn looks_like_json(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'['))
}

fn missing_type(error: &serde_json::Error) -> bool {
    let text = error.to_string();
    text.contains("missing field `kind`") || text.contains("missing field `apiVersion`")
}

/// The message without its own position.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_load(text: &str) -> Result<Dump, LoadError> {
        let mut dump = Dump::default();
        load("f.json", text.as_bytes(), &mut dump).map(|()| dump)
    }

    const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;
    const POD: &str = concat!(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"#,
        r#""spec":{"containers":[{"name":"c"}]}}"#
    );

    #[test]
    fn lists_streams_arrays_and_watches_hold_the_same_objects() {
        let bare = r#"{"metadata":{"name":"n"}}"#;
        for text in [
            format!(r#"{{"apiVersion":"v1","kind":"List","items":[{NODE},{POD}]}}"#),
            format!("{NODE}\n{POD}\n"),
            format!("[{NODE},{POD}]"),
            format!(r#"{{"kind":"NodeList","items":[{bare}]}} {POD}"#),
            format!(r#"{{"type":"ADDED","object":{NODE}}}{{"type":"ADDED","object":{POD}}}"#),
        ] {
            let dump = try_load(&text).expect(&text);
            assert_eq!((dump.nodes.len(), dump.pods.len()), (1, 1), "{text}");
        }
    }

    #[test]
    fn the_last_word_of_a_watch_about_an_object_counts() {
        let pod = |name: &str| POD.replace("\"p\"", &format!("\"{name}\""));
        let told = |event: &str, object: &str| format!(r#"{{"type":"{event}","object":{object}}}"#);
        let text = [
            told("ADDED", NODE),
            told("ADDED", &pod("a")),
            told("ADDED", &pod("b")),
            told("DELETED", &pod("a")),
            told("MODIFIED", &pod("b")),
            told("DELETED", &pod("never")),
            told("DELETED", NODE),
            told("ADDED", &pod("a")),
        ];
        let dump = try_load(&text.join("\n")).expect("a watch");
        assert_eq!((dump.nodes.len(), dump.again.len()), (0, 0));
        let names: Vec<String> = dump.pods.iter().map(pod_name).collect();
        let lines: Vec<_> = dump.pod_places.iter().map(|place| place.split(':').nth(1)).collect();
        assert_eq!(names, ["default/b", "default/a"]);
        assert_eq!(lines, [Some("5"), Some("8")]);
        assert_eq!(dump.known[&("Pod", "default/a".to_owned())], 1);
    }

    #[test]
    fn a_wrong_field_is_named_with_its_object_and_position() {
        let text = "{\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\
            \"metadata\":{\"name\":\"p\",\"namespace\":\"a\"},\n\"spec\":{\"containers\":[\
            {\"name\":\"c\"},{\"name\":5}]}}]}";
        let error = try_load(text).expect_err("wrong");
        assert_eq!(error.object, "Pod a/p");
        assert_eq!(error.field, "spec.containers[1].name: ");
        assert_eq!(error.line, 3);
    }

    #[test]
    fn broken_json_and_empty_files_say_where() {
        let cut = r#"{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"p"},"spec":{"#;
        let error = try_load(cut).expect_err("cut off");
        assert_eq!((error.object.as_str(), error.field.as_str()), ("Pod p", "items[0].spec: "));
        let error = try_load("{\"kind\":\"Node\",\n \"metadata\": {\"name\": }}").expect_err("bad");
        assert_eq!((error.line, error.field.as_str()), (2, "metadata.name: "));
        let marked = format!("\u{feff}{NODE}");
        assert_eq!(try_load(&marked).expect("a byte order mark says nothing").nodes.len(), 1);
        for other in ["apiVersion: v1\nkind: Node\n", "\u{fffd}\u{fffd}{"] {
            let error = try_load(other).expect_err("no JSON");
            assert!(error.problem.contains("kubectl get nodes,pods -A -o json"), "{error}");
        }
        let error = try_load(&NODE.replace("\"n\"", &format!("\"{}\"", "n".repeat(254))));
        assert!(error.expect_err("too long").problem.contains("254 bytes"));
        assert!(try_load("").expect_err("empty").problem.contains("no objects"));
        assert!(try_load("{\"kind\":\"Node\"").is_err());
        let error = try_load(r#"{"kind":"Node","apiVersion":"v1","metadata":{}}"#);
        let error = error.expect_err("no name");
        assert_eq!((&*error.field, &*error.object), ("metadata.name: ", "Node (object 1)"));
        let pod = POD.replace(r#"{"name":"c"}"#, "");
        let error = try_load(&format!("{NODE}\n{pod}")).expect_err("no containers");
        assert_eq!((&*error.field, error.line), ("spec.containers: ", 2));
    }
}
