//! Removes cgroups of unknown pods, left by a crash between the creation of the cgroup and of the
//! sandbox, or by a runtime that abandoned a sandbox half-way.
//!
//! Input: the cgroups of the QoS classes, and a check of whether a pod is known. The check is
//! repeated right before a removal, because a pod may start while another cgroup is removed. A
//! cgroup with running processes is killed and removed after two sweeps in a row have found it; by
//! the second sweep a starting pod is known.
// k8s: pkg/kubelet/kubelet_pods.go cleanupOrphanedPodCgroups

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

use pintle_agent_core::types::{PodUid, with_causes};
use pintle_daemon::log_once::{self, RepeatSuppressor};
use pintle_daemon::twice::Twice;

use crate::cgroup::Cgroups;

/// Cgroups of unknown pods that earlier sweeps found, killed or failed to remove.
#[derive(Debug, Default)]
pub struct Strangers {
    found: RefCell<Twice<String>>,
    killed: RefCell<BTreeSet<String>>,
    kept: RefCell<RepeatSuppressor>,
}

impl Cgroups {
    /// Removes the cgroups of unknown pods in these classes.
    pub async fn sweep(
        &self,
        classes: &[String],
        uid_of: impl Fn(&str) -> Option<PodUid>,
        strangers: &Strangers,
        is_known: impl Fn(&PodUid) -> bool,
    ) {
        let (mut empty, mut busy) = (Vec::new(), Vec::new());
        for class in classes {
            for leaf in self.children(class).await.unwrap_or_default() {
                let Some(uid) = uid_of(&leaf).filter(|uid| !is_known(uid)) else { continue };
                let name = format!("{class}/{leaf}");
                match self.on_disk(&name, |tree, name| tree.pids(name)).await.flatten() {
                    Ok(pids) if pids.is_empty() => empty.push((name, uid)),
                    Ok(_) => busy.push((name, uid)),
                    Err(_) => {}
                }
            }
        }
        let found: BTreeSet<_> = busy.iter().map(|(name, _)| name.clone()).collect();
        let again = strangers.found.borrow_mut().take(found);
        strangers.killed.borrow_mut().retain(|name| again.contains(name));
        let mut kept = Vec::new();
        busy.retain(|(name, _)| again.contains(name));
        for (name, uid) in empty.into_iter().chain(busy).filter(|(_, uid)| !is_known(uid)) {
            // Processes that survive are killed again in later sweeps, without another log line.
            if again.contains(&name) && strangers.killed.borrow_mut().insert(name.clone()) {
                tracing::warn!(pod = %uid, cgroup = name, "killing processes of an unknown pod");
            }
            if let Err(error) = self.remove_pod(&name).await {
                kept.push((name, with_causes(&error)));
            }
        }
        let kept = log_once::stays("orphaned cgroups", &kept);
        if let Some(line) = strangers.kept.borrow_mut().take(kept, Instant::now()) {
            line.log();
        }
    }
}
