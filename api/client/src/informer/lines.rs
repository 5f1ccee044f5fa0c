//! The events of a watch, one per line: pure.
//!
//! Input: the bytes of an answer, in pieces. Output: lines, each decoded once, into the fields of
//! its reader. Upstream ends a watch at a line that it cannot decode and lists everything, which
//! fails at the same object again; here that object keeps its last good state, and the watch
//! continues. Bounds: one line as `head` holds it.
// k8s: staging/src/k8s.io/client-go/rest/watch/decoder.go, apimachinery/pkg/watch/streamwatcher.go

use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::{Object, PrunedMeta, UnreadableObject};
use serde::Deserialize;

use super::error::{InformerError, StatusWire};
use super::head::{EventHead, HeldText, ObjectText};

/// The readable part of an object that cannot be read as a whole.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct OnlyMeta {
    metadata: PrunedMeta,
}

/// Splits an answer at its line ends.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    held: HeldText,
}

impl LineSplitter {
    /// Takes the next piece and calls `each` with each line that is now complete.
    pub(super) fn feed(&mut self, piece: &[u8], each: &mut dyn FnMut(ObjectText<'_>)) {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, more) = (&rest[..end], &rest[end + 1..]);
            rest = more;
            let mut held = std::mem::take(&mut self.held);
            if !held.is_empty() || !line.is_empty() {
                each(held.end(line));
            }
        }
        self.held.hold(rest);
    }
}

/// An event of a watch.
#[derive(Debug, PartialEq)]
pub(super) enum LineEvent<T> {
    Added(T),
    Modified(T),
    Deleted(T),
    /// Nothing happened up to this version.
    Bookmark(String),
    /// The watch ends.
    Error(InformerError),
    /// Something happened to an object that cannot be read.
    Unreadable(Unreadable),
}

/// The known fields of an object that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) object: Option<UnreadableObject>,
    /// Empty when not even that can be read.
    pub(super) version: String,
    pub(super) deleted: bool,
    /// Position of the error, never the content there; `None` when the object is too long to be
    /// held.
    pub(super) at: Option<(usize, usize)>,
}

/// An event on the wire. The server writes `type` first; then nothing is held in between.
#[derive(Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
enum LineWire<T> {
    Added(T),
    Modified(T),
    Deleted(T),
    Bookmark(OnlyMeta),
    Error(StatusWire),
}

/// Decodes a line.
pub(super) fn event<T: Object>(line: ObjectText<'_>) -> LineEvent<T> {
    let line = match line {
        ObjectText::Whole(line) => line,
        ObjectText::TooLong(head) => {
            return LineEvent::Unreadable(too_long(EventHead::of_event(head)));
        }
    };
    match serde_json::from_slice(line) {
        Ok(LineWire::Added(object)) => LineEvent::Added(object),
        Ok(LineWire::Modified(object)) => LineEvent::Modified(object),
        Ok(LineWire::Deleted(object)) => LineEvent::Deleted(object),
        Ok(LineWire::Bookmark(mark)) => LineEvent::Bookmark(mark.metadata.resource_version.into()),
        Ok(LineWire::Error(status)) => LineEvent::Error(status.into()),
        Err(error) => {
            let meta = serde_json::from_slice::<LineWire<OnlyMeta>>(line);
            let (meta, deleted) = match meta {
                Ok(LineWire::Added(meta) | LineWire::Modified(meta)) => (Some(meta), false),
                Ok(LineWire::Deleted(meta)) => (Some(meta), true),
                _ => (None, false),
            };
            LineEvent::Unreadable(unreadable(meta, deleted, &error))
        }
    }
}

/// Decodes an item of a list.
pub(super) fn item<T: Object>(text: ObjectText<'_>) -> Result<T, Unreadable> {
    let text = match text {
        ObjectText::Whole(text) => text,
        ObjectText::TooLong(head) => return Err(too_long(EventHead::of_object(head))),
    };
    serde_json::from_slice(text)
        .map_err(|error| unreadable(serde_json::from_slice(text).ok(), false, &error))
}

fn too_long(head: EventHead) -> Unreadable {
    let (object, deleted) = (head.object(), head.is_deleted());
    Unreadable { object, version: head.version, deleted, at: None }
}

fn unreadable(meta: Option<OnlyMeta>, deleted: bool, error: &serde_json::Error) -> Unreadable {
    let at = Some((error.line(), error.column()));
    let meta = meta.map(|meta| meta.metadata).filter(|meta| !meta.name.is_empty());
    let Some(PrunedMeta { name, namespace, uid, resource_version }) = meta else {
        return Unreadable { object: None, version: String::new(), deleted, at };
    };
    let object = Some(UnreadableObject { key: ObjectKey::new(&namespace, &name), uid });
    Unreadable { object, version: resource_version.into(), deleted, at }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::head::OBJECT_BYTES_MAX;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Small {
        metadata: PrunedMeta,
        #[serde(default)]
        count: u32,
    }
    pintle_api_types::pruned_object!(Small);

    fn small(name: &str, count: u32) -> Small {
        let metadata = PrunedMeta {
            name: name.into(),
            namespace: pintle_api_types::symbol::Symbol::of("n"),
            uid: "u".into(),
            resource_version: "5".into(),
        };
        Small { metadata, count }
    }

    #[test]
    fn each_kind_of_line_is_read() {
        let meta = r#"{"namespace":"n","name":"a","uid":"u","resourceVersion":"5",
            "managedFields":[{"x":{}}]}"#;
        let lost = |key: Option<&str>, version: &str, deleted| {
            let object = key
                .map(|name| UnreadableObject { key: ObjectKey::new("n", name), uid: "u".into() });
            let version = version.into();
            LineEvent::Unreadable(Unreadable { object, version, deleted, at: None })
        };
        let expired = InformerError::Expired("too old".to_owned());
        let of = |kind: &str, rest: &str| {
            format!(r#"{{"type":"{kind}","object":{{"metadata":{meta}{rest}}}}}"#)
        };
        let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"Pod",
            "metadata":{"resourceVersion":"9"},"spec":{"containers":null}}}"#;
        let error = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#;
        let turned = format!(r#"{{"object":{{"metadata":{meta},"count":2}},"type":"MODIFIED"}}"#);
        for (line, want) in [
            (of("ADDED", r#","count":1"#), LineEvent::Added(small("a", 1))),
            (turned, LineEvent::Modified(small("a", 2))),
            (of("DELETED", r#","spec":[[{}]]"#), LineEvent::Deleted(small("a", 0))),
            (bookmark.to_owned(), LineEvent::Bookmark("9".to_owned())),
            (error.to_owned(), LineEvent::Error(expired)),
            (of("MODIFIED", r#","count":"many""#), lost(Some("a"), "5", false)),
            (of("DELETED", r#","count":-1"#), lost(Some("a"), "5", true)),
            ("{".to_owned(), lost(None, "", false)),
            (r#"{"type":"NEW","object":{}}"#.to_owned(), lost(None, "", false)),
        ] {
            let mut got = event::<Small>(ObjectText::Whole(line.as_bytes()));
            if let LineEvent::Unreadable(unreadable) = &mut got {
                unreadable.at = None;
            }
            assert_eq!(got, want, "{line}");
        }
    }

    #[test]
    fn lines_are_split_at_any_chunk_boundaries() {
        let long = "x".repeat(OBJECT_BYTES_MAX + 1);
        let texts = ["one\n\ntwo\nthree\nfo".to_owned(), format!("one\ntwo\n{long}\nthree\nfo")];
        for (text, piece) in
            [(0, 1), (0, 3), (0, 5), (0, usize::MAX), (1, 1_000_000), (1, usize::MAX)]
        {
            let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
            for piece in texts[text].as_bytes().chunks(piece) {
                splitter.feed(piece, &mut |line| match line {
                    ObjectText::Whole(line) => lines.push(String::from_utf8_lossy(line).into()),
                    ObjectText::TooLong(head) => lines.push(format!("{} x", head.len())),
                });
            }
            let want: &[&str] = if text == 0 {
                &["one", "two", "three"]
            } else {
                &["one", "two", "16384 x", "three"]
            };
            assert_eq!(lines, want, "{piece}");
        }
    }

    #[test]
    fn oversized_object_is_identified_by_name() {
        let object = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"5"}},"x":"{}"}}"#,
            "<".repeat(OBJECT_BYTES_MAX)
        );
        let lost = |deleted| {
            let object = Some(UnreadableObject { key: ObjectKey::new("n", "a"), uid: "u".into() });
            Unreadable { object, version: "5".to_owned(), deleted, at: None }
        };
        for (kind, deleted) in [("ADDED", false), ("MODIFIED", false), ("DELETED", true)] {
            let (mut splitter, mut events) = (LineSplitter::default(), Vec::new());
            let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
            for piece in line.as_bytes().chunks(1 << 20) {
                splitter.feed(piece, &mut |line| events.push(event::<Small>(line)));
            }
            assert_eq!(events, [LineEvent::Unreadable(lost(deleted))]);
        }
        assert_eq!(item::<Small>(ObjectText::TooLong(&object.as_bytes()[..200])), Err(lost(false)));
    }
}
