//! Reading dumps of a cluster: lists, single objects, arrays, watch events, streams of any of them,
//! as JSON or YAML.
//!
//! Input: bytes. Output: typed objects with the defaults of the API server and their places in the
//! file. Owner: pure functions over bytes; the caller reads files. Bounds: the input's size; at
//! most `NESTING_MAX` lists within lists; `MISTAKES_MAX` mistakes are shown. An object that cannot
//! be used is an error with file, object, field, line and column, because a dump silently read in
//! part gives wrong answers. Objects that the API server would reject are collected, so that one
//! run shows all of them.

mod error;
mod kinds;

use error::of_file;
pub use error::{LoadError, MoreMistakes};
use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, api};
use kinds::{group_of, missing_type, quantities_as_text, unknown_fields};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

pub use super::dump::Dump;
use super::dump::{ByName, object_name, pod_name};
use super::read::text_of;
use super::valid::flaws::{Flaws, cut, cut_quotes};
use super::{defaults, ending, valid, yaml};

/// Longest name of a node or pod.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go DNS1123SubdomainMaxLength
const NAME_BYTES_MAX: usize = 253;
/// Levels of lists within lists.
const NESTING_MAX: usize = 8;
/// Mistakes of one file that are shown.
const MISTAKES_MAX: usize = 10;

#[derive(Deserialize)]
struct FileHead<'a> {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default, rename = "apiVersion")]
    version: Option<String>,
    #[serde(default, borrow)]
    items: Option<Vec<&'a RawValue>>,
    #[serde(default, borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(default, rename = "type")]
    event: Option<String>,
    #[serde(default, borrow)]
    object: Option<&'a RawValue>,
    #[serde(default)]
    message: Option<String>,
}

/// An object decoded only for kind, names and message.
#[derive(Deserialize, Default)]
struct NamedObject {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<LoadedNames>,
    #[serde(default)]
    message: Option<String>,
}

#[derive(Deserialize, Default)]
struct LoadedNames {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
}

/// Metadata of a list.
#[derive(Deserialize, Default)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    token: Option<String>,
}

/// Results over all texts of a file.
struct LoadedObjects<'d> {
    dump: &'d mut Dump,
    /// Objects and empty lists.
    count: usize,
    mistakes: Vec<LoadError>,
    left: usize,
}

/// An object in a text.
struct LoadedItem<'t> {
    /// Its first byte in the text.
    at: usize,
    text: &'t str,
    kind: &'t str,
}

struct Loader<'a, 'f, 'd> {
    file: &'a str,
    bytes: &'a [u8],
    /// Line of the file where the text begins, if the text was converted from YAML.
    line: Option<usize>,
    /// Byte, line and start of that line, up to the last requested place.
    seen: (usize, usize, usize),
    found: &'f mut LoadedObjects<'d>,
}

/// Adds the objects in `bytes`, called `file` in messages, to `dump`.
///
/// # Errors
/// The objects that cannot be used.
pub fn load(file: &str, bytes: &[u8], dump: &mut Dump) -> Result<(), LoadError> {
    let bytes = text_of(bytes);
    let mut found = LoadedObjects { dump, count: 0, mistakes: Vec::new(), left: 0 };
    if looks_like_json(&bytes) {
        let (file, bytes) = (file, &*bytes);
        Loader { file, bytes, line: None, seen: (0, 1, 0), found: &mut found }.json()?;
    } else {
        load_yaml(file, &bytes, &mut found)?;
    }
    let mut mistakes = std::mem::take(&mut found.mistakes).into_iter();
    if let Some(first) = mistakes.next() {
        let more = MoreMistakes { shown: mistakes.collect(), left: found.left };
        let more = (more.left > 0 || !more.shown.is_empty()).then(|| Box::new(more));
        return Err(LoadError { more, ..first });
    }
    if found.count == 0 {
        let problem = "holds no objects; expected the output of kubectl get -o json or -o yaml";
        return Err(of_file(file, 1, problem.to_owned()));
    }
    found.dump.settle();
    Ok(())
}

fn load_yaml(file: &str, bytes: &[u8], found: &mut LoadedObjects<'_>) -> Result<(), LoadError> {
    let usual = "write it with kubectl get nodes,pods -A -o json, or -o yaml";
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(of_file(file, 1, format!("is not JSON or YAML in UTF-8: {usual}")));
    };
    if let Some((line, error)) = ending::error_line(text) {
        return Err(of_file(file, line, ending::sentence(error)));
    }
    if text.len() > yaml::TEXT_BYTES_MAX {
        let most = yaml::TEXT_BYTES_MAX >> 20;
        let problem =
            format!("is YAML of more than {most} MiB: write so large a dump with -o json");
        return Err(of_file(file, 1, problem));
    }
    let all = yaml::documents(text).map_err(|broken| {
        let problem = format!("is not JSON or YAML: {}: {usual}", cut_quotes(&broken.problem));
        let problem = if broken.problem.contains("was cut") { broken.problem } else { problem };
        of_file(file, broken.line, problem)
    })?;
    for document in &all {
        let (line, bytes) = (Some(document.line), document.text.as_bytes());
        if !document.text.starts_with('{') {
            let problem = format!("is not an object: {usual}");
            return Err(of_file(file, document.line, problem));
        }
        let mut loader = Loader { file, bytes, line, seen: (0, 1, 0), found };
        let raw: &RawValue = serde_json::from_slice(bytes).map_err(|e| loader.syntax(0, &e))?;
        loader.document(raw, document.kind.as_deref(), 0)?;
    }
    Ok(())
}

impl<'a> Loader<'a, '_, '_> {
    fn json(&mut self) -> Result<(), LoadError> {
        let mut stream = serde_json::Deserializer::from_slice(self.bytes).into_iter::<&RawValue>();
        loop {
            let start = stream.byte_offset();
            match stream.next() {
                None => return Ok(()),
                Some(Ok(raw)) => self.document(raw, None, 0)?,
                Some(Err(error)) => return Err(self.ending(start, &error)),
            }
        }
    }

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
        let head: FileHead<'a> =
            serde_json::from_str(text).map_err(|e| self.typed(at, text, None, &e))?;
        if let (Some(event), Some(object)) = (&head.event, head.object) {
            return self.news(event, object, depth);
        }
        let own = head.kind.as_deref();
        if own == Some("Status") && kind.is_none() {
            let message = head.message.as_deref().unwrap_or("without a message");
            let problem =
                format!("is an error of the API server, {:?}: the dump was cut", cut(message));
            return Err(self.error(at, "Status".into(), String::new(), problem));
        }
        let is_list = own.is_some_and(|k| k.ends_with("List"));
        if is_list || head.items.is_some() {
            self.list_is_whole(at, head.metadata);
        }
        if let Some(items) = head.items {
            let kind = own.and_then(|k| k.strip_suffix("List")).filter(|k| !k.is_empty());
            let kind = kind.map(str::to_owned);
            // An empty list is an answer too.
            self.found.count += usize::from(items.is_empty());
            return items
                .into_iter()
                .try_for_each(|item| self.document(item, kind.as_deref(), depth + 1));
        }
        if is_list {
            self.found.count += 1;
            return Ok(());
        }
        let Some(kind) = own.or(kind) else {
            let problem = "is missing".to_owned();
            return Err(self.error(at, self.named(text, None), "kind: ".into(), problem));
        };
        self.object(&LoadedItem { at, text, kind }, head.version.as_deref())
    }

    /// Applies a watch event: a deleted object is removed, a bookmark is ignored.
    fn news(&mut self, event: &str, object: &'a RawValue, depth: usize) -> Result<(), LoadError> {
        match event {
            "DELETED" => {
                let gone: NamedObject = serde_json::from_str(object.get()).unwrap_or_default();
                let names = gone.metadata.unwrap_or_default();
                let metadata = ObjectMeta {
                    name: names.name,
                    namespace: names.namespace,
                    ..ObjectMeta::default()
                };
                self.found.dump.forget(gone.kind.as_deref().unwrap_or_default(), &metadata);
                self.found.count += 1;
                Ok(())
            }
            "BOOKMARK" => Ok(()),
            "ERROR" => {
                let status: NamedObject = serde_json::from_str(object.get()).unwrap_or_default();
                let message = status.message.unwrap_or_else(|| "without a message".to_owned());
                let problem =
                    format!("{}: the watch ended in an error, {:?}", self.file, cut(&message));
                self.found
                    .dump
                    .omitted
                    .incomplete
                    .push(format!("{problem}: later changes are missing"));
                Ok(())
            }
            _ => {
                let before = std::mem::replace(&mut self.found.dump.is_news, true);
                let read = self.document(object, None, depth + 1);
                self.found.dump.is_news = before;
                read
            }
        }
    }

    /// Notes a list with a `continue` token, because it is incomplete.
    fn list_is_whole(&mut self, at: usize, metadata: Option<&RawValue>) {
        let meta: ListMeta =
            metadata.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        if meta.token.is_some_and(|token| !token.is_empty()) {
            let place = self.place(at);
            let problem = "this list is cut: it has a continue token, so more objects follow it";
            self.found.dump.omitted.incomplete.push(format!("{place}: {problem}"));
        }
    }

    fn object(&mut self, item: &LoadedItem<'_>, version: Option<&str>) -> Result<(), LoadError> {
        let kind = item.kind;
        let group = version.map(|version| version.rsplit_once('/').map_or("", |(group, _)| group));
        let is_known = group_of(kind).is_some_and(|known| group.is_none_or(|group| group == known));
        self.found.count += 1;
        if !is_known {
            let group = group.filter(|group| !group.is_empty() && group_of(kind).is_some());
            let shown = group.map_or(kind.to_owned(), |group| format!("{kind}.{group}"));
            *self.found.dump.omitted.ignored.entry(cut(&shown).to_owned()).or_default() += 1;
            return Ok(());
        }
        match kind {
            "Node" => {
                let mut node: api::core::v1::Node = self.parse(item)?;
                defaults::of_node(&mut node);
                if self.is_usable(item, &node.metadata, valid::node(&node))? {
                    let place = self.place(item.at);
                    self.found.dump.put_node(node, place);
                }
            }
            "Pod" => self.pod(item)?,
            _ => self.other(item)?,
        }
        Ok(())
    }

    fn pod(&mut self, item: &LoadedItem<'_>) -> Result<(), LoadError> {
        let mut pod: api::core::v1::Pod = self.parse(item)?;
        if !valid::is_stored(&pod.metadata) {
            self.note_unknown(item, &pod);
        }
        let assumed = &mut self.found.dump.assumed;
        if defaults::name_generated(&mut pod.metadata, self.found.count) {
            let value = "generateName and a number";
            assumed.add("metadata.name", value, &pod_name(&pod));
        }
        defaults::of_pod(&mut pod, assumed);
        if self.is_usable(item, &pod.metadata, valid::pod(&pod))? {
            let place = self.place(item.at);
            self.found.dump.put_pod(pod, place);
        }
        Ok(())
    }

    /// Notes the fields of a manifest that no known version of Kubernetes reads.
    fn note_unknown(&mut self, item: &LoadedItem<'_>, pod: &api::core::v1::Pod) {
        let written: Value = serde_json::from_str(item.text).unwrap_or_default();
        let read = serde_json::to_value(pod).unwrap_or_default();
        let name = pod_name(pod);
        let unknown = unknown_fields(&written, &read).into_iter();
        let unknown = unknown.map(|field| format!("{field} (Pod {})", cut(&name)));
        self.found.dump.omitted.unknown_fields.extend(unknown);
    }

    fn other(&mut self, item: &LoadedItem<'_>) -> Result<(), LoadError> {
        match item.kind {
            "Namespace" => self.keep(item, |_| Flaws::default(), |dump| &mut dump.namespaces),
            "Service" => self.keep(item, |_| Flaws::default(), |dump| &mut dump.services),
            "ReplicaSet" => self.keep(item, valid::replica_set, |dump| &mut dump.replica_sets),
            "StatefulSet" => self.keep(item, valid::stateful_set, |dump| &mut dump.stateful_sets),
            "ReplicationController" => {
                self.keep(item, |_| Flaws::default(), |dump| &mut dump.replication_controllers)
            }
            "PodDisruptionBudget" => self.keep(item, valid::budget, |dump| &mut dump.budgets),
            "PriorityClass" => {
                self.keep(item, valid::priority_class, |dump| &mut dump.priority_classes)
            }
            "LimitRange" => self.keep(item, valid::limit_range, |dump| &mut dump.limit_ranges),
            _ => self.keep(item, valid::runtime_class, |dump| &mut dump.runtime_classes),
        }
    }

    /// Decodes and keeps an object of a kind that is only looked up by its name.
    fn keep<T>(
        &mut self,
        item: &LoadedItem<'_>,
        check: fn(&T) -> Flaws,
        list: fn(&mut Dump) -> &mut ByName<T>,
    ) -> Result<(), LoadError>
    where
        T: DeserializeOwned + Resource + Metadata<Ty = ObjectMeta>,
    {
        let object: T = self.parse(item)?;
        if self.is_usable(item, object.metadata(), check(&object))? {
            let name = object_name(item.kind, object.metadata());
            list(self.found.dump).insert(name, object);
        }
        Ok(())
    }

    fn parse<T: DeserializeOwned>(&self, item: &LoadedItem<'_>) -> Result<T, LoadError> {
        let &LoadedItem { at, text, kind } = item;
        let error = match serde_json::from_str(text) {
            Ok(object) => return Ok(object),
            Err(error) => error,
        };
        // The list may have the kind of its items, and a manifest may have 2 for "2": the types
        // accept only the form of an API server.
        let message = error.to_string();
        if !missing_type(&message) && !message.contains("expected Quantity") {
            return Err(self.typed(at, text, Some(kind), &error));
        }
        let mut value: Value =
            serde_json::from_str(text).map_err(|e| self.typed(at, text, Some(kind), &e))?;
        if let Some(object) = value.as_object_mut() {
            let version = match group_of(kind).unwrap_or_default() {
                "" => "v1".to_owned(),
                group => format!("{group}/v1"),
            };
            object.entry("apiVersion").or_insert_with(|| version.into());
            object.entry("kind").or_insert_with(|| kind.into());
        }
        quantities_as_text(&mut value, 0);
        let text = value.to_string();
        serde_json::from_str(&text).map_err(|e| self.retyped(at, &text, kind, &e))
    }

    /// May the object be kept? Simulating an object that the API server rejects would mislead.
    ///
    /// # Errors
    /// The object has no name, or one that is too long.
    fn is_usable(
        &mut self,
        item: &LoadedItem<'_>,
        metadata: &ObjectMeta,
        flaws: Flaws,
    ) -> Result<bool, LoadError> {
        self.require_name(item, metadata.name.as_deref())?;
        let object = || format!("{} {}", item.kind, object_name(item.kind, metadata));
        let is_usable = flaws.found.is_empty();
        for flaw in flaws.found {
            if self.found.mistakes.len() == MISTAKES_MAX {
                self.found.left += 1;
                continue;
            }
            let field = format!("{}: ", flaw.field);
            let mistake = self.error(item.at, object(), field, flaw.problem);
            self.found.mistakes.push(mistake);
        }
        self.found.left += flaws.left;
        Ok(is_usable)
    }

    fn require_name(&self, item: &LoadedItem<'_>, name: Option<&str>) -> Result<(), LoadError> {
        let problem = match name {
            Some(name) if name.len() > NAME_BYTES_MAX => {
                format!("has {} bytes, more than the {NAME_BYTES_MAX} of a name", name.len())
            }
            Some(name) if !name.is_empty() => return Ok(()),
            _ => "is missing".to_owned(),
        };
        let object = match name {
            Some(_) => format!("{} ({})", item.kind, self.number()),
            None => self.named(item.text, Some(item.kind)),
        };
        Err(self.error(item.at, object, "metadata.name: ".into(), problem))
    }
}

fn looks_like_json(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'['))
}

#[cfg(test)]
mod tests;
