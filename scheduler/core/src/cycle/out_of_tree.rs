//! Out-of-tree plugins of the profiles, and their attempts of pods that have a node.
//!
//! Input: selected nodes, and the ends of attempts. Output: the attempt of a pod, for Reserve to
//! PostBind. Owner: the scheduler. Bounds: an attempt for each pod with a node that is not bound.

use std::collections::HashMap;
use std::rc::Rc;

use super::Uid;
use crate::framework::{Attempt, Handle, Plugins};

/// The out-of-tree plugins of all profiles.
#[derive(Debug, Default)]
pub(super) struct OutOfTreePlugins {
    by_profile: Vec<Option<Rc<Plugins>>>,
    /// The handle that they have in common.
    pub(super) handle: Handle,
    /// Attempts of pods that have these nodes.
    attempts: HashMap<Uid, (Rc<Attempt>, Rc<str>)>,
}

impl OutOfTreePlugins {
    pub(super) fn new(by_profile: Vec<Option<Rc<Plugins>>>, handle: Handle) -> Self {
        Self { by_profile, handle, attempts: HashMap::new() }
    }

    /// Returns the plugins of a profile, if it has any.
    pub(super) fn of_profile(&self, profile: usize) -> Option<&Rc<Plugins>> {
        self.by_profile.get(profile)?.as_ref()
    }

    /// Keeps the attempt if a plugin runs after a node is selected.
    pub(super) fn keep(&mut self, uid: &Uid, attempt: Option<Rc<Attempt>>, node: &Rc<str>) {
        if let Some(attempt) = attempt.filter(|attempt| attempt.acts_late()) {
            attempt.forget_nodes();
            self.attempts.insert(uid.clone(), (attempt, Rc::clone(node)));
        }
    }

    /// Returns the kept attempt of a pod.
    pub(super) fn attempt(&self, uid: &Uid) -> Option<&Rc<Attempt>> {
        self.attempts.get(uid).map(|(attempt, _)| attempt)
    }

    /// Runs PostBind for a pod that was bound.
    pub(super) fn post_bind(&mut self, uid: &Uid, node: &str) {
        if let Some((attempt, _)) = self.attempts.remove(uid) {
            attempt.post_bind(node);
        }
    }

    /// Ends the wait of a pod for Permit, and runs Unreserve.
    pub(super) fn unreserve(&mut self, uid: &Uid) {
        self.handle.waits_no_more(uid);
        if let Some((attempt, node)) = self.attempts.remove(uid) {
            attempt.unreserve(&node);
        }
    }

    /// Runs Unreserve for all pods.
    pub(super) fn unreserve_all(&mut self) {
        for (uid, (attempt, node)) in std::mem::take(&mut self.attempts) {
            self.handle.waits_no_more(&uid);
            attempt.unreserve(&node);
        }
        self.handle.forget_pods();
    }

    /// The number of kept attempts.
    #[cfg(test)]
    pub(super) fn attempt_count(&self) -> usize {
        self.attempts.len()
    }
}
