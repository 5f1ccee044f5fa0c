//! Watches of the kinds that controllers read.
//!
//! Input: the API server's lists and watches. Output: [`WatchEvent`]s, one after the other, over
//! one bounded channel. Owner: one task a kind. Bounds: `EVENTS_MAX` events wait; while the channel
//! is full a watch or list is held back, and only the rest of one piece of a list is kept here.

use std::future::Future;
use std::pin::Pin;

use pintle_api::informer::{FollowSpec, ObjectSink, follow};
use pintle_api_types::json_field::find_field;
use pintle_api_types::kind::{Kind, NAMESPACES};
use pintle_api_types::object::{PrunedMeta, UnreadableObject, key_of};
use pintle_controllers_core::tables::{Decoded, WatchEvent};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::discovery::DiscoveryHandle;

/// Events that wait for the deciding thread.
pub(crate) const EVENTS_MAX: usize = 512;

/// A watch under way; it ends when it is dropped.
pub(crate) type Following = Pin<Box<dyn Future<Output = ()>>>;

/// An object's text, and what the informer reads of it. The rest is decoded by the kind, which is
/// known at run time only: one informer's code serves all kinds.
struct ObjectText {
    text: Box<RawValue>,
    metadata: PrunedMeta,
}

impl<'de> Deserialize<'de> for ObjectText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(from)?;
        let metadata = find_field(text.get(), "metadata").map_err(D::Error::custom)?;
        let metadata = metadata.ok_or_else(|| D::Error::missing_field("metadata"))?;
        let metadata = serde_json::from_str(metadata).map_err(D::Error::custom)?;
        Ok(Self { text, metadata })
    }
}

impl PartialEq for ObjectText {
    fn eq(&self, other: &Self) -> bool {
        self.metadata == other.metadata
    }
}

pintle_api_types::pruned_object!(ObjectText);

/// Groups and plurals of the kinds whose objects define other kinds.
const DEFINING: [(&str, &str); 2] = [
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
];

/// The list and watch of a kind.
#[derive(Clone, Debug)]
pub(crate) struct KindSource {
    /// The kind.
    pub(crate) kind: Kind,
    /// Only metadata is wanted.
    pub(crate) only_metadata: bool,
    /// A field selector; empty for all objects.
    pub(crate) fields: &'static str,
}

/// Follows a kind; discovery is read again when an object changes that defines other kinds, and
/// when a namespace is deleted.
pub(crate) fn follow_kind(
    client: kube::Client,
    source: &KindSource,
    events: &mpsc::Sender<WatchEvent>,
    discovery: &DiscoveryHandle,
) -> Following {
    let kind = source.kind;
    let mut spec = FollowSpec::new(&format!("{kind:?}"), &kind.path(""));
    spec.source.only_metadata = source.only_metadata;
    spec.source.field_selector = source.fields.to_owned();
    let only_metadata = source.only_metadata;
    let is_defining = DEFINING.contains(&(kind.group, kind.plural));
    let (events, discovery) = (events.clone(), discovery.clone());
    let sink = WatchSink { kind, only_metadata, events, kept: Vec::new(), is_defining, discovery };
    Box::pin(follow::<ObjectText, _>(client, spec, sink))
}

/// Passes on what a watch reports.
struct WatchSink {
    kind: Kind,
    only_metadata: bool,
    events: mpsc::Sender<WatchEvent>,
    /// Of a list, what found no room.
    kept: Vec<WatchEvent>,
    /// Its objects define other kinds.
    is_defining: bool,
    discovery: DiscoveryHandle,
}

impl WatchSink {
    fn decode(&self, text: &ObjectText) -> Option<Decoded> {
        let decoded = match self.only_metadata {
            true => Decoded::only_metadata(self.kind, text.text.get()),
            false => Decoded::typed(self.kind, text.text.get()),
        };
        let log = |error: &serde_json::Error| {
            tracing::warn!("{} {} cannot be read: {error}", self.kind.kind, key_of(text));
        };
        decoded.inspect_err(log).ok()
    }

    /// Has discovery read again when an object changed that defines other kinds. A namespace may be
    /// emptied only upon a reading that began after its deletion.
    fn note(&self, event: &WatchEvent) {
        let is_due = match event {
            WatchEvent::Listed(object) | WatchEvent::Set(object) if self.kind == NAMESPACES => {
                object.meta().is_deleting()
            }
            WatchEvent::ListComplete(_)
            | WatchEvent::Set(_)
            | WatchEvent::Deleted(_)
            | WatchEvent::DeletedUnreadable(..) => self.is_defining,
            _ => false,
        };
        if is_due {
            self.discovery.refresh();
        }
    }

    fn offer(&mut self, event: WatchEvent) {
        self.note(&event);
        if !self.kept.is_empty() {
            return self.kept.push(event);
        }
        if let Err(TrySendError::Full(event)) = self.events.try_send(event) {
            self.kept.push(event);
        }
    }

    async fn send(&mut self, event: WatchEvent) {
        self.note(&event);
        self.send_kept().await;
        // The receiver is dropped only when the process is about to exit.
        let _ = self.events.send(event).await;
    }

    async fn send_kept(&mut self) {
        for kept in std::mem::take(&mut self.kept) {
            let _ = self.events.send(kept).await;
        }
    }
}

impl ObjectSink<ObjectText> for WatchSink {
    fn begin(&mut self) {
        self.kept.clear();
        self.offer(WatchEvent::ListBegun(self.kind));
    }

    fn listed(&mut self, text: ObjectText) {
        let key = key_of(&text);
        let event = self.decode(&text).map(WatchEvent::Listed);
        self.offer(event.unwrap_or(WatchEvent::Unreadable(self.kind, Some(key))));
    }

    fn listed_unreadable(&mut self, lost: Option<UnreadableObject>) {
        self.offer(WatchEvent::Unreadable(self.kind, lost.map(|lost| lost.key)));
    }

    async fn wait_for_room(&mut self) {
        self.send_kept().await;
    }

    async fn complete(&mut self) {
        self.send(WatchEvent::ListComplete(self.kind)).await;
    }

    async fn at_version(&mut self, version: &str) {
        if let Ok(version) = version.parse() {
            self.send(WatchEvent::Version(self.kind, version)).await;
        }
    }

    async fn applied(&mut self, text: ObjectText) {
        // What cannot be decoded stays what it was.
        if let Some(object) = self.decode(&text) {
            self.send(WatchEvent::Set(object)).await;
        }
    }

    async fn deleted(&mut self, text: ObjectText) {
        let gone = WatchEvent::DeletedUnreadable(self.kind, key_of(&text));
        let event = self.decode(&text).map_or(gone, WatchEvent::Deleted);
        self.send(event).await;
    }

    async fn deleted_unreadable(&mut self, lost: UnreadableObject) {
        self.send(WatchEvent::DeletedUnreadable(self.kind, lost.key)).await;
    }

    fn no_kind(&mut self) {
        // A kind that the server does not have is an empty kind.
        self.offer(WatchEvent::ListBegun(self.kind));
        self.offer(WatchEvent::ListComplete(self.kind));
    }
}
