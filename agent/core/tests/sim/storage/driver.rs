//! The driver of a simulated world and its state: each call is checked against that.

use std::collections::{BTreeMap, BTreeSet};

use pintle_agent_core::storage::{Call, Known, Outcome};
use pintle_agent_core::types::PodUid;

use super::node::{self, Volume};

#[derive(Debug, Default)]
pub struct Driver {
    /// On which node a volume that is attached first is.
    attached: BTreeMap<String, usize>,
    staged: BTreeSet<(usize, String)>,
    published: BTreeSet<(usize, String, PodUid)>,
}

impl Driver {
    pub fn attach(&mut self, name: &str, at: usize) {
        assert_eq!(self.attached.insert(name.to_owned(), at), None, "{name} is attached twice");
    }

    pub fn detach(&mut self, name: &str, at: usize) {
        assert!(!self.staged.contains(&(at, name.to_owned())), "{name} is detached while staged");
        let published =
            self.published.iter().any(|(node, volume, _)| *node == at && volume == name);
        assert!(!published, "{name} is detached while published");
        self.attached.remove(name);
    }

    pub fn attached_to(&self, name: &str) -> Option<usize> {
        self.attached.get(name).copied()
    }

    pub fn has(&self, at: usize, volume: &Volume, pod: &PodUid) -> bool {
        self.published.contains(&(at, volume.name_for(pod), pod.clone()))
    }

    /// True while two pods have one volume.
    pub fn is_shared(&self) -> bool {
        let mut seen = BTreeSet::new();
        self.published.iter().any(|(at, name, _)| !seen.insert((at, name)))
    }

    /// Everything that is staged or published.
    pub fn left(&self) -> BTreeSet<String> {
        let staged = self.staged.iter().map(|(at, name)| format!("staged {at} {name}"));
        let published =
            self.published.iter().map(|(at, name, pod)| format!("published {at} {name} {pod}"));
        staged.chain(published).collect()
    }

    /// Executes a call, unless the world forbids it.
    pub fn apply(&mut self, at: usize, call: &Call) -> Outcome {
        match call {
            Call::Stage { wanted, .. } => {
                let name = node::name(&Known::of(wanted), &wanted.pod);
                if wanted.is_attached_first {
                    assert_eq!(self.attached_to(&name), Some(at), "{name} is staged elsewhere");
                }
                self.staged.insert((at, name));
            }
            Call::Publish { wanted, .. } => {
                let name = node::name(&Known::of(wanted), &wanted.pod);
                let is_staged = self.staged.contains(&(at, name.clone()));
                let is_own = node::is_of_pod(&Known::of(wanted));
                assert!(is_staged || is_own, "{name} is published without being staged");
                let others = self.published.iter().filter(|(node, volume, pod)| {
                    *node == at && *volume == name && *pod != wanted.pod
                });
                let is_for_one = node::is_for_one_pod(wanted);
                assert!(!is_for_one || others.count() == 0, "{name} is for one pod and has two");
                self.published.insert((at, name, wanted.pod.clone()));
            }
            Call::Expand { wanted, .. } => {
                let name = node::name(&Known::of(wanted), &wanted.pod);
                let has = self.published.contains(&(at, name.clone(), wanted.pod.clone()));
                assert!(has, "{name} is expanded without being published");
            }
            Call::Unpublish { pod, known } => {
                self.published.remove(&(at, node::name(known, pod), pod.clone()));
            }
            Call::Unstage(known) => {
                let name = node::name(known, &PodUid::from(""));
                let below =
                    self.published.iter().any(|(node, volume, _)| *node == at && *volume == name);
                assert!(!below, "{name} is unstaged below a publication");
                self.staged.remove(&(at, name));
            }
        }
        Ok(())
    }
}
