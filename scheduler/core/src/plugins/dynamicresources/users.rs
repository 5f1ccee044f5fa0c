//! Claims with node-allocatable devices may be used by one pod per node.
//!
//! Input: pods bound to or assumed on a node, with their status entries for such claims. Output:
//! other users of a claim on a node. Owner: the cache of devices. Bounds: such pods. Only behind
//! the gate DRANodeAllocatableResources.
// k8s: pkg/scheduler/framework/types.go updateNodeAllocatableDRAClaimState

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use k8s_openapi::api::core::v1::NodeAllocatableResourceClaimStatus;
use pintle_api_types::key::ObjectKey;

use crate::uid::Uid;

/// A pod on a node, and its claims.
#[derive(Clone, Debug, PartialEq)]
struct NodeClaimUser {
    node: Rc<str>,
    claims: Vec<ObjectKey>,
}

/// A pod removed in a dry run.
#[derive(Debug)]
pub(crate) struct Away(Uid, NodeClaimUser);

/// All such pods.
#[derive(Debug, Default)]
pub(crate) struct ClaimUsers {
    pods: HashMap<Uid, NodeClaimUser>,
    by_claim: HashMap<ObjectKey, BTreeSet<Uid>>,
}

impl ClaimUsers {
    /// Records a pod on a node with the status entries of its claims, which are in its namespace.
    pub(crate) fn put(
        &mut self,
        uid: &str,
        namespace: &str,
        statuses: &[NodeAllocatableResourceClaimStatus],
        node: &str,
    ) {
        self.take(uid);
        let claims = statuses.iter();
        let claims = claims.map(|status| ObjectKey::new(namespace, &status.resource_claim_name));
        let user = NodeClaimUser { node: node.into(), claims: claims.collect() };
        if !user.claims.is_empty() {
            self.put_back(Away(uid.into(), user));
        }
    }

    /// Removes a pod from its node.
    pub(crate) fn take(&mut self, uid: &str) -> Option<Away> {
        let (uid, user) = self.pods.remove_entry(uid)?;
        for claim in &user.claims {
            if let Some(uids) = self.by_claim.get_mut(claim) {
                uids.remove(&uid);
                if uids.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
        Some(Away(uid, user))
    }

    /// Puts a removed pod back.
    pub(crate) fn put_back(&mut self, Away(uid, user): Away) {
        for claim in &user.claims {
            self.by_claim.entry(claim.clone()).or_default().insert(uid.clone());
        }
        self.pods.insert(uid, user);
    }

    /// Returns the reason a pod may not use a claim on a node, once the pods of `is_gone` have
    /// left.
    // k8s: nodeallocatabledynamicresources.go validateNodeAllocatableDRAClaimSharing
    pub(super) fn refusal(
        &self,
        pod: &str,
        claim: &ObjectKey,
        node: &str,
        is_gone: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let is_here = |uid: &&Uid| {
            self.pods.get(*uid).is_some_and(|user| *user.node == *node) && !is_gone(uid)
        };
        let users = self.by_claim.get(claim)?.iter().filter(is_here).collect::<Vec<_>>();
        let name = claim.name();
        match &users[..] {
            [] => None,
            [only] if ***only == *pod => None,
            [_] => {
                let why = "is already used by another pod";
                Some(format!("node allocatable resource claim {name} {why}"))
            }
            _ => Some(format!("node allocatable resource claim {name} shared by multiple pods")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses(claims: &[&str]) -> Vec<NodeAllocatableResourceClaimStatus> {
        let one = |name: &&str| NodeAllocatableResourceClaimStatus {
            resource_claim_name: (*name).to_owned(),
            ..NodeAllocatableResourceClaimStatus::default()
        };
        claims.iter().map(one).collect()
    }

    #[test]
    fn node_allocatable_claim_is_limited_to_one_pod_per_node() {
        let mut users = ClaimUsers::default();
        users.put("p", "ns", &statuses(&["c", "d"]), "a");
        users.put("q", "ns", &statuses(&["e"]), "b");
        let says = |users: &ClaimUsers, pod: &str, namespace: &str, claim: &str, node: &str| {
            users.refusal(pod, &ObjectKey::new(namespace, claim), node, |_| false)
        };
        let used =
            Some("node allocatable resource claim c is already used by another pod".to_owned());
        for (pod, namespace, claim, node, want) in [
            ("q", "ns", "c", "a", used.clone()),
            ("p", "ns", "c", "a", None),
            ("q", "ns", "c", "b", None),
            ("q", "other", "c", "a", None),
            ("q", "ns", "e", "b", None),
        ] {
            let said = says(&users, pod, namespace, claim, node);
            assert_eq!(said, want, "{pod} {namespace}/{claim} {node}");
        }
        let key = ObjectKey::new("ns", "c");
        assert_eq!(users.refusal("q", &key, "a", |uid| uid == "p"), None, "it goes");
        users.put("r", "ns", &statuses(&["c"]), "a");
        let several = "node allocatable resource claim c shared by multiple pods";
        assert_eq!(says(&users, "p", "ns", "c", "a").as_deref(), Some(several));
        let away = users.take("p").expect("it was there");
        assert_eq!(says(&users, "q", "ns", "c", "a"), used, "the other one is");
        users.put_back(away);
        users.put("r", "ns", &[], "a");
        users.put("p", "ns", &statuses(&["d"]), "a");
        assert_eq!(says(&users, "q", "ns", "c", "a"), None, "no status names the claim any more");
        ["p", "q"].iter().for_each(|uid| _ = users.take(uid));
        assert!(users.pods.is_empty() && users.by_claim.is_empty());
    }
}
