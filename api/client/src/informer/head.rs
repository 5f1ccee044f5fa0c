//! The text of one object while it arrives: held whole, or only its beginning when it is too long.
//!
//! Input: pieces of a text. Output: the whole text, or of a longer one the first `HEAD_BYTES`, in
//! which the API server names the object: it writes `type` before `object`, and `metadata` with
//! name, uid and version before everything else. So the name of an object that is too long is still
//! known: its last good state stays while it exists, it is removed when it is deleted, and a list
//! that contains it still shows which other objects are gone. The new state of such an object is
//! ignored, and an object that was always too long is never reported. Each such object is logged
//! and counted (`InformerObserver::unreadable`). The limit is high, because an object that takes
//! 1.5 MiB in etcd can take up to 9 MiB in an answer: JSON needs six bytes for `<`, `>`, `&` and
//! control characters. Fields with long names and short values, which are short in protobuf, hardly
//! add to that.
//! Owner: the decoder of an answer. Bounds: `OBJECT_BYTES_MAX`, one object at a time.
// k8s: staging/src/k8s.io/apimachinery/pkg/runtime/serializer/json/json.go doEncode

use std::borrow::Cow;
use std::fmt;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::UnreadableObject;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Longest object or event that is held, in bytes.
pub(super) const OBJECT_BYTES_MAX: usize = 32 << 20;
/// Kept bytes of a longer object; the fields that identify the object take about 2 KiB at most.
const HEAD_BYTES: usize = 16 << 10;

/// A text that has arrived completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectText<'a> {
    Whole(&'a [u8]),
    /// The beginning of the text.
    TooLong(&'a [u8]),
}

/// The part of a text that has arrived.
#[derive(Debug, Default)]
pub(super) struct HeldText {
    bytes: Vec<u8>,
    too_long: bool,
}

impl HeldText {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Keeps a piece that is not the last one.
    pub(super) fn hold(&mut self, piece: &[u8]) {
        if self.too_long {
            return;
        }
        if self.bytes.len() + piece.len() <= OBJECT_BYTES_MAX {
            return self.bytes.extend_from_slice(piece);
        }
        let room = HEAD_BYTES.saturating_sub(self.bytes.len());
        let mut head = self.bytes[..self.bytes.len().min(HEAD_BYTES)].to_vec();
        head.extend_from_slice(&piece[..piece.len().min(room)]);
        (self.bytes, self.too_long) = (head, true);
    }

    /// The text with its last piece, which is not copied when it is the only one.
    pub(super) fn end<'a>(&'a mut self, last: &'a [u8]) -> ObjectText<'a> {
        if self.bytes.is_empty() && last.len() <= OBJECT_BYTES_MAX {
            return ObjectText::Whole(last);
        }
        self.hold(last);
        match self.too_long {
            true => ObjectText::TooLong(&self.bytes),
            false => ObjectText::Whole(&self.bytes),
        }
    }
}

/// Fields at the beginning of an event, or of an object.
#[derive(Debug, Default)]
pub(super) struct EventHead {
    r#type: String,
    name: String,
    namespace: String,
    uid: String,
    pub(super) version: String,
}

impl EventHead {
    /// The head of an event.
    pub(super) fn of_event(text: &[u8]) -> Self {
        Self::read(text, NestingLevel::Event)
    }

    /// The head of an object.
    pub(super) fn of_object(text: &[u8]) -> Self {
        Self::read(text, NestingLevel::Object)
    }

    fn read(text: &[u8], level: NestingLevel) -> Self {
        let mut head = Self::default();
        let part = HeadPart { head: &mut head, level };
        // Decoding fails where the text is cut; the fields before the cut are in `head`.
        let _ = part.deserialize(&mut serde_json::Deserializer::from_slice(text));
        head
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.r#type == "DELETED"
    }

    /// The object's key and uid; `None` if the text ends before its name, uid and version. The
    /// namespace is then known too, because it precedes the uid; a cluster-scoped object has none.
    pub(super) fn object(&self) -> Option<UnreadableObject> {
        let all = [&self.name, &self.uid, &self.version];
        let key = || ObjectKey::new(&self.namespace, &self.name);
        let whole = all.iter().all(|text| !text.is_empty());
        whole.then(|| UnreadableObject { key: key(), uid: self.uid.as_str().into() })
    }
}

#[derive(Clone, Copy)]
enum NestingLevel {
    Event,
    Object,
    Meta,
}

/// Decodes one level of nesting into the head.
struct HeadPart<'a> {
    head: &'a mut EventHead,
    level: NestingLevel,
}

impl<'de> DeserializeSeed<'de> for HeadPart<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeadPart<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { head, level } = self;
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            let text = match (level, &*name) {
                (NestingLevel::Event, "type") => &mut head.r#type,
                (NestingLevel::Event, "object") => {
                    map.next_value_seed(HeadPart { head, level: NestingLevel::Object })?;
                    continue;
                }
                (NestingLevel::Object, "metadata") => {
                    map.next_value_seed(HeadPart { head, level: NestingLevel::Meta })?;
                    continue;
                }
                (NestingLevel::Meta, "name") => &mut head.name,
                (NestingLevel::Meta, "namespace") => &mut head.namespace,
                (NestingLevel::Meta, "uid") => &mut head.uid,
                (NestingLevel::Meta, "resourceVersion") => &mut head.version,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *text = map.next_value()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_held_whole_up_to_the_limit_and_oversized_text_by_its_head() {
        let long = vec![b'x'; OBJECT_BYTES_MAX + 1];
        for piece in [1 << 20, OBJECT_BYTES_MAX, usize::MAX] {
            for length in [5, HEAD_BYTES, OBJECT_BYTES_MAX, OBJECT_BYTES_MAX + 1] {
                let mut held = HeldText::default();
                let mut pieces: Vec<_> = long[..length].chunks(piece).collect();
                let last = pieces.pop().expect("it has a piece");
                pieces.iter().for_each(|piece| held.hold(piece));
                match held.end(last) {
                    ObjectText::Whole(text) => assert_eq!(text.len(), length),
                    ObjectText::TooLong(head) => {
                        assert_eq!((head.len(), length), (HEAD_BYTES, OBJECT_BYTES_MAX + 1));
                    }
                }
            }
        }
    }

    #[test]
    fn truncated_object_is_identified_wherever_it_is_cut() {
        let object = r#"{"kind":"Pod","metadata":{"name":"a","generateName":"x","namespace":"n","uid":"u",
            "resourceVersion":"5","labels":{"name":"b"},"annotations":{"metadata":"<"#;
        let event = format!(r#"{{"type":"DELETED","object":{object}"#);
        let named = event.find("\"labels").expect("it has labels");
        for cut in 0..=event.len() {
            let head = EventHead::of_event(&event.as_bytes()[..cut]);
            let found = head.object().map(|object| (object.key, object.uid));
            let all = cut + 1 >= named;
            let want = all.then(|| (ObjectKey::new("n", "a"), "u".into()));
            assert_eq!(found, want, "{cut}");
            assert!(!all || (head.is_deleted() && head.version == "5"), "{cut}");
        }
        let of_cluster = br#"{"metadata":{"name":"a","uid":"u","resourceVersion":"5","labels":{"#;
        let found = EventHead::of_object(of_cluster).object().map(|object| object.key);
        assert_eq!(found, Some(ObjectKey::new("", "a")));
    }
}
