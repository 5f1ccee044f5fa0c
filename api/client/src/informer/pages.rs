//! Splits a list into its items while it arrives, so that it is never held whole: pure.
//!
//! Input: the bytes of an answer, in pieces. Output: the bytes of each item, one after the other,
//! and at the end the list's version and the token of its next page. A server sends a list from its
//! watch cache in one answer, however long it is. An item that cannot be decoded does not affect
//! the other items. Bounds: one item as `head` holds it, a name of `KEY_BYTES_MAX`.

use serde::Deserialize;

use super::head::{HeldText, ObjectText};

/// Bytes of the name of a list's own field that are compared; more are ignored.
const KEY_BYTES_MAX: usize = 64;
/// Deepest nesting of objects and arrays.
const DEPTH_MAX: u32 = 10_000;

/// A list's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMeta {
    pub(super) resource_version: String,
    /// Token of the next page; empty when there is none.
    pub(super) r#continue: String,
}

/// The answer is not a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server's answer is not a list, or is truncated")]
pub(super) struct NoList;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Items,
    Metadata,
    Other,
}

/// Splits one answer.
#[derive(Debug)]
pub(super) struct ListScanner {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The name of the current field of the list.
    name: Vec<u8>,
    /// The current string is that name.
    naming: bool,
    field: Field,
    /// The received text of the item or metadata that is being read; `None` outside of them.
    taken: Option<HeldText>,
    meta: Option<Vec<u8>>,
    done: bool,
}

impl Default for ListScanner {
    fn default() -> Self {
        Self {
            depth: 0,
            in_string: false,
            escaped: false,
            name: Vec::new(),
            naming: false,
            field: Field::Other,
            taken: None,
            meta: None,
            done: false,
        }
    }
}

impl ListScanner {
    /// Takes the next piece and calls `each` with every item that is now complete.
    pub(super) fn feed(
        &mut self,
        piece: &[u8],
        each: &mut dyn FnMut(ObjectText<'_>),
    ) -> Result<(), NoList> {
        let mut begin = 0;
        let mut at = 0;
        while at < piece.len() {
            if self.in_string {
                at += self.string(&piece[at..]);
                continue;
            }
            match piece[at] {
                b'"' => {
                    self.in_string = true;
                    self.naming = self.depth == 1 && self.name.is_empty();
                }
                b'{' | b'[' => {
                    self.open(piece[at])?;
                    if self.begins(piece[at]) {
                        begin = at;
                        self.taken = Some(HeldText::default());
                    }
                }
                b'}' | b']' => {
                    self.depth = self.depth.checked_sub(1).ok_or(NoList)?;
                    self.done = self.depth == 0;
                    if self.ends() {
                        self.end(&piece[begin..=at], each);
                    }
                }
                b',' if self.depth == 1 => self.next_field(),
                b':' if self.depth == 1 => self.field = field(&self.name),
                _ => {}
            }
            at += 1;
        }
        self.hold(&piece[begin.min(piece.len())..]);
        Ok(())
    }

    /// The list's metadata, once the list is complete.
    pub(super) fn finish(self) -> Result<ListMeta, NoList> {
        match (self.done, self.meta) {
            (true, Some(meta)) => serde_json::from_slice(&meta).map_err(|_| NoList),
            _ => Err(NoList),
        }
    }

    /// Reads to the end of a string or of the piece; returns the number of bytes read.
    fn string(&mut self, rest: &[u8]) -> usize {
        let mut length = rest.len();
        for (at, byte) in rest.iter().enumerate() {
            if std::mem::take(&mut self.escaped) {
                continue;
            }
            match byte {
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    length = at + 1;
                    break;
                }
                _ => {}
            }
        }
        if self.naming {
            let text = &rest[..length - usize::from(!self.in_string)];
            let room = KEY_BYTES_MAX.saturating_sub(self.name.len());
            self.name.extend_from_slice(&text[..text.len().min(room)]);
        }
        length
    }

    fn open(&mut self, byte: u8) -> Result<(), NoList> {
        if self.done || self.depth >= DEPTH_MAX || (self.depth == 0 && byte == b'[') {
            return Err(NoList);
        }
        self.depth += 1;
        Ok(())
    }

    fn next_field(&mut self) {
        self.name.clear();
        self.field = Field::Other;
    }

    /// True if the opened value is an item, or the metadata.
    fn begins(&self, byte: u8) -> bool {
        match self.field {
            Field::Items => self.depth == 3,
            Field::Metadata => self.depth == 2 && byte == b'{',
            Field::Other => false,
        }
    }

    /// True if the closed value is the item or metadata that is being read.
    fn ends(&self) -> bool {
        let depth = if self.field == Field::Items { 2 } else { 1 };
        self.taken.is_some() && self.depth == depth
    }

    fn end(&mut self, last: &[u8], each: &mut dyn FnMut(ObjectText<'_>)) {
        let Some(mut taken) = self.taken.take() else { return };
        let text = taken.end(last);
        match (self.field, text) {
            (Field::Items, text) => each(text),
            (_, ObjectText::Whole(meta)) => self.meta = Some(meta.to_vec()),
            (_, ObjectText::TooLong(_)) => self.meta = None,
        }
    }

    /// Keeps the received beginning of an item or of the metadata until the rest arrives.
    fn hold(&mut self, rest: &[u8]) {
        if let Some(taken) = &mut self.taken {
            taken.hold(rest);
        }
    }
}

fn field(name: &[u8]) -> Field {
    match name {
        b"items" => Field::Items,
        b"metadata" => Field::Metadata,
        _ => Field::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::head::OBJECT_BYTES_MAX;
    use proptest::prelude::*;

    /// Items and metadata of a list that comes in pieces of so many bytes.
    fn scan(text: &str, piece: usize) -> Result<(Vec<String>, ListMeta), NoList> {
        let mut scanner = ListScanner::default();
        let mut items = Vec::new();
        for piece in text.as_bytes().chunks(piece) {
            scanner.feed(piece, &mut |item| match item {
                ObjectText::Whole(text) => items.push(String::from_utf8_lossy(text).into_owned()),
                ObjectText::TooLong(head) => items.push(format!("{} of {}", head.len(), head[2])),
            })?;
        }
        Ok((items, scanner.finish()?))
    }

    #[test]
    fn list_is_split_into_items_at_any_chunk_boundaries() {
        let item = r#"{"metadata":{"name":"a\"}]{\\"},"items":[{"x":[[]]}],"items":1}"#;
        let (version, more) = (r#""resourceVersion":"7""#, r#""continue":"c""#);
        let texts = [
            format!(r#"{{"kind":"L","metadata":{{{version},{more}}},"items":[{item}, {item}]}}"#),
            format!(
                r#" {{ "items" : [ {item},{item} ] , "x" : [{{"metadata":1}}],
                    "metadata" : {{{more},{version}}} }} "#
            ),
            format!(
                r#"{{"other":{{"items":[{{}}],"metadata":{{}}}},"items":[{item},{item}],
                    "metadata":{{{version},{more},"remainingItemCount":3}}}}"#
            ),
        ];
        let meta = ListMeta { resource_version: "7".to_owned(), r#continue: "c".to_owned() };
        for text in &texts {
            for piece in [1, 2, 3, 7, 20, 4_096] {
                let want = Ok((vec![item.to_owned(); 2], meta.clone()));
                assert_eq!(scan(text, piece), want, "{piece} {text}");
            }
        }
    }

    #[test]
    fn empty_lists_are_distinguished_from_invalid_lists() {
        for text in [r#"{"metadata":{},"items":[]}"#, r#"{"metadata":{},"items":null}"#] {
            assert_eq!(scan(text, 5), Ok((vec![], ListMeta::default())), "{text}");
        }
        for text in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"items":[]}"#,
            r#"{"metadata":{},"items":[{}"#,
            "}",
            r#"{"metadata":{},"items":[]}{"metadata":{}}"#,
            r#"{"metadata":[],"items":[]}"#,
        ] {
            assert_eq!(scan(text, 5), Err(NoList), "{text}");
        }
    }

    #[test]
    fn oversized_item_is_reported_by_its_beginning() {
        let long = format!(r#"{{"x":"{}"}}"#, "y".repeat(OBJECT_BYTES_MAX));
        let text = format!(r#"{{"items":[{{}},{long},{{}}],"metadata":{{}}}}"#);
        for piece in [100_000, usize::MAX] {
            let (items, _) = scan(&text, piece).expect("a list");
            assert_eq!(items, ["{}", &format!("16384 of {}", b'x'), "{}"], "{piece}");
        }
    }

    proptest! {
        #[test]
        fn items_are_those_that_serde_finds(
            texts in proptest::collection::vec(".{0,12}", 0..5), piece in 1_usize..40,
        ) {
            let items: Vec<_> = texts
                .iter()
                .map(|text| serde_json::json!({"metadata": {"name": text}, text.as_str(): [text]}))
                .collect();
            let list = serde_json::json!({"items": items, "metadata": {"resourceVersion": "1"}});
            let (found, _) = scan(&list.to_string(), piece).expect("a list");
            let parsed: Result<Vec<serde_json::Value>, _> =
                found.iter().map(|text| serde_json::from_str(text)).collect();
            prop_assert_eq!(parsed.expect("items"), items);
        }
    }
}
