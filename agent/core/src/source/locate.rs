//! Where in a manifest a field stands: field path to line, and position to field path.
//!
//! Input: the text of a manifest. Output: an `Outline`, the line of each field. Works for block
//! and flow YAML and for JSON alike, since the parser itself tells the positions. Best effort: a
//! text that does not parse has an empty outline. Only used to explain errors.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::manifest::yaml_options;

/// Lines and columns of all fields of a manifest, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outline {
    fields: Vec<(String, Position)>,
}

/// Line and column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub line: u64,
    pub column: u64,
}

impl Outline {
    /// The outline of a text.
    pub(crate) fn of(text: &str) -> Self {
        let mut outline = Self::default();
        if let Ok(root) = serde_saphyr::from_str_with_options::<Spanned<Node>>(text, yaml_options())
        {
            outline.add("", &root);
        }
        outline
    }

    /// Line of a field, or of the nearest field above it.
    pub(crate) fn line(&self, path: &str) -> Option<u64> {
        let mut path = path;
        loop {
            if let Some((_, position)) = self.fields.iter().find(|(field, _)| field == path) {
                return Some(position.line);
            }
            let cut = path.rfind(['.', '['])?;
            path = &path[..cut];
        }
    }

    /// The field whose value stands at a position: the last one that starts at or before it on
    /// its line.
    pub(crate) fn field(&self, at: Position) -> Option<&str> {
        let before = self.fields.iter().filter(|(_, position)| *position <= at);
        let (field, position) = before.max_by_key(|(_, position)| *position)?;
        (position.line == at.line).then_some(field)
    }

    fn add(&mut self, path: &str, node: &Spanned<Node>) {
        let at = node.referenced;
        if !path.is_empty() {
            let position = Position { line: at.line(), column: at.column() };
            self.fields.push((path.to_owned(), position));
        }
        match &node.value {
            Node::Map(entries) => {
                for (key, value) in entries {
                    self.add(&child(path, key), value);
                }
            }
            Node::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.add(&format!("{path}[{index}]"), item);
                }
            }
            Node::Leaf => {}
        }
    }
}

/// Path of a key: keys that are no field names stand in brackets, as the API writes them.
fn child(path: &str, key: &str) -> String {
    let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match (path.is_empty(), plain) {
        (true, _) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (false, false) => format!("{path}[{key}]"),
    }
}

/// A value of which only the shape is kept.
enum Node {
    Map(Vec<(String, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Leaf,
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            entries.push((key, map.next_value()?));
        }
        Ok(Node::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Node, D::Error> {
        value.deserialize_any(self).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_block_flow_and_json() {
        let block = "spec:\n  containers:\n  - name: c\n    image: i\n    ports:\n    \
                     - {containerPort: 1,\n       hostPort: 2}\n";
        let outline = Outline::of(block);
        for (path, line) in [
            ("spec.containers[0].image", 4),
            ("spec.containers[0].ports[0].hostPort", 7),
            ("spec.containers[0].missing", 3),
            ("spec.missing.deeper[3]", 2),
        ] {
            assert_eq!(outline.line(path), Some(line), "{path}");
        }
        let json = "{\n \"spec\": {\n  \"containers\": [ {\"name\": 1} ]\n}}";
        let outline = Outline::of(json);
        assert_eq!(outline.line("spec.containers[0].name"), Some(3));
        let at = Position { line: 3, column: 28 };
        assert_eq!(outline.field(at), Some("spec.containers[0].name"));
    }

    #[test]
    fn a_text_that_does_not_parse_has_no_outline() {
        assert_eq!(Outline::of("a: [").line("a"), None);
    }
}
