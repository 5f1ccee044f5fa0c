//! Tokens to the tree of the first document.
//!
//! Nodes lie in one vector and name each other by index, so that a tree of any shape is dropped
//! without recursion and an alias may name a node that contains it.
// k8s: vendor/go.yaml.in/yaml/v2/parserc.go, decode.go parser

use std::collections::{BTreeMap, HashMap};

use super::scanner::{Mark, Scanned, Scanner, TokenKind};
use super::text::FileText;
use super::{ReadLimits, SyntaxError};

/// Prefix of YAML's own tags.
pub(super) const YAML_TAG: &str = "tag:yaml.org,2002:";

/// Place of a node in its tree.
pub(super) type NodeId = usize;

/// The first document of a file.
pub(super) struct YamlTree {
    pub nodes: Vec<YamlNode>,
    /// `None` for an empty file.
    pub root: Option<NodeId>,
}

/// Small: a file of the most values that are allowed has a hundred thousand of them.
pub(super) struct YamlNode {
    pub kind: NodeKind,
    /// From 0.
    pub line: usize,
}

const _: () = assert!(size_of::<YamlNode>() <= 48);

pub(super) enum NodeKind {
    Scalar {
        value: Box<str>,
        /// Empty if there is none.
        tag: Box<str>,
        /// Plain and without a tag, so that its text decides its type.
        is_implicit: bool,
    },
    Sequence(Vec<NodeId>),
    Mapping(Vec<(NodeId, NodeId)>),
    Alias {
        name: Box<str>,
        target: NodeId,
    },
}

/// The place of a node, which decides what it may be.
#[derive(Clone, Copy)]
enum NodePlace {
    /// In the value of a block mapping, where `-` may stand under its key.
    BlockOrIndentless,
    Block,
    Flow,
}

/// Reads the first document.
pub(super) fn parse(text: &FileText<'_>, limits: &ReadLimits) -> Scanned<YamlTree> {
    let mut parser = Parser {
        scanner: Scanner::new(text, limits),
        nodes: Vec::new(),
        anchors: HashMap::new(),
        tags: BTreeMap::new(),
        depth: 0,
        limits: *limits,
    };
    let root = parser.document()?;
    Ok(YamlTree { nodes: parser.nodes, root })
}

struct Parser<'t> {
    scanner: Scanner<'t>,
    nodes: Vec<YamlNode>,
    anchors: HashMap<String, NodeId>,
    /// Prefixes by handle.
    tags: BTreeMap<String, String>,
    depth: usize,
    limits: ReadLimits,
}

impl Parser<'_> {
    /// The node of the document; the text behind it is read as far as it takes to see the end.
    fn document(&mut self) -> Scanned<Option<NodeId>> {
        use TokenKind::{DocumentEnd, DocumentStart, StreamEnd, TagDirective, VersionDirective};
        let first = self.scanner.peek()?.kind.clone();
        if first == StreamEnd {
            return Ok(None);
        }
        let is_explicit =
            matches!(first, VersionDirective { .. } | TagDirective { .. } | DocumentStart);
        self.directives()?;
        if is_explicit {
            let mark = self.mark()?;
            if self.scanner.take()?.kind != DocumentStart {
                return error(mark, "did not find expected <document start>");
            }
        }
        let is_empty = matches!(
            self.scanner.peek()?.kind,
            VersionDirective { .. } | TagDirective { .. } | DocumentStart | DocumentEnd | StreamEnd
        );
        let root =
            if is_explicit && is_empty { self.empty()? } else { self.node(NodePlace::Block)? };
        self.scanner.peek()?;
        Ok(Some(root))
    }

    // k8s: parserc.go yaml_parser_process_directives
    fn directives(&mut self) -> Scanned<()> {
        let mut has_version = false;
        loop {
            let mark = self.mark()?;
            match self.scanner.peek()?.kind.clone() {
                TokenKind::VersionDirective { major, minor } => {
                    if has_version {
                        return error(mark, "found duplicate %YAML directive");
                    }
                    if (major, minor) != (1, 1) {
                        return error(mark, "found incompatible YAML document");
                    }
                    has_version = true;
                }
                TokenKind::TagDirective { handle, prefix } => {
                    if self.tags.insert(handle, prefix).is_some() {
                        return error(mark, "found duplicate %TAG directive");
                    }
                }
                _ => break,
            }
            self.scanner.take()?;
        }
        for (handle, prefix) in [("!", "!"), ("!!", YAML_TAG)] {
            self.tags.entry(handle.to_owned()).or_insert_with(|| prefix.to_owned());
        }
        Ok(())
    }

    fn mark(&mut self) -> Scanned<Mark> {
        Ok(self.scanner.peek()?.mark)
    }

    fn is_next(&mut self, kinds: &[TokenKind]) -> Scanned<bool> {
        let kind = &self.scanner.peek()?.kind;
        Ok(kinds.contains(kind))
    }

    fn add(&mut self, kind: NodeKind, mark: Mark) -> Scanned<NodeId> {
        if self.nodes.len() >= self.limits.nodes_max {
            return error(mark, &format!("more than {} values", self.limits.nodes_max));
        }
        self.nodes.push(YamlNode { kind, line: mark.line });
        Ok(self.nodes.len() - 1)
    }

    /// A null where nothing stands.
    fn empty(&mut self) -> Scanned<NodeId> {
        let mark = self.mark()?;
        let kind = NodeKind::Scalar { value: "".into(), tag: "".into(), is_implicit: true };
        self.add(kind, mark)
    }

    // k8s: parserc.go yaml_parser_parse_node
    fn node(&mut self, place: NodePlace) -> Scanned<NodeId> {
        let start = self.mark()?;
        if let TokenKind::Alias(name) = &self.scanner.peek()?.kind {
            let name = name.clone();
            self.scanner.take()?;
            return match self.anchors.get(&name) {
                Some(&target) => self.add(NodeKind::Alias { name: name.into(), target }, start),
                None => {
                    Err(SyntaxError::at(start.line, format!("unknown anchor '{name}' referenced")))
                }
            };
        }
        let (anchor, tag) = self.properties()?;
        self.depth += 1;
        if self.depth > 2 * self.limits.depth_max {
            return error(start, &format!("exceeded max depth of {}", self.limits.depth_max));
        }
        let node = self.content(place, start, anchor, tag);
        self.depth -= 1;
        node
    }

    /// Anchor and tag in front of a node, in either order.
    fn properties(&mut self) -> Scanned<(Option<String>, String)> {
        let (mut anchor, mut tag) = (None, None);
        loop {
            let mark = self.mark()?;
            match &self.scanner.peek()?.kind {
                TokenKind::Anchor(name) if anchor.is_none() => anchor = Some(name.clone()),
                TokenKind::Tag { handle, suffix } if tag.is_none() => {
                    let (handle, suffix) = (handle.clone(), suffix.clone());
                    tag = Some(self.full_tag(&handle, &suffix, mark)?);
                }
                _ => return Ok((anchor, tag.unwrap_or_default())),
            }
            self.scanner.take()?;
        }
    }

    fn full_tag(&self, handle: &str, suffix: &[u8], mark: Mark) -> Scanned<String> {
        let suffix = String::from_utf8_lossy(suffix);
        if handle.is_empty() {
            return Ok(suffix.into_owned());
        }
        let tag = self.tags.get(handle).map(|prefix| format!("{prefix}{suffix}"));
        match tag.filter(|tag| !tag.is_empty()) {
            Some(tag) => Ok(tag),
            None => error(mark, "found undefined tag handle"),
        }
    }

    fn content(
        &mut self,
        place: NodePlace,
        start: Mark,
        anchor: Option<String>,
        tag: String,
    ) -> Scanned<NodeId> {
        let is_block = !matches!(place, NodePlace::Flow);
        let has_properties = anchor.is_some() || !tag.is_empty();
        let kind = match &self.scanner.peek()?.kind {
            TokenKind::BlockEntry if matches!(place, NodePlace::BlockOrIndentless) => {
                TokenKind::BlockEntry
            }
            TokenKind::Scalar { value, is_plain } => {
                let is_implicit = (tag.is_empty() && *is_plain) || tag == "!";
                let (value, tag) = (value.as_str().into(), tag.into());
                let kind = NodeKind::Scalar { value, tag, is_implicit };
                self.scanner.take()?;
                return self.add_anchored(kind, start, anchor);
            }
            TokenKind::FlowSequenceStart => TokenKind::FlowSequenceStart,
            TokenKind::FlowMappingStart => TokenKind::FlowMappingStart,
            TokenKind::BlockSequenceStart if is_block => TokenKind::BlockSequenceStart,
            TokenKind::BlockMappingStart if is_block => TokenKind::BlockMappingStart,
            _ if has_properties => {
                let is_implicit = tag.is_empty();
                let kind = NodeKind::Scalar { value: "".into(), tag: tag.into(), is_implicit };
                return self.add_anchored(kind, start, anchor);
            }
            _ => return error(self.mark()?, "did not find expected node content"),
        };
        let is_sequence = matches!(
            kind,
            TokenKind::BlockEntry | TokenKind::FlowSequenceStart | TokenKind::BlockSequenceStart
        );
        let empty = match is_sequence {
            true => NodeKind::Sequence(Vec::new()),
            false => NodeKind::Mapping(Vec::new()),
        };
        let id = self.add_anchored(empty, start, anchor)?;
        self.nodes[id].kind = match kind {
            TokenKind::BlockEntry => NodeKind::Sequence(self.indentless_sequence()?),
            TokenKind::FlowSequenceStart => NodeKind::Sequence(self.flow_sequence()?),
            TokenKind::BlockSequenceStart => NodeKind::Sequence(self.block_sequence()?),
            TokenKind::FlowMappingStart => NodeKind::Mapping(self.flow_mapping()?),
            _ => NodeKind::Mapping(self.block_mapping()?),
        };
        Ok(id)
    }

    fn add_anchored(
        &mut self,
        kind: NodeKind,
        mark: Mark,
        anchor: Option<String>,
    ) -> Scanned<NodeId> {
        let id = self.add(kind, mark)?;
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, id);
        }
        Ok(id)
    }

    /// A node, or nothing where one of these tokens stands.
    fn node_or_empty(&mut self, place: NodePlace, ends: &[TokenKind]) -> Scanned<NodeId> {
        if self.is_next(ends)? { self.empty() } else { self.node(place) }
    }

    fn block_sequence(&mut self) -> Scanned<Vec<NodeId>> {
        use TokenKind::{BlockEnd, BlockEntry};
        let mut items = Vec::new();
        self.scanner.take()?;
        loop {
            let token = self.scanner.take()?;
            match token.kind {
                BlockEntry => {
                    items.push(self.node_or_empty(NodePlace::Block, &[BlockEntry, BlockEnd])?)
                }
                BlockEnd => return Ok(items),
                _ => return error(token.mark, "did not find expected '-' indicator"),
            }
        }
    }

    fn indentless_sequence(&mut self) -> Scanned<Vec<NodeId>> {
        use TokenKind::{BlockEnd, BlockEntry, Key, Value};
        let mut items = Vec::new();
        while self.is_next(&[BlockEntry])? {
            self.scanner.take()?;
            let ends = [BlockEntry, Key, Value, BlockEnd];
            items.push(self.node_or_empty(NodePlace::Block, &ends)?);
        }
        Ok(items)
    }

    fn block_mapping(&mut self) -> Scanned<Vec<(NodeId, NodeId)>> {
        use TokenKind::{BlockEnd, Key, Value};
        let mut entries = Vec::new();
        self.scanner.take()?;
        loop {
            let token = self.scanner.take()?;
            match token.kind {
                Key => {}
                BlockEnd => return Ok(entries),
                _ => return error(token.mark, "did not find expected key"),
            }
            let ends = [Key, Value, BlockEnd];
            let key = self.node_or_empty(NodePlace::BlockOrIndentless, &ends)?;
            let value = if self.is_next(&[Value])? {
                self.scanner.take()?;
                self.node_or_empty(NodePlace::BlockOrIndentless, &ends)?
            } else {
                self.empty()?
            };
            entries.push((key, value));
        }
    }

    fn flow_sequence(&mut self) -> Scanned<Vec<NodeId>> {
        use TokenKind::{FlowEntry, FlowSequenceEnd, Key};
        let mut items = Vec::new();
        self.scanner.take()?;
        let mut is_first = true;
        while !self.is_next(&[FlowSequenceEnd])? {
            if !is_first {
                let token = self.scanner.take()?;
                if token.kind != FlowEntry {
                    return error(token.mark, "did not find expected ',' or ']'");
                }
            }
            is_first = false;
            if self.is_next(&[Key])? {
                items.push(self.flow_pair()?);
            } else if !self.is_next(&[FlowSequenceEnd])? {
                items.push(self.node(NodePlace::Flow)?);
            }
        }
        self.scanner.take()?;
        Ok(items)
    }

    /// One key and its value as an item of a flow sequence.
    // k8s: parserc.go yaml_parser_parse_flow_sequence_entry_mapping_key
    fn flow_pair(&mut self) -> Scanned<NodeId> {
        use TokenKind::{FlowEntry, FlowSequenceEnd, Value};
        let mark = self.scanner.take()?.mark;
        let id = self.add(NodeKind::Mapping(Vec::new()), mark)?;
        let key = if self.is_next(&[Value, FlowEntry, FlowSequenceEnd])? {
            // The token is skipped there as well, so that such a pair is an error further on.
            let key = self.empty()?;
            self.scanner.take()?;
            key
        } else {
            self.node(NodePlace::Flow)?
        };
        let value = self.flow_value(FlowSequenceEnd)?;
        self.nodes[id].kind = NodeKind::Mapping(vec![(key, value)]);
        Ok(id)
    }

    fn flow_mapping(&mut self) -> Scanned<Vec<(NodeId, NodeId)>> {
        use TokenKind::{FlowEntry, FlowMappingEnd, Key, Value};
        let mut entries = Vec::new();
        self.scanner.take()?;
        let mut is_first = true;
        while !self.is_next(&[FlowMappingEnd])? {
            if !is_first {
                let token = self.scanner.take()?;
                if token.kind != FlowEntry {
                    return error(token.mark, "did not find expected ',' or '}'");
                }
            }
            is_first = false;
            if self.is_next(&[Key])? {
                self.scanner.take()?;
                let ends = [Value, FlowEntry, FlowMappingEnd];
                let key = self.node_or_empty(NodePlace::Flow, &ends)?;
                entries.push((key, self.flow_value(FlowMappingEnd)?));
            } else if !self.is_next(&[FlowMappingEnd])? {
                let key = self.node(NodePlace::Flow)?;
                entries.push((key, self.empty()?));
            }
        }
        self.scanner.take()?;
        Ok(entries)
    }

    fn flow_value(&mut self, end: TokenKind) -> Scanned<NodeId> {
        if !self.is_next(&[TokenKind::Value])? {
            return self.empty();
        }
        self.scanner.take()?;
        self.node_or_empty(NodePlace::Flow, &[TokenKind::FlowEntry, end])
    }
}

fn error<T>(mark: Mark, message: &str) -> Scanned<T> {
    Err(SyntaxError::at(mark.line, message))
}
