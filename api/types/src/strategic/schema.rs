//! Schemas of the built-in kinds for strategic merge patches: lists that merge, and their keys.
//!
//! Input: `merge_keys.txt`, generated from the tags of Go's structs and never edited. Output:
//! [`Schema`], an object's or an item's fields that are objects, maps or lists. The text is parsed
//! at the first use. Kinds of custom resources have no schema, and the API server refuses strategic
//! merge patches of them.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/meta.go PatchMetaFromStruct

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use super::PatchError;

const TABLE: &str = include_str!("merge_keys.txt");
static STRUCTS: LazyLock<Structs> = LazyLock::new(|| Structs::parse(TABLE));

/// The fields of an object; none of a map, of raw JSON or of a scalar.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Schema(Option<usize>);

/// A field that is an object, a map or a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct SchemaField {
    /// The fields of the object, or of each item.
    pub(super) inner: Schema,
    is_list: bool,
    pub(super) strategy: PatchStrategy,
    /// A patch names all keys that stay.
    pub(super) retains_keys: bool,
    /// The key by which items merge; empty for lists of scalars.
    pub(super) merge_key: &'static str,
}

/// The patch strategy of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchStrategy {
    /// Objects merge and lists are replaced.
    Usual,
    Merge,
    Replace,
}

struct Structs {
    by_kind: HashMap<(&'static str, &'static str), usize>,
    fields: Vec<HashMap<&'static str, SchemaField>>,
    names: Vec<&'static str>,
}

impl Schema {
    /// The schema of a built-in kind.
    pub fn of_kind(api_version: &str, kind: &str) -> Option<Self> {
        let structs = &*STRUCTS;
        structs.by_kind.get(&(api_version, kind)).map(|at| Self(Some(*at)))
    }

    /// The schema of an object inside one with this schema, such as `status`.
    ///
    /// # Errors
    /// [`PatchError::UnknownField`] if it has no such object.
    pub fn inside(self, name: &str) -> Result<Self, PatchError> {
        self.field(name).map(|field| field.inner)
    }

    /// The field with this name, as an object.
    pub(super) fn field(self, name: &str) -> Result<SchemaField, PatchError> {
        let unknown =
            || PatchError::UnknownField { of: format!("{self:?}"), field: name.to_owned() };
        let field = self.0.and_then(|at| STRUCTS.fields[at].get(name)).copied();
        let field = field.ok_or_else(unknown)?;
        // An object in the place of a list has no fields.
        let inner = if field.is_list { Self(None) } else { field.inner };
        Ok(SchemaField { inner, ..field })
    }

    /// The field with this name, as a list.
    pub(super) fn list(self, name: &str) -> Result<SchemaField, PatchError> {
        let field = self.0.and_then(|at| STRUCTS.fields[at].get(name)).copied();
        field.filter(|field| field.is_list).ok_or_else(|| PatchError::UnknownField {
            of: format!("{self:?}"),
            field: name.to_owned(),
        })
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0.map_or("a map", |at| STRUCTS.names[at]))
    }
}

impl Structs {
    fn parse(table: &'static str) -> Self {
        let names: Vec<_> = table.lines().filter_map(|line| line.strip_prefix(':')).collect();
        let at: HashMap<_, _> = names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        let mut by_kind = HashMap::new();
        let mut fields: Vec<HashMap<_, _>> = Vec::new();
        for line in table.lines() {
            if let Some(field) = line.strip_prefix('\t') {
                let mut parts = field.split('\t');
                let name = parts.next().expect("a field has a name");
                let field = SchemaField::parse(parts, &at);
                // A field of the outer struct hides one that is inlined behind it.
                let current = fields.last_mut().expect("a field follows its struct");
                current.entry(name).or_insert(field);
            } else if line.starts_with(':') {
                fields.push(HashMap::new());
            } else {
                let (kind, of) = line.split_once('\t').expect("a kind has a struct");
                by_kind.insert(kind.split_once(' ').expect("a version and a kind"), at[of]);
            }
        }
        Self { by_kind, fields, names }
    }
}

impl SchemaField {
    fn parse(
        mut parts: std::str::Split<'static, char>,
        structs: &HashMap<&'static str, usize>,
    ) -> Self {
        let shape = parts.next().expect("a field has a shape");
        let is_list = shape.starts_with('[');
        let of = shape.trim_start_matches('[').strip_prefix('#');
        let inner = Schema(of.map(|name| structs[name]));
        let strategies: Vec<_> = parts.next().unwrap_or_default().split(',').collect();
        let strategy = if strategies.contains(&"merge") {
            PatchStrategy::Merge
        } else if strategies.contains(&"replace") {
            PatchStrategy::Replace
        } else {
            PatchStrategy::Usual
        };
        let retains_keys = strategies.contains(&"retainKeys");
        let merge_key = parts.next().unwrap_or_default();
        Self { inner, is_list, strategy, retains_keys, merge_key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_a_pod_merge_by_their_keys() {
        let pod = Schema::of_kind("v1", "Pod").expect("pods are built in");
        let spec = pod.inside("spec").expect("a pod has a spec");
        let containers = spec.list("containers").expect("a spec has containers");
        assert_eq!((containers.strategy, containers.merge_key), (PatchStrategy::Merge, "name"));
        let volumes = spec.list("volumes").expect("a spec has volumes");
        assert!(volumes.retains_keys && volumes.strategy == PatchStrategy::Merge);
        let tolerations = spec.list("tolerations").expect("a spec has tolerations");
        assert_eq!(tolerations.strategy, PatchStrategy::Usual);
        let finalizers = pod.inside("metadata").and_then(|meta| meta.list("finalizers"));
        assert_eq!(finalizers.expect("metadata has finalizers").merge_key, "");
    }

    #[test]
    fn kinds_that_are_not_built_in_have_no_schema() {
        assert_eq!(Schema::of_kind("example.com/v1", "Widget"), None);
        let labels = Schema::of_kind("v1", "Pod").and_then(|pod| pod.inside("metadata").ok());
        let labels = labels.and_then(|meta| meta.inside("labels").ok()).expect("a map of labels");
        assert!(labels.inside("app").is_err());
    }
}
