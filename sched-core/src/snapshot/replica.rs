//! Copies of a view that follow it: changes by pods are replayed on a copy instead of being copied.
//!
//! Input: changes in their order. Output: a view equal to the writer's. Owner: `Cluster` records
//! while there are followers, `shared::epochs` replays them. Bounds: a placement is one row, and
//! one entry a counter, term, resource and port of the pod. Only changes that pods make are
//! recorded. Any other change of a table that they touch (nodes with other labels, new counters,
//! resources, sweeps) changes its shape, and the copy restarts as one that shares all tables;
//! tables that pods never touch are compared by address and shared.

use std::sync::Arc;

use super::view::{CounterColumns, SparseColumns, View};
use crate::chunk::Numbers;
use crate::columns::counters::{CounterId, TermId};
use crate::columns::ports::HostPort;
use crate::columns::sparse::share;
use crate::intern::Str;

/// A change that a pod makes in the tables.
#[derive(Clone, Debug)]
pub(crate) enum PodChange {
    /// New numbers of a row.
    Numbers(u32, Numbers),
    /// Change of a counter's pods on a row.
    Counter(CounterId, u32, i32),
    /// Change of the pods with a term on a row.
    Term(TermId, u32, i32),
    /// Change of the requests of an extended resource on a row.
    Scalar(Str, u32, i64),
    /// Change of the users of a host port on a row.
    Port(HostPort, u32, i32),
}

impl View {
    /// Applies a change, and records it if there are followers.
    pub(super) fn record(&mut self, log: &mut Option<Vec<PodChange>>, change: PodChange) {
        self.apply(&change);
        if let PodChange::Numbers(row, _) = change {
            self.changes.push(row);
        }
        if let Some(log) = log {
            log.push(change);
        }
    }

    fn apply(&mut self, change: &PodChange) {
        match change {
            PodChange::Numbers(row, numbers) => self.set_numbers(*row, numbers),
            PodChange::Counter(id, row, delta) => {
                self.counts.counters.item_mut(id.0).add(*row, self.rows, *delta, &self.keys);
            }
            PodChange::Term(id, row, delta) => {
                self.counts.terms_version += 1;
                self.counts.terms.item_mut(id.0).add(*row, self.rows, *delta, &self.keys);
            }
            PodChange::Scalar(name, row, amount) => {
                self.sparse.scalars.item_mut(*name).add_used(*row, *amount);
            }
            PodChange::Port(port, row, delta) => self.count_port(port, *row, *delta),
        }
    }

    fn count_port(&mut self, port: &HostPort, row: u32, delta: i32) {
        let key = (port.protocol, port.port);
        let users = self.sparse.ports.item_mut(key);
        if delta > 0 {
            users.take(port.ip, row, self.rows);
            return;
        }
        users.free(port.ip, row);
        if users.is_free() {
            self.sparse.ports.take_out(&key);
        }
    }

    /// Becomes equal to `other`, by replaying these changes, which this copy lacks.
    pub(crate) fn follow<'a>(
        &mut self,
        other: &Self,
        changes: impl Iterator<Item = &'a PodChange>,
    ) {
        if !self.has_shape_of(other) {
            *self = other.clone();
            return;
        }
        changes.for_each(|change| self.apply(change));
        self.share_rest(other);
    }

    /// Returns true if a copy, after all changes are replayed, equals `other`.
    pub(crate) fn shows(&self, other: &Self) -> bool {
        self.has_shape_of(other)
            && (self.epoch, self.whole, self.counts.terms_version, self.counts.own_keys_version)
                == (
                    other.epoch,
                    other.whole,
                    other.counts.terms_version,
                    other.counts.own_keys_version,
                )
            && self.counts.class_terms.is(&other.counts.class_terms)
            && Arc::ptr_eq(&self.profile, &other.profile)
            && self.sparse.images.is(&other.sparse.images)
            && self.sparse.features.is(&other.sparse.features)
            && Arc::ptr_eq(&self.sparse.taints, &other.sparse.taints)
            && Arc::ptr_eq(&self.valid, &other.valid)
            && Arc::ptr_eq(&self.unschedulable, &other.unschedulable)
            && Arc::ptr_eq(&self.names, &other.names)
            && Arc::ptr_eq(&self.row_index, &other.row_index)
    }

    /// Returns true if only recorded changes happened to the tables that pods touch.
    fn has_shape_of(&self, other: &Self) -> bool {
        // Domains are counted by the labels that nodes had when a pod was placed.
        Arc::ptr_eq(&self.keys, &other.keys)
            && self.rows == other.rows
            && self.counts.counters.shape() == other.counts.counters.shape()
            && self.counts.terms.shape() == other.counts.terms.shape()
            && self.sparse.scalars.shape() == other.sparse.scalars.shape()
            && self.sparse.ports.shape() == other.sparse.ports.shape()
    }

    fn share_rest(&mut self, other: &Self) {
        // Every field is listed, so that a new one is not forgotten.
        let Self {
            profile,
            epoch,
            whole,
            rows: _,
            valid,
            nodes,
            names,
            row_index,
            chunks: _,
            changes,
            wide: _,
            wide_rows: _,
            unschedulable,
            keys: _,
            sparse: SparseColumns { taints, images, features, scalars: _, ports: _ },
            wildcard_ip: _,
            empty_text: _,
            fit_is_default,
            balance_is_default,
            counts:
                CounterColumns { counters: _, terms: _, terms_version, class_terms, own_keys_version },
        } = other;
        share(&mut self.profile, profile);
        share(&mut self.valid, valid);
        share(&mut self.names, names);
        share(&mut self.row_index, row_index);
        share(&mut self.unschedulable, unschedulable);
        share(&mut self.sparse.taints, taints);
        self.sparse.images.share(images);
        self.sparse.features.share(features);
        self.counts.class_terms.share(class_terms);
        // The writer's stamps: caches made at an earlier epoch find them here.
        self.changes.clone_from(changes);
        (self.epoch, self.whole, self.nodes) = (*epoch, *whole, *nodes);
        (self.fit_is_default, self.balance_is_default) = (*fit_is_default, *balance_is_default);
        (self.counts.terms_version, self.counts.own_keys_version) =
            (*terms_version, *own_keys_version);
    }
}
