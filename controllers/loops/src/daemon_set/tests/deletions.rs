//! Deletions that a watch shows twice, or that another client makes first, delay nothing.
//!
//! Input: a frame with the controller, its requests answered, and watch events one by one; no time
//! passes. Upstream counted a deletion again when the pod that was marked as deleting went, and not
//! at all when the pod was not found, and then waited five minutes (k#75836, k#78972).

use std::time::Instant;

use pintle_api_types::kind::{CONTROLLER_REVISIONS, Kind};
use pintle_controllers_core::frame::{Frame, FrameEffect, Now};
use pintle_controllers_core::tables::{Decoded, WatchEvent};

use super::*;

/// A frame, and the cluster that answers it.
struct FrameWorld {
    frame: Frame,
    world: LoopWorld,
    now: Now,
}

impl FrameWorld {
    /// Two nodes with a failed pod each, `p` and `q`; all is listed.
    fn new() -> Self {
        let mut world = world(set(), 2);
        for (name, node) in [("p", "node-0"), ("q", "node-1")] {
            world.add(PODS, daemon_pod(name, node, "Failed"));
        }
        let now = Now { instant: Instant::now(), wall: world.now };
        let mut frame = Frame::default();
        frame.add(DaemonSets::new(1));
        let mut found = Self { frame, world, now };
        for kind in [DAEMON_SETS, NODES, PODS, CONTROLLER_REVISIONS] {
            found.frame.apply(WatchEvent::ListBegun(kind), now);
            found.show(kind);
            found.frame.apply(WatchEvent::ListComplete(kind), now);
        }
        found
    }

    /// The watch of a kind shows its objects as they are.
    fn show(&mut self, kind: Kind) {
        let objects: Vec<_> = self.world.all(kind).cloned().collect();
        objects.iter().for_each(|object| self.set(kind, object));
    }

    fn set(&mut self, kind: Kind, object: &Value) {
        let object = Decoded::typed(kind, &object.to_string()).expect("a good object");
        self.frame.apply(WatchEvent::Set(object), self.now);
    }

    fn show_deleted(&mut self, pod: &Value) {
        let pod = Decoded::typed(PODS, &pod.to_string()).expect("a good pod");
        self.frame.apply(WatchEvent::Deleted(pod), self.now);
    }

    /// The watch shows that a pod is being deleted; returns the pod.
    fn show_deleting(&mut self, mut pod: Value) -> Value {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let pod = self.world.add(PODS, pod);
        self.set(PODS, &pod);
        pod
    }

    /// Turns the frame and shows what it writes, but for pods. Returns its requests for pods.
    fn run(&mut self) -> PodActions {
        let mut actions = PodActions { created: 0, deleted: 0 };
        loop {
            let orders = self.frame.turn(self.now);
            if orders.is_empty() {
                return actions;
            }
            for order in orders {
                let FrameEffect::Send { ticket, requests, .. } = order else { continue };
                let count = |is_it: fn(&&Request) -> bool| requests.iter().filter(is_it).count();
                actions.created +=
                    count(|one| matches!(one, Request::Create { kind, .. } if *kind == PODS));
                actions.deleted += count(
                    |one| matches!(one, Request::Delete { target, .. } if target.kind == PODS),
                );
                let answers = requests.iter().map(|request| self.world.answer(request)).collect();
                self.frame.answer(ticket, answers, self.now);
            }
            self.show(CONTROLLER_REVISIONS);
            self.show(DAEMON_SETS);
        }
    }
}

#[test]
fn deletion_observed_twice_counts_only_for_its_own_pod() {
    let mut cluster = FrameWorld::new();
    let [p, q] = ["p", "q"].map(|name| cluster.world.get(PODS, name).expect("a pod").clone());
    // Another client deletes it first.
    cluster.world.remove(PODS, "q");
    assert_eq!(cluster.run(), PodActions { created: 0, deleted: 2 });
    let p = cluster.show_deleting(p);
    assert_eq!(cluster.run(), PodActions { created: 0, deleted: 0 }, "q is still shown");
    cluster.world.remove(PODS, "p");
    cluster.show_deleted(&p);
    assert_eq!(cluster.run(), PodActions { created: 0, deleted: 0 }, "q is still shown");
    cluster.show_deleted(&q);
    assert_eq!(cluster.run(), PodActions { created: 2, deleted: 0 });
}

#[test]
fn pod_deleted_by_a_user_is_replaced_as_soon_as_it_is_removed() {
    let mut cluster = FrameWorld::new();
    let failed: Vec<_> = cluster.world.all(PODS).cloned().collect();
    assert_eq!(cluster.run(), PodActions { created: 0, deleted: 2 });
    failed.iter().for_each(|pod| cluster.show_deleted(pod));
    assert_eq!(cluster.run(), PodActions { created: 2, deleted: 0 });
    cluster.world.run_kubelets();
    cluster.show(PODS);
    assert_eq!(cluster.run(), PodActions { created: 0, deleted: 0 });
    let pod = cluster.world.all(PODS).next().expect("a pod").clone();
    let pod = cluster.show_deleting(pod);
    let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(cluster.run(), PodActions { created: 0, deleted: 0 }, "it still ends");
    cluster.world.remove(PODS, &name);
    cluster.show_deleted(&pod);
    assert_eq!(cluster.run(), PodActions { created: 1, deleted: 0 });
}
