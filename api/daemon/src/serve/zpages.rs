//! `/statusz` and `/flagz`: small pages for people, and for programs that ask for a version.
//!
//! Input: the daemon's identity, the `Accept` header. Output: text unless the client names kind,
//! group and version of a structured answer in JSON, YAML or, where a gate has it, CBOR; everything
//! else is refused. Pure.
// k8s: staging/src/k8s.io/apiserver/pkg/server/{statusz,flagz}, pkg/endpoints/handlers/negotiation

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::HttpAnswer;
use super::cbor;

const GROUP: &str = "config.k8s.io";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
    formatting compatibility guarantees and is for debugging purposes only.";
const NOT_ACCEPTABLE: &str = "only the following media types are accepted: application/json, \
    application/yaml, text/plain";

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageForm {
    Text,
    Json(&'static str),
    Yaml(&'static str),
    Cbor(&'static str),
}

/// Encodings besides text, JSON and YAML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encodings {
    /// Nothing.
    #[default]
    Usual,
    /// CBOR: the feature gate `CBORServingAndStorage`.
    WithCbor,
}

/// `/statusz`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Statusz {
    /// When the process began, RFC 3339.
    pub start_time: String,
    /// Seconds since its start.
    pub uptime_seconds: i64,
    /// Its compiler's version.
    pub go_version: String,
    /// Its version of Kubernetes.
    pub binary_version: String,
    /// The emulated version, without a patch level.
    pub emulation_version: String,
    /// Paths it serves, see `folders`.
    pub paths: Vec<String>,
    /// `kubelet`, `kube-scheduler`.
    #[serde(skip)]
    pub component: &'static str,
    /// The start in the text's form.
    #[serde(skip)]
    pub started: String,
}

/// `/flagz`: values by flag.
#[derive(Clone, Debug, Serialize)]
pub struct Flagz {
    /// `kubelet`, `kube-scheduler`.
    #[serde(skip)]
    pub component: &'static str,
    /// Values in force.
    pub flags: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PageObject<'a, T> {
    kind: &'a str,
    api_version: String,
    metadata: Value,
    #[serde(flatten)]
    page: &'a T,
}

/// A page that is text or a structured object.
trait StructuredPage: Serialize {
    /// The kind of the object.
    const KIND: &'static str;

    /// The name of the object.
    fn component(&self) -> &str;

    fn text(&self) -> String;
}

impl Statusz {
    /// The page in the form that the `Accept` header names.
    pub fn answer(&self, accept: Option<&str>, encodings: Encodings) -> HttpAnswer {
        answer(self, accept, encodings)
    }
}

impl StructuredPage for Statusz {
    const KIND: &'static str = "Statusz";

    fn component(&self) -> &str {
        self.component
    }

    fn text(&self) -> String {
        let up = self.uptime_seconds;
        let up = format!("{} hr {:02} min {:02} sec", up / 3600, up / 60 % 60, up % 60);
        format!(
            "\n{} statusz\n{WARNING}\n\nStarted: {}\nUp: {up}\nGo version: {}\n\
             Binary version: {}\nEmulation version: {}\nPaths: {}\n",
            self.component,
            self.started,
            self.go_version,
            self.binary_version,
            self.emulation_version,
            self.paths.join(" ")
        )
    }
}

impl Flagz {
    /// The page in the form that the `Accept` header names.
    pub fn answer(&self, accept: Option<&str>, encodings: Encodings) -> HttpAnswer {
        answer(self, accept, encodings)
    }
}

impl StructuredPage for Flagz {
    const KIND: &'static str = "Flagz";

    fn component(&self) -> &str {
        self.component
    }

    fn text(&self) -> String {
        let lines = self.flags.iter().map(|(name, value)| format!("{name}={value}\n"));
        format!("\n{} flagz\n{WARNING}\n{}", self.component, lines.collect::<String>())
    }
}

/// The first parts of paths, each once.
// k8s: staging/src/k8s.io/apiserver/pkg/server/statusz/statusz.go aggregatePaths
pub fn folders<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let first = |path: &str| path.split('/').nth(1).map(|part| format!("/{part}"));
    let mut folders: Vec<String> = paths.filter_map(first).collect();
    folders.sort_unstable();
    folders.dedup();
    folders
}

fn answer<T: StructuredPage>(page: &T, accept: Option<&str>, encodings: Encodings) -> HttpAnswer {
    let kind = T::KIND;
    let object = |version: &str| PageObject {
        kind,
        api_version: format!("{GROUP}/{version}"),
        metadata: json!({"name": page.component()}),
        page,
    };
    let value = |version: &str| serde_json::to_value(object(version)).unwrap_or_default();
    match negotiate(accept.unwrap_or_default(), kind, encodings) {
        Some(PageForm::Text) => HttpAnswer::text(200, page.text()),
        Some(PageForm::Json(version)) => {
            let mut answer = HttpAnswer::json(&object(version));
            answer.body = [&answer.body[..], b"\n"].concat().into();
            structured(answer, "json", kind, version)
        }
        Some(PageForm::Yaml(version)) => {
            structured(HttpAnswer::text(200, yaml(&value(version), 0)), "yaml", kind, version)
        }
        Some(PageForm::Cbor(version)) => {
            let answer = HttpAnswer::json_bytes(cbor::document(&value(version)));
            structured(answer, "cbor", kind, version)
        }
        None => HttpAnswer {
            status: 406,
            ..HttpAnswer::json(&json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": not_acceptable(encodings), "reason": "NotAcceptable", "code": 406,
            }))
        },
    }
}

fn not_acceptable(encodings: Encodings) -> String {
    let more = if encodings == Encodings::WithCbor { ", application/cbor" } else { "" };
    format!("{NOT_ACCEPTABLE}{more}")
}

fn structured(mut answer: HttpAnswer, form: &str, kind: &str, version: &str) -> HttpAnswer {
    answer.content_type = format!("application/{form};g={GROUP};v={version};as={kind}").into();
    if version == "v1alpha1" {
        let page = kind.to_lowercase();
        let text = format!(
            "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
        );
        answer.warning = Some(text);
    }
    answer
}

/// The parameters of a media type.
type Params<'a> = Vec<(&'a str, &'a str)>;

/// The first form that the client accepts and that is available.
// k8s: staging/src/k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go
fn negotiate(accept: &str, kind: &str, encodings: Encodings) -> Option<PageForm> {
    if accept.trim().is_empty() {
        return Some(PageForm::Text);
    }
    let mut clauses: Vec<(f32, &str, Params<'_>)> = accept
        .split(',')
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let params: Params<'_> = parts.filter_map(|part| part.split_once('=')).collect();
            let weight = params.iter().find(|(key, _)| *key == "q");
            (weight.and_then(|(_, q)| q.parse().ok()).unwrap_or(1.0), name, params)
        })
        .collect();
    clauses.sort_by(|a, b| b.0.total_cmp(&a.0));
    clauses.iter().find_map(|(_, name, params)| form(name, params, kind, encodings))
}

fn form(name: &str, params: &[(&str, &str)], kind: &str, encodings: Encodings) -> Option<PageForm> {
    let of = |key: &str| params.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let plain = of("as").is_none();
    let version = ["v1beta1", "v1alpha1"].into_iter().find(|version| {
        of("as") == Some(kind) && of("g") == Some(GROUP) && of("v") == Some(version)
    });
    match name {
        "text/plain" | "text/*" | "*/*" if plain => Some(PageForm::Text),
        "application/json" | "application/*" | "*/*" => version.map(PageForm::Json),
        "application/yaml" => version.map(PageForm::Yaml),
        "application/cbor" if encodings == Encodings::WithCbor => version.map(PageForm::Cbor),
        _ => None,
    }
}

/// A value as YAML, names in order: enough for objects of texts, numbers and lists of texts.
fn yaml(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_unstable();
            let line = |name: &String| match &fields[name] {
                Value::Object(inner) if inner.is_empty() => format!("{indent}{name}: {{}}\n"),
                Value::Array(inner) if inner.is_empty() => format!("{indent}{name}: []\n"),
                inner @ Value::Object(_) => {
                    format!("{indent}{name}:\n{}", yaml(inner, depth + 1))
                }
                inner @ Value::Array(_) => format!("{indent}{name}:\n{}", yaml(inner, depth)),
                scalar => format!("{indent}{name}: {}\n", yaml(scalar, depth)),
            };
            names.into_iter().map(line).collect()
        }
        Value::Array(items) => {
            items.iter().map(|item| format!("{indent}- {}\n", yaml(item, depth))).collect()
        }
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A text that stays one without quotes.
fn is_plain(text: &str) -> bool {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/');
    let rest = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_version = text.split('.').count() > 2 && text.chars().all(|c| ".0123456789".contains(c));
    (first && text.chars().all(rest) && !words.contains(&text.to_lowercase().as_str()))
        || is_version
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Statusz {
        Statusz {
            component: "kubelet",
            start_time: "2026-11-21T18:15:00Z".to_owned(),
            uptime_seconds: 3661,
            go_version: "rustc".to_owned(),
            binary_version: "1.36.3".to_owned(),
            emulation_version: "1.36".to_owned(),
            paths: folders(["/metrics/a", "/debug/flags/v", "/metrics"].into_iter()),
            started: "Sat Nov 21 18:15:00 UTC 2026".to_owned(),
        }
    }

    fn sent(accept: &str) -> (u16, String, String) {
        let answer = page().answer(Some(accept), Encodings::Usual);
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        (answer.status, answer.content_type.to_string(), body)
    }

    // The answers of a 1.36 kubelet to the same headers.
    #[test]
    fn the_header_decides_as_in_the_kubelet() {
        let text = "text/plain; charset=utf-8";
        let of =
            |form: &str, v: &str| format!("application/{form};g=config.k8s.io;v={v};as=Statusz");
        let asked =
            |form: &str, v: &str| format!("application/{form};v={v};g=config.k8s.io;as=Statusz");
        for (accept, status, kind) in [
            (String::new(), 200, text.to_owned()),
            ("*/*".to_owned(), 200, text.to_owned()),
            ("text/*".to_owned(), 200, text.to_owned()),
            ("application/json, */*".to_owned(), 200, text.to_owned()),
            (asked("json", "v1beta1"), 200, of("json", "v1beta1")),
            (asked("json", "v1alpha1"), 200, of("json", "v1alpha1")),
            (asked("yaml", "v1beta1"), 200, of("yaml", "v1beta1")),
            (format!("text/plain;q=0.5,{}", asked("json", "v1beta1")), 200, of("json", "v1beta1")),
            (asked("json", "v9"), 406, "application/json".to_owned()),
            (asked("cbor", "v1beta1"), 406, "application/json".to_owned()),
            ("application/json".to_owned(), 406, "application/json".to_owned()),
            ("text/html".to_owned(), 406, "application/json".to_owned()),
        ] {
            let (got, content, body) = sent(&accept);
            assert_eq!((got, content), (status, kind), "{accept}");
            assert_eq!(body.contains(NOT_ACCEPTABLE), status == 406, "{accept}");
        }
    }

    #[test]
    fn cbor_is_served_with_its_feature_gate() {
        let accept = "application/cbor;v=v1beta1;g=config.k8s.io;as=Statusz";
        let answer = page().answer(Some(accept), Encodings::WithCbor);
        let expected = "application/cbor;g=config.k8s.io;v=v1beta1;as=Statusz";
        assert_eq!((answer.status, &*answer.content_type), (200, expected));
        assert!(
            answer.body.starts_with(b"\xd9\xd9\xf7\xa9\x44kind\x47Statusz"),
            "{:?}",
            answer.body
        );
        let refused = page().answer(Some("application/xml"), Encodings::WithCbor);
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(refused.status == 406 && text.contains("text/plain, application/cbor"), "{text}");
    }

    #[test]
    fn old_versions_are_warned_about() {
        let accept = "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz";
        assert!(
            page()
                .answer(Some(accept), Encodings::Usual)
                .warning
                .is_some_and(|text| text.contains("statusz"))
        );
        assert_eq!(page().answer(None, Encodings::Usual).warning, None);
    }

    #[test]
    fn statusz_formats_have_the_same_content() {
        let text = "\nkubelet statusz\nWarning: This endpoint is not meant to be machine parseable, \
                    has no formatting compatibility guarantees and is for debugging purposes only.\n\
                    \nStarted: Sat Nov 21 18:15:00 UTC 2026\nUp: 1 hr 01 min 01 sec\n\
                    Go version: rustc\nBinary version: 1.36.3\nEmulation version: 1.36\n\
                    Paths: /debug /metrics\n";
        assert_eq!(sent("").2, text);
        let json = sent("application/json;v=v1beta1;g=config.k8s.io;as=Statusz").2;
        let begin = r#"{"kind":"Statusz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"#;
        assert!(json.starts_with(begin), "{json}");
        let yaml = "apiVersion: config.k8s.io/v1beta1\nbinaryVersion: 1.36.3\n\
                    emulationVersion: \"1.36\"\ngoVersion: rustc\nkind: Statusz\nmetadata:\n  \
                    name: kubelet\npaths:\n- /debug\n- /metrics\n\
                    startTime: \"2026-11-21T18:15:00Z\"\nuptimeSeconds: 3661\n";
        assert_eq!(sent("application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz").2, yaml);
    }
}
