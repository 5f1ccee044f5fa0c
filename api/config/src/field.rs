//! The table of a configuration file's fields: type, whether the API has a pointer, and how far the
//! daemon implements each.
//!
//! Output: [`FieldTable`]. Four things read it: the strict reading of files (unknown fields), the
//! defaulting ("zero means not set" holds for non-pointers only), the warnings about settings that
//! have no effect, and the tables of documents.

use serde_json::{Map, Value};

use crate::status::Status;
use pintle_api_types::duration::GoDuration;

/// The type of a field, as far as reading it needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// true or false
    Bool,
    /// 32-bit number
    Int32,
    /// 64-bit number
    Int64,
    /// Real number
    Float,
    /// Text
    Text,
    /// A word of a closed set
    Word,
    /// Duration in Go's form
    Duration,
    /// Resource quantity
    Quantity,
    /// List of texts
    TextList,
    /// Map from text to text
    TextMap,
    /// List of objects
    List,
    /// Map to something else than text
    Map,
}

impl FieldKind {
    /// Name of the type for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float => "number",
            Self::Text => "string",
            Self::Word => "enum",
            Self::Duration => "duration",
            Self::Quantity => "quantity",
            Self::TextList => "[]string",
            Self::TextMap => "map[string]string",
            Self::List => "[]object",
            Self::Map => "map",
        }
    }
}

/// One leaf field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Names from the root, joined with points.
    pub path: &'static str,
    /// Its type.
    pub kind: FieldKind,
    /// The API has a pointer, so zero values count as set.
    pub pointer: bool,
    /// How far the daemon implements it.
    pub status: Status,
}

impl Field {
    /// A field with a zero value that means "not set".
    pub const fn value(path: &'static str, kind: FieldKind, status: Status) -> Self {
        Self { path, kind, pointer: false, status }
    }

    /// A field that the API has a pointer for.
    pub const fn pointer(path: &'static str, kind: FieldKind, status: Status) -> Self {
        Self { path, kind, pointer: true, status }
    }

    /// Its value in a tree.
    pub fn of<'a>(&self, tree: &'a Value) -> Option<&'a Value> {
        at(tree, self.path)
    }

    /// Go's zero value of its type.
    fn is_zero(&self, value: &Value) -> bool {
        match (self.kind, value) {
            (FieldKind::Bool, Value::Bool(flag)) => !flag,
            (FieldKind::Int32 | FieldKind::Int64 | FieldKind::Float, Value::Number(number)) => {
                number.as_f64() == Some(0.0)
            }
            (FieldKind::Duration, Value::String(text)) => {
                text.parse::<GoDuration>().is_ok_and(GoDuration::is_zero)
            }
            (FieldKind::Text | FieldKind::Word, Value::String(text)) => text.is_empty(),
            // An empty list or map is set, to nothing; only null is "not set". A value of another
            // type is wrong.
            _ => false,
        }
    }

    /// Nulls in a list or a map are Go's zero values.
    fn fill_nulls(&self, value: &mut Value) {
        let zero = match self.kind {
            FieldKind::TextList | FieldKind::TextMap => Value::String(String::new()),
            FieldKind::List => Value::Object(Map::new()),
            _ => return,
        };
        let items: Vec<&mut Value> = match value {
            Value::Array(items) => items.iter_mut().collect(),
            Value::Object(entries) => entries.values_mut().collect(),
            _ => return,
        };
        for item in items.into_iter().filter(|item| item.is_null()) {
            item.clone_from(&zero);
        }
    }

    /// A duration that is no pointer has no null; every other type has.
    // k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/duration.go UnmarshalJSON
    pub(crate) fn is_refused_null(&self, tree: &Value) -> bool {
        let is_duration = self.kind == FieldKind::Duration && !self.pointer;
        is_duration && self.of(tree).is_some_and(Value::is_null)
    }
}

/// The value at a path of names joined with points.
pub fn at<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |node, key| node.get(key))
}

/// Every leaf field of a configuration, in the order of the API.
#[derive(Clone, Copy, Debug)]
pub struct FieldTable(pub &'static [Field]);

impl FieldTable {
    /// The field at `path`, if it is one.
    pub fn find(&self, path: &str) -> Option<&'static Field> {
        self.0.iter().find(|field| field.path == path)
    }

    /// True when fields exist below `path`.
    pub fn is_object(&self, path: &str) -> bool {
        self.0.iter().any(|f| f.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
    }

    /// Moves fields that the API does not have out of the tree, into `unknown`.
    pub(crate) fn drop_unknown(
        &self,
        tree: &mut Map<String, Value>,
        prefix: &str,
        unknown: &mut Vec<String>,
    ) {
        tree.retain(|key, value| {
            let path = joined(prefix, key);
            if self.find(&path).is_some() || path == "kind" || path == "apiVersion" {
                return true;
            }
            if !self.is_object(&path) {
                unknown.push(path);
                return false;
            }
            if let Value::Object(inner) = value {
                self.drop_unknown(inner, &path, unknown);
            }
            true
        });
    }

    /// Removes nulls and, where the API has no pointer, zero values, as upstream's defaulting takes
    /// them.
    pub fn drop_unset(&self, tree: &mut Map<String, Value>) {
        self.drop_unset_below(tree, "");
    }

    fn drop_unset_below(&self, tree: &mut Map<String, Value>, prefix: &str) {
        tree.retain(|key, value| {
            let path = joined(prefix, key);
            match (self.find(&path), value) {
                (_, Value::Null) => false,
                (Some(field), value) => {
                    field.fill_nulls(value);
                    field.pointer || !field.is_zero(value)
                }
                (None, Value::Object(inner)) => {
                    self.drop_unset_below(inner, &path);
                    true
                }
                (None, _) => true,
            }
        });
    }
}

fn joined(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}
