//! Does a pod that NodeResourcesFit rejected on all nodes fit one node now?
//!
//! Pure: one row of the columns, and pods expected there. Bounds: the resources that the pod
//! requests, times the expected pods.
// k8s: noderesources/fit.go fitsRequest

use super::*;
use crate::filter::node::keeps_away;
use crate::filter::status;

impl Cluster {
    /// Returns true if the resource filter accepts the pod on this node together with the expected
    /// pods, or if the node is not known.
    pub fn has_room<'a>(
        &self,
        pod: &Rejected,
        node: &str,
        expected: impl Iterator<Item = &'a PodSpec> + Clone,
    ) -> bool {
        let Some(row) = self.row(node) else { return true };
        let mut numbers = self.view.numbers(row);
        for other in expected.clone() {
            let plain = &other.requests.plain;
            numbers.pods_used += 1;
            numbers.cpu_used = numbers.cpu_used.wrapping_add(plain.cpu_milli);
            numbers.mem_used = numbers.mem_used.wrapping_add(plain.mem_bytes);
            numbers.eph_used = numbers.eph_used.wrapping_add(plain.eph_bytes);
        }
        let scalar = |_, name: Str| {
            let (all, used) = self.view.scalar(name, row);
            let text = self.interner.text(name);
            let taken = expected.clone().filter_map(|other| other.requests.plain.scalar(text));
            (all, taken.fold(used, i64::wrapping_add))
        };
        status::resources(&pod.program, &numbers, scalar, |_| String::new()).is_none()
    }

    /// Returns true if the node exists and neither a cordon nor a taint keeps the pod off.
    #[must_use]
    pub fn is_open(&self, pod: &Rejected, node: &str) -> bool {
        let Some(row) = self.row(node) else { return false };
        let (view, program) = (&self.view, &pod.program);
        let is_cordoned = view.unschedulable.get(row) && !program.tolerates_unschedulable;
        let mut taints = view.sparse.taints.iter().filter(|(_, rows)| rows.contains(row));
        !is_cordoned && !taints.any(|(taint, _)| keeps_away(taint, program))
    }

    /// Returns true if the pod of this identity is on some node.
    #[must_use]
    pub fn is_placed(&self, pod: &str) -> bool {
        self.placed(pod).is_some()
    }

    /// The number of the identity of a pod that is on some node.
    #[must_use]
    pub fn placed(&self, pod: &str) -> Option<Str> {
        self.interner.find(pod).filter(|key| self.pods.find(*key).is_some())
    }
}
