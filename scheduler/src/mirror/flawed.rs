//! Objects of which something cannot be read.
//!
//! Input: what was found of each when it was told. Output: how many there are, by kind. Owner: the
//! mirror. Bounds: an entry an object of the API that cannot be read whole. Each is logged once, until
//! it can be read or is gone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_api::informer::ObjectKey;
use pintle_sched_core::snapshot::objects::PodSpec;

use super::Mirror;
use crate::devices::allocatable::with_devices;
use crate::watch::Kind;

/// Those that are there now.
#[derive(Debug, Default)]
pub(super) struct Flawed {
    there: HashMap<Kind, HashSet<ObjectKey>>,
}

impl Flawed {
    /// Something of it means nothing. `what` is what becomes of the object.
    pub(super) fn put(
        &mut self,
        kind: Kind,
        key: &ObjectKey,
        (what, error): (&str, &dyn std::error::Error),
    ) {
        if self.there.entry(kind).or_default().insert(key.clone()) {
            let error = in_full(error);
            tracing::warn!("{kind:?} {} cannot be read: {error}; {what}", key.as_str());
        }
    }

    /// It cannot be decoded at all, which whoever decodes has logged.
    pub(super) fn put_undecoded(&mut self, kind: Kind, key: &ObjectKey) {
        self.there.entry(kind).or_default().insert(key.clone());
    }

    /// All of it can be read, or it is gone.
    pub(super) fn take(&mut self, kind: Kind, key: &ObjectKey) {
        if let Some(keys) = self.there.get_mut(&kind) {
            keys.remove(key);
        }
    }

    /// Names of those that are there.
    pub(super) fn keys(&self, kind: Kind) -> impl Iterator<Item = &ObjectKey> {
        self.there.get(&kind).into_iter().flatten()
    }

    /// How many there are, of each kind of which there ever was one.
    pub(super) fn counts(&self) -> BTreeMap<Kind, usize> {
        self.there.iter().map(|(kind, keys)| (*kind, keys.len())).collect()
    }
}

impl Mirror {
    /// An object cannot be applied; in a list it is there all the same.
    pub(crate) fn put_flawed(&mut self, kind: Kind, key: &ObjectKey, is_listed: bool) {
        self.flawed.put_undecoded(kind, key);
        if is_listed {
            self.lists.entry(kind).or_default().seen.insert(key.clone());
        }
    }

    /// A later version of such an object could be applied. What of it cannot be read counts as before.
    pub(crate) fn mark_applied(&mut self, kind: Kind, key: &ObjectKey) {
        if !matches!(kind, Kind::Pod | Kind::Node) {
            self.flawed.take(kind, key);
        }
    }

    /// What of a pod can be read; nothing of one without a name.
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
            Some(error) => self.flawed.put(Kind::Pod, key, (left_out, &error)),
            None => self.flawed.take(Kind::Pod, key),
        }
        spec
    }
}

/// An error with what it comes from.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}
