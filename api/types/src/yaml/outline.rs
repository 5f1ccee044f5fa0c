//! The line of each field of a file: field path to line.
//!
//! Best effort: bytes that are no YAML have an empty outline. Only used to explain errors.

use super::ReadLimits;
use super::parser::{self, NodeId, NodeKind, YamlTree};
use super::text::FileText;

/// Lines of all fields of a file; of a repeated field, the last one's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    fields: Vec<(String, u64)>,
}

impl Outline {
    /// The outline of a file.
    pub fn of(bytes: &[u8], limits: &ReadLimits) -> Self {
        let text = FileText::of(bytes);
        let Ok(tree) = parser::parse(&text, limits) else { return Self::default() };
        let Some(root) = tree.root else { return Self::default() };
        let left = limits.nodes_max + limits.replayed_max;
        let mut walk = OutlineWalk { tree: &tree, fields: Vec::new(), open: Vec::new(), left };
        walk.add("", root);
        Self { fields: walk.fields }
    }

    /// Line of a field, or of the nearest field above it.
    pub fn line(&self, path: &str) -> Option<u64> {
        let mut path = path;
        loop {
            if let Some((_, line)) = self.fields.iter().rfind(|(field, _)| field == path) {
                return Some(*line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

struct OutlineWalk<'t> {
    tree: &'t YamlTree,
    fields: Vec<(String, u64)>,
    /// Aliases that are followed now.
    open: Vec<NodeId>,
    left: usize,
}

impl OutlineWalk<'_> {
    fn add(&mut self, path: &str, id: NodeId) {
        let node = &self.tree.nodes[id];
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return;
        }
        if !path.is_empty() && self.open.last().is_none_or(|alias| self.target(*alias) != id) {
            self.fields.push((path.to_owned(), node.line as u64 + 1));
        }
        match &node.kind {
            NodeKind::Scalar { .. } => {}
            NodeKind::Alias { target, .. } => self.follow(path, id, *target),
            NodeKind::Sequence(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.add(&format!("{path}[{index}]"), *item);
                }
            }
            NodeKind::Mapping(pairs) => {
                for (key, value) in pairs {
                    self.add_entry(path, *key, *value);
                }
            }
        }
    }

    fn target(&self, alias: NodeId) -> NodeId {
        match self.tree.nodes[alias].kind {
            NodeKind::Alias { target, .. } => target,
            _ => alias,
        }
    }

    fn follow(&mut self, path: &str, alias: NodeId, target: NodeId) {
        if !self.open.contains(&alias) {
            self.open.push(alias);
            self.add(path, target);
            self.open.pop();
        }
    }

    fn add_entry(&mut self, path: &str, key: NodeId, value: NodeId) {
        let NodeKind::Scalar { value: key, .. } = &self.tree.nodes[self.target(key)].kind else {
            return;
        };
        if &**key != "<<" {
            return self.add(&child(path, key), value);
        }
        // A merged map is part of the map itself.
        let merged = match &self.tree.nodes[value].kind {
            NodeKind::Sequence(items) => items.clone(),
            _ => vec![value],
        };
        for id in merged.into_iter().rev() {
            let target = self.target(id);
            if let NodeKind::Mapping(pairs) = &self.tree.nodes[target].kind
                && !self.open.contains(&id)
            {
                self.open.push(id);
                for (key, value) in pairs {
                    self.left = self.left.saturating_sub(1);
                    self.add_entry(path, *key, *value);
                }
                self.open.pop();
            }
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
