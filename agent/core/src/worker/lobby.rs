//! New pods before they are admitted: they wait for the node's object, or for a fresh copy of it.
//!
//! Pure, part of `Pods`. A pod of the API server is not checked against unknown labels: new pods
//! wait for the first event of the watch of the Node object. A pod that fails only its node
//! affinity is checked once more with labels that were read after it came, because the client that
//! labelled the node may have been faster than the watch. Static pods wait for neither an API
//! server nor its answer, unless their affinity fails. Bounds: one entry for each new pod, one read
//! of the node under way.
// k8s: pkg/kubelet/config/apiserver.go NewSourceApiserver nodeHasSynced
// k8s: pkg/kubelet/lifecycle/predicate.go generalFilter

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::admit;
use crate::worker::Command;
use crate::worker::pods::Pods;
use crate::worker::resizes::AdmissionRequest;
use pintle_api_types::ids::{Now, PodUid};
use pintle_api_types::pod;

/// A pod that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Guest {
    request: AdmissionRequest,
    /// The earliest read of the node that may decide; `None` when any knowledge of it will do.
    read: Option<u64>,
}

/// Pods that have come and were not admitted or refused yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lobby {
    guests: BTreeMap<PodUid, Guest>,
    /// There is a Node object to read.
    has_object: bool,
    /// The watch of it has delivered an event.
    node_seen: bool,
    /// Number of its last requested read.
    reads: u64,
    /// One is under way.
    reading: bool,
}

impl Lobby {
    pub(super) fn new(has_object: bool) -> Self {
        let guests = BTreeMap::new();
        Self { guests, has_object, node_seen: !has_object, reads: 0, reading: false }
    }

    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.guests.contains_key(uid)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// Removes a pod that is no longer wanted, or is decided now. Returns the number of the read it
    /// waited for.
    pub(super) fn leave(&mut self, uid: &PodUid) -> Option<u64> {
        self.guests.remove(uid)?.read
    }

    /// True when the pod cannot be admitted or refused before the node is known.
    pub(super) fn must_wait(&self, pod: &Pod) -> bool {
        !self.node_seen && !pod::is_static(pod)
    }

    /// Takes those out that may be decided now, the oldest pod first.
    fn take(&mut self, may: impl Fn(&Guest) -> bool) -> Vec<(PodUid, AdmissionRequest)> {
        let ready = self.guests.extract_if(.., |_, guest| may(guest));
        let mut ready: Vec<_> = ready.map(|(uid, guest)| (uid, guest.request)).collect();
        ready.sort_by_key(|(_, request)| {
            request.pod.metadata.creation_timestamp.as_ref().map(|created| created.0)
        });
        ready
    }
}

impl Pods {
    /// A pod waits until the node is known.
    pub(super) fn wait_for_node(&mut self, uid: PodUid, request: AdmissionRequest) {
        self.lobby.guests.insert(uid, Guest { request, read: None });
    }

    /// True when a pod that only its node affinity keeps out deserves a second look.
    pub(super) fn may_look_again(&self) -> bool {
        self.lobby.has_object
    }

    /// A pod waits for a read of the node that begins after it came.
    pub(super) fn wait_for_fresh_node(
        &mut self,
        uid: PodUid,
        request: AdmissionRequest,
        waited_for: Option<u64>,
    ) {
        // A pod that changed while it waited need not wait longer for that.
        let read = waited_for.or(Some(self.lobby.reads + 1));
        self.lobby.guests.insert(uid, Guest { request, read });
        self.read_node();
    }

    /// Ends all waits for facts about the node.
    pub(super) fn clear_lobby(&mut self, now: Now) {
        for (uid, request) in self.lobby.take(|_| true) {
            self.decide(uid, request, true, now);
        }
    }

    fn read_node(&mut self) {
        let lobby = &mut self.lobby;
        if lobby.reading || !lobby.guests.values().any(|guest| guest.read > Some(lobby.reads)) {
            return;
        }
        lobby.reading = true;
        lobby.reads += 1;
        self.out.push(Command::FetchNode { ticket: lobby.reads });
    }

    /// Handles an event of the node's watch.
    pub(super) fn node_seen(&mut self, now: Now) {
        self.lobby.node_seen = true;
        for (uid, request) in self.lobby.take(|guest| guest.read.is_none()) {
            self.decide(uid, request, false, now);
        }
    }

    /// Answer to `Command::FetchNode`; without a node the known facts have to do.
    pub(super) fn node_fetched(
        &mut self,
        ticket: u64,
        node: Option<Arc<admit::AdmissionNode>>,
        now: Now,
    ) {
        if !self.lobby.reading || ticket != self.lobby.reads {
            return;
        }
        self.lobby.reading = false;
        if let Some(node) = node {
            self.offered(node);
        }
        for (uid, request) in self.lobby.take(|g| g.read.is_some_and(|read| read <= ticket)) {
            self.decide(uid, request, true, now);
        }
        self.read_node();
    }
}
