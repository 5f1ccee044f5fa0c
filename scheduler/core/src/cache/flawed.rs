//! Objects that failed to decode, whole or in part.
//!
//! Input: the error found when an object was observed. Output: the number of such objects, by kind.
//! Owner: the cache. Bounds: one entry per object of the API with an error. Each is logged once,
//! until it can be read or is deleted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::key::ObjectKey;
use pintle_sched_core::snapshot::objects::PodSpec;

use super::ClusterCache;
use crate::plugins::dynamicresources::allocatable::with_devices;
use crate::watch_event::WatchedKind;

/// Objects with an error now.
#[derive(Debug, Default)]
pub(super) struct Flawed {
    there: HashMap<WatchedKind, HashSet<ObjectKey>>,
}

impl Flawed {
    /// Adds an object that has an invalid part. `what` is how the scheduler treats the object.
    pub(super) fn put(
        &mut self,
        kind: WatchedKind,
        key: &ObjectKey,
        what: &str,
        error: &dyn std::error::Error,
    ) {
        if self.there.entry(kind).or_default().insert(key.clone()) {
            let error = in_full(error);
            tracing::warn!("{kind:?} {} cannot be read: {error}; {what}", key.as_str());
        }
    }

    /// Adds an object that cannot be decoded at all; the decoder has logged it.
    pub(super) fn put_undecoded(&mut self, kind: WatchedKind, key: &ObjectKey) {
        self.there.entry(kind).or_default().insert(key.clone());
    }

    /// Removes an object that can be read whole or was deleted.
    pub(super) fn take(&mut self, kind: WatchedKind, key: &ObjectKey) {
        if let Some(keys) = self.there.get_mut(&kind) {
            keys.remove(key);
        }
    }

    /// Names of objects with an error.
    pub(super) fn keys(&self, kind: WatchedKind) -> impl Iterator<Item = &ObjectKey> {
        self.there.get(&kind).into_iter().flatten()
    }

    /// The number of objects with an error, for each kind that ever had one.
    pub(super) fn counts(&self) -> BTreeMap<WatchedKind, usize> {
        self.there.iter().map(|(kind, keys)| (*kind, keys.len())).collect()
    }
}

impl ClusterCache {
    /// Adds an object that cannot be applied. In a list it counts as present.
    pub(crate) fn put_flawed(&mut self, kind: WatchedKind, key: &ObjectKey, is_listed: bool) {
        self.watches.flawed.put_undecoded(kind, key);
        if is_listed {
            self.watches.lists.entry(kind).or_default().seen.insert(key.clone());
        }
    }

    /// Marks a later version of such an object as applied. Its invalid parts count as before.
    pub(crate) fn mark_applied(&mut self, kind: WatchedKind, key: &ObjectKey) {
        if !matches!(kind, WatchedKind::Pod | WatchedKind::Node) {
            self.watches.flawed.take(kind, key);
        }
    }

    /// Reads a pod without its invalid parts; `None` for a pod without a name.
    pub(crate) fn spec_of(&mut self, pod: &Pod, key: &ObjectKey) -> Option<Rc<PodSpec>> {
        let left_out = "what cannot be read counts for nothing, all else of it counts";
        let (spec, error) = match self.cluster.read_pod_as_it_is(pod) {
            Ok((spec, error)) if self.devices.takes_of_nodes() => {
                (Some(with_devices(pod, Rc::new(spec))), error)
            }
            Ok((spec, error)) => (Some(Rc::new(spec)), error),
            Err(error) => (None, Some(error)),
        };
        match error {
            Some(error) => self.watches.flawed.put(WatchedKind::Pod, key, left_out, &error),
            None => self.watches.flawed.take(WatchedKind::Pod, key),
        }
        spec
    }
}

/// An error with its sources.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}
