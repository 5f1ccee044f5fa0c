//! The events of a watch, one per line: pure.
//!
//! Input: the bytes of an answer, in pieces. Output: lines, each decoded once, into what its reader
//! named. Upstream ends a watch at a line that it cannot decode and lists everything, which fails at
//! the same object again; here that object keeps its last good state, and everything else goes on.
//! Bounds: one line of `OBJECT_BYTES_MAX`, which is passed over when it is longer.
// k8s: staging/src/k8s.io/client-go/rest/watch/decoder.go, apimachinery/pkg/watch/streamwatcher.go

use serde::Deserialize;

use super::error::{InformerError, StatusWire};
use super::object::{Object, ObjectKey, OnlyMeta, PrunedMeta, UnreadableObject};

/// Longest object or event, in bytes. The API server takes objects of up to 3 MiB.
pub(super) const OBJECT_BYTES_MAX: usize = 8 << 20;

/// Takes an answer apart at its line ends.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    held: Vec<u8>,
    too_long: bool,
}

impl LineSplitter {
    /// The next piece; `each` is called with each line that is complete by then, `None` stands for
    /// one that was too long.
    pub(super) fn feed(&mut self, piece: &[u8], each: &mut dyn FnMut(Option<&[u8]>)) {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, more) = (&rest[..end], &rest[end + 1..]);
            rest = more;
            let held = std::mem::take(&mut self.held);
            let too_long = std::mem::take(&mut self.too_long);
            let joined;
            let whole = if held.is_empty() {
                line
            } else {
                joined = [held.as_slice(), line].concat();
                joined.as_slice()
            };
            let fits = !too_long && whole.len() <= OBJECT_BYTES_MAX;
            if too_long || !whole.is_empty() {
                each(fits.then_some(whole));
            }
        }
        if self.too_long || self.held.len() + rest.len() > OBJECT_BYTES_MAX {
            (self.held, self.too_long) = (Vec::new(), true);
        } else {
            self.held.extend_from_slice(rest);
        }
    }
}

/// What a watch tells.
#[derive(Debug, PartialEq)]
pub(super) enum WatchEvent<T> {
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

/// What is known of an object that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) object: Option<UnreadableObject>,
    /// Empty when not even that can be read.
    pub(super) version: String,
    pub(super) deleted: bool,
    /// Where reading it failed; never what stands there.
    pub(super) at: (usize, usize),
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
pub(super) fn event<T: Object>(line: &[u8]) -> WatchEvent<T> {
    match serde_json::from_slice(line) {
        Ok(LineWire::Added(object)) => WatchEvent::Added(object),
        Ok(LineWire::Modified(object)) => WatchEvent::Modified(object),
        Ok(LineWire::Deleted(object)) => WatchEvent::Deleted(object),
        Ok(LineWire::Bookmark(mark)) => WatchEvent::Bookmark(mark.metadata.resource_version.into()),
        Ok(LineWire::Error(status)) => WatchEvent::Error(status.into()),
        Err(error) => {
            let meta = serde_json::from_slice::<LineWire<OnlyMeta>>(line);
            let (meta, deleted) = match meta {
                Ok(LineWire::Added(meta) | LineWire::Modified(meta)) => (Some(meta), false),
                Ok(LineWire::Deleted(meta)) => (Some(meta), true),
                _ => (None, false),
            };
            WatchEvent::Unreadable(unreadable(meta, deleted, &error))
        }
    }
}

/// Decodes an item of a list.
pub(super) fn item<T: Object>(text: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(text)
        .map_err(|error| unreadable(serde_json::from_slice(text).ok(), false, &error))
}

fn unreadable(meta: Option<OnlyMeta>, deleted: bool, error: &serde_json::Error) -> Unreadable {
    let at = (error.line(), error.column());
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

    #[derive(Debug, PartialEq, Deserialize)]
    struct Small {
        metadata: PrunedMeta,
        #[serde(default)]
        count: u32,
    }
    crate::pruned_object!(Small);

    fn small(name: &str, count: u32) -> Small {
        let metadata = PrunedMeta {
            name: name.into(),
            namespace: crate::informer::Symbol::of("n"),
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
            WatchEvent::Unreadable(Unreadable { object, version, deleted, at: (0, 0) })
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
            (of("ADDED", r#","count":1"#), WatchEvent::Added(small("a", 1))),
            (turned, WatchEvent::Modified(small("a", 2))),
            (of("DELETED", r#","spec":[[{}]]"#), WatchEvent::Deleted(small("a", 0))),
            (bookmark.to_owned(), WatchEvent::Bookmark("9".to_owned())),
            (error.to_owned(), WatchEvent::Error(expired)),
            (of("MODIFIED", r#","count":"many""#), lost(Some("a"), "5", false)),
            (of("DELETED", r#","count":-1"#), lost(Some("a"), "5", true)),
            ("{".to_owned(), lost(None, "", false)),
            (r#"{"type":"NEW","object":{}}"#.to_owned(), lost(None, "", false)),
        ] {
            let mut got = event::<Small>(line.as_bytes());
            if let WatchEvent::Unreadable(unreadable) = &mut got {
                unreadable.at = (0, 0);
            }
            assert_eq!(got, want, "{line}");
        }
    }

    #[test]
    fn lines_are_found_however_they_come() {
        let long = "x".repeat(OBJECT_BYTES_MAX + 1);
        let text = format!("one\n\ntwo\n{long}\nthree\nfo");
        for piece in [3, 5, 1_000_000, usize::MAX] {
            let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
            for piece in text.as_bytes().chunks(piece) {
                splitter.feed(piece, &mut |line| {
                    lines.push(line.map(|line| String::from_utf8_lossy(line).into_owned()));
                });
                assert!(splitter.held.len() <= OBJECT_BYTES_MAX);
            }
            let want = [Some("one"), Some("two"), None, Some("three")];
            assert_eq!(lines, want.map(|line| line.map(str::to_owned)), "{piece}");
        }
    }
}
