//! The tree to a value: aliases, merge keys, keys of every type.
//!
//! Bounds: nodes that aliases repeat, by `ReadLimits::replayed_max`. A value is only known to be
//! deeper than the text by aliases that name others, so depth is checked again.
// k8s: vendor/go.yaml.in/yaml/v2/decode.go decoder, vendor/sigs.k8s.io/yaml convertToJSONableObject

use std::collections::BTreeMap;

use super::json::Json;
use super::number;
use super::parser::{NodeId, NodeKind, YAML_TAG, YamlNode, YamlTree};
use super::resolve::{self, Scalar};
use super::{Document, ReadLimits, SyntaxError};

/// Values that aliases may name, and values in all, before their share is checked.
// k8s: decode.go decoder.unmarshal, allowedAliasRatio up to 400,000 values
const ALIASES_FREE: usize = 100;
const VALUES_FREE: usize = 1000;
/// Share of the values that aliases may name, in per cent.
const ALIASES_PERCENT_MAX: usize = 99;

/// Placeholder of a number that JSON does not have, until it is refused.
const NOT_FINITE: &str = "";

/// A key that stands twice in one map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// Line of the second one's value, from 1.
    pub line: u64,
    /// The key.
    pub key: String,
}

pub(super) fn document(tree: &YamlTree, limits: &ReadLimits) -> Result<Document, SyntaxError> {
    let mut composer = Composer::new(tree, limits);
    let value = match tree.root {
        Some(root) => composer.value(root)?,
        None => Json::Null,
    };
    // Only for the final value: a number may have been replaced by another value for its key.
    if !is_finite(&value) {
        return Err(SyntaxError::new("a number has to be finite"));
    }
    Ok(Document { value, repeated: composer.repeated })
}

/// A map under construction: the value of each key, and as which type it was written last.
type Entries = BTreeMap<String, (Scalar, Json)>;

struct Composer<'t> {
    tree: &'t YamlTree,
    limits: ReadLimits,
    /// Aliases that are followed now.
    open: Vec<NodeId>,
    /// Values that were made, and those of them that an alias named.
    composed: usize,
    replayed: usize,
    depth: usize,
    repeated: Vec<Repeated>,
}

impl<'t> Composer<'t> {
    fn new(tree: &'t YamlTree, limits: &ReadLimits) -> Self {
        let (open, repeated) = (Vec::new(), Vec::new());
        Self { tree, limits: *limits, open, composed: 1, replayed: 0, depth: 0, repeated }
    }

    fn node(&mut self, id: NodeId) -> Result<&'t YamlNode, SyntaxError> {
        let node = &self.tree.nodes[id];
        self.composed += 1;
        self.replayed += usize::from(!self.open.is_empty());
        let is_mostly_aliases = self.replayed > ALIASES_FREE
            && self.composed > VALUES_FREE
            && self.replayed * 100 > self.composed * ALIASES_PERCENT_MAX;
        if is_mostly_aliases || self.replayed > self.limits.replayed_max {
            return error(node, "document contains excessive aliasing");
        }
        Ok(node)
    }

    fn value(&mut self, id: NodeId) -> Result<Json, SyntaxError> {
        let node = self.node(id)?;
        match &node.kind {
            NodeKind::Scalar { .. } => Ok(json_of(resolved(node)?)),
            NodeKind::Alias { target, .. } => {
                self.open(id)?;
                let value = self.value(*target);
                self.open.pop();
                value
            }
            NodeKind::Sequence(items) => {
                self.deepen(node)?;
                let items = items.iter().map(|item| self.value(*item));
                let items = items.collect::<Result<_, _>>()?;
                self.depth -= 1;
                Ok(Json::Array(items))
            }
            NodeKind::Mapping(_) => {
                let mut entries = Entries::new();
                self.merge_into(id, node, &mut entries)?;
                let values = entries.into_iter().map(|(key, (_, value))| (key, value));
                Ok(Json::Object(values.collect()))
            }
        }
    }

    fn open(&mut self, alias: NodeId) -> Result<(), SyntaxError> {
        let node = &self.tree.nodes[alias];
        if let NodeKind::Alias { name, .. } = &node.kind
            && self.open.contains(&alias)
        {
            return error(node, &format!("anchor '{name}' value contains itself"));
        }
        self.open.push(alias);
        Ok(())
    }

    fn deepen(&mut self, node: &YamlNode) -> Result<(), SyntaxError> {
        self.depth += 1;
        if self.depth > 2 * self.limits.depth_max {
            return error(node, &format!("exceeded max depth of {}", self.limits.depth_max));
        }
        Ok(())
    }

    /// The entries of a mapping over those that are there.
    fn merge_into(
        &mut self,
        id: NodeId,
        node: &YamlNode,
        entries: &mut Entries,
    ) -> Result<(), SyntaxError> {
        let NodeKind::Mapping(pairs) = &self.tree.nodes[id].kind else { return Ok(()) };
        self.deepen(node)?;
        for (key, value) in pairs {
            if is_merge(&self.tree.nodes[*key]) {
                self.merge(*value, entries)?;
                continue;
            }
            let (scalar, name) = self.key(*key)?;
            let line = self.tree.nodes[*value].line as u64 + 1;
            let json = self.value(*value)?;
            let before = entries.get(&name);
            if before.is_some_and(|(before, _)| *before == scalar) {
                self.repeated.push(Repeated { line, key: name.clone() });
            }
            entries.insert(name, (scalar, json));
        }
        self.depth -= 1;
        Ok(())
    }

    /// The maps that `<<` names; the first of several wins, and so do keys behind it in the map.
    // k8s: decode.go decoder.merge
    fn merge(&mut self, id: NodeId, entries: &mut Entries) -> Result<(), SyntaxError> {
        let node = &self.tree.nodes[id];
        match &node.kind {
            NodeKind::Sequence(items) => {
                for item in items.iter().rev() {
                    self.merge_one(*item, entries)?;
                }
                Ok(())
            }
            _ => self.merge_one(id, entries),
        }
    }

    fn merge_one(&mut self, id: NodeId, entries: &mut Entries) -> Result<(), SyntaxError> {
        let node = self.node(id)?;
        match &node.kind {
            NodeKind::Mapping(_) => self.merge_into(id, node, entries),
            NodeKind::Alias { target, .. }
                if matches!(self.tree.nodes[*target].kind, NodeKind::Mapping(_)) =>
            {
                self.open(id)?;
                let target = *target;
                let merged =
                    self.node(target).and_then(|node| self.merge_into(target, node, entries));
                self.open.pop();
                merged
            }
            _ => error(node, "map merge requires map or sequence of maps as the value"),
        }
    }

    /// A key as it is and as it is written in JSON.
    fn key(&mut self, id: NodeId) -> Result<(Scalar, String), SyntaxError> {
        let node = self.node(id)?;
        let node = match &node.kind {
            NodeKind::Alias { target, .. } => {
                self.open(id)?;
                let target = self.node(*target);
                self.open.pop();
                target?
            }
            _ => node,
        };
        let scalar = match &node.kind {
            NodeKind::Scalar { .. } => resolved(node)?,
            _ => return error(node, "invalid map key: a key has to be a scalar"),
        };
        let name = match &scalar {
            Scalar::Null | Scalar::Uint(_) => {
                return error(
                    node,
                    "invalid map key: neither null nor so large a number can be one",
                );
            }
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(number) => number.to_string(),
            Scalar::Float(number) => number::key_float(*number),
            Scalar::Text(text) => text.clone(),
        };
        Ok((scalar, name))
    }
}

fn resolved(node: &YamlNode) -> Result<Scalar, SyntaxError> {
    let NodeKind::Scalar { value, tag, is_implicit } = &node.kind else {
        return error(node, "a scalar is expected");
    };
    resolve::scalar(value, tag, *is_implicit)
        .map_err(|error| SyntaxError::at(node.line, error.to_string()))
}

fn json_of(scalar: Scalar) -> Json {
    match scalar {
        Scalar::Null => Json::Null,
        Scalar::Bool(value) => Json::Bool(value),
        Scalar::Int(number) => Json::Number(number.to_string()),
        Scalar::Uint(number) => Json::Number(number.to_string()),
        Scalar::Float(number) => {
            Json::Number(number::json_float(number).unwrap_or_else(|| NOT_FINITE.to_owned()))
        }
        Scalar::Text(text) => Json::String(text),
    }
}

fn is_finite(value: &Json) -> bool {
    match value {
        Json::Number(text) => text != NOT_FINITE,
        Json::Array(items) => items.iter().all(is_finite),
        Json::Object(entries) => entries.values().all(is_finite),
        _ => true,
    }
}

// k8s: decode.go isMerge
fn is_merge(node: &YamlNode) -> bool {
    match &node.kind {
        NodeKind::Scalar { value, tag, is_implicit } => {
            &**value == "<<" && (*is_implicit || tag.strip_prefix(YAML_TAG) == Some("merge"))
        }
        _ => false,
    }
}

fn error<T>(node: &YamlNode, message: &str) -> Result<T, SyntaxError> {
    Err(SyntaxError::at(node.line, message))
}
