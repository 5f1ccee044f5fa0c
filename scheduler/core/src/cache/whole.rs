//! Whole nodes and pods for out-of-tree plugins and extenders, and lookups by label.
//!
//! Input: nodes. Output: the same, by name and by row. Owner: the cache. Bounds: one object per
//! node; none unless a plugin or an extender needs them.

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Node;
use pintle_api_types::key::ObjectKey;
use pintle_sched_core::hint::HintEvent;
use pintle_sched_core::intern::Str;

use super::kinds::differs_beside_columns;
use super::{CacheDelta, ClusterCache, WholeNodes};
use crate::kept::Shelf;

impl ClusterCache {
    /// Keeps whole nodes from now on.
    pub fn keep_nodes(&mut self) {
        self.whole.objects.get_or_insert_default();
        // Consumers of whole nodes read pending pods at any event: keep those as objects too.
        self.shelf = Shelf::of_objects();
    }

    /// The labels of a node.
    pub fn labels_of(&self, node: &str) -> Option<BTreeMap<&str, &str>> {
        let mut nodes = self.nodes.iter();
        let (_, spec) = nodes.find(|(name, _)| self.cluster.text(**name) == node)?;
        let text = |id: Str| self.cluster.text(id);
        Some(spec.labels.iter().map(|(key, value)| (text(*key), text(*value))).collect())
    }

    /// Nodes that have this label, and its value.
    pub fn domains<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.nodes.iter().filter_map(move |(name, spec)| {
            let mut labels = spec.labels.iter();
            let (_, value) = labels.find(|(of, _)| self.cluster.text(*of) == key)?;
            Some((self.cluster.text(*name), self.cluster.text(*value)))
        })
    }

    /// Returns whole nodes by row, if they are kept.
    pub fn whole_rows(&mut self) -> WholeNodes {
        if !std::mem::take(&mut self.whole.rows_are_stale) {
            return Rc::clone(&self.whole.rows);
        }
        let rows = Rc::make_mut(&mut self.whole.rows);
        // A row may belong to another node now.
        rows.clear();
        rows.resize(self.cluster.view().row_count(), None);
        for (name, node) in self.whole.objects.iter().flatten() {
            if let Some(row) = self.cluster.row(name) {
                rows[row as usize] = Some(Rc::clone(node));
            }
        }
        Rc::clone(&self.whole.rows)
    }

    /// Returns a whole node, if nodes are kept.
    pub fn whole_node(&self, name: &str) -> Option<&Rc<Node>> {
        self.whole.objects.as_ref()?.get(name)
    }

    /// Drops the whole object of a pod.
    pub(super) fn forget_whole(&self, key: &ObjectKey) {
        let Some(whole) = &self.whole_pods else { return };
        let bound = self.bound.get(key).map(|pod| self.cluster.text(pod.uid));
        let waiting = self.waiting.get(key).and_then(|pod| pod.uid());
        bound.into_iter().chain(waiting).for_each(|uid| whole.forget(uid));
    }

    pub(super) fn set_whole_node(&mut self, node: Node) -> Vec<CacheDelta> {
        let step = self.read_node(&node);
        if let Some(whole) = &mut self.whole.objects {
            let new = Rc::new(node);
            let name = new.metadata.name.clone().unwrap_or_default();
            let old = whole.insert(name, Rc::clone(&new));
            self.whole.rows_are_stale = true;
            // An out-of-tree plugin may wait for a field that the columns do not have.
            if let (Some(old), Some(CacheDelta::Node { new: Some(spec), .. })) = (old, &step)
                && differs_beside_columns(&old, &new)
            {
                let spec = Some(Rc::clone(spec));
                self.happened.push(HintEvent::Node { old: spec.clone(), new: spec });
            }
        }
        step.into_iter().collect()
    }
}
