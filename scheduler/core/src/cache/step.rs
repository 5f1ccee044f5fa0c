//! One change of the cache that can be undone and made again.
//!
//! Input: what was read of an object. Output: the cache with the change, or as it was before.
//! Owner: the cache. Bounds: a step holds interned ids and a pod's requests, never an API object.
//! A step that no longer applies (its pod is deleted, its node unknown) changes nothing.

use std::collections::HashMap;
use std::rc::Rc;

use pintle_sched_core::intern::Str;
use pintle_sched_core::snapshot::objects::{NodeSpec, PodSpec};

use super::{ClusterCache, Nominee};
use crate::plugins::dynamicresources::users::Away;
use crate::plugins::volumes::users::Lifted;

/// A change of one pod or one node.
#[derive(Clone, Debug)]
pub enum CacheDelta {
    /// A pod has a node.
    Bound(Rc<PodSpec>, Rc<str>),
    /// A bound pod was deleted or has ended.
    Gone {
        /// The pod.
        pod: Str,
        /// The pod's last state, if the watch had it.
        last: Option<Rc<PodSpec>>,
        /// The node that it was on.
        node: Rc<str>,
    },
    /// A bound pod changed.
    Changed {
        /// The pod before the change.
        old: Rc<PodSpec>,
        /// The pod after the change.
        new: Rc<PodSpec>,
        /// The node that it is on.
        node: Rc<str>,
    },
    /// A pod was nominated to a node, or its nomination ended.
    Nominated {
        /// The pod.
        pod: Str,
        /// The nomination before.
        old: Option<Nominee>,
        /// The nomination after.
        new: Option<Nominee>,
    },
    /// A node was added, changed or deleted.
    Node {
        /// The node before; `None` for a new one.
        old: Option<Rc<NodeSpec>>,
        /// The node after; `None` for a deleted one.
        new: Option<Rc<NodeSpec>>,
    },
}

/// Volume usage of pods that a step took off their nodes.
pub(crate) type Aside = HashMap<Str, Lifted>;

/// A pod that a dry run removed from its node.
#[derive(Debug)]
pub struct Hidden {
    pod: Str,
    used: Option<Lifted>,
    shares: Option<Away>,
}

impl CacheDelta {
    /// Returns the pod or node that it changes.
    pub fn object(&self) -> Option<Str> {
        match self {
            Self::Bound(pod, _) | Self::Changed { new: pod, .. } => Some(pod.key),
            Self::Gone { pod, .. } | Self::Nominated { pod, .. } => Some(*pod),
            Self::Node { old, new } => new.as_ref().or(old.as_ref()).map(|node| node.name),
        }
    }

    /// The pod that it places or removes.
    fn pod(&self) -> Option<Str> {
        match self {
            Self::Bound(pod, _) | Self::Changed { new: pod, .. } => Some(pod.key),
            Self::Gone { pod, .. } => Some(*pod),
            Self::Nominated { .. } | Self::Node { .. } => None,
        }
    }

    /// Returns true if the step can be undone and may change anything.
    pub fn matters(&self) -> bool {
        match self {
            Self::Changed { old, new, .. } => old != new,
            Self::Node { old, new } => old != new,
            Self::Gone { last, .. } => last.is_some(),
            Self::Bound(..) | Self::Nominated { .. } => true,
        }
    }
}

impl ClusterCache {
    /// Makes the change.
    pub fn make(&mut self, step: &CacheDelta) {
        crate::fault::pass("make");
        match step {
            CacheDelta::Bound(pod, node) | CacheDelta::Changed { new: pod, node, .. } => {
                self.place(pod, node)
            }
            CacheDelta::Gone { pod, .. } => self.take_away(*pod),
            CacheDelta::Nominated { pod, new, .. } => self.nominate(*pod, new.clone()),
            CacheDelta::Node { old, new } => self.set_node(old.as_deref(), new.clone()),
        }
    }

    /// Undoes the change.
    pub fn take_back(&mut self, step: &CacheDelta) {
        match step {
            CacheDelta::Bound(pod, _) => self.take_away(pod.key),
            CacheDelta::Gone { last: Some(pod), node, .. }
            | CacheDelta::Changed { old: pod, node, .. } => {
                self.place(pod, node);
            }
            CacheDelta::Gone { last: None, .. } => {}
            CacheDelta::Nominated { pod, old, .. } => self.nominate(*pod, old.clone()),
            CacheDelta::Node { old, new } => self.set_node(new.as_deref(), old.clone()),
        }
    }

    /// Makes a step or undoes it, and later the other way round. The pod's volume usage is kept in
    /// `aside` while the pod has no node, because a step does not contain it.
    pub(crate) fn turn(&mut self, step: &CacheDelta, makes: bool, aside: &mut Aside) {
        let pod = step.pod();
        if let Some(pod) = pod {
            let used = self.volumes.users.lift(self.cluster.text(pod));
            aside.extend(used.map(|used| (pod, used)));
        }
        if makes {
            self.make(step)
        } else {
            self.take_back(step)
        }
        let placed = pod.filter(|pod| self.cluster.pods().find(*pod).is_some());
        if let Some(used) = placed.and_then(|pod| aside.remove(&pod)) {
            self.volumes.users.put_back(used);
        }
    }

    /// Removes a pod from its node until [`Self::show`], if it is on one.
    pub fn hide(&mut self, pod: Str) -> Option<Hidden> {
        let id = self.cluster.pods().find(pod)?;
        self.cluster.hide(id);
        let used = self.volumes.users.lift(self.cluster.text(pod));
        let shares = self.devices.users.take(self.cluster.text(pod));
        Some(Hidden { pod, used, shares })
    }

    /// Puts a hidden pod back, if no change of it was applied in between.
    pub fn show(&mut self, hidden: Hidden) {
        if let Some(id) = self.cluster.pods().find(hidden.pod) {
            self.cluster.show(id);
        }
        hidden.used.into_iter().for_each(|used| self.volumes.users.put_back(used));
        hidden.shares.into_iter().for_each(|shares| self.devices.users.put_back(shares));
    }

    fn place(&mut self, pod: &PodSpec, node: &str) {
        self.cluster.place_spec(pod, node, false);
        if let Some(whole) = &self.whole_pods {
            whole.place(self.cluster.text(pod.key), node);
        }
    }

    fn take_away(&mut self, pod: Str) {
        if let Some(id) = self.cluster.pods().find(pod) {
            self.cluster.remove(id);
        }
        self.volumes.users.take(self.cluster.text(pod));
        self.devices.users.take(self.cluster.text(pod));
        if let Some(whole) = &self.whole_pods {
            whole.take_away(self.cluster.text(pod));
        }
    }

    fn nominate(&mut self, pod: Str, nominee: Option<Nominee>) {
        match nominee {
            Some(nominee) => self.nominated.insert(pod, nominee),
            None => self.nominated.remove(&pod),
        };
    }

    fn set_node(&mut self, was: Option<&NodeSpec>, node: Option<Rc<NodeSpec>>) {
        self.volumes.nodes_changed += 1;
        self.whole.rows_are_stale = true;
        match node {
            Some(spec) => {
                self.cluster.place_node(&spec);
                self.nodes.insert(spec.name, spec);
            }
            None => {
                let Some(was) = was else { return };
                let name = self.cluster.text(was.name).to_owned();
                // A node that is unknown is already removed.
                let _ = self.cluster.remove_node(&name);
                self.nodes.remove(&was.name);
            }
        }
    }
}
