//! Observers that count lists and watches, and report failures.

use std::time::Duration;

use pintle_api_types::key::ObjectKey;

use super::error::InformerError;

/// Receives an informer's steps; must not block. Each call names the informer, which is the label
/// `name` of client-go's metrics.
// k8s: staging/src/k8s.io/client-go/tools/cache/reflector_metrics.go MetricsProvider
pub trait InformerObserver: Send + Sync {
    /// A list is complete: `lists_total`, `list_duration_seconds`, `items_per_list`.
    fn listed(&self, _name: &str, _took: Duration, _items: usize) {}
    /// A watch ended: `watches_total`, `watch_duration_seconds`, `items_per_watch`, and
    /// `short_watches_total` when it was one.
    fn watched(&self, _name: &str, _took: Duration, _items: u64, _short: bool) {}
    /// The cache is at this version: `last_resource_version`.
    fn version(&self, _name: &str, _version: u64) {}
    /// An object cannot be decoded: `unreadable_objects_total`; without a name when not even that
    /// can be read.
    fn unreadable(&self, _name: &str, _key: Option<&ObjectKey>) {}
    /// A list or a watch failed, so that the cache may be stale until `works`. The regular end of a
    /// watch is no failure.
    fn fails(&self, _name: &str, _error: &InformerError) {}
    /// Lists and watches work; called once after failures and once at the beginning.
    fn works(&self, _name: &str) {}
}

/// An observer that ignores everything.
#[derive(Debug)]
pub(super) struct NoObserver;

impl InformerObserver for NoObserver {}
