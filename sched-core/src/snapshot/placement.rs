//! Pods: placed, assumed, confirmed, removed; and all tables that count them.
//!
//! Input: API pods, or parsed ones. Output: tables that count them. Owner: the writer of the
//! cluster. Bounds: the row of the pod's node, one entry a counter that counts the pod, one
//! number a topology key of its terms.

use k8s_openapi::api::core::v1::Pod;

use super::cluster::{Cluster, DeltaError};
use super::objects::{ObjectError, PodSpec, is_final, pod_key};
use super::pods::{NONE, PodId, PodRow};
use super::readable::readable;
use super::replica::PodChange;
use crate::columns::counters::TermId;
use crate::intern::Str;

impl Cluster {
    /// Adds a bound pod, changes the one of the same identity, or confirms an assumed one, which
    /// changes nothing. A finished pod is removed.
    ///
    /// # Errors
    /// The pod is invalid or has no node.
    // k8s: pkg/scheduler/scheduler.go NewInformerFactory: pods in a final phase are not watched
    pub fn set_pod(&mut self, pod: &Pod) -> Result<Option<PodId>, DeltaError> {
        if is_final(pod) {
            let key = pod_key(pod, &mut self.interner);
            if let Some(id) = self.pods.find(key) {
                self.remove(id);
            }
            return Ok(None);
        }
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
        let node = node.ok_or(ObjectError::NoNode)?.to_owned();
        self.place(pod, &node, false).map(Some)
    }

    /// Places a pod on a node before the binding is observed.
    ///
    /// # Errors
    /// The pod is invalid, exists already, or the node is not known.
    pub fn assume(&mut self, pod: &Pod, node: &str) -> Result<PodId, DeltaError> {
        if self.row(node).is_none() {
            return Err(DeltaError::UnknownNode(node.to_owned()));
        }
        let key = pod_key(pod, &mut self.interner);
        if let Some(id) = self.pods.find(key) {
            let there = self.text(self.pods.get(id).node_name).to_owned();
            return Err(DeltaError::PodExists(self.pod_name(id), there));
        }
        self.place(pod, node, true)
    }

    /// Removes an assumed pod.
    ///
    /// # Errors
    /// The pod is not known.
    pub fn forget(&mut self, pod: &Pod) -> Result<(), DeltaError> {
        self.remove_pod(pod)
    }

    /// Removes a pod.
    ///
    /// # Errors
    /// The pod is not known.
    pub fn remove_pod(&mut self, pod: &Pod) -> Result<(), DeltaError> {
        let key = pod_key(pod, &mut self.interner);
        let id = self.pods.find(key);
        let id = id.ok_or_else(|| DeltaError::UnknownPod(self.text(key).to_owned()))?;
        self.remove(id);
        Ok(())
    }

    /// Removes a pod by id.
    pub fn remove(&mut self, id: PodId) {
        if self.pods.get(id).row != NONE {
            self.detach(id);
        }
        self.pods.remove(id);
        self.view.epoch += 1;
    }

    /// Takes a pod off its node: it counts for nothing until [`Self::show`], and stays known.
    pub fn hide(&mut self, id: PodId) {
        if self.pods.get(id).row != NONE {
            self.detach(id);
            self.view.epoch += 1;
        }
    }

    /// Puts a hidden pod back on its node, if that exists.
    pub fn show(&mut self, id: PodId) {
        let pod = self.pods.get(id);
        if pod.row == NONE
            && let Some(row) = self.view.row_of(pod.node_name)
        {
            self.attach(id, row);
            self.view.epoch += 1;
        }
    }

    fn place(&mut self, pod: &Pod, node: &str, assumed: bool) -> Result<PodId, DeltaError> {
        let spec = self.read_pod(pod)?;
        Ok(self.place_spec(&spec, node, assumed))
    }

    /// Parses the valid parts of a pod, and returns what was left out, if anything was. Invalid
    /// parts count for nothing; all others count.
    ///
    /// # Errors
    /// The pod has no name.
    pub fn read_pod_as_it_is(
        &mut self,
        pod: &Pod,
    ) -> Result<(PodSpec, Option<DeltaError>), DeltaError> {
        match self.read_pod(pod) {
            Ok(spec) => Ok((spec, None)),
            Err(error) => self.read_pod(&readable(pod)).map(|spec| (spec, Some(error))),
        }
    }

    /// Places a parsed pod; replaces one of the same identity.
    pub fn place_spec(&mut self, spec: &PodSpec, node: &str, assumed: bool) -> PodId {
        let node_name = self.interner.intern(node);
        self.place_on(spec, node_name, assumed)
    }

    /// Like `place_spec`, with the interned name of the node.
    pub(crate) fn place_on(&mut self, spec: &PodSpec, node_name: Str, assumed: bool) -> PodId {
        let class = self.class_of(spec.namespace, spec.labels, &spec.own);
        if let Some(id) = self.pods.find(spec.key) {
            if self.counts_alike(id, spec, node_name, class) {
                let row = self.pods.get_mut(id);
                (row.priority, row.start_ns) = (spec.priority, spec.start_ns);
                (row.daemon, row.assumed) = (spec.daemon, assumed);
                row.preempted = spec.preempted;
                return id;
            }
            self.remove(id);
        }
        let terms: Vec<TermId> = spec.terms.iter().map(|t| self.term(t, spec.namespace)).collect();
        // A term may have been the first to mention a label of this pod.
        let class = self.class_of(spec.namespace, spec.labels, &spec.own);
        let mut row = PodRow::new(spec.key, spec.name, node_name, class);
        row.requests = self.pods.requests.intern(&spec.requests);
        row.terms = self.pods.terms.intern(&terms);
        row.ports = self.pods.ports.intern(&spec.ports);
        row.own = self.pods.own.intern(&spec.own);
        row.priority = spec.priority;
        row.start_ns = spec.start_ns;
        row.terminating = spec.terminating;
        row.preempted = spec.preempted;
        row.daemon = spec.daemon;
        row.assumed = assumed;
        let id = self.pods.insert(row);
        if let Some(row) = self.view.row_of(node_name) {
            self.attach(id, row);
        }
        self.view.epoch += 1;
        id
    }

    /// Returns true if the pod counts for everything exactly as `spec` would: only fields may
    /// differ that no node and no counter depends on.
    fn counts_alike(&self, id: PodId, spec: &PodSpec, node_name: Str, class: u32) -> bool {
        let row = self.pods.get(id);
        let terms = self.pods.terms.get(row.terms);
        row.node_name == node_name
            && row.class == class
            && row.terminating == spec.terminating
            && row.name == spec.name
            && *self.pods.requests.get(row.requests) == spec.requests
            && *self.pods.ports.get(row.ports) == spec.ports
            && *self.pods.own.get(row.own) == spec.own
            && terms.iter().map(|t| &self.view.counts.terms.get(t.0).key).eq(spec.terms.iter())
    }

    pub(super) fn attach(&mut self, id: PodId, row: u32) {
        self.pods.attach(id, row);
        self.count(id, row, 1);
    }

    pub(super) fn detach(&mut self, id: PodId) {
        let row = self.pods.get(id).row;
        self.pods.detach(id);
        self.count(id, row, -1);
    }

    /// Adds a pod's numbers to all tables that depend on them, or subtracts them.
    fn count(&mut self, id: PodId, row: u32, delta: i32) {
        let pod = self.pods.get(id);
        let sign = i64::from(delta);
        let requests = self.pods.requests.get(pod.requests);
        let mut n = self.view.numbers(row);
        n.change(requests, sign);
        self.set_numbers(row, &n);
        let pod = self.pods.get(id);
        let requests = self.pods.requests.get(pod.requests);
        let (view, log) = (&mut self.view, &mut self.log);
        // An amount of zero needs no column.
        for (name, amount) in requests.plain.scalars.iter().filter(|(_, amount)| *amount != 0) {
            let name = self.interner.intern(name);
            if view.sparse.scalars.get(&name).is_none() {
                // From now on the resource has a column.
                view.sparse.scalars.entry(name);
            }
            view.record(log, PodChange::Scalar(name, row, sign.wrapping_mul(*amount)));
        }
        for port in self.pods.ports.get(pod.ports) {
            view.record(log, PodChange::Port(*port, row, delta));
        }
        let live = !pod.terminating;
        for counter in &self.classes[pod.class as usize].counters {
            if live || !view.counts.counters.get(counter.0).key.live_only {
                view.record(log, PodChange::Counter(*counter, row, delta));
            }
        }
        for term in self.pods.terms.get(pod.terms) {
            view.record(log, PodChange::Term(*term, row, delta));
        }
    }
}
