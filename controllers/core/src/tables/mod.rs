//! Everything that controllers know of the cluster, kept current by watches.
//!
//! Input: [`WatchEvent`]s of each kind, in order. Output: [`Change`]s, and the objects. A kind that
//! some controller reads in full has a table of its own; of other kinds only metadata is kept.
//! Owner: the deciding thread.

mod discovery;
mod table;

use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use serde_json::Value;

use crate::kept::{Facts, KeptObject};
use crate::kinds;
use crate::meta::Meta;

pub use discovery::{DiscoveredKind, DiscoveredKinds};
pub use table::{Delta, Table, TableRow};

impl<T: Facts> TableRow for KeptObject<T> {
    fn meta(&self) -> &Meta {
        self.metadata()
    }
    fn index(&self) -> Option<&str> {
        (**self).index()
    }
}

impl TableRow for kinds::Metadata {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// An event of a list or watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// A list begins; an earlier one that was not completed does not count.
    ListBegun(Kind),
    /// An object of the list.
    Listed(Decoded),
    /// An object of the list cannot be read; `None` when not even its name can be.
    Unreadable(Kind, Option<ObjectKey>),
    /// The list is complete.
    ListComplete(Kind),
    /// An object was added or modified.
    Set(Decoded),
    /// An object was deleted in this state.
    Deleted(Decoded),
    /// An object was deleted in a state that cannot be read.
    DeletedUnreadable(Kind, ObjectKey),
    /// Every change of the kind up to this version was reported.
    Version(Kind, u64),
    /// The kind is not followed any more.
    Dropped(Kind),
    /// Discovery found these kinds.
    Discovered(DiscoveredKinds),
}

impl WatchEvent {
    /// The kind that it is about; none of what concerns all of them.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Listed(object) | Self::Set(object) | Self::Deleted(object) => Some(object.kind()),
            Self::ListBegun(kind)
            | Self::Unreadable(kind, _)
            | Self::ListComplete(kind)
            | Self::DeletedUnreadable(kind, _)
            | Self::Version(kind, _)
            | Self::Dropped(kind) => Some(*kind),
            Self::Discovered(_) => None,
        }
    }
}

macro_rules! tables {
    ($($field:ident: $type:ident,)*) => {
        /// An object as a watch decoded it.
        #[derive(Debug)]
        #[allow(missing_docs)] // the names are the documentation
        pub enum Decoded {
            $($type(Box<KeptObject<kinds::$type>>),)*
            Metadata(Box<kinds::Metadata>),
        }

        /// A change of one object, or of what is known of kinds.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)] // the names are the documentation
        pub enum Change {
            $($type(Delta<KeptObject<kinds::$type>>),)*
            Metadata(Delta<kinds::Metadata>),
            /// The first list of a kind is complete.
            Listed(Kind),
            /// Discovery found other kinds than before; `Tables::discovery` has them.
            Discovered,
        }

        /// The cluster's objects, a table for each kind.
        #[derive(Debug, Default)]
        #[allow(missing_docs)] // the names are the documentation
        pub struct Tables {
            $(pub $field: Table<KeptObject<kinds::$type>>,)*
            /// Kinds of which only metadata is kept.
            pub metadata: BTreeMap<Kind, Table<kinds::Metadata>>,
            /// The kinds that the API server has.
            pub discovery: Rc<DiscoveredKinds>,
        }

        $(impl From<KeptObject<kinds::$type>> for Decoded {
            fn from(object: KeptObject<kinds::$type>) -> Self {
                Self::$type(Box::new(object))
            }
        })*

        /// The kinds that have a table with more than metadata.
        pub const TYPED: &[Kind] = &[$(kinds::$type::KIND),*];

        impl Decoded {
            /// Decodes an object of a kind that has a table of its own.
            ///
            /// # Errors
            /// When a field that controllers read has another type.
            pub fn typed(kind: Kind, text: &str) -> Result<Self, serde_json::Error> {
                $(if kind == kinds::$type::KIND {
                    return KeptObject::<kinds::$type>::decode(text).map(Self::from);
                })*
                Self::only_metadata(kind, text)
            }

            /// The kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$type(_) => kinds::$type::KIND,)*
                    Self::Metadata(object) => object.kind,
                }
            }

            /// The metadata.
            pub fn meta(&self) -> &Meta {
                match self {
                    $(Self::$type(object) => object.metadata(),)*
                    Self::Metadata(object) => &object.metadata,
                }
            }
        }

        impl Change {
            /// The kind; none of a change that concerns all of them.
            pub fn kind(&self) -> Option<Kind> {
                match self {
                    $(Self::$type(_) => Some(kinds::$type::KIND),)*
                    Self::Metadata(delta) => Some(delta.object().kind),
                    Self::Listed(kind) => Some(*kind),
                    Self::Discovered => None,
                }
            }

            /// The metadata before the change.
            pub fn old_meta(&self) -> Option<&Meta> {
                match self {
                    $(Self::$type(delta) => delta.old.as_ref().map(|old| old.metadata()),)*
                    Self::Metadata(delta) => delta.old.as_ref().map(|old| &old.metadata),
                    Self::Listed(_) | Self::Discovered => None,
                }
            }

            /// The metadata after the change.
            pub fn new_meta(&self) -> Option<&Meta> {
                match self {
                    $(Self::$type(delta) => delta.new.as_ref().map(|new| new.metadata()),)*
                    Self::Metadata(delta) => delta.new.as_ref().map(|new| &new.metadata),
                    Self::Listed(_) | Self::Discovered => None,
                }
            }
        }

        impl Change {
            /// The whole object before the change, of a kind that is kept whole.
            pub fn old_value(&self) -> Option<Value> {
                match self {
                    $(Self::$type(delta) => delta.old.as_ref().and_then(|old| old.whole()),)*
                    Self::Metadata(_) | Self::Listed(_) | Self::Discovered => None,
                }
            }

            /// The whole object after the change, of a kind that is kept whole.
            pub fn new_value(&self) -> Option<Value> {
                match self {
                    $(Self::$type(delta) => delta.new.as_ref().and_then(|new| new.whole()),)*
                    Self::Metadata(_) | Self::Listed(_) | Self::Discovered => None,
                }
            }
        }

        impl Tables {
            /// The whole object, of a kind that is kept whole.
            pub fn value(&self, kind: Kind, key: &ObjectKey) -> Option<Value> {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.get(key).and_then(|object| object.whole());
                })*
                None
            }

            /// An object of the kind in the namespace is known that is not being deleted.
            pub fn has_undeleted(&self, kind: Kind, namespace: &str) -> bool {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    let mut all = self.$field.in_namespace(namespace);
                    return all.any(|object| !object.metadata().is_deleting());
                })*
                let all = self.metadata.get(&kind).map(|table| table.in_namespace(namespace));
                all.into_iter().flatten().any(|object| !object.metadata.is_deleting())
            }

            /// True if some object has the UID. Scans all objects.
            pub fn has_uid(&self, uid: &str) -> bool {
                $(if self.$field.iter().any(|object| object.metadata().uid.as_str() == uid) {
                    return true;
                })*
                let mut all = self.metadata.values().flat_map(Table::iter);
                all.any(|object| object.metadata.uid.as_str() == uid)
            }

            fn set(&mut self, object: Decoded) -> Option<Change> {
                match object {
                    $(Decoded::$type(object) => self.$field.set(*object).map(Change::$type),)*
                    Decoded::Metadata(object) => {
                        self.metadata.entry(object.kind).or_default().set(*object)
                            .map(Change::Metadata)
                    }
                }
            }

            fn remove(&mut self, kind: Kind, key: &ObjectKey, version: u64) -> Option<Change> {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.remove(key, version).map(Change::$type);
                })*
                self.metadata.get_mut(&kind)?.remove(key, version).map(Change::Metadata)
            }

            fn begin_list(&mut self, kind: Kind) {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.begin_list();
                })*
                self.metadata.entry(kind).or_default().begin_list();
            }

            fn keep_unreadable(&mut self, kind: Kind, key: Option<ObjectKey>) {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.keep_unreadable(key);
                })*
                self.metadata.entry(kind).or_default().keep_unreadable(key);
            }

            fn complete_list(&mut self, kind: Kind) -> Vec<Change> {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    let gone = self.$field.complete_list();
                    return gone.into_iter().map(Change::$type).collect();
                })*
                let gone = self.metadata.entry(kind).or_default().complete_list();
                gone.into_iter().map(Change::Metadata).collect()
            }

            fn advance(&mut self, kind: Kind, version: u64) {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.advance(version);
                })*
                self.metadata.entry(kind).or_default().advance(version);
            }

            /// A first list of the kind is complete.
            pub fn is_synced(&self, kind: Kind) -> bool {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.is_synced();
                })*
                self.metadata.get(&kind).is_some_and(Table::is_synced)
            }

            /// The version up to which every change of the kind is known; `None` when the kind is
            /// not followed.
            pub fn version(&self, kind: Kind) -> Option<u64> {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.is_synced().then(|| self.$field.version());
                })*
                self.metadata.get(&kind).filter(|table| table.is_synced()).map(Table::version)
            }

            /// How many objects of the kind are in the namespace; none while that is not known.
            pub fn count(&self, kind: Kind, namespace: &str) -> Option<usize> {
                if !self.is_synced(kind) {
                    return None;
                }
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return Some(self.$field.in_namespace(namespace).count());
                })*
                Some(self.metadata.get(&kind)?.in_namespace(namespace).count())
            }

            /// Objects of the kind are known in the namespace.
            pub fn has_objects(&self, kind: Kind, namespace: &str) -> bool {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.in_namespace(namespace).next().is_some();
                })*
                let table = self.metadata.get(&kind);
                table.is_some_and(|table| table.in_namespace(namespace).next().is_some())
            }

            /// The metadata of an object.
            pub fn meta(&self, kind: Kind, key: &ObjectKey) -> Option<&Meta> {
                $(if kind == kinds::$type::KIND && !self.metadata.contains_key(&kind) {
                    return self.$field.get(key).map(|object| object.metadata());
                })*
                self.metadata.get(&kind)?.get(key).map(|object| &object.metadata)
            }
        }
    };
}

tables! {
    pods: Pod,
    deployments: Deployment,
    replica_sets: ReplicaSet,
    replication_controllers: ReplicationController,
    jobs: Job,
    cron_jobs: CronJob,
    namespaces: Namespace,
    root_ca_config_maps: RootCaConfigMap,
    service_accounts: ServiceAccount,
    token_secrets: TokenSecret,
    stateful_sets: StatefulSet,
    daemon_sets: DaemonSet,
    controller_revisions: ControllerRevision,
    nodes: Node,
    persistent_volume_claims: PersistentVolumeClaim,
    resource_quotas: ResourceQuota,
    services: Service,
    resource_claims: ResourceClaim,
    device_classes: DeviceClass,
}

impl Decoded {
    /// Decodes the metadata of an object.
    ///
    /// # Errors
    /// When the metadata has a field of another type.
    pub fn only_metadata(kind: Kind, text: &str) -> Result<Self, serde_json::Error> {
        let object = serde_json::from_str::<kinds::Metadata>(text)?;
        Ok(Self::Metadata(Box::new(kinds::Metadata { kind, ..object })))
    }
}

impl Tables {
    /// Applies what a watch reports; returns what changed.
    pub fn apply(&mut self, event: WatchEvent) -> Vec<Change> {
        match event {
            WatchEvent::ListBegun(kind) => self.begin_list(kind),
            WatchEvent::Listed(object) | WatchEvent::Set(object) => {
                return self.set(object).into_iter().collect();
            }
            WatchEvent::Unreadable(kind, key) => self.keep_unreadable(kind, key),
            WatchEvent::ListComplete(kind) => {
                let is_first = !self.is_synced(kind);
                let mut changes = self.complete_list(kind);
                changes.extend(is_first.then_some(Change::Listed(kind)));
                return changes;
            }
            WatchEvent::Deleted(object) => {
                let (kind, meta) = (object.kind(), object.meta());
                return self.remove(kind, &meta.key(), meta.version).into_iter().collect();
            }
            WatchEvent::DeletedUnreadable(kind, key) => {
                return self.remove(kind, &key, 0).into_iter().collect();
            }
            WatchEvent::Version(kind, version) => self.advance(kind, version),
            WatchEvent::Dropped(kind) => return self.drop_kind(kind),
            WatchEvent::Discovered(discovery) => {
                let is_same = discovery.has_same_kinds(&self.discovery);
                self.discovery = Rc::new(discovery);
                return if is_same { Vec::new() } else { vec![Change::Discovered] };
            }
        }
        Vec::new()
    }

    /// Only metadata is kept of a kind that no controller reads whole, also before its first
    /// object: an empty first list is one of metadata, too.
    pub(crate) fn begin_metadata_unless(&mut self, kind: Kind, is_whole: bool) {
        if !is_whole {
            self.metadata.entry(kind).or_default();
        }
    }

    fn drop_kind(&mut self, kind: Kind) -> Vec<Change> {
        let Some(table) = self.metadata.remove(&kind) else { return Vec::new() };
        let gone = table.iter().map(|old| Delta { old: Some(Rc::clone(old)), new: None });
        gone.map(Change::Metadata).collect()
    }
}
