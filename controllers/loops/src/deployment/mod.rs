//! Deployments: roll out a pod template by scaling ReplicaSets.
//!
//! Reads Deployments, ReplicaSets and, for the strategy `Recreate`, pods. Writes: creations,
//! updates, deletions, adoptions and releases of ReplicaSets; the Deployment's status, with the
//! revision annotation; the Deployment itself when it is rolled back. Differs from upstream in what
//! it does after its own write: the rest of the sync works with the version that the API server
//! answered, and the next sync waits until the tables show it, so that no write conflicts with an
//! earlier one of the same controller.
//!
//! ```text
//!   handlers ─> snapshot ─> sync ─> new_set, annotations        the set of the current template
//!                             ├───> scale, limits               scaling events, paused rollouts
//!                             ├───> rolling, recreate, rollback
//!                             ├───> history                     old sets beyond the limit
//!                             └───> status, conditions, progress
//! ```
// k8s: pkg/controller/deployment

mod annotations;
mod conditions;
mod handlers;
mod history;
mod limits;
mod new_set;
mod progress;
mod recreate;
mod rollback;
mod rolling;
mod rollout;
mod scale;
mod sets;
mod status;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, Kind, PODS, REPLICA_SETS};
use pintle_controllers_core::frame::{
    Controller, Now, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use pintle_controllers_core::meta::Uid;
use pintle_controllers_core::tables::{Change, Tables};

use sets::Set;

/// `Recreate`, the strategy that deletes all old pods before it creates new ones.
const RECREATE: &str = "Recreate";
/// `RollingUpdate`, the strategy that replaces pods step by step.
const ROLLING_UPDATE: &str = "RollingUpdate";

/// The controller.
#[derive(Debug)]
pub struct DeploymentController {
    /// `--concurrent-deployment-syncs`.
    pub workers: usize,
}

/// The state that one sync reads.
#[derive(Debug)]
pub struct DeploymentSnapshot {
    deployment: Rc<KeptObject<Deployment>>,
    /// Sets that it controls, and orphans of its namespace that it selects.
    sets: Vec<Set>,
    /// Those of these sets that have pods that have not ended; known for `Recreate` only.
    running: BTreeSet<Uid>,
}

impl Controller for DeploymentController {
    type Key = ObjectKey;
    type Snapshot = DeploymentSnapshot;
    type Note = ();

    const NAME: &'static str = "deployment-controller";
    // k8s: pkg/controller/deployment/deployment_controller.go maxRetries
    const RETRIES_MAX: Option<u32> = Some(15);

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![DEPLOYMENTS, REPLICA_SETS, PODS]
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        _: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        match change {
            Change::Deployment(delta) => wake.now(delta.object().metadata.key()),
            Change::ReplicaSet(delta) => handlers::handle_set(delta, tables, wake),
            Change::Pod(delta) => handlers::handle_pod(delta, tables, wake),
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<DeploymentSnapshot> {
        let deployment = Rc::clone(tables.deployments.get(key)?);
        let meta = &deployment.metadata;
        let own = tables.replica_sets.controlled_by(&meta.uid);
        let own = own.filter(|set| set.metadata.namespace == meta.namespace);
        let orphans = tables.replica_sets.orphans(&meta.namespace);
        let orphans = orphans.filter(|set| deployment.spec.selector.matches(&set.metadata.labels));
        let sets: Vec<_> = own.chain(orphans).cloned().collect();
        let mut running = BTreeSet::new();
        if &*deployment.spec.strategy.kind == RECREATE {
            let is_running =
                |set: &&Set| handlers::pods_of(set, tables).any(|pod| !pod.is_terminal());
            running = sets.iter().filter(is_running).map(|set| set.metadata.uid.clone()).collect();
        }
        Some(DeploymentSnapshot { deployment, sets, running })
    }

    fn sync(
        snapshot: &DeploymentSnapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        sync::sync(snapshot, transcript)
    }
}
