//! The structs of Go's API packages: fields in their order, printed types, options of the encoder.
//!
//! Input: `types.txt`, which is generated and never edited. Output: [`GoStruct`] by its name, such
//! as `core/v1.PodTemplateSpec`: the package below `k8s.io/api` or the packages of `meta`, and the
//! type. The text is parsed at the first use and stays in memory, some 200 KB. It is text and not
//! Rust because a table of as many constants takes seconds to compile.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

const TABLE: &str = include_str!("types.txt");
static STRUCTS: LazyLock<Structs> = LazyLock::new(|| Structs::parse(TABLE));

/// A struct of Go.
#[derive(Debug)]
pub struct GoStruct {
    pub(super) fields: Vec<GoField>,
}

/// A field of a struct.
#[derive(Debug)]
pub(super) struct GoField {
    /// Go's name.
    pub(super) name: &'static str,
    /// The type as Go prints it, such as `[]v1.Container`.
    pub(super) printed: &'static str,
    /// The name in JSON.
    pub(super) json: &'static str,
    /// The fields of this struct are part of the outer object.
    pub(super) is_inline: bool,
    pub(super) omits_empty: bool,
    pub(super) omits_zero: bool,
    pub(super) shape: JsonShape,
}

/// The JSON form of a type's values.
#[derive(Debug)]
pub(super) enum JsonShape {
    Pointer(Box<JsonShape>),
    List(Box<JsonShape>),
    Map(Box<JsonShape>),
    /// An index into the table.
    Struct(usize),
    Bytes,
    Text,
    Bool,
    Int,
    Float,
    Quantity,
    Time,
    MicroTime,
    Duration,
    IntOrString,
    /// `FieldsV1`, raw JSON.
    Fields,
    /// `RawExtension` or an interface, raw JSON.
    Raw,
}

struct Structs {
    all: Vec<GoStruct>,
    by_name: HashMap<&'static str, usize>,
}

impl Structs {
    fn parse(table: &'static str) -> Self {
        let headers = table.lines().filter(|line| !line.starts_with('\t'));
        let names = headers.map(|line| line.split('\t').next().expect("a line has a first part"));
        let by_name = names.enumerate().map(|(at, name)| (name, at)).collect();
        let mut all: Vec<GoStruct> = Vec::new();
        for line in table.lines() {
            match line.strip_prefix('\t') {
                None => all.push(GoStruct { fields: Vec::new() }),
                Some(field) => {
                    let current = all.last_mut().expect("a field follows its struct");
                    current.fields.push(GoField::parse(field, &by_name));
                }
            }
        }
        Self { all, by_name }
    }
}

impl GoStruct {
    /// The struct of this name.
    ///
    /// # Panics
    /// If the table does not have it: names are constants of the program.
    pub fn named(name: &str) -> &'static Self {
        let structs = &*STRUCTS;
        let at = structs.by_name.get(name);
        &structs.all[*at.unwrap_or_else(|| panic!("the table of Go's types has no {name}"))]
    }

    pub(super) fn at(index: usize) -> &'static Self {
        &STRUCTS.all[index]
    }
}

impl GoField {
    fn parse(line: &'static str, by_name: &HashMap<&'static str, usize>) -> Self {
        let parts: Vec<_> = line.split('\t').collect();
        let [name, printed, json, flags, shape] = parts[..] else {
            panic!("a field has five parts: {line}")
        };
        Self {
            name,
            printed,
            json,
            is_inline: flags.contains('i'),
            omits_empty: flags.contains('e'),
            omits_zero: flags.contains('z'),
            shape: JsonShape::parse(shape, by_name),
        }
    }

    /// The value of this field in its object; nothing if it is absent or null.
    pub(super) fn of<'a>(&self, object: Option<&'a Value>) -> Option<&'a Value> {
        if self.is_inline {
            return object;
        }
        object?.get(self.json).filter(|value| !value.is_null())
    }
}

impl JsonShape {
    fn parse(text: &'static str, by_name: &HashMap<&'static str, usize>) -> Self {
        let inner = || Box::new(Self::parse(&text[1..], by_name));
        match text.as_bytes().first() {
            Some(b'*') => Self::Pointer(inner()),
            Some(b'[') => Self::List(inner()),
            Some(b'{') => Self::Map(inner()),
            Some(b'#') => Self::Struct(by_name[&text[1..]]),
            Some(b'y') => Self::Bytes,
            Some(b's') => Self::Text,
            Some(b'b') => Self::Bool,
            Some(b'i' | b'u') => Self::Int,
            Some(b'f') => Self::Float,
            Some(b'Q') => Self::Quantity,
            Some(b'T') => Self::Time,
            Some(b'M') => Self::MicroTime,
            Some(b'D') => Self::Duration,
            Some(b'O') => Self::IntOrString,
            Some(b'F') => Self::Fields,
            Some(b'R' | b'a') => Self::Raw,
            _ => panic!("a type of an unknown shape: {text}"),
        }
    }

    /// Does Go's `omitempty` leave the value out?
    pub(super) fn is_empty(&self, value: Option<&Value>) -> bool {
        let Some(value) = value else {
            return !matches!(
                self,
                Self::Struct(_)
                    | Self::Quantity
                    | Self::Time
                    | Self::MicroTime
                    | Self::Duration
                    | Self::IntOrString
                    | Self::Fields
            );
        };
        match self {
            Self::List(_) => value.as_array().is_none_or(Vec::is_empty),
            Self::Map(_) => value.as_object().is_none_or(serde_json::Map::is_empty),
            Self::Text | Self::Bytes => value.as_str().is_none_or(str::is_empty),
            Self::Bool => !value.as_bool().unwrap_or_default(),
            Self::Int | Self::Float => value.as_f64().unwrap_or_default() == 0.0,
            _ => false,
        }
    }

    /// Does Go's `omitzero` leave the value out? Empty lists and maps are not zero, absent ones
    /// are.
    pub(super) fn is_zero(&self, value: Option<&Value>) -> bool {
        let Some(some) = value else { return true };
        match self {
            Self::Struct(at) => {
                GoStruct::at(*at).fields.iter().all(|field| field.shape.is_zero(field.of(value)))
            }
            Self::Text | Self::Bool | Self::Int | Self::Float => self.is_empty(value),
            Self::IntOrString => some == 0,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn add_names(of: &GoStruct, names: &mut Vec<&str>) {
        for field in &of.fields {
            match (field.is_inline, &field.shape) {
                (true, JsonShape::Struct(at)) => add_names(GoStruct::at(*at), names),
                _ => names.push(field.json),
            }
        }
    }

    #[test]
    fn names_in_json_are_unique_within_an_object() {
        for each in &STRUCTS.all {
            let mut names = Vec::new();
            add_names(each, &mut names);
            let unique: HashSet<_> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "{names:?}");
        }
    }

    #[test]
    fn fields_keep_the_order_and_the_options_of_go() {
        let template = GoStruct::named("core/v1.PodTemplateSpec");
        let names: Vec<_> = template.fields.iter().map(|field| field.name).collect();
        assert_eq!(names, ["ObjectMeta", "Spec"]);
        let meta = GoStruct::named("meta/v1.ObjectMeta");
        let created = meta.fields.iter().find(|field| field.json == "creationTimestamp");
        let created = created.expect("every object has a time of creation");
        assert!(created.omits_empty && created.omits_zero && !created.is_inline);
        assert_eq!(created.printed, "v1.Time");
    }

    #[test]
    fn an_absent_struct_is_not_empty_but_zero() {
        let shape = JsonShape::Struct(STRUCTS.by_name["core/v1.PodSpec"]);
        assert!(!shape.is_empty(None) && shape.is_zero(None));
        let spec = serde_json::json!({"containers": null, "hostNetwork": false});
        assert!(shape.is_zero(Some(&spec)));
        let spec = serde_json::json!({"containers": []});
        assert!(!shape.is_zero(Some(&spec)));
    }
}
